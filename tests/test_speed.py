"""Speed against what one would use instead, as ratios within one run. `make slow` runs these."""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from agentmem.models.attached import AttachedModel, attach
from agentmem.models.segment_cache import SegmentCache

pytestmark = pytest.mark.slow

TEXT = (
    "The harbour was quiet that morning. A ferry had left an hour before, and the gulls had gone "
    "with it. Two men mended a net on the quay, and a woman counted crates of herring into a cart. "
    "Nobody spoke of the storm. In the office the clerk wrote names of boats into a ledger, one "
    "under another, and beside each the weight of its catch and the hour at which it came in. "
)


@pytest.fixture(scope="module")
def model(smollm2_dir: Path) -> Any:
    loaded = AutoModelForCausalLM.from_pretrained(smollm2_dir, dtype=torch.float32)
    return loaded.eval()


@pytest.fixture(scope="module")
def attached(model: Any) -> AttachedModel:
    return attach(model)


@pytest.fixture(scope="module")
def prompt(smollm2_dir: Path) -> list[int]:
    tokenizer = AutoTokenizer.from_pretrained(smollm2_dir)
    token_ids: list[int] = tokenizer(TEXT * 20, add_special_tokens=False).input_ids
    return token_ids[:1024]


def filled(attached: AttachedModel, prompt: list[int], cache_format: Any) -> tuple[Any, int]:
    """A cache that holds the prompt in segments of 8 to 60 tokens, and its next greedy token."""
    cache = SegmentCache(attached, cache_format)
    at, number = 0, 0
    while at < len(prompt):
        length = 8 + number * 17 % 53
        logits = attached.forward(prompt[at : at + length], cache)
        cache.seal(number)
        if cache_format != "dense":
            cache.compress(number)
        at, number = at + length, number + 1
    return cache, int(logits[-1].argmax())


class Chain:
    """One system decoding greedily, a token a step."""

    def __init__(self, step: Callable[[int], torch.Tensor], first: int) -> None:
        self._step = step
        self.token_ids = [first]
        self.seconds: list[float] = []

    def advance(self) -> None:
        started = time.perf_counter()
        logits = self._step(self.token_ids[-1])
        self.seconds.append(time.perf_counter() - started)
        self.token_ids.append(int(logits[-1].argmax()))


def test_q8_decodes_about_as_fast_as_dynamic_cache_after_1k_tokens_and_says_the_same(
    model: Any, attached: AttachedModel, prompt: list[int]
) -> None:
    chains = {}
    with torch.inference_mode():
        for name in ("dense", "q8"):
            cache, first = filled(attached, prompt, name)
            chains[name] = Chain(lambda one, c=cache: attached.forward([one], c), first)  # type: ignore[misc]
        dynamic = DynamicCache(config=model.config)
        output = model(
            torch.tensor([prompt]), **{attached.cache_argument: dynamic}, logits_to_keep=1
        )
        chains["dynamic"] = Chain(
            lambda one: model(torch.tensor([[one]]), **{attached.cache_argument: dynamic}).logits[
                0
            ],
            int(output.logits[0, -1].argmax()),
        )
        for _ in range(100):
            for chain in chains.values():
                chain.advance()
    median = {name: statistics.median(chain.seconds) for name, chain in chains.items()}
    ratio = median["dynamic"] / median["q8"]
    same = sum(
        one == other
        for one, other in zip(chains["q8"].token_ids, chains["dense"].token_ids, strict=True)
    )
    print(f"q8 at {ratio:.2f}x of DynamicCache, {same} of 101 tokens as dense")
    # Measured 1.0 to 1.1; other jobs move it by as much.
    assert ratio >= 0.9
    assert same >= 95
    assert chains["dense"].token_ids == chains["dynamic"].token_ids


@pytest.mark.parametrize("cache_format", ["dense", "q8"])
def test_restoring_a_thousand_tokens_is_ten_times_faster_than_reading_them(
    attached: AttachedModel, prompt: list[int], cache_format: Any
) -> None:
    segment, question = prompt[:1000], prompt[1000:1010]
    restored, read = [], []
    with torch.inference_mode():
        cache = SegmentCache(attached, cache_format)
        attached.forward(segment, cache)
        cache.seal("segment")
        cache.compress("segment")
        for _ in range(5):
            cache.park("segment")
            started = time.perf_counter()
            cache.restore("segment", 0)
            attached.forward(question, cache)
            restored.append(time.perf_counter() - started)
            cache.discard_tail()
            fresh = SegmentCache(attached, cache_format)
            started = time.perf_counter()
            attached.forward(segment, fresh)
            attached.forward(question, fresh)
            read.append(time.perf_counter() - started)
    ratio = statistics.median(read) / statistics.median(restored)
    print(f"{cache_format}: restored {ratio:.1f}x faster than read")
    assert ratio >= 10
