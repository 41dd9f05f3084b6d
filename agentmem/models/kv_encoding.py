"""Tokens of a cache as pages: out of the open tail, and from dense pages into a packed format.

Nothing is stored here, so whatever fails leaves everything as it was.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from agentmem.errors import InvalidInput
from agentmem.kernels.page_table import STRETCH_TOKENS
from agentmem.kernels.rotary import as_channels, ordered_pairs, unit_rotations
from agentmem.models.kv_layer import SegmentLayer
from agentmem.storage.kv_arena import Block, PageArena
from agentmem.storage.kv_format import num_pages_for, pad_to_pages, phases_of


def tail_pages(
    layers: Sequence[SegmentLayer],
    arena: PageArena,
    frequencies: Sequence[Tensor],
    *,
    key: Hashable,
    start: int,
    tokens: slice,
) -> list[Tensor]:
    """Tokens of the open tail as pages of an arena, for each layer.

    Args:
        layers: of the cache.
        arena: whose format to encode in.
        frequencies: the distinct ones of the model's layers.
        key: of the segment, for messages.
        start: position of its first token.
        tokens: which of the tail.

    Raises:
        InvalidInput: a layer computed NaN or infinity, or what the format cannot hold.
    """
    count = tokens.stop - tokens.start
    offsets = torch.arange(count, device=arena.device) // STRETCH_TOKENS * STRETCH_TOKENS
    rotations = [unit_rotations(start + offsets, one, inverse=True) for one in frequencies]
    phases = phases_of(num_pages_for(count), arena.device)
    encoded = []
    for layer in layers:
        keys, values = layer.take_tail(tokens.start, tokens.stop, rotations[layer.group])
        if not math.isfinite(float(keys.sum() + values.sum())):
            raise InvalidInput(
                f"Layer {layer.index} computed NaN or infinity for segment {key!r}: "
                "discard the tail."
            )
        encoded.append(arena.codecs[layer.index].encode(keys, values, phases))
    return encoded


def packed_pages(
    layers: Sequence[SegmentLayer],
    arena: PageArena,
    frequencies: Sequence[Tensor],
    block: Block,
    first_slot: int,
) -> list[Tensor]:
    """A block's tokens as pages of an arena of another format, for each layer.

    Args:
        layers: of the cache.
        arena: whose format to encode in.
        frequencies: the distinct ones of the model's layers.
        block: begins in slot 0 of its first page; it may lie in host memory.
        first_slot: where its tokens are to begin instead.
    """
    device = arena.device
    phases = phases_of(len(block.rows), device)
    new_phases = phases_of(num_pages_for(block.num_tokens, first_slot), device)
    tokens = torch.arange(block.num_tokens, device=device)
    # Keys that begin in another slot have other offsets in their stretches.
    shifts = (first_slot + tokens) % STRETCH_TOKENS - tokens % STRETCH_TOKENS
    turns = [unit_rotations(shifts, one) for one in frequencies]
    encoded = []
    for layer, pages in zip(layers, block.arena.load(block), strict=True):
        keys, values = block.arena.codecs[layer.index].decode(pages.to(device), phases)
        if first_slot:
            keys, values = (
                states.transpose(0, 1).flatten(1, 2)[:, : block.num_tokens]
                for states in (keys, values)
            )
            keys = as_channels(ordered_pairs(keys) * turns[layer.group])
            keys, values = pad_to_pages(keys, first_slot), pad_to_pages(values, first_slot)
        encoded.append(arena.codecs[layer.index].encode(keys, values, new_phases))
    return encoded
