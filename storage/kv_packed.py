"""What formats of packed codes share: encoding, and attention on the codes themselves."""

from __future__ import annotations

from torch import Tensor

from agentmem.errors import InvalidInput
from agentmem.kernels import packed
from agentmem.kernels.packed import PackedLayer
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

    def encode(self, keys: Tensor, values: Tensor, phases: Tensor) -> Tensor:
        """Quantize and pack.

        Raises:
            InvalidInput: a value is NaN, infinite or too large.
        """
        try:
            return packed.encode(keys, values, phases, self.layer)
        except ValueError as error:
            raise InvalidInput(f"{self.name} cannot hold these keys and values. {error}") from error

    def decode(self, pages: Tensor, phases: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values, float32."""
        return packed.decode(pages, phases, self.layer)

    def attend(
        self, queries: Tensor, rotations: Tensor, table: PageTable, pages: Tensor,
        limits: Tensor, softcap: float | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Attention on the codes; as `kernels.packed.attend`."""
        return packed.attend(queries, rotations, table, pages, self.layer, limits, softcap)

    def column_mass(
        self, queries: Tensor, rotations: Tensor, table: PageTable, pages: Tensor,
        limits: Tensor, softcap: float | None, log_sum_exp: Tensor,
    ) -> Tensor:  # fmt: skip
        """Probability each slot received; as `kernels.packed.column_mass`."""
        return packed.column_mass(
            queries, rotations, table, pages, self.layer, limits, softcap, log_sum_exp
        )
