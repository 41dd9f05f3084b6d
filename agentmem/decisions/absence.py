"""Why a segment is not in the window where no decision took it out. It decides nothing."""

from __future__ import annotations

from dataclasses import dataclass

from agentmem.storage.rows import StoredSegment


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What is known of a segment besides itself.

    Args:
        session: name of the session it was said in; "" for the window's own.
        stub: of a document's part, the segment that stands for the document; 0 otherwise.
        stub_in_window: whether that is in the window.
        turn: the turn that is answered, or was last.
        lifetime_turns: for how many turns a recalled segment stays.
    """

    session: str = ""
    stub: int = 0
    stub_in_window: bool = False
    turn: int = 0
    lifetime_turns: int = 3


def absence(stored: StoredSegment, around: Surroundings) -> list[str]:
    """Why it is not in the window, in sentences: how it would get there, and when it was."""
    segment = stored.segment
    lines = []
    if segment.kind == "core_block":
        lines.append("Another system prompt took its place; only one is in force.")
    elif segment.kind == "thought":
        lines.append("What a model thought is kept to explain its reply; it is never read again.")
    elif segment.kind == "instruction":
        lines.append(
            f"It repeats what segment {segment.parents[0]} asks for from then on; it is in the "
            "window only while it is pinned."
        )
    elif around.stub:
        where = "in the window" if around.stub_in_window else "not in the window either"
        lines.append(
            f"It is a part of a document too long for the window; segment {around.stub} stands "
            f"for it and is {where}. A part is in the window only while it is recalled."
        )
    elif around.session:
        lines.append(
            f"It was said in session {around.session!r}: here it is in the window only while it is "
            "recalled."
        )
    if stored.used_turn and not around.session:
        lines.append(
            f"It was recalled last in turn {stored.used_turn} of {around.turn}. A recalled segment "
            f"leaves by itself {around.lifetime_turns} turns later, or earlier where others need "
            "the room; no decision is made about it."
        )
    elif stored.used_turn:
        lines.append("It was recalled before, and left by itself when it was not used again.")
    return lines
