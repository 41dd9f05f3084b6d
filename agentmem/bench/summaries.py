"""How many of the facts that a stretch of conversation states survive its summary?

Stretches of about 300 tokens are summarized by the model, by the extract that stands in for it, by
chance at the extract's length, and not at all: that is the ceiling. A fact survives if its value
stands in the summary, and is answered if the model finds it there, with nothing else to go by.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from operator import ge
from pathlib import Path
from typing import TYPE_CHECKING

from agentmem.bench.conversation import Conversation, digest
from agentmem.bench.paired import Difference, paired_difference
from agentmem.bench.playing import message_counter, prepare
from agentmem.bench.report import Report, bar_chart, table
from agentmem.bench.stretches import STRETCH_TOKENS, Stretch, cut, draw
from agentmem.bench.summaries_play import SummaryPlay
from agentmem.bench.summaries_row import SummaryOptions, SummaryRow, pooled
from agentmem.bench.summary_systems import SYSTEMS, open_agent
from agentmem.errors import InvalidInput

if TYPE_CHECKING:
    from rich.table import Table

__all__ = [
    "SYSTEMS",
    "SummaryOptions",
    "SummaryRow",
    "against_extract",
    "picture",
    "render",
    "run_summaries",
]

logger = logging.getLogger(__name__)

COLUMNS = (
    "system", "stretches", "facts", "tokens", "tokens_of_originals", "survives", "low", "high",
    "only_named", "questions", "answered", "answered_low", "answered_high", "seconds", "written_by",
)  # fmt: skip


def run_summaries(
    options: SummaryOptions, *, progress: Callable[[str], None] | None = None
) -> list[SummaryRow]:
    """Summarize the stretches with every system; a row for each system and conversation.

    Args:
        options: what to summarize and with what.
        progress: told in a few words what is going on.

    Raises:
        InvalidInput: a conversation has no stretch that states a fact, or a file is wrong.
    """
    tell = progress or (lambda text: logger.info("%s", text))
    report = Report("summaries", options.command, options.out)
    report.resume()
    options.check()
    with open_agent(options.model, options.threads) as agent:
        count_tokens = message_counter(agent)
        found = {digest(one): _found(one, count_tokens) for one in prepare(options, count_tokens)}
        drawn = {
            one: draw(stretches, share, options.seed)
            for (one, stretches), share in zip(found.items(), options.shares, strict=True)
        }
        _check_number(drawn, options, tell)
        # A script may have changed under its name; rows of another conversation do not compare.
        report.rows = [row for row in report.rows if row["conversation"] in drawn]
        done = {(row["conversation"], row["system"]): row for row in report.rows}
        # All systems of a conversation before the next: half a run compares.
        wanted = [(one, name) for one in drawn for name in SYSTEMS if name in options.systems]
        missing = [key for key in wanted if key not in done]
        for number, (one, name) in enumerate(missing, start=1):
            where = f"row {number} of {len(missing)}, "

            def tell_where(text: str, where: str = where) -> None:
                tell(where + text)

            play = SummaryPlay(name, drawn[one], one, options.seed, tell_where)
            done[one, name] = asdict(play.run(agent))
            report.add(done[one, name])
    rows = [SummaryRow(**done[key]) for key in wanted]
    if options.out is not None and not picture(rows, options.out.with_suffix(".png")):
        tell("no picture: matplotlib is not installed (pip install '.[bench]')")
    return rows


def _found(conversation: Conversation, count_tokens: Callable[[str], int]) -> list[Stretch]:
    found = cut(conversation, count_tokens)
    if not found:
        raise InvalidInput(
            f"The conversation of {len(conversation.turns)} turns has no stretch of about "
            f"{STRETCH_TOKENS} tokens that states a fact: there is nothing to measure."
        )
    return found


def _check_number(
    drawn: Mapping[str, Sequence[Stretch]], options: SummaryOptions, tell: Callable[[str], None]
) -> None:
    """Refuse a number of stretches that was asked for and is not there; tell where none was."""
    shares = zip(drawn.values(), options.shares, strict=True)
    if all(len(stretches) == share for stretches, share in shares):
        return
    if options.stretches is None:
        tell(f"stretches: {sum(map(len, drawn.values()))}, as many as there are")
        return
    there = [len(stretches) for stretches in drawn.values()]
    most = max(
        number
        for number in range(options.conversations, options.stretches)
        if all(map(ge, there, replace(options, stretches=number).shares))
    )
    raise InvalidInput(
        f"`stretches` must be at most {most} for these conversations: got {options.stretches}."
    )


def against_extract(
    rows: Sequence[SummaryRow], name: str = "llm"
) -> tuple[Difference, Difference | None] | None:
    """How facts survive and are answered by one system less by the extract, fact by fact.

    None where either was not asked for; no second difference where nothing was asked.
    """
    by_system = {row.system: row for row in pooled(rows)}
    if name not in by_system or "extract" not in by_system:
        return None
    one, other = by_system[name], by_system["extract"]
    answers = paired_difference(one.answered_each, other.answered_each) if one.questions else None
    return paired_difference(one.survives_each, other.survives_each), answers


def render(rows: Sequence[SummaryRow]) -> Table:
    """The rows as a table for a terminal, one a system, and what the model adds to the extract."""
    drawn = table("summaries", [asdict(row) for row in pooled(rows)], COLUMNS)
    differences = against_extract(rows)
    if differences is not None:
        words = zip(("facts survive", "facts answered"), differences, strict=True)
        drawn.caption = "\n".join(
            f"llm less extract, {what}: {one.in_points('facts')}"
            for what, one in words
            if one is not None
        )
    return drawn


def picture(rows: Sequence[SummaryRow], path: Path) -> bool:
    """Facts that survive and that are answered, by system; False without matplotlib."""
    shown = pooled(rows)
    series = {
        "survives": [row.survives for row in shown],
        "answered": [row.answered or 0.0 for row in shown],
    }
    title = f"{shown[0].facts} facts in summaries of {shown[0].stretches} stretches"
    return bar_chart(path, title, [row.system for row in shown], series)
