"""One system summarizing stretches, and what is left of their facts.

Every question is asked in a prompt of its own: the system prompt, the summary, the question. What
was summarized is nowhere in it and nothing can bring it back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING

from agentmem.bench.conversation import contains
from agentmem.bench.stretches import Stretch
from agentmem.bench.summaries_row import SummaryRow, shares
from agentmem.bench.summary_systems import WINDOW_TOKENS, Summary, summarizer
from agentmem.models.base import Options, Part, complete
from agentmem.segment import Message

if TYPE_CHECKING:
    from agentmem import Agent

ANSWER_TOKENS = 16

_NAMED = " (Left out: "
"""Where a summary begins to name what to search for."""


@dataclass
class SummaryPlay:
    """One system and the stretches of one conversation.

    Args:
        system: who makes the summaries.
        stretches: of what.
        conversation: its digest.
        seed: of chance.
        tell: told in a few words how far it is.
    """

    system: str
    stretches: Sequence[Stretch]
    conversation: str
    seed: int
    tell: Callable[[str], None]
    survives: list[bool] = field(default_factory=list)
    only_named: list[bool] = field(default_factory=list)
    answered: list[bool] = field(default_factory=list)

    def run(self, agent: Agent) -> SummaryRow:
        """Summarize every stretch and see what is left.

        Args:
            agent: of the model that answers; its window holds nothing but the system prompt.
        """
        count = agent.model.count_tokens
        made: list[Summary] = []
        with summarizer(self.system, agent, self.seed) as summarize:
            for n, stretch in enumerate(self.stretches, start=1):
                made.append(summarize(stretch))
                self._see(stretch, made[-1])
                self._ask(agent, stretch, made[-1])
                self.tell(f"{self.system}: stretch {n} of {len(self.stretches)}")
        return SummaryRow(
            system=self.system,
            conversation=self.conversation,
            stretches=len(self.stretches),
            tokens=fmean(count(Part("summary", one.messages)) for one in made),
            tokens_of_originals=fmean(count(Part("stretch", s.messages)) for s in self.stretches),
            only_named=fmean(self.only_named),
            seconds=fmean(one.seconds for one in made),
            written_by=fmean(one.by_model for one in made),
            **shares(self.survives, self.answered),
        )

    def _see(self, stretch: Stretch, summary: Summary) -> None:
        told, _, _ = summary.text.partition(_NAMED)
        for fact in stretch.facts:
            stands = contains(summary.text, fact.value)
            self.survives.append(stands)
            self.only_named.append(stands and not contains(told, fact.value))

    def _ask(self, agent: Agent, stretch: Stretch, summary: Summary) -> None:
        options = Options(max_new_tokens=ANSWER_TOKENS, max_tokens=WINDOW_TOKENS, ephemeral=True)
        where = f"{self.system}, {self.conversation}, {stretch.first}"
        known = [*agent.context.prompt(), Part(where, summary.messages)]
        for fact, question in zip(stretch.facts, stretch.questions, strict=True):
            if question is not None:
                asked = Part(f"{where}, {fact.id}", (Message("user", question),))
                answer = complete(agent.model, [*known, asked], options)
                self.answered.append(contains(answer.text, fact.value))
