"""Random packed layers and windows, and plain attention over the same tokens in float64.

For every implementation of `kernels.packed`: windows are awkward on purpose. Their rows are
scattered over an arena whose other rows are NaN, segments begin at any slot of a page and share
pages, and slots of nobody hold large numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentmem.kernels import packed
from agentmem.kernels.codebook import NUM_STATES, Codebook
from agentmem.kernels.packed import PackedLayer
from agentmem.kernels.packing import Packing
from agentmem.kernels.page_table import PageTable, PlacedSegment
from agentmem.kernels.rotary import unit_rotations

ALL_WIDTHS = tuple(range(9))
_LEVELS = {
    1: (-61, 60),
    2: (-118, -40, 29, 127),
    3: (-128, -80, -48, -17, 14, 42, 79, 121),
    4: (-128, -101, -80, -63, -48, -35, -22, -11, 2, 13, 24, 37, 50, 65, 84, 111),
}
"""Uneven and without symmetry, so that a wrong one shows."""


def codebook(widths: Sequence[int], *, top: float = 3.0, trellis: bool = False) -> Codebook:
    """Levels for these widths; the largest stands for about `top`.

    Args:
        trellis: whether levels of narrow codes depend on the state before them.
    """
    used = set(widths) - {0}
    levels = {width: _LEVELS[width] for width in used & set(_LEVELS)}
    if trellis:
        levels = {width: _by_window(of_codes) for width, of_codes in levels.items()}
    return Codebook(levels, {width: top / 127 * (1 + width / 64) for width in used})


def _by_window(levels: tuple[int, ...]) -> tuple[int, ...]:
    """Levels around those of each code, by no rule that a reader could guess."""
    return tuple(
        max(-128, min(127, level + (state * 37 + code * 11) % 64 - 32))
        for code, level in enumerate(levels)
        for state in range(NUM_STATES)
    )


def random_layer(
    num_heads: int,
    head_dim: int,
    *,
    seed: int = 0,
    widths: Sequence[int] = (8,),
    value_widths: Sequence[int] | None = None,
    token_scales: bool = True,
    centered: bool = False,
    transformed: bool = False,
    trellis: bool = False,
    value_trellis: bool | None = None,
) -> PackedLayer:
    """A layer with any of these widths for each group of channels of each head.

    Args:
        value_widths: those of values, where they are others than those of keys.
        centered: whether keys have a center and values a mean, both large.
        transformed: whether keys and values are coded in frames of their own.
        trellis: whether levels of narrow codes depend on the state before them.
        value_trellis: whether those of values do, where it is otherwise than with keys.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    def drawn(choice: Sequence[int]) -> Tensor:
        groups = head_dim // 4
        which = torch.randint(0, len(choice), (num_heads, groups), generator=generator)
        of_groups = torch.tensor(choice, dtype=torch.uint8)[which]
        # Otherwise a small head may have no bits at all. Not all in front: what follows a wide code
        # does not depend on what came before it.
        heads = torch.arange(num_heads)
        of_groups[heads, (heads + 1) % groups] = max(choice)
        return of_groups

    packing = Packing(
        drawn(widths), drawn(widths if value_widths is None else value_widths), token_scales
    )
    matrices: list[Tensor | None] = [None] * 4
    if transformed:
        frames = [
            torch.linalg.qr(normal(num_heads, head_dim, head_dim).double())[0]
            * torch.linspace(0.5, 2.0, head_dim, dtype=torch.float64)
            for _ in range(2)
        ]
        key, value = frames
        matrices = [key, torch.linalg.inv(key).mT, value, torch.linalg.inv(value)]
    key_transform, query_transform, value_transform, value_inverse = (
        None if matrix is None else matrix.float().contiguous() for matrix in matrices
    )
    used, top = (*widths, *(value_widths or ())), 127.0 if token_scales else 9.0
    key_book, value_book = (
        codebook(used, top=top, trellis=depends)
        for depends in (trellis, trellis if value_trellis is None else value_trellis)
    )
    return PackedLayer(
        packing,
        key_book,
        value_book,
        key_transform=key_transform,
        query_transform=query_transform,
        center=5 * normal(64, num_heads, head_dim) if centered else None,
        value_transform=value_transform,
        value_inverse=value_inverse,
        value_mean=3 * normal(num_heads, head_dim) if centered else None,
    )


