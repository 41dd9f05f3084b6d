"""Dates as people and models write them: ISO, with or without time and zone.

One without a zone is this machine's: whoever asks for "2026-05-31" means the day as it was here.
"""

from __future__ import annotations

import math
from datetime import date, datetime, time, timedelta

from agentmem.errors import InvalidInput


def span(start_date: str | None, end_date: str | None) -> tuple[float, float]:
    """From when to when, in seconds since the epoch, the second not included.

    Args:
        start_date: None or empty is from the beginning.
        end_date: a day is included whole; None or empty is to the end.

    Raises:
        InvalidInput: one is no ISO date, or the end is before the start.
    """
    since = _instant("start_date", start_date, timedelta(0)) if start_date else -math.inf
    until = _instant("end_date", end_date, timedelta(days=1)) if end_date else math.inf
    if until <= since:
        raise InvalidInput(f"`end_date` {end_date} must not be before `start_date` {start_date}.")
    return since, until


def day(seconds: float) -> str:
    """The day of a time in seconds since the epoch, ISO, in this machine's zone."""
    return datetime.fromtimestamp(seconds).date().isoformat()


def _instant(name: str, text: object, after_day: timedelta) -> float:
    """A time in seconds since the epoch; `after_day` is added to one that is a whole day."""
    try:
        if not isinstance(text, str):
            raise ValueError("not a text")
        if len(text.strip()) > len("2026-05-31"):
            return datetime.fromisoformat(text.strip()).astimezone().timestamp()
        whole = date.fromisoformat(text.strip()) + after_day
        return datetime.combine(whole, time()).astimezone().timestamp()
    except (ValueError, OverflowError, OSError) as error:
        raise InvalidInput(
            f"`{name}` must be an ISO date such as 2026-05-31: got {text!r:.40}."
        ) from error
