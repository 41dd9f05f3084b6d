"""One decider playing a conversation whose future needs are known.

Replies are given, so every decider has said the same; nothing is asked. After each turn it is seen
which of the facts that will be asked for stand in the window.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from agentmem.bench.controller_row import ControllerOptions, ControllerRow, interval
from agentmem.bench.conversation import Conversation, contains, digest
from agentmem.bench.deciders import decider

if TYPE_CHECKING:
    from agentmem import Agent, Usage


@dataclass
class ControllerPlay:
    """One decider playing one conversation.

    Args:
        conversation: what is played.
        options: budget, model and the like.
        name: the decider.
        recall: "off" or "on".
        tell: told in a few words how far it is.
    """

    conversation: Conversation
    options: ControllerOptions
    name: str
    recall: str
    tell: Callable[[str], None]
    usages: list[Usage] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    freed: dict[str, int] = field(default_factory=dict)
    made: dict[bool, int] = field(default_factory=dict)
    num_decisions: int = 0

    def run(self) -> ControllerRow:
        """Play every turn and measure."""
        turns = self.conversation.turns
        needed = [(self.conversation.fact(q.fact).turn, q.answer) for q in
                  self.conversation.questions]  # fmt: skip
        seen: list[list[bool]] = [[] for _ in needed]
        with (
            tempfile.TemporaryDirectory(prefix="agentmem-bench-") as folder,
            self._agent(Path(folder) / "store.db") as agent,
        ):
            for n, turn in enumerate(turns, start=1):
                self._play(agent, turn.user, turn.reply)
                self.tokens.append(agent.context.num_tokens)
                text = "\n".join(entry.segment.text for entry in agent.context)
                for (stated, value), there in zip(needed, seen, strict=True):
                    if stated <= n:
                        there.append(contains(text, value))
                if n % 25 == 0 or n == len(turns):
                    self.tell(f"{self.name}, recall {self.recall}: turn {n} of {len(turns)}")
            calls = sum(
                row.cost.get("calls", 0) + row.cost.get("judged", 0) for row in _one_a_review(agent)
            )
        each = [(sum(there), len(there)) for there in seen]
        return self._row(each, [there[-1] for there in seen], calls)

    def _play(self, agent: Agent, text: str, reply: str | None) -> None:
        from agentmem import Decided, Reply

        for event in agent.events(text, reply=reply):
            if isinstance(event, Decided):
                is_models = event.source == "controller"
                if is_models:
                    self.made[event.valid] = self.made.get(event.valid, 0) + 1
                if event.valid:
                    self.num_decisions += 1
                    freed = event.tokens_before - event.tokens_after
                    self.freed[event.source] = self.freed.get(event.source, 0) + max(0, freed)
            elif isinstance(event, Reply):
                self.usages.append(event.usage)

    def _agent(self, store: Path) -> Agent:
        from agentmem import Agent

        options = self.options
        mode, policy = decider(self.name, self.conversation, options.seed)
        arguments: dict[str, Any] = {
            "controller": mode,
            "policy": policy,
            "recall": "kv" if self.recall == "on" else "off",
            # A decider shall answer for all that stays.
            "pin_instructions": False,
        }
        return Agent(
            options.model,
            store=store,
            budget=options.budget,
            kv=options.kv,
            threads=options.threads,
            **arguments,
        )

    def _row(self, each: list[tuple[int, int]], at_end: list[bool], calls: int) -> ControllerRow:
        needed, low, high = interval(each)
        total = sum(sum(usage.seconds.values()) for usage in self.usages)
        reviews = sum(usage.seconds["controller"] for usage in self.usages)
        num_made = sum(self.made.values())
        return ControllerRow(
            decider=self.name,
            recall=self.recall,
            conversation=digest(self.conversation),
            turns=len(self.conversation.turns),
            facts=len(each),
            budget=self.options.budget,
            needed_in_window=needed,
            low=low,
            high=high,
            needed_each=each,
            needed_at_end=fmean(at_end),
            tokens=fmean(self.tokens),
            peak_tokens=max(max(u.prompt_tokens, u.peak_tokens) for u in self.usages),
            freed_by_llm=self.freed.get("controller", 0) / max(1, sum(self.freed.values())),
            decisions=self.num_decisions,
            calls=calls,
            valid=self.made.get(True, 0) / num_made if num_made else None,
            seconds_per_turn=total / len(self.usages),
            review_share=reviews / total if total else 0.0,
        )


def _one_a_review(agent: Agent) -> list[Any]:
    """The first decision of every review: it carries what the review cost."""
    memory = agent.memory
    rows = memory.archive.decisions(session_id=memory.session.id, limit=1_000_000)
    return [row for row in rows if "calls" in row.cost]
