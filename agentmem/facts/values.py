"""The value a statement gives: what its verb ends in, a literal there before the words themselves.

What a literal looks like is known elsewhere (`facts.literals`), and what a value means nowhere.
"""

from __future__ import annotations

import re
from functools import lru_cache

from agentmem.facts import cues
from agentmem.facts.frame import BE, NAMED, VERBS, frame_of
from agentmem.facts.literals import CAPITAL, MONTH, NO_NAME, Value, literals
from agentmem.wording.clauses import clauses

_GERMAN = re.compile(r"\b(?:ist|heißt|mein\w*|der|die|das|im|ich|wir)\b", re.IGNORECASE)
_COPULA = re.compile(
    rf"{BE}|\b(?:{VERBS}|becomes?|became|named|called|studying|reading|plays?|eats?|drinks?|made me"
    r"|volunteers?|orders?|always get|speaks?|started|joined|adopted|put|bought|got|has|have|had"
    r"|ist|heißt|sind|est|s'appelle|es|está|se llama|wohne|arbeite)\b"
    r"|[是在到为叫]",
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
    rf"|already|in {MONTH}|which|who|so|jetzt|maintenant|ahora)\b|了).*$",
    re.IGNORECASE,
)
_FROM_WHEN = re.compile(
    r"(?<=\w)\s+(?:as (?:of|from)|since|starting|effective|from (?:now|next|today|tomorrow"
    r"|\w+day))\b.*$",
    re.IGNORECASE,
)
_THAN = re.compile(rf"\bthan (?:{CAPITAL}(?:\s+&?\s*{CAPITAL})*|[\d:.,]+)")
_BEFORE_WORDS = re.compile(
    rf"^(?:(?:also|now|really|actually|in fact|currently|still|(?-i:an?|the)|been|{NAMED})\s+)+",
    re.IGNORECASE,
)


@lru_cache(maxsize=20_000)
def value_of(sentence: str) -> Value | None:
    """The value a sentence gives now; None where none can be told.

    Of several clauses those that end nothing speak last; in a clause what it changes to, else what
    follows its verb, a literal in it before the words themselves.
    """
    if (instead := cues.replaced(sentence)) is not None:
        rest = sentence[instead.end() :]
        word = re.match(r"(?:(?:the|my|our|Dr\.|Mrs?\.|Ms\.)\s+)*\S+(?:\s+(?-i:[A-Z])\w+)*", rest)
        sentence = sentence[: instead.start()] + (rest[word.end() :] if word else "")
    parts = clauses(_THAN.sub("", sentence))
    if not parts:
        return None
    holding = [part for part in parts if not cues.denies(part)] or parts
    best: Value | None = None
    weakest = (True, True)
    for part in reversed(holding):
        found = _given_by(part, first=part is parts[0])
        if found is None:
            continue
        # "on Elm Road, number 8": a value by itself is only added.
        added = found.text == part.strip(" .!")
        words = found.kind == "words"
        earlier = ", ".join(parts[: parts.index(part)])
        weak = (words, added or (words and frame_of(part, found.text, earlier) is None))
        if best is None or weak < weakest:
            best, weakest = found, weak
    return best


def _given_by(clause: str, *, first: bool) -> Value | None:
    turned = _TURNED.match(clause)
    if turned is not None and turned.group(1).casefold() not in NO_NAME:
        found = literals(f" {turned.group(1)}")
        return found[-1][1] if found else Value(turned.group(1).strip(), "words")
    if cues.changes(clause):
        start = _start_of_change(clause)
        ends = list(_TO.finditer(clause, start))
        for to in ends:
            if (value := _phrase(clause[to.end() :], literal=True)) is not None:
                return value
        # "I've hired Mr. Kovac as my lawyer."
        if ends and (value := _phrase(clause[start : ends[0].start()], literal=True)) is not None:
            return value
        rest = clause[ends[0].end() if ends else start :]
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
        opening = re.match(rf"\s*({CAPITAL}(?:\s+{CAPITAL})*)", clause)
        if opening and not re.search(r"['’]s?$", opening.group(1)):
            if opening.group(1).casefold() not in NO_NAME:
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
        found = literals(f" {_FROM_WHEN.sub('', text)}")
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
    words = _BEFORE_WORDS.sub("", words)
    return Value(words, "words") if words and len(words) <= 80 else None
