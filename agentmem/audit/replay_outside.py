"""Giving back what came from outside, as it was recorded: no model, no embedder, no clock.

Texts of turns and replies are read where they are stored, in the archive whose log it is; so are
vectors, by the text they are of. Whatever is asked for that the log does not have at that place is
`ReplayDiverged`. It runs nothing: `replay` does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentmem import errors
from agentmem.audit.log import BrokenOff, Log
from agentmem.audit.records import Record, unpack_vector
from agentmem.audit.snapshot import (
    add_blocks,
    add_foreign,
    add_statements,
    add_vectors,
    known_statements,
)
from agentmem.models.base import Tool
from agentmem.outside import Outside
from agentmem.storage.archive import (
    Archive,
    BlockRow,
    SessionRow,
    StoredSegment,
    Transaction,
)
from agentmem.tools import DescribedTool


class ReplayOutside(Outside):
    """Plays the log of one session into a store of its own.

    Args:
        source: where the session was recorded.
        session: which.
        log: its log.
    """

    def __init__(self, source: Archive, session: SessionRow, log: Log) -> None:
        super().__init__()
        self._source = source
        self._session = session
        self.log = log
        self.target: Archive | None = None
        """What it is played into."""
        self.is_speaking = False
        """Whether the model is in the middle of a reply."""
        self.space = ""
        """The embedding space of the opening that is played."""
        self._turns = {turn.number: turn for turn in source.turns(session.id)}
        self._seen = 0
        """The newest change of others that was taken over."""
        own = source.session_segments(session.id)
        self._own = {stored.segment.id for stored in own}
        # Of equal texts the first: the last may have no vector yet.
        self._ids = {stored.segment.text: stored.segment.id for stored in reversed(own)}
        """Segments by their texts, for their vectors."""

    def observe(self, archive: Archive, session: SessionRow) -> ReplayOutside:
        """Be the outside of the session of this archive, which it is played into."""
        self.target = archive
        archive.observer = self
        return self

    def text_of(self, number: int) -> str:
        """What the user said in a turn."""
        return self._turns[number].text

    def reply_of(self, number: int) -> str:
        """What was answered in a turn; "" where nothing was yet."""
        reply = self._turns[number].reply
        return "" if reply is None else str(reply["text"])

    # The session's view

    def query(self, text: str, embed: Callable[[], NDArray[np.float32]]) -> NDArray[np.float32]:
        """The vector of a text that is looked for: recorded, or stored with the text."""
        if self.log.next_is("vector"):
            return unpack_vector(self.log.take("vector")[1])
        return embed()

    def standing(self, find: Callable[[], list[str]]) -> list[str]:
        """What was to hold by its meaning."""
        return list(self.log.take("standing")[1]) if self.log.next_is("standing") else []

    def monotonic(self) -> float:
        """Seconds, as they were read."""
        return float(self.log.take("clock")[1]) / 1000

    def recorded_tools(self, described: Sequence[Sequence[Any]]) -> list[Callable[..., Any]]:
        """Functions of these names and descriptions that return what was returned."""
        return [DescribedTool(Tool(*one), self._tool) for one in described]

    def _tool(self, **_: Any) -> str:
        _, outcome, text = self.log.take("tool")
        if outcome == "returned":
            return str(text)
        if outcome == "failed":
            raise RuntimeError(text)
        raise raised("InvalidInput" if outcome == "invalid" else outcome, text)

    def look_again(self) -> None:
        """In the middle of an input others had changed something first."""
        assert self.target is not None, "a session is open"
        self.catch_up(self.target, self.log.elsewhere(), self.log.coming_changes)

    def unread(self, find: Callable[[], list[StoredSegment]]) -> list[StoredSegment]:
        """What was read for facts."""
        assert self.target is not None, "a session is open"
        return self.target.segments(self.log.take("unread")[1])

    def vectors(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of stored texts.

        Raises:
            ReplayDiverged: one of them is not stored: another text was said here.
        """
        rows = []
        for text in texts:
            known = [self._ids[text]] if text in self._ids else []
            _, vectors = self._source.embeddings(self.space, known)
            if not len(vectors):
                raise self.log.differs(f"the vector of {text[:40]!r}")
            rows.append(vectors[0])
        return np.stack(rows)

    # The archive's view

    def begin(self, transaction: Transaction) -> None:
        """A change begins: with the ids, the time and the neighbours it had."""
        if self.log.diverged is not None:
            raise self.log.diverged
        if self.log.next_is("failed"):
            raise raised(self.log.take("failed")[1], "It failed when it was recorded.")
        row = self.log.coming()
        transaction.now = row.created
        self.take_over(transaction, row.counters.changes)
        transaction.set_counters(row.counters)

    def has_news(self, newest: int) -> bool:
        """Whether others changed something up to a change that was not taken over yet."""
        if newest <= self._seen:
            return False
        changes = self._source.changes(self._seen)
        return any(one.sn <= newest and one.segment_id not in self._own for one in changes)

    def catch_up(self, target: Archive, records: Sequence[Record], newest: int) -> None:
        """Take over what others did before an input.

        Args:
            target: what it is played into.
            records: what the log has of it.
            newest: up to which change.
        """
        newest = max([newest, *(record[1] for record in records)])
        facts = [tuple(one) for record in records if record[0] == "facts" for one in record[2]]
        blocks = [BlockRow(*b) for record in records if record[0] == "blocks" for b in record[2]]
        if not facts and not blocks and newest <= self._seen:
            return
        known = known_statements(target, facts)
        # It is no commit of the log's: nobody observes it.
        with target.write(derived=True) as transaction:
            self.take_over(transaction, newest)
            add_blocks(transaction, self._source, self._session, blocks)
            add_statements(transaction, self._source, [one for one in facts if one not in known])

    def take_over(self, transaction: Transaction, newest: int) -> None:
        """Take over what other sessions of the user changed up to a change."""
        if newest <= self._seen:
            return
        seen, self._seen = self._seen, newest
        foreign = [
            change
            for change in self._source.changes(seen)
            if change.sn <= newest and change.segment_id not in self._own
        ]
        said = {change.segment_id for change in foreign if change.op == "add"}
        if said:
            self._ids = add_foreign(transaction, self._source, said) | self._ids
        embedded = {change.segment_id for change in foreign if change.op == "embed"}
        add_vectors(transaction, self._source, self.space, embedded)

    def end(self, transaction: Transaction) -> None:
        """A change is about to be committed: so it was, and here."""
        self.log.commit()

    def committed(self) -> None:
        """It was committed."""

    def failed(self, error: BaseException) -> None:
        """It was not committed."""


def raised(name: str, message: str) -> BaseException:
    """The error that was raised when the log was written."""
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, errors.AgentmemError):
        return kind(message)
    return BrokenOff(f"{name}: {message}")
