"""The value a statement gives: a number, a time, a date, a name, or the words after its verb.

A literal (what has digits, a day, a name) is told from prose by how it is written, so values of
sentences never seen before are found too. What a value means is not known here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from agentmem.facts import cues
from agentmem.facts.sentences import clauses

ValueKind = Literal["time", "date", "money", "measure", "number", "ordinal", "name", "words"]

_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?"
    r"|sept?(?:ember)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?|januar|februar|märz|mai|juni|juli|oktober|dezember"
    r"|janvier|février|mars|avril|juin|juillet|août|septembre|octobre|novembre|décembre|enero"
    r"|febrero"
    r"|marzo|abril|mayo|junio|julio|agosto|septiembre|octubre|noviembre|diciembre)"
)
_WEEKDAY = (
    r"(?:(?:mon|tues|wednes|thurs|fri|satur|sun)days?|montags?|dienstags?|mittwochs?|donnerstags?"
    r"|freitags?|samstags?|sonntags?|lundi|mardi|mercredi|jeudi|vendredi|samedi|dimanche|lunes"
    r"|martes"
    r"|miércoles|jueves|viernes|sábado|domingo)"
)
_UNIT = (
    r"(?:%|percent|prozent|mg|µg|g|kg|kilos?|grams?|pounds?|lbs?|km|kilomet(?:er|re)s?|miles?|cm"
    r"|met(?:er|re)s?"
    r"|ml|lit(?:er|re)s?|hours?|minutes?|degrees?|people|years?|Stunden|Minuten)"
)
_MONEY = r"(?:euros?|eur|dollars?|usd|chf|francs?|gbp|yen|bucks|€|\$|£)"
_NUMBERED = r"room|stop|platform|gate|spot|number|floor|line|bus|hall|seat|unit|plot|port|Raum"
_HAN = "一二三四五六七八九十"
_LITERALS: tuple[tuple[ValueKind, re.Pattern[str]], ...] = (
    (
        "time",
        re.compile(
            r"\b\d{1,2}[:h]\d{2}\b(?:\s?[ap]\.?m\b)?|\b\d{1,2}\s?[ap]\.?m\b"
            r"|\b\d{1,2}\s?(?:o'clock|Uhr)\b|[上下]午.{0,3}点",
            re.IGNORECASE,
        ),
    ),
    (
        "date",
        re.compile(
            rf"\b{_MONTH}\s+(?:the\s+)?\d{{1,2}}(?:st|nd|rd|th)?\b(?:,?\s+\d{{4}}\b)?"
            r"|\b(?:the\s+)?\d{1,2}(?:st|nd|rd|th|\.)?\s+(?:of\s+|de\s+)?"
            rf"{_MONTH}\b(?:\s+\d{{4}}\b)?"
            r"|\b\d{4}-\d{2}-\d{2}\b|\b\d{1,2}[./]\d{1,2}[./]\d{2,4}\b"
            rf"|\b{_WEEKDAY}\b"
            rf"|(?:周|星期|礼拜)[{_HAN}日天]|[\d{_HAN}]+月[\d{_HAN}]+[日号]",
            re.IGNORECASE,
        ),
    ),
    (
        "money",
        re.compile(rf"[€$£]\s?\d[\d.,]*\d|[€$£]\s?\d|\b\d[\d.,]*\s?{_MONEY}", re.IGNORECASE),
    ),
    ("measure", re.compile(rf"\b\d[\d.,]*\s?{_UNIT}(?!\w)", re.IGNORECASE)),
    (
        "ordinal",
        re.compile(
            r"\b\d{1,3}(?:st|nd|rd|th)\b|\b(?:first|second|third|fourth|fifth|sixth|seventh|eighth"
            r"|ninth|tenth|eleventh|twelfth|ground)\s+(?:floor|grade|year)\b"
            rf"|[{_HAN}\d]+楼",
            re.IGNORECASE,
        ),
    ),
    (
        "number",
        re.compile(
            rf"[\w.+-]+@[\w-]+\.[\w.]*\w|\b(?i:{_NUMBERED})\s+(?=[\w-]*\d)[\w-]+"
            r"|\b(?-i:[A-Z]{1,3}-[A-Z]{1,2}\s\d{1,4})\b"
            r"|(?<![\w-])(?=[\w./-]*\d)\w(?:[\w./-]*\w)?(?:\s\d{3,})*"
        ),
    ),
)
_CAPITAL = r"(?-i:[A-ZÀ-Þ])[\w'’.&-]*\w"
_NAME = re.compile(
    rf"(?:(?:Dr|Mrs?|Ms|Prof)\.?\s+|Professor\s+|The\s+)?{_CAPITAL}(?:\s+(?:of|de|van|von"
    rf"|du)\s+{_CAPITAL}|\s+{_CAPITAL})*"
)
_NO_NAME = frozenset(
    "i i'm i’m i've i’ve i'll i’ll i'd we we're we've he she it it's they you my our the a an"
    " this that there"
    " his her their from since these by in on at to for with ugh oh hey ok okay yes no dr mr mrs"
    " ms prof"
    " january february march april june july august september october november december"
    " new now please update correction actually heads scratch forget turns change ich wir mein"
    " meine das"
    " der die je j'ai mon ma mes le la les mi mis el los las".split()
)
_GERMAN = re.compile(r"\b(?:ist|heißt|mein\w*|der|die|das|im|ich|wir)\b", re.IGNORECASE)
_COPULA = re.compile(
    r"\b(?:is|are|am|was|were|will be|be|becomes?|became|become|costs?|pays?|leaves?|starts?"
    r"|opens?|named"
    r"|called|lives?|works?|studies|studying|reading|plays?|drives?|eats?|drinks?|uses?|use"
    r"|takes?|goes"
    r"|keep|keeps|made me|volunteers?|orders?|always get|teach|reads|stays?|runs?|wears?|speaks?"
    r"|supports?|teaches"
    r"|prefer|prefers|started|joined"
    r"|adopted|put"
    r"|bought|got|has|have|had|ist|heißt|sind|est|s'appelle|es|está|se llama|wohne|arbeite)\b"
    r"|['’](?:s|re|m)\b|[是在到为叫]",
    re.IGNORECASE,
)
_TURNED = re.compile(
    r"\W*(?:now |so |but |and |today |then )*((?:[\w.'’-]+ ){0,3}[\w.’-]+) (?:is|are|will be|has"
    r" become|becomes)"
    r" (?:now |also |actually )?(?:my|our|[^\W\d]\w+['’]s) ",
    re.IGNORECASE,
)
"""Said the other way round: "comté is my favourite cheese"."""
_TO = re.compile(
    r"\b(?:to|as|for|with|by|into|onto|on to|until|till|auf|zu|nach|à|au|al|a|en|por|in|at|on)\s+"
    r"|[到成为]",
    re.IGNORECASE,
)
_TAIL = re.compile(
    r"\s*(?:,|\b(?:now|nowadays|these days|instead|anymore|any more|any longer|from now on|since"
    r"|after|because|last (?:week|weekend|month|year)|at the moment|today|again|rather than|as of"
    rf"|already|in {_MONTH}|which|who|so|jetzt|maintenant|ahora)\b|了).*$",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Value:
    """What a statement gives: its text as it stands in the sentence, and what it looks like."""

    text: str
    kind: ValueKind


def literals(text: str) -> list[tuple[int, Value]]:
    """Everything in a text that is written like a value, by place; names last of equals."""
    found: list[tuple[int, Value]] = []
    taken = [False] * len(text)
    for kind, pattern in _LITERALS:
        for match in pattern.finditer(text):
            if not any(taken[match.start() : match.end()]):
                taken[match.start() : match.end()] = [True] * (match.end() - match.start())
                found.append((match.start(), Value(match.group().strip(), kind)))
    for match in _NAME.finditer(text):
        if any(taken[match.start() : match.end()]) or _is_no_name(match, text):
            continue
        found.append((match.start(), Value(re.sub(r"['’]s$", "", match.group()), "name")))
    return sorted(found, key=lambda one: one[0])


def _is_no_name(match: re.Match[str], text: str) -> bool:
    if match.group().casefold() in _NO_NAME or re.search(r"['’]s?$", match.group()):
        return True
    # A word that begins a sentence is capitalized whatever it is.
    return match.start() == 0 and " " not in match.group().strip()


def value_of(sentence: str) -> Value | None:
    """The value a sentence gives now; None where none can be told.

    Of several clauses those that end nothing speak last; in a clause what it changes to, else what
    follows its verb, a literal in it before the words themselves.
    """
    if (instead := cues.replaced(sentence)) is not None:
        rest = sentence[instead.end() :]
        word = re.match(r"(?:(?:the|my|our|Dr\.|Mrs?\.|Ms\.)\s+)*\S+(?:\s+(?-i:[A-Z])\w+)*", rest)
        sentence = sentence[: instead.start()] + (rest[word.end() :] if word else "")
    parts = clauses(sentence)
    if not parts:
        return None
    holding = [part for part in parts if not cues.denies(part)] or parts
    best: Value | None = None
    for part in reversed(holding):
        found = _given_by(part, first=part is parts[0])
        if found is not None and (best is None or (best.kind == "words") > (found.kind == "words")):
            best = found
    return best


def _given_by(clause: str, *, first: bool) -> Value | None:
    turned = _TURNED.match(clause)
    if turned is not None and turned.group(1).casefold() not in _NO_NAME:
        found = literals(f" {turned.group(1)}")
        return found[-1][1] if found else Value(turned.group(1).strip(), "words")
    if cues.changes(clause):
        ends = list(_TO.finditer(clause, _start_of_change(clause)))
        for to in ends:
            if (value := _phrase(clause[to.end() :], literal=True)) is not None:
                return value
        rest = clause[ends[0].end() if ends else _start_of_change(clause) :]
        if (value := _phrase(rest, literal=True)) is not None:
            return value
        if (value := _phrase(rest, literal=False)) is not None:
            return value
    verb = _COPULA.search(clause)
    if verb is not None and (value := _phrase(clause[verb.end() :], literal=True)) is not None:
        return value
    found = literals(clause)
    if not first:
        # A name that begins a later clause is a name.
        opening = re.match(rf"\s*({_CAPITAL}(?:\s+{_CAPITAL})*)", clause)
        if opening and not re.search(r"['’]s?$", opening.group(1)):
            if opening.group(1).casefold() not in _NO_NAME:
                found = [(0, Value(opening.group(1), "name")), *found]
    if found:
        return found[-1][1] if found[-1][1].kind != "name" else found[0][1]
    if verb is not None:
        return _phrase(clause[verb.end() :], literal=False)
    return None


def _start_of_change(clause: str) -> int:
    match = cues.CHANGED.search(clause)
    return match.end() if match is not None else 0


def _phrase(text: str, *, literal: bool) -> Value | None:
    if literal:
        found = literals(f" {text}")
        if not found:
            return None
        if _GERMAN.search(text) and all(value.kind == "name" for _, value in found[:1]):
            # Every noun is capitalized there.
            found = [one for one in found if one[1].kind != "name"] or found
        (start, first), *others = found
        if others and first.kind == "date" and others[0][1].kind == "time":
            end = others[0][0] + len(others[0][1].text)
            if end - start <= 40:
                return Value(f" {text}"[start:end], "time")
        return first
    words = _TAIL.sub("", text).strip(" .!,。！'’\"")
    # "my coffee black": the coffee is what it is about.
    words = re.sub(r"^(?:my|our)\s+\w+\s+(?=\w)", "", words)
    words = re.sub(r"^(?:also|now|really|actually|in fact|currently|still|a|an|the)\s+", "", words)
    return Value(words, "words") if words and len(words) <= 80 else None


def kind_of(value: str) -> ValueKind:
    """How a value is written."""
    found = literals(f" {value}")
    kinds = {one.kind for _, one in found}
    written = sum(len(one.text) for _, one in found)
    if 2 * written < len(value):
        return "words"
    return "time" if "time" in kinds else max(found, key=lambda one: len(one[1].text))[1].kind
