"""The sentences of a text that may state something, and the clauses of a sentence.

Only punctuation and small words are looked at.
"""

from __future__ import annotations

import re
from functools import lru_cache

from agentmem.sentences import sentences_of

MAX_SENTENCE_CHARS = 400
"""A longer stretch without an end is a list or data, not a sentence."""

_CLAUSE = re.compile(
    r"\s*[;:—–…]\s+|\s+-\s+|[；，]|,\s+(?:(?:so|and|but|because|since|und|aber|sondern|et|mais|y"
    r"|pero)\s+)?"
    r"|\s+(?:so|and|but|because|und|aber|sondern|mais|pero)\s+"
    r"(?=(?:(?:now|then|that's|jetzt)\s+)?(?:i|we|he|she|it|they|my|our|you|his|her|the|there|ich"
    r"|wir"
    r"|er|sie|es|mein\w*|unser\w*|je|j'|nous|il|elle|mon|ma|yo|mi)\b|(?:(?:Mrs?|Ms"
    r"|Dr)\.\s+)?(?-i:[A-Z])\w+\s+\w+\s+(?:my|our)\b"
    r"|started|joined|took|moved|bought|put|switched|adopted|opened)",
    re.IGNORECASE,
)


@lru_cache(maxsize=512)
def sentences(text: str) -> tuple[str, ...]:
    """The sentences of a text, in order; stretches too long to be one are left out."""
    return tuple(one for one in sentences_of(text) if len(one) <= MAX_SENTENCE_CHARS)


def clauses(sentence: str) -> list[str]:
    """The clauses of a sentence, in order, without what joined them."""
    return [one.strip() for one in _CLAUSE.split(sentence) if one and one.strip()]
