"""How what a conversation costs grows with its length: seconds, resident memory, bytes on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import linear_regression, median
from typing import TYPE_CHECKING, Any

from agentmem.bench.report import line_chart

if TYPE_CHECKING:
    from pathlib import Path

    from agentmem import Usage

STRETCH_TURNS = 50
SETTLED_TURNS = 200
"""By then a process has loaded what it needs."""
EARLY_TURN = 100


@dataclass(frozen=True, slots=True)
class Stretch:
    """Fifty turns in a row, or the rest at the end.

    Args:
        turn: the last of them.
        seconds: median wall-clock of a turn.
        cpu_seconds: median of the processor time of a turn; others at work lengthen it little.
        peak_tokens: most tokens any forward attended to.
        resident_bytes: of the process after its last turn.
        store_bytes: of the database after its last turn.
    """

    turn: int
    seconds: float
    cpu_seconds: float
    peak_tokens: int
    resident_bytes: int
    store_bytes: int


@dataclass
class Meter:
    """Told of every turn, it measures stretches."""

    stretches: list[Stretch] = field(default_factory=list)
    _seconds: list[float] = field(default_factory=list)
    _cpu_seconds: list[float] = field(default_factory=list)
    _peak_tokens: int = 0

    def turn(self, number: int, seconds: float, cpu_seconds: float, usage: Usage) -> bool:
        """A turn was played.

        Returns:
            Whether a stretch ends here: `end` it.
        """
        self._seconds.append(seconds)
        self._cpu_seconds.append(cpu_seconds)
        self._peak_tokens = max(self._peak_tokens, usage.prompt_tokens, usage.peak_tokens)
        return number % STRETCH_TURNS == 0

    def end(self, number: int, resident_bytes: int, store_bytes: int) -> None:
        """A stretch ends with this turn."""
        if not self._seconds:
            return
        self.stretches.append(
            Stretch(
                number,
                median(self._seconds),
                median(self._cpu_seconds),
                self._peak_tokens,
                resident_bytes,
                store_bytes,
            )
        )
        self._seconds, self._cpu_seconds, self._peak_tokens = [], [], 0


@dataclass(frozen=True, slots=True)
class Growth:
    """What the stretches of a conversation of more than 200 turns come to.

    Args:
        seconds_ratio: a turn's median seconds in the last 100 turns, to those of turns 51 to 150.
        cpu_seconds_ratio: the same of the processor's time.
        resident_share: by how much of itself resident memory grew after turn 200.
        store_bytes_a_turn: slope of the line through the store's bytes after turn 200.
        store_off_line_share: how far the store was from that line at most, as a share of its bytes.
    """

    seconds_ratio: float
    cpu_seconds_ratio: float
    resident_share: float
    store_bytes_a_turn: float
    store_off_line_share: float

    @classmethod
    def of(cls, stretches: Sequence[Stretch]) -> Growth | None:
        """Computes them; None where there are too few turns after the 200th to tell."""
        settled = [one for one in stretches if one.turn >= SETTLED_TURNS]
        if len(settled) < 3:
            return None
        early = [one for one in stretches if 0 <= one.turn - EARLY_TURN <= STRETCH_TURNS]
        late = [one for one in settled if settled[-1].turn - one.turn < 2 * STRETCH_TURNS]
        turns = [float(one.turn) for one in settled]
        sizes = [float(one.store_bytes) for one in settled]
        slope, start = linear_regression(turns, sizes)
        return cls(
            seconds_ratio=median(o.seconds for o in late) / median(o.seconds for o in early),
            cpu_seconds_ratio=(
                median(o.cpu_seconds for o in late) / median(o.cpu_seconds for o in early)
            ),
            resident_share=settled[-1].resident_bytes / settled[0].resident_bytes - 1,
            store_bytes_a_turn=slope,
            store_off_line_share=max(
                abs(size - slope * turn - start) / size
                for turn, size in zip(turns, sizes, strict=True)
            ),
        )


def draw_growth(stretches: Sequence[Stretch], title: str, path: Path) -> bool:
    """Three curves over the turns, each as a share of its own largest; False without matplotlib."""
    units: dict[str, tuple[str, float, list[float]]] = {
        "seconds a turn": ("s", 1, [one.seconds for one in stretches]),
        "resident memory": ("MiB", 2**20, [one.resident_bytes for one in stretches]),
        "store": ("MiB", 2**20, [one.store_bytes for one in stretches]),
    }
    curves = {
        f"{name} (1 = {max(values) / size:.3g} {unit})": [value / max(values) for value in values]
        for name, (unit, size, values) in units.items()
    }
    return line_chart(path, title, "turn", [one.turn for one in stretches], curves)


def stretches_of(rows: Sequence[dict[str, Any]]) -> list[Stretch]:
    """Stretches as a report has them."""
    return [Stretch(**row) for row in rows]
