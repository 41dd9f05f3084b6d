"""Everything of one user: what was said, what is in each window, what was decided.

Reads are snapshots: each method fetches its rows and lets go. Writes go through `write()`. No
method takes a user: the archive is the only way to one user's rows, and to no others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from agentmem.errors import InvalidInput
from agentmem.segment import Kind, Origin, State
from agentmem.storage import (
    blocks,
    changes,
    copying,
    decisions,
    elsewhere,
    embeddings,
    facts,
    passages,
    recordings,
    segments,
    sessions,
    snapshot,
    windows,
    word_rows,
)
from agentmem.storage.backup import upgrade_backups
from agentmem.storage.database import Database
from agentmem.storage.kv_folder import KVFolder, forget_kv, session_folder, user_folder
from agentmem.storage.lease import Lease
from agentmem.storage.rows import (
    BlockEdit,
    BlockRow,
    Change,
    Counters,
    DecisionRow,
    Elsewhere,
    Fact,
    RecordingRow,
    SessionRow,
    StoredSegment,
    TurnRow,
    WindowEntry,
)
from agentmem.storage.snapshot import SessionSnapshot
from agentmem.storage.text import check_name
from agentmem.storage.transaction import Transaction
from agentmem.storage.write_observer import WriteObserver

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from sqlalchemy import Connection

_PAGE = 500


class Archive:
    """One user's sessions, turns, segments, windows, decisions and vectors.

    Args:
        database: the open store.
        user: whose; any text of 1 to 1024 characters, compared exactly.
        clock: seconds since the epoch.
    """

    def __init__(self, database: Database, user: str, clock: Callable[[], float]) -> None:
        self.user = check_name(user, "A user's name")
        self._database = database
        self._clock = clock
        self.observer: WriteObserver | None = None
        """Told of changes through this archive, but not of those to derived rows."""
        self._known_id = sessions.NO_USER
        self._embedded_up_to: dict[str, int] = {}
        self._read_up_to: dict[str, int] = {}

    @contextmanager
    def _read(self) -> Iterator[tuple[Connection, int]]:
        with self._database.read() as connection:
            yield connection, self._user_id(connection)

    def _user_id(self, connection: Connection) -> int:
        if self._known_id == sessions.NO_USER:
            self._known_id = sessions.user_id(connection, self.user)
        return self._known_id

    @contextmanager
    def write(self, *, derived: bool = False) -> Iterator[Transaction]:
        """One transaction: committed whole when the block ends, undone whole when it raises.

        Args:
            derived: only rows are written that can be made again from others: vectors.

        Raises:
            StoreLocked: another process held the write lock for too long.
            StoreFull, StoreReadOnly: nothing of the block was stored.
        """
        observer = None if derived else self.observer
        try:
            with self._database.write() as connection:
                transaction = Transaction(
                    connection, self._user_id(connection), self.user, self._clock
                )
                if observer is not None:
                    observer.begin(transaction)
                yield transaction
                if observer is not None:
                    observer.end(transaction)
                # Before the commit: what is acknowledged as forgotten is in no file.
                self._delete_files(transaction)
        except BaseException as error:
            if observer is not None:
                observer.failed(error)
            raise
        if observer is not None:
            observer.committed()

    def _delete_files(self, transaction: Transaction) -> None:
        folder = user_folder(self._database.path, self.user)
        for session_id in transaction.removed_sessions:
            transaction.num_kv_files += KVFolder(folder / str(session_id), "").remove()
        if transaction.forgotten:
            transaction.num_kv_files += forget_kv(folder, min(transaction.forgotten))
            for backup in upgrade_backups(self._database.path):
                backup.unlink(missing_ok=True)
                transaction.num_backups += 1

    def kv_folder(self, session: SessionRow) -> KVFolder:
        """Where KV of a session may be kept; the folder may not be there."""
        return session_folder(self._database.path, self.user, session.id, session.created)

    # Sessions and turns.

    def session(self, name: str, *, create: bool = True) -> SessionRow:
        """A session by name.

        Raises:
            InvalidInput: there is none and `create` is False.
        """
        check_name(name, "A session's name")
        with self._read() as (connection, user_id):
            found = sessions.find(connection, user_id, name)
        if found is None and create:
            with self.write() as transaction:
                transaction.session(name)
            with self._read() as (connection, user_id):
                found = sessions.find(connection, user_id, name)
        if found is None:
            raise InvalidInput(f"No session {name!r}: it does not exist or was removed.")
        return found

    def sessions(self) -> list[SessionRow]:
        """All sessions, oldest first."""
        with self._read() as (connection, user_id):
            return sessions.all_of(connection, user_id)

    def set_aside(self, name: str) -> None:
        """Free a session's name for a new one; the old one goes on under a numbered name.

        Raises:
            SessionBusy: somebody is using it.
        """
        rows = {row.name: row for row in self.sessions()}
        if name not in rows:
            return
        number = 1
        while f"{name}-{number}" in rows:
            number += 1
        with self.lease(rows[name].id), self.write() as transaction:
            transaction.rename_session(rows[name].id, f"{name}-{number}")

    def remove_session(self, name: str) -> int:
        """Delete a session, everything in it and, elsewhere, all that was made of that.

        Returns:
            How many segments that was.

        Raises:
            InvalidInput: there is none of this name.
            SessionBusy: somebody is using it.
        """
        session_id = self.session(name, create=False).id
        with self.lease(session_id), self.write() as transaction:
            return transaction.remove_session(session_id)

    def forget_all(self) -> dict[str, Any]:
        """Delete everything of the user but the name: all sessions, facts and core memory.

        Returns:
            A receipt: the sessions' names, and how many segments, files of KV and copies made
            before an upgrade were deleted.

        Raises:
            SessionBusy: somebody is using one of the sessions; nothing is deleted.
        """
        with ExitStack() as stack:
            rows = self.sessions()
            for row in rows:
                stack.enter_context(self.lease(row.id))
            with self.write() as transaction:
                count = transaction.forget_all()
        return {
            "sessions": [row.name for row in rows],
            "segments": count,
            "kv_files": transaction.num_kv_files,
            "upgrade_backups": transaction.num_backups,
        }

    def lease(self, session_id: int) -> Lease:
        """Take a session for one sender, until `close()` or the end of the process.

        Raises:
            SessionBusy: another sender, of this process or another, has it.
        """
        with self._read() as (connection, user_id):
            sessions.check_owner(connection, user_id, session_id)
        return Lease.take(self._database, session_id, self._clock())

    def turn(self, session_id: int, key: str) -> TurnRow | None:
        """A turn of a session by its key; None where there is none."""
        with self._read() as (connection, user_id):
            sessions.check_owner(connection, user_id, session_id)
            return sessions.turn(connection, session_id, check_name(key, "A turn's key"))

    def turns(self, session_id: int) -> list[TurnRow]:
        """All turns of a session, oldest first."""
        with self._read() as (connection, user_id):
            sessions.check_owner(connection, user_id, session_id)
            return sessions.turns_of(connection, session_id)

    def last_turn(self, session_id: int) -> TurnRow | None:
        """The newest turn of a session; None before the first."""
        with self._read() as (connection, user_id):
            sessions.check_owner(connection, user_id, session_id)
            return sessions.last_turn(connection, session_id)

    # Segments and windows.

    def segment(self, segment_id: int) -> StoredSegment:
        """One segment by id.

        Raises:
            SegmentNotFound: this user has none with this id, or it was forgotten.
        """
        return self.segments([segment_id])[0]

    def segments(self, ids: Iterable[int]) -> list[StoredSegment]:
        """Segments by id, in the order asked.

        Raises:
            SegmentNotFound: one of them is missing.
        """
        with self._read() as (connection, user_id):
            return segments.load(connection, user_id, list(ids))

    def present(self, ids: Iterable[int]) -> dict[int, StoredSegment]:
        """Those of the segments that were not forgotten, by id: others may forget at any time."""
        with self._read() as (connection, user_id):
            return segments.present(connection, user_id, list(ids))

    def existing(self, ids: Iterable[int]) -> list[int]:
        """Those of the segments that were not forgotten, in the order given."""
        with self._read() as (connection, user_id):
            return segments.existing(connection, user_id, list(ids))

    def session_segments(self, session_id: int) -> list[StoredSegment]:
        """All segments of a session, by id."""
        return [stored for page in self.session_pages(session_id) for stored in page]

    def turn_segments(
        self, session_id: int, turn: int, kinds: Sequence[Kind]
    ) -> list[StoredSegment]:
        """The segments of these kinds that a turn of a session has, by id."""
        with self._read() as (connection, user_id):
            return segments.of_turn(connection, user_id, session_id, turn, kinds)

    def session_pages(
        self, session_id: int, page_size: int = _PAGE
    ) -> Iterator[list[StoredSegment]]:
        """The segments of a session by id, in pages as `pages` gives."""
        return self.pages(session_id=session_id, page_size=page_size)

    def pages(
        self,
        *,
        session_id: int | None = None,
        origin: Origin | None = None,
        page_size: int = _PAGE,
    ) -> Iterator[list[StoredSegment]]:
        """Segments by id, of one session or origin if asked; no snapshot is held between pages."""
        last_id = 0
        while True:
            with self._read() as (connection, user_id):
                page = segments.page(
                    connection,
                    user_id,
                    session_id=session_id,
                    origin=origin,
                    after=last_id,
                    limit=page_size,
                )
            if not page:
                return
            yield page
            last_id = page[-1].segment.id

    def children(self, ids: Iterable[int]) -> list[int]:
        """Ids of what was made directly from these segments, by id."""
        with self._read() as (connection, user_id):
            return segments.children(connection, user_id, list(ids))

    def descendants(self, ids: Iterable[int]) -> set[int]:
        """Ids of all that was made of these segments, directly or not, in any session."""
        with self._read() as (connection, user_id):
            return segments.descendants(connection, user_id, list(ids))

    def unsummarized(self) -> list[StoredSegment]:
        """What is left of one group of segments whose summary was forgotten; empty for none."""
        with self._read() as (connection, user_id):
            return segments.unsummarized(connection, user_id)

    def states(self, session_id: int) -> dict[State, int]:
        """How many segments of a session are in each state; states without any are left out."""
        with self._read() as (connection, user_id):
            return segments.count_states(connection, user_id, session_id)

    def window(self, session_id: int) -> list[WindowEntry]:
        """The window of a session, in order."""
        with self._read() as (connection, user_id):
            sessions.check_owner(connection, user_id, session_id)
            return windows.load(connection, session_id)

    def held_elsewhere(self, session_id: int, ids: Iterable[int]) -> set[int]:
        """Those of the segments that stand in another session's window to stay."""
        with self._read() as (connection, user_id):
            owned = segments.check_owner(connection, user_id, list(ids))
            return windows.held_elsewhere(connection, session_id, owned)

    def said_ids(
        self,
        *,
        origin: Origin | None = None,
        since: float = -math.inf,
        until: float = math.inf,
        not_in: tuple[int, int] = (0, 0),
    ) -> list[int]:
        """Ids of searchable messages, tool exchanges and parts of documents, by id.

        Args:
            origin: who wrote them; None is anybody.
            since, until: seconds since the epoch, the second not included.
            not_in: a session and a turn whose messages and tool exchanges are left out.
        """
        with self._read() as (connection, user_id):
            return segments.said_ids(
                connection, user_id, origin=origin, since=since, until=until, not_in=not_in
            )

    # Core memory and archival passages.

    def blocks(self) -> list[BlockRow]:
        """The blocks of core memory that were ever defined, by label."""
        with self._read() as (connection, user_id):
            return blocks.all_of(connection, user_id)

    def block_edits(self, label: str) -> list[BlockEdit]:
        """The edits of a block, oldest first; those that were forgotten are not there."""
        with self._read() as (connection, user_id):
            return blocks.edits_of(connection, user_id, label)

    def passage_ids(
        self, tags: Sequence[str] = (), *, content_hash: str | None = None
    ) -> list[int]:
        """Ids of archival passages that have all the tags, by id; of one content if asked."""
        with self._read() as (connection, user_id):
            return passages.ids(connection, user_id, tags, content_hash)

    def passage_tags(self, ids: Iterable[int]) -> dict[int, list[str]]:
        """The tags of those of the segments that have any."""
        with self._read() as (connection, user_id):
            return passages.tags_of(connection, user_id, list(ids))

    # Decisions.

    def decisions(
        self,
        *,
        session_id: int | None = None,
        segment_id: int | None = None,
        limit: int = 100,
    ) -> list[DecisionRow]:
        """The newest decisions, newest first; of one session or about one segment if asked."""
        with self._read() as (connection, user_id):
            return decisions.newest(
                connection, user_id, session_id=session_id, segment_id=segment_id, limit=limit
            )

    def decision_pages(self, session_id: int, page_size: int = 20) -> Iterator[list[DecisionRow]]:
        """The decisions of a session in pages, newest first; no snapshot is held between them."""
        before = None
        while True:
            with self._read() as (connection, user_id):
                page = decisions.newest(
                    connection,
                    user_id,
                    session_id=session_id,
                    segment_id=None,
                    limit=page_size,
                    before=before,
                )
            if not page:
                return
            yield page
            before = page[-1].id

    def pinned_by(self, segment_ids: Iterable[int]) -> dict[int, str]:
        """Who made the newest decision to pin each of the segments that was not undone."""
        with self._read() as (connection, user_id):
            return decisions.pinned_by(connection, user_id, list(segment_ids))

    def decision(self, decision_id: int) -> DecisionRow:
        """One decision by id.

        Raises:
            InvalidInput: this user has none with this id.
        """
        with self._read() as (connection, user_id):
            return decisions.load(connection, user_id, decision_id)

    # Facts.

    def facts(self, segment_ids: Iterable[int] | None = None) -> list[Fact]:
        """All facts by id, or those about what was said in some segments."""
        with self._read() as (connection, user_id):
            return facts.load(connection, user_id, segment_ids)

    def unread(self, extractor: str, limit: int = 256) -> list[StoredSegment]:
        """What the user said that an extractor of facts has not read yet, by id."""
        with self._read() as (connection, user_id):
            newest = segments.last_id(connection, user_id)
            query = facts.unread(user_id, extractor, self._read_up_to.get(extractor, 0))
            rows = connection.execute(query.limit(limit)).all()
            found = segments.assemble(connection, rows)
        self._read_up_to[extractor] = found[0].segment.id - 1 if found else newest
        return found

    def echoes(self, segment_ids: Iterable[int]) -> dict[int, int]:
        """Replies given in the turns that segments were said in, each with its segment."""
        with self._read() as (connection, user_id):
            return facts.echoes(connection, user_id, list(segment_ids))

    def review(self, row: DecisionRow) -> list[DecisionRow]:
        """All decisions of the review that made this one, first to last; itself where none did."""
        with self._read() as (connection, user_id):
            return decisions.of_review(connection, user_id, row)

    def forgotten(self, segment_id: int) -> int | None:
        """The turn in which a segment was said that was forgotten; None where it was not."""
        with self._read() as (connection, user_id):
            return segments.forgotten_turn(connection, user_id, segment_id)

    def recordings(self, session_id: int) -> list[RecordingRow]:
        """The log of a session, oldest first: what came from outside into each commit."""
        with self._read() as (connection, user_id):
            sessions.check_owner(connection, user_id, session_id)
            return recordings.load(connection, session_id)

    def counters(self, session_id: int) -> Counters:
        """What the store has counted to, and the newest row of a session's log."""
        with self._read() as (connection, user_id):
            sessions.check_owner(connection, user_id, session_id)
            return recordings.counters(connection, session_id)

    def snapshot(self, session_id: int) -> SessionSnapshot:
        """What of a session changes in time, as it is now."""
        with self._read() as (connection, user_id):
            return snapshot.take(connection, user_id, session_id)

    def elsewhere(self, session_id: int, *, ever: bool = False) -> Elsewhere:
        """What others changed since a session last wrote to its log, or ever did."""
        with self._read() as (connection, user_id):
            sessions.check_owner(connection, user_id, session_id)
            after = 0 if ever else recordings.last_change(connection, session_id)
            return Elsewhere(
                changes.last(connection, user_id),
                elsewhere.has_changed(connection, user_id, session_id, after),
                tuple(elsewhere.stated(connection, user_id, after)),
                tuple(elsewhere.block_rows(connection, user_id)),
            )

    def segment_rows(self, ids: Iterable[int]) -> copying.Rows:
        """Segments as rows that another store can take."""
        with self._read() as (connection, user_id):
            return copying.segment_rows(connection, user_id, list(ids))

    def history_rows(self, session_id: int, *, num_turns: int, last_decision: int) -> copying.Rows:
        """The first turns of a session and its decisions up to one, as such rows."""
        with self._read() as (connection, user_id):
            return copying.history_rows(
                connection, user_id, session_id, num_turns=num_turns, last_decision=last_decision
            )

    # What derived tiers read.

    def changes(self, after: int) -> list[Change]:
        """What changed after `after`, oldest first."""
        with self._read() as (connection, user_id):
            return changes.after(connection, user_id, after)

    def store_bytes(self) -> int:
        """Bytes of the whole database, all users' memories, before what waits is compacted."""
        with self._read() as (connection, _):
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            return int(pages * connection.exec_driver_sql("PRAGMA page_size").scalar_one())

    def last_change(self) -> int:
        """The newest change's `sn`; 0 before the first. Read it before the rows it covers."""
        with self._read() as (connection, user_id):
            return changes.last(connection, user_id)

    def words(self, ids: Iterable[int] | None = None) -> list[tuple[int, list[str]]]:
        """Ids and terms of searchable segments (all, or those of `ids`), by id."""
        with self._read() as (connection, user_id):
            wanted = (
                word_rows.searchable_ids(connection, user_id) if ids is None else sorted(set(ids))
            )
            return list(word_rows.load(connection, user_id, wanted))

    def embeddings(
        self, space: str, ids: Iterable[int] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Vectors of segments in a space, by id; those without one are left out.

        Returns:
            ids: (n,), int64, ascending.
            vectors: (n, dim), float32, as they were stored; (0, 0) where the space is unknown.
        """
        with self._read() as (connection, user_id):
            wanted = None if ids is None else list(ids)
            return embeddings.load(connection, user_id, space, wanted)

    def space_dim(self, space: str) -> int | None:
        """The dimension of an embedding space; None before its first vector."""
        with self._read() as (connection, _):
            found = embeddings.find_space(connection, space)
        return None if found is None else found[1]

    def pending_embeddings(self, space: str, limit: int = 256) -> list[StoredSegment]:
        """Searchable segments without a vector in this space, by id.

        Segments seen to have one are not looked at again: ids only grow, and vectors are only
        deleted with their segment.
        """
        with self._read() as (connection, user_id):
            newest = segments.last_id(connection, user_id)
            found = embeddings.find_space(connection, space)
            query = embeddings.pending(
                user_id, None if found is None else found[0], self._embedded_up_to.get(space, 0)
            )
            rows = connection.execute(query.limit(limit)).all()
            pending = segments.assemble(connection, rows)
        self._embedded_up_to[space] = pending[0].segment.id - 1 if pending else newest
        return pending
