"""Windows of random keys in every format, as agentmem's cache would hold them."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields
from functools import cached_property

import torch
from torch import Tensor

from agentmem.bench.device_window import FORMATS, DeviceWindow, make_window
from agentmem.bench.kernels_row import Shape
from agentmem.bench.needles import CHAT_TOKENS
from agentmem.storage.kv_dense import DenseFormat
from agentmem.storage.kv_format import LayerCodec, LayerShape
from agentmem.storage.kv_fp8 import FP8Format
from agentmem.storage.kv_packed import PackedCodec

_OTHERS = {"dense": DenseFormat, "fp8": FP8Format}
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class FormatWindow(DeviceWindow):
    """A window whose pages are of any format.

    Args:
        codec: of the format; `layer` has the heads and channels, and is the codec's own where the
            format packs codes.
    """

    codec: LayerCodec

    @cached_property
    def decoded(self) -> tuple[Tensor, Tensor]:
        """Keys and values of the table's pages, (P, H, 16, D), float32."""
        return self.decode()

    def decode(self) -> tuple[Tensor, Tensor]:
        """The same, anew."""
        return self.codec.decode(
            self.pages.index_select(0, self.table.rows), self.table.phases
        )  # fmt: skip

    def attend(self, queries: Tensor, limits: Tensor) -> tuple[Tensor, Tensor]:
        """Attention as the cache asks for it, through the kernels this machine runs."""
        return self.codec.attend(queries, self.rotations, self.table, self.pages, limits, None)

    def column_mass(self, queries: Tensor, limits: Tensor, log_sum_exp: Tensor) -> Tensor:
        """Evidence as the cache asks for it."""
        return self.codec.column_mass(
            queries, self.rotations, self.table, self.pages, limits, None, log_sum_exp
        )

    def sees_all(self, num_rows: int) -> Tensor:
        """(num_rows, 2), int32: limits of a token decoded after the window."""
        end = int(self.table.starts.max()) + 16
        return torch.tensor([[0, end]], dtype=torch.int32).repeat(num_rows, 1)

    @property
    def nbytes(self) -> int:
        """Bytes of the table's pages."""
        return self.table.num_pages * self.pages.shape[1]


def format_window(name: str, shape: Shape, lengths: list[int]) -> FormatWindow:
    """Segments of these many random tokens in a format; most pages are copies of a few."""
    packs_codes = name in FORMATS
    window = make_window(
        name if packs_codes else "q8", shape.kv_heads, shape.head_dim, lengths, _CPU,
        with_states=False,
    )  # fmt: skip
    given = {field.name: getattr(window, field.name) for field in fields(window)}
    layer_shape = LayerShape(shape.kv_heads, shape.head_dim)
    if packs_codes:
        return FormatWindow(**given, codec=PackedCodec(name, layer_shape, window.layer))
    codec = _OTHERS[name]().layer(0, layer_shape)
    encoded = codec.encode(*window.states)
    # Rows that belong to nobody must never be read: as floats their bytes are NaN.
    pages = torch.full((window.pages.shape[0], codec.page_nbytes), 255, dtype=torch.uint8)
    copies = torch.arange(window.table.num_pages) % encoded.shape[0]
    pages[window.table.rows.long()] = encoded[copies]
    return FormatWindow(**given | {"pages": pages, "encoded": encoded}, codec=codec)


def segment_lengths(layout: str, num_tokens: int) -> list[int]:
    """One document, or segments as long as the turns of a chat."""
    if layout == "document":
        return [num_tokens]
    generator, lengths, left = random.Random(num_tokens), [], num_tokens
    while left:
        lengths.append(min(left, generator.randint(*CHAT_TOKENS)))
        left -= lengths[-1]
    return lengths
