"""Turns for callers that await them: one after the other, in a thread of their own.

Who comes while a turn is answered waits for it; who goes away before the own turn has begun leaves
nothing behind. The thread does not wait for its readers: a reader may await another turn meanwhile.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from agentmem.events import Event, TurnKey


class PlaysTurn(Protocol):
    """Answers a turn."""

    def __call__(
        self, text: str, *, turn: TurnKey | None, cancelled: threading.Event
    ) -> Iterator[Event]:
        """The turn's events; it ends early once it is cancelled."""
        ...


class QueuedTurns:
    """Turns of one session, in the order in which they were asked for.

    Args:
        play: answers one; called in the thread.
    """

    def __init__(self, play: PlaysTurn) -> None:
        self._play = play
        self._thread: ThreadPoolExecutor | None = None

    async def events(self, text: str, *, turn: TurnKey | None) -> AsyncGenerator[Event, None]:
        """A turn's events. Closed early, it ends the reply; what there is of it is kept."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="agentmem")
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[Event | None] = asyncio.Queue()
        cancelled = threading.Event()

        def run() -> None:
            try:
                for event in self._play(text, turn=turn, cancelled=cancelled):
                    loop.call_soon_threadsafe(arrived.put_nowait, event)
            finally:
                loop.call_soon_threadsafe(arrived.put_nowait, None)

        future = self._thread.submit(run)
        try:
            while (event := await arrived.get()) is not None:
                yield event
            await asyncio.wrap_future(future)
        finally:
            # One that waits still is taken out; one that is answered ends, and is committed.
            if not future.cancel():
                cancelled.set()
                await asyncio.wait([asyncio.wrap_future(future)])

    def close(self) -> None:
        """Answer what was asked for, and end the thread."""
        if self._thread is not None:
            self._thread.shutdown(wait=True)
            self._thread = None
