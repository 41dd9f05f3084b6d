"""Copy page records between arenas in Triton: on a device, or between it and pinned memory.

    target[target_rows[i]] = source[source_rows[i]]

A record holds codes and scales together, so that they cannot part. Pinned memory is read and
written by the kernel itself: one launch for rows that lie anywhere, no staging copy. Which stream
it runs on, and what waits for it, is the caller's affair.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from agentmem.kernels import triton_launch
from agentmem.kernels.triton_launch import jit

_WORDS = 512
"""8-byte words a program copies."""


@jit
def _copy_kernel(
    source_ptr: tl.tensor, target_ptr: tl.tensor, source_rows_ptr: tl.tensor,
    target_rows_ptr: tl.tensor, source_stride: tl.tensor, target_stride: tl.tensor,
    num_words: tl.tensor, WORDS: tl.constexpr,
) -> None:  # fmt: skip
    """WORDS words of one row. Grid: (rows, parts of a row)."""
    index = tl.program_id(0)
    word = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    source_row = tl.load(source_rows_ptr + index).to(tl.int64)
    target_row = tl.load(target_rows_ptr + index).to(tl.int64)
    inside = word < num_words
    words = tl.load(source_ptr + source_row * source_stride + word, mask=inside, other=0)
    tl.store(target_ptr + target_row * target_stride + word, words, mask=inside)


def copy_rows(source: Tensor, source_rows: Tensor, target: Tensor, target_rows: Tensor) -> None:
    """Copy records.

    Args:
        source: (capacity, page_nbytes), uint8, on the device or pinned.
        source_rows: (N,), int32, on the device: rows to read, checked by the caller.
        target: (capacity, page_nbytes), uint8, on the device or pinned.
        target_rows: (N,), int32, on the device: rows to write, each once.

    Raises:
        ValueError: records differ in size, are not whole 8-byte words, or lie in memory that the
            device cannot reach.
    """
    for name, arena in (("source", source), ("target", target)):
        if arena.dtype != torch.uint8 or arena.ndim != 2 or arena.stride(1) != 1:
            raise ValueError(
                f"`{name}` must be (capacity, page_nbytes), uint8, each row contiguous: got "
                f"{tuple(arena.shape)}, {arena.dtype}, strides {arena.stride()}."
            )
        if source_rows.is_cuda and not (arena.is_cuda or arena.is_pinned()):
            raise ValueError(f"`{name}` must be on the device or pinned: got pageable memory.")
    if source.shape[1] != target.shape[1] or source.shape[1] % 8:
        raise ValueError(
            f"Records must be of one size, a multiple of 8 bytes: got {source.shape[1]} and "
            f"{target.shape[1]}."
        )
    num_words = source.shape[1] // 8
    triton_launch.launch(
        _copy_kernel,
        (source_rows.shape[0], -(-num_words // _WORDS)),
        {
            "source_ptr": source.view(torch.int64),
            "target_ptr": target.view(torch.int64),
            "source_rows_ptr": source_rows,
            "target_rows_ptr": target_rows,
            "source_stride": source.stride(0) // 8,
            "target_stride": target.stride(0) // 8,
            "num_words": num_words,
        },
        {"WORDS": _WORDS},
        num_warps=4,
    )


def gather_rows(pages: Tensor, rows: Tensor) -> Tensor:
    """(N, page_nbytes), uint8, on the device of `rows`: a copy of some records of an arena."""
    records = torch.empty((rows.shape[0], pages.shape[1]), dtype=torch.uint8, device=rows.device)
    copy_rows(
        pages, rows, records, torch.arange(rows.shape[0], dtype=torch.int32, device=rows.device)
    )
    return records


def scatter_rows(records: Tensor, pages: Tensor, rows: Tensor) -> None:
    """Write (N, page_nbytes) records to some rows of an arena."""
    copy_rows(
        records, torch.arange(rows.shape[0], dtype=torch.int32, device=rows.device), pages, rows
    )
