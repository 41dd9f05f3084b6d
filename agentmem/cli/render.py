"""How memory looks on a terminal: safe text, the context bar, the status line, events.

Memory text is somebody else's: whatever could steer a terminal is shown escaped. Knows values and
widths; not where they came from.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentmem.events import Decided, Event, Recalled, Usage

if TYPE_CHECKING:
    from agentmem import Block, BlockVersion, StoredSegment

# C0 but tab and newline, DEL, C1, line and paragraph separators, and every bidi mark, embedding,
# override and isolate: what moves a cursor, sets a title or clipboard, or reorders what is read.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")

_FILE_COLUMNS = 200
_BAR_STYLES = {
    "system": "magenta",
    "pinned": "yellow",
    "recalled": "cyan",
    "summaries": "blue",
    "turns": "green",
    "free": "dim",
}


def safe(text: str) -> str:
    """The text with everything that could steer a terminal escaped, as in `\\x1b`."""
    return _UNSAFE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def preview(text: str, width: int = 60) -> str:
    """The beginning of a text on one line of at most `width` characters, safe to print."""
    line = " ".join(safe(text[: 4 * width]).split())
    return line if len(line) <= width else line[: width - 1] + "…"


def write_json(data: Mapping[str, Any]) -> None:
    """One JSON object on one line of stdout, flushed."""
    line = json.dumps(data, ensure_ascii=False, allow_nan=False)
    # JSON leaves C1 controls and bidi marks bare; their escapes are the same JSON.
    line = _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", line)
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def write_error(message: str) -> None:
    """One red line on stderr."""
    stderr_console().print(f"error: {safe(message)}", style="red")


def stdout_console() -> Console:
    """Where data goes: no markup and no colours but ours."""
    return Console(markup=False, highlight=False, emoji=False, soft_wrap=not sys.stdout.isatty())


def table_console() -> Console:
    """Where tables go: a file or a pipe has room for them, unless COLUMNS says otherwise."""
    columns = os.environ.get("COLUMNS", "")
    is_told = columns.isdecimal() and int(columns) > 0
    width = None if sys.stdout.isatty() or is_told else _FILE_COLUMNS
    return Console(markup=False, highlight=False, emoji=False, width=width)


def stderr_console() -> Console:
    """Where everything else goes."""
    return Console(stderr=True, markup=False, highlight=False, emoji=False, soft_wrap=True)


def segment_text(stored: StoredSegment) -> Text:
    """One segment in full: where it came from, where it lives, what it says."""
    segment = stored.segment
    facts = [
        f"segment {segment.id}",
        segment.kind,
        f"from {segment.origin}",
        f"trust {segment.trust.name.lower()}",
        f"turn {stored.turn}",
        stored.state + (", pinned" if stored.pinned else ""),
        when(segment.created),
    ]
    if segment.parents:
        facts.append("made of " + ", ".join(map(str, segment.parents)))
    return Text.assemble((" · ".join(facts), "dim"), "\n", safe(segment.text))


def block_text(block: Block) -> str:
    """A block of core memory: what it is for, how full it is, what it says."""
    about = f" ({block.description})" if block.description else ""
    size = f"{block.num_tokens} of {block.max_tokens} tokens, version {block.version}"
    return f"{block.label}{about}: {size}\n{block.text or '(empty)'}"


def version_text(version: BlockVersion) -> str:
    """One version of a block: who made it, when and why, and what it says."""
    edit = version.edit
    made = (
        f"{edit.version} {edit.operation} by {edit.maker}, turn {edit.turn}, {when(edit.created)}"
    )
    return f"{made}: {edit.reason}\n{version.text or '(empty)'}"


def context_bar(parts: Sequence[tuple[str, int]], width: int = 60) -> Text:
    """The window as a bar of `width` cells, with what each part takes in tokens."""
    total = sum(num_tokens for _, num_tokens in parts) or 1
    bar = Text()
    edge, drawn = 0, 0
    for name, num_tokens in parts:
        edge += num_tokens
        cells = max(0, round(edge / total * width) - drawn)
        drawn += cells
        bar.append(("·" if name == "free" else "█") * cells, style=_BAR_STYLES.get(name, ""))
    used = total - dict(parts).get("free", 0)
    bar.append(f" {used}/{total} tokens\n")
    for index, (name, num_tokens) in enumerate(parts):
        bar.append("  " if index else "")
        bar.append(f"{name} {num_tokens}", style=_BAR_STYLES.get(name, ""))
    return bar


def nbytes(number: int) -> str:
    """Bytes in a unit a person reads."""
    value = float(number)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def when(seconds: float) -> str:
    """A moment in local time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def status_line(usage: Usage) -> str:
    """Tokens used of the budget, KV bytes, segments per state."""
    parts = [f"{usage.prompt_tokens + usage.completion_tokens}/{usage.budget} tokens"]
    if usage.kv_bytes:
        where = f"{nbytes(usage.kv_bytes_host)} in host memory, " if usage.kv_bytes_host else ""
        parts.append(f"KV {nbytes(usage.kv_bytes)} ({where}dense {nbytes(usage.kv_bytes_dense)})")
    parts += [f"{state} {count}" for state, count in usage.segments.items() if count]
    return " · ".join(parts)


def event_text(event: Event) -> str:
    """What a recall or a decision did, in one line; "" for events that show themselves."""
    if isinstance(event, Recalled):
        found = ", ".join(
            f"{segment.id} ({segment.score:.2f}, {segment.origin}, {segment.via})"
            for segment in event.segments
        )
        return f"recalled {found}" if found else ""
    if isinstance(event, Decided):
        return decided_text(event)
    return ""


def decided_text(event: Decided) -> str:
    """A decision in one line."""
    ids = ", ".join(map(str, event.segments))
    effect = ""
    if event.tokens_before != event.tokens_after:
        effect = f", {event.tokens_before} -> {event.tokens_after} tokens"
    refused = "" if event.valid else "refused: "
    reason = f": {preview(event.reason, 120)}" if event.reason else ""
    return f"{refused}{event.action} {ids} (decision {event.id}, {event.source}{effect}){reason}"


def facts(values: Mapping[str, object]) -> Table:
    """Names and values, one a line; a mapping inside is shown as `name value` pairs."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(overflow="fold")
    grid.add_column(overflow="fold")
    for name, value in values.items():
        if isinstance(value, Mapping):
            value = ", ".join(f"{key} {number}" for key, number in value.items())
        grid.add_row(Text(name.replace("_", " "), "dim"), Text(safe(str(value))))
    return grid


def progress(message: str) -> None:
    """One line of progress, on stderr."""
    print(safe(message), file=sys.stderr, flush=True)


def write_facts(kind: str, values: Mapping[str, object], *, as_json: bool) -> None:
    """Names and values on stdout, as a table or as one object of this type."""
    if as_json:
        plain = {name: str(value) if isinstance(value, Path) else value
                 for name, value in values.items()}  # fmt: skip
        write_json({"type": kind} | plain)
    else:
        stdout_console().print(facts(values))


def write_check(name: str, status: str, message: str, fix: str, *, as_json: bool) -> None:
    """One row of a check: how it is, and the one thing that mends it."""
    if as_json:
        write_json(
            {"type": "check", "name": name, "status": status, "message": message, "fix": fix}
        )
        return
    line = Text.assemble((f"{status:<4}", _STATUS_STYLES[status]), f"  {name}: {safe(message)}")
    if fix:
        line.append(f"\n      fix: {safe(fix)}", style="bold")
    stdout_console().print(line)


_STATUS_STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}
