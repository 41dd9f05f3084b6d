"""The log of a session as one stream that is played once, forward.

Commits stand in the stream where they happened. What is asked for must be what comes next; only
counts of tokens are looked up, because the order in which parts are counted is of no consequence.
It says what differs, and plays nothing itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agentmem.audit.records import ELSEWHERE, INPUTS, Record
from agentmem.errors import AgentmemError, ReplayDiverged
from agentmem.storage.archive import RecordingRow

_WORDS = {
    "turn": "a turn",
    "do": "an act on memory",
    "open": "an opening",
    "commit": "a commit",
    "say": "the model's reply",
    "aside": "the model's answer to a review or summary",
    "count": "a count of tokens",
    "has": "whether there is KV",
    "tool": "a tool's result",
    "weigh": "the model's judgement",
    "weight": "the model's judgement of a part",
    "unread": "what is read for facts",
    "standing": "what is to hold from now on",
}


class BrokenOff(AgentmemError):
    """The log ends here, or its process was killed here: what was under way goes no further."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A row of the log ends here."""

    row: RecordingRow


class Log:
    """A log, and how far it is played.

    Args:
        rows: of the session.
    """

    def __init__(self, rows: Sequence[RecordingRow]) -> None:
        self._items: list[Record | Commit] = []
        for row in rows:
            self._items += [*row.records, Commit(row)]
        self._at = 0
        self._input_at = 0
        self.turn = 0
        """Number of the turn that is played, or was last."""
        self.diverged: ReplayDiverged | None = None
        self._counts: dict[str, int] = {}

    def input(self) -> Record | None:
        """The next thing that people did; None at the end.

        Raises:
            ReplayDiverged: what the former one led to was not played to its end.
        """
        item = self._peek()
        if item is None:
            return None
        if isinstance(item, Commit) or item[0] not in INPUTS:
            raise self.differs("nothing more")
        self._input_at = self._at
        self._at += 1
        return item

    def elsewhere(self) -> list[Record]:
        """What others did before the input that is played."""
        found: list[Record] = []
        while any(map(self.next_is, ELSEWHERE)):
            found.append(self.take(*ELSEWHERE))
        return found

    @property
    def opening(self) -> dict[str, Any]:
        """The settings of the next opening; empty where there is none."""
        for item in self._coming():
            if isinstance(item, list) and item[0] == "open":
                return dict(item[1])
        return {}

    def left(self) -> tuple[int, bool] | None:
        """After how many events the reader of the turn walked away, and whether at a word."""
        for item in self._coming():
            if isinstance(item, list):
                if item[0] == "left":
                    return int(item[1]), bool(item[2])
                if item[0] in INPUTS:
                    break
        return None

    @property
    def coming_changes(self) -> int:
        """The store's newest change before the next commit; 0 where an input comes first."""
        for item in self._coming():
            if isinstance(item, Commit):
                return item.row.counters.changes
            if item[0] in INPUTS:
                break
        return 0

    def take(self, *kinds: str, key: Any = None) -> Record:
        """The next record, which must be of one of these kinds and, where given, have this key.

        Raises:
            ReplayDiverged: it is not.
            BrokenOff: there is none, or a new opening comes next.
        """
        item = self._peek()
        self._check_end(item)
        wanted = kinds[0] if key is None else f"{kinds[0]} {key}"
        if isinstance(item, Commit) or item is None or item[0] not in kinds:
            raise self.differs(wanted)
        if key is not None and item[1] != key:
            raise self.differs(wanted)
        self._at += 1
        return item

    def next_is(self, kind: str) -> bool:
        """Whether a record of this kind comes next."""
        item = self._peek()
        return isinstance(item, list) and item[0] == kind

    def coming(self) -> RecordingRow:
        """The row of the next commit.

        Raises:
            BrokenOff: there is none before the next opening.
        """
        for item in self._coming():
            if isinstance(item, Commit):
                return item.row
        raise BrokenOff("The log has no further commit.")

    def commit(self) -> RecordingRow:
        """Something is committed: the row of it, which must end here."""
        item = self._peek()
        self._check_end(item)
        if not isinstance(item, Commit):
            raise self.differs("commit")
        self._at += 1
        return item.row

    def count(self, part: str) -> int:
        """Tokens of a part, by its hash, as they were counted here.

        Raises:
            ReplayDiverged: they never were.
            BrokenOff: there is nothing more, or a new opening comes next.
        """
        at = self._at
        while at < len(self._items):
            item = self._items[at]
            if isinstance(item, Commit) or item[0] != "count":
                break
            at += 1
            if item[1] == part:
                self._pass_counts(at)
                break
        if part not in self._counts:
            self._check_end(self._peek())
            raise self.differs(f"count {part}")
        return self._counts[part]

    def differs(self, replayed: str) -> ReplayDiverged:
        """The error for something else being asked for than comes next; it stays in force."""
        item = self._items[self._at] if self._at < len(self._items) else None
        recorded = _named(item)
        call = self._at - self._input_at
        self.diverged = ReplayDiverged(
            f"Turn {self.turn}, record {call}: the log has {recorded}, the replay asked for "
            f"{_worded(replayed)}. The code, the policy or the log changed since it was recorded.",
            turn=self.turn,
            call=call,
            recorded=recorded,
            replayed=replayed,
        )
        return self.diverged

    def _coming(self) -> Iterator[Record | Commit]:
        """What comes next, without a copy of all that does."""
        return (self._items[at] for at in range(self._at, len(self._items)))

    def _peek(self) -> Record | Commit | None:
        if self.diverged is not None:
            raise self.diverged
        at = self._at
        while at < len(self._items):
            item = self._items[at]
            if isinstance(item, Commit) or item[0] != "count":
                break
            at += 1
        self._pass_counts(at)
        return self._items[at] if at < len(self._items) else None

    def _pass_counts(self, to: int) -> None:
        for item in self._items[self._at : to]:
            assert isinstance(item, list), "only counts are passed"
            self._counts[item[1]] = item[2]
        self._at = to

    def _check_end(self, item: Record | Commit | None) -> None:
        if item is None or (isinstance(item, list) and item[0] == "open"):
            raise BrokenOff("The log ends here, or its process did.")


def _named(item: Record | Commit | None) -> str:
    if item is None:
        return "nothing more"
    if isinstance(item, Commit):
        return "commit"
    if item[0] in ("say", "aside", "error", "away", "has", "do", "turn") and len(item) > 1:
        return f"{item[0]} {item[1]}"
    return str(item[0])


def _worded(name: str) -> str:
    kind, _, key = name.partition(" ")
    return f"{_WORDS[kind]} ({name})" if kind in _WORDS else name
