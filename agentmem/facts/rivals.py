"""Which of two findings for one question holds, where no statement says that the other is over.

    preference = 8.7 nearness(newer) - 1.9 nearness(older)
                 + 7.8 cosine(older, newer) + 1.2 alike + 0.9 happened
                 - 1.2 partly - 2.5 apart - 3.5 nothing - 5.9

"I drive a Panda." and, months later, "The Fiat died on me, I'm getting around in a Dacia." are too
unlike each other for one to end the other for good. Both found among the best for "What car do I
drive?", the newer comes first where it can be about the same people and this is above 0: the
question says what both are about. `nearness` is to what would answer the question, where that is
known, else to the question. `alike` says that both give values that are written alike;
`happened`, that something changed, happened or is over; `partly`, that of what the older has of the
question the newer names some and not all: the printer's password, not the router's; `apart`, that
each names a thing the other does not; `nothing`, that it gives no value. The weights are those of a
logistic regression over pairs found in conversations, by their nearness to the question itself, but
those of the last two, which are caution. Nothing is closed by it, and nothing kept: it is an order,
found anew for every question.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, product

from agentmem.facts.literals import ValueKind
from agentmem.facts.owner import People
from agentmem.facts.reading import Reading, read
from agentmem.facts.subject import FAINT, name_different_things
from agentmem.facts.values import value_of
from agentmem.wording.clauses import sentences

_NEWER, _OLDER, _BETWEEN = 8.7, -1.9, 7.8
_ALIKE, _HAPPENED, _PARTLY, _APART, _NOTHING, _BIAS = 1.2, 0.9, -1.2, -2.5, -3.5, -5.9
_MOST_CHARS, _MOST_SENTENCES = 240, 4
_BEST = 6
"""One of two that are compared is among so many of the best."""

Between = Callable[[Sequence[tuple[int, int]]], Sequence[float | None]]
"""Cosine similarities of pairs of segments; None where one has no vector."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What the user told that a question finds.

    Args:
        segment_id, text: where, and in which words.
        said_at: seconds since the epoch.
        nearness: the cosine of it and what would answer the question.
        is_over: whether something holds instead of it already: it may be older, never newer.
    """

    segment_id: int
    text: str
    said_at: float
    nearness: float
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class _Told:
    """A finding as it was read: what ended may be in one sentence, what came in the next.

    Args:
        giving: its sentences that give a value; all of it where none alone does.
        readings: of those that give a value, and of all of it where it does.
        kinds: how the values are written.
        terms: what it names.
        happened: whether something changed, happened or is over.
    """

    giving: tuple[str, ...]
    readings: tuple[Reading, ...]
    kinds: frozenset[ValueKind]
    terms: frozenset[str]
    happened: bool


def rivals(question: str, best: Sequence[Finding], between: Between) -> dict[int, tuple[int, ...]]:
    """For findings of a question: newer ones that answer it instead.

    Args:
        question: what was asked.
        best: the best first.
        between: how near segments are to each other.

    Returns:
        By segment, those that are to stand above it or do, the most preferred first.
    """
    people = People.named_in([question, *(one.text for one in best)])
    asked = read(question, None).told
    told = {one: _read(one.text[:_MOST_CHARS]) for one in best}
    answers = {
        one: people.may_answer(question, told[one].giving, one.text[:_MOST_CHARS]) for one in best
    }
    in_time = sorted(best, key=lambda one: (one.said_at, one.segment_id))
    pairs = [
        (earlier, later)
        for earlier, later in combinations(in_time, 2)
        if answers[later]
        and not later.is_over
        and (earlier in best[:_BEST] or later in best[:_BEST])
    ]
    cosines = between([(earlier.segment_id, later.segment_id) for earlier, later in pairs])
    found: dict[int, list[tuple[float, int]]] = {}
    for (earlier, later), cosine in zip(pairs, cosines, strict=True):
        older, newer = told[earlier], told[later]
        preference = (
            _NEWER * later.nearness
            + _OLDER * earlier.nearness
            + _BETWEEN * (cosine or 0.0)
            + _ALIKE * bool(older.kinds & newer.kinds)
            + _HAPPENED * newer.happened
            + _PARTLY * bool(asked & older.terms - newer.terms and asked & newer.terms - FAINT)
            + _APART * _are_apart(older, newer)
            + _NOTHING * (not newer.kinds)
            + _BIAS
        )
        if preference > 0:
            found.setdefault(earlier.segment_id, []).append((preference, later.segment_id))
    return {
        one: tuple(each for _, each in sorted(preferred, reverse=True))
        for one, preferred in found.items()
    }


def _are_apart(older: _Told, newer: _Told) -> bool:
    """Whether whatever gives a value in both names different things."""
    pairs = list(product(older.readings, newer.readings))
    return bool(pairs) and all(name_different_things(*pair) for pair in pairs)


@lru_cache(maxsize=4_096)
def _read(text: str) -> _Told:
    values = {part: value_of(part) for part in (*sentences(text)[:_MOST_SENTENCES], text)}
    readings = [read(part, value.text if value else None) for part, value in values.items()]
    giving = tuple(part for part, value in values.items() if value is not None and part != text)
    valued = tuple(one for one in readings if one.kind is not None)
    return _Told(
        giving or (text,),
        valued,
        frozenset(one.kind for one in valued if one.kind is not None),
        frozenset[str]().union(*(one.told for one in readings)),
        any(one.updates or one.ends or one.happened for one in readings),
    )
