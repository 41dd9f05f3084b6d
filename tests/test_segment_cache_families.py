"""Every family served from segments: packed histories, and greedy `generate()` token by token."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from agentmem.models import kv_layer
from agentmem.models.attached import attach
from agentmem.models.segment_cache import SegmentCache
from tests.kv_history import History
from tests.kv_models import cache_argument, ids, tiny_model
from tests.kv_oracle import oracle_for

FAMILIES = [
    "llama", "llama3", "yarn", "qwen2", "qwen3", "mistral", "mistral_sliding", "gemma2", "gemma3",
    "phi", "phi3", "smollm3", "gpt_oss",
]  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_segments_are_within_the_bound_and_attended_to_as_what_they_decode_to(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_layer, "TILE_TOKENS", 64)
    model = tiny_model(family)
    attached = attach(model)
    with oracle_for(model) as oracle:
        text = torch.randint(3, 320, (2000,)).tolist()
        history = History(
            attached, oracle, seed=7, max_tokens=20, text=text, format="q8", appends=2
        )
        history.run(40)
    attached.detach()
    assert history.done["pack"] >= 3 and history.compared > 100, history.done
    assert 0.9 < history.worst_code <= 1.0
    # The kernels of packed codes round queries too, to 15 bits.
    assert history.worst < 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_generate_says_what_it_says_on_a_cache_of_transformers(family: str) -> None:
    model = tiny_model(family, tie_word_embeddings=False)
    prompt = torch.tensor([ids(40, 4)])
    before = _generate(model, DynamicCache(config=model.config), prompt)
    assert len(set(before[0, 40:].tolist())) > 8
    attached = attach(model)
    assert torch.equal(_generate(model, SegmentCache(attached), prompt), before)
    warm = SegmentCache(attached)
    attached.forward(prompt[0, :35].tolist(), warm)
    warm.seal("a", 8)
    warm.seal("b", 22)
    warm.seal("c")
    warm.park("b")
    warm.layout([("a", 100), ("c", 200)])
    # All as it was: the second segment comes back, and into the windows of sliding layers.
    warm.layout([("a", 0), ("b", 8), ("c", 30)])
    assert torch.equal(_generate(model, warm, prompt), before)
    attached.detach()


def _generate(model: Any, cache: Any, prompt: Tensor) -> Tensor:
    generated: Tensor = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=20, do_sample=False,
        # A random model would say two or three tokens over and over.
        no_repeat_ngram_size=2, eos_token_id=None, pad_token_id=0,
        **{cache_argument(model): cache},
    )  # fmt: skip
    return generated
