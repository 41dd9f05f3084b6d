"""Contexts with needles: facts among text, each asked for in the words it was stated in.

A context is token ids by segment. Its first four tokens and its newest 64 stay dense in the cache
that is measured; the body between them holds the needles, and is packed:

    document  blocks of 512 tokens
    chat      segments of 8 to 60 tokens, each needle one of them

A pure function of seed and text: the same arguments give the same context. Knows no model.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Literal, get_args

from agentmem.errors import InvalidInput

Layout = Literal["document", "chat"]
LAYOUTS: tuple[str, ...] = get_args(Layout)

NUM_SINKS = 4
NEWEST_TOKENS = 64
FRESH_TOKENS = 64
BLOCK_TOKENS = 512
CHAT_TOKENS = (8, 60)

NAMES = tuple(
    "London Paris Berlin Madrid Rome Vienna Prague Dublin Lisbon Athens Oslo Helsinki Warsaw "
    "Budapest Zurich Milan Tokyo Cairo Lima Delhi Boston Chicago Denver Dallas Seattle Toronto "
    "Sydney Moscow Seoul Bangkok Nairobi Havana Geneva Munich Naples Venice Florence Brussels "
    "Amsterdam Stockholm Copenhagen Istanbul Jakarta Manila Beijing Mumbai Houston Miami".split()
)
ANIMALS = tuple(
    "lion tiger bear wolf fox deer rabbit horse camel elephant monkey dolphin whale shark eagle "
    "owl swan duck goose snake turtle frog spider butterfly kangaroo zebra giraffe leopard "
    "penguin otter beaver squirrel hedgehog goat sheep donkey buffalo crocodile lizard parrot "
    "pigeon raven salmon lobster octopus cheetah panda badger".split()
)


@dataclass(frozen=True, slots=True)
class Needle:
    """A fact nobody could guess: a statement that begins with its question and ends in its value.

    Args:
        kind: "digits", a five-digit code, or "word", an animal.
        question: "The secret pass code for London is".
        value: "58291".
    """

    kind: Literal["digits", "word"]
    question: str
    value: str

    @property
    def statement(self) -> str:
        """As it stands in the context."""
        return f"{self.question} {self.value}."


@dataclass(frozen=True, slots=True)
class Question:
    """A needle to be asked for.

    Args:
        kind: of its value.
        prompt: token ids of the question.
        answer: token ids of the value.
        counted: for each token of the answer whether it counts: one that holds a digit, or for a
            word any. The space before a number is nothing to know.
    """

    kind: Literal["digits", "word"]
    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    counted: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class NeedleContext:
    """Segments to be read, then questions; token ids throughout.

    Args:
        sinks: the first tokens, dense.
        body: segments to be packed.
        newest: the last tokens, dense.
        fresh: how the text goes on.
        questions: about the needles in the body.
    """

    sinks: tuple[int, ...]
    body: tuple[tuple[int, ...], ...]
    newest: tuple[int, ...]
    fresh: tuple[int, ...]
    questions: tuple[Question, ...]

    @property
    def segments(self) -> tuple[tuple[int, ...], ...]:
        """All segments in order."""
        return (self.sinks, *self.body, self.newest)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All tokens before what is fresh."""
        return tuple(token for segment in self.segments for token in segment)


