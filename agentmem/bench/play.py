"""One system playing a conversation turn by turn, then answering its questions.

agentmem answers each question as often as there are ways to recall, from the same window, so that
the ways differ in nothing else.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal, cast

from agentmem.bench.conversation import Conversation, Fact, Question, digest
from agentmem.bench.growth import Meter
from agentmem.bench.recall_row import RecallOptions, RecallRow
from agentmem.bench.scoring import exact

if TYPE_CHECKING:
    from agentmem import Agent, Usage

_HITS = 50
"""Hits of a search that are looked at."""
STAGES = ("recall", "controller", "prefill", "decode")


@dataclass
class Play:
    """One system playing the conversation.

    Args:
        conversation: what is played, then asked.
        options: budget, model and the like.
        system: which one.
        vias: the ways segments come back, ("off",) where they do not; turns recall by the first.
        tell: told in a few words how far it is.
        context_tokens: the model's own window, as far as which `dense` goes; 0 where unknown.
    """

    conversation: Conversation
    options: RecallOptions
    system: str
    vias: tuple[str, ...]
    tell: Callable[[str], None]
    context_tokens: int = 0
    usages: list[Usage] = field(default_factory=list)
    recalled_tokens: list[int] = field(default_factory=list)
    returned: dict[str, bool] = field(default_factory=dict)
    meter: Meter = field(default_factory=Meter)
    answers: dict[str, list[_Answer]] = field(default_factory=dict)
    newest_first: float | None = None
    older_found: float | None = None
    instructions_in_window: float | None = None

    def run(self, *, tokens: int, asked: int, window_share: float) -> list[RecallRow]:
        """Play every turn, ask every question, measure: a row for each way.

        Args:
            tokens: of all turns, headers included.
            asked: of all questions.
            window_share: goes into the rows.
        """
        questions = self.conversation.last_questions
        name = ":".join((self.system, *self.vias))
        with (
            tempfile.TemporaryDirectory(prefix="agentmem-bench-") as folder,
            self._agent(Path(folder) / "store.db", tokens + asked * len(self.vias)) as agent,
        ):
            self._converse(agent, name)
            self._look(agent)
            for n, question in enumerate(questions, start=1):
                # Whoever asks first may push something out of the window.
                for via in self.vias if n % 2 else reversed(self.vias):
                    self.answers.setdefault(via, []).append(self._ask(agent, question, via))
                if n % 10 == 0 or n == len(questions):
                    self.tell(f"{name}: question {n} of {len(questions)}")
        return [self._row(via, tokens, window_share) for via in self.vias]

    def _converse(self, agent: Agent, name: str) -> None:
        """Play the turns; what some of them ask is either in view then, or not."""
        turns = self.conversation.turns
        asked = {one.turn: one for one in self.conversation.questions}
        for n, turn in enumerate(turns, start=1):
            question = asked.get(n)
            if question is not None and self.system == "oracle":
                self._place_by_hand(agent, question)
            started, cpu_started = time.perf_counter(), time.process_time()
            usage = agent.chat(turn.user, reply=turn.reply).usage
            seconds = time.perf_counter() - started
            cpu_seconds = time.process_time() - cpu_started
            self.usages.append(usage)
            if turn.kind == "small_talk":
                self.recalled_tokens.append(agent.recalled_tokens)
            if question is not None:
                self.returned[question.text] = exact(question.answer, agent.window_text())
            if self.meter.turn(n, seconds, cpu_seconds, usage) or n == len(turns):
                self.meter.end(n, usage.rss, agent.memory.archive.store_bytes())
            if n % 25 == 0 or n == len(turns):
                self.tell(f"{name}: turn {n} of {len(turns)}")

    def _row(self, via: str, tokens: int, window_share: float) -> RecallRow:
        answers = self.answers[via]
        usages = [answer.usage for answer in answers]
        hard = [answer for answer in answers if answer.paraphrase]
        return RecallRow(
            system=self.system,
            via=via,
            conversation=digest(self.conversation),
            turns=len(self.conversation.turns),
            facts=len(self.conversation.questions),
            returning_in_window=fmean(self.returned.values()) if self.returned else None,
            missed=[
                *(text for text, seen in self.returned.items() if not seen),
                *(answer.question for answer in answers if not answer.in_window),
            ],
            stretches=[asdict(one) for one in self.meter.stretches],
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
            peak_prompt_tokens=max(
                max(usage.prompt_tokens, usage.peak_tokens) for usage in (*self.usages, *usages)
            ),
            kv_bytes_end=usages[-1].kv_bytes,
            kv_bytes_dense_end=usages[-1].kv_bytes_dense,
            small_talk_recall_share=fmean(self.recalled_tokens or [0]) / self.options.budget,
            seconds_per_turn=_mean_seconds(self.usages),
            seconds_per_question=_mean_seconds(usages),
            newest_first=self.newest_first,
            older_found=self.older_found,
            instructions_in_window=self.instructions_in_window,
        )

    def _look(self, agent: Agent) -> None:
        """See which instructions are in view, and what a search makes of values that changed."""
        told = self.conversation.instructions
        if told:
            text = "\n".join(entry.segment.text for entry in agent.context)
            self.instructions_in_window = fmean(one.text in text for one in told)
        changed = [
            (question, older)
            for question in self.conversation.questions
            if (older := self.conversation.replaced(question)) is not None
        ]
        if self.system == "agentmem" and changed:
            seen = [_search(agent, question, older) for question, older in changed]
            self.newest_first = fmean(first for first, _ in seen)
            self.older_found = fmean(found for _, found in seen)

    def _ask(self, agent: Agent, question: Question, via: str) -> _Answer:
        """Ask one question as if none had been asked before: a wrong answer would be copied."""
        agent.recall = cast("Literal['kv', 'text', 'off']", via)
        if self.system == "oracle":
            self._place_by_hand(agent, question)
        reply = agent.chat(question.text)
        answer = _Answer(
            question=question.text,
            in_window=exact(question.answer, agent.window_text()),
            exact=exact(question.answer, reply.text),
            paraphrase=question.paraphrase,
            usage=reply.usage,
        )
        for one in reversed(agent.turn_segments(agent.memory.turn)):
            agent.memory.forget(one)
        agent.context.remove([entry.id for entry in agent.context if entry.recalled])
        _store_window(agent)
        return answer

    def _place_by_hand(self, agent: Agent, question: Question) -> None:
        """Put the turn that states the fact, and nothing else, where recall would put it."""
        for one in agent.turn_segments(self.conversation.fact(question.fact).turn):
            stored = agent.memory.segment(one)
            agent.context.put(stored, via="kv", until_turn=agent.memory.turn + 1)
        _store_window(agent)

    def _agent(self, store: Path, tokens: int) -> Agent:
        from agentmem import Agent, Budget

        options = self.options
        if self.system == "dense":
            # Everything that will ever be said, replies to the questions included.
            unanswered = sum(turn.reply is None for turn in self.conversation.turns)
            num_replies = unanswered + len(self.conversation.last_questions)
            replies = num_replies * (options.max_new_tokens + 16)
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
                "recall": self.vias[0],
            }
        else:
            budget = Budget(options.budget)
            modes = {"controller": "policy", "kv": options.kv, "policy": "window", "recall": "off"}
        arguments: dict[str, Any] = {
            **modes,
            "threads": options.threads,
            "embedder": options.embedder,
        }
        return Agent(
            options.model,
            store=store,
            budget=budget,
            max_new_tokens=options.max_new_tokens,
            **arguments,
        )


@dataclass(frozen=True, slots=True)
class _Answer:
    question: str
    in_window: bool
    exact: bool
    paraphrase: bool
    usage: Usage


def _store_window(agent: Agent) -> None:
    """Let the archive have the window as it was made by hand."""
    with agent.memory.archive.write() as transaction:
        transaction.set_window(agent.memory.session.id, agent.context.snapshot())


def _search(agent: Agent, question: Question, older: Fact) -> tuple[bool, bool]:
    """Whether the newest value is found above the older one, and that one with its interval."""
    hits = agent.memory.search(question.text, _HITS)
    texts = [hit.segment.text for hit in hits]
    newest_at = next((i for i, text in enumerate(texts) if exact(question.answer, text)), None)
    # The newer statement may name the older value too: "from Porto to Braga".
    older_at = next(
        (
            i
            for i, text in enumerate(texts)
            if exact(older.value, text) and not exact(question.answer, text)
        ),
        None,
    )
    first = newest_at is not None and (older_at is None or newest_at < older_at)
    ended = any(
        exact(older.value, fact.statement) and fact.valid_to is not None
        for hit in hits
        for fact in hit.facts
    )
    probably = older_at is not None and hits[older_at].until is not None
    return first, ended or probably


def _mean_seconds(usages: list[Usage]) -> dict[str, float]:
    return {
        stage: fmean([usage.seconds.get(stage, 0.0) for usage in usages] or [0.0])
        for stage in STAGES
    }
