"""Taking decisions back: at once to the identical window, later to the segments' former state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from agentmem.context import Context
from agentmem.decision import Action, Decision
from agentmem.decisions.precision import Precisions
from agentmem.errors import InvalidInput, UndoBlocked
from agentmem.events import Decided, TurnKey
from agentmem.models.base import KVTier
from agentmem.storage.archive import Archive
from agentmem.storage.rows import DecisionRow, SessionRow, WindowEntry
from agentmem.window import load_window, read_again

_REVERSE: Mapping[Action, Action] = {
    "drop": "bring_back",
    "summarize": "bring_back",
    "bring_back": "drop",
    "pin": "unpin",
    "unpin": "pin",
    "keep": "unkeep",
    "unkeep": "keep",
}


class Undoing:
    """Takes back what was decided in one session.

    Args:
        archive: the truth.
        session: whose decisions.
        context: its window.
        kv: the model's KV tier, where it has one.
        precisions: what was chosen for kept segments.
    """

    def __init__(
        self,
        archive: Archive,
        session: SessionRow,
        context: Context,
        *,
        kv: KVTier | None,
        precisions: Precisions,
    ) -> None:
        self._archive = archive
        self._session = session
        self._context = context
        self._kv = kv
        self._precisions = precisions

    def undo(self, decision_id: int | None, turn: int, turn_key: TurnKey) -> Decided:
        """Take a decision back: the last one of this session, or the one named.

        At once it brings back the identical window. Later it brings back the segments' former
        state, if the budget holds it.

        Args:
            decision_id: which; None for the last.
            turn, turn_key: in which it is undone.

        Raises:
            InvalidInput: there is nothing to undo, or it was undone already.
            UndoBlocked: the former window no longer fits.
        """
        row = self._undoable(decision_id)
        decision, ids = row.decision, tuple(self._archive.existing(row.decision.segment_ids))
        now = self._context.snapshot()
        if now == row.window_after:
            after = list(row.window_before)
        else:
            after = [r for r in now if r.segment_id not in ids]
            after += [r for r in row.window_before if r.segment_id in ids]
            after = [r for r in after if r.segment_id != row.effect.get("summary_id")]
        there = set(self._archive.existing(r.segment_id for r in after))
        after = self._ordered(r for r in after if r.segment_id in there)
        self._check_undo(after, row)
        tokens_before = self._context.num_tokens
        action = _REVERSE[decision.action]
        reverse = Decision(
            action,
            ids,
            "user",
            reason=f"Undo of decision {row.id} ({decision.action}).",
            maker="user",
        )
        touched = self._archive.segments(ids)
        with self._precisions.committed(), self._archive.write() as transaction:
            for one in ids:
                state, pinned = row.states_before[one]
                if state == "live":
                    transaction.set_state([one], state)
                else:
                    transaction.leave(self._session.id, [one], state)
                transaction.set_pinned([one], pinned)
            for one, kept_until in row.effect.get("kept_before", {}).items():
                if int(one) in ids:
                    transaction.set_kept_until([int(one)], kept_until)
            was_chosen = row.effect.get("precision_before", {})
            if was_chosen:
                chosen = {int(one): was for one, was in was_chosen.items() if int(one) in ids}
                self._precisions.choose(transaction, chosen)
            if "summary_id" in row.effect:
                summary = self._archive.existing([row.effect["summary_id"]])
                transaction.leave(self._session.id, summary, "archived")
            transaction.set_window(self._session.id, after)
            undo_id = transaction.add_decision(
                self._session.id,
                turn,
                reverse,
                window_before=now,
                window_after=after,
                states_before={one.segment.id: (one.state, one.pinned) for one in touched},
                effect={"tokens_before": tokens_before, "undoes": row.id},
                cost={},
            )
            transaction.mark_undone(row.id, undo_id)
        read_again(self._kv, self._context, touched)
        load_window(self._archive, self._context, after)
        return Decided(
            undo_id,
            turn_key,
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
            if not self._archive.existing(row.decision.segment_ids):
                raise InvalidInput(f"What decision {decision_id} was about is forgotten.")
            return row
        for page in self._archive.decision_pages(self._session.id):
            for row in page:
                reversible = row.undone_by is None and "undoes" not in row.effect
                if reversible and self._archive.existing(row.decision.segment_ids):
                    return row
        raise InvalidInput("There is no decision to undo.")

    def _check_undo(self, after: Sequence[WindowEntry], row: DecisionRow) -> None:
        budget = self._context.budget
        stored = self._archive.segments([entry.segment_id for entry in after])
        tokens = self._context.would_take(after, {one.segment.id: one for one in stored})
        over = tokens - budget.max_tokens
        if over > 0:
            raise UndoBlocked(
                f"Decision {row.id} cannot be undone now: the window would be {tokens} tokens, "
                f"{over} over the budget of {budget.max_tokens}. Drop {over} tokens first.",
                tokens_over=over,
            )
        context = self._context
        pinned = sum(
            context.count(one.segment)
            for one in stored
            if row.states_before.get(one.segment.id, (one.state, one.pinned))[1]
            and one.segment.kind != "core_block"
        )
        limit = max(context.most_pinned, context.pinned_tokens)
        if pinned > limit:
            raise UndoBlocked(
                f"Decision {row.id} cannot be undone now: {pinned} tokens would be pinned, of "
                f"{limit} that may be. Unpin {pinned - limit} tokens first.",
                tokens_over=pinned - limit,
            )

    def _ordered(self, rows: Iterable[WindowEntry]) -> list[WindowEntry]:
        core = [entry.id for entry in self._context if entry.segment.kind == "core_block"]
        last = len(core)
        order = {segment_id: place for place, segment_id in enumerate(core)}
        return sorted(rows, key=lambda r: (order.get(r.segment_id, last), r.place, r.segment_id))
