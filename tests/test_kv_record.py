"""Records: what belongs to this model and format is taken, everything else refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from agentmem.errors import StoreCorrupt, Unsupported
from agentmem.storage.kv_arena import PageArena
from agentmem.storage.kv_dense import DenseFormat
from agentmem.storage.kv_format import LayerShape
from agentmem.storage.kv_q8 import Q8Format
from agentmem.storage.kv_record import KVRecord, hash_tokens
from tests.kv_formats import CPU, SHAPES, same, stored


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
