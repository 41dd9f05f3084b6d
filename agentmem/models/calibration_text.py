"""What a model reads to be calibrated: documentation that ships with Python, and invented facts.

Each text is a context and what is read after it: the documentation going on, a passage of the
context over again, and facts stated somewhere in it. The last two are what makes a calibration see
which channels recall needs; text that merely goes on hardly looks back.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

SKIPPED_TOKENS = 4
"""First tokens of a context, whose keys are unlike all others."""
RECENT_TOKENS = 64
"""Last tokens of a context, which everything after them attends to because they are near."""
_PASSAGE_TOKENS = 200
_NUM_FACTS = 8
_LINE_TOKENS = 40

_THINGS = (
    "router", "lamp", "ticket", "invoice", "valve", "garden", "violin", "planet", "bridge",
    "harbour", "window", "kettle", "copper", "maple", "falcon", "engine", "locker", "parcel",
    "statue", "glacier", "ladder", "mirror", "tunnel", "piano",
)  # fmt: skip
_WORDS = (
    "red", "blue", "green", "seven", "north", "Alice", "Robert", "silver", "tomorrow", "Norway",
    "wooden", "empty", "Friday", "lemon", "quiet", "marble",
)  # fmt: skip
_WORDINGS = (
    "The {thing} has number {value}.",
    "{thing} = {value}",
    "We noted that the {thing} costs {value} dollars.",
    "ID of {thing}: {value};",
    "For the {thing} they wrote down {value}.",
    "- {thing}: {value}",
)


@dataclass(frozen=True, slots=True)
class CalibrationText:
    """A context and what is read after it.

    Args:
        context: token ids.
        continuations: runs of token ids, each read directly after the context, as if the others
            were not there.
    """

    context: tuple[int, ...]
    continuations: tuple[tuple[int, ...], ...]


def calibration_texts(
    tokenizer: Any, num_texts: int, context_tokens: int, *, seed: int = 77
) -> Iterator[CalibrationText]:
    """Texts of a fixed length, half of them with facts; the same for the same tokenizer and seed.

    Args:
        tokenizer: a transformers tokenizer.
        num_texts: how many.
        context_tokens: tokens of each context, at least 512.
    """
    import pydoc_data.topics

    topics = pydoc_data.topics.topics
    documentation = _encode(tokenizer, "\n".join(topics[name] for name in sorted(topics)))
    start = _start_ids(tokenizer)
    generator = random.Random(seed)
    for index in range(num_texts):
        last = len(documentation) - context_tokens - _PASSAGE_TOKENS
        first = generator.randrange(max(1, last))
        lines = [
            documentation[begin : begin + _LINE_TOKENS]
            for begin in range(first, first + context_tokens, _LINE_TOKENS)
        ]
        facts = _facts(generator) if index % 2 else []
        for fact in facts:
            place = generator.randrange(2, len(lines) - 2)
            lines.insert(place, _encode(tokenizer, f" {fact} "))
        body = [token for line in lines for token in line]
        context = start + body[len(body) - context_tokens + len(start) :]
        end = first + context_tokens
        passage = generator.randrange(
            SKIPPED_TOKENS + len(start), context_tokens - RECENT_TOKENS - _PASSAGE_TOKENS
        )
        yield CalibrationText(
            tuple(context),
            (
                tuple(documentation[end : end + _PASSAGE_TOKENS]),
                tuple(context[passage : passage + _PASSAGE_TOKENS]),
                *(tuple(_encode(tokenizer, f"\n{fact}")) for fact in facts),
            ),
        )


def _facts(generator: random.Random) -> list[str]:
    wording = generator.choice(_WORDINGS)
    facts = []
    for thing in generator.sample(_THINGS, _NUM_FACTS):
        if generator.random() < 0.6:
            value = str(generator.randint(100, 999_999))
        else:
            value = generator.choice(_WORDS)
        facts.append(wording.format(thing=thing, value=value))
    return facts


def _encode(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False).input_ids
    return ids


def _start_ids(tokenizer: Any) -> list[int]:
    """What the tokenizer itself puts before a text."""
    plain, whole = _encode(tokenizer, "a"), list(tokenizer("a").input_ids)
    for length in range(len(whole)):
        if whole[length : length + len(plain)] == plain:
            return whole[:length]
    return []
