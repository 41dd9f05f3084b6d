"""Carrying decisions out, and taking them back.

A change is committed in SQL first, in one transaction with its decision row; window and KV follow
the commit. The ledger decides nothing: it refuses what must not happen and records the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from agentmem.context import Context
from agentmem.decision import Action, Decision
from agentmem.errors import InvalidInput, SegmentNotFound, UndoBlocked
from agentmem.events import Decided, TurnKey
from agentmem.models.base import KVTier
from agentmem.quota import TurnQuota
from agentmem.segment import Segment, Trust
from agentmem.storage.archive import Archive
from agentmem.storage.rows import (
    DecisionRow,
    SessionRow,
    StoredSegment,
    WindowEntry,
    WindowVia,
)
from agentmem.storage.transaction import Transaction

KEEP_TURNS = 8
"""A segment that was decided to be kept is not offered again for so many turns."""
_FORGET_AT_ONCE = 500
"""Segments forgotten in one transaction: others want to write too."""
_LEAVES = ("drop", "summarize")
_REVERSE: Mapping[Action, Action] = {
    "drop": "bring_back",
    "summarize": "bring_back",
    "bring_back": "drop",
    "unpin": "pin",
}

Summarizer = Callable[[Sequence[Sequence[Segment]]], Sequence[tuple[Segment, str] | InvalidInput]]
"""Makes the segment that replaces each group of others, and says who wrote it; or why not."""


class Ledger:
    """The changes of one session's window.

    Args:
        archive: the truth.
        session: whose window this is.
        context: that window.
        kv: the model's KV tier, where it has one.
        let_go: without one, drops what the model keeps of what it read.
        summarizer: None refuses to summarize.
    """

    def __init__(
        self,
        archive: Archive,
        session: SessionRow,
        context: Context,
        *,
        kv: KVTier | None,
        let_go: Callable[[], None],
        summarizer: Summarizer | None,
    ) -> None:
        self.turn = session.num_turns
        self.turn_key: TurnKey = self.turn
        self._archive = archive
        self._session = session
        self._context = context
        self._kv = kv
        self._let_go = let_go
        self._seen = archive.last_change()
        self._summarizer = summarizer
        budget = context.budget
        self._quota = TurnQuota(budget.max_tokens - budget.target_tokens)

    def apply(self, decision: Decision) -> Decided:
        """Carry one decision out.

        Raises:
            InvalidInput: it cannot be carried out (pinned, core, not in the window, over budget).
        """
        self._check(decision)
        event = self.apply_all([decision])[0]
        if not event.valid:
            raise InvalidInput(event.reason)
        return event

    def apply_all(
        self, decisions: Sequence[Decision], cost: Mapping[str, Any] | None = None
    ) -> list[Decided]:
        """Carry decisions out in order, in one transaction; window and KV follow it.

        One that cannot be carried out is refused and the others go on: its event is not `valid`.

        Args:
            decisions: what is to happen.
            cost: of deciding, for the log.
        """
        if not decisions:
            return []
        # Models are asked before the transaction: it is never held across a call of one.
        summaries = self._summaries(decisions)
        start = self._context.snapshot()
        events: list[Decided] = []
        try:
            with self._archive.write() as transaction:
                for i, decision in enumerate(decisions):
                    try:
                        self._check(decision)
                        summary = summaries.get(i)
                        if isinstance(summary, InvalidInput):
                            raise summary
                    except InvalidInput as error:
                        events.append(self.refuse(decision, str(error)))
                        continue
                    events.append(self._carry_out(transaction, decision, summary, cost or {}))
                transaction.set_window(self._session.id, self._context.snapshot())
        except BaseException:
            self._become(start)
            raise
        return events

    def refuse(self, decision: Decision, reason: str) -> Decided:
        """The event of a decision that was not carried out."""
        tokens = self._context.num_tokens
        return self._event(0, decision, tokens, reason=reason)

    def _event(
        self, decision_id: int, decision: Decision, tokens_before: int, *, reason: str = ""
    ) -> Decided:
        return Decided(
            decision_id,
            self.turn_key,
            decision.action,
            decision.segment_ids,
            decision.source,
            reason or decision.reason,
            valid=decision_id > 0,
            tool_call=decision.tool_call,
            tokens_before=tokens_before,
            tokens_after=self._context.num_tokens,
        )

    def _summaries(
        self, decisions: Sequence[Decision]
    ) -> dict[int, tuple[Segment, str] | InvalidInput]:
        """The summaries that decisions ask for, by the decisions' places; or why there are none."""
        wanted: dict[int, list[Segment]] = {}
        for i, decision in enumerate(decisions):
            if decision.action != "summarize":
                continue
            try:
                self._check(decision)
            except InvalidInput:
                continue
            originals = self._archive.segments(decision.segment_ids)
            wanted[i] = [stored.segment for stored in originals]
        if not wanted:
            return {}
        assert self._summarizer is not None, "checked"
        return dict(zip(wanted, self._summarizer(list(wanted.values())), strict=True))

    def _carry_out(
        self,
        transaction: Transaction,
        decision: Decision,
        summary: tuple[Segment, str] | None,
        cost: Mapping[str, Any],
    ) -> Decided:
        """Change rows and window by one checked decision, and log it."""
        context, ids = self._context, decision.segment_ids
        before, tokens_before = context.snapshot(), context.num_tokens
        inside = all(one in context for one in ids)
        touched = [context[one].stored for one in ids] if inside else self._archive.segments(ids)
        effect: dict[str, Any] = {"tokens_before": tokens_before}
        if decision.source == "controller" and decision.action in _LEAVES:
            self._quota.spend(self.turn, sum(context[one].num_tokens for one in ids))
        if decision.action == "drop":
            transaction.set_state(ids, "archived")
            context.remove(ids)
        elif decision.action == "summarize":
            assert summary is not None, "checked"
            segment = transaction.add_segment(self._session.id, self.turn, summary[0])
            transaction.set_state(ids, "summarized")
            context.remove(ids)
            context.put(StoredSegment(segment, self._session.id, self.turn))
            effect |= {"summary_id": segment.id, "written_by": summary[1]}
        elif decision.action == "keep":
            kept_until = self.turn + KEEP_TURNS
            transaction.set_kept_until(ids, kept_until)
            for stored in touched:
                entry = context[stored.segment.id]
                kept = replace(stored, kept_until=kept_until)
                context.put(kept, via=entry.via, until_turn=entry.until_turn)
        elif decision.action == "unpin":
            transaction.set_pinned(ids, False)
            for stored in touched:
                entry = context[stored.segment.id]
                unpinned = replace(stored, pinned=False)
                context.put(unpinned, via=entry.via, until_turn=entry.until_turn)
        else:
            transaction.set_state(ids, "live")
            pinned = decision.action == "pin"
            if pinned:
                transaction.set_pinned(ids, True)
            for stored in touched:
                self._put_back(replace(stored, state="live", pinned=stored.pinned or pinned))
        effect["tokens_after"] = context.num_tokens
        decision_id = transaction.add_decision(
            self._session.id,
            self.turn,
            decision,
            window_before=before,
            window_after=context.snapshot(),
            states_before={one.segment.id: (one.state, one.pinned) for one in touched},
            effect=effect,
            cost=dict(cost),
        )
        return self._event(decision_id, decision, tokens_before)

    def _put_back(self, stored: StoredSegment) -> None:
        """Place a segment to stay, as KV where there is a record of it."""
        segment_id = stored.segment.id
        via: WindowVia = "prompt"
        self._read_again([stored])
        if segment_id in self._context and self._context[segment_id].via != "text":
            via = self._context[segment_id].via
        elif self._kv is not None and self._kv.has(segment_id):
            via = "kv"
        self._context.put(stored, via=via)

    def _read_again(self, returning: Iterable[StoredSegment]) -> None:
        """Let the KV of what is below user trust go: it comes back as fenced text, never as KV."""
        for stored in returning:
            outside = stored.segment.id not in self._context
            if self._kv is not None and outside and stored.segment.trust < Trust.USER:
                self._kv.forget(stored.segment.id)

    def _check(self, decision: Decision) -> None:
        """Refuse what must not happen.

        Raises:
            InvalidInput: with the reason.
        """
        if decision.action == "forget":
            raise InvalidInput("Forgetting deletes: call `forget`.")
        for one in decision.segment_ids:
            inside = one in self._context
            if decision.action in (*_LEAVES, "keep", "unpin") and not inside:
                raise InvalidInput(f"Segment {one} is not in the window.")
            if decision.action in _LEAVES:
                entry = self._context[one]
                if entry.segment.kind == "core_block":
                    what = "the system prompt" if entry.segment.is_system_prompt else "core memory"
                    raise InvalidInput(f"Segment {one} is {what}: it always stays.")
                if decision.action == "summarize" and self._summarizer is None:
                    raise InvalidInput("There is no model here to write a summary with.")
                if entry.pinned and decision.source != "user":
                    raise InvalidInput(f"Segment {one} is pinned.")
                if decision.action == "summarize" and entry.segment.kind == "summary":
                    raise InvalidInput(f"Segment {one} is a summary: originals are summarized.")
        if decision.action in ("bring_back", "pin"):
            for stored in self._archive.segments(decision.segment_ids):
                if stored.segment.kind == "core_block" and stored.segment.id not in self._context:
                    raise InvalidInput(
                        f"Segment {stored.segment.id} is a former version of core memory."
                    )
            missing = [one for one in decision.segment_ids if one not in self._context]
            tokens = sum(self._context.count(self._archive.segment(one).segment) for one in missing)
            self._check_room(tokens, "bring them back")
        if decision.action == "pin":
            self._check_pins(decision.segment_ids)
            if decision.source != "user":
                self._check_trusted(decision.segment_ids)
        if decision.action in _LEAVES and decision.source == "controller":
            self._quota.check(self.turn)

    def _check_room(self, tokens: int, what: str) -> None:
        budget = self._context.budget
        over = self._context.num_tokens + tokens + budget.reserve - budget.max_tokens
        if over > 0:
            raise InvalidInput(
                f"No room to {what}: {tokens} tokens more are {over} over the budget of "
                f"{budget.max_tokens} (reserve for the reply: {budget.reserve}). Drop some first."
            )

    def _check_pins(self, segment_ids: Iterable[int]) -> None:
        """Pins must leave room for a conversation: half of what a review frees to."""
        pinned = {entry.id for entry in self._context if entry.pinned} | set(segment_ids)
        tokens = sum(self._context.count(self._archive.segment(one).segment) for one in pinned)
        limit = self._context.budget.target_tokens // 2
        if tokens > limit:
            raise InvalidInput(
                f"Pinned segments would take {tokens} tokens; at most {limit} may be pinned. "
                "Unpin some first."
            )

    def _check_trusted(self, segment_ids: Sequence[int]) -> None:
        """Text that asks to stay for ever must not be able to make a model say so."""
        for stored in self._archive.segments(segment_ids):
            if stored.segment.trust < Trust.USER:
                raise InvalidInput(
                    f"Segment {stored.segment.id} is from {stored.segment.origin}, below user "
                    "trust: only the user may pin it."
                )

    def unpin(self, segment_ids: Sequence[int]) -> None:
        """Let pinned segments go again when a review wants to."""
        self._archive.segments(segment_ids)
        with self._archive.write() as transaction:
            transaction.set_pinned(segment_ids, False)
        self._become(self._context.snapshot())

    def undo(self, decision_id: int | None = None) -> Decided:
        """Take a decision back: the last one of this session, or the one named.

        At once it brings back the identical window. Later it brings back the segments' former
        state, if the budget holds it.

        Raises:
            InvalidInput: there is nothing to undo, or it was undone already.
            UndoBlocked: the former window no longer fits.
        """
        row = self._undoable(decision_id)
        decision, ids = row.decision, self._there(row.decision.segment_ids)
        now = self._context.snapshot()
        if now == row.window_after:
            # It was within the budget when the decision was made.
            after = list(row.window_before)
        else:
            after = [r for r in now if r.segment_id not in ids]
            after += [r for r in row.window_before if r.segment_id in ids]
            after = [r for r in after if r.segment_id != row.effect.get("summary_id")]
            self._check_undo(after, row)
        there = self._there(r.segment_id for r in after)
        after = [r for r in after if r.segment_id in there]
        tokens_before = self._context.num_tokens
        action = _REVERSE.get(decision.action, decision.action)
        reverse = Decision(
            action,
            ids,
            "user",
            reason=f"Undo of decision {row.id} ({decision.action}).",
            maker="user",
        )
        touched = self._archive.segments(ids)
        with self._archive.write() as transaction:
            for one in ids:
                state, pinned = row.states_before[one]
                transaction.set_state([one], state)
                transaction.set_pinned([one], pinned)
            if decision.action == "keep":
                transaction.set_kept_until(ids, 0)
            if "summary_id" in row.effect:
                summary = self._there([row.effect["summary_id"]])
                transaction.set_state(summary, "archived")
            transaction.set_window(self._session.id, self._ordered(after))
            undo_id = transaction.add_decision(
                self._session.id,
                self.turn,
                reverse,
                window_before=now,
                window_after=self._ordered(after),
                states_before={one.segment.id: (one.state, one.pinned) for one in touched},
                effect={"tokens_before": tokens_before, "undoes": row.id},
                cost={},
            )
            transaction.mark_undone(row.id, undo_id)
        self._read_again(touched)
        self._become(self._ordered(after))
        return Decided(
            undo_id,
            self.turn_key,
            action,
            ids,
            "user",
            reverse.reason,
            tokens_before=tokens_before,
            tokens_after=self._context.num_tokens,
        )

    def _undoable(self, decision_id: int | None) -> DecisionRow:
        if decision_id is not None:
            row = self._archive.decision(decision_id)
            if row.session_id != self._session.id:
                raise InvalidInput(f"Decision {decision_id} belongs to another session.")
            if row.undone_by is not None:
                raise InvalidInput(f"Decision {decision_id} was undone by {row.undone_by}.")
            if "undoes" in row.effect:
                raise InvalidInput(
                    f"Decision {decision_id} is itself an undo: decide anew instead."
                )
            if not self._there(row.decision.segment_ids):
                raise InvalidInput(f"What decision {decision_id} was about is forgotten.")
            return row
        for row in self._archive.decisions(session_id=self._session.id, limit=1000):
            reversible = row.undone_by is None and "undoes" not in row.effect
            if reversible and self._there(row.decision.segment_ids):
                return row
        raise InvalidInput("There is no decision to undo.")

    def _there(self, segment_ids: Iterable[int]) -> tuple[int, ...]:
        """Those of the segments that were not forgotten."""
        there = []
        for one in segment_ids:
            try:
                self._archive.segment(one)
            except SegmentNotFound:
                continue
            there.append(one)
        return tuple(there)

    def _check_undo(self, after: Iterable[WindowEntry], row: DecisionRow) -> None:
        budget = self._context.budget
        stored = self._archive.segments([entry.segment_id for entry in after])
        tokens = self._context.fixed_tokens + sum(self._context.count(s.segment) for s in stored)
        over = tokens - budget.max_tokens
        if over > 0:
            raise UndoBlocked(
                f"Decision {row.id} cannot be undone now: the window would be {tokens} tokens, "
                f"{over} over the budget of {budget.max_tokens}. Drop {over} tokens first.",
                tokens_over=over,
            )

    def forget(self, segment_id: int) -> dict[str, Any]:
        """Delete a segment from every tier, with what could quote it; a receipt.

        Summaries made of it go with it. The KV of every later segment may have seen it and goes
        too: it is computed again from text at its next use.
        """
        stored = self._archive.segment(segment_id)
        if stored.segment.is_system_prompt:
            raise InvalidInput(f"Segment {segment_id} is the system prompt: it always stays.")
        # A document's stub quotes its parts: it is forgotten as a whole.
        part = stored.segment.kind == "document_part" and bool(stored.segment.parents)
        gone = self._descendants({stored.segment.parents[0] if part else segment_id})
        return {
            "segment": segment_id,
            "made_of_it": sorted(gone - {segment_id}),
            **self._forget(gone),
        }

    def forget_all(self, segment_ids: Collection[int]) -> dict[str, Any]:
        """Delete segments of any sessions from every tier, with all that was made of them.

        Raises:
            SessionBusy: another sender holds a session with one of them; nothing is deleted.
        """
        gone = self._descendants(set(segment_ids))
        with ExitStack() as stack:
            others = self._archive.sessions_of(gone) - {self._session.id}
            for session_id in sorted(others):
                stack.enter_context(self._archive.lease(session_id))
            receipt = self._forget(gone)
        return {
            "segments": sorted(segment_ids),
            "made_of_it": sorted(gone.difference(segment_ids)),
            **receipt,
        }

    def _forget(self, gone: set[int]) -> dict[str, Any]:
        kept = [row for row in self._context.snapshot() if row.segment_id not in gone]
        num_files = 0
        newest_first = sorted(gone, reverse=True)
        # What was made of a segment is newer: whenever this is broken off, nothing outlives it.
        for start in range(0, len(newest_first), _FORGET_AT_ONCE):
            with self._archive.write() as transaction:
                transaction.set_window(self._session.id, kept)
                for one in newest_first[start : start + _FORGET_AT_ONCE]:
                    transaction.forget(one)
            num_files += transaction.num_kv_files
        dropped_kv = self.follow()
        self._become(kept)
        return {"kv_records": dropped_kv, "kv_files": num_files}

    def follow(self) -> int:
        """Let the model forget what the archive did since it was last asked, by whomever.

        Returns:
            How many parts of its KV tier that were. The KV of every later segment may have seen
            one that is forgotten, and so may what is not a segment's.
        """
        changes = self._archive.changes(self._seen)
        gone = [change.segment_id for change in changes if change.op == "forget"]
        self._seen = max([self._seen, *(change.sn for change in changes)])
        if not gone:
            return 0
        if self._kv is None:
            self._let_go()
            return 0
        held = self._kv.usage().states
        later = {k for k in held if isinstance(k, str) or k >= min(gone)}
        for key in later | set(gone) | {f"recall:{one}" for one in gone}:
            self._kv.forget(key)
        return len(later)

    def _descendants(self, segment_ids: set[int]) -> set[int]:
        """Segments and all that was made of them, in any session: parts, summaries."""
        found, newest = set(segment_ids), set(segment_ids)
        while newest:
            newest = set(self._archive.children(newest)) - found
            found |= newest
        return found

    def _ordered(self, rows: Iterable[WindowEntry]) -> list[WindowEntry]:
        core = [entry.id for entry in self._context if entry.segment.kind == "core_block"]
        last = len(core)
        order = {segment_id: place for place, segment_id in enumerate(core)}
        return sorted(rows, key=lambda r: (order.get(r.segment_id, last), r.place, r.segment_id))

    def _become(self, window: Iterable[WindowEntry]) -> None:
        rows = list(window)
        stored = self._archive.segments([row.segment_id for row in rows])
        self._context.load(rows, {one.segment.id: one for one in stored})
