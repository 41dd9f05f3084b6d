"""One row of a review, in which a segment is quoted: its words forge no row and no order."""

from __future__ import annotations

import json

from agentmem.decision import Candidate
from agentmem.fence import Fence
from agentmem.segment import Trust

_FIRST_CHARS = 20


def quoted_row(candidate: Candidate) -> str:
    """One line: id, tokens, age, attention in ten-thousandths, whose words, and the first as JSON.

    However the text breaks lines or closes quotes, it stays one JSON string at the line's end.
    """
    attention = "?" if candidate.attention is None else str(round(candidate.attention * 10_000))
    segment = candidate.segment
    text = segment.text
    whose: str = "summary" if segment.kind == "summary" else segment.role
    if segment.trust < Trust.USER:
        text, whose = Fence.strip(text), f"external {whose}"
    words = " ".join(text.split())
    first = words if len(words) <= _FIRST_CHARS else words[: _FIRST_CHARS - 1].rstrip() + "…"
    return (
        f"{candidate.id}|{candidate.num_tokens}|{candidate.age_turns}|{attention}|"
        f"{whose}: {json.dumps(first, ensure_ascii=False)}"
    )