def num_needles(num_tokens: int) -> tuple[int, int]:
    """Codes and animals in a context of so many tokens: more in longer ones, but not as many more.

    Few enough that a small dense model finds most of them.
    """
    codes = min(round(12 * sqrt(num_tokens / 1024)), len(NAMES) * 3 // 4)
    return codes, codes // 3


def draw_needles(generator: random.Random, num_codes: int, num_words: int) -> list[Needle]:
    """Needles of different names and different values, in random order.

    Raises:
        InvalidInput: there are not as many names.
    """
    if num_codes + num_words > len(NAMES):
        raise InvalidInput(
            f"A context holds at most {len(NAMES)} needles: got {num_codes} + {num_words}."
        )
    names = generator.sample(NAMES, num_codes + num_words)
    codes = generator.sample(range(10_000, 100_000), num_codes)
    animals = generator.sample(ANIMALS, num_words)
    needles = [
        Needle("digits", f"The secret pass code for {name} is", str(code))
        for name, code in zip(names, codes, strict=False)
    ] + [
        Needle("word", f"The animal on the flag of {name} is the", animal)
        for name, animal in zip(names[num_codes:], animals, strict=True)
    ]
    generator.shuffle(needles)
    return needles


@dataclass(frozen=True)
class ContextMaker:
    """Makes contexts of one text in one layout.

    Args:
        text: token ids to fill contexts with.
        start: token ids a context begins with.
        encode: text to token ids, nothing added.
        decode: token ids to text.
        layout: how the body is cut into segments.
        num_tokens: of a context.
    """

    text: Sequence[int]
    start: Sequence[int]
    encode: Callable[[str], list[int]]
    decode: Callable[[list[int]], str]
    layout: str
    num_tokens: int

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS:
            raise InvalidInput(f"No layout {self.layout!r}: use some of {', '.join(LAYOUTS)}.")
        needed = self.num_tokens + FRESH_TOKENS
        if len(self.text) < needed:
            raise InvalidInput(f"The text must hold {needed} tokens: got {len(self.text)}.")

    def make(self, seed: int) -> NeedleContext:
        """The context of that seed.

        Raises:
            InvalidInput: the needles fill more than half of it.
        """
        generator = random.Random(f"{self.layout} {self.num_tokens} {seed}")
        needles = draw_needles(generator, *num_needles(self.num_tokens))
        stated = [tuple(self.encode(f"\n{needle.statement}\n")) for needle in needles]
        body_tokens = self.num_tokens - NUM_SINKS - NEWEST_TOKENS
        num_filler = body_tokens - sum(map(len, stated))
        if num_filler < body_tokens // 2:
            raise InvalidInput(
                f"{len(needles)} needles leave {num_filler} of {body_tokens} tokens to text: "
                f"use longer contexts than {self.num_tokens}."
            )
        first = generator.randrange(len(self.text) - self.num_tokens - FRESH_TOKENS + 1)
        sinks = (*self.start, *self.text[first : first + NUM_SINKS])[:NUM_SINKS]
        first += NUM_SINKS
        filler = self.text[first : first + num_filler]
        first += num_filler
        cut = _cut_chat if self.layout == "chat" else _cut_document
        return NeedleContext(
            sinks=sinks,
            body=tuple(cut(generator, filler, stated)),
            newest=tuple(self.text[first : first + NEWEST_TOKENS]),
            fresh=tuple(self.text[first + NEWEST_TOKENS :][:FRESH_TOKENS]),
            questions=tuple(self._question(needle) for needle in needles),
        )

    def _question(self, needle: Needle) -> Question:
        answer = tuple(self.encode(f" {needle.value}"))
        counted = tuple(
            needle.kind == "word" or any(c.isdigit() for c in self.decode([token]))
            for token in answer
        )
        return Question(needle.kind, tuple(self.encode(f"\n{needle.question}")), answer, counted)


def _cut_document(
    generator: random.Random, filler: Sequence[int], stated: Sequence[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    """Needles at random places of the text, which is then cut into blocks."""
    places = sorted(generator.sample(range(len(filler) + 1), len(stated)))
    tokens: list[int] = []
    for begin, end, needle in zip([0, *places], places, stated, strict=False):
        tokens += [*filler[begin:end], *needle]
    tokens += filler[places[-1] :]
    return [
        tuple(tokens[begin : begin + BLOCK_TOKENS]) for begin in range(0, len(tokens), BLOCK_TOKENS)
    ]


def _cut_chat(
    generator: random.Random, filler: Sequence[int], stated: Sequence[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    """The text cut into short segments, with the needles as segments between them."""
    shortest, longest = CHAT_TOKENS
    segments: list[tuple[int, ...]] = []
    begin = 0
    while begin < len(filler):
        left = len(filler) - begin
        length = left
        if left > longest:
            length = min(generator.randint(shortest, longest), left - shortest)
        segments.append(tuple(filler[begin : begin + length]))
        begin += length
    for needle in stated:
        segments.insert(generator.randint(0, len(segments)), needle)
    return segments
