"""Times of calls that take turns, so that whatever slows the machine down slows all of them.

Each call finds the caches as the others left them: as cold as a layer does in a model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import torch

_SLOW_SHARE = 0.1
_SLOW_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class Timing:
    """Median milliseconds of one call.

    Args:
        cpu_ms: of the calling thread.
        wall_ms: on the clock.
    """

    cpu_ms: float
    wall_ms: float

    @property
    def ms(self) -> float:
        """What ratios are taken of: with one thread CPU time, which other processes do not move."""
        return self.cpu_ms if torch.get_num_threads() == 1 else self.wall_ms


def take_turns(
    calls: Mapping[str, Callable[[], object]], *, seconds: float, least: int = 5, most: int = 200
) -> dict[str, Timing]:
    """Time calls one after another, round by round.

    Args:
        calls: by name.
        seconds: after which no further round begins.
        least, most: rounds, whatever they take. One more goes before them and does not count; what
            takes a tenth of `seconds` in it is in the first two rounds only.
    """
    first = {name: time_once(call)[1] for name, call in calls.items()}
    rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    begun = time.perf_counter()
    for number in range(most):
        if number >= least and time.perf_counter() - begun > seconds:
            break
        for name, call in calls.items():
            if number < _SLOW_ROUNDS or first[name] < _SLOW_SHARE * seconds:
                rounds[name].append(time_once(call))
    return {name: median_of(times) for name, times in rounds.items()}


def time_once(call: Callable[[], object]) -> tuple[float, float]:
    """Seconds of one call: of this thread, and on the clock."""
    cpu, wall = time.thread_time(), time.perf_counter()
    call()
    return time.thread_time() - cpu, time.perf_counter() - wall


def median_of(times: list[tuple[float, float]]) -> Timing:
    """The medians of what `time_once` gave."""
    cpu, wall = zip(*times, strict=True)
    return Timing(1e3 * median(cpu), 1e3 * median(wall))
