"""Attention over pages of floats in C, and over rows of keys and values as a model writes them.

What `attention.py` computes in eager PyTorch, in float32 throughout, on the processors that cpu.py
serves. Everything is checked before a pointer is handed over.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentmem.kernels.code_stream import PAGE_TOKENS
from agentmem.kernels.cpu import columns_of
from agentmem.kernels.cpu_library import ready_functions
from agentmem.kernels.cpu_tensors import checked
from agentmem.kernels.page_table import PageTable

MAX_HEAD_DIM = 256
_DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_MOST_SOURCES, _MOST_PARTS = 4, 8
_FAULTS = {1: ("rows", "of a row that is there"), 2: ("stretches", "the index of a rotation"),
           4: ("begins", "0 to 15"), 5: ("ends", "above `begins`, and at most 16")}  # fmt: skip


class _Dense(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in (
            "queries", "rotations", "rows", "stretches", "phases", "starts", "begins", "ends",
            "keys", "values", "limits",
        )),
        *((name, ctypes.c_int64) for name in ("page_stride", "head_stride", "num_tokens")),
        *((name, ctypes.c_int32) for name in (
            "num_heads", "num_rows", "head_dim", "num_pages", "num_stretches", "num_threads",
            "dtype",
        )),
        ("softcap", ctypes.c_float),
    ]  # fmt: skip


class _Whole(ctypes.Structure):
    _fields_ = [
        ("sources", ctypes.c_void_p * _MOST_SOURCES),
        ("masses", ctypes.c_void_p * _MOST_SOURCES),
        ("values", ctypes.c_void_p * _MOST_PARTS),
        ("log_sum_exp", ctypes.c_void_p * _MOST_PARTS),
        ("num_sources", ctypes.c_int32),
        ("num_parts", ctypes.c_int32),
    ]


_Where = ctypes.c_int32 * 2


@dataclass(frozen=True, slots=True)
class DenseStates:
    """Keys and values in memory: a token's channels side by side, and 16 tokens of a head.

    Args:
        keys, values: where they are; what is kept alive.
        pointers: of the first key and the first value.
        page_stride, head_stride: bytes from one to the next.
        num_tokens: that may be read, 16 to a row.
        num_heads, head_dim, dtype: of them.
    """

    keys: Tensor
    values: Tensor
    pointers: tuple[int, int]
    page_stride: int
    head_stride: int
    num_tokens: int
    num_heads: int
    head_dim: int
    dtype: torch.dtype

    @classmethod
    def of_pages(
        cls, pages: Tensor, num_heads: int, head_dim: int, dtype: torch.dtype
    ) -> DenseStates:
        """Pages of all heads' keys, then all heads' values: (capacity, page_nbytes), uint8.

        Raises:
            ValueError: pages of another size, type or place.
        """
        nbytes = num_heads * PAGE_TOKENS * head_dim * dtype.itemsize
        if (
            pages.dtype != torch.uint8 or pages.ndim != 2 or not pages.is_cpu
            or pages.shape[1] != 2 * nbytes or (pages.stride(1) != 1 and pages.numel())
        ):  # fmt: skip
            raise ValueError(
                f"`pages` must be (capacity, {2 * nbytes}), torch.uint8, on the CPU, each page in "
                f"one piece: got {tuple(pages.shape)}, {pages.dtype}, on {pages.device}."
            )
        first = pages.data_ptr()
        return cls(
            pages, pages, (first, first + nbytes), pages.stride(0), nbytes // num_heads,
            pages.shape[0] * PAGE_TOKENS, num_heads, head_dim, dtype,
        )  # fmt: skip

    @classmethod
    def of_rows(cls, keys: Tensor, values: Tensor) -> DenseStates:
        """Tokens one after another: (num_heads, num_tokens, head_dim) both, alike in memory.

        Raises:
            ValueError: they differ, or a head's tokens are not in one piece on the CPU.
        """
        heads, num_tokens, head_dim = keys.shape
        alike = (values.shape, values.dtype, values.stride()) == (
            keys.shape, keys.dtype, keys.stride(),
        )  # fmt: skip
        if not alike or not keys.is_cpu or not values.is_cpu or keys.stride()[1:] != (head_dim, 1):
            raise ValueError(
                "Keys and values must be alike, on the CPU, each head in one piece: got "
                f"{tuple(keys.shape)} and {tuple(values.shape)}, strides {keys.stride()} and "
                f"{values.stride()}."
            )
        token_nbytes = head_dim * keys.dtype.itemsize
        return cls(
            keys, values, (keys.data_ptr(), values.data_ptr()), PAGE_TOKENS * token_nbytes,
            keys.stride(0) * keys.dtype.itemsize, num_tokens, heads, head_dim, keys.dtype,
        )  # fmt: skip


def takes(head_dim: int, dtype: torch.dtype) -> bool:
    """Whether these kernels know such keys and values."""
    return head_dim % 16 == 0 and head_dim <= MAX_HEAD_DIM and dtype in _DTYPES


class DenseSource:
    """Query rows and the dense keys and values they attend to, checked; keeps what C points to.

    Args:
        queries: (H, R, D), float32, scaled, as the keys are rotated and ordered.
        rotations: (S, D / 2), complex64, what turns a query back by each stretch's start; None:
            nothing is turned.
        table: which pages, and where they stand.
        states: what the table's rows are of.
        limits: (R, 2), int32: each row sees positions [low, high).
        softcap: of logits, or None.

    Raises:
        ValueError: a tensor of another shape, type or place.
    """

    __slots__ = ("_kept", "columns", "reference", "shape", "structure")

    def __init__(
        self,
        queries: Tensor,
        rotations: Tensor | None,
        table: PageTable,
        states: DenseStates,
        limits: Tensor,
        softcap: float | None = None,
    ) -> None:
        head_dim = states.head_dim
        if not takes(head_dim, states.dtype):
            raise ValueError(
                "Heads must have a multiple of 16 channels, at most 256, in float32, bfloat16 or "
                f"float16: got {head_dim} in {states.dtype}."
            )
        rows = queries.shape[1] if queries.ndim == 3 else 0
        self.shape = (states.num_heads, rows, head_dim)
        queries = checked("queries", queries, torch.float32, self.shape)
        limits = checked("limits", limits, torch.int32, (rows, 2))
        num_stretches, pointer = 0, None
        if rotations is not None:
            num_stretches = rotations.shape[0]
            rotations = checked(
                "rotations", rotations, torch.complex64, (num_stretches, head_dim // 2)
            ).resolve_conj()
            pointer = rotations.data_ptr()
        if softcap is not None and not softcap > 0:
            raise ValueError(f"`softcap` must be above 0, or None: got {softcap}.")
        self.columns = columns_of(table)
        self._kept = (queries, rotations, limits, states)
        self.structure = _Dense(
            queries.data_ptr(), pointer, *self.columns.pointers, *states.pointers,
            limits.data_ptr(), states.page_stride, states.head_stride, states.num_tokens,
            states.num_heads, rows, head_dim, table.num_pages, num_stretches,
            torch.get_num_threads(), _DTYPES[states.dtype], softcap or 0.0,
        )  # fmt: skip
        self.reference = ctypes.addressof(self.structure)


def attend(
    sources: Sequence[DenseSource], parts: Sequence[tuple[Tensor, Tensor]] = ()
) -> tuple[Tensor, Tensor]:
    """Attention over all sources, and over parts that were attended to before.

    Args:
        sources: 1 to 4, of the same heads, rows and channels.
        parts: attended values (H, R, D) and log-sum-exp (H, R), float32, as `attention.merge`
            takes them; at most 8.

    Returns:
        Attended values and log-sum-exp of everything; 0 and -inf for a row that saw nothing.

    Raises:
        KernelsUnavailable: `cpu.why_unavailable` says why.
        ValueError: shapes differ, or a table points outside.
    """
    functions = ready_functions()
    whole = _whole(sources)
    if len(parts) > _MOST_PARTS:
        raise ValueError(f"At most {_MOST_PARTS} parts are merged: got {len(parts)}.")
    shape = sources[0].shape
    kept = []
    for number, (values, log_sum_exp) in enumerate(parts):
        values = checked("parts", values, torch.float32, shape)
        log_sum_exp = checked("parts", log_sum_exp, torch.float32, shape[:2])
        whole.values[number], whole.log_sum_exp[number] = values.data_ptr(), log_sum_exp.data_ptr()
        kept += [values, log_sum_exp]
    whole.num_parts = len(parts)
    out, over = torch.empty(shape), torch.empty(shape[:2])
    where = _Where()
    fault = functions.agentmem_attend_dense(
        ctypes.addressof(whole), out.data_ptr(), over.data_ptr(), ctypes.addressof(where)
    )
    _raise_for(fault, where, sources)
    return out, over


def add_column_mass(
    sources: Sequence[DenseSource], masses: Sequence[Tensor], log_sum_exp: Tensor
) -> None:
    """Add the probability each slot received, summed over heads and rows.

    Args:
        sources: as for `attend`.
        masses: of each source, (its pages * 16 or more,), float32, in one piece.
        log_sum_exp: (H, R), float32: of each row over everything it saw.

    Raises:
        KernelsUnavailable: `cpu.why_unavailable` says why.
        ValueError: shapes differ, or a table points outside.
    """
    functions = ready_functions()
    whole = _whole(sources)
    over = checked("log_sum_exp", log_sum_exp, torch.float32, sources[0].shape[:2])
    for number, (source, mass) in enumerate(zip(sources, masses, strict=True)):
        least = source.structure.num_pages * PAGE_TOKENS
        if (
            mass.dtype != torch.float32 or not mass.is_cpu or mass.ndim != 1
            or not mass.is_contiguous() or mass.shape[0] < least
        ):  # fmt: skip
            raise ValueError(
                f"`masses` must be float32 on the CPU, of {least} slots or more, in one piece: got "
                f"{tuple(mass.shape)}, {mass.dtype}, on {mass.device}."
            )
        whole.masses[number] = mass.data_ptr()
    where = _Where()
    fault = functions.agentmem_dense_mass(
        ctypes.addressof(whole), over.data_ptr(), ctypes.addressof(where)
    )
    _raise_for(fault, where, sources)


def _whole(sources: Sequence[DenseSource]) -> _Whole:
    if not 1 <= len(sources) <= _MOST_SOURCES:
        raise ValueError(f"1 to {_MOST_SOURCES} sources are attended to: got {len(sources)}.")
    whole = _Whole()
    for number, source in enumerate(sources):
        if source.shape != sources[0].shape:
            raise ValueError(
                f"All sources need queries of one shape: got {source.shape} and {sources[0].shape}."
            )
        whole.sources[number] = source.reference
    whole.num_sources = len(sources)
    return whole


def _raise_for(
    fault: int, where: ctypes.Array[ctypes.c_int32], sources: Sequence[DenseSource]
) -> None:
    """What C finds wrong with a table becomes an error."""
    if fault == 0:
        return
    if fault not in _FAULTS:
        raise MemoryError("No memory for the attention kernel's working space.")
    name, right = _FAULTS[fault]
    value = int(sources[where[0]].columns.tensors[name][where[1]])
    raise ValueError(f"`table.{name}[{where[1]}]` must be {right}: got {value}.")
