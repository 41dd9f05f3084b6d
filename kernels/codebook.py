"""What codes of each width stand for: a few int8 levels and the unit they are counted in.

    value = levels[width][code] * units[width]      (times the token's scale, where there is one)

Levels are integers so that attention can be computed in integers. Codes of 5 bits and more are
uniform; narrower ones may have any ascending levels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from agentmem.kernels.packing import MAX_WIDTH


def uniform_levels(width: int) -> tuple[int, ...]:
    """The 2 ** width levels of a uniform quantizer over the range of int8."""
    step = 1 << (MAX_WIDTH - width)
    return tuple((code - (1 << (width - 1))) * step + step // 2 for code in range(1 << width))


UNIFORM_WIDTHS = range(5, MAX_WIDTH + 1)
FREE_WIDTHS = range(1, 5)


@dataclass(frozen=True, eq=False)
class Codebook:
    """Levels and units by width.

    Args:
        levels: for widths 1 to 4, 2 ** width ascending integers in [-128, 127].
        units: for every width in use, the value of level 1.
    """

    levels: Mapping[int, tuple[int, ...]]
    units: Mapping[int, float]

    def __post_init__(self) -> None:
        for width, levels in self.levels.items():
            ascending = all(low < high for low, high in zip(levels, levels[1:], strict=False))
            if (
                width not in FREE_WIDTHS
                or len(levels) != 1 << width
                or not ascending
                or min(levels) < -128
                or max(levels) > 127
            ):
                raise ValueError(
                    f"Levels of width {width} must be 2 ** width ascending integers in -128 to "
                    f"127, for widths 1 to 4: got {levels}."
                )

    def values(self, width: int) -> tuple[float, ...]:
        """What each code of a width stands for, ascending.

        Raises:
            ValueError: the codebook has no such width.
        """
        if width not in self.units or not (width in self.levels or width in UNIFORM_WIDTHS):
            raise ValueError(f"The codebook has no width {width}: it has {sorted(self.units)}.")
        levels = self.levels.get(width) or uniform_levels(width)
        return tuple(level * self.units[width] for level in levels)

    @cached_property
    def table(self) -> Tensor:
        """(9, 256), float32: value of each code by width; 0 where there is none."""
        table = torch.zeros((MAX_WIDTH + 1, 1 << MAX_WIDTH))
        for width in self.units:
            values = torch.tensor(self.values(width))
            table[width, : values.numel()] = values
        return table

    @cached_property
    def borders(self) -> dict[int, Tensor]:
        """By width, (2 ** width - 1,) float32: where the nearest level changes."""
        borders = {}
        for width in self.units:
            values = torch.tensor(self.values(width), dtype=torch.float64)
            borders[width] = ((values[1:] + values[:-1]) / 2).float()
        return borders
