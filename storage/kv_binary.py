"""The binary format: the signs of rotated, centered channels, one fp16 scale a token and head.

It keeps directions, not values: a Gaussian channel loses 36 % of its energy (1 - 2 / pi), so that a
model reads it poorly. It is for finding the pages worth reading, and for storage where nothing
better fits. 1.25 bits at 64 channels, 1.13 at 128.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from agentmem.kernels.codebook import Codebook
from agentmem.storage.kv_format import Format, LayerCodec, LayerShape
from agentmem.storage.kv_packed import PackedCodec, rotated_layer

_WIDTH = 1
_CODEBOOK = Codebook(levels={_WIDTH: (-127, 127)}, units={_WIDTH: 1 / 127})


class BinaryFormat(Format):
    """Pages as signs.

    Args:
        centers: as `Q4Format` takes them.
    """

    name = "binary"

    def __init__(self, centers: Sequence[Tensor | None] = ()) -> None:
        self.centers = tuple(centers)

    def layer(self, index: int, shape: LayerShape) -> LayerCodec:
        """One bit for every channel.

        Raises:
            Unsupported: the layer's head_dim is not a multiple of 4.
        """
        center = self.centers[index] if self.centers else None
        layer = rotated_layer(self.name, index, shape, _WIDTH, _WIDTH, _CODEBOOK, center)
        return PackedCodec(self.name, shape, layer)
