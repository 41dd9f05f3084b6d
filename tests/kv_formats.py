"""Every format as tests know it, and small segments to store in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from agentmem.storage.kv_arena import Block, PageArena
from agentmem.storage.kv_binary import BinaryFormat
from agentmem.storage.kv_dense import DenseFormat
from agentmem.storage.kv_format import Format, LayerShape, num_pages_for, pad_to_pages, phases_of
from agentmem.storage.kv_fp8 import FP8Format
from agentmem.storage.kv_q4 import Q4Format
from agentmem.storage.kv_q8 import Q8Format

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
        bits: of a channel of a key and of one of a value, without scales.
        scale_bits: of a token of a head, keys and values apart.
    """

    make: Callable[[], Format]
    name: str
    error: float
    bits: tuple[int, int]
    scale_bits: int = 0


ROWS = {
    "dense": Row(DenseFormat, "dense", 0.0, (32, 32)),
    "dense-bf16": Row(lambda: DenseFormat(torch.bfloat16), "dense", 0.01, (16, 16)),
    "dense-fp16": Row(lambda: DenseFormat(torch.float16), "dense", 0.001, (16, 16)),
    "q8": Row(Q8Format, "q8", 0.02, (8, 8), 16),
    "q8-centered": Row(lambda: Q8Format(centers()), "q8", 0.02, (8, 8), 16),
    "fp8": Row(FP8Format, "fp8", 0.13, (8, 8), 16),
    "q4": Row(Q4Format, "q4:k5v3", 0.8, (5, 3), 16),
    "q4-centered": Row(lambda: Q4Format(centers()), "q4:k5v3", 0.8, (5, 3), 16),
    "binary": Row(BinaryFormat, "binary", 2.6, (1, 1), 16),
    "binary-centered": Row(lambda: BinaryFormat(centers()), "binary", 2.6, (1, 1), 16),
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
