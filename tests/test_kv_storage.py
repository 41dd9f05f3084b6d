"""Formats, the arena and records: the storage under a segment cache."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agentmem.errors import InvalidInput, StoreCorrupt, Unsupported
from agentmem.kernels import packed
from agentmem.kernels.page_table import PageTable, PlacedSegment
from agentmem.kernels.rotary import as_channels, ordered_pairs, unit_rotations
from agentmem.storage import kv_format
from agentmem.storage.kv_arena import Block, PageArena
from agentmem.storage.kv_binary import BinaryFormat
from agentmem.storage.kv_dense import DenseFormat
from agentmem.storage.kv_format import (
    Format,
    LayerShape,
    num_pages_for,
    pad_to_pages,
    phases_of,
)
from agentmem.storage.kv_fp8 import FP8Format
from agentmem.storage.kv_q4 import Q4Format
from agentmem.storage.kv_q8 import Q8Format
from agentmem.storage.kv_record import KVRecord, hash_tokens

SHAPES = (LayerShape(2, 8), LayerShape(1, 16))
CPU = torch.device("cpu")


def centers() -> list[Tensor | None]:
    """One that dwarfs the keys, by offset in the stretch, and none for the second layer."""
    return [100 + torch.arange(64.0 * 2 * 8).view(64, 2, 8) / 10, None]


@dataclass(frozen=True)
class Row:
    """A format, what it loses and what it takes.

    Args:
        error: largest error of a key or value of a standard normal token.
        bits: of a channel, without scales.
        scale_bits: of a token of a head, keys and values apart.
    """

    make: Callable[[], Format]
    name: str
    error: float
    bits: int
    scale_bits: int = 0


ROWS = {
    "dense": Row(DenseFormat, "dense", 0.0, 32),
    "dense-bf16": Row(lambda: DenseFormat(torch.bfloat16), "dense", 0.01, 16),
    "dense-fp16": Row(lambda: DenseFormat(torch.float16), "dense", 0.001, 16),
    "q8": Row(Q8Format, "q8", 0.02, 8, 16),
    "q8-centered": Row(lambda: Q8Format(centers()), "q8", 0.02, 8, 16),
    "fp8": Row(FP8Format, "fp8", 0.13, 8, 16),
    "q4": Row(Q4Format, "q4:k5v3", 0.8, 4, 16),
    "q4-centered": Row(lambda: Q4Format(centers()), "q4:k5v3", 0.8, 4, 16),
    "binary": Row(BinaryFormat, "binary", 2.6, 1, 16),
    "binary-centered": Row(lambda: BinaryFormat(centers()), "binary", 2.6, 1, 16),
}
"""A new format is a new row."""
every_format = pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)


def states_of(num_tokens: int, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of a segment, for each layer: (num_heads, num_tokens, head_dim)."""
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn((s.num_kv_heads, num_tokens, s.head_dim), generator=generator),
            torch.randn((s.num_kv_heads, num_tokens, s.head_dim), generator=generator),
        )
        for s in SHAPES
    ]


def center_of(format: Format) -> Tensor | None:
    """Where the format expects the first layer's keys."""
    if isinstance(format, Q8Format | Q4Format | BinaryFormat) and format.centers:
        return format.centers[0]
    return None


def around(center: Tensor | None, keys: Tensor) -> Tensor:
    """Keys of a segment moved there."""
    if center is None:
        return keys
    return keys + center[torch.arange(keys.shape[1]) % 64].transpose(0, 1)


def stored(arena: PageArena, num_tokens: int, seed: int, before: Block | None = None) -> Block:
    """A block of random tokens; it begins in the slot in which another ends."""
    first_slot = 0
    if before is not None and arena.shares_pages:
        first_slot = (before.first_slot + before.num_tokens) % 16
    phases = phases_of(num_pages_for(num_tokens, first_slot))
    layers = [
        codec.encode(pad_to_pages(keys, first_slot), pad_to_pages(values, first_slot), phases)
        for codec, (keys, values) in zip(arena.codecs, states_of(num_tokens, seed), strict=True)
    ]
    return arena.store(num_tokens, layers, first_slot)


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@every_format
@pytest.mark.parametrize("num_tokens", [1, 15, 16, 17, 64, 130])
def test_a_format_gives_back_what_it_was_given(row: Row, num_tokens: int) -> None:
    format = row.make()
    phases = phases_of(num_pages_for(num_tokens))
    for index, (keys, values) in enumerate(states_of(num_tokens)):
        keys = around(center_of(format), keys) if index == 0 else keys
        codec = format.layer(index, SHAPES[index])
        pages = codec.encode(pad_to_pages(keys), pad_to_pages(values), phases)
        assert pages.shape == (len(phases), codec.page_nbytes) and pages.dtype == torch.uint8
        for states, decoded in zip((keys, values), codec.decode(pages, phases), strict=True):
            assert decoded.dtype == torch.float32
            tokens = decoded.transpose(0, 1).flatten(1, 2)[:, :num_tokens]
            torch.testing.assert_close(tokens, states, rtol=0, atol=row.error)
            if row.error:
                assert not torch.equal(tokens, states), "the bound is of something"


