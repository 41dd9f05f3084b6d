"""Which of two findings for one question holds, where no statement says that the other is over.

    preference = likeness / 2 + 6 cosine(older, newer)
                 + 2.5 (cosine(newer, question) - cosine(older, question))
                 + 3 changed - 2 missing - 1.2 foreign

"I drive a Panda." and, months later, "I'm getting around in a Dacia." are too unlike each other for
one to end the other for good. Both found among the best for "What car do I drive?", the newer
comes first where it gives a value and this is above 0: the question says what both are about.
`changed` says that something happened or is over; `missing`, that the newer does not name what the
older has of the question; `foreign`, that it names what neither has. Nothing is closed by it, and
nothing kept: it is an order, found anew for every question.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, product

from agentmem.facts.reading import Reading, read
from agentmem.facts.subject import likeness
from agentmem.facts.values import value_of
from agentmem.wording.clauses import sentences

_LIKENESS, _COSINE, _ANSWERS, _CHANGED = 0.5, 6.0, 2.5, 3.0
_MISSING, _FOREIGN = 2.0, 1.2
_MOST_CHARS, _MOST_SENTENCES = 240, 4

Between = Callable[[Sequence[tuple[int, int]]], Sequence[float | None]]
"""Cosine similarities of pairs of segments; None where one has no vector."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What the user told that a question finds.

    Args:
        segment_id, text: where, and in which words.
        said_at: seconds since the epoch.
        nearness: the cosine of it and the question.
    """

    segment_id: int
    text: str
    said_at: float
    nearness: float


def rivals(question: str, best: Sequence[Finding], between: Between) -> dict[int, tuple[int, ...]]:
    """For the best findings of a question: newer ones below them that answer it instead.

    Args:
        question: what was asked.
        best: the best first.
        between: how near segments are to each other.
    """
    asked = read(question, None).told
    read_as = {one: _readings(one.text) for one in best}
    pairs = [
        (above, below)
        for above, below in combinations(best, 2)
        if (above.said_at, above.segment_id) < (below.said_at, below.segment_id)
    ]
    cosines = between([(above.segment_id, below.segment_id) for above, below in pairs])
    found: dict[int, tuple[int, ...]] = {}
    for (above, below), cosine in zip(pairs, cosines, strict=True):
        preferred = max(
            _preference(asked, older, newer, cosine or 0.0)
            for older, newer in product(read_as[above], read_as[below])
        )
        if preferred + _ANSWERS * (below.nearness - above.nearness) > 0:
            one = above.segment_id
            found[one] = (*found.get(one, ()), below.segment_id)
    return found


def _preference(asked: frozenset[str], older: Reading, newer: Reading, cosine: float) -> float:
    """What speaks for the newer, beside how near both are to the question."""
    if newer.kind is None:
        # It gives no value, and so no answer: "my tea mug broke".
        return -math.inf
    return (
        _LIKENESS * likeness(older, newer, cosine)
        + _COSINE * cosine
        + _CHANGED * (newer.updates or newer.ends or newer.happened)
        - _MISSING * bool(asked & older.told - newer.told)
        - _FOREIGN * bool(newer.abouts[0] - asked - older.told)
    )


def _readings(text: str) -> list[Reading]:
    """Of its sentences, and of all of it: what ended may be in one, what came in the next."""
    parts = dict.fromkeys([*sentences(text[:_MOST_CHARS])[:_MOST_SENTENCES], text[:_MOST_CHARS]])
    return [read(part, value.text if (value := value_of(part)) else None) for part in parts]
