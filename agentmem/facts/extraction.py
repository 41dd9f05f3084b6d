"""Reading what a text states: who reads, and reading by patterns, without a model.

A statement is a sentence that gives something a value or says that something is over. Questions,
wishes, requests, quotations and data state nothing. A pattern only has to see that a sentence
states something: what it is about is decided by comparing it with others (`facts.subject`).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass

from agentmem.facts import cues
from agentmem.facts.frame import BE, SHORT, VERBS
from agentmem.facts.literals import Value, kind_of
from agentmem.facts.values import value_of
from agentmem.facts.whose import whose
from agentmem.segment import Segment
from agentmem.storage.terms import analyze
from agentmem.wording.clauses import bare, clauses, sentences

MAX_STATEMENTS = 32
"""Statements taken from one segment at most."""
_MAX_CHARS = 20_000


@dataclass(frozen=True, slots=True)
class Statement:
    """What one sentence states.

    Args:
        subject: whose and what ("my sister's locker code").
        value: what it gives; None where it cannot be told from the rest.
        text: the sentence.
        ended: it says that this is so no longer.
    """

    subject: str
    value: str | None
    text: str
    ended: bool = False


class FactExtractor(ABC):
    """Reads statements out of segments. Only `extract` must be written."""

    name: str = "extractor"
    """Which segments it has read is filed under this."""

    @abstractmethod
    def extract(self, segment: Segment) -> list[Statement]:
        """What a segment states, in order."""


_QUESTION = re.compile(
    r"[?？؟]|^\W*(?:what|which|when|where|who|whose|how|why|do|does|did|is|are|can|could|would"
    r"|should|will|was"
    r"|were|have you|has|remind me|tell me|guess|wo|was|wer|wie|wann|warum|welche\w*)\b(?!\s+(?:i"
    r"|we)\b)"
    r"(?![^.!]*\bnow\b)|吗|什么|哪|谁|多少",
    re.IGNORECASE,
)
_UNREAL = re.compile(
    r"^\W*(?:if|unless|imagine|suppose"
    r"|let(?:'s|’s| us)(?!.*\b(?:after all|instead|then)\b)|next time|please (?!use|note|remember"
    r"|be aware|correct|update|change)|maybe"
    r"|perhaps|i wish"
    r"|i hope|i wonder|i guess|i think about|thanks|thank you|wenn|falls|si\b|如果)"
    r"|\b(?:would be|would have|might|could be|i forgot|i forget|i can't remember|dreamt|dreamed"
    r"|in the movie"
    r"|in the book)\b",
    re.IGNORECASE,
)
_DATA = re.compile(r"^\s*(?:[>{\[<#|`]|\w+\s*[:=]\s*[{\[\"']|https?://)|</|\bhttps?://\S+$")
_REPORTED = re.compile(
    r"^\W*(?:assistant|system|user|bot)\s*:|[\"“”«»].{12,}[\"“”«»]", re.IGNORECASE
)
_SOMEBODYS = re.compile(
    r"\b(?:my|mine|our|ours|i|i['’]m|i['’]ve|we|we['’]re|we['’]ve|me|us|his|her|their|he|she|they"
    r"|mein\w*"
    r"|unser\w*|ich|wir"
    r"|mon|ma|mes|notre|nos|je|j['’]|nous|mi|mis|nuestr\w+|yo|me)\b|我",
    re.IGNORECASE,
)
_STATES = re.compile(
    rf"{BE}|\b(?:{VERBS}|used to|named|called|studying|reading|plays?|eats?|drinks?|speaks?|moves?"
    r"|has|have|got|orders?|cooks?|volunteers?|allergic|married|dating"
    r"|ist|heißt|sind|wohne\w*|arbeite\w*|est|suis|habite|s'appelle|es|está|estoy|vivo|trabajo"
    r"|llam\w+)\b|[是在叫住]",
    re.IGNORECASE,
)
_THE_THING = re.compile(
    rf"(?:the|this|these)\s+(?:[\w'’-]+\s+){{1,5}}?(?:is|are|{VERBS})\b", re.IGNORECASE
)
_PRESENT = re.compile(
    rf"\b(?:is|are|am|works?|lives?|has|have|costs?|goes|will)\b|['’](?:ve|ll)\b|{SHORT}",
    re.IGNORECASE,
)
_PAST_STATE = re.compile(
    r"\b(?:i|we|he|she|they|it|(?:my|our)(?: [\w'’-]+){1,4}"
    r"|(?-i:[A-Z])\w+(?:['’]s(?: \w+){1,3})?)\s+"
    r"(?:was|were|lived|worked|had(?! to)|studied|owned|drove|played)\b",
    re.IGNORECASE,
)
_USED_TO = re.compile(
    r"\b(?:used to (?:be called|be|have|live|work|drive|play|start|go|use|eat)?|früher"
    r"|antes|autrefois|以前)",
    re.IGNORECASE,
)
_TOLD = re.compile(r"\b(?:mention|say|tell|told|said|that)\b", re.IGNORECASE)
"""Said by asking: "Did I mention that my code is 1234?"."""
_A_NEW = re.compile(r"\bnew (?=\w)", re.IGNORECASE)
_BEFORE = re.compile(r"(?<=\S)\s+(?:before|until|till|when)\b.*$", re.IGNORECASE)
_WHY = re.compile(
    r"\s+(?:since|because|after|when|once|now that)\s+"
    r"(?:the|my|our|your|his|her|their|i|we|he|she|it|they|(?-i:[A-Z])\w+)\b.*$",
    re.IGNORECASE,
)
"""What only gives the reason is not what is over: "The code is 17 since the router died."."""
_REFERS = re.compile(
    r"\W*(?:it|that|this|they)(?:['’](?:s|re)|\s(?:is|are|will|\w+s))\b", re.IGNORECASE
)


class PatternExtractor(FactExtractor):
    """Reads statements by how sentences are built, in a fraction of a millisecond."""

    name = "patterns"

    def extract(self, segment: Segment) -> list[Statement]:
        """What a segment states, in order."""
        found: list[Statement] = []
        before = ""
        for sentence in sentences(segment.text[:_MAX_CHARS]):
            stated = _statements(sentence)
            if before and _REFERS.match(sentence):
                # "I had to reset the safe. It's 2290 this time."
                both = _statements(f"{before} {sentence}", said=sentence)
                if meant := [one for one in both if (one.value or "") in sentence]:
                    stated = meant
                    # That a new code was got says nothing that the code does not.
                    if found and found[-1].text == before and kind_of(found[-1].value) == "words":
                        found.pop()
            found += stated
            before = sentence
            if len(found) >= MAX_STATEMENTS:
                break
        return found[:MAX_STATEMENTS]


def _statements(sentence: str, said: str | None = None) -> list[Statement]:
    """What a sentence states, which is said last of what is given, if that is more."""
    if _TOLD.search(sentence[: len(sentence) - len(bare(sentence))]):
        sentence = sentence.rstrip("?")
    if _is_unreal(sentence) or any(each.search(sentence) for each in (_DATA, _REPORTED)):
        return []
    if _QUESTION.search(bare(said or sentence)):
        return []
    parts = clauses(sentence)
    former = [part for part in parts if cues.is_former(part)]
    if former and len(former) < len(parts) and any(_USED_TO.search(part) for part in former):
        rest = [part for part in parts if part not in former]
        found = [one for part in former if (one := _former(part)) is not None]
        value = value_of(", ".join(rest))
        if value is not None and not all(map(cues.denies, rest)):
            # What it is about may have been said of what it was before: "but now it's ...".
            found.append(Statement(_subject(", ".join(rest), value), value.text, sentence))
        return found
    if former or _is_past(sentence):
        one = _former(sentence)
    else:
        one = _current(sentence)
    return [] if one is None else [one]


def _is_unreal(sentence: str) -> bool:
    """Whether the clause that gives a value only supposes it: "if anyone asks, my code is 1"."""
    if _UNREAL.search(bare(sentence)) is None or cues.is_former(sentence):
        return False
    value = value_of(sentence)
    held = [part for part in clauses(sentence) if value is not None and value.text in part]
    return not held or _UNREAL.search(held[-1]) is not None


def _is_past(sentence: str) -> bool:
    past = _PAST_STATE.search(sentence) is not None
    return past and not cues.updates(sentence) and _PRESENT.search(sentence) is None


def _former(sentence: str) -> Statement | None:
    used_to = _USED_TO.search(sentence)
    parts = [part for part in clauses(sentence) if _USED_TO.search(part)]
    value = value_of(bare(_BEFORE.sub("", parts[0]) if parts else sentence))
    if value is None and used_to is not None:
        rest = sentence[used_to.end() :].strip(" .!。")
        value = Value(rest, "words") if rest else None
    if value is None or not _is_about_something(sentence, value):
        return None
    return Statement(_subject(sentence, value), value.text, sentence, ended=True)


def _current(sentence: str) -> Statement | None:
    value = value_of(sentence)
    if value is None or not _is_about_something(sentence, value):
        return None
    said = bare(sentence)
    people = whose(said)
    somebody = bool(_SOMEBODYS.search(said) or people.sure or people.maybe)
    states = _STATES.search(said) is not None
    updates = cues.updates(sentence) or cues.ends(sentence)
    literal = value.kind != "words"
    if not (states or cues.changes(sentence) or updates or (somebody and literal)):
        return None
    if value.kind == "words" and not (
        somebody or cues.updates(_A_NEW.sub("", said)) or _THE_THING.match(said)
    ):
        return None
    parts = (_WHY.sub("", part) for part in clauses(sentence))
    over = all(map(cues.ends, parts)) and not cues.changes(sentence)
    return Statement(_subject(sentence, value), value.text, sentence, ended=over)


def _is_about_something(sentence: str, value: Value) -> bool:
    """Whether any telling word is left beside the value."""
    rest = sentence if value.kind == "words" else sentence.replace(value.text, " ")
    return any(cues.tells(term) for term in analyze(rest)) or bool(_SOMEBODYS.search(rest))


def _subject(sentence: str, value: Value) -> str:
    """What stands before the verb where the value comes last; else the sentence without it."""
    said = bare(sentence).rstrip(" .!。")
    for part in clauses(said):
        before, found, after = part.partition(value.text)
        if found and not after.strip() and (verb := _STATES.search(before)) is not None:
            name = before[: verb.start()].strip(" ,")
            if any(map(cues.tells, analyze(name))):
                return name
    return re.sub(r"\s+", " ", said.replace(value.text, "…")).strip(" …,")[:120] or said[:120]
