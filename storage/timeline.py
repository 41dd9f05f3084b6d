"""What held when: all that was ever said about one thing, laid out in time.

    said:     A at 1   A at 2   B at 5   A at 9   "no longer A" at 12
    held:     A [1, 5)          B [5, 9) A [9, 12)

The same statements give the same spans in whatever order they were learned, and no two spans with a
known beginning overlap. What is less trusted ends nothing that is trusted more. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from agentmem.segment import Trust
from agentmem.storage.rows import Source

_WORD = re.compile(r"\w+")


@dataclass(slots=True)
class Span:
    """One value, from when to when it held, and the statements that say so, the oldest first."""

    sources: list[Source] = field(default_factory=list)
    valid_from: float | None = None
    valid_to: float | None = None

    @property
    def trust(self) -> Trust:
        """The least trust of its statements."""
        return min(source.trust for source in self.sources)


def order(source: Source) -> tuple[float, int, str, int]:
    """Statements in the order in which they were said."""
    return source.said_at, source.segment_id, source.written_by, source.ordinal


def timeline(sources: Iterable[Source]) -> list[Span]:
    """The spans of one subject, the oldest first."""
    spans: list[Span] = []
    current: Span | None = None
    for source in sorted(sources, key=order):
        if source.ended:
            current = _end(spans, current, source)
        elif current is not None and source.trust < current.trust:
            _claim(spans, source)
        elif (
            current is not None
            and source.trust == current.trust
            and same_value(current.sources[0], source)
        ):
            current.sources.append(source)
        else:
            if current is not None:
                current.valid_to = source.said_at
            current = Span([source], source.said_at)
            spans.append(current)
    began = [span.valid_from for span in spans if span.valid_from is not None]
    for span in spans:
        if span.valid_from is None and span.valid_to is not None:
            # It ended before the first span that is known began.
            span.valid_to = min([span.valid_to, *began])
    return sorted(spans, key=lambda span: order(span.sources[0]))


def _end(spans: list[Span], current: Span | None, source: Source) -> Span | None:
    """Take in that something is so no longer; what holds after it."""
    if (
        current is not None
        and source.trust >= current.trust
        and same_value(current.sources[0], source)
    ):
        current.sources.append(source)
        current.valid_to = source.said_at
        return None
    for span in reversed(spans):
        if (
            span is not current
            and span.trust == source.trust
            and same_value(span.sources[0], source)
        ):
            span.sources.append(source)
            return current
    spans.append(Span([source], None, source.said_at))
    return current


def _claim(spans: list[Span], source: Source) -> None:
    """Take in what somebody less trusted says: it is on record and held for no time."""
    for span in spans:
        if span.valid_from == span.valid_to is not None and same_value(span.sources[0], source):
            if span.trust == source.trust:
                span.sources.append(source)
                return
    spans.append(Span([source], source.said_at, source.said_at))


def same_value(one: Source, other: Source) -> bool:
    """Whether two statements about the same thing give it the same value."""
    if one.value is None or other.value is None:
        return one.value is other.value and one.text.casefold() == other.text.casefold()
    if one.value.casefold() == other.value.casefold():
        return True
    first = set(_WORD.findall(one.value.casefold()))
    second = set(_WORD.findall(other.value.casefold()))
    # "Dr. Osei" and "Osei" are one; two numbers are one only where they are equal.
    return bool(first and second) and (first <= second or second <= first)
