"""The arena: blocks keep their pages and slots while others come and go."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agentmem.storage.kv_arena import Block, PageArena
from agentmem.storage.kv_dense import DenseFormat
from agentmem.storage.kv_q4 import Q4Format
from agentmem.storage.kv_q8 import Q8Format
from tests.kv_formats import CPU, ROWS, SHAPES, Row, every_format, same, stored


@every_format
def test_blocks_keep_their_pages_while_others_come_and_go(row: Row) -> None:
    arena = PageArena(row.make(), SHAPES, CPU)
    kept = stored(arena, 40, seed=1)
    expected = arena.load(kept)
    for seed in range(2, 12):
        passing = stored(arena, 23, seed)
        assert same(arena.load(kept), expected)
        del passing
    assert arena.capacity <= 10
    assert arena.nbytes == arena.capacity * arena.page_nbytes
    assert (
        arena.nbytes_of([kept]) == 3 * arena.page_nbytes == sum(pages.numel() for pages in expected)
    )


def test_rows_of_a_forgotten_block_are_used_again() -> None:
    arena = PageArena(DenseFormat(), SHAPES, CPU)
    first = stored(arena, 32, seed=1)
    rows = first.rows
    del first
    gc.collect()
    assert stored(arena, 32, seed=2).rows == rows


def test_a_block_lives_as_long_as_anybody_holds_it() -> None:
    arena = PageArena(Q8Format(), SHAPES, CPU)
    mine = stored(arena, 32, seed=1)
    theirs, expected = mine, arena.load(mine)
    del mine
    gc.collect()
    other = stored(arena, 50, seed=2)
    assert not set(other.rows) & set(theirs.rows)
    assert same(arena.load(theirs), expected)


def test_what_was_loaded_is_a_copy() -> None:
    arena = PageArena(Q8Format(), SHAPES, CPU)
    block = stored(arena, 20, seed=1)
    expected = arena.load(block)
    for pages in arena.load(block):
        pages.zero_()
    assert same(arena.load(block), expected)


def test_tidying_closes_gaps_and_keeps_every_block() -> None:
    arena = PageArena(Q8Format(), SHAPES, CPU)
    blocks = [stored(arena, 16 * 3, seed) for seed in range(6)]
    kept = blocks[1::2]
    expected = [arena.load(block) for block in kept]
    del blocks
    gc.collect()
    version = arena.version
    assert arena.tidy()
    assert arena.version > version and arena.capacity == 9
    assert all(same(arena.load(b), e) for b, e in zip(kept, expected, strict=True))
    assert not arena.tidy()


def test_an_arena_that_nobody_uses_gives_its_memory_back() -> None:
    arena = PageArena(Q8Format(), SHAPES, CPU)
    stored(arena, 100, seed=0)
    gc.collect()
    assert arena.capacity > 0 and not arena.tidy() and arena.nbytes == 0
    block = stored(arena, 20, seed=1)
    assert len(block.rows) == 2


@settings(deadline=None, max_examples=30)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("store"), st.integers(1, 90)),
            st.tuples(st.just("forget"), st.integers(0, 9)),
            st.tuples(st.just("tidy"), st.just(0)),
        ),
        max_size=25,
    )
)
@pytest.mark.parametrize("row", [ROWS["dense"], ROWS["q4"]], ids=["dense", "q4"])
def test_no_block_ever_loses_a_byte_or_a_slot(row: Row, steps: list[tuple[str, int]]) -> None:
    arena = PageArena(row.make(), SHAPES, CPU)
    held: list[tuple[Block, list[Tensor]]] = []
    for seed, (step, number) in enumerate(steps):
        if step == "store":
            block = stored(arena, number, seed, held[number % len(held)][0] if held else None)
            held.append((block, arena.load(block)))
            del block
        elif step == "forget" and held:
            held.pop(number % len(held))
        elif step == "tidy":
            arena.tidy()
            used = len({row for block, _ in held for row in block.rows})
            assert arena.capacity <= max(used + 4, used / 0.7)
        slots = [slot for block, _ in held for slot in slots_of(block)]
        assert len(set(slots)) == len(slots)
        assert all(0 <= row < arena.capacity for row, _ in slots)
        assert all(same(arena.load(block), expected) for block, expected in held)


def slots_of(block: Block) -> list[tuple[int, int]]:
    """Row and slot of each token."""
    places = range(block.first_slot, block.first_slot + block.num_tokens)
    return [(block.rows[place // 16], place % 16) for place in places]


@pytest.mark.parametrize("name", ["q8", "q4", "binary"])
def test_short_segments_share_pages_and_cost_no_padding(name: str) -> None:
    arena = PageArena(ROWS[name].make(), SHAPES, CPU)
    lengths = [8 + 37 * index % 53 for index in range(60)]
    blocks: list[Block] = []
    for seed, length in enumerate(lengths):
        blocks.append(stored(arena, length, seed, blocks[-1] if blocks else None))
    pages = arena.nbytes_of(blocks) // arena.page_nbytes
    assert pages == -(-sum(lengths) // 16)


def test_a_dense_page_has_one_owner() -> None:
    arena = PageArena(DenseFormat(), SHAPES, CPU)
    blocks = [stored(arena, 5, seed) for seed in range(4)]
    assert len({row for block in blocks for row in block.rows}) == 4


def test_what_a_neighbour_wrote_into_a_shared_page_is_not_handed_out() -> None:
    arena = PageArena(Q8Format(), SHAPES, CPU)
    alone = arena.load(stored(arena, 5, seed=1))
    gc.collect()
    first = stored(arena, 5, seed=1)
    second = stored(arena, 7, seed=2, before=first)
    assert first.rows == second.rows and second.first_slot == 5
    assert same(arena.load(first), alone)


def test_a_block_that_comes_back_lies_where_its_slots_are_free() -> None:
    arena = PageArena(Q4Format(), SHAPES, CPU)
    kept = stored(arena, 5, seed=1)
    away = stored(arena, 30, seed=2, before=kept)
    pages, first_slot, expected = arena.load(away), away.first_slot, arena.load(kept)
    assert first_slot == 5 and len(pages[0]) == 2
    del away
    gc.collect()
    back = arena.store(30, pages, first_slot)
    assert back.rows[0] == kept.rows[0], "its first page has the place it came from"
    taken = arena.store(30, pages, first_slot)
    assert taken.rows[0] != kept.rows[0], "which is taken now"
    for block in (back, taken):
        assert same(arena.load(block), pages)
    assert same(arena.load(kept), expected)
