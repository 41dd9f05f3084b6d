"""A random history of operations on a segment cache gives the logits of a dense oracle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from agentmem.models import kv_layer
from agentmem.models.attached import AttachedModel, attach
from agentmem.models.segment_cache import SegmentCache
from tests.kv_history import History
from tests.kv_models import tiny_model
from tests.kv_oracle import oracle_for

# Ordinary prose: on random tokens this model's own float32 error reaches 3e-5.
TEXT = """\
My neighbour is painting the fence blue again, and she says that it will brighten the street.
The train was late by half an hour today, so I read most of a book about sailors. We are
planning a short trip to the lake in May, when it is quiet and usually mild. I planted tomatoes
and basil on the balcony because they grow well together. The cat slept on my keyboard for the
whole afternoon, and I had to work on paper. My sister plays the cello in a small orchestra that
meets on Thursdays in the old town hall. I finally cleaned my desk and found three old pens, one
of which still writes. Yesterday I walked to the market and bought apples, bread and a piece of
cheese for the week. The code of the bike lock is written on a card in the drawer of the kitchen
table. When the weather turns cold the birds come to the window and wait for the seeds. He told
me that the museum opens at nine and that the first hour is always empty. They are learning to
bake bread this month; a simple white loaf teaches the basics well. The doctor moved my
appointment to Friday morning, which means that I can sleep longer on Thursday. Her brother
repaired the old radio with parts from a clock, and now it plays two stations.
"""
FAMILIES = [
    ("llama", 200), ("qwen2", 200), ("qwen3", 200), ("mistral", 200), ("mistral_sliding", 200),
    ("gemma2", 200), ("gemma3", 200), ("phi3", 200), ("llama3", 60), ("yarn", 60), ("phi", 60),
    ("smollm3", 100), ("gpt_oss", 100),
]  # fmt: skip


@pytest.mark.parametrize("family", ["gemma3", "yarn", "smollm3", "gpt_oss"])
def test_the_oracle_is_the_stock_model_where_nothing_moves(family: str) -> None:
    model = tiny_model(family, attn_implementation="eager")
    ids = torch.randint(3, 320, (1, 60))
    with torch.no_grad():
        expected = model(ids).logits[0]
    with oracle_for(model) as oracle:
        found = [oracle.append("a", ids[0, a:b].tolist(), a) for a, b in ((0, 31), (31, 60))]
    torch.testing.assert_close(torch.cat(found), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("family", "num_operations"), FAMILIES)
def test_random_operations_equal_the_oracle(
    family: str, num_operations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_layer, "TILE_TOKENS", 64)
    model = tiny_model(family)
    attached = attach(model)
    with oracle_for(model) as oracle:
        text = torch.randint(3, 320, (2000,)).tolist()
        history = History(attached, oracle, seed=7, max_tokens=30, text=text)
        history.run(num_operations)
    attached.detach()
    assert len(history.done) == 7 and history.compared > 3 * num_operations, history.done
    assert history.worst < 1e-5
    assert history.worst_next < 1e-5


@pytest.fixture(scope="module")
def smollm2(smollm2_dir: Path) -> Iterator[tuple[AttachedModel, list[int]]]:
    """The embedded model, attached, and a text in its tokens."""
    model = transformers.AutoModelForCausalLM.from_pretrained(smollm2_dir, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm2_dir)
    attached = attach(model.eval())
    yield attached, tokenizer(TEXT).input_ids
    attached.detach()


def test_random_operations_on_smollm2_equal_the_oracle(
    smollm2: tuple[AttachedModel, list[int]],
) -> None:
    attached, text = smollm2
    with oracle_for(attached.model) as oracle:
        history = History(attached, oracle, seed=11, text=text, max_tokens=8, appends=1)
        history.run(200)
    assert len(history.done) == 7 and history.compared > 300, history.done
    assert history.worst_next < 1e-5
    # Inside a prompt the stock model itself, in float32, is up to 3e-5 off its own float64.
    assert history.worst < 4e-5


def test_packed_segments_predict_the_tokens_dense_ones_do(
    smollm2: tuple[AttachedModel, list[int]],
) -> None:
    attached, text = smollm2
    packed = SegmentCache(attached, "q8")
    attached.forward(text[:160], packed)
    for key, length in enumerate((8, 25, 60, 34, 33)):
        packed.seal(key, length)
    dense = packed.fork()
    for packed_key in packed.keys:
        packed.compress(packed_key)
    agreed = 0
    for begin in range(160, 260, 10):
        chunk = text[begin : begin + 10]
        found, expected = (attached.forward(chunk, cache, 0) for cache in (packed, dense))
        agreed += int((found.argmax(-1) == expected.argmax(-1)).sum())
    assert agreed >= 95
    assert packed.nbytes < 0.75 * dense.num_tokens * dense.dense_bytes_per_token * 2


def test_bringing_segments_back_runs_no_forward() -> None:
    model = tiny_model("llama")
    attached = attach(model)
    cache = SegmentCache(attached)
    for key in "abc":
        attached.forward(range(5, 25), cache)
        cache.seal(key)
    cache.park("b")
    forwards: list[Any] = []
    hook = model.register_forward_pre_hook(lambda *_: forwards.append(1))
    cache.restore("b", 20)
    cache.layout([("a", 0), ("c", 20), ("b", 40)])
    assert forwards == []
    attached.forward([7], cache)
    assert forwards == [1]
    hook.remove()
    attached.detach()
