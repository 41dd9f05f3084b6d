"""The klt format: a calibrated transform a head, then a few bits a channel, fewest where it matters
least, and a trellis through all channels of a token.

No scale is kept with a token: a 20-token segment costs the bits of a 2,000-token one. The error is
the calibration's: see README.md for what it does to recall.
"""

from __future__ import annotations

import hashlib

from torch import Tensor

from agentmem.errors import Unsupported
from agentmem.kernels.code_stream import GROUP_CHANNELS
from agentmem.kernels.gaussian_codebook import CODEBOOK
from agentmem.kernels.packed import PackedLayer
from agentmem.kernels.packing import Packing
from agentmem.kernels.transform_coding import rotated_mean
from agentmem.storage.kv_calibration import KVCalibration
from agentmem.storage.kv_format import Format, LayerCodec, LayerShape
from agentmem.storage.kv_packed import PackedCodec

DEFAULT_BITS = 2.0


class KltFormat(Format):
    """Pages as codes of a calibrated transform.

    Args:
        calibration: of the model.
        average_bits: a channel, over all keys and values of the model; 1 to 4.

    Raises:
        InvalidInput: `average_bits` is out of range.
    """

    def __init__(self, calibration: KVCalibration, average_bits: float = DEFAULT_BITS) -> None:
        self.calibration = calibration
        self.average_bits = average_bits
        self._widths = calibration.widths(average_bits)
        digest = hashlib.sha256(calibration.checksum.encode())
        for layer in self._widths:
            for widths in layer:
                digest.update(widths.numpy().tobytes())
        self.name = f"klt{average_bits:g}:{digest.hexdigest()[:12]}"

    def layer(self, index: int, shape: LayerShape) -> LayerCodec:
        """Codes of as many bits as the calibration gives each group of channels.

        Raises:
            Unsupported: the layer's head_dim is not a multiple of 4, or the calibration is of
                other layers.
        """
        if shape.head_dim % GROUP_CHANNELS:
            raise Unsupported(
                f"klt needs a head_dim that is a multiple of {GROUP_CHANNELS}: "
                f"layer {index} has {shape.head_dim}."
            )
        found = [tuple(layer.keys.mean.shape) for layer in self.calibration.layers]
        if index >= len(found) or found[index] != (shape.num_kv_heads, shape.head_dim):
            raise Unsupported(
                f"The calibration has layers of {found} heads and channels: layer {index} has "
                f"{(shape.num_kv_heads, shape.head_dim)}."
            )
        return PackedCodec(self.name, shape, self._packed_layer(index))

    def _packed_layer(self, index: int) -> PackedLayer:
        layer = self.calibration.layers[index]
        key_widths, value_widths = self._widths[index]
        keys, values = layer.keys.fitted_to(key_widths), layer.values.fitted_to(value_widths)

        def columns(inverse: Tensor) -> Tensor:
            return inverse.transpose(1, 2).contiguous()

        return PackedLayer(
            Packing(key_widths, value_widths, token_scales=False),
            CODEBOOK,
            CODEBOOK,
            key_transform=keys.forward,
            query_transform=columns(keys.inverse),
            center=rotated_mean(keys.mean, layer.frequencies),
            value_transform=values.forward,
            value_inverse=values.inverse,
            value_mean=values.mean,
        )
