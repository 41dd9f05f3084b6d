"""A policy of one's own: what is worth keeping when the window is full, in one method.

python examples/custom_policy.py [--model local]
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from agentmem import Agent, Candidate, Decided, ScorerPolicy


class NumbersFirst(ScorerPolicy):
    """Keeps what has digits in it (codes, dates, amounts); the rest goes, oldest first."""

    name = "numbers-first"

    def score(self, candidate: Candidate, candidates: Sequence[Candidate]) -> float:
        """Higher is kept longer."""
        digits = sum(letter.isdigit() for letter in candidate.segment.text)
        return digits - candidate.age_turns / 1000


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="local")
    model = parser.parse_args().model
    with tempfile.TemporaryDirectory() as folder:
        store, policy = Path(folder) / "me.db", NumbersFirst()
        with Agent(
            model, store=store, budget=512, controller="policy", policy=policy, recall="off"
        ) as agent:
            for text in ["My code is 58291.", *(f"It rains in {c}." * 9 for c in "ABCDEFGHIJ")]:
                for event in agent.events(text, reply="I see."):
                    if isinstance(event, Decided):
                        print(event.action, event.segments, event.reason)
            print([entry.segment.text[:20] for entry in agent.context.entries])
