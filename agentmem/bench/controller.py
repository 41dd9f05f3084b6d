"""What does a decider keep of what will be needed, at equal tokens?

Every decider plays the same conversations under the same budget: an oracle that knows what will be
asked, valid decisions by chance, every policy, and the model's ways (read off its logits, these as
one signal of a mixture, free tool calls finished by chance). With recall off nothing that leaves
comes back, so that what stands in the window is the decider's doing alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from agentmem.bench.controller_play import ControllerPlay
from agentmem.bench.controller_row import ControllerOptions, ControllerRow, pooled, row_of
from agentmem.bench.conversation import digest
from agentmem.bench.paired import Difference, paired_difference
from agentmem.bench.playing import prepare, token_counter
from agentmem.bench.report import Report, bar_chart, table
from agentmem.bench.scoring import check_difficulty

if TYPE_CHECKING:
    from rich.table import Table

__all__ = [
    "ControllerOptions",
    "ControllerRow",
    "against",
    "draw",
    "render",
    "run_controller",
]

logger = logging.getLogger(__name__)

COLUMNS = (
    "decider", "recall", "needed_in_window", "low", "high", "needed_at_end", "tokens",
    "freed_by_llm", "valid", "decisions", "calls", "seconds_per_turn", "review_share",
)  # fmt: skip


def run_controller(
    options: ControllerOptions, *, progress: Callable[[str], None] | None = None
) -> list[ControllerRow]:
    """Play the conversations with every decider.

    Args:
        options: what to play and with what.
        progress: told in a few words what is going on.

    Raises:
        InvalidInput: a conversation is too easy for the budget, a decider unknown, a file wrong.
    """
    tell = progress or (lambda text: logger.info("%s", text))
    report = Report("controller", options.command, options.out)
    report.resume()
    options.check()
    with token_counter(options.model, options.budget, options.threads) as (count_tokens, _):
        conversations = prepare(options, count_tokens)
        for one in conversations:
            check_difficulty(one, options.budget, count_tokens)
    digests = {digest(one) for one in conversations}
    report.rows = [row for row in report.rows if row["conversation"] in digests]
    done = {(r["conversation"], r["decider"], r["recall"]): r for r in report.rows}
    rows: list[ControllerRow] = []
    for recall in options.recalls:
        for name in options.deciders:
            for number, one in enumerate(conversations, start=1):
                where = f"conversation {number} of {len(conversations)}, "

                def tell_where(text: str, where: str = where) -> None:
                    tell(where + text)

                key = (digest(one), name, recall)
                if key not in done:
                    row = asdict(ControllerPlay(one, options, name, recall, tell_where).run())
                    report.add(row)
                    done[key] = row
                rows.append(row_of(done[key]))
    if options.out is not None and not draw(rows, options.out.with_suffix(".png")):
        tell("no picture: matplotlib is not installed (pip install '.[bench]')")
    return rows


def against(
    rows: Sequence[ControllerRow], name: str, other: str, recall: str = "off"
) -> Difference | None:
    """How the share of one decider differs from another's, fact by fact; None where one is not.

    A fact counts as much as it has turns.
    """
    each = {row.decider: row.needed_each for row in pooled(rows) if row.recall == recall}
    if name not in each or other not in each:
        return None
    mean_turns = fmean(turns for _, turns in each[name])
    first, second = (
        [there / mean_turns for there, _ in each[decider]] for decider in (name, other)
    )
    return paired_difference(first, second)


def render(rows: Sequence[ControllerRow]) -> Table:
    """The rows as a table for a terminal, one a decider, and what the model adds to chance."""
    drawn = table("controller", [asdict(row) for row in pooled(rows)], COLUMNS)
    lines = []
    for name in ("llm-scored", "llm-mixture", "llm-free"):
        difference = against(rows, name, "random")
        if difference is not None:
            lines.append(f"{name} less random, recall off: {difference.in_points('facts')}")
    drawn.caption = "\n".join(lines) or None
    return drawn


def draw(rows: Sequence[ControllerRow], path: Path) -> bool:
    """Needed facts in the window, by decider; False without matplotlib."""
    shown = pooled(rows)
    recalls = [recall for recall in ("off", "on") if any(row.recall == recall for row in shown)]
    labels = list(dict.fromkeys(row.decider for row in shown))
    by_key = {(row.decider, row.recall): row.needed_in_window for row in shown}
    series = {
        f"recall {recall}": [by_key.get((label, recall), 0.0) for label in labels]
        for recall in recalls
    }
    title = f"Needed facts in a window of {shown[0].budget:,} tokens, {shown[0].turns} turns"
    return bar_chart(path, title, labels, series)
