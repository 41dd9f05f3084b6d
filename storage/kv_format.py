"""How keys and values of pages are encoded: the interface every format fills in.

A page holds `PAGE_TOKENS` tokens of one segment; a segment's last page is padded with zeros. Keys
come in pair order, rotated by their offset inside the page (`frame = "block_local"`).

An encoded run of pages is a dict of named tensors. Fields named `k_*` have their pages in dimension
0, fields named `v_*` in dimension 1: keys are read page by page, values head by head.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import torch
from torch import Tensor

PAGE_TOKENS = 16
"""Tokens of a page. Chat segments have a median of 34 tokens: longer pages were mostly padding."""

Frame = Literal["block_local", "unrotated"]
Pages = dict[str, Tensor]


class Format(ABC):
    """Encodes pages, and attends to them as they are encoded."""

    name: ClassVar[str]
    frame: ClassVar[Frame] = "block_local"

    @abstractmethod
    def encode(self, keys: Tensor, values: Tensor) -> Pages:
        """Encode pages.

        Args:
            keys: (num_pages, num_kv_heads, PAGE_TOKENS, head_dim), any float dtype.
            values: the same shape and dtype.

        Raises:
            InvalidInput: the format cannot hold such values.
        """

    @abstractmethod
    def decode(self, pages: Pages) -> tuple[Tensor, Tensor]:
        """Keys and values again, float32, in the shapes `encode` took."""

    @abstractmethod
    def logits(self, pages: Pages, queries: Tensor, out: Tensor) -> None:
        """Write the products of queries and keys.

        Args:
            pages: num_pages pages.
            queries: (num_pages, num_kv_heads, rows, head_dim), float32, scaled, rotated per page.
            out: (num_pages, num_kv_heads, rows, PAGE_TOKENS), float32.
        """

    @abstractmethod
    def mix(self, pages: Pages, probabilities: Tensor) -> Tensor:
        """Sum values by probability.

        Args:
            pages: num_pages pages.
            probabilities: (num_kv_heads, rows, num_pages * PAGE_TOKENS), float32.

        Returns:
            (num_kv_heads, rows, head_dim), float32.
        """


def page_dim(field: str) -> int:
    """The dimension in which a field's pages lie."""
    return 0 if field.startswith("k_") else 1


def take_pages(pages: Pages, rows: Tensor) -> Pages:
    """A copy of some pages, by row."""
    return {name: field.index_select(page_dim(name), rows) for name, field in pages.items()}


def slice_pages(pages: Pages, begin: int, end: int) -> Pages:
    """A view of the pages in rows [begin, end)."""
    return {name: field.narrow(page_dim(name), begin, end - begin) for name, field in pages.items()}


def pages_nbytes(pages: Pages) -> int:
    """Bytes of the pages, scales and padding included."""
    return sum(field.numel() * field.element_size() for field in pages.values())


def num_pages_for(num_tokens: int) -> int:
    """Pages a segment of so many tokens takes."""
    return -(-num_tokens // PAGE_TOKENS)


def pad_to_pages(states: Tensor) -> Tensor:
    """Cut tokens into pages, the last padded with zeros.

    Args:
        states: (num_kv_heads, num_tokens, head_dim).

    Returns:
        (num_pages, num_kv_heads, PAGE_TOKENS, head_dim).
    """
    missing = -states.shape[1] % PAGE_TOKENS
    padded = torch.nn.functional.pad(states, (0, 0, 0, missing)) if missing else states
    heads, _, head_dim = padded.shape
    return padded.reshape(heads, -1, PAGE_TOKENS, head_dim).transpose(0, 1)
