"""What all benchmarks share: where they ran, their table, their JSON file and their picture.

    {"bench": ..., "command": ..., "machine": {...}, "versions": {...}, "rows": [{...}, ...]}

Rows are plain dicts. The command names everything that could change a row, so rows of the same
command and versions may be kept when a run is taken up again.
"""

from __future__ import annotations

import json
import logging
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentmem.errors import InvalidInput

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

logger = logging.getLogger(__name__)

Row = dict[str, Any]

_PACKAGES = ("agentmem", "torch", "transformers", "faiss-cpu", "numpy", "sqlalchemy")


def machine() -> dict[str, Any]:
    """The machine, as far as it explains a number of seconds."""
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS", ""),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        logger.debug("No /proc/cpuinfo: the platform's own name is used.")
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Versions of what was measured; packages that are not installed are left out."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


@dataclass
class Report:
    """The rows of one benchmark, kept in a file as they come.

    Args:
        bench: its name.
        command: what runs it again and gives the same rows.
        path: the JSON file; None keeps nothing.
    """

    bench: str
    command: str
    path: Path | None = None
    rows: list[Row] = field(default_factory=list)
    machine: Mapping[str, Any] = field(default_factory=machine)
    versions: Mapping[str, str] = field(default_factory=versions)

    def resume(self) -> list[Row]:
        """Take over the file's rows if the same command wrote them with the same versions.

        Raises:
            InvalidInput: the file is there and is no report.
        """
        if self.path is None or not self.path.exists():
            return self.rows
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
            known = (data["bench"], data["command"], data["versions"])
            rows = list(data["rows"])
        except (ValueError, KeyError, TypeError):
            raise InvalidInput(
                f"{self.path} is no report of a benchmark: name another file or remove it."
            ) from None
        if known == (self.bench, self.command, dict(self.versions)):
            self.rows = rows
        return self.rows

    def add(self, row: Row) -> None:
        """Take a row and write the file, whole or not at all."""
        self.rows.append(row)
        self.write()

    def write(self) -> None:
        """Write the file; a reader never sees half of it."""
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_name(self.path.name + ".part")
        draft.write_text(json.dumps(self.to_dict(), indent=1) + "\n", encoding="utf-8")
        draft.replace(self.path)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "bench": self.bench,
            "command": self.command,
            "machine": dict(self.machine),
            "versions": dict(self.versions),
            "rows": self.rows,
        }


def table(title: str, rows: Sequence[Row], columns: Sequence[str]) -> Table:
    """The rows as a table for a terminal; numbers stand right."""
    from rich.table import Table

    drawn = Table(title=title)
    for column in columns:
        numeric = any(isinstance(row.get(column), int | float) for row in rows)
        drawn.add_column(column, justify="right" if numeric else "left")
    for row in rows:
        drawn.add_row(*(_cell(row.get(column)) for column in columns))
    return drawn


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def bar_chart(
    path: Path,
    title: str,
    labels: Sequence[str],
    series: Mapping[str, Sequence[float]],
    *,
    top: float | None = 1.0,
) -> bool:
    """Draw numbers from 0 on as bars, one group a label, into a PNG.

    Args:
        top: where the scale ends: 1 for shares; None where the highest bar does.

    Returns:
        False where matplotlib is not installed; then there is no picture.
    """
    figure = _figure(1.5 + 1.4 * len(labels))
    if figure is None:
        return False
    axes = figure.subplots()
    width = 0.8 / len(series)
    for offset, (name, values) in enumerate(series.items()):
        places = [index + (offset - (len(series) - 1) / 2) * width for index in range(len(labels))]
        axes.bar(places, values, width, label=name)
    axes.set_xticks(range(len(labels)), labels)
    axes.set_ylim(0, top)
    axes.set_title(title)
    axes.legend()
    figure.savefig(path, dpi=150)
    return True


def line_chart(
    path: Path, title: str, across: str, at: Sequence[float], curves: Mapping[str, Sequence[float]]
) -> bool:
    """Draw curves from 0 on into a PNG; False where matplotlib is not installed.

    Args:
        across: what is counted from left to right; `at` is where the curves' points are.
    """
    figure = _figure(8)
    if figure is None:
        return False
    axes = figure.subplots()
    for name, values in curves.items():
        axes.plot(at, values, label=name)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(across)
    axes.set_title(title)
    axes.legend()
    figure.savefig(path, dpi=150)
    return True


def _figure(width_inches: float) -> Figure | None:
    """An empty picture; None where matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return None
    figure = Figure(figsize=(width_inches, 4), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
