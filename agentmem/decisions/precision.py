"""At which precision the keys and values of kept segments are stored, where somebody chose one.

A choice stands in the session's row, committed with the decision that made it; the KV tier is told
afterwards and obeys from the next prompt on. What becomes of keys and values is the tier's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from agentmem.errors import InvalidInput
from agentmem.models.base import KVTier
from agentmem.segment import PRECISIONS, Precision
from agentmem.storage.rows import SessionRow
from agentmem.storage.transaction import Transaction


class Precisions:
    """What was chosen for the segments of one session.

    Args:
        session: with what was chosen before.
        kv: is told; None where there is no tier now.
        settings: the session's row as it should be.
    """

    def __init__(
        self, session: SessionRow, kv: KVTier | None, settings: Callable[[], Mapping[str, Any]]
    ) -> None:
        self._session_id = session.id
        self._kv = kv
        self._settings = settings
        stored = session.settings.get("precisions", {})
        self._chosen: dict[int, Precision] = {int(one): what for one, what in stored.items()}
        self._told: dict[int, Precision] = {}
        self._tell()

    def to_json(self) -> dict[str, Precision]:
        """Every choice, for the session's row."""
        return {str(one): precision for one, precision in self._chosen.items()}

    def choose(
        self, transaction: Transaction, chosen: Mapping[int, Precision | None]
    ) -> dict[int, Precision | None]:
        """Store other choices, None for none; returns those they take the place of."""
        before = {one: self._chosen.get(one) for one in chosen}
        for one, precision in chosen.items():
            if precision is None:
                self._chosen.pop(one, None)
            else:
                self._chosen[one] = precision
        transaction.set_session_settings(self._session_id, self._settings())
        return before

    @contextmanager
    def committed(self) -> Iterator[None]:
        """Around a transaction: what it chose the tier is told, unless it fails."""
        try:
            yield
        except BaseException:
            self._chosen = dict(self._told)
            raise
        self._tell()

    def _tell(self) -> None:
        if self._kv is not None:
            for one in sorted({*self._told, *self._chosen}):
                if self._told.get(one) != self._chosen.get(one):
                    self._kv.keep_as(one, self._chosen.get(one))
        self._told = dict(self._chosen)


def check_precision(precision: str | None) -> Precision | None:
    """The precision, if it is one; None stays None.

    Raises:
        InvalidInput: it is not.
    """
    for known in PRECISIONS:
        if precision == known:
            return known
    if precision is None:
        return None
    raise InvalidInput(
        f"`precision` must be one of {', '.join(PRECISIONS)}: got {precision!r:.40}."
    )
