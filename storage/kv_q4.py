"""The q4 format: four bits a channel and one fp16 scale for each token and head. No calibration.

Keys less the model's mean key, and values, are rotated by a Hadamard matrix, after which a token's
channels are near Gaussian; sixteen levels fitted to a Gaussian over its largest of 64 to 256
channels (Lloyd-Max) then lose 0.8 % of their energy. 4.25 bits at 64 channels, 4.13 at 128,
whatever the segment's length.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from agentmem.kernels.codebook import Codebook
from agentmem.storage.kv_format import Format, LayerCodec, LayerShape
from agentmem.storage.kv_packed import PackedCodec, rotated_layer

_WIDTH = 4
_POSITIVE_LEVELS = (6, 19, 31, 45, 60, 77, 98, 127)
_LEVELS = (*(-level for level in reversed(_POSITIVE_LEVELS)), *_POSITIVE_LEVELS)
_CODEBOOK = Codebook(levels={_WIDTH: _LEVELS}, units={_WIDTH: 1.0})


class Q4Format(Format):
    """Pages as 4-bit codes of rotated, centered keys and rotated values.

    Args:
        centers: for each layer what to take off its keys, by offset in the stretch,
            (64, num_kv_heads, head_dim), or None; by default none has one.
    """

    name = "q4"

    def __init__(self, centers: Sequence[Tensor | None] = ()) -> None:
        self.centers = tuple(centers)

    def layer(self, index: int, shape: LayerShape) -> LayerCodec:
        """Codes of four bits for every channel.

        Raises:
            Unsupported: the layer's head_dim is not a multiple of 4.
        """
        center = self.centers[index] if self.centers else None
        layer = rotated_layer(self.name, index, shape, _WIDTH, _CODEBOOK, center)
        return PackedCodec(self.name, shape, layer)
