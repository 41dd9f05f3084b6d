"""Attention over packed pages in eager PyTorch: the path on every device, and the reference.

A layer's keys and values are coded in a frame of their own: less a center and times a matrix, so
that codes are spent well, and attention turns the query into that frame instead of the keys out of
it:

    <q, x> = <q, center> + <q @ query_transform, z>      z = (x - center) @ key_transform

See README.md for layouts; packing.py for bytes, codebook.py for what codes stand for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from agentmem.kernels.attention import (
    TILE_TOKENS,
    OnlineSoftmax,
    masked_logits,
    page_products,
    probabilities,
    turned_queries,
)
from agentmem.kernels.code_stream import GROUP_CHANNELS, PAGE_TOKENS
from agentmem.kernels.codebook import UNIFORM_WIDTHS, Codebook
from agentmem.kernels.packing import Packing
from agentmem.kernels.page_table import PAGES_PER_STRETCH, PageTable
from agentmem.kernels.trellis import path_codes, state_after

LARGEST_SCALE = torch.finfo(torch.float16).max
NOT_FINITE = "Only finite keys and values can be packed: got NaN or infinity."


@dataclass(frozen=True, eq=False)
class PackedLayer:
    """All that attention must know of one layer's pages. H heads, D channels; float32 matrices.

    Args:
        packing: where the codes lie.
        key_codebook, value_codebook: what they stand for.
        key_transform: (H, D, D), keys into the frame they are coded in; None: as they are.
        query_transform: (H, D, D), so that products are those of the keys themselves.
        center: (64, H, D), what is taken off keys first, by offset in the stretch; or None.
        value_transform: (H, D, D), values into the frame they are coded in; None: as they are.
        value_inverse: (H, D, D), and back.
        value_mean: (H, D), what is taken off values first; or None.
    """

    packing: Packing
    key_codebook: Codebook
    value_codebook: Codebook
    key_transform: Tensor | None = None
    query_transform: Tensor | None = None
    center: Tensor | None = None
    value_transform: Tensor | None = None
    value_inverse: Tensor | None = None
    value_mean: Tensor | None = None

    @cached_property
    def center_by_phase(self) -> Tensor | None:
        """(4, H, 16, D): the center as it stands in each page of a stretch."""
        if self.center is None:
            return None
        pages = self.center.view(PAGES_PER_STRETCH, PAGE_TOKENS, *self.center.shape[1:])
        return pages.transpose(1, 2).contiguous()

    def restore_values(self, coded: Tensor) -> Tensor:
        """Values, or weighted means of values, out of the frame they are coded in.

        Args:
            coded: (H, R, D), float32.
        """
        values = coded if self.value_inverse is None else torch.bmm(coded, self.value_inverse)
        return values if self.value_mean is None else values + self.value_mean[:, None]


def encode(keys: Tensor, values: Tensor, phases: Tensor, layer: PackedLayer) -> Tensor:
    """Pack pages.

    Args:
        keys: (num_pages, H, 16, D), any float dtype, rotated by their offset in the stretch.
        values: the same shape and dtype.
        phases: (num_pages,): index of each page in its stretch.

    Returns:
        (num_pages, page_nbytes), uint8.

    Raises:
        ValueError: a value is NaN, infinite, or too large for a float16 scale.
    """
    keys, values = keys.float(), values.float()
    if layer.center_by_phase is not None:
        keys = keys - layer.center_by_phase[phases.long()]
    if layer.value_mean is not None:
        values = values - layer.value_mean[:, None]
    if layer.key_transform is not None:
        keys = times_by_head(keys, layer.key_transform)
    if layer.value_transform is not None:
        values = times_by_head(values, layer.value_transform)
    packing = layer.packing
    keys, key_scales = _scaled(keys, packing.key_widths, layer.key_codebook, packing.token_scales)
    values, value_scales = _scaled(
        values, packing.value_widths, layer.value_codebook, packing.token_scales
    )
    key_codes = _codes_of(keys, packing.key_widths, layer.key_codebook, None)
    before = None
    if layer.value_codebook.is_trellis:
        before = state_after(_by_token(key_codes), _channel_widths(packing.key_widths))
    value_codes = _codes_of(values, packing.value_widths, layer.value_codebook, before)
    return packing.pack(key_codes, value_codes, key_scales, value_scales)


def decode(pages: Tensor, phases: Tensor, layer: PackedLayer) -> tuple[Tensor, Tensor]:
    """Keys and values again: (num_pages, H, 16, D), float32."""
    keys, values = _coded(pages, layer)
    if layer.query_transform is not None:
        keys = times_by_head(keys, layer.query_transform.transpose(1, 2))
    if layer.center_by_phase is not None:
        keys = keys + layer.center_by_phase[phases.long()]
    if layer.value_inverse is not None:
        values = times_by_head(values, layer.value_inverse)
    if layer.value_mean is not None:
        values = values + layer.value_mean[:, None]
    return keys, values


def attend(
    queries: Tensor,
    rotations: Tensor,
    table: PageTable,
    pages: Tensor,
    layer: PackedLayer,
    limits: Tensor,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention of query rows over the pages of a table.

    Args:
        queries: (H, R, D), float32, scaled, in pair order, rotated by their positions.
        rotations: (S, D / 2), complex64: what turns a query back by each stretch's start.
        table: which pages, and where they stand.
        pages: (capacity, page_nbytes), uint8: the arena.
        layer: what they hold.
        limits: (R, 2), int32: each row sees positions [low, high).
        softcap: logits become softcap * tanh(logit / softcap).

    Returns:
        The attended values (H, R, D), float32, and the log-sum-exp of the logits (H, R), float32;
        0 and -inf for a row that saw nothing.
    """
    heads, rows, head_dim = queries.shape
    softmax = OnlineSoftmax(heads, rows, head_dim, queries.device)
    for tile, _ in table.tiles(TILE_TOKENS):
        keys, values = _coded(pages.index_select(0, tile.rows), layer)
        logits = _logits(queries, rotations, tile, keys, layer, limits, softcap)
        softmax.fold_pages(logits, values.transpose(2, 3))
    values, log_sum_exp = layer.restore_values(softmax.result()), softmax.log_sum_exp()
    if layer.value_mean is not None:
        values.masked_fill_((log_sum_exp == float("-inf"))[..., None], 0.0)
    return values, log_sum_exp


