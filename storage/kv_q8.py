"""The q8 format: int8 codes and one fp16 scale for each token and head, keys and values alike.

A 20-token segment costs the same bits as a 2,000-token one (8.25 at 64 channels, 8.13 at 128). Each
value is at most half a scale off, and a scale is the token's largest channel over 127.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from agentmem.kernels.codebook import Codebook
from agentmem.kernels.packed import PackedLayer
from agentmem.storage.kv_format import Format, LayerCodec, LayerShape
from agentmem.storage.kv_packed import PackedCodec, uniform_packing

_WIDTH = 8
_CODEBOOK = Codebook(levels={}, units={_WIDTH: 1.0})


class Q8Format(Format):
    """Pages as int8 codes.

    Args:
        centers: for each layer what to take off its keys before they are coded, by offset in the
            stretch, (64, num_kv_heads, head_dim), or None; by default none has one.
    """

    name = "q8"

    def __init__(self, centers: Sequence[Tensor | None] = ()) -> None:
        self.centers = tuple(centers)

    def layer(self, index: int, shape: LayerShape) -> LayerCodec:
        """Codes of eight bits for every channel.

        Raises:
            Unsupported: the layer's head_dim is not a multiple of 4.
        """
        packing = uniform_packing(self.name, index, shape, _WIDTH, _WIDTH)
        center = self.centers[index] if self.centers else None
        layer = PackedLayer(packing, _CODEBOOK, _CODEBOOK, center=center)
        return PackedCodec(self.name, shape, layer)
