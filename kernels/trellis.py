"""Trellis-coded quantization of a token's channels: the codes whose levels come nearest together.

What a narrow code stands for depends on the four bits before it in the token's stream, its state,
so that 2 ** width codes choose among sixteen times as many levels, and the choice of one narrows
the next. The path of least squared error through all channels is found by the Viterbi algorithm
over sixteen states. Errors count times 2 ** width: where a channel has one bit more, its errors
cost about twice as much. A code of five bits and more is that of the nearest level; its last
four bits are the next state. Trellis-coded quantization: Marcellin and Fischer, 1990; its states as
bits of the stream itself: QTIP, arXiv 2406.11235.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from agentmem.kernels.code_stream import STATE_BITS
from agentmem.kernels.codebook import NUM_STATES, UNIFORM_WIDTHS, Codebook

REACH = 2.0
"""Times a width's largest level: channels further out are coded as if they were there, so that no
square overflows."""


def path_codes(
    states: Tensor, widths: Sequence[int], codebook: Codebook, before: Tensor | None = None
) -> Tensor:
    """Codes of some tokens.

    Args:
        states: (num_tokens, num_channels), float32, finite.
        widths: bits of each channel's code.
        codebook: what they stand for.
        before: (num_tokens,), int64: the state each token's path begins in; None: that of zeros.

    Returns:
        (num_tokens, num_channels), uint8. Of equal paths the one whose stream, its first bit the
        lowest, is the lowest number.
    """
    num_tokens, device = states.shape[0], states.device
    codes = torch.zeros(states.shape, dtype=torch.uint8, device=device)
    if before is None:
        before = torch.zeros(num_tokens, dtype=torch.int64, device=device)
    costs = _costs_at(before)
    steps: list[tuple[int, int, Tensor]] = []
    for channel, width in enumerate(widths):
        if not width:
            continue
        column = states[:, channel].contiguous()
        if width in UNIFORM_WIDTHS:
            nearest = torch.bucketize(column, codebook.borders[width].to(device))
            codes[:, channel] = nearest.to(torch.uint8)
            steps.append((channel, width, costs.argmin(1)))
            costs = _costs_at(nearest >> (width - STATE_BITS))
            continue
        values = codebook.table[width, : NUM_STATES << width].to(device)
        reach = REACH * codebook.top(width)
        errors = (column.clamp(-reach, reach)[:, None] - values) * (1 << width)
        # A window is a code above the state it is reached from, or the state it leads to above the
        # bits that leave the last four of the stream.
        totals = costs.repeat(1, 1 << width) + errors * errors
        costs, leaving = totals.view(num_tokens, NUM_STATES, 1 << width).min(2)
        steps.append((channel, width, leaving))
    state = costs.argmin(1)
    for channel, width, step in reversed(steps):
        if width in UNIFORM_WIDTHS:
            state = step
            continue
        window = (state << width) | step.gather(1, state[:, None])[:, 0]
        codes[:, channel] = (window >> STATE_BITS).to(torch.uint8)
        state = window & (NUM_STATES - 1)
    return codes


def state_after(codes: Tensor, widths: Sequence[int]) -> Tensor:
    """The last four bits of a stream: (num_tokens,), int64. It has zeros before it.

    Args:
        codes: (num_tokens, num_channels), uint8.
        widths: bits of each channel's code.
    """
    state = torch.zeros(codes.shape[0], dtype=torch.int64, device=codes.device)
    missing = STATE_BITS
    for channel in reversed(range(len(widths))):
        taken = min(widths[channel], missing)
        missing -= taken
        state |= (codes[:, channel].long() >> (widths[channel] - taken)) << missing
        if not missing:
            break
    return state


def _costs_at(state: Tensor) -> Tensor:
    """(num_tokens, 16), float32: nothing for the one state a token is in, infinity for others."""
    places = torch.arange(NUM_STATES, device=state.device)
    return torch.where(places == state[:, None], 0.0, torch.inf)