def column_mass(
    queries: Tensor,
    rotations: Tensor,
    table: PageTable,
    pages: Tensor,
    layer: PackedLayer,
    limits: Tensor,
    softcap: float | None,
    log_sum_exp: Tensor,
) -> Tensor:
    """Probability each token slot received, summed over heads and rows.

    Args:
        log_sum_exp: (H, R), float32: of each row over everything it saw, other arenas included.

    Returns:
        (num_pages * 16,), float32; 0 in padding.
    """
    mass = torch.empty(table.num_slots, device=queries.device)
    for tile, which in table.tiles(TILE_TOKENS):
        keys, _ = _coded(pages.index_select(0, tile.rows), layer, with_values=False)
        logits = _logits(queries, rotations, tile, keys, layer, limits, softcap)
        slots = slice(which.start * PAGE_TOKENS, which.stop * PAGE_TOKENS)
        mass[slots] = probabilities(logits, log_sum_exp).sum((0, 1))
    return mass


def times_by_head(states: Tensor, matrices: Tensor) -> Tensor:
    """(P, H, 16, D) states times (H, D, D) matrices: a product for each head, not each page.

    Faster kernels make the same call on the same rows, so that their codes are these.
    """
    pages, heads, tokens, head_dim = states.shape
    rows = states.transpose(0, 1).reshape(heads, pages * tokens, head_dim)
    return torch.bmm(rows, matrices).view(heads, pages, tokens, head_dim).transpose(0, 1)


