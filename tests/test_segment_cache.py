"""What can be done with segments, and what is refused."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from agentmem.errors import InvalidInput, SegmentNotFound, StoreCorrupt, Unsupported
from agentmem.models.attached import AttachedModel, attach
from agentmem.models.segment_cache import LayoutChange, SegmentCache
from agentmem.storage.kv_parking import Parking
from tests.kv_models import ask, filled, ids, tiny_model


@pytest.fixture(scope="module")
def attached() -> Iterator[AttachedModel]:
    made = attach(tiny_model("llama"))
    yield made
    made.detach()


def test_an_empty_cache_is_true(attached: AttachedModel) -> None:
    cache = SegmentCache(attached)
    assert cache and cache.get_seq_length() == 0 and cache.num_tokens == 0 and cache.nbytes == 0


def test_sealing_files_the_tail_under_a_key(attached: AttachedModel) -> None:
    cache = filled(attached)
    assert cache.keys == (0, 1, 2)
    assert [cache.start(key) for key in cache.keys] == [0, 20, 50]
    assert cache.token_ids(1) == tuple(ids(30, 1))
    assert cache.num_tokens == 60 and cache.next_position == 60 and cache.tail_length == 0


def test_one_forward_can_be_sealed_as_many_segments(attached: AttachedModel) -> None:
    whole, parts = SegmentCache(attached), SegmentCache(attached)
    text = ids(50)
    for cache in (whole, parts):
        attached.forward(text, cache)
    whole.seal("all")
    for key, length in (("a", 3), ("b", 16), ("c", 17)):
        parts.seal(key, length)
    assert parts.tail_length == 14 and parts.tail_token_ids == tuple(text[36:])
    parts.seal("d")
    torch.testing.assert_close(ask(attached, parts), ask(attached, whole), rtol=1e-5, atol=1e-5)
    assert parts.token_ids("c") == tuple(text[19:36])


def test_the_next_position_is_logical_not_the_number_of_stored_tokens(
    attached: AttachedModel,
) -> None:
    cache = filled(attached)
    cache.park(1)
    assert cache.num_tokens == 30 and cache.get_seq_length() == 60
    cache.layout([(0, 0), (2, 20)])
    assert cache.num_tokens == 30 and cache.get_seq_length() == 30


def test_a_fragment_at_two_places_is_read_differently(attached: AttachedModel) -> None:
    cache = filled(attached)
    before = ask(attached, cache)
    cache.layout([(1, 0), (0, 30), (2, 50)])
    assert float((ask(attached, cache) - before).norm() / before.norm()) > 1e-3


def test_packed_codes_are_untouched_by_moves(attached: AttachedModel) -> None:
    cache = filled(attached, format="q8")
    cache.compress(1)
    before = cache.fork().park(1)
    cache.layout([(0, 700), (1, 1500), (2, 20)])
    after = cache.park(1)
    for old, new in zip(before.layers, after.layers, strict=True):
        assert torch.equal(old, new)


def test_moving_everything_together_changes_nothing(attached: AttachedModel) -> None:
    cache = filled(attached)
    before = ask(attached, cache)
    cache.layout([(0, 1000), (1, 1020), (2, 1050)])
    after = ask(attached, cache)
    assert float((after - before).norm() / before.norm()) < 1e-5


def test_a_layout_brings_back_what_was_parked_and_parks_what_is_not_listed(
    attached: AttachedModel,
) -> None:
    cache = filled(attached)
    before = ask(attached, cache)
    assert cache.layout([(0, 0), (2, 20)]) == LayoutChange(restored=(), parked=(1,))
    assert cache.states() == {0: "live", 1: "parked", 2: "live"}
    change = cache.layout([(2, 50), (1, 20), (0, 0)])
    assert change == LayoutChange(restored=(1,), parked=())
    assert cache.keys == (0, 1, 2) and len(cache.parking) == 0
    torch.testing.assert_close(ask(attached, cache), before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("places", "error", "words"),
    [
        ([(0, 0), (1, 19), (2, 50)], InvalidInput, "overlaps"),
        ([(0, -1), (1, 20)], InvalidInput, "negative"),
        ([(0, 0), (0, 100)], InvalidInput, "twice"),
        ([(0, 0), ("never seen", 100)], SegmentNotFound, "never seen"),
    ],
)
def test_a_wrong_layout_is_refused_and_changes_nothing(
    attached: AttachedModel, places: list[Any], error: type[Exception], words: str
) -> None:
    cache = filled(attached)
    before = ask(attached, cache)
    with pytest.raises(error, match=words):
        cache.layout(places)
    assert [cache.start(key) for key in cache.keys] == [0, 20, 50] and len(cache.parking) == 0
    assert torch.equal(ask(attached, cache), before)


def test_a_layout_with_an_open_tail_is_refused(attached: AttachedModel) -> None:
    cache = filled(attached)
    attached.forward([5, 6], cache)
    with pytest.raises(InvalidInput, match="2 tokens"):
        cache.layout([(0, 0)])


def test_writing_in_the_middle_needs_a_gap(attached: AttachedModel) -> None:
    cache = filled(attached)
    with pytest.raises(InvalidInput, match="belongs to segment 1"):
        cache.begin(25)
    cache.layout([(0, 0), (1, 24), (2, 54)])
    cache.begin(20)
    attached.forward([5, 6, 7], cache)
    with pytest.raises(InvalidInput, match="reach into segment 1"):
        attached.forward([8, 9], cache)
    # The forward that was refused left nothing.
    assert cache.tail_length == 3 and cache.next_position == 23
    attached.forward([8], cache)
    cache.seal("between")
    assert cache.keys == (0, "between", 1, 2) and cache.next_position == 64


def test_what_is_written_in_the_middle_does_not_see_what_is_behind_it(
    attached: AttachedModel,
) -> None:
    alone, between = filled(attached, (20,)), filled(attached)
    between.layout([(0, 0), (1, 60), (2, 90)])
    between.begin(20)
    torch.testing.assert_close(
        attached.forward(ids(9), between, 0), attached.forward(ids(9), alone, 0)
    )


def test_dropping_deletes_in_the_window_and_in_parking(attached: AttachedModel) -> None:
    cache = filled(attached)
    cache.park(1)
    cache.drop(1)
    cache.drop(0)
    assert not cache.has(1) and not cache.has(0) and cache.states() == {2: "live"}
    with pytest.raises(SegmentNotFound, match="0"):
        cache.drop(0)
    with pytest.raises(SegmentNotFound):
        cache.restore(1, 20)


def test_a_dropped_segment_is_not_seen(attached: AttachedModel) -> None:
    cache, never = filled(attached), filled(attached, (20,))
    cache.drop(1)
    cache.drop(2)
    torch.testing.assert_close(ask(attached, cache), ask(attached, never), rtol=1e-5, atol=1e-5)


def test_a_key_is_in_the_window_once(attached: AttachedModel) -> None:
    cache = filled(attached)
    record = cache.park(1)
    cache.restore(1, 20)
    with pytest.raises(InvalidInput, match="already"):
        cache.restore(1, 500, record)
    attached.forward([5], cache)
    with pytest.raises(InvalidInput, match="already"):
        cache.seal(0)


def test_restoring_onto_a_taken_place_is_refused(attached: AttachedModel) -> None:
    cache = filled(attached)
    cache.park(1)
    with pytest.raises(InvalidInput, match="overlaps"):
        cache.restore(1, 10)
    attached.forward([5, 6], cache)
    with pytest.raises(InvalidInput, match="open tail"):
        cache.restore(1, 61)
    assert cache.parking.has(1)


def test_a_tail_can_be_cut_and_thrown_away(attached: AttachedModel) -> None:
    cache = filled(attached)
    text = ids(12)
    expected = attached.forward(text[:8], cache)
    cache.discard_tail()
    attached.forward(text, cache)
    cache.truncate_tail(7)
    assert cache.tail_length == 7 and cache.tail_token_ids == tuple(text[:7])
    torch.testing.assert_close(attached.forward(text[7:8], cache), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(InvalidInput, match="0 to 8"):
        cache.truncate_tail(9)
    cache.discard_tail()
    assert cache.tail_length == 0 and cache.next_position == 60


def test_the_cache_must_know_the_tokens_it_seals(attached: AttachedModel) -> None:
    cache = SegmentCache(attached)
    with torch.no_grad():
        attached.model(torch.tensor([[5, 6, 7]]), **{attached.cache_argument: cache})
    with pytest.raises(InvalidInput, match="0 token ids are known"):
        cache.seal("a")
    cache.seal("a", token_ids=[5, 6, 7])
    assert cache.token_ids("a") == (5, 6, 7)
    # Ids behind tokens nobody named are not taken for theirs.
    with torch.no_grad():
        attached.model(torch.tensor([[8, 9]]), **{attached.cache_argument: cache})
    attached.forward([10, 11], cache)
    with pytest.raises(InvalidInput, match="0 token ids are known"):
        cache.seal("b", 2)
    cache.discard_tail()
    with pytest.raises(InvalidInput, match="1 to 0"):
        cache.seal("b")
    with pytest.raises(InvalidInput, match="holds 0"):
        cache.note_tokens([1])


@pytest.mark.parametrize("format", ["dense", "q8"])
def test_a_fork_and_its_parent_never_see_each_other(attached: AttachedModel, format: Any) -> None:
    cache = filled(attached, format=format)
    cache.compress(0)
    attached.forward([5, 6, 7], cache)
    forked = cache.fork()
    twin = [attached.forward([8], branch).clone() for branch in (cache.fork(), forked)]
    assert torch.equal(*twin)
    attached.forward(ids(40), forked)
    forked.seal("more")
    forked.park(0)
    forked.compress(1)
    forked.layout([("more", 0), (2, 90)])
    assert cache.num_tokens == 63 and cache.keys == (0, 1, 2) and cache.start(2) == 50
    assert len(cache.parking) == 0 and cache.states()[1] == "live"
    torch.testing.assert_close(attached.forward([8], cache), twin[0], rtol=1e-5, atol=1e-5)
    attached.forward(ids(50), cache)
    cache.seal("mine")
    assert not forked.has("mine") and forked.num_tokens == 54


def test_open_tails_of_a_fork_and_its_parent_grow_apart(attached: AttachedModel) -> None:
    cache, alone = filled(attached), filled(attached)
    for each in (cache, alone):
        attached.forward(ids(7), each)
    forked = cache.fork()
    for token in (5, 6, 7):
        found, expected = attached.forward([token], cache), attached.forward([token], alone)
        attached.forward([token + 100], forked)
        assert torch.equal(found, expected)
    assert forked.tail_token_ids[7:] == (105, 106, 107)


def test_forks_share_sealed_blocks_and_do_not_add_up(attached: AttachedModel) -> None:
    cache = filled(attached, (160,))
    arena = cache._dense
    before = arena.nbytes
    for _ in range(10):
        forked = cache.fork()
        attached.forward(ids(20), forked)
        forked.seal("review")
        del forked
        gc.collect()
    assert arena.nbytes <= before * 1.5
    assert cache.num_tokens == 160


def test_a_record_handed_out_does_not_grow(attached: AttachedModel) -> None:
    cache = filled(attached)
    record = cache.park(1)
    sizes = []
    for turn in range(4):
        cache.restore(1, 20, record)
        attached.forward(ids(9), cache)
        cache.seal(f"turn {turn}")
        cache.park(1)
        sizes.append((record.num_tokens, record.nbytes))
    assert set(sizes) == {(30, sizes[0][1])}


def test_a_record_of_another_model_is_refused_and_of_the_same_weights_is_not(
    attached: AttachedModel,
) -> None:
    record = filled(attached).park(1)
    other = tiny_model("llama")
    with torch.no_grad():
        other.model.layers[1].mlp.up_proj.weight.mul_(1.01)
    for model, accepted in ((tiny_model("llama"), True), (other, False)):
        stranger = attach(model)
        cache = SegmentCache(stranger)
        if accepted:
            cache.restore(1, 20, record)
            assert cache.token_ids(1) == record.token_ids
        else:
            with pytest.raises(Unsupported, match="read the text again"):
                cache.restore(1, 20, record)
            assert not cache.has(1)
        stranger.detach()


@pytest.mark.parametrize("format", ["klt2:0123456789ab", "q4:k4v4", "q9"])
def test_a_record_in_a_format_of_other_parameters_is_refused(
    attached: AttachedModel, format: str
) -> None:
    packed = filled(attached, format="q8")
    packed.compress(1)
    with pytest.raises(Unsupported, match=format):
        SegmentCache(attached).restore(1, 0, replace(packed.park(1), format=format))


def test_a_damaged_record_is_refused(attached: AttachedModel) -> None:
    cache = filled(attached)
    whole = cache.park(1)
    torn = replace(whole, layers=(whole.layers[0][:, 1:], *whole.layers[1:]))
    with pytest.raises(StoreCorrupt, match="Layer 0"):
        cache.restore(1, 20, torn)
    assert not cache.in_window(1)
    cache.restore(1, 20)
    assert cache.in_window(1)


def test_parking_that_is_full_lets_records_go(attached: AttachedModel) -> None:
    room = filled(attached).park(2).nbytes
    cache = filled(attached, parking=Parking(room))
    cache.park(1)
    cache.park(2)
    assert not cache.has(1) and cache.has(2) and cache.parking.nbytes <= room


def test_compressing_packs_in_place(attached: AttachedModel) -> None:
    cache = filled(attached, (32, 32), format="q8")
    before, dense_bytes = ask(attached, cache), cache.nbytes
    assert cache.compress(0) and not cache.compress(0)
    assert cache.states() == {0: "compressed", 1: "live"}
    error = float((ask(attached, cache) - before).norm() / before.norm())
    assert 0 < error < 0.02
    cache.compress(1)
    # 16 channels: a byte each and two for the scale, against four bytes each.
    assert cache.nbytes == dense_bytes * 18 // 64
    assert cache.dense_bytes_per_token == 3 * 2 * 2 * 16 * 2
    record = cache.park(0)
    assert record.format == "q8"
    cache.restore(0, 0)
    assert cache.states()[0] == "compressed"


def test_a_dense_cache_packs_nothing(attached: AttachedModel) -> None:
    cache = filled(attached)
    assert not cache.compress(0) and cache.states()[0] == "live"
    with pytest.raises(InvalidInput, match="q3"):
        SegmentCache(attached, "q3")


def test_bytes_count_padding_and_the_open_tail(attached: AttachedModel) -> None:
    cache = filled(attached, (17,))
    token = 3 * 2 * 2 * 16 * 4
    assert cache.nbytes == 32 * token
    attached.forward([5, 6, 7], cache)
    assert cache.nbytes == 35 * token


def test_key_outliers_do_not_spoil_packed_segments() -> None:
    """Qwen2's key bias: one channel a hundred times the others."""
    model = tiny_model("qwen2")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.k_proj.bias.zero_()
            layer.self_attn.k_proj.bias[[6, 14, 23]] = 100.0
    attached = attach(model)
    cache = filled(attached, (25, 25, 25), format="q8")
    before = ask(attached, cache)
    for key in cache.keys:
        cache.compress(key)
    assert float((ask(attached, cache) - before).norm() / before.norm()) < 0.01
    attached.detach()


def test_a_tail_that_is_not_finite_is_not_sealed(attached: AttachedModel) -> None:
    cache = filled(attached)
    before = ask(attached, cache)
    attached.forward([5, 6], cache)
    values = cache.layers[1].tail_values
    assert values is not None
    values[0, 1, 3] = float("nan")
    with pytest.raises(InvalidInput, match="Layer 1 computed NaN"):
        cache.seal("broken")
    cache.discard_tail()
    torch.testing.assert_close(ask(attached, cache), before)


def test_forwards_in_and_out_of_inference_mode_can_be_mixed(attached: AttachedModel) -> None:
    cache = SegmentCache(attached, "q8")
    with torch.inference_mode():
        attached.forward(ids(20), cache)
        cache.seal(0)
    attached.forward(ids(100, 1), cache)
    cache.compress(0)
    with torch.inference_mode():
        attached.forward([5], cache)
        forked = cache.fork()
    cache.seal(1, 60)
    attached.forward([6], forked)
    cache.seal(2)
    cache.layout([(1, 0), (0, 60)])
    assert ask(attached, cache).isfinite().all()
