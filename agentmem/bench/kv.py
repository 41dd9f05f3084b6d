"""How much does a model forget when its keys and values are packed?

Contexts are text with needles in it. The dense model reads each once; every format then packs the
same keys and values, and answers the same questions from them. Formats of agentmem's cache keep the
first four tokens and the newest 64 dense; transformers' quantized caches keep the newest 64 as
their residual, and are measured at the group size that comes nearest to dense.

Answers of a format and of the dense model are compared in pairs.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from agentmem.bench.kv_plan import Job, Plan, System, systems_of
from agentmem.bench.kv_row import BASELINES, KVOptions, KVRow, pooled
from agentmem.bench.local_model import local_model
from agentmem.bench.needles import ContextMaker, NeedleContext
from agentmem.bench.report import Report, bar_chart, table
from agentmem.bench.texts import domain_text
from agentmem.errors import AgentmemError, InvalidInput

if TYPE_CHECKING:
    from rich.table import Table

    from agentmem.models.attached import AttachedModel

__all__ = ["KVOptions", "KVRow", "draw", "render", "run_kv"]

logger = logging.getLogger(__name__)

_MORE_FORMATS = ("klt1.6",)
"""Measured beside those that `kv_formats` lists, each at its default."""
COLUMNS = (
    "system", "format", "layout", "text", "context", "bits", "bytes_per_token", "answers", "exact",
    "digits_vs_dense", "low", "words_vs_dense", "kl", "fresh_nll_vs_dense", "prefill_ms",
    "decode_ms", "note",
)  # fmt: skip


def run_kv(
    options: KVOptions, *, progress: Callable[[str], None] | None = None
) -> list[KVRow]:  # fmt: skip
    """Measure every format on every context.

    Args:
        options: what to measure and on what.
        progress: told in a few words what is going on, and how long it will take.

    Returns:
        Pooled rows: for each context size, and over all of them.

    Raises:
        InvalidInput: no such format, or contexts too short for their needles.
        ModelNotFound: no such model.
    """
    tell = progress or (lambda text: logger.info("%s", text))
    with local_model(options.model, options.threads) as (attached, tokenizer):
        makers, digest = _makers(options, attached, tokenizer)
        systems, absent = _systems(options, attached, digest)
        report = Report("kv", options.command, options.out)
        report.resume()
        # What was not installed may be by now, and rows of another text do not compare.
        known = {one.format: one.digest for one in systems}
        report.rows = [
            row
            for row in report.rows
            if not row["note"]
            and row["digest"].startswith(digest)
            and row["digest"] == known.get(row["format"], row["digest"])
        ]
        plan = Plan(options, systems, map(KVRow.from_dict, report.rows))
        jobs = [job for job in plan.jobs() if plan.missing(job)]
        work, done, begun = sum(map(plan.tokens, jobs)), 0, perf_counter()
        for count, job in enumerate(jobs, start=1):
            for row in _measure(plan, job, makers[job.text, job.layout, job.context], attached):
                plan.add(row)
                report.rows.append(row.to_dict())
            report.write()
            done += plan.tokens(job)
            hours = (perf_counter() - begun) / done * max(0, work - done) / 3600
            tell(
                f"context {count} of {len(jobs)}: {job.context} tokens of {job.text}, "
                f"{job.layout}; about {hours:.1f} hours to go"
            )
        report.rows += [row.to_dict() for row in absent]
        report.write()
    rows = pooled(plan.rows()) + absent
    if options.out is not None and not draw(rows, options.out.with_suffix(".png")):
        tell("no picture: matplotlib is not installed (pip install '.[bench]')")
    return rows


def render(rows: Sequence[KVRow]) -> Table:
    """The rows as a table for a terminal."""
    shown = [row.scalars() for row in rows]
    columns = [name for name in COLUMNS if name != "note" or any(row.note for row in rows)]
    for row in shown:
        row["context"] = "all" if row["context"] is None else row["context"]
    drawn = table("kv", shown, columns)
    drawn.caption = (
        "bits of an element of packed keys and values, metadata and padding counted, 16 in bf16; "
        "low: 95 %, in pairs"
    )
    return drawn


def draw(rows: Sequence[KVRow], path: Path) -> bool:
    """Shares of digits and words that are right, by format; False without matplotlib."""
    shown = [row for row in rows if not row.note]
    if any(row.context is None for row in shown):
        shown = [row for row in shown if row.context is None]
    shares = [row.scalars() for row in shown]
    labels = [f"{row.format}\n{row.layout}\n{row.text}" for row in shown]
    series = {name: [one[name] or 0.0 for one in shares] for name in ("digits", "words")}
    return bar_chart(path, "answers from packed keys and values", labels, series)


def _measure(
    plan: Plan, job: Job, maker: ContextMaker, attached: AttachedModel
) -> Iterator[KVRow]:  # fmt: skip
    """Read a context, and ask every format that has no row of it yet."""
    from agentmem.bench.kv_contexts import PackedContext, SegmentContext, read_context
    from agentmem.bench.kv_quantized import PlainStates, QuantizedContext
    from agentmem.bench.kv_scoring import ask_dense, measure

    context: NeedleContext = maker.make(plan.options.seed + job.number)
    read = read_context(attached, context)
    dense_context = SegmentContext(read, "dense")
    dense = ask_dense(dense_context, context)
    states: PlainStates | None = None
    for one in plan.missing(job):
        packed: PackedContext
        if one.name in BASELINES:
            states = states or PlainStates(attached, context)
            packed = QuantizedContext(states, one.system, one.num_bits, one.group_size)
        elif one.format == dense_context.format:
            packed = dense_context
        else:
            packed = SegmentContext(read, one.format)
        yield replace(
            plan.row_of(one, job),
            dense_bytes_per_token=attached.dense_bytes_per_token,
            each=measure(packed, context, dense),
        )


def _systems(
    options: KVOptions, attached: AttachedModel, digest: str
) -> tuple[list[System], list[KVRow]]:
    """The formats asked for, and rows that say why one cannot be measured.

    Args:
        options: which formats.
        attached: the model.
        digest: of model and texts.
    """
    from agentmem.bench.kv_quantized import refusal
    from agentmem.models.kv_formats import FORMATS, make_format
    from agentmem.models.segment_cache import SegmentCache

    systems: list[System] = []
    absent: list[KVRow] = []
    for name in dict.fromkeys(options.formats or (*FORMATS, *_MORE_FORMATS, *BASELINES)):
        variants = systems_of(name, options.group_sizes)
        first, full_name, reason = variants[0], name, ""
        if name in BASELINES:
            reason = refusal(attached.model.config, first.system, first.num_bits)
        else:
            try:
                SegmentCache(attached, name)
                # The full name tells one calibration from another.
                full_name = make_format(name, attached).name
            except InvalidInput as error:
                raise InvalidInput(f"{error} Of transformers: {', '.join(BASELINES)}.") from error
            except AgentmemError as error:
                reason = str(error)
        if not reason:
            systems += [replace(one, digest=f"{digest} {full_name}") for one in variants]
        else:
            absent += [
                KVRow(system=first.system, format=name, layout=layout, text=text, note=reason)
                for text in options.text_domains
                for layout in options.layouts
            ]
    return systems, absent


def _makers(
    options: KVOptions, attached: AttachedModel, tokenizer: Any
) -> tuple[dict[tuple[str, str, int], ContextMaker], str]:
    """Contexts by text, layout and size, and the digest of model and texts."""

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False).input_ids
        return ids

    start = tokenizer("", verbose=False).input_ids
    digest = hashlib.sha256(attached.fingerprint.encode())
    makers = {}
    for domain in options.text_domains:
        text = domain_text(domain)
        digest.update(f"{domain} {text}".encode())
        ids = encode(text)
        for layout in options.layouts:
            for size in options.contexts:
                makers[domain, layout, size] = ContextMaker(
                    ids, start, encode, tokenizer.decode, layout, size
                )
    return makers, digest.hexdigest()[:16]
