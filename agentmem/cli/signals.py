"""Ctrl-C and SIGTERM: they end a reply, or the command where nothing is being said.

Knows signals and one `cancel`; not what is cancelled.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

TWICE_SECONDS = 2.0
"""Ctrl-C a second time within this leaves."""


class Stopped(KeyboardInterrupt):
    """A signal asked the command to end."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum

    @property
    def exit_code(self) -> int:
        """What a shell reports for a program ended by the signal."""
        return 128 + self.signum


class Interrupts:
    """Handlers for the time of a conversation; the former ones come back at its end.

    While a reply is under way (`answering`) a signal calls `cancel`, and the reply ends as it
    stands. Otherwise the handler raises `Stopped`.

    Args:
        cancel: ends the reply under way; called from a signal handler.
        stop_on_interrupt: SIGINT during a reply also ends the command (nobody is there to go on).
    """

    def __init__(self, cancel: Callable[[], None], *, stop_on_interrupt: bool) -> None:
        self._cancel = cancel
        self._stop_on_interrupt = stop_on_interrupt
        self._answering = False
        self._last_interrupt = float("-inf")
        self._former: dict[int, Any] = {}
        self.stopped: Stopped | None = None
        """What ends the command once the reply under way is committed."""

    def __enter__(self) -> Interrupts:
        for signum in (signal.SIGINT, signal.SIGTERM):
            self._former[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for signum, handler in self._former.items():
            signal.signal(signum, handler)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """A reply is under way: signals end it, not the command."""
        self._answering = True
        try:
            yield
        finally:
            self._answering = False

    def renew(self) -> None:
        """Cancel again where the command is to end: a reply forgets a cancel from before it."""
        if self.stopped is not None:
            self._cancel()

    def again(self) -> bool:
        """Note an interrupt; whether it is the second within two seconds."""
        now = time.monotonic()
        twice = now - self._last_interrupt < TWICE_SECONDS
        self._last_interrupt = now
        return twice

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        stop = Stopped(signum)
        if not self._answering:
            raise stop
        leaves = signum != signal.SIGINT or self._stop_on_interrupt or self.again()
        if leaves and self.stopped is not None:
            raise stop  # the reply did not end in time for whoever asked twice
        if leaves:
            self.stopped = stop
        self._cancel()
