"""A window whose parts keep their KV: prompts are reconciled with a segment cache, part by part.

Parts that stay are not read again, unless they are to be kept more precisely; parts that leave are
parked, or dropped where they were only passing through; parked ones come back without a forward;
unknown ones are read at their place. The last reply waits in the cache's open tail until a part
adopts it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

from agentmem.errors import BudgetExceeded, SegmentNotFound
from agentmem.models.base import PartKey
from agentmem.models.kv_window import NUM_SINKS
from agentmem.models.prompt_ids import Entry
from agentmem.models.segment_cache import SegmentCache


class SegmentWindow:
    """One conversation's window.

    Args:
        cache: holds the KV.
        max_positions: what the model can attend to; 0 where unknown.
        is_fork: leaves no trace: nothing is parked or packed, and no evidence is gathered.
    """

    def __init__(
        self, cache: SegmentCache, *, max_positions: int = 0, is_fork: bool = False
    ) -> None:
        self._cache = cache
        self._max_positions = max_positions
        self._is_fork = is_fork
        self._to_seal: deque[Entry] = deque()

    @property
    def cache(self) -> Any:
        """What the model takes as its cache."""
        return self._cache

    @property
    def num_tokens(self) -> int:
        """Tokens in the cache."""
        return self._cache.num_tokens

    @property
    def next_position(self) -> int:
        """Position of the next token to be forwarded."""
        return self._cache.next_position

    def appended(self, token_ids: Sequence[int]) -> None:
        """Take note of ids that are now in the tail; close the parts they complete."""
        self._cache.note_tokens(token_ids)
        while self._to_seal and len(self._to_seal[0].token_ids) <= self._cache.tail_length:
            entry = self._to_seal.popleft()
            self._cache.seal(entry.key, len(entry.token_ids))

    def recover(self) -> None:
        """Cut what an interrupted forward left behind the tokens that were noted."""
        noted = len(self._cache.tail_token_ids)
        if self._cache.tail_length > noted:
            self._cache.truncate_tail(noted)

    def make_room(self) -> bool:
        """Move some of the window to host memory; False where nothing was left to move."""
        return self._cache.make_room()

    def enter(
        self,
        entries: Sequence[Entry],
        header_ids: Sequence[int],
        read: Callable[[Sequence[int]], object],
    ) -> list[int]:
        """Make the window hold a prompt, but for its unread end.

        Args:
            entries: the prompt.
            header_ids: what asks for the reply.
            read: forwards ids into this window.

        Returns:
            Ids that must still be read, header included.
        """
        cache = self._cache
        self._to_seal.clear()
        for entry in entries:
            if cache.has(entry.key) and cache.token_ids(entry.key) != entry.token_ids:
                cache.drop(entry.key)
        wanted = {entry.key for entry in entries}
        if not self.finish_reply(entries, read):
            # The window is full to the brim: there is room once others have left.
            self._let_go(wanted)
            self._adopt_tail(entries, read)
        self._let_go(wanted)
        if not self._is_fork and any(
            entry.begins_turn and not cache.has(entry.key) for entry in entries
        ):
            cache.new_turn()
        starts, position = {}, 0
        for entry in entries:
            starts[entry.key] = position
            position += len(entry.token_ids)
        self._place(starts)
        if not self._is_fork:
            for key in cache.too_coarse:
                cache.drop(key)
            self._pack(entries)
        return self._read_missing(entries, starts, list(header_ids), read)

    def finish_reply(
        self, entries: Sequence[Entry], read: Callable[[Sequence[int]], object]
    ) -> bool:
        """Give the tail to the part that is the last reply, and read the end of that part.

        It is read before anything leaves, so that it sees what the reply saw, whether the next
        prompt follows at once or in another process.

        Returns:
            False where it does not fit into the window; the tail is as before.
        """
        try:
            self._adopt_tail(entries, read)
        except BudgetExceeded:
            self._to_seal.clear()
            return False
        return True

    def park(self) -> None:
        """Take everything out of the window, so that a later one can go on from it."""
        self._cache.discard_tail()
        for key in self._cache.keys:
            self._cache.park(key)

    def settle(self, num_reply_ids: int) -> None:
        """Keep so many ids of header and reply in the tail for the part that will adopt them."""
        self._to_seal.clear()
        if not num_reply_ids:
            self._cache.discard_tail()
        elif num_reply_ids < self._cache.tail_length:
            self._cache.truncate_tail(num_reply_ids)

    def fork(self) -> SegmentWindow:
        """A window of its own over the same tokens; this one is never changed through it."""
        return SegmentWindow(self._cache.fork(), max_positions=self._max_positions, is_fork=True)

    def beside(self) -> SegmentWindow:
        """An empty window over the same pages: what it enters may be `borrow`ed from this one."""
        cache = self._cache.beside()
        return SegmentWindow(cache, max_positions=self._max_positions, is_fork=True)

    def borrow(self, key: PartKey, lender: SegmentWindow) -> bool:
        """Take a part of another window by reference; False where it is not there."""
        if not lender._cache.in_window(key) or self._cache.has(key):
            return False
        self._cache.borrow(key, lender._cache)
        return True

    def keep_only(self, keys: Collection[PartKey]) -> None:
        """Drop all other parts."""
        for key in self._cache.keys:
            if key not in keys:
                self._cache.drop(key)

    def close(self) -> None:
        """Free what the window holds."""
        self._to_seal.clear()
        self._cache.reset()

    def _let_go(self, wanted: set[PartKey]) -> None:
        """Park what leaves; names are of texts that only pass through."""
        cache = self._cache
        for key in cache.keys:
            if key in wanted:
                continue
            if self._is_fork or isinstance(key, str):
                cache.drop(key)
            else:
                cache.park(key)
        for key in cache.parking:
            # They are parked only from one process to the next.
            if isinstance(key, str) and key not in wanted:
                cache.parking.forget(key)

    def _place(self, starts: dict[PartKey, int]) -> None:
        """Make the window what is known of a prompt, each part at its place."""
        for _ in range(len(starts) + 1):
            places = [(key, start) for key, start in starts.items() if self._cache.has(key)]
            try:
                self._cache.layout(places)
                return
            except SegmentNotFound as error:
                # A file on the disk turned out damaged: it is gone now, and its text is read below.
                missing = error
        raise missing

    def _adopt_tail(
        self, entries: Sequence[Entry], read: Callable[[Sequence[int]], object]
    ) -> None:
        """Give the tail to the part that is the last reply, and read the rest of that part.

        Done before anything moves: the tail's keys are rotated to where they stand.
        """
        tail = self._cache.tail_token_ids
        reply = next((entry for entry in entries if entry.is_reply), None)
        if not tail or reply is None or reply.token_ids[: len(tail)] != tail:
            self._cache.discard_tail()
            return
        rest = reply.token_ids[len(tail) :]
        if 0 < self._max_positions < self._cache.next_position + len(rest):
            # There is room for it only where it will stand once the others have moved.
            self._cache.discard_tail()
            return
        self._to_seal.append(reply)
        if rest:
            read(rest)
        else:
            self.appended(())

    def _pack(self, entries: Sequence[Entry]) -> None:
        """Compress all but the sinks and the newest turn."""
        newest = max((i for i, entry in enumerate(entries) if entry.begins_turn), default=0)
        num_before = 0
        for entry in entries[:newest]:
            if num_before >= NUM_SINKS and self._cache.in_window(entry.key):
                self._cache.compress(entry.key)
            num_before += len(entry.token_ids)

    def _read_missing(
        self,
        entries: Sequence[Entry],
        starts: dict[PartKey, int],
        header_ids: list[int],
        read: Callable[[Sequence[int]], object],
    ) -> list[int]:
        """Read runs of unknown parts at their places; the last run is left for the reply."""
        run: list[Entry] = []
        for entry in entries:
            if not self._cache.has(entry.key):
                run.append(entry)
            elif run:
                self._begin(run, starts)
                read(_ids(run))
                run = []
        self._begin(run, starts)
        return _ids(run) + header_ids

    def _begin(self, run: Sequence[Entry], starts: dict[PartKey, int]) -> None:
        if run:
            self._cache.begin(starts[run[0].key])
            self._to_seal.extend(run)


def _ids(run: Sequence[Entry]) -> list[int]:
    return [token_id for entry in run for token_id in entry.token_ids]
