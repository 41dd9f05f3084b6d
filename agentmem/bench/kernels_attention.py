"""One decode step's attention in one layer, and what happens to pages beside it, timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from agentmem.bench.kernels_rivals import (
    QuantizedStep,
    best_sdpa,
    on_dequantized_copy,
    refusal_of,
)
from agentmem.bench.kernels_row import (
    BASELINE,
    AttentionRow,
    KernelOptions,
    PagesRow,
    Shape,
)
from agentmem.bench.kernels_window import format_window, segment_lengths
from agentmem.bench.timing import take_turns

_PAGES_TOKENS = 1024


def attention_rows(options: KernelOptions) -> Iterator[AttentionRow]:
    """Every window that is asked for, with nothing measured yet."""
    for shape in options.shapes:
        for tokens in options.tokens:
            for layout in options.layouts:
                for name in options.formats:
                    # What quantizes rows of tokens knows no segments.
                    if name != BASELINE or layout == options.layouts[0]:
                        yield AttentionRow(shape=shape, tokens=tokens, layout=layout, format=name)


def measure_attention(row: AttentionRow, seconds: float) -> AttentionRow:
    """Time a window's attention beside that of everything else on the same keys and values.

    Args:
        row: which window.
        seconds: for which the calls take turns.
    """
    shape, lengths = Shape.parse(row.shape), segment_lengths(row.layout, row.tokens)
    if row.format == BASELINE:
        return _measure_baseline(row, shape, seconds)
    window = format_window(row.format, shape, lengths)
    queries, limits = window.queries(shape.groups), window.sees_all(shape.groups)
    expected = window.plain_attention(queries, limits)[0]
    keys, values = window.dense()
    sdpa = best_sdpa(queries, keys, values)
    exact = next(name for name in sdpa if name.startswith("float32"))
    errors = (
        size_of_error(window.attend(queries, limits)[0], expected),
        size_of_error(sdpa[exact](), expected),
    )
    calls: dict[str, Callable[[], object]] = {
        "ours": lambda: window.attend(queries, limits),
        "dequantized": on_dequantized_copy(window, queries),
        **sdpa,
    }
    times = take_turns(calls, seconds=seconds)
    best = min(sdpa, key=lambda name: times[name].ms)
    dense_nbytes = 2 * 2 * shape.kv_heads * shape.head_dim * row.tokens
    speedup = times[best].ms / times["ours"].ms
    return replace(
        row, segments=len(lengths), ms=times["ours"].ms, wall_ms=times["ours"].wall_ms,
        sdpa_ms=times[best].ms, sdpa=best, dequantized_ms=times["dequantized"].ms,
        speedup=speedup, packed_nbytes=window.nbytes, dense_nbytes=dense_nbytes,
        of_byte_ratio=speedup * window.nbytes / dense_nbytes, error=errors[0],
        sdpa_error=errors[1],
    )  # fmt: skip


def pages_rows(options: KernelOptions) -> Iterator[PagesRow]:
    """Every shape and format of ours that is asked for, with nothing measured yet."""
    for shape in options.shapes:
        for name in options.formats:
            if name != BASELINE:
                yield PagesRow(shape=shape, tokens=_PAGES_TOKENS, format=name)


def measure_pages(row: PagesRow, seconds: float) -> PagesRow:
    """Time encoding, decoding and evidence on one document."""
    parsed = Shape.parse(row.shape)
    window = format_window(row.format, parsed, segment_lengths("document", row.tokens))
    queries, limits = window.queries(parsed.groups), window.sees_all(parsed.groups)
    log_sum_exp = window.attend(queries, limits)[1]
    times = take_turns(
        {
            "encode": lambda: window.codec.encode(*window.states),
            "decode": window.decode,
            "mass": lambda: window.column_mass(queries, limits, log_sum_exp),
        },
        seconds=seconds,
    )
    each = {task: 1e3 * timing.ms / row.tokens for task, timing in times.items()}
    return replace(
        row, encode_us=each["encode"], decode_us=each["decode"], mass_us=each["mass"]
    )  # fmt: skip


def size_of_error(found: Tensor, expected: Tensor) -> float:
    """Of values (H, R, D) over the size of what was expected."""
    return float((found.double() - expected).norm() / expected.norm())


def _measure_baseline(row: AttentionRow, shape: Shape, seconds: float) -> AttentionRow:
    num_bits = int(BASELINE[-1])
    reason = refusal_of(shape, num_bits)
    if reason:
        return replace(row, note=reason)
    torch.manual_seed(0)
    queries = torch.randn(shape.kv_heads, shape.groups, shape.head_dim) / shape.head_dim**0.5
    keys, values = torch.randn(2, shape.kv_heads, row.tokens, shape.head_dim)
    step = QuantizedStep(shape, queries, keys, values, num_bits)
    sdpa = best_sdpa(queries, keys, values)
    times = take_turns({"theirs": step, **sdpa}, seconds=seconds)
    best = min(sdpa, key=lambda name: times[name].ms)
    dense_nbytes = 2 * 2 * shape.kv_heads * shape.head_dim * row.tokens
    speedup = times[best].ms / times["theirs"].ms
    return replace(
        row, segments=1,
        ms=times["theirs"].ms, wall_ms=times["theirs"].wall_ms, sdpa_ms=times[best].ms, sdpa=best,
        speedup=speedup, packed_nbytes=step.nbytes, dense_nbytes=dense_nbytes,
        of_byte_ratio=speedup * step.nbytes / dense_nbytes,
    )  # fmt: skip
