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
from agentmem.facts.sentences import clauses, sentences
from agentmem.facts.values import Value, value_of
from agentmem.facts.whose import whose
from agentmem.segment import Segment
from agentmem.storage.terms import analyze

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
    r"^\W*(?:if|unless|imagine|suppose|let's|let us|please (?!use|note|remember|be aware)|maybe"
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
    r"\b(?:is|are|am|will be|costs?|pays?|leaves?|starts?|opens?|closes?|named|called|lives?"
    r"|works?|study|studies"
    r"|studying|reading|plays?|drives?|eats?|drinks?|uses?|takes?|goes|comes?|keeps?|stays?|runs?"
    r"|wears?|speaks?"
    r"|supports?|teaches|prefers?|belongs?|sits?|moves?|has|have|got|orders?|teach|cooks?|wear"
    r"|drink|eat|drive|use|volunteers?|allergic|married|dating|go"
    r"|meets?|parks?"
    r"|ist|heißt|sind|wohne\w*|arbeite\w*|est|suis|habite|s'appelle|es|está|estoy|vivo|trabajo"
    r"|llam\w+)\b"
    r"|['’](?:s|re|m)\b|[是在叫住]",
    re.IGNORECASE,
)
_THE_THING = re.compile(r"(?:the|this|these)\s+(?:[\w'’-]+\s+){1,5}?(?:is|are)\b", re.IGNORECASE)
_PRESENT = re.compile(
    r"\b(?:is|are|am|works?|lives?|has|have|costs?|goes|will)\b|['’](?:s|re|m|ve|ll)\b",
    re.IGNORECASE,
)
_PAST_STATE = re.compile(
    r"\b(?:i|we|he|she|they|it|(?:my|our)(?: \w+){1,3}|(?-i:[A-Z])\w+(?:['’]s(?: \w+){1,3})?)\s+"
    r"(?:was|were|lived|worked|had(?! to)|studied|owned|drove|played)\b",
    re.IGNORECASE,
)
_USED_TO = re.compile(
    r"^(.*?)\b(?:used to (?:be called|be|have|live|work|drive|play|start|go|use|eat)?|früher"
    r"|antes|autrefois|以前)",
    re.IGNORECASE,
)
_LEAD = re.compile(
    r"^\W*(?:(?:by the way|btw|fyi|for the record|just so you know|please (?:note|remember|be"
    r" aware) that|also"
    r"|you should know(?: that)?|heads up|quick (?:note|update)|update(?: on \w+)?|actually"
    r"|scratch that|correction"
    r"|oh(?: and)?|so|well|ok(?:ay)?|note that|remember that|turns out|in fact|hey|hi|and|but|ugh"
    r"|some years ago"
    r"|in the past|change of plans)\b[\s,:;.–—-]*)+",
    re.IGNORECASE,
)


class PatternExtractor(FactExtractor):
    """Reads statements by how sentences are built, in a fraction of a millisecond."""

    name = "patterns"

    def extract(self, segment: Segment) -> list[Statement]:
        """What a segment states, in order."""
        found: list[Statement] = []
        for sentence in sentences(segment.text[:_MAX_CHARS]):
            found += _statements(sentence)
            if len(found) >= MAX_STATEMENTS:
                break
        return found[:MAX_STATEMENTS]


def _statements(sentence: str) -> list[Statement]:
    if any(pattern.search(sentence) for pattern in (_UNREAL, _DATA, _REPORTED)):
        return []
    bare = _LEAD.sub("", sentence)
    if _QUESTION.search(bare):
        return []
    parts = clauses(sentence)
    former = [part for part in parts if cues.is_former(part)]
    if former and len(former) < len(parts) and any(_USED_TO.search(part) for part in former):
        rest = [part for part in parts if part not in former]
        found = [one for part in former if (one := _former(part)) is not None]
        value = value_of(", ".join(rest))
        if value is not None:
            # What it is about may have been said of what it was before: "but now it's ...".
            found.append(Statement(_subject(", ".join(rest), value), value.text, sentence))
        return found
    if former or _is_past(sentence):
        one = _former(sentence)
    else:
        one = _current(sentence)
    return [] if one is None else [one]


def _is_past(sentence: str) -> bool:
    past = _PAST_STATE.search(sentence) is not None
    return past and not cues.updates(sentence) and _PRESENT.search(sentence) is None


def _former(sentence: str) -> Statement | None:
    value = value_of(_LEAD.sub("", sentence))
    used_to = _USED_TO.search(sentence)
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
    bare = _LEAD.sub("", sentence)
    people = whose(bare)
    somebody = bool(_SOMEBODYS.search(bare) or people.sure or people.maybe)
    states = _STATES.search(bare) is not None
    updates = cues.updates(sentence) or cues.ends(sentence)
    literal = value.kind != "words"
    if not (states or cues.changes(sentence) or updates or (somebody and literal)):
        return None
    if value.kind == "words" and not (somebody or updates or _THE_THING.match(bare)):
        return None
    over = all(cues.ends(part) for part in clauses(sentence)) and not cues.changes(sentence)
    return Statement(_subject(sentence, value), value.text, sentence, ended=over)


def _is_about_something(sentence: str, value: Value) -> bool:
    """Whether any telling word is left beside the value."""
    rest = sentence if value.kind == "words" else sentence.replace(value.text, " ")
    return any(cues.tells(term) for term in analyze(rest)) or bool(_SOMEBODYS.search(rest))


def _subject(sentence: str, value: Value) -> str:
    """What stands before the verb where the value comes last; else the sentence without it."""
    bare = _LEAD.sub("", sentence).rstrip(" .!。")
    for part in clauses(bare):
        before, found, after = part.partition(value.text)
        if found and not after.strip() and (verb := _STATES.search(before)) is not None:
            name = before[: verb.start()].strip(" ,")
            if any(map(cues.tells, analyze(name))):
                return name
    return re.sub(r"\s+", " ", bare.replace(value.text, "…")).strip(" …,")[:120] or bare[:120]
