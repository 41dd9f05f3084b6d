"""The dense format: keys and values as the model computed them, in its own dtype."""

from __future__ import annotations

import torch
from torch import Tensor

from agentmem.kernels.packing import PAGE_TOKENS
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
