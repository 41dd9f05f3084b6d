"""Does an assistant still know, after hundreds of turns, what it was told?

Every system plays the same conversation under the same budget, then answers the same questions:

    dense      the whole conversation in the window, nothing ever leaves: no budget
    window     the newest turns only, nothing comes back
    oracle     the same window with the turn that states the fact placed in it by hand
    agentmem   review and recall, as KV ("agentmem:kv") or as text ("agentmem:text")

Given replies are stored as the model's, so that all systems have said the same. A question counts
as `in_window` if the answer stands in the decoded tokens the model saw, as `exact` if it stands in
the reply. Questions are turns too: each sees what the ones before left in the window.
"""

from __future__ import annotations

import logging
import shlex
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from agentmem.bench.conversation import Conversation, Question, load, save
from agentmem.bench.generator import generate
from agentmem.bench.report import Report, bar_chart, table
from agentmem.bench.scoring import check_difficulty, exact
from agentmem.errors import InvalidInput

if TYPE_CHECKING:
    from rich.table import Table

    from agentmem import Agent, Usage

logger = logging.getLogger(__name__)

SYSTEMS = ("dense", "window", "oracle", "agentmem:kv", "agentmem:text")
COLUMNS = (
    "system", "via", "in_window", "exact", "exact_paraphrase", "peak_prompt_tokens", "kv_bytes_end",
    "kv_bytes_dense_end", "small_talk_recall_share", "seconds_a_turn", "seconds_a_question",
)  # fmt: skip
STAGES = ("recall", "controller", "prefill", "decode")


@dataclass(frozen=True, kw_only=True)
class RecallOptions:
    """What to play and with what.

    Args:
        model: as `Agent` takes it.
        budget: tokens of the window.
        turns, facts, tokens, seed: of the generated conversation.
        script: a conversation file to play in place of a generated one.
        systems: which systems; "agentmem" stands for both of its ways.
        controller, policy: of agentmem.
        kv: format of KV in the window of agentmem, window and oracle.
        max_new_tokens: tokens of an answer.
        threads: CPU threads of the local model.
        write_script: where to write the conversation that is played.
        out: JSON file; rows that are in it already are not measured again. A PNG goes beside it.
    """

    model: str = "local"
    budget: int = 1024
    turns: int = 300
    facts: int = 40
    tokens: int | None = None
    seed: int = 0
    script: Path | None = None
    systems: tuple[str, ...] = SYSTEMS
    controller: str = "llm"
    policy: str = "relevance"
    kv: str = "q8"
    max_new_tokens: int = 24
    threads: int | None = None
    write_script: Path | None = None
    out: Path | None = None

    @classmethod
    def quick(cls, **changes: Any) -> RecallOptions:
        """A small conversation and budget: minutes on two cores."""
        return cls(**{"budget": 512, "turns": 64, "facts": 8, **changes})

    def __post_init__(self) -> None:
        known = {*SYSTEMS, "agentmem"}
        for system in self.systems:
            if system not in known:
                raise InvalidInput(f"No system {system!r}: use some of {', '.join(sorted(known))}.")
        if not self.systems:
            raise InvalidInput(f"Name at least one system of {', '.join(SYSTEMS)}.")

    @property
    def wanted(self) -> list[str]:
        """The systems in their usual order, each once."""
        return [s for s in SYSTEMS if s in self.systems or s.partition(":")[0] in self.systems]

    @property
    def command(self) -> str:
        """The command that gives the same rows; it leaves out which of them are wanted."""
        skipped = {"systems", "out", "write_script"}
        words = ["agentmem", "bench", "recall"]
        for option in fields(self):
            value = getattr(self, option.name)
            if option.name not in skipped and value != option.default:
                words += [f"--{option.name.replace('_', '-')}", str(value)]
        return shlex.join(words)


@dataclass(frozen=True, kw_only=True)
class RecallRow:
    """What one system did. Shares are 0..1, seconds are means.

    Args:
        system, via: the system, and how segments come back ("off" where they do not).
        turns, facts, tokens: of the conversation; tokens with message headers.
        questions: how many were asked, `paraphrases` of them sharing no word with the statement.
        window_share: share of answers in the last `budget` tokens: what no memory at all gives.
        in_window: share of questions whose answer the model could see.
        exact: share of questions whose answer is in the reply.
        peak_prompt_tokens: most tokens any forward attended to.
        kv_bytes_end: KV of the window after the last question.
        kv_bytes_dense_end: what a dense cache of everything said would hold then.
        small_talk_recall_share: mean share of the budget that recalled segments took while the
            user made small talk: what recall costs where it is not needed.
        seconds_per_turn, seconds_per_question: by stage.
    """

    system: str
    via: str
    turns: int
    facts: int
    budget: int
    tokens: int
    questions: int
    paraphrases: int
    window_share: float
    in_window: float
    in_window_paraphrase: float | None
    exact: float
    exact_paraphrase: float | None
    peak_prompt_tokens: int
    kv_bytes_end: int
    kv_bytes_dense_end: int
    small_talk_recall_share: float
    seconds_per_turn: dict[str, float]
    seconds_per_question: dict[str, float]


