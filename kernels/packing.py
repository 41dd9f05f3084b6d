"""The byte layout of packed pages: codes of 0 to 8 bits, and scales of tokens.

A page is 16 tokens of one segment in one layer, as one byte record. The channels of a head go in
groups of four; each group has one width, for keys and for values apart, so that a format may spend
bits where they matter. A token's codes are one stream (see code_stream.py), so that heads of any
width leave nothing empty between them. See README.md for the picture. Knows nothing of what codes
mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from agentmem.kernels.code_stream import (
    GROUP_CHANNELS,
    MAX_WIDTH,
    NARROW_WIDTHS,
    PAGE_TOKENS,
    STATE_BITS,
    CodeStream,
)

_SCALE_NBYTES = 2 * PAGE_TOKENS


@dataclass(frozen=True, eq=False)
class Packing:
    """Where one layer's codes and scales lie in a page's record.

    A record is the streams of the tokens' codes, those of keys before those of values and heads in
    order; then head by head the scales of its keys and those of its values.

    Args:
        key_widths: (num_heads, head_dim / 4), uint8: bits a code of each group of channels.
        value_widths: the same for values.
        token_scales: whether each token of each head has a float16 scale, keys and values apart.
    """

    key_widths: Tensor
    value_widths: Tensor
    token_scales: bool = True

    def __post_init__(self) -> None:
        for name, widths in (("key_widths", self.key_widths), ("value_widths", self.value_widths)):
            widest = int(widths.max()) if widths.numel() else 0
            if (
                widths.dtype != torch.uint8
                or widths.ndim != 2
                or not widths.numel()
                or widest > MAX_WIDTH
            ):
                raise ValueError(
                    f"`{name}` must be (num_heads, groups), uint8 in 0 to {MAX_WIDTH}: got "
                    f"{tuple(widths.shape)}, {widths.dtype}, up to {widest}."
                )
        if self.key_widths.shape != self.value_widths.shape:
            raise ValueError(
                f"Keys have {tuple(self.key_widths.shape)} groups, values "
                f"{tuple(self.value_widths.shape)}: they must be the same."
            )

    @staticmethod
    def uniform(
        num_heads: int, head_dim: int, key_width: int, value_width: int | None = None, *,
        token_scales: bool = True,
    ) -> Packing:  # fmt: skip
        """Every channel of keys at one width, and of values at one, by default the same.

        Raises:
            ValueError: `head_dim` is not a multiple of 4, or there is no such width.
        """
        if head_dim < GROUP_CHANNELS or head_dim % GROUP_CHANNELS:
            raise ValueError(
                f"`head_dim` must be a multiple of {GROUP_CHANNELS} to be packed: got {head_dim}."
            )
        both = (key_width, key_width if value_width is None else value_width)
        for width in both:
            if not 0 <= width <= MAX_WIDTH:
                raise ValueError(f"A width must be 0 to {MAX_WIDTH} bits: got {width}.")
        shape = (num_heads, head_dim // GROUP_CHANNELS)
        keys, values = (torch.full(shape, width, dtype=torch.uint8) for width in both)
        return Packing(keys, values, token_scales)

    @property
    def num_heads(self) -> int:
        """Key/value heads."""
        return self.key_widths.shape[0]

    @property
    def head_dim(self) -> int:
        """Channels of a head."""
        return self.key_widths.shape[1] * GROUP_CHANNELS

    @cached_property
    def stream(self) -> CodeStream:
        """Of a token's codes: the channels of its keys, head by head, and then of its values."""
        widths = torch.cat((self.key_widths.flatten(), self.value_widths.flatten()))
        return CodeStream(tuple(widths.tolist()))

    @cached_property
    def scale_begins(self) -> Tensor:
        """(2, num_heads), int64: first bytes of key scales and of value scales."""
        places = torch.arange(2 * self.num_heads).view(-1, 2).T
        return self.stream.nbytes + _SCALE_NBYTES * places

    @property
    def page_nbytes(self) -> int:
        """Bytes of one page, all heads."""
        scales = 2 * self.num_heads * _SCALE_NBYTES if self.token_scales else 0
        return self.stream.nbytes + scales

    def pack(
        self,
        key_codes: Tensor,
        value_codes: Tensor,
        key_scales: Tensor | None = None,
        value_scales: Tensor | None = None,
    ) -> Tensor:
        """Lay codes and scales out as records.

        Args:
            key_codes: (num_pages, num_heads, 16, head_dim), uint8, below 2 ** width.
            value_codes: the same shape.
            key_scales: (num_pages, num_heads, 16), float16; None where tokens have no scales.
            value_scales: the same shape.

        Returns:
            (num_pages, page_nbytes), uint8.

        Raises:
            ValueError: scales are missing, or there is no room for them.
        """
        if {key_scales is None, value_scales is None} != {not self.token_scales}:
            wanted = "keys' and values'" if self.token_scales else "no"
            raise ValueError(f"Pages of this packing have {wanted} scales.")
        codes = torch.stack((key_codes, value_codes), 1).permute(0, 3, 1, 2, 4).flatten(2)
        packed = self.stream.pack(codes)
        if key_scales is None or value_scales is None:
            return packed
        scales = torch.stack((key_scales, value_scales), 2).flatten(1)
        return torch.cat((packed, scales.view(torch.uint8)), 1)

    @cached_property
    def slots_below(self) -> Tensor:
        """(17, page_nbytes), uint8: the bits of a page that its first 0 to 16 slots lie in."""
        widths = (
            tuple(map(tuple, table.tolist())) for table in (self.key_widths, self.value_widths)
        )
        return _slots_below(*widths, self.token_scales)

    def unpack(self, records: Tensor) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """What `pack` was given; codes of groups without bits are 0."""
        keys, values = (
            windows >> _state_bits(widths).to(records.device)
            for windows, widths in zip(
                self.windows(records), (self.key_widths, self.value_widths), strict=True
            )
        )
        if not self.token_scales:
            return keys, values, None, None
        return keys, values, *self.scales(records)

    def windows(self, records: Tensor) -> tuple[Tensor, Tensor]:
        """Codes of keys and of values with the state before them: see `CodeStream.windows`.

        Args:
            records: (num_pages, page_nbytes), uint8.

        Returns:
            Two of (num_pages, num_heads, 16, head_dim), uint8.
        """
        windows = self.stream.windows(records[:, : self.stream.nbytes])
        by_head = torch.unflatten(windows, -1, (2, self.num_heads, self.head_dim))
        keys, values = by_head.permute(2, 0, 3, 1, 4)
        return keys, values

    def scales(self, records: Tensor) -> tuple[Tensor, Tensor]:
        """Scales of keys and of values: (num_pages, num_heads, 16), float16."""
        # A copy begins at a whole number, wherever the bytes begin.
        flat = records[:, self.stream.nbytes :].clone(memory_format=torch.contiguous_format)
        by_head = flat.view(torch.float16).view(-1, self.num_heads, 2, PAGE_TOKENS)
        return by_head[:, :, 0], by_head[:, :, 1]


