"""Reading the values of one row of an export: each is what it must be, or a fault of its line.

Knows nothing of what the rows mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from agentmem.importing.lines import ImportLines

_T = TypeVar("_T")


@dataclass
class RowReader:
    """Reads values of rows.

    Args:
        lines: the file, for faults.
    """

    lines: ImportLines

    def text(self, number: int, row: Mapping[str, Any], name: str) -> str:
        """A string."""
        return self.value(number, row, name, str)

    def text_or_none(self, number: int, row: Mapping[str, Any], name: str) -> str | None:
        """A string, or None."""
        return None if row.get(name) is None else self.text(number, row, name)

    def value(self, number: int, row: Mapping[str, Any], name: str, kind: type[_T]) -> _T:
        """A value of exactly this type."""
        value = row.get(name)
        if type(value) is not kind:
            raise self.lines.fault(
                number, f"`{name}` must be of type {kind.__name__}: got {value!r:.40}."
            )
        return value

    def count(self, number: int, row: Mapping[str, Any], name: str) -> int:
        """An integer that may be an id or a number of things."""
        value = self.value(number, row, name, int)
        if not 0 <= value < 2**63:
            raise self.lines.fault(number, f"`{name}` must lie in 0..2^63: got {value!r:.40}.")
        return value

    def count_or_none(self, number: int, row: Mapping[str, Any], name: str) -> int | None:
        """The same, or None."""
        return None if row.get(name) is None else self.count(number, row, name)

    def seconds(self, number: int, row: Mapping[str, Any], name: str) -> float:
        """A moment; 0 where there is none."""
        value = row.get(name, 0.0)
        if type(value) not in (int, float) or not 0 <= value < 1e11:
            raise self.lines.fault(
                number, f"`{name}` must be seconds since the epoch: got {value!r:.40}."
            )
        return float(value)

    def one_of(
        self, number: int, row: Mapping[str, Any], name: str, allowed: tuple[Any, ...]
    ) -> Any:
        """One of the allowed words."""
        value = row.get(name)
        if value not in allowed:
            expected = ", ".join(map(str, allowed))
            raise self.lines.fault(
                number, f"`{name}` must be one of {expected}: got {value!r:.40}."
            )
        return value
