"""A packed layer's constants as the C kernels read them: without the channels that have no bits.

Units are folded into the matrices, keys' and values' levels laid out as byte tables, and the
query's transform recognized where it is a Walsh-Hadamard matrix up to factors, which needs no
matrix. Mirrors kernels/cpu/layout.h.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from agentmem.kernels.code_stream import GROUP_CHANNELS, MAX_WIDTH, NARROW_WIDTHS, WORD_BITS
from agentmem.kernels.codebook import Codebook
from agentmem.kernels.cpu_tensors import made_once
from agentmem.kernels.packed import PackedLayer

MAX_HEAD_DIM = 256
"""Channels of the widest head the kernels take."""
_LANES = 16
_SHORT_MAX = 32767
_TYPICAL_LEVEL = 40.0
"""Root mean square of levels: a Gaussian's, where the largest of a hundred is 127."""
_PROJECT_CHANNELS, _PROJECT_MATRIX, _PROJECT_HADAMARD = range(3)
_KEYS_ARE_BYTES, _VALUES_ARE_BYTES = 1, 2


class _ShortMatrix(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("pairs", "scales", "norms")]


class _Layer(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in (
            "num_heads", "head_dim", "key_channels", "value_channels", "projection_kind",
            "token_scales",
        )),
        ("is_trellis", ctypes.c_int32 * 2),
        *((name, ctypes.c_void_p) for name in (
            "heads", "runs", "key_tables", "value_tables", "projection",
        )),
        ("short_projection", _ShortMatrix),
        ("key_group_places", ctypes.c_void_p),
        ("center", ctypes.c_void_p),
        ("short_center", _ShortMatrix),
        *((name, ctypes.c_void_p) for name in (
            "restoration", "value_units", "value_group_places", "value_mean",
        )),
    ]  # fmt: skip


class PreparedLayer:
    """A layer ready for the C kernels; owns what its structure points to.

    Raises:
        ValueError: heads wider than 256 channels, or constants that are not on the CPU.
    """

    def __init__(self, layer: PackedLayer) -> None:
        packing = layer.packing
        if packing.head_dim > MAX_HEAD_DIM:
            raise ValueError(
                f"The C kernels take heads of up to {MAX_HEAD_DIM} channels: "
                f"got {packing.head_dim}."
            )
        for name in ("query_transform", "center", "value_inverse", "value_mean"):
            constant = getattr(layer, name)
            if constant is not None and not constant.is_cpu:
                raise ValueError(f"`{name}` must be on the CPU: it is on {constant.device}.")
        self.num_heads, self.head_dim = packing.num_heads, packing.head_dim
        self.page_nbytes = packing.page_nbytes
        keys = _Side(packing.key_widths, layer.key_codebook)
        values = _Side(packing.value_widths, layer.value_codebook)
        heads, runs = _layout(layer, keys, values)
        kind, projection = _projection(layer, keys)
        center = None if layer.center is None else _plain(layer.center.permute(1, 2, 0))
        matrix = projection if kind == _PROJECT_MATRIX else None
        self._tensors: dict[str, Tensor | tuple[Tensor, ...] | None] = {
            "heads": heads,
            "runs": runs,
            "key_tables": _tables(layer.key_codebook, signed=False),
            "value_tables": _tables(layer.value_codebook, signed=True),
            "projection": projection,
            "short_projection": _short(matrix, _TYPICAL_LEVEL),
            "key_group_places": keys.places,
            "center": center,
            "short_center": _short(center, None),
            "restoration": _restoration(layer.value_inverse, values),
            "value_units": values.select(values.units[:, None, :])[:, 0].contiguous(),
            "value_group_places": values.places,
            "value_mean": None if layer.value_mean is None else _plain(layer.value_mean),
        }
        self.structure = _Layer(
            self.num_heads, self.head_dim, keys.num_channels, values.num_channels, kind,
            int(packing.token_scales),
            (ctypes.c_int32 * 2)(layer.key_codebook.is_trellis, layer.value_codebook.is_trellis),
            *map(_pointers, self._tensors.values()),
        )  # fmt: skip
        self.reference = ctypes.byref(self.structure)


