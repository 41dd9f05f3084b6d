"""Segments kept in another format than the cache's: made of what there is, or read anew."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor

from agentmem.errors import InvalidInput
from agentmem.kernels.rotary import as_channels, ordered_pairs, unit_rotations
from agentmem.models.attached import AttachedModel, attach
from agentmem.models.kv_encoding import packed_pages
from agentmem.models.kv_formats import FORMATS
from agentmem.models.segment_cache import SegmentCache
from agentmem.segment import PRECISIONS
from agentmem.storage.kv_format import phases_of
from tests.kv_models import ask, filled, tiny_model


@pytest.fixture(scope="module")
def attached() -> Iterator[AttachedModel]:
    made = attach(tiny_model("llama"))
    yield made
    made.detach()


def alone(cache: SegmentCache, key: int) -> Tensor:
    """What the model makes of one segment at the head of a window."""
    fork = cache.fork()
    fork.layout([(key, 0)])
    return ask(fork.attached, fork)


def test_every_precision_is_a_format() -> None:
    assert set(PRECISIONS) <= set(FORMATS)


@pytest.mark.parametrize("precision", ["q8", "fp8", "q4", "binary"])
def test_one_segment_in_another_format_is_as_in_a_cache_of_that_format(
    attached: AttachedModel, precision: str
) -> None:
    other, whole = filled(attached, format="dense"), filled(attached, format=precision)
    other.keep_as(1, precision)  # type: ignore[arg-type]
    for cache in (other, whole):
        cache.compress(1)
    assert [other.compress(key) for key in (0, 2)] == [False, False]
    assert other.states() == whole.states() == {0: "live", 1: "compressed", 2: "live"}
    assert other.nbytes == whole.nbytes
    torch.testing.assert_close(ask(attached, other), ask(attached, whole), rtol=0, atol=0)


@pytest.mark.parametrize("key", [0, 1, 2])
def test_a_packed_segment_is_packed_smaller_wherever_it_begins_in_its_page(
    attached: AttachedModel, key: int
) -> None:
    exact = filled(attached)
    through, direct = filled(attached, format="q8"), filled(attached, format="q4")
    for cache in (through, direct):
        for one in (0, 1, 2):
            cache.compress(one)
    through.keep_as(key, "q4")
    assert through.too_coarse == () and through.compress(key) and not through.compress(key)
    mine, theirs, truth = (alone(cache, key) for cache in (through, direct, exact))
    error, expected = (float((one - truth).norm()) for one in (mine, theirs))
    assert 0 < error < 1.5 * expected


@pytest.mark.parametrize("first_slot", [0, 5])
def test_what_is_made_of_packed_pages_says_what_they_say_in_its_own_frame(
    attached: AttachedModel, first_slot: int
) -> None:
    cache = filled(attached, (20, 100, 30), format="q8")
    block = cache._residents[1].block
    exact = token_states(cache, block.arena.load(block), 0)
    for key in (0, 1, 2):
        cache.compress(key)
    packed = cache._residents[1].block
    assert packed.first_slot == 4
    again = packed_pages(cache.layers, cache._dense, attached.frequencies, packed, first_slot)
    # Keys are stored rotated by their offset in their stretch of four pages.
    tokens = torch.arange(100)
    shifts = (first_slot + tokens) % 64 - tokens % 64
    turns = [unit_rotations(shifts, one) for one in attached.frequencies]
    for layer, (keys, values) in enumerate(token_states(cache, again, first_slot)):
        wanted, wanted_values = exact[layer]
        turned = as_channels(ordered_pairs(wanted) * turns[attached.groups[layer]])
        assert float((keys - turned).norm() / turned.norm()) < 0.01
        assert float((values - wanted_values).norm() / wanted_values.norm()) < 0.01


def token_states(
    cache: SegmentCache, layers: Sequence[Tensor], first_slot: int
) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of dense pages: (num_kv_heads, 100, head_dim) for each layer."""
    found = []
    for codec, pages in zip(cache._dense.codecs, layers, strict=True):
        states = codec.decode(pages, phases_of(len(pages)))
        keys, values = (one.transpose(0, 1).flatten(1, 2) for one in states)
        found.append((keys[:, first_slot:][:, :100], values[:, first_slot:][:, :100]))
    return found


def test_the_others_are_untouched_by_it(attached: AttachedModel) -> None:
    cache = filled(attached, format="q8")
    for key in (0, 1, 2):
        cache.compress(key)
    before = [cache.fork().park(key).layers for key in (0, 2)]
    cache.keep_as(1, "binary")
    cache.compress(1)
    after = [cache.fork().park(key).layers for key in (0, 2)]
    for old, new in zip(before, after, strict=True):
        assert all(map(torch.equal, old, new))


def test_what_was_packed_is_too_coarse_for_more(attached: AttachedModel) -> None:
    cache = filled(attached, format="q4")
    cache.keep_as(2, "dense")
    cache.compress(1)
    assert not cache.compress(2) and not cache.too_coarse
    cache.keep_as(1, "q8")
    assert not cache.compress(1) and list(cache.too_coarse) == [1]
    cache.keep_as(1, None)
    assert not cache.too_coarse


def test_a_record_returns_in_its_own_format_also_to_a_cache_that_never_had_it(
    attached: AttachedModel,
) -> None:
    cache = filled(attached, format="q8")
    cache.keep_as(1, "q4")
    cache.compress(1)
    expected = alone(cache, 1)
    record = cache.park(1)
    fresh = SegmentCache(attached, "q8")
    fresh.restore(1, 0, record)
    assert fresh.states() == {1: "compressed"} and fresh.too_coarse == (1,)
    torch.testing.assert_close(alone(fresh, 1), expected, rtol=0, atol=0)


def test_a_window_of_many_formats_is_streamed_from_host_memory_with_the_same_answer(
    attached: AttachedModel,
) -> None:
    def made(kv_bytes: int) -> SegmentCache:
        cache = filled(attached, format="q8", kv_bytes=kv_bytes)
        cache.keep_as(0, "binary")
        cache.keep_as(1, "q4")
        for key in (0, 1, 2):
            cache.compress(key)
        return cache

    here, away = made(0), made(1)
    assert here.host_nbytes == 0 and away.host_nbytes == away.nbytes == here.nbytes
    torch.testing.assert_close(ask(attached, away), ask(attached, here), rtol=1e-5, atol=1e-5)


def test_a_fork_chooses_for_itself(attached: AttachedModel) -> None:
    cache = filled(attached, format="q8")
    fork = cache.fork()
    fork.keep_as(1, "q4")
    for one in (cache, fork):
        one.compress(1)
    assert fork.nbytes < cache.nbytes


def test_there_is_no_other_precision(attached: AttachedModel) -> None:
    with pytest.raises(InvalidInput, match="`format` must be one of"):
        filled(attached).keep_as(1, "q3")  # type: ignore[arg-type]
