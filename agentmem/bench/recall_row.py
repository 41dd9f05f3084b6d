"""What the recall benchmark is asked for, and what it answers for each system."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any

from agentmem.bench.options import WindowOptions
from agentmem.bench.plan import most_instructions
from agentmem.bench.sizes import Sizes
from agentmem.errors import InvalidInput

SYSTEMS = ("dense", "window", "oracle", "agentmem:kv", "agentmem:text")


@dataclass(frozen=True, kw_only=True)
class RecallOptions(WindowOptions):
    """What to play and with what.

    Args:
        updates: of how many facts another value was stated as true before; half where None.
        instructions: standing instructions that are stated in it.
        returning: facts that are asked for in it, 500 turns or more after they were stated.
        generate: the model answers every turn itself, in place of the given replies.
        systems: which systems; "agentmem" stands for both of its ways.
        controller, policy: of agentmem.
        kv: format of KV in the window of agentmem, window and oracle.
        embedder: as `Agent` takes it.
        max_new_tokens: tokens of an answer.
        write_script: where to write the conversation that is played.
    """

    bench = "recall"
    choosing = frozenset({"systems", "conversations", "out", "write_script"})
    small = MappingProxyType({"budget": 512, "turns": 72, "facts": 10})

    updates: int | None = None
    instructions: int = 5
    returning: int = 0
    generate: bool = False
    systems: tuple[str, ...] = SYSTEMS
    controller: str = "llm"
    policy: str = "mixture"
    kv: str = "q8"
    embedder: str | None = None
    max_new_tokens: int = 24
    write_script: Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        known = {*SYSTEMS, "agentmem"}
        for system in self.systems:
            if system not in known:
                raise InvalidInput(f"No system {system!r}: use some of {', '.join(sorted(known))}.")
        if not self.systems:
            raise InvalidInput(f"Name at least one system of {', '.join(SYSTEMS)}.")
        one_file = self.script or self.write_script
        if one_file is not None and self.conversations > 1:
            raise InvalidInput(
                f"{one_file} holds one conversation: leave `conversations` out "
                f"(got {self.conversations})."
            )

    @classmethod
    def _lower(cls, sizes: Sizes) -> None:
        super()._lower(sizes)
        turns, facts = sizes.chosen["turns"], sizes.chosen["facts"]
        most = most_instructions(turns, facts)
        sizes.lower("instructions", most, f"for {turns} turns with {facts} facts")

    @property
    def more(self) -> dict[str, Any]:
        """Values that change, standing instructions, topics that return."""
        updates = self.facts // 2 if self.updates is None else self.updates
        return {
            "updates": updates,
            "instructions": self.instructions,
            "returning": self.returning,
        }

    @property
    def wanted(self) -> list[str]:
        """The systems in their usual order, each once."""
        return [s for s in SYSTEMS if s in self.systems or s.partition(":")[0] in self.systems]


@dataclass(frozen=True, kw_only=True)
class RecallRow:
    """What one system did. Shares are 0..1, seconds are means.

    Args:
        system, via: the system, and how segments come back ("off" where they do not).
        conversation: digest of what was played; rows of different ones do not compare.
        turns, facts, tokens: of the conversation; tokens with message headers.
        questions: how many were asked, `paraphrases` of them sharing no word with the statement.
        window_share: share of answers in the last `budget` tokens: what no memory at all gives.
        in_window: share of questions whose answer the model could see.
        exact: share of questions whose answer is in the reply.
        exact_each: the same, question by question.
        peak_prompt_tokens: most tokens any forward attended to.
        kv_bytes_end: KV of the window after the last question.
        kv_bytes_dense_end: what a dense cache of everything said would hold then.
        small_talk_recall_share: mean share of the budget that recalled segments took while the
            user made small talk: what recall costs where it is not needed.
        newest_first: of the values that took another's place, the share that a search for the
            question finds above the older one; None where nothing is searched.
        older_found: share whose older value is found all the same, with the time it held.
        instructions_in_window: share of standing instructions that stand in the window after the
            last turn.
        returning_in_window: share of questions within the conversation whose answer the model could
            see then; None where there are none.
        missed: the questions whose answer the model could not see.
        stretches: what every fifty turns cost (`Stretch`).
        seconds_per_turn, seconds_per_question: by stage.
    """

    system: str
    via: str
    conversation: str
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
    exact_each: list[bool]
    peak_prompt_tokens: int
    kv_bytes_end: int
    kv_bytes_dense_end: int
    small_talk_recall_share: float
    seconds_per_turn: dict[str, float]
    seconds_per_question: dict[str, float]
    newest_first: float | None = None
    older_found: float | None = None
    instructions_in_window: float | None = None
    returning_in_window: float | None = None
    missed: list[str] = field(default_factory=list)
    stretches: list[dict[str, Any]] = field(default_factory=list)


def pooled(rows: Sequence[RecallRow]) -> list[RecallRow]:
    """One row a system over all its conversations: means, but for the peak."""
    systems: dict[tuple[str, str], list[RecallRow]] = {}
    for row in rows:
        systems.setdefault((row.system, row.via), []).append(row)
    return [same[0] if len(same) == 1 else _pool(same) for same in systems.values()]


def _pool(rows: Sequence[RecallRow]) -> RecallRow:
    def mean(name: str) -> float:
        return fmean(getattr(row, name) for row in rows)

    def mean_known(name: str) -> float | None:
        known = [getattr(row, name) for row in rows if getattr(row, name) is not None]
        return fmean(known) if known else None

    def stages(name: str) -> dict[str, float]:
        return {
            stage: fmean(getattr(row, name)[stage] for row in rows)
            for stage in getattr(rows[0], name)
        }

    return replace(
        rows[0],
        conversation=" ".join(row.conversation for row in rows),
        tokens=round(mean("tokens")),
        questions=sum(row.questions for row in rows),
        paraphrases=sum(row.paraphrases for row in rows),
        window_share=mean("window_share"),
        in_window=mean("in_window"),
        in_window_paraphrase=mean_known("in_window_paraphrase"),
        exact=mean("exact"),
        exact_paraphrase=mean_known("exact_paraphrase"),
        exact_each=[right for row in rows for right in row.exact_each],
        missed=[question for row in rows for question in row.missed],
        peak_prompt_tokens=max(row.peak_prompt_tokens for row in rows),
        kv_bytes_end=round(mean("kv_bytes_end")),
        kv_bytes_dense_end=round(mean("kv_bytes_dense_end")),
        small_talk_recall_share=mean("small_talk_recall_share"),
        seconds_per_turn=stages("seconds_per_turn"),
        seconds_per_question=stages("seconds_per_question"),
        newest_first=mean_known("newest_first"),
        older_found=mean_known("older_found"),
        instructions_in_window=mean_known("instructions_in_window"),
        returning_in_window=mean_known("returning_in_window"),
    )