@every_format
def test_a_format_takes_its_bits(row: Row) -> None:
    format = row.make()
    assert format.name == row.name
    for index, shape in enumerate(SHAPES):
        bits = 2 * shape.num_kv_heads * 16 * (shape.head_dim * row.bits + row.scale_bits)
        assert format.layer(index, shape).page_nbytes * 8 == bits


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_q4_loses_less_of_keys_than_of_values_and_as_much_as_it_says(head_dim: int) -> None:
    keys, values = torch.randn(2, 40, 2, 16, head_dim, generator=torch.Generator().manual_seed(0))
    codec, phases = Q4Format().layer(0, LayerShape(2, head_dim)), phases_of(40)
    pages = codec.encode(keys, values, phases)
    key_loss, value_loss = (
        float((decoded - states).square().sum() / states.square().sum())
        for decoded, states in zip(codec.decode(pages, phases), (keys, values), strict=True)
    )
    assert 0.002 < key_loss < 0.0035 and 0.03 < value_loss < 0.05


@every_format
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_attention_of_a_format_is_plain_attention_over_what_it_decodes(
    row: Row, softcap: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Faster kernels round what is asked; they are held to the eager ones elsewhere.
    monkeypatch.setenv("AGENTMEM_CPU_KERNELS", "off")
    for module in (kv_format, packed):
        monkeypatch.setattr(module, "TILE_TOKENS", 48)
    format = row.make()
    codec, center = format.layer(0, SHAPES[0]), center_of(format)
    arena = torch.full((12, codec.page_nbytes), 255, dtype=torch.uint8)
    segments = [
        PlacedSegment(100, 70, [7, 2, 9, 4, 0]),
        PlacedSegment(7, 16, [1]),
        PlacedSegment(90, 3, [8]),
    ]
    table = PageTable.of_segments(segments)
    frequencies = torch.tensor([1.0, 0.1, 0.01, 0.0], dtype=torch.float64)
    positions, all_keys, all_values = [], [], []
    for seed, (start, num_tokens, rows, _) in enumerate(segments):
        keys, values = states_of(num_tokens, seed)[0]
        keys, phases = around(center, keys), phases_of(len(rows))
        arena[rows] = codec.encode(pad_to_pages(keys), pad_to_pages(values), phases)
        decoded = [
            states.transpose(0, 1).flatten(1, 2)[:, :num_tokens]
            for states in codec.decode(arena[rows], phases)
        ]
        tokens = torch.arange(num_tokens)
        turns = unit_rotations(start + tokens // 64 * 64, frequencies)
        all_keys.append(as_channels(ordered_pairs(decoded[0].contiguous()) * turns))
        all_values.append(decoded[1])
        positions.append(start + tokens)
    # Small queries where keys are large, so that more than one token is seen.
    queries = torch.randn(2, 4, 8) * (0.35 if center is None else 0.01)
    limits = torch.tensor([[0, 170], [0, 92], [100, 110], [40, 50]], dtype=torch.int32)
    logits = (queries @ torch.cat(all_keys, 1).mT).double()
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    where = torch.cat(positions)
    low, high = limits.long()[:, :1], limits.long()[:, 1:]
    logits = logits.masked_fill((where < low) | (where >= high), float("-inf"))
    weights = logits.softmax(-1).nan_to_num(0.0)

    rotations = unit_rotations(table.stretch_starts, frequencies, inverse=True)
    out, log_sum_exp = codec.attend(queries, rotations, table, arena, limits, softcap)
    torch.testing.assert_close(
        out.double(), weights @ torch.cat(all_values, 1).double(), rtol=1e-4, atol=1e-4
    )
    torch.testing.assert_close(log_sum_exp.double(), logits.logsumexp(-1), rtol=1e-4, atol=1e-4)
    mass = codec.column_mass(queries, rotations, table, arena, limits, softcap, log_sum_exp)
    filled = table.filled().flatten()
    assert mass.shape == filled.shape and not mass[~filled].any()
    torch.testing.assert_close(mass[filled].double(), weights.sum((0, 1)), rtol=1e-3, atol=1e-4)


@every_format
def test_keys_and_values_may_differ_in_dtype(row: Row) -> None:
    """Keys come out of a rotation in float32, values as the model computed them."""
    codec = row.make().layer(1, SHAPES[1])
    keys, values = (pad_to_pages(states) for states in states_of(20)[1])
    values = values.bfloat16()
    mixed = codec.encode(keys, values, phases_of(2))
    assert torch.equal(mixed, codec.encode(keys, values.float(), phases_of(2)))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize(
    "row", [row for row in ROWS.values() if row.scale_bits], ids=lambda row: row.name
)
def test_what_a_scale_cannot_say_is_refused_by_the_format_s_name(row: Row, value: float) -> None:
    keys, values = (pad_to_pages(states) for states in states_of(3)[0])
    values[0, 0, 1, 2] = value
    with pytest.raises(InvalidInput, match=f"^{row.name} (cannot hold|holds finite)"):
        row.make().layer(0, SHAPES[0]).encode(keys, values, phases_of(1))


@pytest.mark.parametrize("make", [Q8Format, Q4Format, BinaryFormat])
def test_a_head_that_cannot_be_packed_is_refused(make: Callable[[], Format]) -> None:
    with pytest.raises(Unsupported, match="multiple of 4: layer 1 has 6"):
        PageArena(make(), [SHAPES[0], LayerShape(2, 6)], CPU)


def test_a_center_keeps_what_a_large_mean_would_cost() -> None:
    keys, values = states_of(64)[0]
    keys, phases = pad_to_pages(around(centers()[0], keys)), phases_of(4)
    lost = {}
    for name, format in (("plain", Q8Format()), ("centered", Q8Format(centers()))):
        codec = format.layer(0, SHAPES[0])
        decoded, _ = codec.decode(codec.encode(keys, pad_to_pages(values), phases), phases)
        lost[name] = float((decoded - keys).abs().max())
    assert lost["centered"] < 0.025 < 0.25 < lost["plain"]


def test_pages_are_counted_from_tokens() -> None:
    assert [num_pages_for(n) for n in (1, 15, 16, 17, 32)] == [1, 1, 1, 2, 2]
    assert [num_pages_for(n, 9) for n in (1, 7, 8, 23, 24)] == [1, 1, 2, 2, 3]


def test_phases_are_places_in_stretches_of_four_pages() -> None:
    assert phases_of(6).tolist() == [0, 1, 2, 3, 0, 1] and phases_of(6).dtype == torch.int32


def test_slots_of_no_token_are_zeros() -> None:
    states = torch.randn(2, 18, 8)
    pages = pad_to_pages(states)
    assert pages.shape == (2, 2, 16, 8)
    assert torch.equal(pages.transpose(0, 1).flatten(1, 2)[:, :18], states)
    assert not pages[1, :, 2:].any()
    shifted = pad_to_pages(states, 9)
    assert torch.equal(shifted.transpose(0, 1).flatten(1, 2)[:, 9:27], states)
    assert not shifted[0, :, :9].any() and not shifted[1, :, 11:].any()


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


def record(num_tokens: int = 20, fingerprint: str = "me") -> KVRecord:
    """A q8 record of two layers."""
    arena = PageArena(Q8Format(), SHAPES, CPU)
    layers = tuple(arena.load(stored(arena, num_tokens, seed=3)))
    ids = tuple(range(num_tokens))
    return KVRecord(fingerprint, "q8", ids, ("before",), layers, hash_tokens(ids))


def test_a_record_that_belongs_here_is_taken() -> None:
    arena = PageArena(Q8Format(), SHAPES, CPU)
    belonging = record()
    belonging.check("me", arena)
    block = arena.store(belonging.num_tokens, belonging.layers)
    assert same(arena.load(block), list(belonging.layers))


def test_a_record_of_another_model_is_refused() -> None:
    with pytest.raises(Unsupported, match="somebody el.*this cache of model me"):
        record(fingerprint="somebody else").check("me", PageArena(Q8Format(), SHAPES, CPU))


def test_a_record_of_another_format_is_refused() -> None:
    with pytest.raises(Unsupported, match="is q8, the arena dense"):
        record().check("me", PageArena(DenseFormat(), SHAPES, CPU))


@pytest.mark.parametrize(
    "fault", ["tokens", "layer", "pages", "bytes", "flat", "dtype", "empty", "slot"]
)
def test_a_record_that_contradicts_itself_is_refused(fault: str) -> None:
    arena = PageArena(Q8Format(), SHAPES, CPU)
    whole = record()
    first, second = whole.layers
    broken = {
        "tokens": replace(whole, token_ids=tuple(range(1, 21))),
        "layer": replace(whole, layers=(first,)),
        "pages": replace(whole, layers=(first, second[:1])),
        "bytes": replace(whole, layers=(first, second[:, :-1])),
        "flat": replace(whole, layers=(first, second.flatten())),
        "dtype": replace(whole, layers=(first, second.view(torch.int8))),
        "empty": replace(whole, token_ids=(), content_hash=hash_tokens(())),
        "slot": replace(whole, first_slot=16),
    }
    whole.check("me", arena)
    with pytest.raises(StoreCorrupt):
        broken[fault].check("me", arena)


def test_a_record_of_another_shape_is_refused_with_the_shape_that_fits() -> None:
    arena = PageArena(Q8Format(), [SHAPES[0], LayerShape(1, 32)], CPU)
    with pytest.raises(StoreCorrupt, match=r"Layer 1 .* \(2, 576\).*expected \(2, 1088\)"):
        record().check("me", arena)


def test_a_record_counts_all_its_bytes() -> None:
    # Two pages: codes and scales of keys and values, over both layers.
    assert record().nbytes == 2 * 2 * 16 * ((8 + 2) * 2 + (16 + 2) * 1)


def test_equal_contexts_have_equal_hashes() -> None:
    one = record()
    assert one.context_hash == replace(one, token_ids=(1,)).context_hash
    assert one.context_hash != replace(one, context=("before", "and after")).context_hash
