"""A window that the device has no room for is answered from host memory, with the same logits."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from agentmem.errors import DeviceFull
from agentmem.kernels import cpu_library
from agentmem.models import kv_window
from agentmem.models.attached import AttachedModel, attach
from agentmem.models.segment_cache import SegmentCache
from agentmem.storage.kv_disk import KVDisk
from agentmem.storage.kv_folder import session_folder
from agentmem.storage.kv_parking import Parking
from agentmem.storage.kv_stream import PageStream
from tests.kv_models import filled, ids, tiny_model
from tests.scarce_memory import Scarce

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
def scarce(monkeypatch: pytest.MonkeyPatch) -> Scarce:
    return Scarce(monkeypatch)


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


def same_window(attached: AttachedModel, cache: SegmentCache, kv_bytes: int = 0) -> SegmentCache:
    """The same pages, bit by bit, under another ceiling."""
    forked, other = cache.fork(), SegmentCache(attached, cache.format, kv_bytes=kv_bytes)
    for key in cache.keys:
        other.restore(key, cache.start(key), forked.park(key))
    return other


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
    attached: AttachedModel, eager: None, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    monkeypatch.setattr(kv_window, "PageStream", partial(PageStream, max_tokens=48))
    whole = window(attached, format=format)
    near, far = same_window(attached, whole), same_window(attached, whole, whole.nbytes // 2)
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
    near = window(llama, format=format)
    far = same_window(llama, near, 1)
    assert far.host_nbytes == far.nbytes
    assert close(answers(llama, far)[0], answers(llama, near)[0])


def test_the_kernels_of_this_machine_stream_too(llama: AttachedModel) -> None:
    near = window(llama, format="q8")
    far = same_window(llama, near, near.nbytes // 3)
    assert far.host_nbytes > 0
    assert close(answers(llama, far)[0], answers(llama, near)[0], 5e-3)


def test_a_fork_and_its_parent_share_what_moves(llama: AttachedModel, eager: None) -> None:
    cache = window(llama, format="q8", kv_bytes=window(llama, format="q8").nbytes // 2)
    expected = answers(llama, cache)[0]
    forked = cache.fork()
    llama.forward(ids(80, 7), forked)
    forked.seal("review")
    found = forked.host_nbytes
    assert close(answers(llama, cache)[0], expected) and cache.host_nbytes > 0
    assert found > cache.host_nbytes > 0
    forked.park(3)
    assert close(answers(llama, cache)[0], expected)


def test_what_lies_in_host_memory_is_parked_packed_and_brought_back_bit_by_bit(
    llama: AttachedModel,
) -> None:
    near = window(llama, format="q8")
    far = same_window(llama, near, 1)
    for key in (0, 2, 5):
        near.compress(key)
        far.compress(key)
    for key in (0, 2, 4, 5):
        mine, other = near.park(key), far.park(key)
        assert mine.first_slot == other.first_slot and mine.format == other.format == "q8"
        for pages, others in zip(mine.layers, other.layers, strict=True):
            assert torch.equal(pages, others)
        start = sum(LENGTHS[:key])
        near.restore(key, start)
        far.restore(key, start)
    assert far.host_nbytes == far.nbytes == near.nbytes
    assert [*far.states().values()] == ["compressed"] * 6


def seal_more(attached: AttachedModel, cache: SegmentCache) -> None:
    cache.seal("more")


def restore(attached: AttachedModel, cache: SegmentCache) -> None:
    cache.restore("parked", 900)


def lay_out(attached: AttachedModel, cache: SegmentCache) -> None:
    cache.discard_tail()
    cache.layout([(0, 0), ("parked", 20), (3, 400)])


def pack(attached: AttachedModel, cache: SegmentCache) -> None:
    cache.compress("long")


ACTIONS = (seal_more, restore, lay_out, pack)


def ready(attached: AttachedModel) -> SegmentCache:
    """A window with an open tail, and something parked."""
    cache = window(attached, format="q8")
    for key, seed in (("long", 7), ("parked", 8)):
        attached.forward(ids(200, seed), cache)
        cache.seal(key)
    cache.park("parked")
    cache._window()  # gives spare rows back: what comes next has to allocate
    attached.forward(ids(200, 9), cache)
    return cache


@pytest.mark.parametrize("action", ACTIONS)
def test_where_the_device_runs_out_of_memory_blocks_move_down_and_it_is_done(
    llama: AttachedModel, eager: None, scarce: Scarce, action: Any
) -> None:
    cache, clean = ready(llama), ready(llama)
    action(llama, clean)
    scarce.num_failures = 1
    action(llama, cache)
    assert scarce.num_failures == 0 < cache.host_nbytes
    assert cache.keys == clean.keys and cache.states() == clean.states()
    assert close(llama.forward([9], cache), llama.forward([9], clean))


@pytest.mark.parametrize("action", ACTIONS)
def test_where_it_runs_out_twice_the_window_is_as_it_was(
    llama: AttachedModel, eager: None, scarce: Scarce, action: Any
) -> None:
    cache = ready(llama)
    if action is lay_out:
        cache.discard_tail()
    keys, tail, states = cache.keys, cache.tail_length, cache.states()
    expected = llama.forward([9], cache)
    cache.truncate_tail(tail)
    scarce.num_failures, scarce.on_host = 99, None
    with pytest.raises(DeviceFull, match="smaller model"):
        action(llama, cache)
    scarce.num_failures = 0
    assert (cache.keys, cache.tail_length, cache.states()) == (keys, tail, states)
    assert close(llama.forward([9], cache), expected)


def test_where_host_memory_runs_out_too_what_is_parked_moves_to_the_disk(
    llama: AttachedModel, eager: None, scarce: Scarce, tmp_path: Path
) -> None:
    cache = ready(llama)
    folder = session_folder(tmp_path / "me.db", "ann", 1, 0.0)
    cache.parking.disk = KVDisk(folder, model="m", max_bytes=2**30)
    assert cache.parking.nbytes > 0 == cache.parking.disk_nbytes
    scarce.num_failures, scarce.on_host = 1, True
    assert cache.make_room()
    assert cache.parking.nbytes == 0 < cache.parking.disk_nbytes and cache.host_nbytes > 0
    cache.discard_tail()
    cache.layout([("parked", 0)])
    clean = ready(llama)
    clean.discard_tail()
    clean.layout([("parked", 0)])
    assert close(llama.forward([9], cache), llama.forward([9], clean))


@pytest.mark.parametrize(
    ("format", "num_turns"),
    [("dense", 80), ("q8", 160), pytest.param("q8", 2000, marks=pytest.mark.slow)],
)
def test_budgets_hold_over_many_turns_and_change_no_answer(
    llama: AttachedModel, eager: None, tmp_path: Path, format: str, num_turns: int
) -> None:
    token_nbytes = window(llama).nbytes / 176
    budget, ram, files = (int(tokens * token_nbytes) for tokens in (90, 120, 900))
    disk = KVDisk(session_folder(tmp_path / "me.db", "ann", 1, 0.0), model="m", max_bytes=files)
    small = SegmentCache(llama, format, kv_bytes=budget, parking=Parking(ram, disk))
    large = SegmentCache(llama, format, parking=Parking(2**40))
    draw, lengths, window_keys = random.Random(3), dict[int, int](), list[int]()
    codes = dict[tuple[int, str], list[Tensor]]()
    seen = {"host": 0, "ram": 0, "disk": 0, "gone": 0, "back": 0}

    def check() -> None:
        assert small._places.device_nbytes <= budget
        assert small.parking.nbytes <= ram and small.parking.disk_nbytes <= files
        seen["host"] += small.host_nbytes > 0
        seen["ram"] += small.parking.nbytes > 0
        seen["disk"] += small.parking.disk_nbytes > 0

    for turn in range(num_turns):
        # What the small one has no more, both would have to read again: the other forgets it too.
        for key in [key for key in large.parking if not small.has(key)]:
            large.drop(key)
            seen["gone"] += 1
        parked = sorted(key for key in large.parking if isinstance(key, int))
        back = draw.sample(parked, min(len(parked), draw.choice([0, 0, 1, 2])))
        seen["back"] += len(back)
        while sum(lengths[key] for key in window_keys + back) > 200:
            window_keys.pop(draw.randrange(len(window_keys)))
        window_keys = sorted(window_keys + back)
        starts = itertools.accumulate((lengths[key] for key in window_keys), initial=0)
        places = list(zip(window_keys, starts, strict=False))
        lengths[turn] = draw.randint(1, 40)
        logits = []
        for cache in (small, large):
            cache.layout(places)
            check()
            for key in window_keys[1:-2]:
                cache.compress(key)
                check()
            logits.append(llama.forward(ids(lengths[turn], turn), cache, logits_to_keep=0))
            cache.seal(turn)
            check()
        assert close(logits[0], logits[1], 1e-5 if format == "dense" else 1e-4)
        window_keys.append(turn)
        for key in window_keys:
            block = small._residents[key].block
            pages = block.arena.load(block)
            was = codes.setdefault((key, block.arena.format.name), pages)
            assert all(torch.equal(*both) for both in zip(pages, was, strict=True))
    assert all(count > 9 for count in seen.values()), seen
