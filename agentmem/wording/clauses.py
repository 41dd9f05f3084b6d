"""The sentences of a text that may state something, and the clauses of a sentence.

Only punctuation and small words are looked at.
"""

from __future__ import annotations

import re
from functools import lru_cache

from agentmem.wording.sentences import sentences_of

MAX_SENTENCE_CHARS = 400
"""A longer stretch without an end is a list or data, not a sentence."""

_CLAUSE = re.compile(
    r"(?<=[.!?])(?<!\bDr\.)(?<!\bMr\.)(?<!\bMs\.)(?<!\bSt\.)(?<!\bNo\.)(?<!\bMrs\.)(?<!\bHr\.)"
    r"(?<!\bFr\.)(?<!\bProf\.)(?<!\b[A-Z]\.)(?<!\be\.g\.)(?<!\bi\.e\.)(?<!\bz\.B\.)\s+"
    r"|\s*[;:—–…]\s+|\s+-\s+|[；，]|,\s+(?:(?:so|and|but|because|since|und|aber|sondern|et|mais|y"
    r"|pero)\s+)?"
    r"|\s+(?:so|and|but|because|und|aber|sondern|mais|pero)\s+"
    r"(?=(?:(?:now|then|that's|jetzt)\s+)?(?:i|we|he|she|it|they|my|our|you|his|her|the|there|ich"
    r"|wir"
    r"|er|sie|es|mein\w*|unser\w*|je|j'|nous|il|elle|mon|ma|yo|mi)\b|(?:(?:Mrs?|Ms"
    r"|Dr)\.\s+)?(?-i:[A-Z])\w+\s+\w+\s+(?:my|our)\b"
    r"|(?:is|are|now)\b|started|joined|took|moved|bought|put|switched|adopted|opened)",
    re.IGNORECASE,
)

_LEAD = re.compile(
    # "I just found out that my code is 1234"
    r"^\W*(?:(?:(?:(?!(?:my|our|if|not|hope|wish|doubt|wonder|suppose|imagine|guess|maybe"
    r"|perhaps)\b)"
    r"[\w'’]+ ){1,7}that(?= (?:my|our|the|i|we|(?-i:[A-Z])\w+['’]s)\b)"
    r"|(?:[\w'’]+ ){0,4}(?:know|note|remember|mention)(?= (?:my|our|the|(?-i:[A-Z])\w+['’]s)\b)"
    r"|(?:note|remember|you should know) that|you should know"
    r"|did i (?:\w+ )?(?:mention|say|tell you)"
    r"|if (?:any|some)(?:one|body)(?: ever)? \w+,|if you (?:ever )?(?:need|forget|wonder"
    r"|want)\b[^,]*,"
    r"|by the way|btw|fyi|for the record|just so you know|also|heads[ -]up|quick (?:note|update)"
    r"|update(?: on \w+)?|actually|scratch that|correction|no wait|wait|sorry|guess what"
    r"|oh(?: and)?|so|well|ok(?:ay)?|turns out|in fact|hey|hi|and|but|ugh|some years ago"
    r"|in the past|change of plans)(?:\b|(?<=,))[\s,:;.–—-]*)+",
    re.IGNORECASE,
)


def bare(sentence: str) -> str:
    """A sentence without the words that only lead up to what it says: "by the way"."""
    return _LEAD.sub("", sentence)


@lru_cache(maxsize=512)
def sentences(text: str) -> tuple[str, ...]:
    """The sentences of a text, in order; stretches too long to be one are left out."""
    return tuple(one for one in sentences_of(text) if len(one) <= MAX_SENTENCE_CHARS)


def clauses(sentence: str) -> list[str]:
    """The clauses of a sentence, in order, without what joined them."""
    return [one.strip() for one in _CLAUSE.split(sentence) if one and one.strip()]
