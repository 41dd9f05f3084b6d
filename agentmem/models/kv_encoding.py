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
    """A block's tokens as pages of an arena of a smaller format, for each layer.

    Args:
        layers: of the cache.
        arena: whose format to encode in.
        frequencies: the distinct ones of the model's layers.
        block: it may lie in host memory.
        first_slot: where its tokens are to begin instead.
    """
    num_tokens, old_slot, device = block.num_tokens, block.first_slot, arena.device
    phases = phases_of(len(block.rows), device)
    new_phases = phases_of(num_pages_for(num_tokens, first_slot), device)
    tokens = torch.arange(num_tokens, device=device)
    # Keys that begin in another slot have other offsets in their stretches.
    shifts = (first_slot + tokens) % STRETCH_TOKENS - (old_slot + tokens) % STRETCH_TOKENS
    turns = [unit_rotations(shifts, one) for one in frequencies]
    loaded, codecs = block.arena.load(block), block.arena.codecs
    # Dense layers read each other's pages; packed ones have codebooks and centers of their own.
    most = 1 if block.arena.shares_pages else max(1, _TURNED_TOKENS // num_tokens)
    encoded = []
    for alike in _alike(layers, codecs, most):
        pages = torch.stack([loaded[layer.index] for layer in alike]).to(device)
        if pages.shape[1] < len(phases):
            # A ring: the last tokens lie before the first.
            pages = torch.cat((pages, pages[:, :1]), 1)
        keys, values = codecs[alike[0].index].decode(pages.flatten(0, 1), phases.repeat(len(alike)))
        # (layers, pages, heads, 16, channels)
        both = [states.view(*pages.shape[:2], *states.shape[1:]) for states in (keys, values)]
        if first_slot != old_slot:
            # All layers' heads side by side.
            mine = slice(old_slot, old_slot + num_tokens)
            keys, values = (
                states.transpose(1, 2).flatten(0, 1).flatten(1, 2)[:, mine] for states in both
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
