"""Does an assistant still know, after hundreds of turns, what it was told?

Every system plays the same conversation under the same budget, then answers the same questions:

    dense      the whole conversation in the window, nothing ever leaves: no budget
    window     the newest turns only, nothing comes back
    oracle     the same window with the turn that states the fact placed in it by hand
    agentmem   review and recall, as KV ("agentmem:kv") or as text ("agentmem:text")

Given replies are stored as the model's, so that all systems have said the same. A question counts
as `in_window` if the answer stands in the decoded tokens the model saw, as `exact` if it stands in
the reply. agentmem plays once and is asked every question both ways, from the same window. Before
the next question the last one is forgotten, and what it brought back leaves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from agentmem.bench.conversation import Conversation, digest, save
from agentmem.bench.growth import Growth, draw_growth, stretches_of
from agentmem.bench.paired import Difference, paired_difference
from agentmem.bench.play import Play
from agentmem.bench.playing import prepare, token_counter
from agentmem.bench.recall_row import SYSTEMS, RecallOptions, RecallRow, pooled
from agentmem.bench.report import Report, bar_chart, table
from agentmem.bench.scoring import check_difficulty

if TYPE_CHECKING:
    from rich.table import Table

__all__ = [
    "SYSTEMS",
    "RecallOptions",
    "RecallRow",
    "draw",
    "kv_against_text",
    "prepare",
    "render",
    "render_growth",
    "run_recall",
]

logger = logging.getLogger(__name__)

COLUMNS = (
    "system", "via", "in_window", "exact", "exact_paraphrase", "peak_prompt_tokens", "kv_bytes_end",
    "kv_bytes_dense_end", "small_talk_recall_share", "newest_first", "older_found",
    "instructions_in_window", "returning_in_window", "seconds_a_turn", "seconds_a_question",
)  # fmt: skip
GROWTH_COLUMNS = (
    "system", "via", "turns", "seconds_ratio", "cpu_seconds_ratio", "resident_share",
    "store_bytes_a_turn", "store_off_line_share",
)  # fmt: skip


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
    report.resume()
    options.check()
    with token_counter(options.model, options.budget, options.threads) as counted:
        count_tokens, context_tokens = counted
        played = [
            _Conversation.of(_to_play(conversation, options), options.budget, count_tokens)
            for conversation in prepare(options, count_tokens)
        ]
    if options.write_script is not None:
        save(played[0].conversation, options.write_script)
    # A script may have changed under its name; rows of another conversation do not compare.
    digests = {one.digest for one in played}
    report.rows = [row for row in report.rows if row["conversation"] in digests]
    done = {(row["conversation"], row["system"], row["via"]): row for row in report.rows}
    rows: list[RecallRow] = []
    for number, one in enumerate(played, start=1):
        where = f"conversation {number} of {len(played)}, " if len(played) > 1 else ""

        def tell_where(text: str, where: str = where) -> None:
            tell(where + text)

        missing: dict[str, list[str]] = {}
        for name in options.wanted:
            system, _, via = name.partition(":")
            if (one.digest, system, via or "off") in done:
                tell_where(f"{name}: measured before")
            else:
                missing.setdefault(system, []).append(via or "off")
        for system, vias in missing.items():
            play = Play(
                one.conversation, options, system, tuple(vias), tell_where, context_tokens
            )  # fmt: skip
            for measured in play.run(
                tokens=one.tokens, asked=one.asked, window_share=one.window_share
            ):
                report.add(asdict(measured))
                done[one.digest, system, measured.via] = asdict(measured)
        for name in options.wanted:
            system, _, via = name.partition(":")
            rows.append(RecallRow(**done[one.digest, system, via or "off"]))
    if options.out is not None and not draw(rows, options.out.with_suffix(".png")):
        tell("no picture: matplotlib is not installed (pip install '.[bench]')")
    return rows


def kv_against_text(rows: list[RecallRow]) -> Difference | None:
    """How exact answers differ between agentmem's two ways; None where one was not played."""
    right = {row.via: row.exact_each for row in pooled(rows) if row.system == "agentmem"}
    if len(right) != 2:
        return None
    return paired_difference(right["kv"], right["text"])


def render(rows: list[RecallRow]) -> Table:
    """The rows as a table for a terminal, one a system."""
    drawn = table("recall", _shown(rows), COLUMNS)
    difference = kv_against_text(rows)
    if difference is not None:
        drawn.caption = f"exact answers, via kv less via text: {difference.in_points('questions')}"
    return drawn


def render_growth(rows: list[RecallRow]) -> Table | None:
    """How costs grew with the conversation; None where none was long enough to tell."""
    grown = [(row, Growth.of(stretches_of(row.stretches))) for row in rows]
    shown = [asdict(row) | asdict(growth) for row, growth in grown if growth is not None]
    return table("growth", shown, GROWTH_COLUMNS) if shown else None


def _shown(rows: list[RecallRow]) -> list[dict[str, object]]:
    return [
        {
            **asdict(row),
            "seconds_a_turn": sum(row.seconds_per_turn.values()),
            "seconds_a_question": sum(row.seconds_per_question.values()),
        }
        for row in pooled(rows)
    ]


def draw(rows: list[RecallRow], path: Path) -> bool:
    """Shares of answers in the window and in the reply, by system; False without matplotlib.

    Where a conversation is long, what it cost on its way stands in a second picture beside it.
    """
    for row in rows:
        stretches = stretches_of(row.stretches)
        if row.system == "agentmem" and Growth.of(stretches) is not None:
            title = f"agentmem, {row.turns:,} turns, {row.tokens:,} tokens, budget {row.budget:,}"
            draw_growth(stretches, title, path.with_stem(f"{path.stem}-growth"))
            break
    rows = pooled(rows)
    labels = [row.system if row.via == "off" else f"{row.system}\n{row.via}" for row in rows]
    series = {"in_window": [r.in_window for r in rows], "exact": [r.exact for r in rows]}
    title = f"{rows[0].questions} questions after {rows[0].turns} turns, {rows[0].tokens:,} tokens"
    return bar_chart(path, title, labels, series)


def _to_play(conversation: Conversation, options: RecallOptions) -> Conversation:
    """The conversation, without its replies where the model is to answer."""
    if not options.generate:
        return conversation
    return replace(conversation, turns=tuple(replace(t, reply=None) for t in conversation.turns))


@dataclass(frozen=True, slots=True)
class _Conversation:
    """A conversation and what it takes: tokens of its turns and of its questions."""

    conversation: Conversation
    digest: str
    tokens: int
    asked: int
    window_share: float

    @classmethod
    def of(
        cls, conversation: Conversation, budget: int, count_tokens: Callable[[str], int]
    ) -> _Conversation:
        """Count it, and refuse it where it is too easy."""
        return cls(
            conversation,
            digest(conversation),
            sum(count_tokens(t.user) + count_tokens(t.reply or "") for t in conversation.turns),
            sum(count_tokens(question.text) for question in conversation.last_questions),
            check_difficulty(conversation, budget, count_tokens),
        )
