"""The outside of a session that is played with another policy: recorded, but asked otherwise.

Nothing is held against the log. What was never recorded is made up in the least surprising way: a
part that was never counted is estimated, a text without a stored vector is like nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentmem.audit.log import Log
from agentmem.audit.records import (
    Record,
    change_mapping,
    completion_of,
    part_hash,
    unpack_vector,
)
from agentmem.audit.replay_outside import ReplayOutside
from agentmem.errors import ModelUnavailable
from agentmem.models.base import (
    Capabilities,
    ChatModel,
    Completion,
    Delta,
    KVTier,
    KVUsage,
    Options,
    Part,
    PartKey,
    estimate_tokens,
)
from agentmem.segment import Precision
from agentmem.storage.archive import (
    Archive,
    Counters,
    RecordingRow,
    SessionRow,
    StoredSegment,
    Transaction,
)


class WhatIfOutside(ReplayOutside):
    """What came from outside, for whoever asks for it.

    Args:
        source: where the session was recorded.
        session: which.
        rows: its log.
    """

    def __init__(self, source: Archive, session: SessionRow, rows: Sequence[RecordingRow]) -> None:
        super().__init__(source, session, Log(rows))
        records = [record for row in rows for record in row.records]
        self.counts = {record[1]: int(record[2]) for record in records if record[0] == "count"}
        self.replies: deque[Completion] = deque()
        self.attention: dict[PartKey, float] = {}
        self._results: deque[str] = deque()
        self._query: NDArray[np.float32] | None = None
        self._standing: list[str] = []
        self._row: RecordingRow | None = None
        self._number = 0
        self._ids_of: dict[int, list[int]] = {}
        for stored in source.session_segments(session.id):
            if stored.segment.kind != "summary":
                self._ids_of.setdefault(stored.turn, []).append(stored.segment.id)

    def prepare(self, number: int, records: Sequence[Record], row: RecordingRow) -> None:
        """A turn, or what was before the first, comes next: with these records, in this row."""
        self._number, self._row = number, row
        self.replies.clear()
        self._results.clear()
        self._query = None
        self._standing = []
        reply = self.reply_of(number) if number else ""
        for record in records:
            if record[0] == "say":
                self.replies.append(completion_of(record, reply))
            elif record[0] == "away":
                text = reply if record[2] is None else record[2]
                self.replies.append(Completion(text, "interrupted"))
            elif record[0] == "attention":
                change_mapping(self.attention, *record[1:])
            elif record[0] == "tool":
                self._results.append(str(record[2]))
            elif record[0] == "vector":
                self._query = unpack_vector(record[1])
            elif record[0] == "standing":
                self._standing = list(record[1])

    def monotonic(self) -> float:
        """No second passes: a policy is never late."""
        return 0.0

    def query(self, text: str, embed: Callable[[], NDArray[np.float32]]) -> NDArray[np.float32]:
        """The vector of a text that is looked for."""
        return embed() if self._query is None else self._query

    def standing(self, find: Callable[[], list[str]]) -> list[str]:
        """What was to hold by its meaning: the messages are the same."""
        return self._standing

    def vectors(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of stored texts; others are like nothing else."""
        dim = self._source.space_dim(self.space) or 1
        nowhere = np.zeros(dim, np.float32)
        nowhere[0] = 1.0
        rows = []
        for text in texts:
            known = [self._ids[text]] if text in self._ids else []
            _, vectors = self._source.embeddings(self.space, known)
            rows.append(vectors[0] if len(vectors) else nowhere)
        return np.stack(rows)

    def unread(self, find: Callable[[], list[StoredSegment]]) -> list[StoredSegment]:
        """What is read for facts now: what is unread here."""
        return find()

    def _tool(self, **_: Any) -> str:
        return self._results.popleft() if self._results else ""

    def begin(self, transaction: Transaction) -> None:
        """A change begins: its segments get the ids they had where they are the same."""
        assert self._row is not None, "a turn was prepared"
        transaction.now = self._row.created
        self.take_over(transaction, self._row.counters.changes)
        now = transaction.counters(0)
        following = [one for one in self._ids_of.get(self._number, []) if one > now.segments]
        if following:
            transaction.set_counters(Counters(min(following) - 1, now.decisions, now.facts, 0))

    def end(self, transaction: Transaction) -> None:
        """A change is about to be committed."""


class WhatIfModel(ChatModel):
    """Says in each turn what was said in it, whatever it is asked.

    Args:
        outside: what was said.
        settings: the opening's.
    """

    def __init__(self, outside: WhatIfOutside, settings: Mapping[str, Any]) -> None:
        self._outside = outside
        self.name = str(settings["model"])
        self.capabilities = Capabilities(**settings["capabilities"])
        self._kv = None if settings["dense_bytes_per_token"] is None else WhatIfKV(outside)
        self._ratio = 1.0

    @property
    def kv(self) -> KVTier | None:
        """What was observed; it brings nothing back."""
        return self._kv

    def count_tokens(self, part: Part) -> int:
        """Tokens of the part, as they were counted; else an estimate, scaled to such counts."""
        num_tokens = self._outside.counts.get(part_hash(part))
        estimate = estimate_tokens(part)
        if num_tokens is not None:
            self._ratio = num_tokens / estimate
            return num_tokens
        return max(1, round(self._ratio * estimate))

    def generate(self, prompt: Sequence[Part], options: Options) -> Iterator[Delta]:
        """Say the next of the turn's replies."""
        if not self._outside.replies:
            raise ModelUnavailable("Nothing was answered here.")
        completion = self._outside.replies.popleft()
        yield Delta(completion.text)
        yield Delta(completion=completion)


class WhatIfKV:
    """Tells what attention was observed, and holds nothing."""

    dense_bytes_per_token = 0

    def __init__(self, outside: WhatIfOutside) -> None:
        self._outside = outside

    def has(self, key: PartKey) -> bool:
        """Nothing comes back as KV."""
        return False

    def attention(self) -> Mapping[PartKey, float]:
        """What was observed by this turn."""
        return self._outside.attention

    def keep_as(self, key: PartKey, precision: Precision | None) -> None:
        """There is nothing to store."""

    def forget(self, key: PartKey) -> None:
        """There is nothing to delete."""

    def usage(self) -> KVUsage:
        """Nothing is held."""
        return KVUsage()
