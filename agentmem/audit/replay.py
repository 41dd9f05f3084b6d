"""Playing a recorded session again, with the code as it is now, into a store of its own.

    log + texts of turns  ──▶  Agent over ReplayOutside  ──▶  fresh store  ──▶  the same state hash

What was recorded is the outside (`Outside`); all the rest is computed anew, so that a session whose
hash comes out the same was decided by this code, this policy and this log. No model and no embedder
is loaded.

What other sessions said, imports, edits of core memory elsewhere and facts that models or others
read are taken over as they were before each input. Our own memory tools run again; an application's
tools are not called, their results are played.

What it cannot: a log begins where something was forgotten last, or where others moved the session's
own segments (consolidation, another session of the user, `Archive` by hand), so nothing before that
is replayed; `Replay.begins_after` says which turn that was. What others do in the middle of a turn,
how often they recalled this session's segments, and an act on memory by an application's tool are
not in the log, and dates that a model searches by are read in this machine's zone: such a session
may diverge, which is said and never hidden.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentmem.audit.player import Player, Watcher
from agentmem.audit.state_hash import first_difference, state_hash
from agentmem.errors import InvalidInput
from agentmem.policies.base import SegmentPolicy
from agentmem.storage.archive import Archive, Store


@dataclass(frozen=True, slots=True)
class Replay:
    """What a replay came to.

    Args:
        recorded: hash of the session's state.
        replayed: hash of the state the replay came to.
        difference: the first item that differs, in words; "" where the hashes are the same.
        begins_after: the turn after which the log begins: 0 for a session's first, else the one
            in which something was forgotten last, or which older agentmem wrote last.
        turns, decisions: how many were replayed.
        seconds: wall-clock.
    """

    recorded: str
    replayed: str
    difference: str
    begins_after: int
    turns: int
    decisions: int
    seconds: float

    @property
    def same(self) -> bool:
        """Whether the replay came to the recorded state."""
        return self.recorded == self.replayed

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "type": "replay",
            "same": self.same,
            "recorded": self.recorded,
            "replayed": self.replayed,
            "difference": self.difference,
            "begins_after": self.begins_after,
            "turns": self.turns,
            "decisions": self.decisions,
            "seconds": round(self.seconds, 3),
        }


def replay(
    archive: Archive,
    session: str = "default",
    *,
    into: str | Path | None = None,
    policy: SegmentPolicy | None = None,
    watch: Watcher | None = None,
) -> Replay:
    """Play a session's log and compare what it comes to with what is stored.

    Args:
        archive: whose session it is; nothing of it is changed.
        session: which.
        into: a file that is not there yet, to keep the replayed store; a temporary one otherwise.
        policy: the policy the session had, where it cannot be made from its name.
        watch: told of every turn and act.

    Raises:
        InvalidInput: there is no such session, or `into` exists.
        ReplayDiverged: it asked for something else than was recorded.
    """
    started = time.monotonic()
    row = archive.session(session, create=False)
    # Where others moved its segments since, the log does not lead to where the session is.
    rows = [] if archive.elsewhere(row.id).in_session else archive.recordings(row.id)
    with _store_file(into) as path:
        player = Player(archive, row, rows, path, policy=policy, watch=watch)
        player.play()
        player.finish()
        with Store.open(path) as store:
            replayed = store.for_user(archive.user)
            hashes = state_hash(archive, session), state_hash(replayed, session)
            same = hashes[0] == hashes[1]
            made = replayed.decisions(session_id=player.session_id, limit=2**31)
            return Replay(
                *hashes,
                difference="" if same else first_difference(archive, replayed, session),
                begins_after=player.begins_after,
                turns=len(archive.turns(row.id)) - player.begins_after,
                decisions=len(made) - player.num_decisions_before,
                seconds=time.monotonic() - started,
            )


@contextmanager
def _store_file(into: str | Path | None) -> Iterator[Path]:
    if into is not None:
        if Path(into).exists():
            raise InvalidInput(f"{into} exists: a replay needs the name of a new file.")
        yield Path(into)
        return
    with tempfile.TemporaryDirectory(prefix="agentmem-replay-") as folder:
        yield Path(folder) / "replay.db"
