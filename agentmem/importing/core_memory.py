"""Core memory and facts of an export, read back: what a trusted file restores besides talk.

    {"type": "block", ...}   each followed by its edits, {"type": "block_edit", ...}
    {"type": "fact", "sources": [...]}    what was stated of one thing, and in which segments

They follow the sessions, and name segments and sessions by what those were called there. How long a
fact held is not read: it follows from its sources, here as there. Stores nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from agentmem.block import check_description, check_label
from agentmem.errors import InvalidInput
from agentmem.importing.rows import RowReader
from agentmem.segment import Segment
from agentmem.storage.rows import BlockEdit, BlockOperation, Source
from agentmem.storage.text import check_text


@dataclass(frozen=True, slots=True)
class BlockRead:
    """A block; `version` is the number of its newest edit ever made."""

    label: str
    description: str
    max_tokens: int
    version: int


@dataclass(frozen=True, slots=True)
class EditRead:
    """One edit of the block before it.

    Args:
        edit: with the segment by the id it had, and without session.
        session: the session it was made in, by its name there.
    """

    edit: BlockEdit
    session: str


@dataclass(frozen=True, slots=True)
class FactRead:
    """Statements that make one fact.

    Args:
        about: the same number for all facts of the file about one thing.
        sources: with their segments by the ids they had.
    """

    about: int
    sources: tuple[Source, ...]


@dataclass
class MemoryReader(RowReader):
    """Reads rows about what was read before them.

    Args:
        segments: by the ids they had; filled by whoever reads the sessions.
        sessions: their names.
    """

    segments: dict[int, Segment] = field(default_factory=dict)
    sessions: set[str] = field(default_factory=set)
    _block: BlockRead | None = None
    _labels: set[str] = field(default_factory=set)
    _last_version: int = 0
    _statements: set[tuple[int, str, int]] = field(default_factory=set)

    def begin(self) -> None:
        """The file is read from its beginning."""
        self.segments.clear()
        self.sessions.clear()
        self._labels.clear()
        self._statements.clear()
        self._block = None

    def row(self, number: int, row: Mapping[str, Any]) -> BlockRead | EditRead | FactRead | None:
        """What a row says; None where it says too little.

        Raises:
            InvalidInput: it is not as `export` writes it, or names what did not come before it.
        """
        kind = row["type"]
        if kind == "fact":
            return self._fact(number, row)
        return self._begun(number, row) if kind == "block" else self._edit(number, row)

    def _begun(self, number: int, row: Mapping[str, Any]) -> BlockRead:
        """A block begins.

        Raises:
            InvalidInput: it is none, or one of its label came before.
        """
        try:
            label = check_label(self.text(number, row, "label"))
            description = check_description(self.text(number, row, "description"))
        except InvalidInput as error:
            raise self.lines.fault(number, str(error)) from error
        tokens = self.count(number, row, "max_tokens")
        if label in self._labels or not tokens:
            raise self.lines.fault(
                number,
                f"`label` must be new and `max_tokens` positive: got {label!r} and {tokens}.",
            )
        self._labels.add(label)
        self._last_version = 0
        self._block = BlockRead(label, description, tokens, self.count(number, row, "version"))
        return self._block

    def _edit(self, number: int, row: Mapping[str, Any]) -> EditRead:
        """An edit of the block that began last.

        Raises:
            InvalidInput: it is none, or follows no edit it can follow.
        """
        block, version = self._block, self.count(number, row, "version")
        if block is None or row.get("label") != block.label:
            raise self.lines.fault(number, "A block_edit must follow its block.")
        if not self._last_version < version <= block.version:
            raise self.lines.fault(
                number,
                f"`version` must lie in {self._last_version + 1}..{block.version}: got {version}.",
            )
        self._last_version = version
        session = self.text(number, row, "session")
        if session not in self.sessions:
            raise self.lines.fault(number, f"`session` must be one before it: got {session!r:.40}.")
        segment_id = self.count_or_none(number, row, "segment")
        if segment_id is not None and self._segment(number, segment_id).kind != "core_block":
            raise self.lines.fault(number, f"Segment {segment_id} is no version of a block.")
        edit = BlockEdit(
            label=block.label,
            version=version,
            operation=self.one_of(number, row, "operation", get_args(BlockOperation)),
            maker=self._words(number, row, "maker"),
            reason=self._words(number, row, "reason"),
            session_id=0,
            turn=self.count(number, row, "turn"),
            created=self.seconds(number, row, "created"),
            segment_id=segment_id,
            restored=self.count_or_none(number, row, "restored"),
        )
        return EditRead(edit, session)

    def _fact(self, number: int, row: Mapping[str, Any]) -> FactRead | None:
        """A fact; None where the file does not tell its sources, as older ones do not.

        Raises:
            InvalidInput: it is none, or of segments that did not come before.
        """
        if "sources" not in row:
            return None
        told = self.value(number, row, "sources", list)
        if not told or not all(isinstance(one, dict) for one in told):
            raise self.lines.fault(number, "`sources` must be a list of objects, at least one.")
        sources = tuple(self._source(number, one) for one in told)
        return FactRead(self.count(number, row, "about"), sources)

    def _source(self, number: int, row: Mapping[str, Any]) -> Source:
        segment_id = self.count(number, row, "segment")
        segment = self._segment(number, segment_id)
        written_by = self._words(number, row, "written_by")
        ordinal = self.count(number, row, "ordinal")
        statement = (segment_id, written_by, ordinal)
        if statement in self._statements:
            raise self.lines.fault(
                number, f"`ordinal` must be new for its segment and reader: got {ordinal}."
            )
        self._statements.add(statement)
        return Source(
            subject=self.text(number, row, "subject"),
            value=self.text_or_none(number, row, "value"),
            text=self.text(number, row, "statement"),
            segment_id=segment_id,
            written_by=written_by,
            ordinal=ordinal,
            ended=self.value(number, row, "ended", bool),
            said_at=segment.created,
            trust=segment.trust,
        )

    def _words(self, number: int, row: Mapping[str, Any], name: str) -> str:
        try:
            return check_text(self.text(number, row, name), f"`{name}`")
        except InvalidInput as error:
            raise self.lines.fault(number, str(error)) from error

    def _segment(self, number: int, segment_id: int) -> Segment:
        segment = self.segments.get(segment_id)
        if segment is None:
            raise self.lines.fault(number, f"Segment {segment_id} did not come before it.")
        return segment
