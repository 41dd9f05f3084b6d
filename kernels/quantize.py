"""Symmetric int8 quantization with one scale a row (a token of one head). Eager PyTorch.

    scale = max |x| / 127, rounded up to fp16      code = round(x / scale)      x ~ code * scale

The scale is rounded up, never down, so that no code leaves [-127, 127] and the error is at most
half a scale, also where fp16 is subnormal. A row costs head_dim + 2 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MAX_CODE = 127
_LARGEST_SCALE = torch.finfo(torch.float16).max


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """Codes and the scales they were made with.

    Args:
        codes: (..., head_dim), int8 in [-127, 127].
        scales: (...), float16, never negative; 0 where the whole row is 0.
    """

    codes: Tensor
    scales: Tensor


def quantize_int8(rows: Tensor) -> QuantizedRows:
    """Quantize each row of the last dimension with a scale of its own.

    Args:
        rows: (..., head_dim), any float dtype.

    Raises:
        ValueError: a value is NaN, infinite, or too large for a fp16 scale.
    """
    rows = rows.float()
    if not rows.numel():
        return QuantizedRows(rows.to(torch.int8), rows.new_zeros(rows.shape[:-1]).half())
    largest = rows.abs().amax(-1)
    if not bool(torch.isfinite(largest).all()):
        raise ValueError("Only finite values can be quantized: got NaN or infinity.")
    exact = largest / MAX_CODE
    if float(exact.max()) > _LARGEST_SCALE:
        raise ValueError(
            f"Values up to {_LARGEST_SCALE * MAX_CODE:.3g} can be quantized: "
            f"got {float(largest.max()):.3g}."
        )
    scales = exact.half()
    # The bit pattern of a non-negative fp16 plus one is the next larger fp16.
    scales = torch.where(
        scales.float() < exact, (scales.view(torch.int16) + 1).view(torch.float16), scales
    )
    divisors = torch.where(scales == 0, 1.0, scales.float())
    codes = (rows / divisors[..., None]).round_().to(torch.int8)
    return QuantizedRows(codes, scales)


def dequantize_int8(quantized: QuantizedRows) -> Tensor:
    """The rows again: (..., head_dim), float32, each value at most half a scale off."""
    return quantized.codes.float() * quantized.scales.float()[..., None]
