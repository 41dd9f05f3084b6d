"""What `agentmem export` wrote, read back: as it was where it is trusted, as data where not.

    {"type": "manifest", "format": 1, "counts": {...}, "sha256": ...}    the hash of all behind it
    {"type": "session", ...}    each followed by its turns
    {"type": "segment", "session": ..., ...}    in whatever session; behind what it is made of
    {"type": "block" | "fact", ...}    core memory and facts (see core_memory.py)

Anybody can write such a file with a hash that holds: the hash says that it is whole, the caller
says that it is theirs. Windows, decisions and logs are not read back, nothing enters a window. Of a
file that is not trusted neither are core memory and facts: those are read from the text again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from agentmem.errors import InvalidInput
from agentmem.importing.core_memory import BlockRead, EditRead, FactRead, MemoryReader
from agentmem.importing.lines import ImportLines
from agentmem.importing.plain import check_length, imported_segment
from agentmem.importing.rows import RowReader
from agentmem.segment import Kind, Message, Origin, Role, Segment, State, ToolCall, Trust

FORMAT = 1
_UNSEARCHABLE = ("core_block", "thought", "instruction")
_LEFT_OUT = ("decision", "recording")
_MEMORY = ("block", "block_edit", "fact")


@dataclass(frozen=True, slots=True)
class SessionRead:
    """What follows is of this session; at the first mention it begins."""

    name: str


@dataclass(frozen=True, slots=True)
class TurnRead:
    """One turn; `number` counts from 1 within its session."""

    number: int
    key: str
    text: str
    reply: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class SegmentRead:
    """One segment, its parents by the ids they had.

    Args:
        segment: with id 0.
        old_id: the id it had; 0 where it had none.
        turn: in which it was said.
        state: where it will live.
        searchable: whether searches may find it.
    """

    segment: Segment
    old_id: int = 0
    turn: int = 0
    state: State = "archived"
    searchable: bool = True


Read = SessionRead | TurnRead | SegmentRead | BlockRead | EditRead | FactRead


@dataclass
class ExportReader(RowReader):
    """The rows of one export.

    Args:
        lines: the file.
        source: of segments that are read as data.
        trusted: read them as they were.
    """

    source: str
    trusted: bool
    _known: set[int] = field(default_factory=set)
    _num_turns: int = 0

    def __post_init__(self) -> None:
        self._memory = MemoryReader(self.lines)

    def rows(self) -> Iterator[tuple[int, Read]]:
        """Every row that is read in the file's order, with its line's number.

        Raises:
            InvalidInput: a row is not as `export` writes it, or names what did not come before it.
        """
        self._known, self._num_turns = set(), 0
        self._memory.begin()
        sessions = self._memory.sessions
        current: str | None = None
        for number, row in self.lines.objects():
            kind = row.get("type")
            if number == 1 or kind in _LEFT_OUT or (kind in _MEMORY and not self.trusted):
                continue
            if kind == "session":
                current, self._num_turns = self.text(number, row, "session"), 0
                if current in sessions:
                    raise self.lines.fault(number, f"`session` must be new: got {current!r:.40}.")
                sessions.add(current)
                yield number, SessionRead(current)
            elif kind in _MEMORY:
                about = self._memory.row(number, row)
                if about is not None:
                    yield number, about
            elif kind not in ("turn", "segment") or current is None:
                raise self.lines.fault(
                    number,
                    "`type` must be that of a row of an export, the first a session: "
                    f"got {kind!r:.40}.",
                )
            elif kind == "segment":
                if (session := row.get("session", current)) != current:
                    current = self.one_of(number, row, "session", tuple(sorted(sessions)))
                    yield number, SessionRead(session)
                yield number, self._segment(number, row)
            elif self.trusted:
                yield number, self._turn(number, row)

    def _turn(self, number: int, row: Mapping[str, Any]) -> TurnRead:
        self._num_turns += 1
        if self.count(number, row, "number") != self._num_turns:
            raise self.lines.fault(number, f"`number` must be {self._num_turns}, the next turn's.")
        reply = row.get("reply")
        if reply is not None:
            if not isinstance(reply, dict):
                raise self.lines.fault(number, "`reply` must be an object or null.")
            self.text(number, reply, "text")
            self.text(number, reply, "finish_reason")
        key, text = self.text(number, row, "turn"), self.text(number, row, "text")
        return TurnRead(self._num_turns, key, text, reply)

    def _segment(self, number: int, row: Mapping[str, Any]) -> SegmentRead:
        old_id = self.count(number, row, "id")
        kind = self.one_of(number, row, "kind", get_args(Kind))
        read = self._as_it_was(number, row) if self.trusted else self._as_data(number, row)
        parents = self.value(number, row, "parents", list)
        unknown = [one for one in parents if type(one) is not int or one not in self._known]
        if unknown or old_id in self._known:
            raise self.lines.fault(
                number,
                "`id` must be new and `parents` ids of segments before it: "
                f"got {old_id} and {unknown!r:.40}.",
            )
        self._known.add(old_id)
        state: State = "summarized" if row.get("state") == "summarized" else "archived"
        turn = self.count(number, row, "turn") if self.trusted else 0
        self._memory.segments[old_id] = read
        read = replace(read, parents=tuple(parents))
        return SegmentRead(read, old_id, turn, state, kind not in _UNSEARCHABLE)

    def _as_data(self, number: int, row: Mapping[str, Any]) -> Segment:
        messages = self._messages(number, row)
        whole = Segment(messages)
        kind: Kind = "document_part" if row["kind"] == "document_part" else "turn"
        role: Role = messages[0].role if len(messages) == 1 else "user"
        return imported_segment(
            whole.text,
            role=role,
            kind=kind,
            source=self.source,
            created=self.seconds(number, row, "created"),
        )

    def _as_it_was(self, number: int, row: Mapping[str, Any]) -> Segment:
        trusts = {trust.name.lower(): trust for trust in Trust}
        segment = Segment(
            self._messages(number, row),
            kind=self.one_of(number, row, "kind", get_args(Kind)),
            origin=self.one_of(number, row, "origin", get_args(Origin)),
            trust=trusts[self.one_of(number, row, "trust", tuple(trusts))],
            created=self.seconds(number, row, "created"),
            source=self.text(number, row, "source") if "source" in row else "",
        )
        if segment.content_hash != row.get("content_hash"):
            raise self.lines.fault(number, "`content_hash` is not that of its messages.")
        return segment

    def _messages(self, number: int, row: Mapping[str, Any]) -> tuple[Message, ...]:
        said = self.value(number, row, "messages", list)
        if not said or not all(isinstance(one, dict) for one in said):
            raise self.lines.fault(number, "`messages` must be a list of objects, at least one.")
        messages = tuple(self._message(number, one) for one in said)
        check_length(self.lines, number, "".join(message.content for message in messages))
        return messages

    def _message(self, number: int, said: Mapping[str, Any]) -> Message:
        calls = said.get("tool_calls", [])
        if not isinstance(calls, list) or not all(isinstance(one, dict) for one in calls):
            raise self.lines.fault(number, "`tool_calls` must be a list of objects.")
        has_id = "tool_call_id" in said
        return Message(
            self.one_of(number, said, "role", get_args(Role)),
            self.text(number, said, "content"),
            tuple(
                ToolCall(*(self.text(number, call, name) for name in ("id", "name", "arguments")))
                for call in calls
            ),
            self.text(number, said, "tool_call_id") if has_id else None,
        )


def manifest_of(lines: ImportLines) -> dict[str, Any] | None:
    """The manifest on the first line; None where the file is no export.

    Raises:
        InvalidInput: it is of a format that this version does not know.
    """
    try:
        number, first = next(lines.objects(), (0, {}))
    except InvalidInput:
        return None
    if first.get("type") != "manifest":
        return None
    if first.get("format") != FORMAT:
        raise lines.fault(
            number,
            f"an export of format {first.get('format')!r:.20}: this agentmem reads {FORMAT}.",
        )
    return first
