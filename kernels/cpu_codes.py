"""A packed layer's codes as the C kernels write and read them: where they lie, what they stand for.

Mirrors `Coding` of kernels/cpu/coding.h. Knows nothing of pages.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from agentmem.kernels.code_stream import GROUP_CHANNELS, MAX_WIDTH
from agentmem.kernels.codebook import UNIFORM_WIDTHS, Codebook
from agentmem.kernels.cpu_layer import MAX_HEAD_DIM
from agentmem.kernels.cpu_tensors import made_once
from agentmem.kernels.packed import PackedLayer
from agentmem.kernels.trellis import REACH

_NUM_CODES = 1 << MAX_WIDTH
_FRAME = (
    "key_transform", "query_transform", "center", "value_transform", "value_inverse", "value_mean",
)  # fmt: skip


class _Coding(ctypes.Structure):
    _fields_ = [
        *(
            (name, ctypes.c_int32)
            for name in ("num_heads", "head_dim", "token_scales", "num_words")
        ),
        ("is_trellis", ctypes.c_int32 * 2),
        ("tops", ctypes.c_float * 2),
        *(
            (name, ctypes.c_void_p)
            for name in ("runs", "parts", "borders", "places", "values", "reaches")
        ),
        ("offsets", ctypes.c_void_p * 2),
    ]


class PreparedCoding:
    """A layer's codes ready for the C kernels; owns what its structure points to.

    Attributes:
        tops: of keys and of values, what a token's size over its scale is.
        means: of keys and of values, whether a token's size is the mean of its channels.
        is_framed: whether the layer has a center, a mean or a transform.

    Raises:
        ValueError: heads wider than 256 channels, constants that are not on the CPU, or a unit no
            float32 border can be found by.
    """

    def __init__(self, layer: PackedLayer) -> None:
        packing = layer.packing
        if packing.head_dim > MAX_HEAD_DIM:
            raise ValueError(
                f"The C kernels take heads of up to {MAX_HEAD_DIM} channels: "
                f"got {packing.head_dim}."
            )
        for name in _FRAME:
            constant = getattr(layer, name)
            if constant is not None and not constant.is_cpu:
                raise ValueError(f"`{name}` must be on the CPU: it is on {constant.device}.")
        self.num_heads, self.head_dim = packing.num_heads, packing.head_dim
        self.page_nbytes = packing.page_nbytes
        self.token_scales = packing.token_scales
        self.is_framed = any(getattr(layer, name) is not None for name in _FRAME)
        sides = (
            (packing.key_widths, layer.key_codebook),
            (packing.value_widths, layer.value_codebook),
        )
        widest = [int(widths.max()) for widths, _ in sides]
        self.tops = tuple(
            book.top(width) if width else float("inf")
            for width, (_, book) in zip(widest, sides, strict=True)
        )
        self.means = tuple(self.token_scales and width == 1 for width in widest)
        runs, parts = _layout(layer)
        borders, places = zip(*(_borders(widths, book) for widths, book in sides), strict=True)
        values = torch.stack([_values(widths, book) for widths, book in sides])
        self._tensors = (
            torch.tensor(runs, dtype=torch.int32), torch.tensor(parts, dtype=torch.int32),
            torch.stack(borders), torch.stack(places), values,
            torch.tensor([_reaches(widths, book) for widths, book in sides]),
        )  # fmt: skip
        center = layer.center_by_phase
        self._offsets = (
            None if center is None else center.float().contiguous(),
            None if layer.value_mean is None else layer.value_mean.float().contiguous(),
        )
        self.structure = _Coding(
            self.num_heads, self.head_dim, int(self.token_scales), packing.stream.num_words,
            (ctypes.c_int32 * 2)(*(book.is_trellis for _, book in sides)),
            (ctypes.c_float * 2)(*self.tops), *(tensor.data_ptr() for tensor in self._tensors),
            (ctypes.c_void_p * 2)(
                *(None if one is None else one.data_ptr() for one in self._offsets)
            ),
        )  # fmt: skip
        self.reference = ctypes.byref(self.structure)


prepared_coding = made_once(PreparedCoding)
"""A layer's codes, laid out once as long as it lives."""


def _layout(layer: PackedLayer) -> tuple[list[list[int]], list[list[int]]]:
    """The structures `CodeRun` and, of all keys and then of all values, `Part`."""
    packing = layer.packing
    runs: list[list[int]] = []
    parts: list[list[int]] = []
    by_side = torch.unflatten(packing.stream.first_bits, 0, (2, packing.num_heads, -1))
    for side, widths in enumerate((packing.key_widths, packing.value_widths)):
        for head, row in enumerate(widths.tolist()):
            first_run = len(runs)
            first_bits = by_side[side, head, ::GROUP_CHANNELS].tolist()
            for group, (width, first_bit) in enumerate(zip(row, first_bits, strict=True)):
                if group and runs[-1][0] == width:
                    runs[-1][2] += 1
                else:
                    first_channel = head * packing.head_dim + group * GROUP_CHANNELS
                    runs.append([width, first_channel, 1, first_bit])
            parts.append([first_run, len(runs), int(packing.scale_begins[side, head])])
    return runs, parts


def _borders(widths: Tensor, codebook: Codebook) -> tuple[Tensor, Tensor]:
    """(9, 256): borders by width, then infinity; (9, 2): where among them a value lies."""
    borders = torch.full((MAX_WIDTH + 1, _NUM_CODES), float("inf"))
    places = torch.zeros((MAX_WIDTH + 1, 2))
    for width in sorted(set(widths.flatten().tolist()) - {0}):
        codebook.window_levels(width)  # Raises if the codebook lacks it.
        if width not in codebook.borders:
            continue
        found = codebook.borders[width]
        borders[width, : len(found)] = found
        if width not in UNIFORM_WIDTHS:
            continue
        per_unit = (len(found) - 1) / (found[-1].double() - found[0].double())
        places[width] = torch.stack((per_unit, -found[0].double() * per_unit)).float()
        at = found * places[width, 0] + places[width, 1]
        if not bool(((at - torch.arange(len(found))).abs() < 0.25).all()):
            raise ValueError(
                f"The unit of width {width} must be a number that {len(found)} borders in float32 "
                f"can be told apart with: got {codebook.units[width]}."
            )
    return borders, places


def _values(widths: Tensor, codebook: Codebook) -> Tensor:
    """(9, 256): what windows stand for by width, to the bit what packed.py makes of them."""
    different = set(widths.flatten().tolist())
    width = different.pop()
    if different or width not in UNIFORM_WIDTHS:
        return codebook.table
    first, second = codebook.values(width)[:2]
    table = torch.zeros_like(codebook.table)
    codes = torch.arange(1 << width).float()
    table[width, : len(codes)] = codes.mul_(second - first).add_(first)
    return table


def _reaches(widths: Tensor, codebook: Codebook) -> list[float]:
    """(9,): how far out a trellis looks for a channel of each width."""
    used = set(widths.flatten().tolist()) - {0}
    return [REACH * codebook.top(width) if width in used else 0.0 for width in range(MAX_WIDTH + 1)]
