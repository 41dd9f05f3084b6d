"""How surely a sentence tells the assistant what to do from now on: by its words and its meaning.

    odds = bias + weights of its word groups + weights · vector

in logits. Word groups are its words, two neighbours, two words with one between, and how it begins.
A logistic regression over sentences that people may well type, fitted by `python -m
tests.fit_standing`; the weights of meaning belong to one embedding space. "Temperatures in Celsius
always, I get lost otherwise." has none of the forms that `wording.standing` knows, and is meant to
stand all the same. It reads one sentence and no memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import pairwise

from agentmem.wording.clauses import bare

WEIGHTS = "standing_weights.json"
ENOUGH = 1.0
"""From these odds on, a sentence stands."""

_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?|\d+|[?!:;,.]")


@dataclass(frozen=True, slots=True)
class StandingOdds:
    """The weights.

    Args:
        space: the embedding space that `vector` belongs to.
        bias: where nothing of the sentence is known.
        words: by word group.
        vector: (dim,), for a sentence's own vector of unit length.
        most_by_meaning: the most that the vector of any sentence of the fit has added.
    """

    space: str
    bias: float
    words: dict[str, float]
    vector: tuple[float, ...]
    most_by_meaning: float

    def by_words(self, sentence: str) -> float:
        """What the words say alone."""
        groups = set(word_groups(sentence))
        return self.bias + sum(self.words.get(group, 0.0) for group in groups)

    def by_both(self, sentence: str, vector: Sequence[float]) -> float:
        """What words and meaning say.

        Args:
            sentence: of a text.
            vector: (dim,), its own, of unit length.
        """
        meaning = sum(one * other for one, other in zip(self.vector, vector, strict=True))
        return self.by_words(sentence) + meaning


def word_groups(sentence: str) -> Iterator[str]:
    """The word groups of a sentence; some come twice."""
    words = _WORD.findall(bare(sentence).casefold().replace("’", "'")) or ["."]
    yield f"^{words[0]}"
    yield "^" + " ".join(words[:2])
    yield from words
    yield from map(" ".join, pairwise(words))
    yield from (f"{one} _ {other}" for one, other in zip(words, words[2:], strict=False))


@cache
def standing_odds() -> StandingOdds:
    """The weights that are shipped."""
    row = json.loads((files("agentmem.wording") / WEIGHTS).read_text("utf-8"))
    return StandingOdds(**{**row, "vector": tuple(row["vector"])})