def _coded(
    pages: Tensor, layer: PackedLayer, *, with_values: bool = True
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Keys and values (P, H, 16, D) in the frame they are coded in, float32."""
    packing = layer.packing
    key_windows, value_windows = packing.windows(pages)
    keys = _values_of(key_windows, packing.key_widths, layer.key_codebook)
    scales = packing.scales(pages) if packing.token_scales else None
    if scales is not None:
        keys *= scales[0].float()[..., None]
    if not with_values:
        return keys, keys
    values = _values_of(value_windows, packing.value_widths, layer.value_codebook)
    if scales is not None:
        values *= scales[1].float()[..., None]
    return keys, values


def _logits(
    queries: Tensor, rotations: Tensor, table: PageTable, keys: Tensor, layer: PackedLayer,
    limits: Tensor, softcap: float | None,
) -> Tensor:  # fmt: skip
    """(H, R, P * 16), -inf where a row may not see."""
    turned, of_page = turned_queries(queries, rotations, table)
    asked = turned if layer.query_transform is None else turned @ layer.query_transform
    products = page_products(asked, of_page, keys)
    if layer.center_by_phase is not None:
        centers = layer.center_by_phase.index_select(0, table.phases)
        products += page_products(turned, of_page, centers)
    return masked_logits(products, table, limits, softcap)


def _values_of(windows: Tensor, widths: Tensor, codebook: Codebook) -> Tensor:
    """What codes stand for, float32, in the windows' shape."""
    different = set(widths.flatten().tolist())
    if len(different) == 1 and different <= set(UNIFORM_WIDTHS):
        first, second = codebook.values(different.pop())[:2]
        return windows.float().mul_(second - first).add_(first)
    table = codebook.table.to(windows.device)
    by_channel = widths.long().repeat_interleave(GROUP_CHANNELS, 1)[:, None].to(windows.device)
    return table.flatten()[by_channel * table.shape[1] + windows.long()]


def _scaled(
    states: Tensor, widths: Tensor, codebook: Codebook, token_scales: bool
) -> tuple[Tensor, Tensor | None]:
    """States (num_pages, H, 16, D) over the scales of their tokens, and those, if they have any."""
    # The sum is cheap to look at, but may overflow where no value does.
    if not bool(torch.isfinite(states.sum())) and not bool(torch.isfinite(states).all()):
        raise ValueError(NOT_FINITE)
    states = states.contiguous()
    if not token_scales:
        return states, None
    width = int(widths.max())
    top = codebook.top(width) if width else float("inf")
    # Of one bit, which keeps signs alone, the mean is the best size.
    sizes = states.abs().mean(-1) if width == 1 else states.abs().amax(-1)
    scales = _token_scales(sizes, top)
    return states / torch.where(scales == 0, 1.0, scales.float())[..., None], scales


def _codes_of(
    states: Tensor, widths: Tensor, codebook: Codebook, before: Tensor | None
) -> Tensor:  # fmt: skip
    """Codes in the shape of (num_pages, H, 16, D) states.

    Args:
        before: (num_pages * 16,), int64: of a trellis, the state each token's codes follow on.
    """
    if codebook.is_trellis:
        codes = path_codes(_by_token(states), _channel_widths(widths), codebook, before)
        return codes.view(states.transpose(1, 2).shape).transpose(1, 2)
    codes = torch.zeros_like(states, dtype=torch.uint8)
    by_channel = widths.repeat_interleave(GROUP_CHANNELS, 1).to(states.device)[:, None]
    different = set(widths.flatten().tolist())
    for width in different - {0}:
        nearest = torch.bucketize(states, codebook.borders[width].to(states.device)).byte()
        if len(different) == 1:
            return nearest
        codes = torch.where(by_channel == width, nearest, codes)
    return codes


def _by_token(parts: Tensor) -> Tensor:
    """(P, H, 16, D) as (P * 16, H * D): in the order of the stream."""
    return parts.transpose(1, 2).flatten(2).flatten(0, 1)


def _channel_widths(widths: Tensor) -> list[int]:
    found: list[int] = widths.flatten().repeat_interleave(GROUP_CHANNELS).tolist()
    return found


def too_large(size: float, top: float) -> str:
    """What is wrong with a token of that size, coded by levels up to `top`."""
    return f"Values up to {LARGEST_SCALE * top:.3g} can be packed: got {size:.3g}."


def _token_scales(sizes: Tensor, top: float) -> Tensor:
    """Sizes of tokens over the highest level, as float16, rounded up."""
    exact = sizes / top
    if sizes.numel() and float(exact.max()) > LARGEST_SCALE:
        raise ValueError(too_large(float(sizes.max()), top))
    scales = exact.half()
    # The bit pattern of a non-negative fp16 plus one is the next larger fp16.
    return torch.where(
        scales.float() < exact, (scales.view(torch.int16) + 1).view(torch.float16), scales
    )