prepared = made_once(PreparedLayer)
"""A layer's constants, laid out once as long as it lives."""


class _Side:
    """Which channels of keys, or of values, have bits.

    Attributes:
        groups: for each head, its groups with bits, ascending.
        places: (H, D / 4), int32: the same, filled up with zeros.
        units: (H, D), float32: the unit of each channel; 0 without bits.
        num_channels: those of the widest head, rounded up to 16, at least 16.
    """

    def __init__(self, widths: Tensor, codebook: Codebook) -> None:
        table = widths.tolist()
        self.groups = [[place for place, width in enumerate(row) if width] for row in table]
        most = max(len(row) for row in self.groups) * GROUP_CHANNELS
        self.num_channels = max(_LANES, -(-most // _LANES) * _LANES)
        self.places = torch.zeros(widths.shape, dtype=torch.int32)
        for head, row in enumerate(self.groups):
            self.places[head, : len(row)] = torch.tensor(row, dtype=torch.int32)
        used = {width for row in table for width in row if width}
        by_width = torch.zeros(MAX_WIDTH + 1)
        for width in used:
            codebook.window_levels(width)  # Raises if the codebook lacks it.
            by_width[width] = codebook.units[width]
        self.units = by_width[widths.long()].repeat_interleave(GROUP_CHANNELS, 1)

    def select(self, columns: Tensor) -> Tensor:
        """(H, N, D) without the channels that have no bits: (H, N, num_channels), 0 at the end."""
        selected = torch.zeros(*columns.shape[:2], self.num_channels)
        for head, groups in enumerate(self.groups):
            channels = (torch.tensor(groups)[:, None] * GROUP_CHANNELS + torch.arange(4)).flatten()
            selected[head, :, : channels.numel()] = columns[head][:, channels.long()]
        return selected


def _layout(layer: PackedLayer, keys: _Side, values: _Side) -> tuple[Tensor, Tensor]:
    """The structures `Head` and `Run` as rows of int32."""
    packing = layer.packing
    heads: list[list[int]] = []
    runs: list[list[int]] = []
    by_side = torch.unflatten(packing.stream.first_bits, 0, (2, packing.num_heads, -1))
    widths_by_side = (packing.key_widths.tolist(), packing.value_widths.tolist())
    for head in range(packing.num_heads):
        first_run, words, flags = len(runs), [], 0
        ends = []
        for side, flag in enumerate((_KEYS_ARE_BYTES, _VALUES_ARE_BYTES)):
            first_bits = by_side[side, head, ::GROUP_CHANNELS].tolist()
            widths = widths_by_side[side][head]
            of_side = _runs_of(widths, first_bits)
            if [run[0] for run in of_side] == [MAX_WIDTH] and first_bits[0] % WORD_BITS == 0:
                flags |= flag
            end = first_bits[-1] + widths[-1] * GROUP_CHANNELS
            first_word = first_bits[0] // WORD_BITS
            words += [first_word, -(-end // WORD_BITS) - first_word]
            runs += of_side
            ends.append(len(runs))
        heads.append(
            [len(keys.groups[head]), len(values.groups[head]), first_run, *ends,
             *packing.scale_begins[:, head].tolist(), *words, flags]
        )  # fmt: skip
    none = [[0, 0, 0, 0]]
    return torch.tensor(heads, dtype=torch.int32), torch.tensor(runs or none, dtype=torch.int32)


def _runs_of(widths: list[int], first_bits: list[int]) -> list[list[int]]:
    """Width, first group among those with bits, number of groups, first bit of each run."""
    runs: list[list[int]] = []
    num_groups = 0
    for width, first_bit in zip(widths, first_bits, strict=True):
        if width and runs and runs[-1][0] == width:
            runs[-1][2] += 1
        elif width:
            runs.append([width, num_groups, 1, first_bit])
        num_groups += width > 0
    return runs


def _projection(layer: PackedLayer, keys: _Side) -> tuple[int, Tensor]:
    if layer.query_transform is None:
        return _PROJECT_CHANNELS, keys.units.contiguous()
    matrices = _plain(layer.query_transform)
    factors = _hadamard_factors(matrices)
    if factors is not None:
        before, after = factors
        return _PROJECT_HADAMARD, torch.stack((before, after * keys.units), 1).contiguous()
    return _PROJECT_MATRIX, keys.select(matrices * keys.units[:, None, :])


def _hadamard_factors(matrices: Tensor) -> tuple[Tensor, Tensor] | None:
    """Factors (H, D) before and after Walsh-Hadamard transforms that equal the matrices.

    The transforms are of equal blocks of channels, the largest power of two that divides D.
    """
    size = matrices.shape[-1]
    block = size & -size
    if block < _LANES:
        return None
    # (H, D / block, block, block)
    diagonal = torch.stack(
        [matrices[:, begin : begin + block, begin : begin + block]
         for begin in range(0, size, block)], 1
    )  # fmt: skip
    if not bool((diagonal[..., 0, 0] != 0).all()):
        return None
    before, after = diagonal[..., 0], diagonal[..., 0, :] / diagonal[..., 0, :1]
    walsh = torch.ones(1, 1)
    while walsh.shape[0] < block:
        walsh = torch.cat((torch.cat((walsh, walsh), 1), torch.cat((walsh, -walsh), 1)))
    expected = before[..., None] * walsh * after[..., None, :]
    whole = torch.zeros_like(matrices)
    for index, begin in enumerate(range(0, size, block)):
        whole[:, begin : begin + block, begin : begin + block] = expected[:, index]
    if not torch.allclose(whole, matrices, rtol=1e-6, atol=0.0):
        return None
    return before.flatten(1), after.flatten(1)


def _restoration(value_inverse: Tensor | None, values: _Side) -> Tensor | None:
    """(H, num_channels, D rounded up to 16): from sums of levels to the model's channels."""
    if value_inverse is None:
        return None
    scaled = _plain(value_inverse) * values.units[:, :, None]
    rows = values.select(scaled.transpose(1, 2)).transpose(1, 2)
    size = rows.shape[-1]
    return torch.nn.functional.pad(rows, (0, -size % _LANES)).contiguous()


def _short(matrices: Tensor | None, typical: float | None) -> tuple[Tensor, ...]:
    """Columns of (H, D, N) matrices as 16-bit integers of norm 32767: see kernels/cpu/matrices.h.

    Args:
        typical: size of the channel that each column's result is multiplied by before all are
            added up; None: each result counts alone.

    Returns:
        (H, D / 2, N, 2) codes, (H, N) scales, and (H,) norms: a row's norm times that is the size
        of the results. Empty for no matrices.
    """
    if matrices is None:
        return ()
    norms = matrices.norm(dim=1)
    scales = norms / _SHORT_MAX
    codes = (matrices / torch.where(scales == 0, 1.0, scales)[:, None]).round().to(torch.int16)
    num_heads, size, columns = matrices.shape
    pairs = codes.view(num_heads, size // 2, 2, columns).transpose(2, 3).contiguous()
    bound = norms.amax(1) if typical is None else norms.norm(dim=1) * typical
    return pairs, scales.contiguous(), bound.contiguous()


def _pointers(tensors: Tensor | tuple[Tensor, ...] | None) -> int | _ShortMatrix | None:
    if isinstance(tensors, tuple):
        return _ShortMatrix(*(tensor.data_ptr() for tensor in tensors))
    return None if tensors is None else tensors.data_ptr()


def _plain(tensor: Tensor) -> Tensor:
    return tensor.to(torch.float32).contiguous()


def _tables(codebook: Codebook, *, signed: bool) -> Tensor:
    """(5, 256), uint8: see kernels/cpu/codes.h."""
    tables = torch.zeros((NARROW_WIDTHS.stop, 1 << MAX_WIDTH), dtype=torch.int64)
    for width in codebook.levels.keys() & codebook.units.keys():
        levels = torch.tensor(codebook.levels[width])
        tables[width] = levels.repeat(tables.shape[1] // levels.numel())
    return ((tables if signed else tables + 128) & 0xFF).to(torch.uint8)
