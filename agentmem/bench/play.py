"""One system playing a conversation turn by turn, then answering its questions."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from agentmem.bench.conversation import Conversation, Question, digest
from agentmem.bench.recall_row import RecallOptions, RecallRow
from agentmem.bench.scoring import exact

if TYPE_CHECKING:
    from agentmem import Agent, Usage

STAGES = ("recall", "controller", "prefill", "decode")


@dataclass
class Play:
    """One system playing the conversation.

    Args:
        conversation: what is played, then asked.
        options: budget, model and the like.
        system, via: which system, and how segments come back.
        tell: told in a few words how far it is.
        context_tokens: the model's own window, as far as which `dense` goes; 0 where unknown.
    """

    conversation: Conversation
    options: RecallOptions
    system: str
    via: str
    tell: Callable[[str], None]
    context_tokens: int = 0
    usages: list[Usage] = field(default_factory=list)
    recalled_tokens: list[int] = field(default_factory=list)

    def run(self, *, tokens: int, asked: int, window_share: float) -> RecallRow:
        """Play every turn, ask every question, measure.

        Args:
            tokens: of all turns, headers included.
            asked: of all questions.
            window_share: goes into the row.
        """
        conversation, name = self.conversation, f"{self.system}:{self.via}"
        num_turns = len(conversation.turns)
        with (
            tempfile.TemporaryDirectory(prefix="agentmem-bench-") as folder,
            self._agent(Path(folder) / "store.db", tokens + asked) as agent,
        ):
            for n, turn in enumerate(conversation.turns, start=1):
                self.usages.append(agent.chat(turn.user, reply=turn.reply).usage)
                if turn.kind == "small_talk":
                    self.recalled_tokens.append(agent.recalled_tokens)
                if n % 25 == 0 or n == num_turns:
                    self.tell(f"{name}: turn {n} of {num_turns}")
            answers = []
            for n, question in enumerate(conversation.questions, start=1):
                answers.append(self._ask(agent, question))
                if n % 10 == 0 or n == len(conversation.questions):
                    self.tell(f"{name}: question {n} of {len(conversation.questions)}")
        hard = [answer for answer in answers if answer.paraphrase]
        return RecallRow(
            system=self.system,
            via=self.via,
            conversation=digest(conversation),
            turns=num_turns,
            facts=len(conversation.questions),
            budget=self.options.budget,
            tokens=tokens,
            questions=len(answers),
            paraphrases=len(hard),
            window_share=window_share,
            in_window=fmean(answer.in_window for answer in answers),
            in_window_paraphrase=fmean(a.in_window for a in hard) if hard else None,
            exact=fmean(answer.exact for answer in answers),
            exact_paraphrase=fmean(a.exact for a in hard) if hard else None,
            exact_each=[answer.exact for answer in answers],
            peak_prompt_tokens=max(max(u.prompt_tokens, u.peak_tokens) for u in self.usages),
            kv_bytes_end=self.usages[-1].kv_bytes,
            kv_bytes_dense_end=self.usages[-1].kv_bytes_dense,
            small_talk_recall_share=fmean(self.recalled_tokens or [0]) / self.options.budget,
            seconds_per_turn=_mean_seconds(self.usages[:num_turns]),
            seconds_per_question=_mean_seconds(self.usages[num_turns:]),
        )

    def _ask(self, agent: Agent, question: Question) -> _Answer:
        """Ask one question, and take it out again: a wrong answer would be copied by the next."""
        if self.system == "oracle":
            self._place_by_hand(agent, question)
        reply = agent.chat(question.text)
        self.usages.append(reply.usage)
        answer = _Answer(
            in_window=exact(question.answer, agent.window_text()),
            exact=exact(question.answer, reply.text),
            paraphrase=question.paraphrase,
        )
        asked = agent.turn_segments(agent.memory.turn)
        agent.memory.drop(*(one for one in asked if one in agent.context))
        return answer

    def _place_by_hand(self, agent: Agent, question: Question) -> None:
        """Put the turn that states the fact, and nothing else, where recall would put it."""
        agent.context.remove([entry.id for entry in agent.context if entry.recalled])
        for one in agent.turn_segments(self.conversation.fact(question.fact).turn):
            stored = agent.memory.segment(one)
            agent.context.put(stored, via="kv", until_turn=agent.memory.turn + 1)

    def _agent(self, store: Path, tokens: int) -> Agent:
        from agentmem import Agent, Budget

        options = self.options
        if self.system == "dense":
            # Everything that will ever be said, replies to the questions included.
            replies = len(self.conversation.questions) * (options.max_new_tokens + 16)
            reserve = 2 * options.max_new_tokens
            whole = tokens + replies + reserve + 1024
            longest = min(whole, self.context_tokens or whole)
            budget = Budget(longest, reserve=reserve, warn_at=0.999)
            modes = {"controller": "off", "kv": "dense", "policy": "window", "recall": "off"}
        elif self.system == "agentmem":
            budget = Budget(options.budget)
            modes = {
                "controller": options.controller,
                "kv": options.kv,
                "policy": options.policy,
                "recall": self.via,
            }
        else:
            budget = Budget(options.budget)
            modes = {"controller": "policy", "kv": options.kv, "policy": "window", "recall": "off"}
        arguments: dict[str, Any] = {**modes, "threads": options.threads}
        return Agent(
            options.model,
            store=store,
            budget=budget,
            max_new_tokens=options.max_new_tokens,
            **arguments,
        )


@dataclass(frozen=True, slots=True)
class _Answer:
    in_window: bool
    exact: bool
    paraphrase: bool


def _mean_seconds(usages: list[Usage]) -> dict[str, float]:
    return {
        stage: fmean([usage.seconds.get(stage, 0.0) for usage in usages] or [0.0])
        for stage in STAGES
    }
