"""Calls to somebody else's server: a deadline that holds, failures told apart, waits between tries.

A client's own timeout is per read, so a server that drips a byte at a time never reaches it. Here
a call runs on a thread of its own and the reader leaves when its time is up. Knows nothing of
messages.
"""

from __future__ import annotations

import contextvars
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

T = TypeVar("T")

MAX_WAIT_SECONDS = 60.0
"""A server that asks for a longer wait between tries is asked again after so long."""
POLL_SECONDS = 0.05
"""How often a reader who may be cancelled looks."""
_MAX_TEXT = 500
"""Characters of a server's words that are passed on: some send a page, or the prompt."""
_TRANSPORT_ERRORS = frozenset(
    {"APIConnectionError", "TransportError", "ConnectionError", "TimeoutError", "ConnectTimeout"}
)


class Cancelled(Exception):
    """The reader no longer wants the reply."""


class DeadlinePassed(Exception):
    """The call took longer than its reader waits."""


class CallFailed(Exception):
    """The call raised; the error is its `__cause__`."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True, slots=True)
class Failure:
    """What is to be known of a failed call.

    Args:
        text: what went wrong, in the server's words.
        status: of the HTTP response, if there was one.
        may_pass: asking again may help.
        wait_seconds: what the server asked for before the next try.
    """

    text: str
    status: int | None = None
    may_pass: bool = False
    wait_seconds: float | None = None


class _End:
    """Marks the end of a stream in the queue."""


def read_until(
    deadline: float,
    open_stream: Callable[[], Iterator[T]],
    *,
    cancelled: Callable[[], bool] | None = None,
    interrupt: Callable[[], None] = lambda: None,
) -> Iterator[T]:
    """Yield what a stream yields, for as long as there is time.

    Args:
        deadline: on `time.monotonic`'s clock.
        open_stream: starts the call and returns its stream; runs on a thread of its own.
        cancelled: asked while waiting; True ends it.
        interrupt: closes what the call reads from, so that its thread ends; called when the reader
            leaves early.

    Raises:
        DeadlinePassed: the time is up.
        Cancelled: `cancelled` said so.
        CallFailed: the call raised.
    """
    arrived: queue.SimpleQueue[T | CallFailed | _End] = queue.SimpleQueue()
    left = threading.Event()

    def work() -> None:
        try:
            stream = open_stream()
            try:
                for item in stream:
                    arrived.put(item)
                    if left.is_set():
                        break
            finally:
                if (close := getattr(stream, "close", None)) is not None:
                    close()
            arrived.put(_End())
        # Whatever it is, it belongs to the thread that reads.
        except BaseException as error:
            arrived.put(CallFailed(error))

    # Tracers and callbacks find their settings in the context.
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(work,), daemon=True, name="agentmem-call")
    thread.start()
    try:
        while True:
            item = _wait(arrived, deadline, cancelled)
            if isinstance(item, _End):
                thread.join()
                return
            if isinstance(item, CallFailed):
                thread.join()
                raise item from item.error
            yield item
    finally:
        left.set()
        if thread.is_alive():
            interrupt()


def _wait(
    arrived: queue.SimpleQueue[T | CallFailed | _End],
    deadline: float,
    cancelled: Callable[[], bool] | None,
) -> T | CallFailed | _End:
    while True:
        if cancelled is not None and cancelled():
            raise Cancelled
        seconds = deadline - time.monotonic()
        if seconds <= 0:
            raise DeadlinePassed
        try:
            return arrived.get(timeout=seconds if cancelled is None else min(seconds, POLL_SECONDS))
        except queue.Empty:
            continue


def sleep_until(deadline: float, seconds: float, cancelled: Callable[[], bool] | None) -> None:
    """Sleep so many seconds.

    Raises:
        DeadlinePassed: they would end after the deadline; at once.
        Cancelled: `cancelled` said so.
    """
    wakes = time.monotonic() + seconds
    if wakes >= deadline:
        raise DeadlinePassed
    while (left := wakes - time.monotonic()) > 0:
        if cancelled is not None and cancelled():
            raise Cancelled
        time.sleep(left if cancelled is None else min(left, POLL_SECONDS))


def explain(error: BaseException) -> Failure:
    """What an error of a provider's client means, whichever provider it is.

    Too many requests, a server's own errors and broken connections may pass; a used-up quota and
    what the server refuses do not.
    """
    text = " ".join(str(error).split()) or type(error).__name__
    status = _status(error)
    has_no_quota = "insufficient_quota" in text
    text = text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "…"
    if status is None:
        names = {one.__name__ for one in type(error).__mro__}
        return Failure(text, may_pass=bool(names & _TRANSPORT_ERRORS))
    may_pass = status in (408, 409, 425, 429) or status >= 500
    if has_no_quota:
        may_pass = False
    return Failure(text, status, may_pass, _asked_wait(error))


def wait_before(attempt: int, failure: Failure, first_wait_seconds: float) -> float:
    """Seconds to wait after a failed attempt (1 is the first): doubled each time, with jitter."""
    if failure.wait_seconds is not None:
        # Those who were told the same second should not all come in it.
        return min(failure.wait_seconds, MAX_WAIT_SECONDS) + first_wait_seconds * random.random()
    doubled: float = first_wait_seconds * 2 ** (attempt - 1)
    return min(doubled, MAX_WAIT_SECONDS) * (0.5 + random.random())


def _status(error: BaseException) -> int | None:
    candidates = (
        getattr(error, "status_code", None),
        getattr(getattr(error, "response", None), "status_code", None),
        getattr(error, "code", None),
    )
    for status in candidates:
        if isinstance(status, int) and 100 <= status <= 599:
            return status
    return None


def _asked_wait(error: BaseException) -> float | None:
    headers = getattr(getattr(error, "response", None), "headers", None)
    if headers is None:
        return None
    try:
        if (milliseconds := headers.get("retry-after-ms")) is not None:
            return max(0.0, float(milliseconds) / 1000)
        if (value := headers.get("retry-after")) is None:
            return None
        if str(value).strip().replace(".", "", 1).isdigit():
            return float(value)
        seconds = (parsedate_to_datetime(str(value)) - datetime.now(UTC)).total_seconds()
        return max(0.0, seconds)
    except (ValueError, TypeError):
        return None
