"""The archive's names for the layers above: SQL, the truth that every other tier follows.

`Store.open(path).for_user(name)` is the only way in.
"""

from __future__ import annotations

from agentmem.storage.lease import Lease
from agentmem.storage.rows import (
    BlockRow,
    Change,
    ChangeOp,
    Counters,
    DecisionRow,
    Fact,
    Finding,
    RecordingRow,
    SessionRow,
    StoredSegment,
    TurnRow,
    WindowEntry,
    WindowVia,
)
from agentmem.storage.store import Store
from agentmem.storage.transaction import Transaction
from agentmem.storage.user_archive import Archive
from agentmem.storage.write_observer import WriteObserver

__all__ = [
    "Archive",
    "BlockRow",
    "Change",
    "ChangeOp",
    "Counters",
    "DecisionRow",
    "Fact",
    "Finding",
    "Lease",
    "RecordingRow",
    "SessionRow",
    "Store",
    "StoredSegment",
    "Transaction",
    "TurnRow",
    "WindowEntry",
    "WindowVia",
    "WriteObserver",
]
