"""Whether two statements are about the same thing: about the same people, in like words, or alike.

    likeness = shared + cosine + kind + (cue + named | frame + happened) - contrast - many - bias

where `shared` is the weight of the words both have (values and cues left out), over that of the
shorter and over that of all, `cosine` that of the segments, and `kind` whether the values are
written alike. That it changed is known by a word of change (`cue`) and by the older value, named as
over (`named`); without either by one `frame`: both say the same of what has one value at a time.
Less of that will do where something `happened` first. Against it speak names and things that only
one of them has (`contrast`), and what is true of several things at once (`many`). No template is
needed for any of them. Pure: sentences and numbers in, a number out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from agentmem.facts import cues
from agentmem.facts.reading import Reading
from agentmem.facts.whose import same_people
from agentmem.storage.terms import analyze

FAINT = frozenset(analyze(
    "number name time day date thing place favourite favorite usual weekly daily people person go"
    " goes"
    " come comes make makes made have like love at room street year class good call pay take"
    " like prefer one two"
))  # fmt: skip
"""Terms that tell little of what a statement is about."""
_LITERAL = frozenset(("time", "date", "money", "measure", "number", "ordinal"))
_RELATED = frozenset(("number", "ordinal", "measure", "money"))


_SHARED, _JACCARD, _WORDS, _COSINE = 2.6, 2.4, 3.6, 5.0
_CUE, _NAMED, _OVER, _KIND, _BIAS = 4.2, 1.8, 2.8, 2.8, -14.0
_CONTRAST, _APART, _MANY, _EVENTS, _FRAME, _HAPPENED = 3.0, 4.5, 2.0, 7.0, 5.0, 2.5


def _weight(terms: frozenset[str]) -> float:
    return sum(0.4 if term in FAINT or len(term) == 1 else 1.0 for term in terms)


def _overlap(one: frozenset[str], other: frozenset[str]) -> tuple[float, float, float]:
    """The weight of the shared terms over that of the lesser set, over that of all, and itself."""
    both = _weight(one & other)
    least, union = min(_weight(one), _weight(other)), _weight(one | other)
    return (both / least if least else 0.0, both / union if union else 0.0, both)


def _begins(sentence: str, terms: frozenset[str]) -> bool:
    """Whether a sentence is about these first of all: "Castellano moved away; ..."."""
    return bool(terms & frozenset(analyze(" ".join(sentence.split()[:3]))))


def _contrast(older: Reading, newer: Reading) -> bool:
    """Whether each names something besides its value that the other does not: Vienna, Prague."""
    return (
        bool(older.names and newer.names)
        and not any(name in newer.plain for name in older.names)
        and not any(name in older.plain for name in newer.names)
    )


@dataclass(frozen=True, slots=True)
class Features:
    """What speaks for and against one thing being meant by two statements."""

    shared: float
    jaccard: float
    words: float
    cosine: float
    cue: bool
    ends: bool
    contrast: bool
    named: bool
    kind: int
    adds: bool
    many: bool
    frame: bool
    apart: bool
    happened: bool
    events: bool


def _same_frame(older: Reading, newer: Reading) -> bool:
    """Whether both say the same of the same thing, of which only one value holds at a time."""
    kinds = {older.kind, newer.kind}
    if older.many or newer.many or newer.besides or older.topic != newer.topic:
        return False
    if len(kinds) > 1 and not kinds <= {"name", "words"}:
        return False
    if older.relation is None or newer.relation is None:
        return False
    if kinds <= _LITERAL:
        return bool(older.topic) or older.relation == newer.relation != "be"
    if older.relation != newer.relation:
        return False
    # "My bag is black" and "my bag is heavy" are both true; "my usual bag" is one.
    one = kinds == {"name"} or older.relation == "be one" or older.former
    return one or len(older.topic) > 1


def _are_apart(older: Reading, newer: Reading) -> bool:
    """Whether each gives a value to something the other does not name: locker code, bank code."""
    return (
        older.relation is not None
        and newer.relation is not None
        and bool(older.topic - newer.told - FAINT)
        and bool(newer.topic - older.told - FAINT)
    )


def name_different_things(older: Reading, newer: Reading) -> bool:
    """Whether each names what the other does not: Vienna and Prague, locker and bank."""
    return _contrast(older, newer) or _are_apart(older, newer)


def compare(older: Reading, newer: Reading, cosine: float | None) -> Features:
    """Compare a statement with an older one."""
    old_value, new_value = older.literal_terms, newer.literal_terms
    said = (old_value & newer.terms) - new_value
    named = bool(old_value) and 2 * len(said) >= len(old_value)
    if not old_value and (newer.ends or newer.denies):
        # Words are a value's only where they are said to be over.
        telling = frozenset(filter(cues.tells, older.value_terms)) - FAINT
        named = bool(telling) and 2 * len(telling & newer.terms - newer.value_terms) >= len(telling)
    shared, jaccard, words = max(
        _overlap(one - new_value, other - old_value)
        for one in older.abouts
        for other in newer.abouts
    )
    kind = 0
    if older.kind and newer.kind:
        if older.kind == newer.kind:
            kind = 1
        elif older.kind in _LITERAL and newer.kind in _LITERAL:
            kind = 0 if older.kind in _RELATED and newer.kind in _RELATED else -1
        elif older.kind in _LITERAL or newer.kind in _LITERAL:
            kind = -1
    return Features(
        shared=shared,
        jaccard=jaccard,
        words=words,
        cosine=cosine or 0.0,
        cue=newer.updates,
        ends=newer.ends or (named and (newer.denies or _begins(newer.plain, older.value_terms))),
        contrast=_contrast(older, newer),
        named=named,
        kind=kind,
        adds=newer.adds,
        many=newer.many or older.many,
        frame=_same_frame(older, newer),
        apart=not named and _are_apart(older, newer),
        happened=newer.happened,
        events=older.many and newer.many and newer.kind not in _LITERAL,
    )


def likeness(older: Reading, newer: Reading, cosine: float | None, *, same: bool = False) -> float:
    """How likely an older and a newer statement are about one thing: above 0 they are.

    Args:
        older, newer: the statements.
        cosine: of their segments, in [-1, 1]; None where unknown.
        same: they give it the same value: nothing has to say that it changed.
    """
    if not same_people(older.plain, older.whose, newer.plain, newer.whose):
        return -math.inf
    seen = compare(older, newer, cosine)
    cue = (seen.cue or seen.ends or same) and not (seen.adds and not same)
    return (
        _SHARED * seen.shared
        + _JACCARD * seen.jaccard
        + _WORDS * min(seen.words, 3.0) / 3
        + _COSINE * seen.cosine
        + _CUE * cue
        + _NAMED * seen.named
        + _OVER * (seen.named and seen.ends)
        + _KIND * max(seen.kind, 0)
        + _FRAME * (seen.frame and not cue)
        + _HAPPENED * (seen.happened and not cue)
        - _CONTRAST * seen.contrast
        - _APART * seen.apart
        - _EVENTS * (seen.events and not seen.named)
        - _MANY * (not cue and (seen.many or seen.adds))
        + _BIAS
    )
