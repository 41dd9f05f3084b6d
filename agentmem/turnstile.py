"""One input at a time: whoever answers a turn or acts on memory holds a session until it is done.

A turn that streams is held from its first event to its last, but between two events its reader has
the floor: what is done then, or in another thread, is no part of the turn. It never waits, and
knows nothing of what is done.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from agentmem.errors import SessionBusy


class Turnstile:
    """Lets one input through after the other."""

    def __init__(self) -> None:
        # Released by whichever thread reads the last event: servers read each in another.
        self._lock = threading.Lock()
        self._thread: int | None = None
        """The thread that carries the input out; None while its reader has the floor."""
        self._doing = ""

    @property
    def is_inside(self) -> bool:
        """Whether this thread is carrying out the input."""
        return self._thread == threading.get_ident()

    @property
    def is_others(self) -> bool:
        """Whether there is an input that this thread is not carrying out."""
        return self._lock.locked() and not self.is_inside

    @contextmanager
    def enter(self, doing: str) -> Iterator[None]:
        """Carry out an input.

        Args:
            doing: what others are told, in words.

        Raises:
            SessionBusy: another one is being carried out.
        """
        if not self._lock.acquire(blocking=False):
            raise SessionBusy(
                f"This session is busy: {self._doing or 'it is being used'}. Wait until that has "
                "ended; a stream ends when it is read to its end or closed."
            )
        self._doing = doing
        self._thread = threading.get_ident()
        try:
            yield
        finally:
            self._thread = None
            self._lock.release()

    @contextmanager
    def apart(self) -> Iterator[None]:
        """What this thread does meanwhile is part of no input."""
        if not self.is_inside:
            yield
            return
        self._thread = None
        try:
            yield
        finally:
            self._thread = threading.get_ident()
