"""What of a statement decides what it is about: whose it is, its telling words, how it says them.

Knows one sentence and its value; comparing two is done elsewhere (`facts.subject`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from agentmem.facts import cues
from agentmem.facts.frame import frame_of
from agentmem.facts.literals import ValueKind, kind_of, literals
from agentmem.facts.whose import Whose, whose
from agentmem.storage.terms import analyze
from agentmem.wording.clauses import bare, clauses

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
    r"\b(?:like|likes|love|loves|enjoy\w*|hate|hates|bought|buy|met|saw|see|visited|ate|read"
    r"|watched|have"
    r"|has|had|own|owns|know|knows|speak|speaks|owe|owes|sent|took|plays?|can['’]t|went|ran|won"
    r"|lost|(?<!get )(?<!gets )paid|made"
    r"|found|mag|gern|aime|gusta|allergic)\b|喜欢|爱",
    re.IGNORECASE,
)
"""Verbs of which several things are true at once."""
_THIRD = re.compile(
    r"^\W*(?:is|are|now)\b|\b(?:he|she|they|it|him|her|them|his|their|its)\b", re.IGNORECASE
)
_PARTICLE = re.compile(r"(\w)-(in|out|on|off|up|down)\b")
_PLACED = re.compile(r"((?:my|our|the) (?:front|back|left|right))(?= \w)", re.IGNORECASE)


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
        denies: the same, or that it is not so.
        names: what is written like names, that of the value left out.
        adds: whether it says that something holds besides something else.
        besides: the same of what it says, not of the words that lead up to it: "also, ...".
        many: whether its verb is one of which several things are true at once.
        relation: by what its clause gives the value; None where it has no such form.
        topic: the telling terms of that clause, those of value and relation left out.
        told: the telling terms of all of it, its value among them.
        happened: whether something happened first, of which this may be what came.
        former: whether it speaks of the past only.
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
    besides: bool
    many: bool
    relation: str | None
    topic: frozenset[str]
    told: frozenset[str]
    happened: bool
    former: bool


@lru_cache(maxsize=20_000)
def read(sentence: str, value: str | None) -> Reading:
    """Read a sentence for what it is about."""
    kind = kind_of(value)
    value_terms = frozenset(analyze(value)) if value else frozenset()
    clause = bare(_clause(sentence, value)) or sentence
    abouts = _abouts(sentence, clause, value)
    before = clause.partition(value)[0] if value else clause
    earlier = sentence.partition(clause)[0] if clause else ""
    frame = frame_of(clause, value, earlier) if value else None
    many = _AT_ONCE.search(before) is not None
    others = [part for part in clauses(sentence) if part != clause]
    if _MOVES_HOME.search(sentence):
        for about in abouts:
            about.add("live")
    return Reading(
        plain=sentence.casefold(),
        whose=_whose(sentence, clause, value, others if frame else []),
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
        besides=cues.adds(bare(sentence)),
        many=many,
        relation=frame.relation if frame else None,
        topic=frozenset(_telling(frame.topic) if frame else ()),
        told=frozenset(_telling(sentence)),
        happened=any(map(cues.happened, others)),
        former=cues.is_former(sentence),
    )


def _clause(sentence: str, value: str | None) -> str:
    """The clause that gives the value; the sentence where there is none."""
    return next((part for part in clauses(sentence) if value and value in part), sentence)


def _whose(sentence: str, clause: str, value: str | None, others: list[str]) -> Whose:
    """The people it is about: not those who only did something before, "the kids outvoted me"."""
    if value:
        # "at Rosa's place" gives a place, and says nothing of Rosa.
        sentence, clause = sentence.replace(value, "…"), clause.replace(value, "…")
    if not others or _THIRD.search(clause):
        return whose(sentence)
    return whose(", ".join([*(part for part in others if not cues.happened(part)), clause]))


def _abouts(sentence: str, clause: str, value: str | None) -> list[set[str]]:
    """The telling terms beside the value: those of its clause, and those of the whole sentence.

    Where nothing is left beside it, the value's own words say what it is about.
    """
    if not value:
        return [_telling(sentence)]
    narrow, wide = _telling(clause.replace(value, " ")), _telling(sentence.replace(value, " "))
    found = [terms for terms in (narrow, wide) if terms] or [_telling(sentence)]
    return found if len(found) == 1 or found[0] != found[1] else found[:1]


def _telling(text: str) -> set[str]:
    joined = _PLACED.sub(r"\1side", _PARTICLE.sub(r"\1\2", text))
    return {_CONCEPT.get(term, term) for term in analyze(joined) if cues.tells(term)}
