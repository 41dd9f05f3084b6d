"""A thread that consolidates memory between turns, and never during one.

It takes one small step at a time, and rests when nothing is left until a turn has ended. A turn
waits for the step that runs, and no other is taken before it has ended; so does closing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from agentmem.consolidation import Chore, consolidate

logger = logging.getLogger(__name__)


class Worker:
    """Runs chores in a thread of its own.

    Args:
        chores: what there is to do.
    """

    def __init__(self, chores: Sequence[Chore]) -> None:
        self._chores = chores
        self._changed = threading.Condition()
        self._num_turns = 0
        self._is_stepping = False
        self._has_work = True
        self._is_stopping = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="agentmem-worker", daemon=True)
        self._thread.start()

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Inside, no step is taken; afterwards there may be more to do."""
        with self._changed:
            self._num_turns += 1
        try:
            with self._changed:
                self._changed.wait_for(lambda: not self._is_stepping)
            yield
        finally:
            with self._changed:
                self._num_turns -= 1
                self._has_work = True
                self._changed.notify_all()

    def close(self) -> None:
        """End after the step that runs.

        Raises:
            Whatever ended the thread before, if that was no `AgentmemError`.
        """
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        try:
            while self._waits_for_work():
                consolidate(self._chores, step=self._step)
        except BaseException as error:
            # Nobody waits for this thread: whoever closes it is told.
            self._error = error
            logger.exception("Memory is consolidated no more until it is opened again.")

    def _waits_for_work(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._has_work or self._is_stopping)
            self._has_work = False
            return not self._is_stopping

    @contextmanager
    def _step(self) -> Iterator[bool]:
        """A step, taken between turns; False where the thread ends instead."""
        with self._changed:
            self._changed.wait_for(lambda: not self._num_turns or self._is_stopping)
            self._is_stepping = not self._is_stopping
        try:
            yield self._is_stepping
        finally:
            with self._changed:
                self._is_stepping = False
                self._changed.notify_all()