def run_recall(
    options: RecallOptions, *, progress: Callable[[str], None] | None = None
) -> list[RecallRow]:
    """Play the conversation with every system and ask the questions.

    Args:
        options: what to play and with what.
        progress: told in a few words what is going on.

    Raises:
        InvalidInput: the conversation is too easy for the budget, or a file is wrong.
    """
    tell = progress or (lambda text: logger.info("%s", text))
    report = Report("recall", options.command, options.out)
    done = {(row["system"], row["via"]): row for row in report.resume()}
    with _token_counter(options) as count_tokens:
        conversation = prepare(options, count_tokens)
        share = check_difficulty(conversation, options.budget, count_tokens)
        tokens = sum(count_tokens(t.user) + count_tokens(t.reply or "") for t in conversation.turns)
        asked = sum(count_tokens(question.text) for question in conversation.questions)
    if options.write_script is not None:
        save(conversation, options.write_script)
    rows: list[RecallRow] = []
    for name in options.wanted:
        system, _, via = name.partition(":")
        row = done.get((system, via or "off"))
        if row is None:
            play = _Play(conversation, options, system, via or "off", tell)
            measured = play.run(tokens=tokens, asked=asked, window_share=share)
            report.add(asdict(measured))
            rows.append(measured)
        else:
            tell(f"{name}: measured before")
            rows.append(RecallRow(**row))
    if options.out is not None and not draw(rows, options.out.with_suffix(".png")):
        tell("no picture: matplotlib is not installed (pip install '.[bench]')")
    return rows


def prepare(options: RecallOptions, count_tokens: Callable[[str], int]) -> Conversation:
    """The script's conversation, or a generated one."""
    if options.script is not None:
        return load(options.script)
    return generate(
        options.seed,
        count_tokens=count_tokens,
        turns=options.turns,
        facts=options.facts,
        tokens=options.tokens,
    )


def render(rows: list[RecallRow]) -> Table:
    """The rows as a table for a terminal."""
    shown = [
        {
            **asdict(row),
            "seconds_a_turn": sum(row.seconds_per_turn.values()),
            "seconds_a_question": sum(row.seconds_per_question.values()),
        }
        for row in rows
    ]
    return table("recall", shown, COLUMNS)


def draw(rows: list[RecallRow], path: Path) -> bool:
    """Shares of answers in the window and in the reply, by system; False without matplotlib."""
    labels = [row.system if row.via == "off" else f"{row.system}\n{row.via}" for row in rows]
    series = {"in_window": [r.in_window for r in rows], "exact": [r.exact for r in rows]}
    title = f"{rows[0].questions} questions after {rows[0].turns} turns, {rows[0].tokens:,} tokens"
    return bar_chart(path, title, labels, series)


@contextmanager
def _token_counter(options: RecallOptions) -> Iterator[Callable[[str], int]]:
    """Counts what a message takes in the model's own prompt, header included."""
    from agentmem import Agent, Message, Segment

    with (
        tempfile.TemporaryDirectory(prefix="agentmem-bench-") as folder,
        Agent(
            options.model,
            store=Path(folder) / "count.db",
            budget=options.budget,
            controller="off",
            recall="off",
            threads=options.threads,
        ) as agent,
    ):
        yield lambda text: agent.context.count(Segment((Message("user", text),))) if text else 0


@dataclass
class _Play:
    """One system playing the conversation."""

    conversation: Conversation
    options: RecallOptions
    system: str
    via: str
    tell: Callable[[str], None]
    usages: list[Usage] = field(default_factory=list)
    recalled_tokens: list[int] = field(default_factory=list)

    def run(self, *, tokens: int, asked: int, window_share: float) -> RecallRow:
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
            peak_prompt_tokens=max(max(u.prompt_tokens, u.peak_tokens) for u in self.usages),
            kv_bytes_end=self.usages[-1].kv_bytes,
            kv_bytes_dense_end=self.usages[-1].kv_bytes_dense,
            small_talk_recall_share=fmean(self.recalled_tokens or [0]) / self.options.budget,
            seconds_per_turn=_mean_seconds(self.usages[:num_turns]),
            seconds_per_question=_mean_seconds(self.usages[num_turns:]),
        )

    def _ask(self, agent: Agent, question: Question) -> _Answer:
        pinned = self._place_by_hand(agent, question) if self.system == "oracle" else []
        reply = agent.chat(question.text)
        self.usages.append(reply.usage)
        if pinned:
            agent.memory.unpin(*pinned)
        return _Answer(
            in_window=exact(question.answer, agent.window_text()),
            exact=exact(question.answer, reply.text),
            paraphrase=question.paraphrase,
        )

    def _place_by_hand(self, agent: Agent, question: Question) -> list[int]:
        """Bring back the turn that states the fact and hold it there; returns what to let go."""
        segment_ids = agent.turn_segments(self.conversation.fact(question.fact).turn)
        missing = [one for one in segment_ids if one not in agent.context]
        if missing:
            agent.memory.restore(*missing)
        agent.memory.pin(*segment_ids)
        return segment_ids

    def _agent(self, store: Path, tokens: int) -> Agent:
        from agentmem import Agent, Budget

        options = self.options
        if self.system == "dense":
            # Everything that will ever be said, replies to the questions included.
            replies = len(self.conversation.questions) * (options.max_new_tokens + 16)
            reserve = 2 * options.max_new_tokens
            budget = Budget(tokens + replies + reserve + 1024, reserve=reserve, warn_at=0.999)
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
