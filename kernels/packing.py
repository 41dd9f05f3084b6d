"""The byte layout of packed pages: codes of 0 to 8 bits, four channels at a time.

A page is 16 tokens of one segment in one layer, as one byte record. The channels of a head go in
groups of four; each group has one width, for keys and for values apart, so that a format may spend
bits where they matter. The 64 codes of a group fill whole 64-bit words at every width, and each
width is made of planes of 4, 2 and 1 bits that a machine unpacks with one shift and one mask.
See README.md for the picture. Knows nothing of what codes mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

PAGE_TOKENS = 16
"""Tokens of a page. Chat segments have a median of 34 tokens: longer pages were mostly padding."""
GROUP_CHANNELS = 4
"""Neighbouring channels that share a width."""
MAX_WIDTH = 8
"""Bits of the widest code."""
_SCALE_BYTES = 2 * PAGE_TOKENS

PLANES = {0: (), 1: (1,), 2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2), 7: (4, 2, 1), 8: (8,)}
"""Bits of each plane of a width, most significant first."""


@dataclass(frozen=True, eq=False)
class Packing:
    """Where one layer's codes and scales lie in a page's record.

    A head's record is its key codes, its key scales, its value codes and its value scales; heads
    follow each other.

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
    def sections(self) -> Tensor:
        """(num_heads, 4), int64: first bytes of key codes, key scales, value codes, value scales.

        Where there are no token scales, the scales' sections are empty.
        """
        scales = _SCALE_BYTES if self.token_scales else 0
        keys = self.key_widths.long().sum(1) * 8
        values = self.value_widths.long().sum(1) * 8
        sizes = torch.stack((keys, torch.full_like(keys, scales), values), 1)
        heads = keys + values + 2 * scales
        starts = heads.cumsum(0) - heads
        return starts[:, None] + torch.cat((torch.zeros_like(keys)[:, None], sizes.cumsum(1)), 1)

    @cached_property
    def page_nbytes(self) -> int:
        """Bytes of one page, all heads."""
        scales = 2 * _SCALE_BYTES * self.num_heads if self.token_scales else 0
        return int(self.key_widths.long().sum() + self.value_widths.long().sum()) * 8 + scales

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
            value_codes: (num_pages, num_heads, head_dim, 16), uint8: channel by channel.
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
        records = torch.empty(
            (key_codes.shape[0], self.page_nbytes), dtype=torch.uint8, device=key_codes.device
        )
        for run in self._runs:
            if run.section == 0:
                codes = key_codes[:, run.heads, :, run.channels]
                tiles = torch.unflatten(codes, -1, (-1, GROUP_CHANNELS))
                elements = tiles.transpose(2, 3).flatten(-2)
            else:
                codes = value_codes[:, run.heads, run.channels]
                elements = torch.unflatten(codes, 2, (-1, GROUP_CHANNELS)).flatten(-2)
            run.of(records).copy_(_pack_planes(elements, run.width).flatten(2))
        for section, scales in ((1, key_scales), (3, value_scales)):
            if scales is not None:
                for head, begin in enumerate(self.sections[:, section].tolist()):
                    flat = scales[:, head].contiguous().view(torch.uint8)
                    records[:, begin : begin + _SCALE_BYTES] = flat
        return records

    @cached_property
    def slots_below(self) -> Tensor:
        """(17, page_nbytes), uint8: the bits of a page that its first 0 to 16 slots lie in."""
        widths = (
            tuple(map(tuple, table.tolist())) for table in (self.key_widths, self.value_widths)
        )
        return _slots_below(*widths, self.token_scales)

    def unpack(self, records: Tensor) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """What `pack` was given; codes of groups without bits are 0."""
        pages, heads = records.shape[0], self.num_heads
        # Four channels of a token are moved as one number.
        words = torch.zeros(
            (pages, heads, PAGE_TOKENS, self.head_dim // GROUP_CHANNELS),
            dtype=torch.int32, device=records.device,
        )  # fmt: skip
        values = torch.zeros(
            (pages, heads, self.head_dim, PAGE_TOKENS), dtype=torch.uint8, device=records.device
        )
        for run in self._runs:
            packed = torch.unflatten(run.of(records), -1, (-1, run.width * 8))
            elements = _unpack_planes(packed, run.width)
            if run.section == 0:
                groups = slice(
                    run.channels.start // GROUP_CHANNELS, run.channels.stop // GROUP_CHANNELS
                )
                words[:, run.heads, :, groups] = elements.view(torch.int32).transpose(2, 3)
            else:
                tiles = torch.unflatten(elements, -1, (GROUP_CHANNELS, PAGE_TOKENS))
                values[:, run.heads, run.channels] = tiles.flatten(2, 3)
        keys = words.view(torch.uint8)
        if not self.token_scales:
            return keys, values, None, None
        return keys, values, self._scales(records, 1), self._scales(records, 3)

    def _scales(self, records: Tensor, section: int) -> Tensor:
        begins = self.sections[:, section].tolist()
        parts = [records[:, begin : begin + _SCALE_BYTES] for begin in begins]
        return torch.stack(parts, 1).view(torch.float16)

    @cached_property
    def _runs(self) -> list[_Run]:
        """Neighbouring groups of equal width in neighbouring heads of equal layout."""
        runs: list[_Run] = []
        keys, values = self.key_widths.tolist(), self.value_widths.tolist()
        sections = self.sections.tolist()
        scales = _SCALE_BYTES if self.token_scales else 0
        first_head = 0
        while first_head < self.num_heads:
            last_head = first_head + 1
            while (
                last_head < self.num_heads
                and keys[last_head] == keys[first_head]
                and values[last_head] == values[first_head]
            ):
                last_head += 1
            heads = slice(first_head, last_head)
            head_begin = sections[first_head][0]
            head_nbytes = sections[first_head][3] - head_begin + scales
            for section, row in ((0, keys[first_head]), (2, values[first_head])):
                begin, first = sections[first_head][section] - head_begin, 0
                for last in range(1, len(row) + 1):
                    if last < len(row) and row[last] == row[first]:
                        continue
                    nbytes = (last - first) * row[first] * 8
                    if nbytes:
                        channels = slice(first * GROUP_CHANNELS, last * GROUP_CHANNELS)
                        runs.append(
                            _Run(section, heads, channels, row[first], head_begin,
                                 head_nbytes, slice(begin, begin + nbytes))
                        )  # fmt: skip
                    begin, first = begin + nbytes, last
            first_head = last_head
        return runs


@lru_cache(maxsize=256)
def _slots_below(
    key_widths: tuple[tuple[int, ...], ...], value_widths: tuple[tuple[int, ...], ...],
    token_scales: bool,
) -> Tensor:  # fmt: skip
    """`Packing.slots_below`; most layers of a model are packed alike, and share it."""
    largest_codes = [
        (2 ** torch.tensor(widths) - 1).to(torch.uint8).repeat_interleave(GROUP_CHANNELS, 1)
        for widths in (key_widths, value_widths)
    ]
    below = torch.arange(PAGE_TOKENS) < torch.arange(PAGE_TOKENS + 1)[:, None]
    heads, scales = len(key_widths), None
    if token_scales:
        all_ones = below.to(torch.int16).neg().view(torch.float16)
        scales = all_ones[:, None].expand(-1, heads, -1)
    packing = Packing(
        torch.tensor(key_widths, dtype=torch.uint8),
        torch.tensor(value_widths, dtype=torch.uint8),
        token_scales,
    )
    return packing.pack(
        largest_codes[0][None, :, None] * below[:, None, :, None],
        largest_codes[1][None, :, :, None] * below[:, None, None],
        scales,
        scales,
    )


@dataclass(frozen=True, slots=True)
class _Run:
    """Codes of one width that lie together in each of some heads."""

    section: int
    heads: slice
    channels: slice
    width: int
    begin: int
    head_nbytes: int
    bytes: slice

    def of(self, records: Tensor) -> Tensor:
        """The run's bytes: a view, (num_pages, heads, nbytes)."""
        num_heads = self.heads.stop - self.heads.start
        heads = records[:, self.begin : self.begin + num_heads * self.head_nbytes]
        return torch.unflatten(heads, 1, (num_heads, self.head_nbytes))[:, :, self.bytes]


def _pack_planes(elements: Tensor, width: int) -> Tensor:
    """(..., 64) codes as (..., 8 * width) bytes."""
    planes, shift = [], width
    for bits in PLANES[width]:
        shift -= bits
        plane = (elements >> shift) & (2**bits - 1)
        planes.append(plane if bits == 8 else _pack_plane(plane, bits))
    return torch.cat(planes, -1)


def _pack_plane(plane: Tensor, bits: int) -> Tensor:
    if bits == 1:
        shifts = torch.arange(8, device=plane.device).byte()
        octets = torch.unflatten(plane, -1, (8, 8)) << shifts
        return octets.sum(-1).to(torch.uint8)
    parts = torch.unflatten(plane, -1, (8 // bits, -1))
    shifts = (torch.arange(8 // bits, device=plane.device) * bits).byte()
    return (parts << shifts[:, None]).sum(-2).to(torch.uint8)


def _unpack_planes(packed: Tensor, width: int) -> Tensor:
    """(..., 8 * width) bytes as (..., 64) codes, in memory of their own."""
    if width == MAX_WIDTH:
        # A copy also of what is contiguous: records may lie at an odd address.
        return packed.clone(memory_format=torch.contiguous_format)
    codes, begin, shift = None, 0, width
    for bits in PLANES[width]:
        shift -= bits
        plane = _unpack_plane(packed[..., begin : begin + 8 * bits], bits)
        begin += 8 * bits
        codes = plane << shift if codes is None else codes | (plane << shift)
    assert codes is not None
    return codes


def _unpack_plane(packed: Tensor, bits: int) -> Tensor:
    if bits == 1:
        shifts = torch.arange(8, device=packed.device).byte()
        return ((packed[..., None] >> shifts) & 1).flatten(-2)
    parts = [(packed >> shift) & (2**bits - 1) for shift in range(0, 8, bits)]
    return torch.cat(parts, -1)
