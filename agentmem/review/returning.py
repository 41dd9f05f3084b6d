"""What a review may bring back: the few segments outside the window that a message is nearest to.

They are this session's own, near enough that recall would think of them, and as many as a few rows
can name. How many tokens may come back follows from what cannot leave: the window must still come
down to its target. It decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentmem.budget import Budget
from agentmem.decision import Candidate
from agentmem.memory import Memory
from agentmem.storage.rows import StoredSegment

MAX_RETURNABLE = 4
"""Segments outside the window that a review is shown at most."""
_MOST_LOOKED_AT = 32


@dataclass(frozen=True, slots=True)
class Returnable:
    """Segments that may come back.

    Args:
        candidates: the nearest first.
        max_tokens: of all that come back together.
    """

    candidates: tuple[Candidate, ...] = ()
    max_tokens: int = 0


def outside_window(
    memory: Memory, text: str, vector: NDArray[np.float32] | None
) -> tuple[Candidate, ...]:
    """The segments of this session outside its window that a message is nearest to, best first.

    Args:
        text: the message.
        vector: its embedding; nothing is near without one.
    """
    if vector is None or not text:
        return ()
    near = memory.recall.min_cosine["own"]
    ranked = memory.finder.rank(text, vector, limit=_MOST_LOOKED_AT)
    cosines = {one.segment_id: one.cosine for one in ranked if one.nearness >= near}
    stored = memory.archive.present(one for one in cosines if one not in memory.context)
    found = [
        _candidate(memory, stored[one], cosine)
        for one, cosine in cosines.items()
        if one in stored and _is_own(memory, stored[one])
    ]
    return tuple(found[:MAX_RETURNABLE])


def returnable(
    outside: Sequence[Candidate], window: Sequence[Candidate], target: int, budget: Budget
) -> Returnable:
    """Which of them may come back, so that the window still comes down to the target.

    Args:
        outside: the nearest first.
        window: every segment of the window.
        target: tokens of segments the review must come down to.
        budget: what comes back takes no more than recall may.
    """
    stays = sum(one.num_tokens for one in window if one.pinned or one.protected not in ("", "kept"))
    room = max(0, min(budget.recall_tokens, target - stays))
    return Returnable(tuple(one for one in outside if one.num_tokens <= room), room)


def _is_own(memory: Memory, stored: StoredSegment) -> bool:
    own = stored.session_id == memory.session.id and stored.turn < memory.turn
    return own and stored.segment.kind != "core_block"


def _candidate(memory: Memory, stored: StoredSegment, cosine: float | None) -> Candidate:
    return Candidate(
        segment=stored.segment,
        num_tokens=memory.context.count(stored.segment),
        age_turns=memory.turn - stored.turn,
        idle_turns=memory.turn - max(stored.turn, stored.used_turn),
        recalls=stored.recalls,
        similarity=cosine,
        state=stored.state,
    )