@lru_cache(maxsize=256)
def _slots_below(
    key_widths: tuple[tuple[int, ...], ...], value_widths: tuple[tuple[int, ...], ...],
    token_scales: bool,
) -> Tensor:  # fmt: skip
    """`Packing.slots_below`; most layers of a model are packed alike, and share it."""
    below = torch.arange(PAGE_TOKENS) < torch.arange(PAGE_TOKENS + 1)[:, None]
    packing = Packing(
        torch.tensor(key_widths, dtype=torch.uint8),
        torch.tensor(value_widths, dtype=torch.uint8),
        token_scales,
    )
    scales = None
    if token_scales:
        all_ones = below.to(torch.int16).neg().view(torch.float16)
        scales = all_ones[:, None].expand(-1, packing.num_heads, -1)
    keys, values = (
        _largest_codes(widths)[:, None] * below[:, None, :, None]
        for widths in (packing.key_widths, packing.value_widths)
    )
    return packing.pack(keys, values, scales, scales)


def _state_bits(widths: Tensor) -> Tensor:
    """(num_heads, 1, head_dim), uint8: bits that a window has below the code."""
    bits = torch.where(widths <= NARROW_WIDTHS[-1], STATE_BITS, 0).to(torch.uint8)
    return bits.repeat_interleave(GROUP_CHANNELS, 1)[:, None]


def _largest_codes(widths: Tensor) -> Tensor:
    """(num_heads, head_dim), uint8: all bits of each channel."""
    return ((1 << widths.long()) - 1).to(torch.uint8).repeat_interleave(GROUP_CHANNELS, 1)
