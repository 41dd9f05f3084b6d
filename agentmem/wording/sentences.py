"""Cutting a text into sentences: the one rule for all who look at texts.

Only punctuation and a few abbreviations are looked at: "Dr. Osei", "14.20" and "version 2.0" stay
whole, a quotation or a line of code is whatever its punctuation makes of it.
"""

from __future__ import annotations

import re

_SHORTENED = (
    "Dr", "Mr", "Mrs", "Ms", "St", "vs", "Prof", "Hr", "Fr", r"e\.g", r"i\.e", r"z\.B", "[A-Z]"
)  # fmt: skip
_NOT_SHORTENED = "".join(rf"(?<!\b{one}\.)" for one in _SHORTENED) + r"(?<!\bNo\.(?=\s\d))"
_END = re.compile(
    # One mark at a time: a long row of them is read once, not once from each.
    rf"[.!?…؟]{_NOT_SHORTENED}[\"'“”’»)\]]*(?=\s|$)|[。！？]+[”’」』）]*|\n+"
)


def sentences_of(text: str) -> list[str]:
    """The sentences of a text, in order, word for word as they stand there."""
    found: list[str] = []
    start = 0
    for end in _END.finditer(text):
        found.append(text[start : end.end()].strip())
        start = end.end()
    found.append(text[start:].strip())
    return [one for one in found if one]


def is_ended(text: str) -> bool:
    """Whether the last sentence of a text has come to its end."""
    text = text.rstrip()
    return any(end.end() == len(text) for end in _END.finditer(text))
