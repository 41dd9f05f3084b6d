"""The dense format: keys and values as the model computed them, in its own dtype."""

from __future__ import annotations

import torch
from torch import Tensor

from agentmem.kernels.attention import mix_pages, page_logits
from agentmem.storage.kv_format import Format, Pages


class DenseFormat(Format):
    """Pages in a float dtype.

    Args:
        dtype: of the stored keys and values; the model's.
    """

    name = "dense"

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.dtype = dtype

    def encode(self, keys: Tensor, values: Tensor) -> Pages:
        """Store them as they are."""
        return {
            "k_states": keys.to(self.dtype).contiguous(),
            "v_states": values.to(self.dtype).transpose(0, 1).contiguous(),
        }

    def decode(self, pages: Pages) -> tuple[Tensor, Tensor]:
        """Keys and values, float32."""
        return pages["k_states"].float(), pages["v_states"].transpose(0, 1).float()

    def logits(self, pages: Pages, queries: Tensor, out: Tensor) -> None:
        """Products of queries and keys."""
        page_logits(queries, pages["k_states"], out)

    def mix(self, pages: Pages, probabilities: Tensor) -> Tensor:
        """Values by probability."""
        return mix_pages(probabilities, pages["v_states"])