def random_states(
    layer: PackedLayer, num_pages: int, *, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Keys and values (num_pages, H, 16, D) around the layer's center and mean, and phases."""
    generator = torch.Generator().manual_seed(seed)
    shape = (2, num_pages, layer.packing.num_heads, 16, layer.packing.head_dim)
    keys, values = torch.randn(shape, generator=generator)
    phases = torch.arange(num_pages, dtype=torch.int32) % 4
    if layer.center_by_phase is not None:
        keys = keys + layer.center_by_phase[phases.long()]
    if layer.value_mean is not None:
        values = values + layer.value_mean[:, None]
    return keys, values, phases


@dataclass(frozen=True)
class PackedWindow:
    """Segments of one layer in an arena, and what they are decoded to.

    Args:
        segments: as in the table.
        frequencies: (D / 2,), float64.
        rotations: (stretches, D / 2), complex64: what turns queries back.
        keys: (H, T, D), float64: of every token, rotated to its position.
        values: (H, T, D), float64.
        positions: (T,), int64.
        slots: (T,), int64: of each token.
    """

    layer: PackedLayer
    table: PageTable
    pages: Tensor
    segments: list[PlacedSegment]
    frequencies: Tensor
    rotations: Tensor
    keys: Tensor
    values: Tensor
    positions: Tensor
    slots: Tensor

    def queries(self, num_rows: int, *, seed: int = 0, scale: float = 1.0) -> Tensor:
        """(H, num_rows, D), float32; rotated or not, they are vectors."""
        generator = torch.Generator().manual_seed(seed)
        heads, _, head_dim = self.keys.shape
        queries = torch.randn((heads, num_rows, head_dim), generator=generator)
        return queries.mul_(scale / math.sqrt(head_dim))

    def limits(self, num_rows: int, *, seed: int = 0) -> Tensor:
        """(num_rows, 2), int32: half of the rows see all, the others some stretch of positions."""
        generator = torch.Generator().manual_seed(seed)
        end = int(self.positions.max()) + 1
        bounds = torch.randint(0, end + 1, (num_rows, 2), generator=generator).sort(1).values
        bounds[::2] = torch.tensor([0, end])
        return bounds.to(torch.int32)


def packed_window(
    layer: PackedLayer,
    lengths: Sequence[int],
    *,
    seed: int = 0,
    first: int = 0,
    first_slots: Sequence[int | None] = (0, None, None, 5),
) -> PackedWindow:
    """Segments of random tokens with gaps between them, not in order of position.

    Args:
        lengths: tokens of each segment.
        first: lowest position.
        first_slots: of the segments in turn; None: where the one before ended, in the same page.
    """
    generator = torch.Generator().manual_seed(seed)
    gaps = torch.randint(0, 50, (len(lengths),), generator=generator)
    starts = first + gaps.cumsum(0) + torch.tensor([0, *lengths[:-1]]).cumsum(0)
    order = torch.randperm(len(lengths), generator=generator).tolist()
    capacity = sum(-(-(15 + length) // 16) for length in lengths) + 3
    rows = torch.randperm(capacity, generator=generator).tolist()
    head_dim = layer.packing.head_dim
    frequencies = 10_000.0 ** -torch.linspace(0, 1, head_dim // 2, dtype=torch.float64)
    # Rows that belong to nobody must never be read: as scales their bytes are NaN.
    arena = torch.full((capacity, layer.packing.page_nbytes), 255, dtype=torch.uint8)
    segments: list[PlacedSegment] = []
    slots, keys, values, positions = [], [], [], []
    num_slots = 0
    for start, length in ((int(starts[index]), lengths[index]) for index in order):
        slot = first_slots[len(segments) % len(first_slots)]
        before = segments[-1] if segments else PlacedSegment(0, 0, [])
        first_slot = (before.first_slot + before.num_tokens) % 16 if slot is None else slot
        count = -(-(first_slot + length) // 16)
        shared = [before.rows[-1]] if slot is None and first_slot else []
        mine, rows = shared + rows[: count - len(shared)], rows[count - len(shared) :]
        new_keys, new_values, phases = random_states(layer, count, seed=seed + len(segments))
        for padding in (
            part[-1, :, (first_slot + length) % 16 or 16 :] for part in (new_keys, new_values)
        ):
            padding *= 50
        encoded = packed.encode(new_keys, new_values, phases, layer)
        if shared:
            others = layer.packing.slots_below[first_slot]
            encoded[0] = (arena[shared[0]] & others) | (encoded[0] & ~others)
        arena[mine] = encoded
        mine_alone = slice(first_slot, first_slot + length)
        local, decoded = (
            states.double().transpose(0, 1).flatten(1, 2)[:, mine_alone]
            for states in packed.decode(encoded, phases, layer)
        )
        places = first_slot + torch.arange(length)
        keys.append(_turned(local, start - first_slot + places // 64 * 64, frequencies))
        values.append(decoded)
        positions.append(start + torch.arange(length))
        slots.append(num_slots + places)
        segments.append(PlacedSegment(start, length, mine, first_slot))
        num_slots += count * 16
    table = PageTable.of_segments(segments)
    return PackedWindow(
        layer=layer,
        table=table,
        pages=arena,
        segments=segments,
        frequencies=frequencies,
        rotations=unit_rotations(table.stretch_starts, frequencies, inverse=True),
        keys=torch.cat(keys, 1),
        values=torch.cat(values, 1),
        positions=torch.cat(positions),
        slots=torch.cat(slots),
    )


def _turned(keys: Tensor, angles_at: Tensor, frequencies: Tensor) -> Tensor:
    """(H, T, D) keys rotated by so many positions, float64."""
    angles = angles_at.double()[:, None] * frequencies
    pairs = torch.view_as_complex(torch.unflatten(keys, -1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


def plain_attention(
    window: PackedWindow, queries: Tensor, limits: Tensor, softcap: float | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Attended values (H, R, D), log-sum-exp (H, R) and probabilities (H, R, T), float64."""
    logits = queries.double() @ window.keys.mT
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    low, high = limits.long()[:, :1], limits.long()[:, 1:]
    seen = (window.positions >= low) & (window.positions < high)
    logits = logits.masked_fill(~seen, float("-inf"))
    log_sum_exp = logits.logsumexp(-1)
    weights = (logits - log_sum_exp.clamp_min(-1e300)[..., None]).exp()
    return weights @ window.values, log_sum_exp, weights
