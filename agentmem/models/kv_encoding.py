"""Tokens of a cache as pages: out of the open tail, and from dense pages into a packed format.

Nothing is stored here, so whatever fails leaves everything as it was.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from itertools import groupby

import torch
from torch import Tensor

from agentmem.errors import InvalidInput
from agentmem.kernels.page_table import STRETCH_TOKENS
from agentmem.kernels.rotary import as_channels, ordered_pairs, unit_rotations
from agentmem.models.kv_layer import SegmentLayer
from agentmem.storage.kv_arena import Block, PageArena
from agentmem.storage.kv_format import LayerCodec, num_pages_for, pad_to_pages, phases_of

_TURNED_TOKENS = 1024
"""Tokens times layers that are turned at once: few calls for a short segment, and what fits a cache
for a long one."""


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
    num_tokens, device = block.num_tokens, arena.device
    phases = phases_of(len(block.rows), device)
    new_phases = phases_of(num_pages_for(num_tokens, first_slot), device)
    tokens = torch.arange(num_tokens, device=device)
    # Keys that begin in another slot have other offsets in their stretches.
    shifts = (first_slot + tokens) % STRETCH_TOKENS - tokens % STRETCH_TOKENS
    turns = [unit_rotations(shifts, one) for one in frequencies]
    dense, codecs = block.arena.load(block), block.arena.codecs
    encoded = []
    for alike in _alike(layers, codecs, max(1, _TURNED_TOKENS // num_tokens)):
        pages = torch.stack([dense[layer.index] for layer in alike]).to(device)
        keys, values = codecs[alike[0].index].decode(pages.flatten(0, 1), phases.repeat(len(alike)))
        # (layers, pages, heads, 16, channels)
        both = [states.view(*pages.shape[:2], *states.shape[1:]) for states in (keys, values)]
        if first_slot:
            # All layers' heads side by side.
            keys, values = (
                states.transpose(1, 2).flatten(0, 1).flatten(1, 2)[:, :num_tokens]
                for states in both
            )
            keys = as_channels(ordered_pairs(keys) * turns[alike[0].group])
            padded = [pad_to_pages(states, first_slot) for states in (keys, values)]
            both = [
                torch.unflatten(states, 1, (len(alike), -1)).transpose(0, 1) for states in padded
            ]
        for layer, keys, values in zip(alike, *both, strict=True):
            encoded.append(arena.codecs[layer.index].encode(keys, values, new_phases))
    return encoded


def _alike(
    layers: Sequence[SegmentLayer], codecs: Sequence[LayerCodec], most: int
) -> Iterator[list[SegmentLayer]]:
    """Neighbouring layers of the same heads, channels and rotation, so many at a time."""
    for _, run in groupby(layers, key=lambda one: (one.group, codecs[one.index].shape)):
        same = list(run)
        yield from (same[begin : begin + most] for begin in range(0, len(same), most))
