"""What the Triton kernels do on this GPU: right or wrong, how fast, in how much memory.

    python -m agentmem.bench.device > device.json

The result is JSON on stdout; progress goes to stderr; under eight minutes. It needs nothing but
agentmem.kernels, torch and Triton: no model, no network. `--quick` computes tiny shapes; with
TRITON_INTERPRET=1 they run on a machine without a GPU, where times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import triton
from torch import Tensor

from agentmem.bench.device_window import FORMATS, DeviceWindow, make_window
from agentmem.kernels import (
    triton_attention,
    triton_binary,
    triton_bounds,
    triton_decode,
    triton_encode,
    triton_mass,
    triton_rows,
)
from agentmem.kernels.triton_launch import INTERPRETED

LARGEST_ERROR = 0.01
"""Of attention, relative to the largest value; float16 operands leave a tenth of it."""
STEP_NBYTES = 2 << 20
"""What a decode step may allocate a layer beyond the packed cache."""
SHAPES = {"llama-3-8b": (32, 8, 128), "llama-3-70b": (64, 8, 128)}
"""Query heads, key/value heads and channels of a head."""
CONTEXTS = (8_192, 32_768, 131_072)
CHECKED = [(64, 3), (128, 4), (256, 8)]
"""Channels, and query rows a head."""
CHECKED_LENGTHS = [1, 63, 64, 65, 1_000, 20, 34]
QUICK_LENGTHS = [33, 20]


def main(arguments: list[str] | None = None) -> int:
    """Measure, and print JSON; 1 if a kernel is wrong."""
    parser = argparse.ArgumentParser(prog="python -m agentmem.bench.device", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny shapes, in seconds")
    quick = parser.parse_args(arguments).quick
    if not torch.cuda.is_available() and not INTERPRETED:
        print(
            "No CUDA device here. TRITON_INTERPRET=1 python -m agentmem.bench.device --quick "
            "runs tiny shapes without one.",
            file=sys.stderr,
        )
        return 2
    result = measure(torch.device("cpu" if INTERPRETED else "cuda"), quick=quick or INTERPRETED)
    print(json.dumps(result, indent=1))
    return 0 if result["all_right"] else 1


def measure(device: torch.device, *, quick: bool) -> dict[str, Any]:
    """All of it, as one dictionary."""
    dims = CHECKED[:1] if quick else CHECKED
    checks = [
        row
        for name in FORMATS
        for dim, rows in dims
        for row in check(name, dim, rows, device, quick)
    ]
    speeds = [
        time_attention(shape, tokens, name, device)
        for shape in ({"tiny": (4, 1, 64)} if quick else SHAPES).items()
        for tokens in ((80,) if quick else CONTEXTS)
        for name in FORMATS
    ]
    moves = [time_pages(name, 32 if quick else 4_096, device) for name in FORMATS]
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "interpreter",
        "torch": torch.__version__,
        "triton": triton.__version__,
        "all_right": all(row["right"] for row in checks),
        "checks": checks,
        "attention": speeds,
        "pages": moves,
    }


def check(
    name: str, head_dim: int, num_rows: int, device: torch.device, quick: bool
) -> list[dict[str, Any]]:
    """Every kernel against float64 over what the pages decode to."""
    say(f"checking {name}, {head_dim} channels")
    lengths = QUICK_LENGTHS if quick else CHECKED_LENGTHS
    window = make_window(name, 1 if quick else 2, head_dim, lengths, device)
    queries, limits = window.queries(num_rows), window.limits(num_rows)
    values, log_sum_exp, weights = window.plain_attention(queries, limits)
    found, found_sum = triton_attention.attend(*window.ask(queries, limits))
    errors = {
        "attend": relative(found, values),
        "log_sum_exp": relative(found_sum, log_sum_exp),
    }
    mass = triton_mass.column_mass(*(*window.ask(queries, limits), found_sum))
    errors["column_mass"] = relative(mass[window.slots], weights.sum((0, 1)))
    parts = [
        triton_attention.attend(queries, window.rotations, tile, window.pages, window.layer, limits)
        for tile, _ in window.table.tiles(64)
    ]
    errors["merge"] = relative(triton_attention.merge(parts)[0], values)
    many = window.queries(40)
    prefill = triton_attention.attend(*window.ask(many, window.limits(40)))[0]
    errors["prefill"] = relative(prefill, window.plain_attention(many, window.limits(40))[0])
    errors.update(check_pages(window, queries, limits))
    return [
        {
            "kernel": kernel,
            "format": name,
            "head_dim": head_dim,
            "error": error,
            "right": error <= LARGEST_ERROR,
        }
        for kernel, error in errors.items()
    ]


def check_pages(window: DeviceWindow, queries: Tensor, limits: Tensor) -> dict[str, float]:
    """Errors of the kernels that make, move and judge pages."""
    again = triton_encode.encode(*window.states, window.layer)
    rows = window.table.rows
    gathered = triton_rows.gather_rows(window.pages, rows)
    target = torch.zeros_like(window.pages)
    triton_rows.scatter_rows(gathered, target, rows)
    keys, values = triton_decode.decode(gathered, window.table.phases, window.layer)
    slots = torch.zeros(window.pages.shape[0], dtype=torch.int32, device=rows.device)
    slots[rows.long()] = (1 << window.table.ends) - 1
    bounds = triton_bounds.page_bounds(window.pages, slots, window.layer)
    most = triton_bounds.logit_bounds(
        queries, window.rotations, window.table, bounds, window.layer, limits
    )
    highest = window.highest_logits(queries, limits)
    seen = highest > float("-inf")
    errors = {
        "encode": float((again != window.encoded).double().mean()),
        "gather": float(not torch.equal(gathered, window.pages[rows.long()])),
        "scatter": float(not torch.equal(target[rows.long()], gathered)),
        "decode": max(relative(keys, window.decoded[0]), relative(values, window.decoded[1])),
        "bounds": float((most[seen] < highest[seen] - 1e-3).double().mean()),
    }
    if window.layer.packing.token_scales and int(window.layer.packing.key_widths.max()) == 1:
        scores = triton_binary.binary_scores(
            queries, window.rotations, window.table, window.pages, window.layer
        )
        off = (scores - window.sign_products(queries)).abs() / scores.abs().amax()
        # A channel of a query within rounding of 0 may have either sign.
        errors["binary"] = float((off > 0.05).double().mean())
    return errors


def time_attention(
    shape: tuple[str, tuple[int, int, int]], num_tokens: int, name: str, device: torch.device
) -> dict[str, Any]:
    """One decoded token over a window, in one layer, against SDPA on bf16 keys and values."""
    say(f"attention {shape[0]}, {num_tokens:,} tokens, {name}")
    query_heads, heads, head_dim = shape[1]
    num_rows = query_heads // heads
    window = make_window(name, heads, head_dim, [num_tokens], device, with_states=False)
    queries, limits = window.queries(num_rows), window.limits(num_rows)
    ask = window.ask(queries, limits)
    packed_seconds = seconds_of(lambda: triton_attention.attend(*ask), device)
    _, log_sum_exp = triton_attention.attend(*ask)
    mass_seconds = seconds_of(lambda: triton_mass.column_mass(*(*ask, log_sum_exp)), device)
    allocated = nbytes_of(lambda: triton_attention.attend(*ask), device)
    dense_dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    keys, values = (
        torch.randn(1, heads, num_tokens, head_dim, dtype=dense_dtype, device=device)
        for _ in range(2)
    )
    # The query heads of a group as rows: what is fastest for one token.
    dense_queries = queries[None].to(dense_dtype)
    attention = torch.nn.functional.scaled_dot_product_attention
    grouped = torch.randn(1, query_heads, 1, head_dim, dtype=dense_dtype, device=device)
    dense = {
        "rows": seconds_of(lambda: attention(dense_queries, keys, values), device),
        "grouped": seconds_of(lambda: attention(grouped, keys, values, enable_gqa=True), device),
    }
    return {
        "shape": shape[0],
        "tokens": num_tokens,
        "format": name,
        "microseconds": packed_seconds * 1e6,
        "mass_microseconds": mass_seconds * 1e6,
        "sdpa_microseconds": {way: seconds * 1e6 for way, seconds in dense.items()},
        "faster": min(dense.values()) / packed_seconds,
        "packed_nbytes": window.pages.numel(),
        "dense_nbytes": 2 * heads * num_tokens * head_dim * 2,
        "allocated_nbytes": allocated,
        "within_budget": allocated <= STEP_NBYTES,
    }


def time_pages(name: str, num_tokens: int, device: torch.device) -> dict[str, Any]:
    """Encode a segment, move its records to pinned memory and back."""
    say(f"pages {name}")
    heads, head_dim = (8, 128) if num_tokens > 1_000 else (1, 64)
    window = make_window(name, heads, head_dim, [num_tokens], device)
    rows = window.table.rows
    order = torch.arange(rows.shape[0], dtype=torch.int32, device=device)
    parked = torch.empty(
        (rows.shape[0], window.pages.shape[1]), dtype=torch.uint8, pin_memory=device.type == "cuda"
    )
    encode = seconds_of(lambda: triton_encode.encode(*window.states, window.layer), device)
    offload = seconds_of(lambda: triton_rows.copy_rows(window.pages, rows, parked, order), device)
    back = torch.zeros_like(window.pages)
    returned = seconds_of(lambda: triton_rows.copy_rows(parked, order, back, rows), device)
    nbytes = parked.numel()
    return {
        "format": name,
        "tokens": num_tokens,
        "nbytes": nbytes,
        "encode_microseconds": encode * 1e6,
        "offload_gigabytes_a_second": nbytes / offload / 1e9,
        "return_gigabytes_a_second": nbytes / returned / 1e9,
        "same_bits": torch.equal(back[rows.long()], window.pages[rows.long()]),
    }


def relative(found: Tensor, expected: Tensor) -> float:
    """The largest difference over the largest finite number expected; NaN counts as infinite."""
    there = torch.isfinite(expected)
    if not torch.equal(there, torch.isfinite(found)):
        return float("inf")
    largest = expected[there].abs().max().clamp_min(1e-9)
    return float((found[there] - expected[there]).abs().max() / largest)


def seconds_of(call: Callable[[], object], device: torch.device) -> float:
    """Median seconds of a call on the device, caches cold; one call in the interpreter."""
    if device.type != "cuda":
        call()
        return 1.0
    return float(triton.testing.do_bench(call, warmup=10, rep=60, return_mode="median")) / 1e3


def nbytes_of(call: Callable[[], object], device: torch.device) -> int:
    """Most bytes a call holds beyond what was held before it."""
    if device.type != "cuda":
        call()
        return 0
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def say(what: str) -> None:
    """Tell on stderr what is being done."""
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
