"""Formats: what they hold comes back within the stated error, in the stated bits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from agentmem.errors import InvalidInput, Unsupported
from agentmem.kernels import packed
from agentmem.kernels.page_table import PageTable, PlacedSegment
from agentmem.kernels.rotary import as_channels, ordered_pairs, unit_rotations
from agentmem.storage import kv_format
from agentmem.storage.kv_arena import PageArena
from agentmem.storage.kv_binary import BinaryFormat
from agentmem.storage.kv_format import Format, LayerShape, num_pages_for, pad_to_pages, phases_of
from agentmem.storage.kv_q4 import Q4Format
from agentmem.storage.kv_q8 import Q8Format
from tests.kv_formats import (
    CPU,
    ROWS,
    SHAPES,
    Row,
    around,
    center_of,
    centers,
    every_format,
    states_of,
)


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
        # A token's codes fill whole words of 32 bits.
        words = -(-shape.num_kv_heads * shape.head_dim * sum(row.bits) // 32)
        bits = 16 * (32 * words + 2 * shape.num_kv_heads * row.scale_bits)
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
