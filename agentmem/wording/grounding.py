"""Whose words a text is made of: what of it stands in segments that may be believed, and what not.

Compared are sequences of three words, and single words that cannot be guessed: numbers and names.
What a model writes in words of its own is grounded nowhere and foreign to nobody.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from agentmem.segment import Segment, Trust
from agentmem.wording.telling import COMMON, TERM, is_unspaced, names_and_numbers, pairs_of

_NUMBER = re.compile(r"\d[\d.,:/-]*\d")
_COLON = re.compile(r"(?<=:)\s+")
"""Behind it, as where a sentence begins, a capital makes no name."""
_SEQUENCE = 3


@dataclass(frozen=True, slots=True)
class Grounds:
    """What a text was taken from.

    Args:
        foreign: words of it that only segments below user trust hold, as they stand there folded.
        sources: ids of segments of user trust that hold words of it, the newest for each word:
            while they are there, what the text says is there.
    """

    foreign: tuple[str, ...]
    sources: tuple[int, ...]

    @property
    def trust(self) -> Trust:
        """How far the text may be believed."""
        return Trust.EXTERNAL if self.foreign else Trust.USER


def ground(text: str, segments: Iterable[Segment]) -> Grounds:
    """Find whose words a text is made of.

    Args:
        text: what is to be remembered.
        segments: all that whoever wrote it could see.
    """
    sequences, terms, telling = _sequences(text), _terms(text), _telling(text)
    foreign: set[str] = set()
    believed: set[str] = set()
    newest: dict[str, int] = {}
    for segment in segments:
        said = _said(segment)
        said_terms, said_sequences = _terms(said), _sequences(said)
        held = (
            (sequences & said_sequences)
            | (telling & said_terms)
            | (terms & _telling(_COLON.sub("\n", said)))
        )
        if segment.trust < Trust.USER:
            foreign |= held
            continue
        believed |= said_terms | said_sequences
        if not segment.is_system_prompt:
            newest |= {one: max(segment.id, newest.get(one, 0)) for one in held}
    alone = tuple(sorted(foreign - believed, key=lambda one: (-len(one), one)))
    return Grounds(alone, tuple(sorted(set(newest.values()))))


def _said(segment: Segment) -> str:
    """What a segment tells. A call's arguments are the model's own words: they prove nothing."""
    return "\n".join(
        message.content
        for message in segment.messages
        if segment.kind != "tool_exchange" or message.role == "tool"
    )


def _sequences(text: str) -> set[str]:
    words: list[str] = []
    for word in TERM.findall(text.casefold()):
        words += pairs_of(word) if is_unspaced(word) else [word]
    runs = zip(*(words[start:] for start in range(_SEQUENCE)), strict=False)
    return {" ".join(run) for run in runs if not COMMON.issuperset(run)}


def _terms(text: str) -> set[str]:
    return {term.casefold() for term in TERM.findall(text)} | set(_NUMBER.findall(text))


def _telling(text: str) -> set[str]:
    return names_and_numbers(text) | set(_NUMBER.findall(text))
