"""Ids as SQLite can bind them, and in portions that fit one statement."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import SupportsIndex

from agentmem.errors import InvalidInput, SegmentNotFound

_PORTION = 500


def is_id(value: int) -> bool:
    """Whether a number can be an id at all: SQLite has 63 bits for it."""
    return 0 < value < 2**63


def check_number(value: int, what: str) -> int:
    """Return a number, such as a turn's, if SQLite can keep it.

    Raises:
        InvalidInput: it is negative, or past 63 bits; `what` names it.
    """
    if not 0 <= value < 2**63:
        raise InvalidInput(f"{what} must lie in 0..2^63: got {value}.")
    return value


def as_ids(values: Iterable[SupportsIndex]) -> list[int]:
    """Segment ids as plain ints (an index hands out numpy's), in the order given.

    Raises:
        SegmentNotFound: one can be no id: below 1 or past 63 bits.
        InvalidInput: one is not an integer.
    """
    ids = []
    for value in values:
        try:
            number = operator.index(value)
        except TypeError as error:
            raise InvalidInput(f"A segment id must be an integer: got {value!r}.") from error
        if not is_id(number):
            raise not_found(number)
        ids.append(number)
    return ids


def not_found(segment_id: int) -> SegmentNotFound:
    """The error for a segment this user does not have."""
    return SegmentNotFound(f"No segment {segment_id}: it does not exist or was forgotten.")


def portions(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """The ids in portions of at most 500."""
    for start in range(0, len(ids), _PORTION):
        yield ids[start : start + _PORTION]
