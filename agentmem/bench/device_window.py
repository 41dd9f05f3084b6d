"""Random layers and windows for `device.py`, with plain attention over them in float64."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from agentmem.kernels import packed
from agentmem.kernels.attention import page_products, turned_queries
from agentmem.kernels.code_stream import PAGE_TOKENS
from agentmem.kernels.codebook import NUM_STATES, Codebook
from agentmem.kernels.hadamard import hadamard
from agentmem.kernels.packed import PackedLayer
from agentmem.kernels.packing import Packing
from agentmem.kernels.page_table import PageTable, PlacedSegment
from agentmem.kernels.rotary import unit_rotations

FORMATS = ("q8", "q4", "klt", "binary")
_GAUSSIAN = (6, 19, 31, 45, 60, 77, 98, 127)
_LEVELS = {
    1: (-127, 127),
    2: (-127, -38, 38, 127),
    3: (-127, -73, -40, -13, 13, 40, 73, 127),
    4: (*(-level for level in reversed(_GAUSSIAN)), *_GAUSSIAN),
}
_WIDTHS = {"q8": (8, 8), "q4": (5, 3), "binary": (1, 1)}
"""Of keys and of values."""
_KLT_WIDTHS = (8, 6, 5, 4, 4, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 0)
"""Of sixteenths of the channels, most important first: what two bits on average are poured into."""

Question = tuple[Tensor, Tensor, PageTable, Tensor, PackedLayer, Tensor, None]
"""Arguments of attention, as far as the softcap."""


def make_layer(name: str, num_heads: int, head_dim: int) -> PackedLayer:
    """A layer in one of the formats, with the constants that models give it drawn at random."""
    rotation = hadamard(head_dim).expand(num_heads, -1, -1).contiguous()
    center = torch.randn(64, num_heads, head_dim)
    if name == "klt":
        groups = head_dim // 4
        widths = torch.tensor([_KLT_WIDTHS[group * 16 // groups] for group in range(groups)])
        widths = widths.to(torch.uint8).expand(num_heads, -1).contiguous()
        trellis = {width: _by_window(of_codes) for width, of_codes in _LEVELS.items()}
        book = Codebook(trellis, {width: 3.0 / 127 for width in range(1, 9)})
        spreads = torch.linspace(3.0, 0.1, head_dim)
        return PackedLayer(
            Packing(widths, widths, token_scales=False), book, book,
            key_transform=rotation / spreads, query_transform=rotation * spreads, center=center,
            value_transform=rotation / spreads, value_inverse=spreads[:, None] * rotation,
            value_mean=torch.randn(num_heads, head_dim),
        )  # fmt: skip
    both = _WIDTHS[name]
    packing = Packing.uniform(num_heads, head_dim, *both)
    levels = {width: _LEVELS[width] for width in both if width in _LEVELS}
    book = Codebook(levels, dict.fromkeys(both, 1 / 127))
    if name == "q8":
        return PackedLayer(packing, book, book)
    return PackedLayer(
        packing, book, book, key_transform=rotation, query_transform=rotation, center=center,
        value_transform=rotation, value_inverse=rotation,
    )  # fmt: skip


@dataclass(frozen=True)
class DeviceWindow:
    """Segments in an arena on a device.

    Args:
        layer: what the pages hold; its tensors are on the device.
        table: which pages, and where they stand.
        pages: the arena: rows of the table's pages, and some that belong to nobody.
        frequencies: (D / 2,), float64.
        states: keys and values (P, H, 16, D) and phases (P,), as they were encoded.
        encoded: (P, page_nbytes), uint8: what the eager reference made of them.
    """

    layer: PackedLayer
    table: PageTable
    pages: Tensor
    frequencies: Tensor
    states: tuple[Tensor, Tensor, Tensor]
    encoded: Tensor

    @cached_property
    def rotations(self) -> Tensor:
        """(S, D / 2), complex64."""
        return unit_rotations(self.table.stretch_starts, self.frequencies, inverse=True)

    @cached_property
    def decoded(self) -> tuple[Tensor, Tensor]:
        """Keys and values of the table's pages, (P, H, 16, D), float32."""
        return packed.decode(self.pages[self.table.rows.long()], self.table.phases, self.layer)

    @cached_property
    def slots(self) -> Tensor:
        """(T,), int64: slot of each token."""
        return self.table.filled().flatten().nonzero()[:, 0]

    def queries(self, num_rows: int) -> Tensor:
        """(H, num_rows, D), float32."""
        packing = self.layer.packing
        shape = (packing.num_heads, num_rows, packing.head_dim)
        return torch.randn(shape, device=self.pages.device).div_(packing.head_dim**0.5)

    def limits(self, num_rows: int) -> Tensor:
        """(num_rows, 2), int32: every second row sees all, the others the first half."""
        end = int(self.table.starts.max()) + PAGE_TOKENS
        limits = torch.tensor([[0, end], [0, max(1, end // 2)]], dtype=torch.int32)
        return limits[torch.arange(num_rows) % 2].to(self.pages.device)

    def ask(self, queries: Tensor, limits: Tensor) -> Question:
        """Arguments of attention, as far as the softcap, which is None."""
        return queries, self.rotations, self.table, self.pages, self.layer, limits, None

    def plain_attention(self, queries: Tensor, limits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Values (H, R, D), log-sum-exp (H, R) and probabilities (H, R, T), float64."""
        logits = self._logits(queries, limits)[..., self.slots]
        log_sum_exp = logits.logsumexp(-1)
        weights = (logits - log_sum_exp.clamp_min(-1e300)[..., None]).exp()
        values = self.decoded[1].double().transpose(0, 1).flatten(1, 2)[:, self.slots]
        return weights @ values, log_sum_exp, weights

    def highest_logits(self, queries: Tensor, limits: Tensor) -> Tensor:
        """(H, R, P), float64: the largest logit of each page; -inf where none is seen."""
        return torch.unflatten(self._logits(queries, limits), -1, (-1, PAGE_TOKENS)).amax(-1)

    def sign_products(self, queries: Tensor) -> Tensor:
        """(H, R, P), float32: what `binary_scores` estimates."""
        codes, _, scales, _ = self.layer.packing.unpack(self.pages[self.table.rows.long()])
        turned, of_page = turned_queries(queries, self.rotations, self.table)
        transform = self.layer.query_transform
        asked = turned if transform is None else turned @ transform
        products = page_products((asked >= 0).float() * 2 - 1, of_page, codes.float() * 2 - 1)
        if scales is not None:
            products *= scales.float()[:, :, None, :]
        empty = ~self.table.filled()[:, None, None]
        return products.masked_fill(empty, float("-inf")).amax(-1).permute(1, 2, 0)

    @cached_property
    def turned_keys(self) -> Tensor:
        """(H, P * 16, D), float64: keys of all slots, rotated by their positions."""
        starts = self.table.stretch_starts[self.table.stretches.long()].double()
        angles = starts[:, None, None, None] * self.frequencies
        keys = self.decoded[0].double()
        pairs = torch.view_as_complex(torch.unflatten(keys, -1, (-1, 2)).contiguous())
        turned = torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles))
        return turned.flatten(-2).transpose(0, 1).flatten(1, 2)

    def dense(self) -> tuple[Tensor, Tensor]:
        """Keys, rotated by their positions, and values of all tokens: (H, T, D), float32."""
        values = self.decoded[1].transpose(0, 1).flatten(1, 2)
        return self.turned_keys[:, self.slots].float(), values[:, self.slots]

    def _logits(self, queries: Tensor, limits: Tensor) -> Tensor:
        """(H, R, P * 16), float64, -inf where a row may not see."""
        logits = queries.double() @ self.turned_keys.transpose(1, 2)
        return logits.masked_fill(~self.table.visible(limits), float("-inf"))


def make_window(
    name: str,
    num_heads: int,
    head_dim: int,
    lengths: list[int],
    device: torch.device,
    *,
    with_states: bool = True,
) -> DeviceWindow:
    """Segments of random tokens, one after another, their pages scattered over an arena.

    Args:
        lengths: tokens of each segment.
        with_states: whether each page is drawn; otherwise all are copies of a few, which is
            enough to be timed.
    """
    torch.manual_seed(0)
    layer = make_layer(name, num_heads, head_dim)
    num_pages = sum(-(-length // PAGE_TOKENS) for length in lengths)
    capacity = num_pages + 3
    rows = torch.randperm(capacity).tolist()
    segments, position = [], 5
    for length in lengths:
        count = -(-length // PAGE_TOKENS)
        mine, rows = rows[:count], rows[count:]
        segments.append(PlacedSegment(position, length, mine))
        position += length + 7
    table = PageTable.of_segments(segments)
    drawn = num_pages if with_states else min(num_pages, 64)
    shape = (drawn, num_heads, PAGE_TOKENS, head_dim)
    phases = table.phases[:drawn]
    keys, values = torch.randn(shape), torch.randn(shape)
    if layer.center_by_phase is not None:
        keys = keys + layer.center_by_phase[phases.long()]
    encoded = packed.encode(keys, values, phases, layer)
    pages = torch.empty((capacity, encoded.shape[1]), dtype=torch.uint8)
    # Rows that belong to nobody must never be read: as scales their bytes are NaN.
    pages.fill_(255)
    pages[table.rows.long()] = encoded[torch.arange(num_pages) % drawn]
    frequencies = 10_000.0 ** -torch.linspace(0, 1, head_dim // 2, dtype=torch.float64)
    states = (keys.to(device), values.to(device), phases.to(device))
    return DeviceWindow(
        layer=_on_device(layer, device),
        table=PageTable.of_segments(segments, device),
        pages=pages.to(device),
        frequencies=frequencies.to(device),
        states=states,
        encoded=encoded.to(device),
    )


def _by_window(levels: tuple[int, ...]) -> tuple[int, ...]:
    """Levels that depend on the state before a code too: each state's around those of each code."""
    return tuple(
        max(-128, min(127, level + state * 7 % NUM_STATES - NUM_STATES // 2))
        for level in levels
        for state in range(NUM_STATES)
    )


def _on_device(layer: PackedLayer, device: torch.device) -> PackedLayer:
    moved: dict[str, Any] = {
        field.name: getattr(layer, field.name).to(device)
        for field in fields(layer)
        if isinstance(getattr(layer, field.name), Tensor)
    }
    return replace(layer, **moved)
