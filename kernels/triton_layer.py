"""One layer's constants as Triton kernels read them, made once a layer and device.

Levels are integers, which float16 holds exactly; what a level is worth goes into the matrix that
turns queries (keys) or out of the weighted sum (values). Head dims that are no power of two are
padded with channels of no bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from agentmem.kernels.code_stream import GROUP_CHANNELS, MAX_WIDTH, WORD_BITS, CodeStream
from agentmem.kernels.codebook import Codebook
from agentmem.kernels.packed import PackedLayer
from agentmem.kernels.page_table import STRETCH_TOKENS
from agentmem.kernels.trellis import REACH
from agentmem.kernels.triton_codes import NUM_LEVELS, first_level, group_entries
from agentmem.kernels.triton_launch import next_power_of_2

LARGEST_HEAD_DIM = 256
_SMALLEST_BLOCK = 16
_SCALE_BYTES = 2


@dataclass(frozen=True, eq=False)
class Coded:
    """How keys or values of a layer are coded. H heads, G groups (padded).

    Args:
        groups: (H, G), int32: where each group's codes lie: see `triton_codes.group_entries`.
        first_bits: (H,), int32: where each head's codes begin in the stream.
        scale_begins: (H,), int32: first token scale in a page, counted in float16s.
        levels: (1024,), float16: integer level of each window, from `first_level` of a width on.
        values: (9, 256), float32: what each window of a width stands for.
        borders: (9, 256), float32: where the nearest level changes, by width; then infinity.
        reaches: (9,), float32: as far out as a trellis looks for a channel of each width.
        units: (H, D), float32: what level 1 is worth in each channel; 0 where there are no bits.
        scale_top: what a token's largest channel over its scale is to be.
        width: of all groups; 0: they differ.
        max_width: the widest.
        is_trellis: whether narrow codes' levels depend on the bits before them.
    """

    groups: Tensor
    first_bits: Tensor
    scale_begins: Tensor
    levels: Tensor
    values: Tensor
    borders: Tensor
    reaches: Tensor
    units: Tensor
    scale_top: float
    width: int
    max_width: int
    is_trellis: bool


@dataclass(frozen=True, eq=False)
class LayerTables:
    """A layer on one device. H heads, D channels, B = D padded to a power of two.

    Args:
        keys: how keys are coded.
        values: how values are coded.
        head_dim: D.
        block_dim: B.
        token_scales: whether tokens have scales.
        word_parts: (W, 32), int32: of each word of the stream the codes it is made of, -1 where
            there are no more: the channel, values' behind those of keys, times 64, plus how far
            the code is shifted to the left, plus 8.
        transform: (H, B, B), float16, queries into the frame of the levels; heads may share one.
        centers: (H, B, 64), float16, by offset in a stretch; or None.
        channel_weights: (H, B), float32: roots of the lengths of the transform's columns.
        factors: (H, 2), float32: of a product with levels, and of one with centers.
        restore: (H, D, D), float32, weighted levels of values into values; or None.
        mean: (H, D), float32, what is added to values; or None.
    """

    keys: Coded
    values: Coded
    head_dim: int
    block_dim: int
    token_scales: bool
    word_parts: Tensor
    transform: Tensor
    centers: Tensor | None
    channel_weights: Tensor
    factors: Tensor
    restore: Tensor | None
    mean: Tensor | None

    def restore_values(self, mixed: Tensor, log_sum_exp: Tensor) -> Tensor:
        """Values from weighted levels; rows that saw nothing stay 0.

        Args:
            mixed: (H, R, D), float32.
            log_sum_exp: (H, R), float32.
        """
        if self.restore is None:
            values = mixed.mul_(self.values.units[:, None])
        else:
            values = torch.bmm(mixed, self.restore)
        if self.mean is not None:
            seen = (log_sum_exp > float("-inf"))[..., None]
            values.addcmul_(seen.float(), self.mean[:, None])
        return values


_tables: WeakKeyDictionary[PackedLayer, dict[torch.device, LayerTables]] = WeakKeyDictionary()


def layer_tables(layer: PackedLayer, device: torch.device) -> LayerTables:
    """The tables of a layer on a device, from a cache where they were asked for before.

    Raises:
        ValueError: heads are too large for the kernels.
    """
    by_device = _tables.setdefault(layer, {})
    if device not in by_device:
        by_device[device] = _make_tables(layer, device)
    return by_device[device]


def _make_tables(layer: PackedLayer, device: torch.device) -> LayerTables:
    packing = layer.packing
    head_dim = packing.head_dim
    if head_dim > LARGEST_HEAD_DIM:
        raise ValueError(
            f"Triton kernels take heads of at most {LARGEST_HEAD_DIM} channels: got {head_dim}."
        )
    block_dim = max(_SMALLEST_BLOCK, next_power_of_2(head_dim))
    first_bits = torch.unflatten(packing.stream.first_bits, 0, (2, packing.num_heads, -1))
    keys, values = (
        _coded(widths, first_bits[side, :, ::GROUP_CHANNELS], packing.scale_begins[side],
               codebook, block_dim, device)
        for side, (widths, codebook) in enumerate((
            (packing.key_widths, layer.key_codebook), (packing.value_widths, layer.value_codebook)
        ))
    )  # fmt: skip
    transform, level_factors = _query_transform(layer, keys.units, block_dim)
    centers, center_factors = _centers(layer, block_dim, device)
    restore = layer.value_inverse
    mean = layer.value_mean
    return LayerTables(
        keys,
        values,
        head_dim,
        block_dim,
        packing.token_scales,
        _word_parts(packing.stream).to(device),
        transform,
        centers,
        transform.float().norm(dim=1).sqrt(),
        torch.stack((level_factors, center_factors), 1),
        None if restore is None else values.units[:, :, None] * restore.to(device).float(),
        None if mean is None else mean.to(device).float(),
    )


def _coded(
    widths: Tensor, first_bits: Tensor, scales: Tensor, codebook: Codebook, block_dim: int,
    device: torch.device,
) -> Coded:  # fmt: skip
    """`first_bits`: (H, G), of each group in the stream; `scales`: (H,), first bytes in a page."""
    widths = widths.cpu().long()
    entries = group_entries(widths, first_bits)
    padding = (0, block_dim // GROUP_CHANNELS - widths.shape[1])
    different = sorted(set(widths.flatten().tolist()))
    present = [width for width in different if width]
    levels = torch.zeros(NUM_LEVELS)
    borders = torch.full((MAX_WIDTH + 1, 1 << MAX_WIDTH), float("inf"))
    units, reaches = torch.zeros(MAX_WIDTH + 1), torch.zeros(MAX_WIDTH + 1)
    for width in present:
        of_width = codebook.window_levels(width)
        first = first_level(width)
        levels[first : first + len(of_width)] = torch.tensor(of_width, dtype=torch.float32)
        units[width] = codebook.units[width]
        reaches[width] = REACH * codebook.top(width)
        if width in codebook.borders:
            borders[width, : (1 << width) - 1] = codebook.borders[width]
    return Coded(
        torch.nn.functional.pad(entries, padding).to(torch.int32).contiguous().to(device),
        first_bits[:, 0].to(torch.int32).contiguous().to(device),
        (scales.cpu() // _SCALE_BYTES).to(torch.int32).to(device),
        levels.half().to(device),
        codebook.table.to(device),
        borders.to(device),
        reaches.to(device),
        units[widths].repeat_interleave(GROUP_CHANNELS, 1).to(device),
        codebook.top(present[-1]) if present else float("inf"),
        different[0] if len(different) == 1 else 0,
        different[-1],
        codebook.is_trellis,
    )


def _word_parts(stream: CodeStream) -> Tensor:
    """`LayerTables.word_parts`."""
    parts: list[list[int]] = [[] for _ in range(stream.num_words)]
    places = zip(stream.first_bits.tolist(), stream.channel_widths.tolist(), strict=True)
    for channel, (first_bit, width) in enumerate(places):
        if not width:
            continue
        last_word = (first_bit + width - 1) // WORD_BITS
        for word in range(first_bit // WORD_BITS, last_word + 1):
            parts[word].append(channel * 64 + first_bit - word * WORD_BITS + MAX_WIDTH)
    padded = [row + [-1] * (WORD_BITS - len(row)) for row in parts]
    return torch.tensor(padded, dtype=torch.int32).view(-1, WORD_BITS)


def _query_transform(
    layer: PackedLayer, units: Tensor, block_dim: int
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """A matrix with columns of at most length 1, and what a product of it is to be times."""
    heads, head_dim = units.shape
    matrix = layer.query_transform
    if matrix is None and bool((units == units[:, :1]).all()):
        # Heads share it: 32 KB a layer instead of 32 KB a head.
        return torch.eye(block_dim, device=units.device).half().expand(heads, -1, -1), units[:, 0]
    if matrix is None:
        matrix = torch.eye(head_dim).expand(heads, -1, -1)
    weighted = matrix.to(units.device).float() * units[:, None, :]
    # A query of length 1 then keeps every channel within 1, so that float16 cannot overflow.
    longest = weighted.norm(dim=1).amax(1).clamp_min(torch.finfo(torch.float32).tiny)
    missing = block_dim - head_dim
    padded = torch.nn.functional.pad(weighted / longest[:, None, None], (0, missing, 0, missing))
    return padded.half().contiguous(), longest


def _centers(
    layer: PackedLayer, block_dim: int, device: torch.device
) -> tuple[Tensor | None, Tensor]:
    """Centers of at most 1, and what a product with them is to be times."""
    if layer.center is None:
        return None, torch.zeros(layer.packing.num_heads, device=device)
    by_head = layer.center.to(device).float().permute(1, 2, 0)
    largest = by_head.abs().amax((1, 2)).clamp_min(torch.finfo(torch.float32).tiny)
    missing = block_dim - by_head.shape[1]
    padded = torch.nn.functional.pad(by_head / largest[:, None, None], (0, 0, 0, missing))
    return padded.half().reshape(-1, block_dim, STRETCH_TOKENS).contiguous(), largest
