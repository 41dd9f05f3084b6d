"""Blocks on a device under a byte budget and in host memory; copies on their way; memory that runs
out."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from agentmem.errors import DeviceFull, InvalidInput
from agentmem.storage.kv_arena import Block, PageArena
from agentmem.storage.kv_copies import HostCopy, to_host
from agentmem.storage.kv_dense import DenseFormat
from agentmem.storage.kv_file import Owner, RecordFile
from agentmem.storage.kv_format import LayerShape, num_pages_for
from agentmem.storage.kv_parking import Parking
from agentmem.storage.kv_places import Places, with_room
from agentmem.storage.kv_q8 import Q8Format
from agentmem.storage.kv_record import KVRecord, hash_tokens
from tests.kv_records import record, same
from tests.scarce_memory import Scarce

SHAPES = (LayerShape(2, 8), LayerShape(1, 16))
CPU = torch.device("cpu")


def arenas() -> tuple[PageArena, PageArena]:
    """Dense and packed."""
    return PageArena(DenseFormat(), SHAPES, CPU), PageArena(Q8Format(), SHAPES, CPU)


def pages_of(arena: PageArena, num_tokens: int, seed: int) -> list[Tensor]:
    """Random pages; what lies outside of the segment is whatever it is."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(num_pages_for(num_tokens), codec.page_nbytes) for codec in arena.codecs]
    return [
        torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8) for shape in shapes
    ]


def stored(places: Places, arena: PageArena, num_tokens: int, seed: int = 0) -> Block:
    return places.store(arena, num_tokens, pages_of(arena, num_tokens, seed))


def equal(found: list[Tensor], expected: list[Tensor]) -> bool:
    return all(torch.equal(mine, other) for mine, other in zip(found, expected, strict=True))


def test_without_a_ceiling_everything_is_on_the_device() -> None:
    dense, packed = arenas()
    places = Places((dense, packed))
    blocks = [stored(places, arena, 40, seed) for seed, arena in enumerate((dense, packed))]
    assert places.host_nbytes == 0 and places.device_nbytes == dense.nbytes + packed.nbytes
    assert places.nbytes_of(blocks) == places.nbytes_of(blocks, in_host_memory=False)


def test_the_least_valuable_block_makes_way_and_comes_back() -> None:
    dense, _ = arenas()
    places = Places((dense,), 6 * dense.page_nbytes)
    old, young = stored(places, dense, 32, 1), stored(places, dense, 32, 2)
    expected = dense.load(old)
    new = stored(places, dense, 48, 3)
    assert old.arena.is_host and not young.arena.is_host and not new.arena.is_host
    assert equal(old.arena.load(old), expected)
    assert places.nbytes_of([old, young, new], in_host_memory=True) == 2 * dense.page_nbytes
    places.tidy()
    assert old.arena.is_host, "there is no room for it yet"
    del new
    gc.collect()
    places.tidy()
    assert old.arena is dense and equal(dense.load(old), expected)
    assert places.host_nbytes == 0


def test_packed_blocks_outlast_dense_ones_of_the_same_age() -> None:
    dense, packed = arenas()
    places = Places((dense, packed), 4 * dense.page_nbytes)
    small, large = stored(places, packed, 32, 1), stored(places, dense, 32, 2)
    last = stored(places, dense, 32, 3)
    assert large.arena.is_host and not small.arena.is_host and not last.arena.is_host


def test_a_block_larger_than_the_ceiling_goes_to_host_memory_and_nothing_leaves_for_it() -> None:
    dense, _ = arenas()
    places = Places((dense,), 2 * dense.page_nbytes)
    small, large = stored(places, dense, 20, 1), stored(places, dense, 90, 2)
    assert large.arena.is_host and small.arena is dense


def test_who_holds_a_block_that_moved_is_told_by_the_version() -> None:
    dense, _ = arenas()
    places = Places((dense,), 2 * dense.page_nbytes)
    block = stored(places, dense, 20, 1)
    version = dense.version
    other = stored(places, dense, 20, 2)
    assert block.arena.is_host and dense.version > version
    version = block.arena.version
    del other
    gc.collect()
    places.tidy()
    assert block.arena is dense and places.arenas[1].version > version


def test_a_negative_ceiling_is_refused() -> None:
    with pytest.raises(InvalidInput, match="-1"):
        Places(arenas(), -1)


@pytest.mark.parametrize("seed", range(3))
def test_the_ceiling_holds_whatever_comes_and_goes(seed: int) -> None:
    dense, packed = arenas()
    ceiling = 12 * dense.page_nbytes
    places = Places((dense, packed), ceiling)
    draw = random.Random(seed)
    held: list[tuple[Block, list[Tensor]]] = []
    homes = set()
    for step in range(150):
        action = draw.choice(["store", "store", "forget", "tidy"])
        if action == "store":
            arena, length = draw.choice([dense, packed]), draw.randint(1, 60)
            slot = draw.randrange(16) if arena.shares_pages else 0
            block = places.store(arena, length, pages_of(arena, length, step), slot)
            held.append((block, block.arena.load(block)))
            del block
        elif action == "forget" and held:
            held.pop(draw.randrange(len(held)))
        elif action == "tidy":
            places.tidy()
        assert places.device_nbytes <= ceiling
        homes |= {block.arena for block, _ in held}
        assert all(equal(block.arena.load(block), pages) for block, pages in held)
    assert homes == set(places.arenas)


@pytest.fixture
def scarce(monkeypatch: pytest.MonkeyPatch) -> Scarce:
    return Scarce(monkeypatch)


