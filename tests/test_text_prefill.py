"""The window without a KV tier: what of a prompt is read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from agentmem import Agent
from agentmem.errors import BudgetExceeded
from agentmem.models.base import complete
from agentmem.models.embed import HashEmbedder
from agentmem.models.engine import Engine, engine_for
from agentmem.models.forward import Cancelled, Forward
from agentmem.models.loading import load
from agentmem.models.local import LocalModel
from agentmem.models.text_prefill import PrefixWindow
from tests.kv_models import save_family
from tests.local_models import OPTIONS, conversation, part, talk
from tests.tiny_models import save_tiny_model, tiny_tokenizer

IDS = list(range(40, 90))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return engine_for(load(save_tiny_model(tmp_path_factory.mktemp("tiny"))))


@pytest.fixture
def window(engine: Engine) -> PrefixWindow:
    return PrefixWindow(engine.loaded)


@pytest.fixture
def forward(engine: Engine) -> Forward:
    return Forward(engine.loaded, chunk_tokens=16)


def fresh(engine: Engine, token_ids: list[int]) -> Any:
    """Logits of the ids read afresh, in one piece."""
    return Forward(engine.loaded).run(PrefixWindow(engine.loaded), token_ids, max_tokens=0)


def test_chunks_say_what_one_piece_says(
    engine: Engine, window: PrefixWindow, forward: Forward
) -> None:
    logits = forward.run(window, IDS, max_tokens=0)
    assert torch.allclose(torch.tensor(logits), torch.tensor(fresh(engine, IDS)), atol=1e-4)
    assert forward.num_forwards == 4 and forward.num_tokens == 50 and forward.peak_tokens == 50
    assert window.nbytes == 50 * 2 * 2 * 2 * 16 * 4


@pytest.mark.parametrize("shared", [0, 1, 20, 49, 50])
def test_the_shared_beginning_is_not_read_again(
    engine: Engine, window: PrefixWindow, forward: Forward, shared: int
) -> None:
    forward.run(window, IDS, max_tokens=0)
    other = IDS[:shared] + [7, 8, 9][: 3 if shared < 50 else 0]
    kept = window.keep_start(other)
    assert kept == min(shared, len(other) - 1)
    logits = forward.run(window, other[kept:], max_tokens=0)
    assert torch.allclose(torch.tensor(logits), torch.tensor(fresh(engine, other)), atol=1e-4)
    assert window.token_ids == other


def test_a_fork_never_changes_its_parent(window: PrefixWindow, forward: Forward) -> None:
    forward.run(window, IDS[:30], max_tokens=0)
    keys = [layer.keys.clone() for layer in window.cache.layers]
    fork = window.fork()
    forward.run(fork, [7] * 20, max_tokens=0)
    fork.keep_start([7])
    fork.close()
    assert window.num_tokens == 30
    for layer, before in zip(window.cache.layers, keys, strict=True):
        assert torch.equal(layer.keys, before)


def test_nothing_is_read_past_the_budget(window: PrefixWindow, forward: Forward) -> None:
    forward.run(window, IDS[:30], max_tokens=40)
    with pytest.raises(BudgetExceeded, match="30 tokens in the window and 11 new ones are 41"):
        forward.run(window, IDS[:11], max_tokens=40)
    forward.run(window, IDS[:10], max_tokens=40)
    assert forward.peak_tokens == 40 and forward.room(40, 40) == 0


def test_a_cancelled_reading_keeps_whole_chunks(window: PrefixWindow, forward: Forward) -> None:
    asked = iter([False, False, True])
    with pytest.raises(Cancelled):
        forward.run(window, IDS, max_tokens=0, cancelled=lambda: next(asked))
    assert window.token_ids == IDS[:32]


def save_sliding_model(folder: Path) -> Path:
    """A model whose layers see 12 tokens back, so that its cache cannot be turned back."""
    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=380, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, sliding_window=12,
        initializer_range=0.25, bos_token_id=None, eos_token_id=0,
    )  # fmt: skip
    MistralForCausalLM(config).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("parked_ram_bytes", [0, 2**20])
def test_a_window_that_cannot_be_turned_back_is_read_again_from_a_copy_where_there_is_one(
    parked_ram_bytes: int, tmp_path: Path
) -> None:
    folder = save_sliding_model(tmp_path)
    engine = engine_for(load(folder))
    model = LocalModel(engine, use_kv=False, parked_ram_bytes=parked_ram_bytes)
    prompt = conversation(2)
    complete(model, prompt, OPTIONS)
    reply = part(50, "assistant", "Another one.")
    again = complete(model, [*prompt[:2], reply, prompt[3]], OPTIONS)
    kept = model.prompt_token_ids()[: again.prompt_tokens - again.prefilled_tokens]
    text = engine.vocabulary.encoder.decode(kept)
    assert text.rstrip().endswith("jumps over a fox.<|im_end|>") if parked_ram_bytes else not kept
    other = LocalModel(engine, use_kv=False)
    assert complete(other, [*prompt[:2], reply, prompt[3]], OPTIONS).text == again.text


def test_a_sliding_window_has_a_tier_too_and_it_agrees(tmp_path: Path) -> None:
    engine = engine_for(load(save_sliding_model(tmp_path)))
    texts = []
    for use_kv in (True, False):
        model = LocalModel(engine, kv_format="dense", use_kv=use_kv)
        assert (model.kv is not None) is use_kv
        said = talk(model, [part(1, "system", "You are a fox.")], ["The dog.", "The fox?", "Why?"])
        texts.append([completion.text for completion in said])
    assert texts[0] == texts[1]


def test_a_switched_off_tier_says_so(engine: Engine) -> None:
    model = LocalModel(engine, use_kv=False)
    assert model.kv is None and model.kv_problem == "switched off"
    assert not model.capabilities.has_kv and model.capabilities.has_logits


def test_a_model_with_two_sets_of_frequencies_never_mixes_them(tmp_path: Path) -> None:
    loaded = load(save_family(tmp_path, "longrope"))
    forward, window = Forward(loaded, chunk_tokens=16), PrefixWindow(loaded)

    def ask(token_ids: list[int]) -> int:
        """Read a prompt, and how many tokens that took; it says what a read in one piece says."""
        before = forward.num_tokens
        found = forward.run(window, token_ids[window.keep_start(token_ids) :], max_tokens=0)
        with torch.inference_mode():
            expected = loaded.model(torch.tensor([token_ids])).logits[0, -1].numpy()
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
        return forward.num_tokens - before

    text = list(range(40, 140))
    assert ask(text[:60]) == 60
    for end in range(61, 65):
        assert ask(text[:end]) == 1, "up to the switch"
    assert ask(text[:65]) == 65, "the token that passes it"
    assert ask(text[:90]) == 25 and ask(text[:80] + text[:9]) == 9, "behind it"
    assert ask(text[:70]) == 1, "cut, but not to before it"
    assert ask(text[:50]) == 50, "back to before it"
    assert ask(text[:40] + text[:50]) == 90


def test_what_is_forgotten_does_not_stay_in_memory(tmp_path: Path) -> None:
    engine = engine_for(load(save_sliding_model(tmp_path)))
    model = LocalModel(engine, use_kv=False, parked_ram_bytes=2**20)
    settings: dict[str, Any] = {"store": tmp_path / "me.db", "embedder": HashEmbedder()}
    with Agent(model, budget=1024, controller="policy", **settings) as agent:
        agent.chat("My locker code is 58291.")
        agent.chat("Go on.")
        window = model._window
        assert isinstance(window, PrefixWindow) and window.num_tokens and window.checkpoints.nbytes
        (hit, *_) = agent.memory.search("locker code")
        agent.memory.forget(hit.segment.id)
        assert not window.num_tokens and not window.checkpoints.nbytes
        assert not model.prompt_token_ids()
        assert agent.chat("And now?").text
