"""How fast is attention on packed keys and values, against what one would run otherwise?

Four parts, each a table:

    attention  one decoded token in one layer, against SDPA on dense keys in its fastest form
    pages      encoding, decoding, and the evidence of one decoded token
    decode     a model decoding after a context, against transformers' DynamicCache
    memory     what one decoded token takes beyond the cache

Whatever is compared takes turns in one process. Machines differ: the ratios are the result.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from agentmem.bench.kernels_row import (
    PARTS,
    AttentionRow,
    DecodeRow,
    KernelOptions,
    KernelRow,
    identity_of,
    row_from,
    to_dict,
)
from agentmem.bench.report import Report, bar_chart, table

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["KernelOptions", "KernelRow", "draw", "render", "run_kernels"]

logger = logging.getLogger(__name__)

COLUMNS = {
    "attention": (
        "shape", "tokens", "layout", "format", "ms", "sdpa_ms", "sdpa", "dequantized_ms", "speedup",
        "packed_mib", "dense_mib", "of_byte_ratio", "error", "note",
    ),
    "pages": ("shape", "format", "encode_us", "decode_us", "mass_us"),
    "decode": (
        "context", "layout", "system", "ms", "tokens_a_second", "speedup", "same", "mib", "note",
    ),
    "memory": (
        "tokens", "format", "packed_mib", "layers", "step_mib", "note",
    ),
}  # fmt: skip
_CAPTIONS = {
    "attention": (
        "speedup: over the fastest SDPA; of_byte_ratio: that over how many times fewer bytes are "
        "read than in bf16; error: against float64 on the same codes"
    ),
    "pages": "microseconds a token, in one layer",
    "decode": "same: share of greedy tokens that are DynamicCache's, given its tokens",
    "memory": "step_mib: peak of one decoded token beyond the cache, all layers together",
}


def run_kernels(
    options: KernelOptions, *, progress: Callable[[str], None] | None = None
) -> list[KernelRow]:
    """Measure all that is asked for.

    Args:
        options: what to measure and on what.
        progress: told in a few words what is going on.

    Raises:
        InvalidInput: the file is no report.
        ModelNotFound: no such model.
    """
    import torch

    tell = progress or (lambda text: logger.info("%s", text))
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    report = Report("kernels", options.command, options.out)
    report.resume()
    # What was not installed or calibrated may be by now.
    report.rows = [row for row in report.rows if not row["note"]]
    measure = _Measurement(options, report, tell)
    rows = [row for part in PARTS if part in options.parts for row in getattr(measure, part)()]
    if options.out is not None and not draw(rows, options.out.with_suffix(".png")):
        tell("no picture: matplotlib is not installed (pip install '.[bench]')")
    return rows


class _Measurement:
    """Measures what no row of the report says yet."""

    def __init__(
        self, options: KernelOptions, report: Report, tell: Callable[[str], None]
    ) -> None:  # fmt: skip
        self._options = options
        self._report = report
        self._tell = tell
        self._known = {identity_of(row): row_from(row) for row in report.rows}

    def attention(self) -> Iterator[KernelRow]:
        from agentmem.bench.kernels_attention import attention_rows, measure_attention

        for row in attention_rows(self._options):
            yield self._once(row, lambda row=row: measure_attention(row, self._options.seconds))  # type: ignore[misc]

    def pages(self) -> Iterator[KernelRow]:
        from agentmem.bench.kernels_attention import measure_pages, pages_rows

        for row in pages_rows(self._options):
            yield self._once(row, lambda row=row: measure_pages(row, self._options.seconds))  # type: ignore[misc]

    def memory(self) -> Iterator[KernelRow]:
        from agentmem.bench.kernels_memory import measure_memory, memory_rows

        for row in memory_rows(self._options):
            yield self._once(row, lambda row=row: measure_memory(row, self._options.model))  # type: ignore[misc]

    def decode(self) -> Iterator[KernelRow]:
        from agentmem.bench.kernels_decode import decode_rows, measure_decode
        from agentmem.bench.local_model import local_model

        options = self._options
        groups: dict[tuple[int, str], list[DecodeRow]] = {}
        for row in decode_rows(options):
            groups.setdefault((row.context, row.layout), []).append(row)
        missing = [
            rows for rows in groups.values() if any(map(self._is_missing, rows))
        ]  # fmt: skip
        if missing:
            with local_model(options.model, options.threads) as (attached, tokenizer):
                for rows in missing:
                    self._tell(f"decode: {rows[0].context:,} tokens, {rows[0].layout}")
                    for found in measure_decode(
                        rows, attached, tokenizer, options.decoded, options.seed
                    ):
                        self._take(found)
        for rows in groups.values():
            yield from (self._known[identity_of(to_dict(row))] for row in rows)

    def _once(self, row: KernelRow, measure: Callable[[], KernelRow]) -> KernelRow:
        if self._is_missing(row):
            shown = [value for name, value in to_dict(row).items() if name in _SAID and value]
            self._tell(" ".join(map(str, shown)))
            self._take(measure())
        return self._known[identity_of(to_dict(row))]

    def _is_missing(self, row: KernelRow) -> bool:
        return identity_of(to_dict(row)) not in self._known

    def _take(self, row: KernelRow) -> None:
        data = to_dict(row)
        self._report.rows = [
            other for other in self._report.rows if identity_of(other) != identity_of(data)
        ]
        self._report.add(data)
        self._known[identity_of(data)] = row


_SAID = ("part", "shape", "tokens", "layout", "format")


def render(rows: Sequence[KernelRow]) -> list[Table]:
    """The rows as tables for a terminal, one a part."""
    drawn = []
    for part, columns in COLUMNS.items():
        mine = [_shown(row) for row in rows if row.part == part]
        if mine:
            has_notes = any(row.get("note") for row in mine)
            shown = [name for name in columns if name != "note" or has_notes]
            one = table(f"kernels: {part}", mine, shown)
            one.caption = _CAPTIONS[part]
            drawn.append(one)
    return drawn


def _shown(row: KernelRow) -> dict[str, object]:
    """With bytes as MiB, which is enough for a terminal."""
    data = to_dict(row)
    for name, value in list(data.items()):
        if name.endswith("nbytes") and value is not None:
            data[name.replace("nbytes", "mib")] = value / 2**20
    return data


def draw(rows: Sequence[KernelRow], path: Any) -> bool:
    """How many times faster each row is than its rival; False without matplotlib."""
    shown = [
        row for row in rows if isinstance(row, AttentionRow | DecodeRow) and row.speedup is not None
    ]
    if not shown:
        return True
    labels = [
        f"{row.format}\n{row.shape}\n{row.tokens:,}\n{row.layout}"
        if isinstance(row, AttentionRow)
        else f"{row.system}\ndecode\n{row.context:,}\n{row.layout}"
        for row in shown
    ]
    series = {"times as fast as SDPA or DynamicCache": [row.speedup or 0.0 for row in shown]}
    return bar_chart(path, "attention on packed keys and values", labels, series, top=None)
