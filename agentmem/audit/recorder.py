"""Writing down what comes from outside, in the very transaction that it explains.

Records wait in memory until the session commits something, and are a row of its log then: a killed
process has lost neither more nor less of the log than of the session. A log begins with an empty
session, or with the state it was found in (`from`): where older agentmem wrote the store, where
somebody else moved the session's segments (consolidation, an act in another session), and after
something was forgotten. Forgetting ends the logs of all sessions that may have seen the text: what
was computed from it cannot be computed again, and no word of it may be left in them.

It never looks into what it writes down, and it asks the model nothing of its own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentmem.audit.recording_model import RecordingModel, recorded_tool
from agentmem.audit.records import (
    Record,
    elsewhere_records,
    pack_vector,
    part_hash,
    request_hash,
    said,
)
from agentmem.audit.snapshot import snapshot_of
from agentmem.models.base import ChatModel, Completion, Options, Part
from agentmem.outside import Outside
from agentmem.storage.archive import Archive, Counters, SessionRow, StoredSegment, Transaction
from agentmem.storage.rows import Elsewhere


class Recorder(Outside):
    """Records one opening of one session.

    Args:
        archive: its writes are observed from now on.
        session: whose log this is; the caller holds its lease.
    """

    def __init__(self, archive: Archive, session: SessionRow) -> None:
        super().__init__()
        self._archive = archive
        self._session = session
        self._pending: list[Record] = []
        self._num_written = 0
        self._newest: int | None = None
        """The log's newest row; None until it was looked for."""
        self._before: Counters | None = None
        self._snapshot: dict[str, Any] | None = None
        """Where the log begins, if it has no row yet."""
        self._snapshot_at = -1
        """The store's newest change when that was read."""
        self._broken = False
        """The log does not lead to where the session is: it must begin anew."""
        self._is_working = False
        self._blocks: list[list[Any]] = []
        """Core memory when it was looked at last."""
        self._is_opening = False
        self._turn: Record = []
        self._tools: list[list[Any]] = []
        self._said = ""
        self._opening: Record = []
        self._fixed: list[Record] = []
        self._counts: dict[int, int] = {}
        self._reply: list[Any] | None = None
        """Of the completion that is under way: what it answers, and its text so far."""
        self._recording_model: RecordingModel | None = None
        archive.observer = self

    # What people do

    @contextmanager
    def opening(self, settings: Mapping[str, Any]) -> Iterator[None]:
        """A session is being opened with these settings, plain JSON."""
        self._opening = ["open", {**settings, "fence": self.fence.key.hex(), "tools": self._tools}]
        self._is_opening = True
        try:
            with super().opening(settings), self._input(self._opening):
                yield
        finally:
            self._is_opening = False

    @contextmanager
    def turn(self, key: str | None, *, given: bool) -> Iterator[None]:
        """A turn is being played."""
        with super().turn(key, given=given):
            self._turn = ["turn", key, given]
            with self._input(self._turn):
                yield

    def turn_is(self, number: int, text: str, *, stored: bool) -> None:
        """The turn that is being played has this number and text."""
        self._turn.append(number)
        self._said = text if stored else ""

    def left(self, num_events: int, *, at_word: bool) -> None:
        """Whoever read the turn's events walked away after so many, tokens not counted."""
        if self._reply is None:
            self.note("left", num_events, at_word)
        else:
            # In the middle of what the model says, it is the reply that is cut off.
            self.fail_reply(GeneratorExit())

    @contextmanager
    def act(self, action: str, arguments: Sequence[Any]) -> Iterator[None]:
        """Somebody acts on memory; what a model does by its tools is part of a turn."""
        if self.active:
            yield
            return
        plain = json.loads(json.dumps(list(arguments), default=_plain))
        with super().act(action, arguments), self._input(["do", action, plain]):
            yield
        if action == "recall":
            # Where the log must begin anew, it is opened as it is now.
            self._opening = ["open", {**self._opening[1], "recall": arguments[0]}]

    @contextmanager
    def _input(self, record: Record) -> Iterator[None]:
        with self.turnstile.apart():
            elsewhere = self._look_around()
        if elsewhere is None:
            if record is not self._opening:
                self._begin_anew()
            elsewhere = []
        if not self._newest:
            # Here, where nobody waits for the store: a long session takes its time.
            self._read_snapshot()
        self._pending += [record, *elsewhere]
        try:
            yield
        finally:
            self.fail_reply(GeneratorExit())

    def _look_around(self) -> list[Record] | None:
        """What others did since the last input; None where the log cannot tell."""
        # Before anything is on record: what was forgotten is in no replay.
        self.follow()
        others = self._archive.elsewhere(self._session.id)
        if others.in_session:
            with self._archive.write(derived=True) as transaction:
                transaction.end_log(self._session.id)
        if others.in_session or self._broken:
            return None
        return self._news(others)

    def look_again(self) -> None:
        """In the middle of an input it was seen that others had changed something first."""
        self._pending += self._news(self._archive.elsewhere(self._session.id))

    def _news(self, others: Elsewhere) -> list[Record]:
        """What of core memory and facts is other than when it was looked at last."""
        found: list[Record] = []
        blocks, facts = elsewhere_records(others)
        if blocks[2] != self._blocks:
            self._blocks = blocks[2]
            found.append(blocks)
        if facts[2]:
            found.append(facts)
        return found

    def _begin_anew(self) -> None:
        """Go on as if the session was opened now: all that a replay then asks is recorded."""
        self._broken = False
        self._newest = 0
        self._blocks = []
        self._counts.clear()
        self._pending = [self._opening, *self._fixed]
        if self._recording_model is not None:
            self._recording_model.begin_anew()
        self.reload()

    # What the world answers

    @property
    def active(self) -> bool:
        """Whether a consequence of an input is being computed; others only look."""
        return self.turnstile.is_inside

    def unread(self, find: Callable[[], list[StoredSegment]]) -> list[StoredSegment]:
        """What is read for facts now."""
        found = find()
        self.note("unread", [stored.segment.id for stored in found])
        return found

    def standing(self, find: Callable[[], list[str]]) -> list[str]:
        """What is to hold by its meaning; recorded where anything is."""
        found = find()
        if found:
            self.note("standing", found)
        return found

    def note(self, *record: Any) -> None:
        """Write a record down."""
        if self.active:
            self._pending.append(list(record))

    def model(self, model: ChatModel) -> ChatModel:
        """The model, recorded."""
        self._recording_model = RecordingModel(model, self)
        return self._recording_model

    def tools(self, functions: Sequence[Callable[..., Any]]) -> Sequence[Callable[..., Any]]:
        """The application's functions, recorded; how they are described is part of the opening."""
        tools = [recorded_tool(function, self.note) for function in functions]
        self._tools = [
            [tool.tool.name, tool.tool.description, dict(tool.tool.parameters)] for tool in tools
        ]
        return tools

    def query(self, text: str, embed: Callable[[], NDArray[np.float32]]) -> NDArray[np.float32]:
        """The vector of a text that is looked for; recorded where no segment has it."""
        vector = embed()
        if text != self._said:
            self.note("vector", pack_vector(vector))
        return vector

    def monotonic(self) -> float:
        """Seconds, for deadlines: a model at work looks at the clock for itself alone."""
        milliseconds = round(time.monotonic() * 1000)
        if self._reply is None and not self._is_working:
            self.note("clock", milliseconds)
        return milliseconds / 1000

    def count(self, part: Part, num_tokens: int) -> None:
        """A part takes so many tokens."""
        if not self.active:
            return
        # A hash of Python's own is quick; it is never stored.
        key = hash(part.messages)
        if self._counts.get(key) != num_tokens:
            self._counts[key] = num_tokens
            record: Record = ["count", part_hash(part), num_tokens]
            self._pending.append(record)
            if self._is_opening and isinstance(part.key, str):
                self._fixed.append(record)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Inside, the model works and looks at the clock for itself alone."""
        self._is_working = True
        try:
            yield
        finally:
            self._is_working = False

    def begin_reply(self, prompt: Sequence[Part], options: Options) -> None:
        """The model is asked."""
        self._reply = [request_hash(prompt, options), []]

    def piece(self, text: str) -> None:
        """It said so much more."""
        if self._reply is not None:
            self._reply[1].append(text)

    def end_reply(self, completion: Completion, *, ephemeral: bool) -> None:
        """It has answered."""
        assert self._reply is not None, "a reply was begun"
        self.note(*said(self._reply[0], completion, ephemeral=ephemeral))
        self._reply = None

    def fail_reply(self, error: BaseException) -> None:
        """It failed, or was interrupted."""
        if self._reply is not None:
            request, pieces = self._reply
            self._reply = None
            if isinstance(error, GeneratorExit | KeyboardInterrupt):
                self.note("away", request, "".join(pieces))
            else:
                self.note("error", request, type(error).__name__, str(error), "".join(pieces))

    # What is committed

    def begin(self, transaction: Transaction) -> None:
        """A change begins."""
        if not self.active or self._broken:
            return
        self._before = before = transaction.counters(self._session.id)
        if self._newest is None:
            self._newest = before.recording
        if before.recording != self._newest:
            # Another process forgot something: the log ends, in the middle of what we do.
            self._broken = True
        elif not self._newest and before.changes != self._snapshot_at:
            self._read_snapshot()

    def _read_snapshot(self) -> None:
        counted = self._archive.counters(self._session.id)
        if not counted.recording:
            self._snapshot_at = counted.changes
            self._snapshot = snapshot_of(self._archive, self._session)

    def end(self, transaction: Transaction) -> None:
        """A change is about to be committed."""
        if transaction.forgotten:
            self._broken = True
        if not self.active or self._broken:
            return
        assert self._before is not None, "a change was begun"
        records = list(self._pending)
        if self._snapshot is not None:
            records.insert(0, ["from", self._snapshot])
        self._num_written = len(self._pending)
        reply = None if transaction.reply is None else transaction.reply.get("text")
        self._newest = transaction.add_recording(
            self._session.id, self._before, [_referring(one, reply) for one in records]
        )

    def committed(self) -> None:
        """It was committed."""
        if not self.active:
            return
        del self._pending[: self._num_written]
        self._num_written = 0
        self._snapshot = None
        if self._broken:
            self._pending.clear()

    def failed(self, error: BaseException) -> None:
        """It was not committed: the row is not there either."""
        if not self.active:
            return
        self._num_written = 0
        self._newest = None
        self.note("failed", type(error).__name__)


def _plain(value: object) -> Any:
    """What an act was given, as JSON has it: a number of another library, or what is wrong."""
    try:
        return index(value)  # type: ignore[arg-type]
    except TypeError:
        return str(value)


def _referring(record: Record, reply: str | None) -> Record:
    """A record of the turn's reply, which is stored with the turn, without its text."""
    text_at = {"say": 2, "away": 2}.get(record[0])
    if reply and text_at is not None and record[text_at] == reply:
        return [*record[:text_at], None, *record[text_at + 1 :]]
    return record
