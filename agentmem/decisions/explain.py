"""Decisions in words: what happened to a segment, on what evidence, and what would have kept it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentmem.decisions.absence import Surroundings, absence
from agentmem.decisions.review_record import in_words
from agentmem.segment import State
from agentmem.storage.rows import DecisionRow, StoredSegment

_DONE = {
    "keep": "kept",
    "unkeep": "kept no more",
    "summarize": "summarized",
    "drop": "dropped",
    "pin": "pinned",
    "unpin": "unpinned",
    "bring_back": "brought back",
    "forget": "forgotten",
}


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a segment is where it is.

    Args:
        text: in words.
        decisions: the decisions that touched it, newest first.
    """

    text: str
    decisions: tuple[DecisionRow, ...]

    def __str__(self) -> str:
        return self.text


def explain(
    stored: StoredSegment,
    state: State,
    in_window: bool,
    rows: Sequence[DecisionRow],
    *,
    around: Surroundings = Surroundings(),  # noqa: B008, frozen
    reviews: Mapping[int, Sequence[DecisionRow]] | None = None,
) -> Explanation:
    """Explain one segment by the decisions that touched it, newest first, or by what it is.

    Args:
        around: what is known of it besides.
        reviews: per decision that a review made, all decisions of that review, the first first.
    """
    segment = stored.segment
    words = " ".join(segment.text.split())
    quote = words if len(words) <= 60 else words[:59].rstrip() + "…"
    where = "in the window" if in_window else "not in the window"
    lines = [f"Segment {segment.id} ({segment.origin}, turn {stored.turn}): “{quote}”"]
    lines.append(f"It is {where} ({state}{', pinned' if stored.pinned else ''}).")
    if not in_window:
        lines += absence(stored, around)
    if not rows:
        lines.append("No decision has touched it.")
    for row in rows:
        lines += _decision(row, segment.id, (reviews or {}).get(row.id, ()))
    return Explanation("\n".join(lines), tuple(rows))


def explain_forgotten(segment_id: int, turn: int, rows: Sequence[DecisionRow]) -> Explanation:
    """Explain a segment of which only the id is left."""
    lines = [
        f"Segment {segment_id} (turn {turn}) was forgotten: its text is deleted from every tier.",
        "What is left says only that it was there; it cannot be brought back.",
    ]
    for row in rows:
        lines.append(f"Decision {row.id}, turn {row.turn}: {_DONE[row.decision.action]}.")
    return Explanation("\n".join(lines), tuple(rows))


def _decision(row: DecisionRow, segment_id: int, review: Sequence[DecisionRow]) -> list[str]:
    decision = row.decision
    named = decision.maker not in ("", decision.source)
    by = f"{decision.source} {decision.maker}" if named else decision.source
    undone = f", undone by decision {row.undone_by}" if row.undone_by is not None else ""
    lines = [f"Decision {row.id}, turn {row.turn}: {_DONE[decision.action]} by {by}{undone}."]
    if decision.reason:
        lines.append(f"  Because: {decision.reason}")
    evidence = decision.evidence.get(segment_id)
    if evidence:
        lines.append(f"  Evidence: {_numbers(evidence)}.")
    if decision.alternative:
        lines.append(f"  Runner-up: {decision.alternative}")
    if "summary_id" in row.effect:
        lines.append(
            f"  Its place took summary {row.effect['summary_id']}, written by "
            f"{row.effect.get('written_by', 'a model')}."
        )
    if "precision" in row.effect:
        was = row.effect["precision_before"].get(str(segment_id)) or "as in the whole session"
        lines.append(
            f"  Its keys and values are stored as {row.effect['precision']}, before {was}."
        )
    if review and "offered" in review[0].cost:
        gone = [
            one
            for made in review
            if made.decision.action in ("drop", "summarize")
            for one in made.decision.segment_ids
        ]
        lines += [f"  {line}" for line in in_words(review[0].cost, segment_id, gone)]
    kept = _would_have_kept(row, evidence)
    if kept:
        lines.append(f"  It would have stayed: {kept}")
    return lines


def _numbers(evidence: Mapping[str, Any]) -> str:
    parts = []
    for name, value in evidence.items():
        if value is None:
            parts.append(f"{name.replace('_', ' ')} unknown")
        elif isinstance(value, float):
            parts.append(f"{name.replace('_', ' ')} {value:.4g}")
        else:
            parts.append(f"{name.replace('_', ' ')} {value}")
    return ", ".join(parts)


def _would_have_kept(row: DecisionRow, evidence: Mapping[str, Any] | None) -> str:
    """What would have made this decision come out otherwise."""
    decision = row.decision
    if decision.action not in ("drop", "summarize"):
        return ""
    if decision.source == "user":
        return "the user asked for this; only not asking would have kept it."
    ways = ["a pin"]
    if decision.tool_call is not None:
        ways.append("a keep_segments or pin_segment call of the controller")
    elif evidence and "score" in evidence:
        ways.append(f"a score above {evidence['score']:.4g}, past the runner-up's")
    tokens = evidence.get("num_tokens") if evidence else None
    if tokens is not None:
        ways.append(f"{tokens} more tokens of budget below the review's target")
    return ", ".join(ways[:-1]) + " or " + ways[-1] + "." if len(ways) > 1 else ways[0] + "."
