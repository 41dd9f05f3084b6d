"""What a review is filed with, in words: it reads what `Verdict.cost` wrote."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def in_words(record: Mapping[str, Any], segment_id: int, taken_out: Iterable[int]) -> list[str]:
    """What a review saw and heard, and which other segment it might have let go instead.

    Args:
        record: what `Verdict.cost` made.
        segment_id: the segment that is explained.
        taken_out: segments that the review let go.
    """
    evidence = record.get("evidence", {})
    offered = record.get("offered", [])
    lines = [f"{len(offered)} segments were on offer, to come down to {record['target']} tokens."]
    parsed = record.get("parsed", [])
    if record.get("raw"):
        accepted = sum(bool(call["accepted"]) for call in parsed)
        lines.append(
            f"The model answered {len(record['raw'])} times with {len(parsed)} calls; "
            f"{accepted} were taken up."
        )
    for call in parsed:
        for ids, reason in call["refused"]:
            if segment_id in ids:
                lines.append(f"{call['call'].get('name')} of it was refused: {reason}.")
    gone = set(taken_out)
    tokens = evidence.get(str(segment_id), {}).get("num_tokens", 0)
    instead = [
        one
        for one in offered
        if one not in gone and evidence.get(str(one), {}).get("num_tokens", 0) >= tokens > 0
    ]
    if segment_id in gone and instead:
        best = min(instead, key=lambda one: (evidence[str(one)]["num_tokens"], one))
        lines.append(
            f"Letting segment {best} go instead ({evidence[str(best)]['num_tokens']} tokens, on "
            "offer too) would have kept it."
        )
    return lines
