"""Packed pages in Triton: the four operations of packed.py. Importing this imports Triton."""

from __future__ import annotations

from agentmem.kernels.triton_attention import attend
from agentmem.kernels.triton_decode import decode
from agentmem.kernels.triton_encode import encode
from agentmem.kernels.triton_layer import LARGEST_HEAD_DIM
from agentmem.kernels.triton_mass import column_mass
from agentmem.kernels.triton_proof import why_unavailable

__all__ = ["LARGEST_HEAD_DIM", "attend", "column_mass", "decode", "encode", "why_unavailable"]
