"""What formats of packed codes share: encoding, and attention on the codes themselves."""

from __future__ import annotations

from torch import Tensor

from agentmem.errors import InvalidInput, Unsupported
from agentmem.kernels.backend import PackedKernels, kernels_for
from agentmem.kernels.code_stream import GROUP_CHANNELS
from agentmem.kernels.codebook import Codebook
from agentmem.kernels.hadamard import hadamard
from agentmem.kernels.packed import PackedLayer
from agentmem.kernels.packing import Packing
from agentmem.kernels.page_table import PageTable
from agentmem.storage.kv_format import LayerCodec, LayerShape


class PackedCodec(LayerCodec):
    """One layer of a packed format.

    Args:
        name: of the format, for messages.
        shape: of the layer.
        layer: its packing, codebooks and frame.
    """

    def __init__(self, name: str, shape: LayerShape, layer: PackedLayer) -> None:
        super().__init__(shape)
        self.name = name
        self.layer = layer
        self.page_nbytes = layer.packing.page_nbytes
        self.slots_below = layer.packing.slots_below

    def encode(self, keys: Tensor, values: Tensor, phases: Tensor) -> Tensor:
        """Quantize and pack.

        Raises:
            InvalidInput: a value is NaN, infinite or too large.
        """
        try:
            return self._kernels(keys).encode(keys, values, phases, self.layer)
        except ValueError as error:
            raise InvalidInput(f"{self.name} cannot hold these keys and values. {error}") from error

    def decode(self, pages: Tensor, phases: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values, float32."""
        return self._kernels(pages).decode(pages, phases, self.layer)

    def attend(
        self, queries: Tensor, rotations: Tensor, table: PageTable, pages: Tensor,
        limits: Tensor, softcap: float | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Attention on the codes; as `kernels.packed.attend`."""
        return self._kernels(pages).attend(
            queries, rotations, table, pages, self.layer, limits, softcap
        )

    def column_mass(
        self, queries: Tensor, rotations: Tensor, table: PageTable, pages: Tensor,
        limits: Tensor, softcap: float | None, log_sum_exp: Tensor,
    ) -> Tensor:  # fmt: skip
        """Probability each slot received; as `kernels.packed.column_mass`."""
        return self._kernels(pages).column_mass(
            queries, rotations, table, pages, self.layer, limits, softcap, log_sum_exp
        )

    def _kernels(self, tensor: Tensor) -> PackedKernels:
        """The fastest where the tensor is."""
        return kernels_for(tensor.device, self.shape.head_dim)


def uniform_packing(
    name: str, index: int, shape: LayerShape, key_width: int, value_width: int
) -> Packing:  # fmt: skip
    """Every channel of a layer's keys at one width, and of its values at one.

    Raises:
        Unsupported: the layer's head_dim is not a multiple of 4.
    """
    if shape.head_dim % GROUP_CHANNELS:
        raise Unsupported(
            f"{name} needs a head_dim that is a multiple of {GROUP_CHANNELS}: "
            f"layer {index} has {shape.head_dim}."
        )
    return Packing.uniform(shape.num_kv_heads, shape.head_dim, key_width, value_width)


def rotated_layer(
    name: str, index: int, shape: LayerShape, key_width: int, value_width: int,
    codebook: Codebook, center: Tensor | None,
) -> PackedLayer:  # fmt: skip
    """A layer whose keys, less their center, and values are rotated by a Hadamard matrix.

    Raises:
        Unsupported: the layer's head_dim is not a multiple of 4.
    """
    packing = uniform_packing(name, index, shape, key_width, value_width)
    rotation = hadamard(shape.head_dim)
    if center is not None:
        rotation = rotation.to(center.device)
    rotations = rotation.expand(shape.num_kv_heads, -1, -1).contiguous()
    return PackedLayer(
        packing, codebook, codebook,
        key_transform=rotations, query_transform=rotations, center=center,
        value_transform=rotations, value_inverse=rotations,
    )  # fmt: skip
