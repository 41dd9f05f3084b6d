"""What a session came to, as lines that can be hashed and compared: its segments, its window, the
decisions about it, its turns, the facts stated in it and core memory, without any wall clock.

What was forgotten is not in it. Two sessions with the same hash are in the same state, down to the
last decision's evidence.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from agentmem.audit.records import window_items
from agentmem.storage.archive import Archive, DecisionRow, Fact, StoredSegment

_CLOCKED = ("seconds",)


def state_hash(archive: Archive, session: str) -> str:
    """SHA-256 of a session's state, in hex.

    Raises:
        InvalidInput: there is no such session.
    """
    digest = hashlib.sha256()
    for name, value in state_items(archive, session):
        digest.update(f"{name} {value}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def state_items(archive: Archive, session: str) -> Iterator[tuple[str, str]]:
    """The state item by item: what it is called, and its value as canonical JSON."""
    row = archive.session(session, create=False)
    for turn in archive.turns(row.id):
        value = {"key": turn.key, "text": turn.text, "reply": turn.reply}
        yield f"turn {turn.number}", _json(value)
    own: set[int] = set()
    for page in archive.session_pages(row.id):
        own.update(stored.segment.id for stored in page)
        tags = archive.passage_tags(stored.segment.id for stored in page)
        for stored in page:
            value = _segment(stored) | {"tags": tags.get(stored.segment.id, [])}
            yield f"segment {stored.segment.id}", _json(value)
        facts = archive.facts(stored.segment.id for stored in page)
        said = {one.said_at: one.segment_id for fact in facts for one in fact.sources}
        for fact in facts:
            name = f"fact about {fact.about} from {fact.sources[0].segment_id}"
            yield name, _json(_fact(fact, said))
    for place, item in enumerate(window_items(archive.window(row.id))):
        yield f"window place {place}", _json(item)
    for block in archive.blocks():
        yield f"block {block.label}", _json(asdict(block))
    for made in reversed(archive.decisions(session_id=row.id, limit=2**31)):
        yield f"decision {made.id}", _json(_decision(made, own))


def first_difference(archive: Archive, other: Archive, session: str) -> str:
    """The first item in which a session differs between two archives, in words; "" for none."""
    mine, theirs = dict(state_items(archive, session)), dict(state_items(other, session))
    for name in [*mine, *theirs]:
        here, there = mine.get(name), theirs.get(name)
        if here != there:
            return f"{name}: recorded {_short(here)}, replayed {_short(there)}"
    return ""


def _segment(stored: StoredSegment) -> dict[str, Any]:
    segment = stored.segment
    return {
        "content_hash": segment.content_hash,
        "kind": segment.kind,
        "origin": segment.origin,
        "trust": int(segment.trust),
        "state": stored.state,
        "pinned": stored.pinned,
        "kept_until": stored.kept_until,
        "turn": stored.turn,
        "parents": list(segment.parents),
    }


def _fact(fact: Fact, said: Mapping[float, int]) -> dict[str, Any]:
    """A fact, the moments of its interval told by the segments that were said then."""
    began, ended = fact.valid_from, fact.valid_to
    return {
        "sources": [
            [one.segment_id, one.written_by, one.ordinal, one.subject, one.value, one.ended]
            for one in fact.sources
        ],
        "began": None if began is None else said.get(began, 0),
        "ended": None if ended is None else said.get(ended, 0),
    }


def _decision(row: DecisionRow, own: Collection[int]) -> dict[str, Any]:
    """One decision; where another session's segment lived is that session's state."""
    decision = row.decision
    states = {str(one): list(state) for one, state in row.states_before.items() if one in own}
    return {
        "turn": row.turn,
        "action": decision.action,
        "segments": list(decision.segment_ids),
        "source": decision.source,
        "reason": decision.reason,
        "maker": decision.maker,
        "evidence": {str(one): dict(shown) for one, shown in decision.evidence.items()},
        "alternative": decision.alternative,
        "tool_call": decision.tool_call,
        "before": window_items(row.window_before),
        "after": window_items(row.window_after),
        "states": states,
        "effect": dict(row.effect),
        "cost": {name: value for name, value in row.cost.items() if name not in _CLOCKED},
        "undone_by": row.undone_by,
    }


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=_plain)


def _plain(value: object) -> Any:
    return dict(value) if isinstance(value, Mapping) else str(value)


def _short(value: str | None) -> str:
    if value is None:
        return "nothing"
    return value if len(value) <= 300 else value[:299] + "…"
