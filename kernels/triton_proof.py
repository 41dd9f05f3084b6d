"""Whether Triton's kernels are right on a device: a small window through them and the eager twins.

Compilers and drivers differ by machine. What computes something else than the reference here is
not used here: asked once for each device and head size, before the first page is packed.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from triton.errors import TritonError

from agentmem.kernels import packed, triton_launch
from agentmem.kernels.code_stream import PAGE_TOKENS
from agentmem.kernels.codebook import NUM_STATES, Codebook
from agentmem.kernels.packed import PackedLayer
from agentmem.kernels.packing import Packing
from agentmem.kernels.page_table import PAGES_PER_STRETCH, PageTable, PlacedSegment
from agentmem.kernels.rotary import unit_rotations
from agentmem.kernels.triton_attention import attend
from agentmem.kernels.triton_decode import decode
from agentmem.kernels.triton_encode import encode
from agentmem.kernels.triton_mass import column_mass

_MOST_CODES = 0.01
"""Of a page's bytes: a product that is summed in another order may fall on the other side."""
_ENCODED_PAGES = 2
_LARGEST_ERROR = 0.02
"""Relative: queries and probabilities are rounded to float16."""
_LEVELS = {
    1: (-127, 127),
    2: (-127, -38, 38, 127),
    3: (-127, -79, -45, -15, 15, 45, 79, 127),
    4: (-127, -98, -77, -60, -45, -31, -19, -6, 6, 19, 31, 45, 60, 77, 98, 127),
}


@cache
def why_unavailable(device: torch.device, head_dim: int) -> str | None:
    """Why the kernels are not to be used on a device, in one line; None where they are right."""
    if not triton_launch.can_run_on(device):
        return "Triton does not run on it"
    try:
        for is_scaled in (True, False):
            errors = _errors(_layer(head_dim, is_scaled, device), device)
            for name, (error, most) in errors.items():
                # "Not within" instead of "above": NaN is no proof.
                if not error <= most:
                    return f"Triton's {name} is {error:.2g} off there, {most:g} allowed"
    except (TritonError, RuntimeError) as error:
        first_line = str(error).strip().partition("\n")[0]
        return f"Triton's kernels fail there: {type(error).__name__}: {first_line}"
    return None


def _layer(head_dim: int, is_scaled: bool, device: torch.device) -> PackedLayer:
    """All bytes with token scales, or every width, and a trellis, in a frame of its own."""
    generator = torch.Generator().manual_seed(head_dim)
    if is_scaled:
        book = Codebook({}, {8: 1.0 / 127})
        return PackedLayer(Packing.uniform(1, head_dim, 8), book, book)
    book = Codebook(
        {width: _by_window(levels) for width, levels in _LEVELS.items()},
        dict.fromkeys(range(1, 9), 4.0 / 127),
    )
    widths = 8 - torch.arange(head_dim // 4, dtype=torch.uint8)[None] % 9
    rotation = torch.linalg.qr(torch.randn(1, head_dim, head_dim, generator=generator))[0]
    rotation = rotation.contiguous().to(device)
    inverse = rotation.mT.contiguous()
    return PackedLayer(
        Packing(widths, widths, token_scales=False), book, book,
        key_transform=rotation, query_transform=rotation,
        center=torch.randn(64, 1, head_dim, generator=generator).to(device),
        value_transform=rotation, value_inverse=inverse,
        value_mean=torch.randn(1, head_dim, generator=generator).to(device),
    )  # fmt: skip


def _by_window(levels: tuple[int, ...]) -> tuple[int, ...]:
    """Levels of each state around those of each code, in int8."""
    return tuple(
        max(-128, min(127, level + state * 7 % NUM_STATES - NUM_STATES // 2))
        for level in levels
        for state in range(NUM_STATES)
    )


def _errors(layer: PackedLayer, device: torch.device) -> dict[str, tuple[float, float]]:
    """Of each kernel how far it is from its twin, and how far it may be."""
    head_dim = layer.packing.head_dim
    segments = [PlacedSegment(900, 70, range(5), 5), PlacedSegment(3, 9, [5])]
    table = PageTable.of_segments(segments, device)
    generator = torch.Generator().manual_seed(0)
    shape = (table.num_pages, 1, PAGE_TOKENS, head_dim)
    keys, values = (torch.randn(shape, generator=generator).to(device) for _ in range(2))
    phases = torch.arange(table.num_pages, dtype=torch.int32, device=device) % PAGES_PER_STRETCH
    queries = torch.randn(1, 3, head_dim, generator=generator).to(device) / head_dim**0.5
    frequencies = 10_000.0 ** -torch.linspace(0, 1, head_dim // 2, dtype=torch.float64)
    rotations = unit_rotations(table.stretch_starts, frequencies.to(device), inverse=True)
    limits = torch.tensor([[0, 1000], [910, 950], [0, 5]], dtype=torch.int32, device=device)
    pages = packed.encode(keys, values, phases, layer)
    asked = (queries, rotations, table, pages, layer, limits, None)
    attended, log_sum_exp = packed.attend(*asked)
    found, found_log_sum_exp = attend(*asked)
    mass = packed.column_mass(*asked, log_sum_exp)
    # Each page is encoded alone: a few show it.
    some = slice(_ENCODED_PAGES)
    again = encode(keys[some], values[some], phases[some], layer)
    differ = (again != pages[some]).double().mean()
    return {
        "encode": (float(differ), _MOST_CODES),
        "decode": (
            max(map(_relative, decode(pages, phases, layer), packed.decode(pages, phases, layer))),
            _LARGEST_ERROR,
        ),
        "attend": (_relative(found, attended), _LARGEST_ERROR),
        "log-sum-exp": (float((found_log_sum_exp - log_sum_exp).abs().max()), _LARGEST_ERROR),
        "column mass": (_relative(column_mass(*asked, log_sum_exp), mass), _LARGEST_ERROR),
    }


def _relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())
