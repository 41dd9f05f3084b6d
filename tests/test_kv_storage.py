"""Formats, arena, records and parking: the storage under a segment cache."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
import torch

from agentmem.errors import InvalidInput, StoreCorrupt, Unsupported
from agentmem.storage.kv_arena import Block, LayerShape, PageArena
from agentmem.storage.kv_dense import DenseFormat
from agentmem.storage.kv_format import (
    PAGE_TOKENS,
    Format,
    Pages,
    num_pages_for,
    pad_to_pages,
    pages_nbytes,
)
from agentmem.storage.kv_parking import Parking
from agentmem.storage.kv_q8 import Q8Format
from agentmem.storage.kv_record import KVRecord, hash_tokens

SHAPES = (LayerShape(2, 8), LayerShape(1, 16))
CPU = torch.device("cpu")
FORMATS = [DenseFormat(), DenseFormat(torch.bfloat16), Q8Format()]


def _states(num_tokens: int, seed: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            pad_to_pages(torch.randn(s.num_kv_heads, num_tokens, s.head_dim, generator=generator)),
            pad_to_pages(torch.randn(s.num_kv_heads, num_tokens, s.head_dim, generator=generator)),
        )
        for s in SHAPES
    ]


def _store(arena: PageArena, num_tokens: int, seed: int) -> Block:
    states = enumerate(_states(num_tokens, seed))
    return arena.store(num_tokens, [arena.encode(index, k, v) for index, (k, v) in states])


def _same(left: list[Pages], right: list[Pages]) -> bool:
    return all(
        torch.equal(a[name], b[name]) for a, b in zip(left, right, strict=True) for name in a
    )


@pytest.mark.parametrize("format", FORMATS, ids=lambda f: f"{f.name}-{getattr(f, 'dtype', '')}")
@pytest.mark.parametrize("num_tokens", [1, 15, 16, 17, 64])
def test_a_format_gives_back_what_it_was_given(format: Format, num_tokens: int) -> None:
    keys, values = _states(num_tokens)[0]
    decoded = format.decode(format.encode(keys, values))
    exact = format.name == "dense"
    tolerance = 8e-3 if not exact or format.dtype == torch.bfloat16 else 0.0  # type: ignore[attr-defined]
    torch.testing.assert_close(decoded[0], keys, rtol=tolerance, atol=2 * tolerance)
    torch.testing.assert_close(decoded[1], values, rtol=tolerance, atol=2 * tolerance)


def test_q8_takes_a_byte_a_channel_and_two_bytes_a_token_and_head() -> None:
    keys, values = _states(16)[0]
    assert pages_nbytes(Q8Format().encode(keys, values)) == 2 * 2 * 16 * (8 + 2)


def test_q8_refuses_what_is_not_finite() -> None:
    keys, values = _states(3)[0]
    values[0, 0, 1, 2] = float("nan")
    with pytest.raises(InvalidInput, match="finite"):
        Q8Format().encode(keys, values)


def test_blocks_keep_their_pages_while_others_come_and_go() -> None:
    arena = PageArena(Q8Format(), SHAPES, CPU)
    kept = _store(arena, 40, seed=1)
    expected = arena.load(kept)
    for seed in range(2, 12):
        passing = _store(arena, 23, seed)
        assert _same(arena.load(kept), expected)
        del passing
    assert arena.capacity <= 10


def test_rows_of_a_forgotten_block_are_used_again() -> None:
    arena = PageArena(DenseFormat(), SHAPES, CPU)
    first = _store(arena, 32, seed=1)
    rows = first.rows
    del first
    gc.collect()
    assert _store(arena, 32, seed=2).rows == rows


def test_tidying_closes_gaps_and_keeps_every_block() -> None:
    arena = PageArena(Q8Format(), SHAPES, CPU)
    blocks = [_store(arena, 16 * 3, seed) for seed in range(6)]
    kept = blocks[1::2]
    expected = [arena.load(block) for block in kept]
    del blocks
    gc.collect()
    version = arena.version
    assert arena.tidy()
    assert arena.version > version and arena.capacity == 9
    assert all(_same(arena.load(b), e) for b, e in zip(kept, expected, strict=True))
    assert not arena.tidy()


def test_a_center_is_taken_off_before_encoding_and_given_back() -> None:
    center = torch.full((2, PAGE_TOKENS, 8), 500.0)
    plain = PageArena(Q8Format(), SHAPES[:1], CPU)
    centered = PageArena(Q8Format(), SHAPES[:1], CPU, [center])
    keys, values = _states(16)[0]
    keys = keys + 500.0
    queries, out = torch.randn(1, 2, 3, 8), torch.empty(1, 2, 3, PAGE_TOKENS)
    error = {}
    for arena in (plain, centered):
        pages = arena.encode(0, keys, values)
        arena.logits(0, pages, queries, out)
        torch.testing.assert_close(arena.decode(0, pages)[0], keys, rtol=0, atol=2.1)
        error[arena] = float((out - queries @ keys.transpose(2, 3)).abs().max())
    assert error[centered] < 0.15 < error[plain]


def test_pages_are_counted_from_tokens() -> None:
    assert [num_pages_for(n) for n in (1, 15, 16, 17, 32)] == [1, 1, 1, 2, 2]


def _record(num_tokens: int = 20, fingerprint: str = "me") -> KVRecord:
    arena = PageArena(Q8Format(), SHAPES, CPU)
    layers = tuple(arena.load(_store(arena, num_tokens, seed=3)))
    ids = tuple(range(num_tokens))
    return KVRecord(fingerprint, "q8", ids, ("before",), layers, hash_tokens(ids))


def test_a_record_of_another_model_is_refused() -> None:
    with pytest.raises(Unsupported, match="another|of model"):
        _record(fingerprint="somebody else").check("me", Q8Format(), SHAPES)


def test_a_record_of_another_format_is_refused() -> None:
    with pytest.raises(Unsupported, match="q8"):
        _record().check("me", DenseFormat(), SHAPES)


@pytest.mark.parametrize("fault", ["tokens", "layer", "shape", "dtype", "field", "empty"])
def test_a_record_that_contradicts_itself_is_refused(fault: str) -> None:
    record = _record()
    first, second = record.layers
    broken = {
        "tokens": replace(record, token_ids=tuple(range(1, 21))),
        "layer": replace(record, layers=(first,)),
        "shape": replace(record, layers=(first, {**second, "k_codes": second["k_codes"][:1]})),
        "dtype": replace(
            record, layers=(first, {**second, "v_scales": second["v_scales"].float()})
        ),
        "field": replace(record, layers=(first, {"k_codes": second["k_codes"]})),
        "empty": replace(record, token_ids=(), content_hash=hash_tokens(())),
    }
    record.check("me", Q8Format(), SHAPES)
    with pytest.raises(StoreCorrupt):
        broken[fault].check("me", Q8Format(), SHAPES)


def test_a_record_counts_all_its_bytes() -> None:
    # Two pages: codes and scales of keys and values, over both layers.
    assert _record().nbytes == 2 * 2 * 16 * ((8 + 2) * 2 + (16 + 2) * 1)


def test_equal_contexts_have_equal_hashes() -> None:
    record = _record()
    assert record.context_hash == replace(record, token_ids=(1,)).context_hash
    assert record.context_hash != replace(record, context=("before", "and after")).context_hash


def test_parking_stays_within_its_bytes_and_lets_idle_records_go() -> None:
    record = _record()
    parking = Parking(record.nbytes * 2)
    assert parking.put("a", record) == () and parking.put("b", record) == ()
    assert parking.get("a") is record
    assert parking.put("c", record) == ("b",)
    assert sorted(map(str, parking)) == ["a", "c"] and parking.nbytes == 2 * record.nbytes


def test_parking_lets_large_records_go_before_small_ones() -> None:
    small, large = _record(4), _record(64)
    parking = Parking(small.nbytes + large.nbytes)
    parking.put("small", small)
    parking.put("large", large)
    assert parking.put("new", small) == ("large",)


def test_a_record_larger_than_the_parking_is_not_kept_and_nothing_leaves_for_it() -> None:
    small = _record(4)
    parking = Parking(small.nbytes)
    parking.put("small", small)
    assert parking.put("large", _record(64)) == ("large",)
    assert parking.has("small") and not parking.has("large")


def test_a_key_is_parked_once_and_forgotten_at_once() -> None:
    record = _record()
    parking = Parking()
    parking.put("a", record)
    parking.put("a", record)
    assert len(parking) == 1 and parking.nbytes == record.nbytes
    assert parking.forget("a") and not parking.forget("a")
    assert parking.nbytes == 0 and parking.get("a") is None


def test_a_copied_parking_goes_its_own_way() -> None:
    parking = Parking()
    parking.put("a", _record())
    other = parking.copy()
    other.forget("a")
    other.put("b", _record())
    assert list(parking) == ["a"] and list(other) == ["b"]


def test_a_negative_budget_is_refused() -> None:
    with pytest.raises(InvalidInput, match="-1"):
        Parking(-1)
