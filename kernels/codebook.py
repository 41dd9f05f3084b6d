"""What codes of each width stand for: a few int8 levels and the unit they are counted in.

    value = window_levels(width)[window] * units[width]     (times the token's scale, if any)

Levels are integers so that attention can be computed in integers. Codes of 5 bits and more are
uniform. Narrower ones may have any ascending levels, or levels that depend on the four bits before
the code too: a trellis, which loses a sixth to over a third less of a Gaussian (trellis.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from agentmem.kernels.code_stream import MAX_WIDTH, NARROW_WIDTHS, STATE_BITS

NUM_STATES = 1 << STATE_BITS
UNIFORM_WIDTHS = range(NARROW_WIDTHS.stop, MAX_WIDTH + 1)


def uniform_levels(width: int) -> tuple[int, ...]:
    """The 2 ** width levels of a uniform quantizer over the range of int8."""
    step = 1 << (MAX_WIDTH - width)
    return tuple((code - (1 << (width - 1))) * step + step // 2 for code in range(1 << width))


@dataclass(frozen=True, eq=False)
class Codebook:
    """Levels and units by width.

    Args:
        levels: for widths 1 to 4 integers in [-128, 127]: 2 ** width ascending ones, by code; or
            16 * 2 ** width, by window, which is the state in the lowest four bits and the code
            above it (see `CodeStream.windows`). All of the one kind, or all of the other.
        units: for every width in use, the value of level 1.
    """

    levels: Mapping[int, tuple[int, ...]]
    units: Mapping[int, float]

    def __post_init__(self) -> None:
        for width, levels in self.levels.items():
            ascending = all(low < high for low, high in zip(levels, levels[1:], strict=False))
            fits = width in NARROW_WIDTHS and (
                (len(levels) == 1 << width and ascending) or len(levels) == NUM_STATES << width
            )
            if not fits or min(levels) < -128 or max(levels) > 127:
                raise ValueError(
                    f"Levels of width {width} must be integers in -128 to 127, 2 ** width "
                    f"ascending ones or 16 * 2 ** width, for widths 1 to 4: got {levels}."
                )
        if len({len(levels) >> width for width, levels in self.levels.items()}) > 1:
            raise ValueError("Levels must depend on the state at every width, or at none.")

    @property
    def is_trellis(self) -> bool:
        """Whether narrow codes' levels depend on the bits before them."""
        return any(len(levels) > 1 << width for width, levels in self.levels.items())

    def window_levels(self, width: int) -> tuple[int, ...]:
        """The level of each window of a width: state and code of a narrow one, a wide code alone.

        Raises:
            ValueError: the codebook has no such width.
        """
        if width not in self.units or not (width in self.levels or width in UNIFORM_WIDTHS):
            raise ValueError(f"The codebook has no width {width}: it has {sorted(self.units)}.")
        levels = self.levels.get(width)
        if levels is None:
            return uniform_levels(width)
        if len(levels) > 1 << width:
            return levels
        return tuple(level for level in levels for _ in range(NUM_STATES))

    def values(self, width: int) -> tuple[float, ...]:
        """What each code of a width stands for, ascending.

        Raises:
            ValueError: the codebook has no such width, or its codes stand for nothing alone.
        """
        levels = self.window_levels(width)
        if width in NARROW_WIDTHS:
            if self.is_trellis:
                raise ValueError(f"Codes of width {width} depend on the bits before them.")
            levels = levels[::NUM_STATES]
        return tuple(level * self.units[width] for level in levels)

    def top(self, width: int) -> float:
        """The largest value a code of a width stands for.

        Raises:
            ValueError: the codebook has no such width.
        """
        return max(self.window_levels(width)) * self.units[width]

    @cached_property
    def table(self) -> Tensor:
        """(9, 256), float32: value of each window by width; 0 where there is none."""
        table = torch.zeros((MAX_WIDTH + 1, 1 << MAX_WIDTH))
        for width, unit in self.units.items():
            levels = self.window_levels(width)
            table[width, : len(levels)] = torch.tensor([level * unit for level in levels])
        return table

    @cached_property
    def borders(self) -> dict[int, Tensor]:
        """By width, (2 ** width - 1,) float32: where the nearest level changes.

        Only of widths whose codes stand for something alone.
        """
        borders = {}
        for width in self.units:
            if not (self.is_trellis and width in NARROW_WIDTHS):
                values = torch.tensor(self.values(width), dtype=torch.float64)
                borders[width] = ((values[1:] + values[:-1]) / 2).float()
        return borders
