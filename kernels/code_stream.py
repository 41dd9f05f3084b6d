"""A token's codes as a stream of bits, and how the streams of 16 tokens lie together.

    stream   code of channel 0, of channel 1, ... each of its own width, lowest bit first
    words    the stream cut into words of 32 bits, the last filled up with zeros
    bytes    word 0 of tokens 0 to 15, word 1 of tokens 0 to 15, ...

A machine then reads the same code of 16 tokens at once, and the bits before a code as easily as the
code itself: they are the state of a trellis (see trellis.py). Knows nothing of what codes mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

PAGE_TOKENS = 16
"""Tokens of a page. Chat segments have a median of 34 tokens: longer pages were mostly padding."""
GROUP_CHANNELS = 4
"""Neighbouring channels that share a width."""
MAX_WIDTH = 8
"""Bits of the widest code."""
WORD_BITS = 32
"""Of a stream that lie together; what the codes leave of the last word stays empty."""
WORD_WIDTHS = WORD_BITS // GROUP_CHANNELS
"""What the widths of groups that fill a word add up to."""
STATE_BITS = 4
"""Bits of the stream before a narrow code that may have a say in what it stands for."""
NARROW_WIDTHS = range(1, MAX_WIDTH - STATE_BITS + 1)
"""Codes that make no more than a byte with the state before them."""
_WORD_MASK = (1 << WORD_BITS) - 1


@dataclass(frozen=True)
class CodeStream:
    """Where a token's codes lie.

    Args:
        widths: bits of the codes of each group of four channels, 0 to 8.
    """

    widths: tuple[int, ...]

    @cached_property
    def num_words(self) -> int:
        """Words of a token's stream."""
        return -(-sum(self.widths) * GROUP_CHANNELS // WORD_BITS)

    @property
    def nbytes(self) -> int:
        """Bytes of the streams of a page's tokens."""
        return self.num_words * PAGE_TOKENS * WORD_BITS // 8

    @cached_property
    def first_bits(self) -> Tensor:
        """(num_channels,), int64: where the code of each channel begins."""
        return self.channel_widths.cumsum(0) - self.channel_widths

    @cached_property
    def channel_widths(self) -> Tensor:
        """(num_channels,), int64."""
        return torch.tensor(self.widths).repeat_interleave(GROUP_CHANNELS)

    def pack(self, codes: Tensor) -> Tensor:
        """Lay codes out.

        Args:
            codes: (num_pages, 16, num_channels), uint8, below 2 ** width.

        Returns:
            (num_pages, nbytes), uint8.
        """
        num_pages, device = codes.shape[0], codes.device
        if set(self.widths) == {MAX_WIDTH}:
            words = torch.unflatten(codes, -1, (self.num_words, WORD_BITS // MAX_WIDTH))
            return words.transpose(1, 2).reshape(num_pages, self.nbytes)
        shifted = codes.transpose(1, 2).long() << (self.first_bits % WORD_BITS)[:, None].to(device)
        index = (self.first_bits // WORD_BITS).to(device)
        # One more word: a code may end in the word after the one it begins in.
        words = shifted.new_zeros((num_pages, self.num_words + 1, PAGE_TOKENS))
        words.index_add_(1, index, shifted & _WORD_MASK)
        words.index_add_(1, (index + 1).clamp_max(self.num_words), shifted >> WORD_BITS)
        return words[:, :-1].to(torch.int32).flatten(1).view(torch.uint8)

    def windows(self, packed: Tensor) -> Tensor:
        """Codes with what may have a say in what they stand for.

        Args:
            packed: (num_pages, nbytes), uint8.

        Returns:
            (num_pages, 16, num_channels), uint8: of a narrow code the four bits before it, lowest,
            which are zeros where the stream begins, and then the code; a wide code alone; 0 where
            there are no bits.
        """
        device, word_nbytes = packed.device, WORD_BITS // 8
        in_words = torch.unflatten(packed, -1, (self.num_words, PAGE_TOKENS, word_nbytes))
        if set(self.widths) == {MAX_WIDTH}:
            return in_words.transpose(1, 2).flatten(2)
        # A copy begins at a whole word, wherever the bytes begin.
        copy = in_words.clone(memory_format=torch.contiguous_format)
        words = copy.view(torch.int32)[..., 0].long() & _WORD_MASK
        words = torch.nn.functional.pad(words, (0, 0, 1, 1))
        widths = self.channel_widths
        is_narrow = (widths > 0) & (widths <= NARROW_WIDTHS[-1])
        state = torch.where(is_narrow, STATE_BITS, 0)
        begins = self.first_bits - state + WORD_BITS
        index, shift = (begins // WORD_BITS).to(device), (begins % WORD_BITS)[:, None].to(device)
        mask = ((1 << (widths + state)) - 1)[:, None].to(device)
        low = words.index_select(1, index)
        high = words.index_select(1, (index + 1).clamp_max(words.shape[1] - 1))
        found = ((low >> shift) | (high << (WORD_BITS - shift))) & mask
        return found.to(torch.uint8).transpose(1, 2).contiguous()
