"""The path search of trellis-coded quantization in Triton. One program a page.

Sixteen tokens by sixteen states at once, channel after channel; what each state was reached by is
written down, and read backwards. Equals `trellis.path_codes` code for code: the same operations in
float32, nothing fused, and of equal paths the one of the lower earlier bits.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from agentmem.kernels import triton_launch
from agentmem.kernels.code_stream import PAGE_TOKENS
from agentmem.kernels.triton_launch import jit
from agentmem.kernels.triton_layer import Coded


@jit
def recorded_divisors(scales_ptr: tl.tensor) -> tl.tensor:
    """(16,), float32: what states of a page's tokens are divided by before they are coded."""
    scales = tl.load(scales_ptr + tl.arange(0, 16))
    return tl.where(scales == 0.0, 1.0, scales.to(tl.float32))


@jit
def nearest_codes(states: tl.tensor, borders_ptr: tl.tensor, STEPS: tl.constexpr) -> tl.tensor:
    """Codes of `STEPS` bits or fewer, int32: how many borders, which ascend, are below each state.

    Args:
        borders_ptr: float32, the first border of each state's width, in the states' shape or one
            for all; after the last border of a width there is infinity.
    """
    codes = tl.zeros(states.shape, tl.int32)
    for step in tl.static_range(STEPS):
        half = 1 << (STEPS - 1 - step)
        codes = tl.where(states > tl.load(borders_ptr + codes + (half - 1)), codes + half, codes)
    return codes


@jit
def _costs_at(at: tl.tensor) -> tl.tensor:
    """(16, 16), float32: nothing for the one state a token is in, infinity for others."""
    return tl.where(tl.arange(0, 16)[None, :] == at[:, None], 0.0, float("inf"))


@jit
def _narrow_step(
    costs: tl.tensor, states: tl.tensor, values_ptr: tl.tensor, reach: tl.tensor,
    WIDTH: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """One channel of one width: costs of the next states (16, 16), and how each was reached.

    A window is a code above the state it is reached from, or the state it leads to above bits that
    leave the stream's last four.

    Args:
        costs: (16 tokens, 16 states), float32.
        states: (16,), float32, of the channel.
        values_ptr: float32, what each window of the width stands for.

    Returns:
        The second: (16,), int64, the bits that left, four for each next state.
    """
    values = tl.load(values_ptr + tl.arange(0, 16 << WIDTH))
    within = tl.minimum(tl.maximum(states, -reach), reach)
    errors = (within[:, None] - values[None, :]) * (1 << WIDTH)
    squares = tl.reshape(errors * errors, (16, 1 << WIDTH, 16))
    totals = tl.reshape(costs[:, None, :] + squares, (16, 16, 1 << WIDTH))
    lowest, leaving = tl.min(totals, 2, return_indices=True)
    place = tl.arange(0, 16).to(tl.int64)[None, :] * 4
    return lowest, tl.sum(leaving.to(tl.int64) << place, 1)


@jit
def _path_kernel(
    states_ptr: tl.tensor, record_scales_ptr: tl.tensor, scale_begins_ptr: tl.tensor,
    groups_ptr: tl.tensor, values_ptr: tl.tensor, reaches_ptr: tl.tensor, borders_ptr: tl.tensor,
    before_ptr: tl.tensor, steps_ptr: tl.tensor, codes_ptr: tl.tensor, page_words: tl.tensor,
    num_heads: tl.tensor, num_channels: tl.tensor, num_groups: tl.tensor, SCALED: tl.constexpr,
) -> None:  # fmt: skip
    """Codes (N, H, D, 16), uint8, of one page; of channels without bits none are written.

    States are (N, H, 16, D), float32, finite; before (N, 16), int32, the states that paths begin
    in; steps (N, H, D, 16), int64, is where to write down how states were reached. Grid: (N,).
    """
    page = tl.program_id(0).to(tl.int64)
    token = tl.arange(0, 16)
    states_ptr += page * num_heads * 16 * num_channels
    steps_ptr += page * num_heads * num_channels * 16 + token
    codes_ptr += page * num_heads * num_channels * 16 + token
    costs = _costs_at(tl.load(before_ptr + page * 16 + token))
    for place in range(0, num_heads * num_channels):
        head, channel = place // num_channels, place % num_channels
        width = tl.load(groups_ptr + head * num_groups + channel // 4) & 15
        states = tl.load(states_ptr + (head * 16 + token) * num_channels + channel)
        if SCALED:
            begin = page * page_words * 2 + tl.load(scale_begins_ptr + head)
            states = tl.div_rn(states, recorded_divisors(record_scales_ptr + begin))
        if width > 4:
            code = nearest_codes(states, borders_ptr + width * 256, 8)
            tl.store(codes_ptr + place * 16, code.to(tl.uint8))
            # What led here is settled: the one state that the best path so far ends in.
            tl.store(steps_ptr + place * 16, tl.argmin(costs, 1).to(tl.int64))
            costs = _costs_at(code >> (width - 4))
        for narrow in tl.static_range(1, 5):
            if width == narrow:
                costs, step = _narrow_step(
                    costs, states, values_ptr + narrow * 256, tl.load(reaches_ptr + narrow), narrow
                )
                tl.store(steps_ptr + place * 16, step)
    at = tl.argmin(costs, 1)
    # Steps are read by other threads than wrote them.
    tl.debug_barrier()
    for back in range(0, num_heads * num_channels):
        place = num_heads * num_channels - 1 - back
        group = place // num_channels * num_groups + place % num_channels // 4
        width = tl.load(groups_ptr + group) & 15
        if width > 0:
            step = tl.load(steps_ptr + place * 16)
            if width > 4:
                at = step.to(tl.int32)
            else:
                left = (step >> (at * 4).to(tl.int64)).to(tl.int32) & 15
                window = (at << width) | left
                tl.store(codes_ptr + place * 16, (window >> 4).to(tl.uint8))
                at = window & 15


def path_codes(
    states: Tensor, scales: Tensor, coded: Coded, before: Tensor, codes: Tensor, *, scaled: bool
) -> None:
    """Write codes of keys or values: see `trellis.path_codes`.

    Args:
        states: (N, H, 16, D), float32, contiguous, finite.
        scales: (N, page_nbytes / 2), float16: the records, tokens' scales already in them.
        coded: how the states are coded.
        before: (N, 16), int32: the state each token's path begins in.
        codes: (N, H, D, 16), uint8, contiguous, to be written.
        scaled: whether tokens have scales.
    """
    num_pages, heads, _, head_dim = states.shape
    steps = torch.empty(
        (num_pages, heads, head_dim, PAGE_TOKENS), dtype=torch.int64, device=states.device
    )
    triton_launch.launch(
        _path_kernel,
        (num_pages,),
        {
            "states_ptr": states,
            "record_scales_ptr": scales,
            "scale_begins_ptr": coded.scale_begins,
            "groups_ptr": coded.groups,
            "values_ptr": coded.values,
            "reaches_ptr": coded.reaches,
            "borders_ptr": coded.borders,
            "before_ptr": before,
            "steps_ptr": steps,
            "codes_ptr": codes,
            "page_words": scales.shape[1] // 2,
            "num_heads": heads,
            "num_channels": head_dim,
            "num_groups": coded.groups.shape[1],
        },
        {"SCALED": scaled},
        num_warps=4,
        fused=False,
    )