@pytest.mark.parametrize("skip", [0, 1])
@pytest.mark.parametrize("action", ["grow", "tidy"])
def test_blocks_are_whole_where_memory_runs_out_between_two_layers(
    scarce: Scarce, skip: int, action: str
) -> None:
    dense, _ = arenas()
    blocks = [dense.store(32, pages_of(dense, 32, seed)) for seed in range(8)]
    expected = [dense.load(block) for block in blocks[::3]]
    kept = blocks[::3]
    if action == "tidy":
        del blocks
        gc.collect()
    scarce.num_failures, scarce.skip = 1, skip
    with pytest.raises(torch.OutOfMemoryError):
        dense.tidy(0) if action == "tidy" else dense.store(999, pages_of(dense, 999, 9))
    assert all(equal(dense.load(b), e) for b, e in zip(kept, expected, strict=True))
    more = dense.store(99, pages_of(dense, 99, 7))
    assert equal(dense.load(more), pages_of(dense, 99, 7))
    del more
    gc.collect()
    dense.tidy(0)
    assert dense.nbytes == dense.capacity * dense.page_nbytes
    assert all(equal(dense.load(b), e) for b, e in zip(kept, expected, strict=True))


def test_making_room_halves_what_is_on_the_device_and_keeps_it_so() -> None:
    dense, packed = arenas()
    places = Places((dense, packed))
    blocks = [stored(places, dense, 32, seed) for seed in range(8)]
    expected = [dense.load(block) for block in blocks]
    before = places.device_nbytes
    assert places.make_room()
    assert places.device_nbytes <= before / 2 and places.device_nbytes <= 8 * dense.page_nbytes
    places.tidy()
    blocks.append(stored(places, dense, 32, 9))
    assert places.device_nbytes <= 8 * dense.page_nbytes
    assert [block.arena.is_host for block in blocks] == [True] * 5 + [False] * 4
    assert all(equal(b.arena.load(b), e) for b, e in zip(blocks, expected, strict=False))
    while places.make_room():
        pass
    assert places.device_nbytes == 0


def test_what_an_attempt_had_allocated_is_free_when_room_is_made() -> None:
    class Memory:
        pass

    attempts: list[weakref.ref[Memory]] = []

    def attempt() -> str:
        memory = Memory()
        attempts.append(weakref.ref(memory))
        if len(attempts) == 1:
            raise torch.OutOfMemoryError("first")
        return "done"

    def make_room() -> bool:
        assert attempts[0]() is None
        return True

    assert with_room(attempt, make_room) == "done"


@pytest.mark.parametrize("can_make_room", [True, False])
def test_running_out_of_memory_again_says_what_to_do(can_make_room: bool) -> None:
    calls = []

    def attempt() -> None:
        calls.append(1)
        raise torch.OutOfMemoryError("Tried to allocate 2 GiB.\nSee the documentation.")

    with pytest.raises(DeviceFull, match=r"2 GiB\. Use a smaller `max_tokens`.*smaller model"):
        with_room(attempt, lambda: can_make_room)
    assert len(calls) == 1 + can_make_room


class Arrival:
    """A copy that arrives when it is waited for."""

    def __init__(self, arrive: Callable[[], object]) -> None:
        self.arrive = arrive
        self.num_waits = 0

    def synchronize(self) -> None:
        self.num_waits += 1
        self.arrive()


def on_its_way(whole: KVRecord) -> tuple[KVRecord, Arrival]:
    """The same record, its layers empty until somebody waits for them."""
    targets = [torch.zeros_like(layer) for layer in whole.layers]

    def arrive() -> None:
        for target, layer in zip(targets, whole.layers, strict=True):
            target.copy_(layer)

    arrival = Arrival(arrive)
    moving = KVRecord(
        whole.fingerprint, whole.format, whole.token_ids, whole.context,
        HostCopy(targets, arrival), whole.content_hash,
    )  # fmt: skip
    return moving, arrival


def test_a_record_on_its_way_is_waited_for_by_who_reads_it_once() -> None:
    whole = record(40)
    moving, arrival = on_its_way(whole)
    assert moving.nbytes == whole.nbytes and len(moving.layers) == 2 and moving.num_tokens == 40
    assert arrival.num_waits == 0
    assert same(moving, whole) and same(moving, whole) and arrival.num_waits == 1


def test_parking_waits_for_nothing_until_a_record_moves_down() -> None:
    whole = record(40)
    moving, arrival = on_its_way(whole)
    parking = Parking(whole.nbytes)
    parking.put("a", moving)
    assert parking.nbytes == whole.nbytes and parking.token_ids("a") and arrival.num_waits == 0
    assert parking.get("a") is moving and arrival.num_waits == 0


def test_a_file_has_the_bytes_that_arrive() -> None:
    whole = record(40)
    moving, arrival = on_its_way(whole)
    files = [RecordFile("a", one, Owner("me", "a model")) for one in (moving, whole)]
    assert arrival.num_waits == 1 and files[0]._begin == files[1]._begin


def test_a_restore_waits_for_what_is_on_its_way() -> None:
    dense, _ = arenas()
    layers = tuple(pages_of(dense, 20, 1))
    ids = tuple(range(20))
    whole = KVRecord("me", "dense", ids, (), layers, hash_tokens(ids))
    moving, arrival = on_its_way(whole)
    moving.check("me", dense)
    block = dense.store(20, moving.layers)
    assert arrival.num_waits == 1 and equal(dense.load(block), list(layers))


def test_what_is_in_host_memory_already_is_not_copied() -> None:
    tensors = pages_of(arenas()[0], 20, 1)
    assert [one.data_ptr() for one in to_host(tensors)] == [one.data_ptr() for one in tensors]
