"""Packed pages in C: what packed.py computes, on x86-64 with AVX-512.

Same arguments and results as the eager twin. Attention is equal to the rounding of queries to two
bytes and of probabilities to one, or two for values of eight bits; `encode` and `decode` are in
cpu_coding.py. Everything is checked before a pointer is handed over: what does not fit is a
ValueError, never a fault. See cpu/attend.c for how.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from agentmem.kernels.cpu_coding import decode, encode
from agentmem.kernels.cpu_layer import MAX_HEAD_DIM, PreparedLayer, prepared
from agentmem.kernels.cpu_library import KernelsUnavailable, ready_functions, why_unavailable
from agentmem.kernels.cpu_tensors import checked, checked_pages, made_once
from agentmem.kernels.packed import PackedLayer
from agentmem.kernels.page_table import PageTable

__all__ = [
    "MAX_HEAD_DIM", "KernelsUnavailable", "attend", "column_mass", "columns_of", "decode", "encode",
    "why_unavailable",
]  # fmt: skip

_INT32_MAX = 2**31 - 1


class _Window(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in (
            "queries", "rotations", "rows", "stretches", "phases", "starts", "begins", "ends",
            "pages", "limits",
        )),
        ("page_stride", ctypes.c_int64),
        ("capacity", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in (
            "num_rows", "num_pages", "num_stretches", "num_threads",
        )),
        ("softcap", ctypes.c_float),
    ]  # fmt: skip


_FAULTS = {
    1: ("rows", "a row of the arena, 0 to {capacity} exclusive"),
    2: ("stretches", "the index of a rotation, 0 to {stretches} exclusive"),
    3: ("phases", "0 to 3"),
    4: ("begins", "0 to 15"),
    5: ("ends", "above `begins`, and at most 16"),
}


def attend(
    queries: Tensor,
    rotations: Tensor,
    table: PageTable,
    pages: Tensor,
    layer: PackedLayer,
    limits: Tensor,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention of query rows over the pages of a table; see `packed.attend`.

    Raises:
        KernelsUnavailable: `why_unavailable` says why.
        ValueError: a tensor of another shape, type or place, or a table that points outside.
    """
    functions = ready_functions()
    constants = prepared(layer)
    window = _Question(queries, rotations, table, pages, constants, limits, softcap)
    heads, rows, _ = queries.shape
    out = torch.empty_like(window.queries)
    log_sum_exp = torch.empty((heads, rows))
    window.ask(functions.agentmem_attend, constants, out.data_ptr(), log_sum_exp.data_ptr())
    return out, log_sum_exp


def column_mass(
    queries: Tensor,
    rotations: Tensor,
    table: PageTable,
    pages: Tensor,
    layer: PackedLayer,
    limits: Tensor,
    softcap: float | None,
    log_sum_exp: Tensor,
) -> Tensor:
    """Probability each token slot received; see `packed.column_mass`.

    Raises:
        KernelsUnavailable: `why_unavailable` says why.
        ValueError: a tensor of another shape, type or place, or a table that points outside.
    """
    functions = ready_functions()
    constants = prepared(layer)
    window = _Question(queries, rotations, table, pages, constants, limits, softcap)
    over = checked("log_sum_exp", log_sum_exp, torch.float32, queries.shape[:2])
    mass = torch.zeros(table.num_slots)
    window.ask(functions.agentmem_column_mass, constants, over.data_ptr(), mass.data_ptr())
    return mass


class _Question:
    """The arguments of a call, checked; keeps what C points to."""

    def __init__(
        self, queries: Tensor, rotations: Tensor, table: PageTable, pages: Tensor,
        layer: PreparedLayer, limits: Tensor, softcap: float | None,
    ) -> None:  # fmt: skip
        rows = queries.shape[1] if queries.ndim == 3 else 0
        num_stretches = rotations.shape[0] if rotations.ndim else 0
        head_dim = layer.head_dim
        self.queries = checked("queries", queries, torch.float32, (layer.num_heads, rows, head_dim))
        self._rotations = checked(
            "rotations", rotations, torch.complex64, (num_stretches, head_dim // 2)
        ).resolve_conj()
        self._limits = checked("limits", limits, torch.int32, (rows, 2))
        self._columns = columns_of(table)
        checked_pages(pages, layer.page_nbytes)
        if softcap is not None and not softcap > 0:
            raise ValueError(f"`softcap` must be above 0, or None: got {softcap}.")
        if max(self._columns.num_pages * 16, rows * head_dim) > _INT32_MAX:
            raise ValueError(f"Too large: {self._columns.num_pages} pages, {rows} rows.")
        self._structure = _Window(
            self.queries.data_ptr(), self._rotations.data_ptr(), *self._columns.pointers,
            pages.data_ptr(), self._limits.data_ptr(), pages.stride(0), pages.shape[0], rows,
            self._columns.num_pages, num_stretches, torch.get_num_threads(), softcap or 0.0,
        )  # fmt: skip

    def ask(
        self, function: ctypes._NamedFuncPointer, layer: PreparedLayer, *pointers: int
    ) -> None:  # fmt: skip
        """Call C; what it finds wrong with the table becomes an error."""
        where = ctypes.c_int32(0)
        fault = function(
            layer.reference, ctypes.byref(self._structure), *pointers, ctypes.byref(where)
        )  # fmt: skip
        if fault == 0:
            return
        if fault not in _FAULTS:
            raise MemoryError("No memory for the attention kernel's working space.")
        name, right = _FAULTS[fault]
        right = right.format(
            capacity=self._structure.capacity, stretches=self._structure.num_stretches
        )
        value = int(self._columns.tensors[name][where.value])
        raise ValueError(f"`table.{name}[{where.value}]` must be {right}: got {value}.")


class _Columns:
    """A table's columns, checked; one table serves all layers of a forward."""

    def __init__(self, table: PageTable) -> None:
        self.num_pages = table.num_pages
        self.tensors = {
            name: checked(f"table.{name}", getattr(table, name), torch.int32, (self.num_pages,))
            for name in ("rows", "stretches", "phases", "starts", "begins", "ends")
        }
        self.pointers = tuple(tensor.data_ptr() for tensor in self.tensors.values())


columns_of = made_once(_Columns)
"""A table's columns, checked once as long as it lives."""
