"""One layer's constants as Triton kernels read them, made once a layer and device.

Levels are integers, which float16 holds exactly; what a level is worth goes into the matrix that
turns queries (keys) or out of the weighted sum (values). Head dims that are no power of two are
padded with channels of no bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import or_
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from agentmem.kernels.codebook import Codebook, uniform_levels
from agentmem.kernels.packed import PackedLayer
from agentmem.kernels.packing import GROUP_CHANNELS, MAX_WIDTH, PAGE_TOKENS
from agentmem.kernels.page_table import STRETCH_TOKENS
from agentmem.kernels.triton_launch import next_power_of_2

LARGEST_HEAD_DIM = 256
_SMALLEST_BLOCK = 16
_WORD_BYTES = 4
_SCALE_BYTES = 2


@dataclass(frozen=True, eq=False)
class Coded:
    """How keys or values of a layer are coded. H heads, G groups (padded).

    Args:
        groups: (H, G), int32: first 4-byte word of each group in a page, times 16, plus its width.
        scale_begins: (H,), int32: first token scale in a page, counted in float16s.
        levels: (256,), float16: integer levels of codes below 8 bits, at 2 ** width + code.
        borders: (9, 256), float32: where the nearest level changes, by width; then infinity.
        units: (H, D), float32: what level 1 is worth in each channel; 0 where there are no bits.
        scale_top: what a token's largest channel over its scale is to be.
        planes: every plane that some width has, or-ed.
        max_width: the widest.
    """

    groups: Tensor
    scale_begins: Tensor
    levels: Tensor
    borders: Tensor
    units: Tensor
    scale_top: float
    planes: int
    max_width: int


@dataclass(frozen=True, eq=False)
class LayerTables:
    """A layer on one device. H heads, D channels, B = D padded to a power of two.

    Args:
        keys: how keys are coded.
        values: how values are coded.
        head_dim: D.
        block_dim: B.
        token_scales: whether tokens have scales.
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
    keys = _coded(packing.key_widths, packing.sections[:, 0], packing.sections[:, 1],
                  layer.key_codebook, block_dim, device)  # fmt: skip
    values = _coded(packing.value_widths, packing.sections[:, 2], packing.sections[:, 3],
                    layer.value_codebook, block_dim, device)  # fmt: skip
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
        transform,
        centers,
        transform.float().norm(dim=1).sqrt(),
        torch.stack((level_factors, center_factors), 1),
        None if restore is None else values.units[:, :, None] * restore.to(device).float(),
        None if mean is None else mean.to(device).float(),
    )


def _coded(
    widths: Tensor, begins: Tensor, scales: Tensor, codebook: Codebook, block_dim: int,
    device: torch.device,
) -> Coded:  # fmt: skip
    """`begins` and `scales`: (H,), the first byte of codes and of scales in a page."""
    widths = widths.cpu().long()
    nbytes = widths * (PAGE_TOKENS * GROUP_CHANNELS // 8)
    firsts = begins.cpu()[:, None] + nbytes.cumsum(1) - nbytes
    padding = (0, block_dim // GROUP_CHANNELS - widths.shape[1])
    groups = torch.nn.functional.pad(firsts // _WORD_BYTES * 16 + widths, padding)
    present = sorted(set(widths.flatten().tolist()) - {0})
    levels = torch.zeros(1 << MAX_WIDTH)
    borders = torch.full((MAX_WIDTH + 1, 1 << MAX_WIDTH), float("inf"))
    units = torch.zeros(MAX_WIDTH + 1)
    for width in present:
        codebook.values(width)  # Raises if the codebook lacks it.
        of_width = codebook.levels.get(width) or uniform_levels(width)
        if width < MAX_WIDTH:
            levels[1 << width : 2 << width] = torch.tensor(of_width, dtype=torch.float32)
        borders[width, : len(of_width) - 1] = codebook.borders[width]
        units[width] = codebook.units[width]
    top = codebook.values(present[-1])[-1] if present else float("inf")
    return Coded(
        groups.to(torch.int32).contiguous().to(device),
        (scales.cpu() // _SCALE_BYTES).to(torch.int32).to(device),
        levels.half().to(device),
        borders.to(device),
        units[widths].repeat_interleave(GROUP_CHANNELS, 1).to(device),
        top,
        reduce(or_, present, 0),
        max(present, default=0),
    )


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
