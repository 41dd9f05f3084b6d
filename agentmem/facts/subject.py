"""Whether two statements are about the same thing: about the same people, in like words, or alike.

    likeness = 2.2 shared + 1.6 cosine + cue + named + kind

where `shared` is the weight of the words both have (values and cues left out) over that of the
shorter, `cosine` that of the segments, `cue` that the newer says something changed, `named` that it
names the older's value as over, and `kind` whether the values are written alike. No template is
needed for any of them. Pure: sentences and numbers in, a number out.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache

from agentmem.facts import cues
from agentmem.facts.sentences import clauses
from agentmem.facts.values import ValueKind, kind_of, literals
from agentmem.facts.whose import Whose, same_people, whose
from agentmem.storage.terms import analyze

_CONCEPTS = {
    "code": "pin password passcode passphrase combin keycode",
    "work": "job employ employer salari employe compani firm colleagu hire report",
    "live": "home resid apart flat address hous place",
    "dentist": "teeth dental tooth",
    "doctor": "gp physician",
    "hair": "hairdress barber haircut",
    "tax": "account taxe",
    "plumber": "plumb",
    "wake": "wakes woke alarm",
    "phone": "telephon mobil cell",
    "studi": "major degre univers cours",
    "drive": "car vehicl driver",
    "diet": "vegetarian vegan pescatarian eat",
    "supervisor": "supervis advisor",
    "teach": "teacher",
    "landlord": "landladi",
    "weight": "kilo",
    "pay": "cost price paid",
    "drink": "coffe tea",
    "park": "parking",
    "zahnarzt": "zahn",
    "wed": "marri marriag",
    "grandmoth": "grandma granni",
    "grandfath": "grandpa",
    "mother": "mum mom",
    "father": "dad",
}
_CONCEPT = {word: concept for concept, words in _CONCEPTS.items() for word in words.split()}
_MOVERS = (
    "i|we|he|she|they|(?-i:[A-Z])\\w+|mother|father|sister|brother|parents|grandma|grandpa"
    "|grandmother|grandfather|son|daughter|wife|husband|uncle|aunt|friend|fiancé|fiancée|partner"
    "|girlfriend|boyfriend|cousin"
)
_MOVES_HOME = re.compile(
    rf"\b(?:{_MOVERS})\s+(?:(?:has|have|had|just|finally|recently|then)\s+)*"
    r"(?:moved|relocated|moving)\s+(?:back\s+)?(?:in|to|into)\s+(?:an?\s|(?-i:[A-ZÀ-Þ]))",
    re.IGNORECASE,
)
_AT_ONCE = re.compile(
    r"\b(?:like|likes|love|loves|enjoy\w*|hate|hates|bought|buy|met|meet|saw|see|visited|ate|read"
    r"|watched|have"
    r"|has|had|own|owns|know|knows|speak|speaks|owe|owes|sent|took|plays?|can['’]t|went|ran|won"
    r"|lost|paid|made"
    r"|found|mag|gern|aime|gusta|allergic)\b|喜欢|爱",
    re.IGNORECASE,
)
"""Verbs of which several things are true at once."""
_PARTICLE = re.compile(r"(\w)-(in|out|on|off|up|down)\b")
_DEFINITE = re.compile(
    r"\W*(?:(?:by the way|also|for the record|just so you know|please remember that|fyi)\W+)?"
    r"(?:my|our|the|mein\w*|unser\w*|mon|ma|mes|mi|[^\W\d]\w*['’]s)\s(?:[\w'’-]+\s){1,6}?"
    r"(?:is|are|costs?|leaves?|starts?|opens?|ist|est|es)\b",
)
"""What has one value at a time: "my locker code is"."""
_FAINT = frozenset(analyze(
    "number name time day date thing place favourite favorite usual weekly daily people person go"
    " goes"
    " come comes make makes made have like love at room street year class good call pay take"
    " like prefer one two"
))  # fmt: skip
_LITERAL = frozenset(("time", "date", "money", "measure", "number", "ordinal"))
_RELATED = frozenset(("number", "ordinal", "measure", "money"))


_SHARED, _JACCARD, _WORDS, _COSINE = 2.6, 2.4, 3.6, 5.0
_CUE, _NAMED, _OVER, _KIND, _BIAS = 4.2, 1.8, 2.8, 2.8, -14.0
_CONTRAST, _MANY, _DEFINED, _ALIKE = 3.0, 2.0, 2.0, 0.75


@dataclass(frozen=True, slots=True)
class Reading:
    """What of a statement decides what it is about.

    Args:
        plain: the sentence, casefolded.
        whose: the people in it.
        abouts: its telling terms, those of the value left out: of its clause, of all of it.
        terms: all its terms.
        value_terms: terms of the value.
        literal_terms: the same where it is written like a value; empty for words.
        kind: how the value is written; None where there is none.
        updates: whether it says that something changed.
        ends: whether it says that something is over.
    """

    plain: str
    whose: Whose
    abouts: tuple[frozenset[str], ...]
    terms: frozenset[str]
    value_terms: frozenset[str]
    literal_terms: frozenset[str]
    kind: ValueKind | None
    updates: bool
    ends: bool
    denies: bool
    names: frozenset[str]
    adds: bool
    many: bool


@lru_cache(maxsize=20_000)
def read(sentence: str, value: str | None) -> Reading:
    """Read a sentence for what it is about."""
    kind = kind_of(value) if value else None
    value_terms = frozenset(analyze(value)) if value else frozenset()
    abouts = _abouts(sentence, value)
    if _MOVES_HOME.search(sentence):
        for about in abouts:
            about.add("live")
    return Reading(
        plain=sentence.casefold(),
        whose=whose(sentence),
        abouts=tuple(map(frozenset, abouts)),
        terms=frozenset(analyze(sentence)),
        value_terms=value_terms,
        literal_terms=value_terms if kind != "words" else frozenset(),
        kind=kind,
        updates=cues.updates(sentence),
        ends=cues.ends(sentence) or cues.replaced(sentence) is not None,
        denies=cues.denies(sentence),
        names=frozenset(
            found.text.casefold()
            for _, found in literals(sentence)
            if found.kind == "name" and found.text not in (value or "")
        ),
        adds=cues.adds(sentence),
        many=_AT_ONCE.search(sentence) is not None,
    )


def _abouts(sentence: str, value: str | None) -> list[set[str]]:
    """The telling terms beside the value: those of its clause, and those of the whole sentence.

    Where nothing is left beside it, the value's own words say what it is about.
    """
    if not value:
        return [_telling(sentence)]
    clause = next((part for part in clauses(sentence) if value in part), sentence)
    narrow, wide = _telling(clause.replace(value, " ")), _telling(sentence.replace(value, " "))
    found = [terms for terms in (narrow, wide) if terms] or [_telling(sentence)]
    return found if len(found) == 1 or found[0] != found[1] else found[:1]


def _telling(text: str) -> set[str]:
    joined = _PARTICLE.sub(r"\1\2", text)
    return {_CONCEPT.get(term, term) for term in analyze(joined) if cues.tells(term)}


def _weight(terms: frozenset[str]) -> float:
    return sum(0.4 if term in _FAINT or len(term) == 1 else 1.0 for term in terms)


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

    people: bool
    shared: float
    jaccard: float
    words: float
    cosine: float
    cue: bool
    ends: bool
    contrast: bool
    definite: bool
    named: bool
    kind: int
    adds: bool
    many: bool


def compare(older: Reading, newer: Reading, cosine: float | None) -> Features:
    """Compare a statement with an older one."""
    old_value, new_value = older.literal_terms, newer.literal_terms
    said = (old_value & newer.terms) - new_value
    named = bool(old_value) and 2 * len(said) >= len(old_value)
    if not old_value and (newer.ends or newer.denies):
        # Words are a value's only where they are said to be over.
        telling = frozenset(filter(cues.tells, older.value_terms)) - _FAINT
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
        people=same_people(older.plain, older.whose, newer.plain, newer.whose),
        shared=shared,
        jaccard=jaccard,
        words=words,
        cosine=cosine or 0.0,
        cue=newer.updates,
        ends=newer.ends or (named and (newer.denies or _begins(newer.plain, older.value_terms))),
        definite=_DEFINITE.match(older.plain) is not None and older.kind != "words",
        contrast=_contrast(older, newer),
        named=named,
        kind=kind,
        adds=newer.adds,
        many=newer.many or older.many,
    )


def likeness(older: Reading, newer: Reading, cosine: float | None, *, same: bool = False) -> float:
    """How likely an older and a newer statement are about one thing: above 0 they are.

    Args:
        older, newer: the statements.
        cosine: of their segments, in [-1, 1]; None where unknown.
        same: they give it the same value: nothing has to say that it changed.
    """
    seen = compare(older, newer, cosine)
    if not seen.people:
        return -math.inf
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
        + _DEFINED * (seen.definite and seen.jaccard >= _ALIKE and not cue and not seen.many)
        - _CONTRAST * seen.contrast
        - _MANY * (not cue and (seen.many or seen.adds))
        + _BIAS
    )
