"""What the archive hands out: frozen values, one for each kind of row. They know nothing of SQL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from agentmem.decision import Decision
from agentmem.segment import Segment, State, Trust

TurnStatus = Literal["unanswered", "answered"]
WindowVia = Literal["prompt", "kv", "text"]
ChangeOp = Literal["add", "embed", "state", "fact", "forget"]
BlockOperation = Literal["append", "replace", "rewrite", "undo"]
FindingStatus = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class SessionRow:
    """One conversation of a user; `created` in seconds since the epoch."""

    id: int
    name: str
    created: float
    num_turns: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TurnRow:
    """One turn: what the user said, and the reply once there is one.

    Args:
        number: 1, 2, 3, ... within the session.
        key: what the caller calls the turn; unique within the session.
        text: what the user said; empty once it was forgotten.
        reply: what was answered, as the caller stored it; None while `status` is "unanswered".
    """

    id: int
    session_id: int
    number: int
    key: str
    status: TurnStatus
    text: str
    reply: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """A segment and what the archive knows of it.

    Args:
        session_id: the session it was said in.
        turn: the number of the turn it was said in.
        state: where it lives.
        pinned: whether it may not be dropped or summarized.
        kept_until: the turn up to which it is not offered for review again; 0 where never kept.
        recalls: how often it was found again.
        used_turn: the turn in which it was last recalled; 0 where never.
        searchable: whether word and vector search may find it.
    """

    segment: Segment
    session_id: int
    turn: int
    state: State = "live"
    pinned: bool = False
    kept_until: int = 0
    recalls: int = 0
    used_turn: int = 0
    searchable: bool = True


@dataclass(frozen=True, slots=True)
class WindowEntry:
    """One segment in the window of a session.

    Args:
        place: where it stands in time order.
        via: "prompt" where it was said, "kv" or "text" for how recall brought it back.
        until_turn: a recalled segment leaves after this turn; None stays.
    """

    segment_id: int
    place: int
    via: WindowVia = "prompt"
    until_turn: int | None = None


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """One decision on record, with all that `why` and `undo` need.

    Args:
        turn: the number of the turn it was made in.
        window_before: the window it was made on; `window_after` is what it left.
        states_before: per segment id, the state and whether it was pinned.
        effect: what it did (tokens before and after, `summary_id` of the summary it made).
        cost: what it cost (tokens, calls, seconds).
        undone_by: the decision that reverted it; None while it stands.
        created: seconds since the epoch.
    """

    id: int
    session_id: int
    turn: int
    decision: Decision
    window_before: tuple[WindowEntry, ...] = ()
    window_after: tuple[WindowEntry, ...] = ()
    states_before: Mapping[int, tuple[State, bool]] = field(default_factory=dict)
    effect: Mapping[str, Any] = field(default_factory=dict)
    cost: Mapping[str, Any] = field(default_factory=dict)
    undone_by: int | None = None
    created: float = 0.0


@dataclass(frozen=True, slots=True)
class BlockRow:
    """A block of core memory.

    Args:
        label: what it is called.
        description: what it is for.
        max_tokens: it may take at most so many in the window.
        version: of its current edit; 0 where there is none.
        segment_id: the segment with its text; None while it is empty.
    """

    label: str
    description: str
    max_tokens: int
    version: int = 0
    segment_id: int | None = None


@dataclass(frozen=True, slots=True)
class BlockEdit:
    """One edit of a block, on record.

    Args:
        version: 1, 2, 3, ... within the block; 0 until it is stored.
        operation: what was done.
        maker: who did it: "user" or the model's name.
        reason: why, in one sentence.
        session_id, turn: where it was done.
        created: seconds since the epoch.
        segment_id: the segment with the text it left; None where it left none.
        restored: the version an undo went back to, 0 for the empty block; None for other edits.
    """

    label: str
    version: int
    operation: BlockOperation
    maker: str
    reason: str
    session_id: int
    turn: int
    created: float = 0.0
    segment_id: int | None = None
    restored: int | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """One statement in one segment: the evidence of a fact, in the words it was said in.

    Args:
        subject: whose and what, as the statement has it.
        value: what it gives; None where no value can be told from the rest.
        text: the statement, a sentence.
        segment_id: where it was said.
        written_by: who read it there: "patterns", or a model's name.
        ordinal: which of the statements that one read in the segment, from 0.
        ended: it says that this is so no longer.
        turn, said_at: when it was said, as the turn's number and in seconds since the epoch.
        trust: of the segment.
    """

    subject: str
    value: str | None
    text: str
    segment_id: int
    written_by: str
    ordinal: int = 0
    ended: bool = False
    turn: int = 0
    said_at: float = 0.0
    trust: Trust = Trust.USER


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that was stated, and from when to when it held.

    Args:
        about: the same number for all facts about the same thing, whatever they say of it.
        sources: its evidence, the oldest first; never empty.
        valid_from: seconds since the epoch; None where all that is known is that it once held.
        valid_to: the moment from which it holds no longer; None while it holds.
    """

    id: int
    about: int
    sources: tuple[Source, ...]
    valid_from: float | None = None
    valid_to: float | None = None

    @property
    def subject(self) -> str:
        """Whose and what, as it was first said."""
        return self.sources[0].subject

    @property
    def value(self) -> str | None:
        """Its value, where one can be told."""
        return self.sources[0].value

    @property
    def statement(self) -> str:
        """The sentence that first stated it."""
        return self.sources[0].text

    @property
    def turn(self) -> int:
        """The number of the turn it was first said in."""
        return self.sources[0].turn

    @property
    def said_at(self) -> float:
        """When it was first said."""
        return self.sources[0].said_at

    @property
    def segment_ids(self) -> tuple[int, ...]:
        """The segments it was said in, the oldest first."""
        return tuple(dict.fromkeys(source.segment_id for source in self.sources))

    @property
    def trust(self) -> Trust:
        """The least trust of its sources."""
        return min(source.trust for source in self.sources)

    @property
    def written_by(self) -> str:
        """Who first read it."""
        return self.sources[0].written_by

    def held_at(self, seconds: float) -> bool:
        """Whether it is known to have held at a moment."""
        began = self.valid_from is not None and self.valid_from <= seconds
        return began and (self.valid_to is None or seconds < self.valid_to)


@dataclass(frozen=True, slots=True)
class Counters:
    """The newest id of each kind the store has given out, to whatever user.

    Args:
        segments, decisions, facts, changes: as the store counts them.
        recording: the newest row of one session's log; 0 where it has none.
    """

    segments: int
    decisions: int
    facts: int
    changes: int
    recording: int = 0


@dataclass(frozen=True, slots=True)
class RecordingRow:
    """What came from outside into one commit of a session, in order; plain JSON.

    Args:
        created: the time the commit's rows were stamped with, seconds since the epoch.
        counters: as they stood before the commit.
        last_change: the newest change in the commit; what follows it others changed.
    """

    id: int
    created: float
    counters: Counters
    last_change: int
    records: tuple[list[Any], ...]


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What others made of a user's memory since a session last wrote to its log.

    Args:
        newest: the newest change of the user's memory.
        in_session: segments of the session itself were added or moved.
        stated: segments whose facts changed, and who read them.
        blocks: the blocks as they are, each with the newest version it ever had.
    """

    newest: int
    in_session: bool
    stated: tuple[tuple[int, str], ...]
    blocks: tuple[BlockRow, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of the change log, which derived tiers follow; `sn` is the order of commits."""

    sn: int
    op: ChangeOp
    segment_id: int


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found, and what to do about it (`fix` is empty where all is well)."""

    name: str
    status: FindingStatus
    message: str
    fix: str = ""
