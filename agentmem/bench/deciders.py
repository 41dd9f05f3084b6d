"""Who decides in the controller benchmark: an oracle, chance, every policy, and the model's ways.

Every decider is a controller mode and a policy, as `Agent` takes them. What reduces a model to
itself has nothing behind it but chance: its free calls are finished by `random`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from agentmem import Candidate, ScorerPolicy, SegmentPolicy
from agentmem.bench.conversation import Conversation, contains

DECIDERS = (
    "oracle", "random", "window", "lru", "price", "size", "relevance", "attention", "composed",
    "llm-scored", "llm-mixture", "llm-free",
)  # fmt: skip
"""In the order of the table; any policy's name may be asked for besides."""


@dataclass(frozen=True)
class RandomPolicy(ScorerPolicy):
    """Valid decisions by chance, drawn anew in every review.

    Args:
        seed: the same seed decides the same.
    """

    seed: int = 0

    name = "random"

    def score(self, candidate: Candidate, candidates: Sequence[Candidate]) -> float:
        """A number that nothing about the segment explains."""
        return random.Random(f"{self.seed}/{candidate.id}/{candidate.age_turns}").random()


@dataclass(frozen=True)
class OraclePolicy(ScorerPolicy):
    """Keeps what will be asked for, the most answers a token first; of the rest, the newest.

    Args:
        values: the answers of all questions to come.
    """

    values: tuple[str, ...]

    name = "oracle"

    def score(self, candidate: Candidate, candidates: Sequence[Candidate]) -> float:
        """Answers a token; below nothing for what holds none, by age."""
        needed = sum(contains(candidate.segment.text, value) for value in self.values)
        if not needed:
            return -1.0 - candidate.age_turns
        return needed / max(1, candidate.num_tokens)


def decider(name: str, conversation: Conversation, seed: int) -> tuple[str, SegmentPolicy | str]:
    """The controller mode and the policy of a decider, as `Agent` takes them."""
    chance = RandomPolicy(seed)
    special: dict[str, tuple[str, SegmentPolicy | str]] = {
        "oracle": ("policy", OraclePolicy(tuple(q.answer for q in conversation.questions))),
        "random": ("policy", chance),
        "llm-scored": ("scored", "worth"),
        "llm-mixture": ("scored", "mixture"),
        "llm-free": ("tools", chance),
    }
    return special.get(name, ("policy", name))
