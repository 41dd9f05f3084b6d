"""One change of a user's memory: everything in it is stored, or nothing is.

Never hold one open across a call of a model or an embedder: it keeps every other writer waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from agentmem.decision import Decision
from agentmem.errors import InvalidInput
from agentmem.segment import Segment, State
from agentmem.storage import (
    blocks,
    changes,
    copying,
    decisions,
    embeddings,
    facts,
    passages,
    recordings,
    segments,
    sessions,
    windows,
    word_rows,
)
from agentmem.storage.ids import check_number
from agentmem.storage.rows import (
    BlockEdit,
    BlockRow,
    ChangeOp,
    Counters,
    Source,
    TurnRow,
    WindowEntry,
)
from agentmem.storage.text import check_name, check_text


class Transaction:
    """What may be done inside `Archive.write()`.

    Segments and sessions of other users raise what those that do not exist raise: `SegmentNotFound`
    and `InvalidInput`. An error that leaves the block undoes all of it.
    """

    def __init__(
        self, connection: Connection, user_id: int, user: str, clock: Callable[[], float]
    ) -> None:
        self._connection = connection
        self._user_id = user_id
        self._user = user
        self._clock = clock
        self._now: float | None = None
        self.reply: Mapping[str, Any] | None = None
        """The reply that was stored in it."""
        self.forgotten: list[int] = []
        """Segments that were forgotten or removed in it."""
        self.removed_sessions: list[int] = []
        """Sessions that were removed in it."""
        self._answers_scrubbed: dict[int, int] = {}
        self.num_kv_files = 0
        """Files with KV that may have seen what was forgotten, deleted as it was committed."""
        self.num_backups = 0
        """Copies of the store that upgrades had left, deleted with them."""

    @property
    def now(self) -> float:
        """What its rows are stamped with: one reading of the clock."""
        if self._now is None:
            self._now = self._clock()
        return self._now

    @now.setter
    def now(self, seconds: float) -> None:
        """A replay stamps its rows as they were stamped."""
        self._now = seconds

    def session(self, name: str) -> int:
        """The id of the session of this name, made where there is none.

        Raises:
            InvalidInput: it is no name.
        """
        check_name(name, "A session's name")
        if self._user_id == sessions.NO_USER:
            self._user_id = sessions.add_user(self._connection, self._user)
        found = sessions.find(self._connection, self._user_id, name)
        if found is None:
            found = sessions.add(self._connection, self._user_id, name, self.now)
        return found.id

    def set_session_settings(self, session_id: int, settings: Mapping[str, Any]) -> None:
        """Replace the settings of a session; plain JSON.

        Raises:
            InvalidInput: they are not plain JSON.
        """
        self._check_session(session_id)
        sessions.set_settings(self._connection, session_id, settings)

    def rename_session(self, session_id: int, name: str) -> None:
        """Give a session another name.

        Raises:
            InvalidInput: it is no name, or another session of this user's has it.
        """
        self._check_session(session_id)
        check_name(name, "A session's name")
        sessions.rename(self._connection, self._user_id, session_id, name)

    def remove_session(self, session_id: int) -> int:
        """Delete a session, everything in it and, elsewhere, all that was made of that.

        Words of it are taken out of what other sessions decided, as `forget` does.

        Returns:
            How many segments that was.
        """
        self._check_session(session_id)
        ids = segments.ids_of_session(self._connection, self._user_id, session_id)
        made = segments.descendants(self._connection, self._user_id, ids).difference(ids)
        for segment_id in sorted(made, reverse=True):
            self.forget(segment_id)
        self._scrub_decisions(ids, {})
        self._remove_facts(ids)
        guests = {each.segment_id for each in windows.load(self._connection, session_id)} - {*ids}
        stored = segments.load(self._connection, self._user_id, sorted(guests))
        live = [s.segment for s in stored if s.state == "live" and s.segment.kind != "core_block"]
        self.leave(session_id, [segment.id for segment in live], "archived")
        if ids:
            recordings.remove_where_seen(self._connection, self._user_id, session_id, min(ids))
        sessions.remove(self._connection, session_id)
        self._hold_current_versions()
        self._log("forget", ids)
        self.removed_sessions.append(session_id)
        return len(ids) + len(made)

    def forget_all(self) -> int:
        """Delete all of the user's sessions, facts and core memory; how many segments that was.

        The user's name stays, and that segments went: others who have the store open follow it.
        """
        ids = segments.all_ids(self._connection, self._user_id)
        rows = sessions.all_of(self._connection, self._user_id)
        facts.remove_all(self._connection, self._user_id)
        for row in rows:
            sessions.remove(self._connection, row.id)
        blocks.remove_all(self._connection, self._user_id)
        self._log("forget", ids)
        self.removed_sessions += [row.id for row in rows]
        return len(ids)

    def add_turn(self, session_id: int, key: str | None, text: str) -> TurnRow:
        """Append a turn, unanswered; its number is one more than the last.

        Args:
            key: what the caller calls it; None for its number.
            text: what the user said.

        Raises:
            InvalidInput: the session has a turn with this key.
        """
        self._check_session(session_id)
        check_text(text, "The text of a turn")
        if key is not None:
            check_name(key, "A turn's key")
        return sessions.add_turn(self._connection, session_id, key, text, self.now)

    def answer_turn(self, turn_id: int, reply: Mapping[str, Any]) -> None:
        """Store the reply of an unanswered turn; plain JSON.

        Raises:
            InvalidInput: there is no such turn, it was answered, or the reply is not plain JSON.
        """
        sessions.answer_turn(self._connection, self._user_id, turn_id, reply)
        self.reply = reply

    def add_segment(
        self,
        session_id: int,
        turn: int,
        segment: Segment,
        *,
        searchable: bool = True,
        state: State = "live",
    ) -> Segment:
        """Append a segment and return it with its id.

        Args:
            turn: the number of the turn it was said in; 0 before the first.
            segment: with id 0; one whose `created` is 0 is stamped with the archive's clock.
            searchable: whether word and vector search may find it.

        Raises:
            SegmentNotFound: a parent is not this user's.
            InvalidInput: it has an id, more trust than it may have, or text or a turn that the
                store cannot keep as it is.
        """
        self._check_session(session_id)
        stored = segments.add(
            self._connection,
            self._user_id,
            session_id,
            turn,
            segment,
            searchable=searchable,
            state=state,
            now=self.now,
        )
        if searchable:
            word_rows.add(self._connection, stored)
        self._log("add", [stored.id])
        return stored

    def set_state(self, ids: Iterable[int], state: State) -> None:
        """Move segments to another state.

        Raises:
            InvalidInput: it is "forgotten": only `forget` makes one so.
        """
        if state == segments.FORGOTTEN:
            raise InvalidInput("A segment is forgotten by `forget`, which deletes its text.")
        self._log("state", self._change(ids, {"state": state}))

    def leave(self, session_id: int, ids: Iterable[int], state: State) -> None:
        """Move segments that leave a session's window; what stays in another's window stays live.

        The log of the session they were said in begins anew either way.
        """
        owned = segments.check_owner(self._connection, self._user_id, list(ids))
        held = windows.held_elsewhere(self._connection, session_id, owned)
        self.set_state([one for one in owned if one not in held], state)
        self._log("state", sorted(held))

    def set_pinned(self, ids: Iterable[int], pinned: bool) -> None:
        """Pin or unpin segments."""
        self._change(ids, {"pinned": int(pinned)})

    def set_kept_until(self, ids: Iterable[int], turn: int) -> None:
        """Do not offer segments for review again up to this turn.

        Raises:
            InvalidInput: there can be no such turn.
        """
        self._change(ids, {"kept_until": check_number(turn, "`turn`")})

    def add_recalls(self, ids: Iterable[int], turn: int) -> None:
        """Count that segments were found again, in this turn.

        Raises:
            InvalidInput: there can be no such turn.
        """
        check_number(turn, "`turn`")
        segments.add_recalls(self._connection, self._user_id, list(ids), turn)

    def set_window(self, session_id: int, entries: Sequence[WindowEntry]) -> None:
        """Make these entries, in this order, the window of a session.

        Those of segments that were forgotten meanwhile are left out.

        Raises:
            InvalidInput: one segment stands in it twice, or a number is none the store can keep.
        """
        self._check_session(session_id)
        for entry in entries:
            check_number(entry.place, "`place`")
            check_number(entry.until_turn or 0, "`until_turn`")
        if len({entry.segment_id for entry in entries}) < len(entries):
            raise InvalidInput("A segment may stand in a window once: one is in it twice.")
        ids = [entry.segment_id for entry in entries]
        there = set(segments.remaining(self._connection, self._user_id, ids))
        stay = [entry for entry in entries if entry.segment_id in there]
        windows.replace(self._connection, session_id, stay)

    def add_decision(
        self,
        session_id: int,
        turn: int,
        decision: Decision,
        *,
        window_before: Sequence[WindowEntry],
        window_after: Sequence[WindowEntry],
        states_before: Mapping[int, tuple[State, bool]],
        effect: Mapping[str, Any],
        cost: Mapping[str, Any],
    ) -> int:
        """Put a decision on record and return its id.

        It is found again by each of its segments, and by `effect["summary_id"]` if that is there.

        Raises:
            InvalidInput: there can be no such turn, or part of it is not plain JSON.
        """
        self._check_session(session_id)
        check_number(turn, "`turn`")
        return decisions.add(
            self._connection,
            session_id,
            turn,
            decision,
            window_before=window_before,
            window_after=window_after,
            states_before=states_before,
            effect=effect,
            cost=cost,
            now=self.now,
        )

    def mark_undone(self, decision_id: int, by: int) -> None:
        """Note that the decision `by` reverted this one.

        Raises:
            InvalidInput: either is not this user's, or it was undone before.
        """
        decisions.mark_undone(self._connection, self._user_id, decision_id, by)

    def add_embedding(self, space: str, segment_id: int, vector: NDArray[np.float32]) -> None:
        """Store the vector of a segment: float32, shape (dim,), finite, not zero.

        Nothing is stored of a segment that was forgotten while it was computed.

        Raises:
            InvalidInput: the vector is none of that.
            StoreError: the space has another dimension.
        """
        there = segments.remaining(self._connection, self._user_id, [segment_id])
        for one in there:
            embeddings.add(self._connection, space, one, vector)
        self._log("embed", there)

    def define_block(self, label: str, description: str, max_tokens: int) -> None:
        """Make a block of core memory, or change what it is for and how long it may be.

        Raises:
            InvalidInput: label, description or length are none the store can keep.
        """
        check_name(label, "A block's label")
        check_text(description, "A block's description")
        if max_tokens < 1:
            raise InvalidInput(f"`max_tokens` must be positive: got {max_tokens}.")
        check_number(max_tokens, "`max_tokens`")
        blocks.define(self._connection, self._user_id, label, description, max_tokens)

    def add_block_edit(self, edit: BlockEdit, *, follows: int) -> int | None:
        """Append an edit of a block, whose text is in its segment; its version.

        Args:
            edit: without version; one whose `created` is 0 is stamped with the archive's clock.
            follows: the current version it was made from, 0 where there was none.

        Returns:
            None where another edit came first: then nothing was stored of this one.

        Raises:
            SegmentNotFound: its segment is not this user's.
            InvalidInput: there is no such block, session or turn, or the segment is no core block.
        """
        self._check_session(edit.session_id)
        blocks.check_label(self._connection, self._user_id, edit.label)
        check_number(edit.turn, "`turn`")
        if edit.segment_id is not None:
            segments.check_kind(self._connection, self._user_id, edit.segment_id, "core_block")
        stamped = replace(edit, created=edit.created or self.now)
        return blocks.add_edit(self._connection, self._user_id, stamped, follows=follows)

    def block_labels(self) -> frozenset[str]:
        """Labels of the blocks there are."""
        return frozenset(one.label for one in blocks.all_of(self._connection, self._user_id))

    def put_block(self, block: BlockRow, edits: Sequence[BlockEdit]) -> None:
        """Make a block what it was, its newest version ever counted in, whatever there is of it."""
        for edit in edits:
            self._check_session(edit.session_id)
        versions = [edit for edit in edits if edit.segment_id is not None]
        ids = [edit.segment_id for edit in versions if edit.segment_id is not None]
        segments.check_owner(self._connection, self._user_id, ids)
        copying.put_block(self._connection, self._user_id, block, edits)
        for edit, segment_id in zip(versions, ids, strict=True):
            self.set_state([segment_id], "live" if edit is edits[-1] else "archived")

    def tag_passage(self, segment_id: int, tags: Sequence[str]) -> None:
        """File an archival passage under tags; those it has already add nothing.

        Raises:
            SegmentNotFound: the segment is not this user's.
            InvalidInput: it is no passage, or a tag is none.
        """
        segments.check_kind(self._connection, self._user_id, segment_id, "passage")
        names = [check_name(tag, "A tag") for tag in tags]
        passages.add_tags(self._connection, self._user_id, segment_id, names)

    def add_statement(self, source: Source, about: int | None = None) -> int:
        """Take in a statement: a fact of its own, or more evidence of one that is known.

        One that is on record already, by segment, writer and ordinal, adds nothing.

        Args:
            source: what was said; turn, time and trust are its segment's.
            about: the number of what it is about; None where nothing is known of that yet.

        Returns:
            The number of what it is about.

        Raises:
            SegmentNotFound: the segment is not this user's.
            InvalidInput: its words are none the store can keep, or nothing is known of `about`.
        """
        segments.check_owner(self._connection, self._user_id, [source.segment_id])
        check_name(source.written_by, "Who wrote a statement")
        check_number(source.ordinal, "`ordinal`")
        if about is not None and not facts.is_known(self._connection, self._user_id, about):
            raise InvalidInput(f"`about` must be the number of a known thing: got {about}.")
        for text in (source.subject, source.value or "", source.text):
            check_text(text, "A statement")
        return self.put_statement(source, about)

    def mark_read(self, segment_id: int, extractor: str) -> None:
        """Note that an extractor of facts has read a segment.

        Raises:
            SegmentNotFound: the segment is not this user's.
        """
        (segment_id,) = segments.check_owner(self._connection, self._user_id, [segment_id])
        facts.mark_read(self._connection, self._user_id, segment_id, extractor)

    def forget(self, segment_id: int) -> None:
        """Delete a segment's text, words and vectors for good; its id stays, forgotten.

        A version of a block goes from the block's history too, a passage's tags with it. Words of
        it are taken out of its turn, of decisions about it and of facts. Segments made from it or
        quoting it are the caller's to find (`Archive.children`) and forget. The logs of all
        sessions that may have seen it end here: they begin anew from the state it leaves.

        Raises:
            SegmentNotFound: the segment is not this user's, or was forgotten.
        """
        found = segments.load(self._connection, self._user_id, [segment_id])[0]
        segment = found.segment
        texts = [(message.role, message.content) for message in segment.messages if message.content]
        sessions.scrub_turn(
            self._connection,
            found.session_id,
            found.turn,
            said=[content for role, content in texts if role == "user"],
            answered=[content for role, content in texts if role == "assistant"],
        )
        self._scrub_decisions([segment.id], {found.session_id: found.turn})
        blocks.remove_edits(self._connection, [segment.id])
        passages.remove_tags(self._connection, segment.id)
        recordings.remove_where_seen(self._connection, self._user_id, found.session_id, segment.id)
        word_rows.remove(self._connection, segment.id)
        embeddings.remove(self._connection, segment.id)
        self._remove_facts([segment.id])
        segments.forget(self._connection, segment.id)
        self._log("forget", [segment.id])
        if segment.kind == "core_block":
            self._hold_current_versions()

    def _hold_current_versions(self) -> None:
        """Where the newest version of a block went, the one before it holds again."""
        rows = blocks.all_of(self._connection, self._user_id)
        current = [row.segment_id for row in rows if row.segment_id is not None]
        stored = segments.load(self._connection, self._user_id, current)
        self.set_state([one.segment.id for one in stored if one.state != "live"], "live")

    def _scrub_decisions(self, ids: Sequence[int], said: dict[int, int]) -> None:
        """Take the words of segments out of decisions; `said` is a session and the turn of them."""
        decisions.scrub(self._connection, self._user_id, ids)
        since = decisions.decided_since(self._connection, self._user_id, ids)
        for session_id, turn in (since | said).items():
            if turn < self._answers_scrubbed.get(session_id, 2**63):
                decisions.scrub_answers(self._connection, session_id, turn)
                self._answers_scrubbed[session_id] = turn

    def _remove_facts(self, ids: Sequence[int]) -> None:
        """Take out what was said in segments; facts that others state too go on without it."""
        touched = facts.abouts(self._connection, self._user_id, ids)
        facts.remove_sources(self._connection, self._user_id, ids)
        for about in sorted(touched):
            facts.settle(self._connection, self._user_id, about)
            # Also a fact that only lost evidence is another one.
            self._log("fact", facts.stated_in(self._connection, self._user_id, about))

    def counters(self, session_id: int) -> Counters:
        """What the store has counted to, and the newest row of the session's log."""
        return recordings.counters(self._connection, session_id)

    def add_recording(self, session_id: int, before: Counters, records: Sequence[list[Any]]) -> int:
        """Append a row to a session's log: what came from outside into this transaction."""
        return recordings.add(
            self._connection, self._user_id, session_id, self.now, before, records
        )

    def end_log(self, session_id: int) -> None:
        """Delete a session's log: it does not lead to where the session is."""
        self._check_session(session_id)
        recordings.remove(self._connection, session_id)

    # What only a replay does, in a store of its own.

    def set_counters(self, wanted: Counters) -> None:
        """Give the next segment, decision and fact the ids after these."""
        recordings.set_counters(self._connection, wanted)

    def put_statement(self, source: Source, about: int | None) -> int:
        """Take in a statement as another store has it, also about what is unknown here so far."""
        about = facts.add(self._connection, self._user_id, about, source)
        self._log("fact", facts.settle(self._connection, self._user_id, about))
        return about

    def put_rows(self, session_id: int, rows: copying.Rows) -> None:
        """Insert rows of another store under their ids, as this session's."""
        self._check_session(session_id)
        copying.put(self._connection, self._user_id, session_id, rows)
        self._log("add", [row["id"] for row in rows.get("segments", ())])

    def _check_session(self, session_id: int) -> None:
        sessions.check_owner(self._connection, self._user_id, session_id)

    def _change(self, ids: Iterable[int], values: Mapping[str, Any]) -> list[int]:
        return segments.change(self._connection, self._user_id, list(ids), values)

    def _log(self, op: ChangeOp, ids: Sequence[int]) -> None:
        changes.append(self._connection, self._user_id, op, ids)
        if op == "forget":
            self.forgotten += ids
