"""How keys and values of pages are encoded: the interface every format fills in.

A page holds 16 tokens in one layer, as one byte record; what a segment leaves free of its first and
last page may be another's, where the format says which bits are whose. Keys come in pair order,
rotated by their offset in their stretch of four pages.

A format needs `layer`, which gives a codec for one layer; a codec needs `encode` and `decode`.
Attention over decoded tiles comes with the base class, and formats with kernels of their own
override it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

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
from agentmem.kernels.code_stream import PAGE_TOKENS
from agentmem.kernels.cpu_dense import DenseStates
from agentmem.kernels.page_table import PAGES_PER_STRETCH, PageTable


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Heads and channels of one layer's keys and values."""

    num_kv_heads: int
    head_dim: int


class LayerCodec(ABC):
    """Encodes one layer's pages, and attends to them as they are encoded.

    Args:
        shape: of the layer's keys and values.
    """

    page_nbytes: int
    """Bytes of one page's record."""
    slots_below: Tensor | None = None
    """(17, page_nbytes), uint8: the bits that the first 0 to 16 slots lie in; None: pages are not
    shared."""

    def __init__(self, shape: LayerShape) -> None:
        self.shape = shape

    @abstractmethod
    def encode(self, keys: Tensor, values: Tensor, phases: Tensor) -> Tensor:
        """Encode pages.

        Args:
            keys: (num_pages, num_kv_heads, 16, head_dim), any float dtype.
            values: the same shape and dtype.
            phases: (num_pages,), int32: index of each page in its stretch.

        Returns:
            (num_pages, page_nbytes), uint8.

        Raises:
            InvalidInput: the format cannot hold such values.
        """

    @abstractmethod
    def decode(self, pages: Tensor, phases: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values again, float32, in the shapes `encode` took."""

    def attend(
        self, queries: Tensor, rotations: Tensor, table: PageTable, pages: Tensor,
        limits: Tensor, softcap: float | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Attention of query rows over the pages of a table; as `kernels.packed.attend`.

        Args:
            queries: (num_kv_heads, rows, head_dim), float32, scaled, rotated by their positions.
            rotations: (stretches, head_dim / 2), complex64.
            table: which pages, and where they stand.
            pages: (capacity, page_nbytes), uint8.
            limits: (rows, 2), int32: each row sees positions [low, high).
            softcap: of logits, or None.

        Returns:
            Attended values (num_kv_heads, rows, head_dim) and log-sum-exp (num_kv_heads, rows).
        """
        heads, rows, head_dim = queries.shape
        softmax = OnlineSoftmax(heads, rows, head_dim, queries.device)
        for tile, _ in table.tiles(TILE_TOKENS):
            keys, values = self.decode(pages.index_select(0, tile.rows), tile.phases)
            logits = self._logits(queries, rotations, tile, keys, limits, softcap)
            softmax.fold_pages(logits, values.mT)
        return softmax.result(), softmax.log_sum_exp()

    def column_mass(
        self, queries: Tensor, rotations: Tensor, table: PageTable, pages: Tensor,
        limits: Tensor, softcap: float | None, log_sum_exp: Tensor,
    ) -> Tensor:  # fmt: skip
        """Probability each slot received, summed over heads and rows: (num_slots,), float32.

        Args:
            log_sum_exp: (num_kv_heads, rows): of each row over everything it saw.
        """
        mass = torch.empty(table.num_slots, device=queries.device)
        for tile, which in table.tiles(TILE_TOKENS):
            keys, _ = self.decode(pages.index_select(0, tile.rows), tile.phases)
            logits = self._logits(queries, rotations, tile, keys, limits, softcap)
            slots = slice(which.start * PAGE_TOKENS, which.stop * PAGE_TOKENS)
            mass[slots] = probabilities(logits, log_sum_exp).sum((0, 1))
        return mass

    def dense_states(self, pages: Tensor) -> DenseStates | None:
        """The pages as keys and values that C attends to as they are; None: `attend` does."""
        return None

    @staticmethod
    def _logits(
        queries: Tensor, rotations: Tensor, table: PageTable, keys: Tensor,
        limits: Tensor, softcap: float | None,
    ) -> Tensor:  # fmt: skip
        turned, of_page = turned_queries(queries, rotations, table)
        return masked_logits(page_products(turned, of_page, keys), table, limits, softcap)


class Format(ABC):
    """A way to encode keys and values."""

    name: str
    """Equal names mean that one reads what the other wrote: parameters are part of it."""

    @abstractmethod
    def layer(self, index: int, shape: LayerShape) -> LayerCodec:
        """The codec of one layer.

        Raises:
            Unsupported: the format cannot hold such a layer.
        """


def num_pages_for(num_tokens: int, first_slot: int = 0) -> int:
    """Pages that so many tokens lie in, the first of them in a slot of the first page."""
    return -(-(first_slot + num_tokens) // PAGE_TOKENS)


def phases_of(num_pages: int, device: torch.device | None = None) -> Tensor:
    """(num_pages,), int32: index in its stretch of each page of a segment."""
    return torch.arange(num_pages, dtype=torch.int32, device=device) % PAGES_PER_STRETCH


def pad_to_pages(states: Tensor, first_slot: int = 0) -> Tensor:
    """Cut tokens into pages, slots before the first and behind the last filled with zeros.

    Args:
        states: (num_kv_heads, num_tokens, head_dim).
        first_slot: of the first token in the first page.

    Returns:
        (num_pages, num_kv_heads, 16, head_dim).
    """
    missing = -(first_slot + states.shape[1]) % PAGE_TOKENS
    padded = torch.nn.functional.pad(states, (0, 0, first_slot, missing))
    heads, _, head_dim = padded.shape
    return padded.reshape(heads, -1, PAGE_TOKENS, head_dim).transpose(0, 1)
