"""Who decides in the controller benchmark: an oracle, chance, every policy, and the model's ways.

Every decider is a controller mode and a policy, as `Agent` takes them. What reduces a model to
itself has nothing behind it but chance: its free calls are finished by `random`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from agentmem.bench.conversation import Conversation, contains
from agentmem.decision import Candidate
from agentmem.errors import InvalidInput
from agentmem.policies import POLICIES, ScorerPolicy, SegmentPolicy, make_policy

DECIDERS = (
    "oracle", "random", "window", "lru", "price", "relevance", "attention", "composed",
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


def decider(name: str, conversation: Conversation, seed: int) -> tuple[str, SegmentPolicy]:
    """The controller mode and the policy of a decider.

    Raises:
        InvalidInput: there is none of this name.
    """
    chance = RandomPolicy(seed)
    special: dict[str, tuple[str, SegmentPolicy]] = {
        "oracle": ("policy", OraclePolicy(tuple(q.answer for q in conversation.questions))),
        "random": ("policy", chance),
        "llm-scored": ("scored", make_policy("worth")),
        "llm-mixture": ("scored", make_policy("mixture")),
        "llm-free": ("tools", chance),
    }
    if name in special:
        return special[name]
    if name not in POLICIES:
        raise InvalidInput(
            f"No decider {name!r}: use some of {', '.join(dict.fromkeys((*DECIDERS, *POLICIES)))}."
        )
    return "policy", make_policy(name)
