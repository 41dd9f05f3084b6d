"""What the indexes have in common: each is one user's, built from SQL, and follows its changes.

An index holds no truth. It is made from rows at first use, catches up before every search (also
with what other processes wrote), and can be made again at any time. Scores: higher is nearer.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from agentmem.storage.rows import ChangeOp, Finding
from agentmem.storage.user_archive import Archive

Ids = NDArray[np.int64]
Scores = NDArray[np.float32]


class DerivedIndex(ABC):
    """An index of one user's segments. A child says how segments come in and go out.

    Args:
        archive: whose segments.
    """

    name: str
    """What it is called in findings."""
    follows: ChangeOp
    """The change that brings a segment in."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._lock = threading.RLock()
        self._applied: int | None = None

    def apply(self) -> None:
        """Catch up with the archive; builds the index where there is none yet."""
        with self._lock:
            if self._applied is None:
                self.rebuild()
                return
            changes = self._archive.changes(self._applied)
            if not changes:
                return
            gone = {change.segment_id for change in changes if change.op == "forget"}
            new = {change.segment_id for change in changes if change.op == self.follows} - gone
            # Until all of it is in, the index is in no state a later `apply` could start from.
            self._applied = None
            self._remove(gone | new)
            self._load(sorted(new))
            self._applied = changes[-1].sn

    def rebuild(self) -> None:
        """Make the index again from the archive's rows."""
        with self._lock:
            self._applied = None
            # Before the rows: what is written between the two reads is then applied once more.
            applied = self._archive.last_change()
            self._clear()
            self._load(None)
            self._applied = applied

    def check(self) -> Finding:
        """Whether the index is what the archive's rows would make of it now."""
        fresh = self._blank()
        fresh.rebuild()
        with self._lock:
            self.apply()
            while fresh._applied != self._applied:  # somebody is writing
                fresh.apply()
                self.apply()
            same = self._contents() == fresh._contents()
        if same:
            return Finding(self.name, "ok", "The index agrees with the archive.")
        return Finding(self.name, "fail", "The index differs from the archive.", "`rebuild()` it.")

    @abstractmethod
    def _clear(self) -> None:
        """Hold nothing."""

    @abstractmethod
    def _load(self, ids: Sequence[int] | None) -> None:
        """Take in those of the segments that belong here; all of the user's for None."""

    @abstractmethod
    def _remove(self, ids: Collection[int]) -> None:
        """Take segments out; those not in here are ignored."""

    @abstractmethod
    def _contents(self) -> object:
        """All it holds, as a value that can be compared."""

    @abstractmethod
    def _blank(self) -> Self:
        """An index of the same rows that holds nothing yet."""


def nearest(ids: Ids, scores: Scores, k: int, exclude: Collection[int]) -> tuple[Ids, Scores]:
    """The k best of scored segments, best first; of equal ones the older (smaller id) first."""
    if exclude:
        left = ~np.isin(ids, np.fromiter(exclude, np.int64, len(exclude)))
        ids, scores = ids[left], scores[left]
    if 0 < k < len(ids):
        # All that tie with the last one stay in, so that which of them is cut off is by id too.
        worst = np.partition(scores, len(scores) - k)[len(scores) - k]
        ids, scores = ids[scores >= worst], scores[scores >= worst]
    order = np.lexsort((ids, -scores))[: max(0, k)]
    return ids[order], scores[order]
