"""The fp8 format: e4m3 floats and one fp16 scale for each token and head, keys and values alike.

A scale brings the token's largest channel to 448, the largest e4m3 number; each value is then at
most 2 ** -4 of itself off, small ones at most 2 ** -10 of a scale. 8.25 bits at 64 channels, as q8:
coarser than q8 in large channels, finer in small ones, and what GPUs of today multiply.
"""

from __future__ import annotations

import torch
from torch import Tensor

from agentmem.errors import InvalidInput
from agentmem.kernels.code_stream import PAGE_TOKENS
from agentmem.storage.kv_format import Format, LayerCodec, LayerShape

_LARGEST = torch.finfo(torch.float8_e4m3fn).max


class FP8Format(Format):
    """Pages in eight-bit floats."""

    name = "fp8"

    def layer(self, index: int, shape: LayerShape) -> LayerCodec:
        """The same for every layer."""
        return _FP8Codec(shape)


class _FP8Codec(LayerCodec):
    """A page is all heads' keys, all heads' values, and the scales of both in that order."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__(shape)
        tokens = 2 * shape.num_kv_heads * PAGE_TOKENS
        self._code_nbytes = tokens * shape.head_dim
        self.page_nbytes = self._code_nbytes + tokens * torch.float16.itemsize

    def encode(self, keys: Tensor, values: Tensor, phases: Tensor) -> Tensor:
        """Scale and round.

        Raises:
            InvalidInput: a value is NaN, infinite or too large for a fp16 scale.
        """
        states = torch.stack((keys, values), 1).float()
        largest = states.abs().amax(-1)
        scales = (largest / _LARGEST).half()
        if not bool(torch.isfinite(scales).all()):
            raise InvalidInput(
                f"fp8 holds finite values up to {torch.finfo(torch.float16).max * _LARGEST:.3g}: "
                f"got {float(largest.max()):.3g}."
            )
        divisors = torch.where(scales == 0, 1.0, scales.float())[..., None]
        codes = (states / divisors).clamp(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn)
        return torch.cat(
            (codes.view(torch.uint8).flatten(1), scales.view(torch.uint8).flatten(1)), 1
        )

    def decode(self, pages: Tensor, phases: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values, float32."""
        heads, head_dim = self.shape.num_kv_heads, self.shape.head_dim
        codes = pages[:, : self._code_nbytes].contiguous().view(torch.float8_e4m3fn)
        scales = pages[:, self._code_nbytes :].contiguous().view(torch.float16)
        states = codes.view(-1, 2, heads, PAGE_TOKENS, head_dim).float()
        states *= scales.view(-1, 2, heads, PAGE_TOKENS, 1).float()
        return states[:, 0], states[:, 1]
