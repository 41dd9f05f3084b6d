"""A window that the device has no room for is answered from host memory, with the same logits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from agentmem.kernels import cpu_library
from agentmem.models.attached import AttachedModel, attach
from agentmem.models.segment_cache import SegmentCache
from tests.kv_models import filled, ids, tiny_model

LENGTHS = (20, 30, 10, 45, 7, 64)
FAMILIES = ("llama", "qwen2", "mistral_sliding", "gemma2", "gemma3", "gpt_oss")
"""Plain, biased keys, a sliding window, soft caps, two rotations, sinks; all with two query heads
a key head."""


@pytest.fixture(scope="module", params=FAMILIES)
def attached(request: pytest.FixtureRequest) -> Iterator[AttachedModel]:
    made = attach(tiny_model(request.param))
    yield made
    made.detach()


@pytest.fixture(scope="module")
def llama() -> Iterator[AttachedModel]:
    made = attach(tiny_model("llama"))
    yield made
    made.detach()


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels without roundings of their own, so that equal is equal to float rounding."""
    monkeypatch.setenv(cpu_library.SWITCH, "off")


def window(attached: AttachedModel, **options: Any) -> SegmentCache:
    """Six segments, those in the middle packed."""
    cache = filled(attached, LENGTHS, **options)
    for key in range(1, 5):
        cache.compress(key)
    return cache


def answers(attached: AttachedModel, cache: SegmentCache) -> tuple[Tensor, dict[Any, float]]:
    """Logits of a long and a short question and of decoded tokens, and what they looked at."""
    logits = [
        attached.forward(ids(length, 90 + length), cache, logits_to_keep=0)
        for length in (40, 3, 1, 1)
    ]
    cache.discard_tail()
    return torch.cat(logits), dict(cache.attention_mass())


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-5) -> bool:
    return float((found - expected).norm() / expected.norm()) < tolerance


@pytest.mark.parametrize("format", ["dense", "q8"])
def test_attention_over_host_memory_is_attention_on_the_device(
    attached: AttachedModel, eager: None, format: str
) -> None:
    near = window(attached, format=format)
    far = window(attached, format=format, kv_bytes=near.nbytes // 2)
    assert near.host_nbytes == 0 < far.host_nbytes < far.nbytes
    expected, looked = answers(attached, near)
    found, looked_far = answers(attached, far)
    assert close(found, expected)
    assert looked_far.keys() == looked.keys() and looked
    assert list(looked_far.values()) == pytest.approx(list(looked.values()), rel=1e-4, abs=1e-8)


@pytest.mark.parametrize("format", ["dense", "fp8", "binary"])
def test_a_device_that_holds_nothing_attends_all_the_same(
    llama: AttachedModel, eager: None, format: str
) -> None:
    near, far = window(llama, format=format), window(llama, format=format, kv_bytes=1)
    assert far.host_nbytes == far.nbytes
    assert close(answers(llama, far)[0], answers(llama, near)[0])


def test_the_kernels_of_this_machine_stream_too(llama: AttachedModel) -> None:
    near = window(llama, format="q8")
    far = window(llama, format="q8", kv_bytes=near.nbytes // 3)
    assert far.host_nbytes > 0
    assert close(answers(llama, far)[0], answers(llama, near)[0], 5e-3)
