"""What commands write with `--json`: rows of the memory as JSON objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentmem import (
        Block,
        BlockEdit,
        DecisionRow,
        Fact,
        Hit,
        RecordingRow,
        SessionRow,
        Source,
        StoredSegment,
        TurnRow,
    )


def hit_json(hit: Hit) -> dict[str, Any]:
    """A search's hit as a JSON object."""
    return {
        "type": "hit",
        "id": hit.segment.id,
        "score": round(hit.score, 4),
        "scores": {name: round(score, 4) for name, score in hit.scores.items()},
        "state": hit.state,
        "turn": hit.turn,
        "origin": hit.segment.origin,
        "text": hit.segment.text,
        "facts": [fact_json(fact) for fact in hit.facts],
        "instead": hit.instead,
        "until": hit.until,
    }


def fact_json(fact: Fact) -> dict[str, Any]:
    """A fact as a JSON object; moments in seconds since the epoch."""
    return {
        "type": "fact",
        "id": fact.id,
        "about": fact.about,
        "subject": fact.subject,
        "value": fact.value,
        "statement": fact.statement,
        "turn": fact.turn,
        "said_at": fact.said_at,
        "valid_from": fact.valid_from,
        "valid_to": fact.valid_to,
        "trust": fact.trust.name.lower(),
        "written_by": fact.written_by,
        "segments": list(fact.segment_ids),
    }


def source_json(source: Source) -> dict[str, Any]:
    """One statement that a fact is made of, as a JSON object."""
    return {
        "segment": source.segment_id,
        "written_by": source.written_by,
        "ordinal": source.ordinal,
        "subject": source.subject,
        "value": source.value,
        "statement": source.text,
        "ended": source.ended,
    }


def segment_json(stored: StoredSegment) -> dict[str, Any]:
    """A segment as a JSON object."""
    segment = stored.segment
    return {
        "type": "segment",
        "id": segment.id,
        "turn": stored.turn,
        "kind": segment.kind,
        "origin": segment.origin,
        "trust": segment.trust.name.lower(),
        "source": segment.source,
        "state": stored.state,
        "pinned": stored.pinned,
        "recalls": stored.recalls,
        "created": segment.created,
        "parents": list(segment.parents),
        "content_hash": segment.content_hash,
        "messages": [message.to_dict() for message in segment.messages],
        "text": segment.text,
    }


def decision_json(row: DecisionRow) -> dict[str, Any]:
    """A decision on record as a JSON object."""
    decision = row.decision
    return {
        "type": "decision",
        "id": row.id,
        "turn": row.turn,
        "action": decision.action,
        "segments": list(decision.segment_ids),
        "source": decision.source,
        "maker": decision.maker,
        "reason": decision.reason,
        "alternative": decision.alternative,
        "evidence": {str(key): dict(value) for key, value in decision.evidence.items()},
        "tool_call": None if decision.tool_call is None else dict(decision.tool_call),
        "effect": dict(row.effect),
        "cost": dict(row.cost),
        "undone_by": row.undone_by,
        "created": row.created,
    }


def session_json(row: SessionRow) -> dict[str, Any]:
    """A session as a JSON object."""
    return {"type": "session", "session": row.name, "turns": row.num_turns, "created": row.created}


def turn_json(row: TurnRow) -> dict[str, Any]:
    """A turn as a JSON object."""
    return {
        "type": "turn",
        "number": row.number,
        "turn": row.key,
        "status": row.status,
        "text": row.text,
        "reply": None if row.reply is None else dict(row.reply),
    }


def block_json(block: Block) -> dict[str, Any]:
    """A block of core memory as a JSON object."""
    return {
        "type": "block",
        "label": block.label,
        "description": block.description,
        "max_tokens": block.max_tokens,
        "num_tokens": block.num_tokens,
        "version": block.version,
        "segment": block.segment_id,
        "text": block.text,
    }


def block_edit_json(edit: BlockEdit) -> dict[str, Any]:
    """One edit of a block as a JSON object; its text is that of its segment."""
    return {
        "type": "block_edit",
        "label": edit.label,
        "version": edit.version,
        "operation": edit.operation,
        "maker": edit.maker,
        "reason": edit.reason,
        "turn": edit.turn,
        "created": edit.created,
        "segment": edit.segment_id,
        "restored": edit.restored,
    }


def recording_json(row: RecordingRow) -> dict[str, Any]:
    """A row of a session's log as a JSON object: what came from outside into one commit.

    The key of the marks around foreign text stays in the store.
    """
    counted = row.counters
    return {
        "type": "recording",
        "id": row.id,
        "created": row.created,
        "counters": [counted.segments, counted.decisions, counted.facts, counted.changes],
        "records": [
            ["open", {name: value for name, value in one[1].items() if name != "fence"}]
            if one[0] == "open"
            else one
            for one in row.records
        ],
    }
