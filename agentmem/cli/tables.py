"""Tables of what is remembered, for a terminal of 60 columns or more.

Ids and numbers stay on one line; everything else wraps, by words where it can, and no cell is cut
short. Knows values and widths; not where they came from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from agentmem.cli.render import preview, safe, when

if TYPE_CHECKING:
    from agentmem import DecisionRow, Fact, Hit, StoredSegment

_NUMBERS = {"id", "score", "turn", "tokens", "turns", "recalls"}
_WHOLE = _NUMBERS | {"held"}
_MAX_WIDTHS = {"segments": 12}
_MAX_FACT_CHARS = 1000
_ROOMY_WIDTH = 120
"""From this width on a fact is shown as one row of its own columns."""


def table(*columns: str, rows: Iterable[Sequence[object]]) -> Table:
    """A plain table; every cell that is no text of ours is made safe."""
    grid = Table(box=None, pad_edge=False, header_style="dim")
    for name in columns:
        grid.add_column(
            name,
            no_wrap=name in _WHOLE,
            overflow="fold",
            justify="right" if name in _NUMBERS else "left",
            max_width=_MAX_WIDTHS.get(name),
        )
    for row in rows:
        grid.add_row(*(value if isinstance(value, Text) else Text(_cell(value)) for value in row))
    return grid


def _cell(value: object) -> str:
    if value is None:
        return "-"
    text = f"{value:.2f}" if isinstance(value, float) else str(value)
    return safe(text).replace("\n", "\\n").replace("\t", "\\t")


def hits_table(hits: Iterable[Hit]) -> Table:
    """What a search found, best first."""
    rows = [
        (hit.segment.id, hit.score, hit.state, hit.turn, hit.segment.origin,
         preview(hit.segment.text) + _held(hit))
        for hit in hits
    ]  # fmt: skip
    return table("id", "score", "state", "turn", "from", "text", rows=rows)


def _held(hit: Hit) -> str:
    """When what a segment states held, where it holds no longer, or probably does not."""
    ended = [
        f"{fact.value or fact.subject} {_interval(fact, ' ')}"
        for fact in hit.facts
        if fact.valid_to is not None
    ]
    if hit.until is not None and not ended:
        ended = [f"probably until {when(hit.until)}, then segment {hit.instead}"]
    return f" [{preview('; '.join(ended), 120)}]" if ended else ""


def _interval(fact: Fact, between: str) -> str:
    """From when and until when a fact held, as far as it is known."""
    ends = (("since", fact.valid_from), ("until", fact.valid_to))
    return between.join(f"{word} {when(moment)}" for word, moment in ends if moment is not None)


@dataclass(frozen=True)
class FactsTable:
    """Facts with the time in which each held: side by side, or one under the other where narrow."""

    facts: Sequence[Fact]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the table that the width has room for."""
        yield self._wide() if options.max_width >= _ROOMY_WIDTH else self._narrow()

    def _wide(self) -> Table:
        rows = [
            (fact.id, fact.turn, _interval(fact, " "), _said_in(fact),
             preview(fact.value or "", _MAX_FACT_CHARS), preview(fact.statement, _MAX_FACT_CHARS))
            for fact in self.facts
        ]  # fmt: skip
        return table("id", "turn", "held", "segments", "value", "statement", rows=rows)

    def _narrow(self) -> Table:
        rows = [(_said_in(fact), Text(_interval(fact, "\n")), _stated(fact)) for fact in self.facts]
        return table("segments", "held", "value and statement", rows=rows)


def _said_in(fact: Fact) -> str:
    return " ".join(map(str, fact.segment_ids))


def _stated(fact: Fact) -> Text:
    statement = preview(fact.statement, _MAX_FACT_CHARS)
    if fact.value is None:
        return Text(statement)
    return Text.assemble((preview(fact.value, _MAX_FACT_CHARS), "bold"), "\n", statement)


def segments_table(segments: Iterable[StoredSegment]) -> Table:
    """Segments, one a row."""
    rows = [
        (stored.segment.id, stored.turn, stored.segment.kind, stored.segment.origin,
         stored.state + (" pinned" if stored.pinned else ""), preview(stored.segment.text))
        for stored in segments
    ]  # fmt: skip
    return table("id", "turn", "kind", "from", "state", "text", rows=rows)


def decisions_table(decisions: Iterable[DecisionRow]) -> Table:
    """Decisions, one a row."""
    rows = [
        (row.id, row.turn, row.decision.action, row.decision.source,
         " ".join(map(str, row.decision.segment_ids)), preview(row.decision.reason))
        for row in decisions
    ]  # fmt: skip
    return table("id", "turn", "action", "by", "segments", "reason", rows=rows)
