"""A thread that consolidates memory between turns, and never during one.

It waits while a turn runs, takes one small step at a time, and rests when nothing is left until a
turn has ended. Closing waits for the step that runs.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from agentmem.consolidation import Chore, consolidate


class Worker:
    """Runs chores in a thread of its own.

    Args:
        chores: what there is to do.
    """

    def __init__(self, chores: Sequence[Chore]) -> None:
        self._chores = chores
        self._idle = threading.Event()
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="agentmem-worker", daemon=True)
        self._idle.set()
        self._wake.set()
        self._thread.start()

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Inside, no step is begun; afterwards there may be more to do."""
        self._idle.clear()
        try:
            yield
        finally:
            self._idle.set()
            self._wake.set()

    def close(self) -> None:
        """End after the step that runs."""
        self._stopping = True
        self._idle.set()
        self._wake.set()
        self._thread.join()

    def _work(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            if self._stopping:
                return
            consolidate(self._chores, go_on=self._may_go_on)

    def _may_go_on(self) -> bool:
        self._idle.wait()
        return not self._stopping
