"""What a model reads to be calibrated: prose, code, talk, other languages, and invented facts.

Each text is a context and what is read after it: more of the same, a passage of the context over
again, and the facts that were stated somewhere in it. The last two are what makes a calibration
see which channels recall needs; text that merely goes on hardly looks back. With facts in every
second text alone, answers from 2 bits diverge twice as far from the dense model's. Prose and code
ship with Python. A calibration on one kind alone misjudges the others: their keys lie elsewhere.
"""

from __future__ import annotations

import random
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentmem.models.calibration_phrases import LANGUAGES, TALK

SKIPPED_TOKENS = 4
"""First tokens of a context, whose keys are unlike all others."""
RECENT_TOKENS = 64
"""Last tokens of a context, which everything after them attends to because they are near."""
LEAST_CONTEXT_TOKENS = 384
_PASSAGE_TOKENS = 200
_NUM_FACTS = 8
_LINE_TOKENS = 40
_NUM_FILES = 40
_FILE_CHARACTERS = 6000

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
_ORDER = ("prose", "code", "talk", "prose", "code", "language", "prose", "talk")
"""Which kind comes when."""


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
    """Texts of a fixed length; the same for the same tokenizer, Python and seed.

    Args:
        tokenizer: a transformers tokenizer.
        num_texts: how many.
        context_tokens: tokens of each context, at least LEAST_CONTEXT_TOKENS.
    """
    generator = random.Random(seed)
    kinds = {"prose": [_encode(tokenizer, _prose())], "code": [_encode(tokenizer, _code())]}
    needed = context_tokens + _PASSAGE_TOKENS
    start = _start_ids(tokenizer)
    for index in range(num_texts):
        kind = _ORDER[index % len(_ORDER)]
        if kind in kinds and len(kinds[kind][0]) > needed:
            source = kinds[kind][0]
        else:
            lines = TALK if kind != "language" else generator.choice(LANGUAGES)
            source = _drawn(tokenizer, lines.strip().splitlines(), needed, generator)
        yield _text(tokenizer, source, context_tokens, start, _facts(generator), generator)


def _text(
    tokenizer: Any,
    source: Sequence[int],
    context_tokens: int,
    start: list[int],
    facts: Sequence[str],
    generator: random.Random,
) -> CalibrationText:
    said = [_encode(tokenizer, f" {fact} ") for fact in facts]
    filling = context_tokens - len(start) - sum(map(len, said))
    first = generator.randrange(len(source) - filling - _PASSAGE_TOKENS + 1)
    end = first + filling
    lines = [
        list(source[begin : min(begin + _LINE_TOKENS, end)])
        for begin in range(first, end, _LINE_TOKENS)
    ]
    for line in said:
        lines.insert(generator.randrange(1, len(lines)), line)
    context = start + [token for line in lines for token in line]
    passage = generator.randrange(
        SKIPPED_TOKENS + len(start), context_tokens - RECENT_TOKENS - _PASSAGE_TOKENS
    )
    return CalibrationText(
        tuple(context),
        (
            tuple(source[end : end + _PASSAGE_TOKENS]),
            tuple(context[passage : passage + _PASSAGE_TOKENS]),
            *(tuple(_encode(tokenizer, f"\n{fact}")) for fact in facts),
        ),
    )


def _prose() -> str:
    import pydoc_data.topics

    topics = pydoc_data.topics.topics
    return "\n".join(topics[name] for name in sorted(topics))


def _code() -> str:
    """The beginnings of some modules of the standard library; empty where it has no source."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    chosen = random.Random(1).sample(files, min(_NUM_FILES, len(files)))
    return "\n".join(path.read_text("utf-8", "replace")[:_FILE_CHARACTERS] for path in chosen)


def _drawn(
    tokenizer: Any, lines: list[str], num_tokens: int, generator: random.Random
) -> list[int]:  # fmt: skip
    """Lines in random order, over again where they do not suffice."""
    ids: list[int] = []
    while len(ids) < num_tokens:
        separator = generator.choice((" ", "\n", "\n\n"))
        shuffled = generator.sample(lines, len(lines))
        ids += _encode(tokenizer, separator.join(shuffled) + separator)
    return ids


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
