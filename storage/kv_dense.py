"""The dense format: keys and values as the model computed them, in its own dtype."""

from __future__ import annotations

import torch
from torch import Tensor

from agentmem.kernels import cpu_dense
from agentmem.kernels.backend import attends_dense_in_c
from agentmem.kernels.code_stream import PAGE_TOKENS
from agentmem.kernels.cpu_dense import DenseSource, DenseStates
from agentmem.kernels.page_table import PageTable
from agentmem.storage.kv_format import Format, LayerCodec, LayerShape


class DenseFormat(Format):
    """Pages in a float dtype.

    Args:
        dtype: of the stored keys and values; the model's.
    """

    name = "dense"

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.dtype = dtype

    def layer(self, index: int, shape: LayerShape) -> LayerCodec:
        """The same for every layer."""
        return _DenseCodec(shape, self.dtype)


class _DenseCodec(LayerCodec):
    """A page is all heads' keys, then all heads' values."""

    def __init__(self, shape: LayerShape, dtype: torch.dtype) -> None:
        super().__init__(shape)
        self.dtype = dtype
        self.page_nbytes = (
            2 * shape.num_kv_heads * PAGE_TOKENS * shape.head_dim * dtype.itemsize
        )  # fmt: skip

    def encode(self, keys: Tensor, values: Tensor, phases: Tensor) -> Tensor:
        """Store them as they are."""
        states = torch.stack((keys, values), 1).to(self.dtype)
        return states.flatten(1).view(torch.uint8)

    def decode(self, pages: Tensor, phases: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values, float32."""
        shape = (-1, 2, self.shape.num_kv_heads, PAGE_TOKENS, self.shape.head_dim)
        states = pages.view(self.dtype).view(shape)
        return states[:, 0].float(), states[:, 1].float()

    def attend(
        self, queries: Tensor, rotations: Tensor, table: PageTable, pages: Tensor,
        limits: Tensor, softcap: float | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Attention on the pages as they are, where there are kernels for it."""
        states = self.dense_states(pages)
        if states is None:
            return super().attend(queries, rotations, table, pages, limits, softcap)
        source = DenseSource(queries, rotations, table, states, limits, softcap)
        return cpu_dense.attend([source])

    def column_mass(
        self, queries: Tensor, rotations: Tensor, table: PageTable, pages: Tensor,
        limits: Tensor, softcap: float | None, log_sum_exp: Tensor,
    ) -> Tensor:  # fmt: skip
        """Probability each slot received."""
        states = self.dense_states(pages)
        if states is None:
            return super().column_mass(
                queries, rotations, table, pages, limits, softcap, log_sum_exp
            )
        mass = torch.zeros(table.num_slots)
        source = DenseSource(queries, rotations, table, states, limits, softcap)
        cpu_dense.add_column_mass([source], [mass], log_sum_exp)
        return mass

    def dense_states(self, pages: Tensor) -> DenseStates | None:
        """The pages as they are, where there are kernels for them."""
        heads, head_dim = self.shape.num_kv_heads, self.shape.head_dim
        if not attends_dense_in_c(pages.device, head_dim, self.dtype):
            return None
        return DenseStates.of_pages(pages, heads, head_dim, self.dtype)
