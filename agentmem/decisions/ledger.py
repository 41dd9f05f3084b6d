"""Carrying decisions out.

A change is committed in SQL first, in one transaction with its decision row; window and KV follow
the commit. The ledger decides nothing: it refuses what must not happen and records the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentmem.context import Context
from agentmem.decision import Decision
from agentmem.decisions.precision import Precisions
from agentmem.decisions.quota import TurnQuota
from agentmem.errors import InvalidInput
from agentmem.events import Decided, TurnKey
from agentmem.models.base import KVTier
from agentmem.segment import Segment, Trust
from agentmem.storage.archive import Archive
from agentmem.storage.rows import (
    SessionRow,
    StoredSegment,
    WindowVia,
)
from agentmem.storage.transaction import Transaction
from agentmem.window import load_window, read_again

KEEP_TURNS = 8
"""A segment that was decided to be kept is not offered again for so many turns."""
_LEAVES = ("drop", "summarize")

Summarize = Callable[[Sequence[Sequence[Segment]]], Sequence[tuple[Segment, str] | InvalidInput]]
"""Makes the segment that replaces each group of others, and says who wrote it; or why not."""


class Ledger:
    """The changes of one session's window.

    Args:
        archive: the truth.
        session: whose window this is.
        context: that window.
        kv: the model's KV tier, where it has one.
        summarizer: None refuses to summarize.
        precisions: what was chosen for kept segments.
    """

    def __init__(
        self,
        archive: Archive,
        session: SessionRow,
        context: Context,
        *,
        kv: KVTier | None,
        summarizer: Summarize | None,
        precisions: Precisions,
    ) -> None:
        self.turn = session.num_turns
        self.turn_key: TurnKey = self.turn
        self._precisions = precisions
        self._archive = archive
        self._session = session
        self._context = context
        self._kv = kv
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
            cost: of deciding, for the log, and what it was decided on (`Verdict.cost`). It is
                filed with the first of them; the others name that one as their `review`.
        """
        if not decisions:
            return []
        # Models are asked before the transaction: it is never held across a call of one.
        summaries = self._summaries(decisions)
        start = self._context.snapshot()
        events: list[Decided] = []
        try:
            with self._precisions.committed(), self._archive.write() as transaction:
                for i, decision in enumerate(decisions):
                    try:
                        self._check(decision)
                        summary = summaries.get(i)
                        if isinstance(summary, InvalidInput):
                            raise summary
                    except InvalidInput as error:
                        events.append(self.refuse(decision, str(error)))
                        continue
                    made = self._carry_out(transaction, decision, summary, cost or {})
                    events.append(made)
                    if cost and "review" not in cost:
                        cost = {"review": made.id}
                transaction.set_window(self._session.id, self._context.snapshot())
        except BaseException:
            load_window(self._archive, self._context, start)
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
        if decision.action in _LEAVES:
            transaction.set_pinned(ids, False)
        if decision.action == "drop":
            transaction.leave(self._session.id, ids, "archived")
            context.remove(ids)
        elif decision.action == "summarize":
            assert summary is not None, "checked"
            segment = transaction.add_segment(self._session.id, self.turn, summary[0])
            transaction.leave(self._session.id, ids, "summarized")
            context.remove(ids)
            context.put(StoredSegment(segment, self._session.id, self.turn))
            effect |= {"summary_id": segment.id, "written_by": summary[1]}
        elif decision.action in ("keep", "unkeep"):
            kept_until = self.turn + KEEP_TURNS if decision.action == "keep" else 0
            effect["kept_before"] = {str(one.segment.id): one.kept_until for one in touched}
            transaction.set_kept_until(ids, kept_until)
            if decision.precision is not None:
                chosen = dict.fromkeys(ids, decision.precision)
                was_chosen = self._precisions.choose(transaction, chosen)
                effect["precision"] = decision.precision
                effect["precision_before"] = {str(one): was for one, was in was_chosen.items()}
            for stored in touched:
                entry = context[stored.segment.id]
                kept = replace(stored, kept_until=kept_until)
                context.put(kept, via=entry.via, until_turn=entry.until_turn)
        elif decision.action == "unpin":
            transaction.set_pinned(ids, False)
            # A pin is the segment's, not the window's: it may be taken off outside too.
            for stored in (one for one in touched if one.segment.id in context):
                entry = context[stored.segment.id]
                unpinned = replace(stored, pinned=False)
                context.put(unpinned, via=entry.via, until_turn=entry.until_turn)
        else:
            transaction.set_state(ids, "live")
            if decision.action == "bring_back" and decision.source == "controller":
                # A model that fetches something shall not lose it at the next review.
                effect["kept_before"] = {str(one.segment.id): one.kept_until for one in touched}
                transaction.set_kept_until(ids, self.turn + KEEP_TURNS)
                touched = [replace(one, kept_until=self.turn + KEEP_TURNS) for one in touched]
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
        read_again(self._kv, self._context, [stored])
        if segment_id in self._context and self._context[segment_id].via != "text":
            via = self._context[segment_id].via
        elif self._kv is not None and self._kv.has(segment_id):
            via = "kv"
        self._context.put(stored, via=via)

    def _check(self, decision: Decision) -> None:
        """Refuse what must not happen.

        Raises:
            InvalidInput: with the reason.
        """
        if decision.action == "forget":
            raise InvalidInput("Forgetting deletes: call `forget`.")
        for one in decision.segment_ids:
            inside = one in self._context
            if decision.action in (*_LEAVES, "keep", "unkeep") and not inside:
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
            if decision.action == "bring_back" and inside and self._context[one].until_turn is None:
                raise InvalidInput(f"Segment {one} is in the window already, to stay.")
        if decision.precision is not None and self._kv is None and self._summarizer is not None:
            raise InvalidInput(
                "This model keeps no KV of segments: there is no precision to choose."
            )
        if decision.action in ("bring_back", "pin"):
            for stored in self._archive.segments(decision.segment_ids):
                if stored.segment.kind == "core_block" and stored.segment.id not in self._context:
                    raise InvalidInput(
                        f"Segment {stored.segment.id} is a former version of core memory."
                    )
            self._check_room([one for one in decision.segment_ids if one not in self._context])
        if decision.action == "pin":
            self._check_pins(decision.segment_ids)
            if decision.source != "user":
                self._check_trusted(decision.segment_ids)
        if decision.action in _LEAVES and decision.source == "controller":
            self._quota.check(self.turn)

    def _check_room(self, returning: Sequence[int]) -> None:
        """What comes back must fit beside the reply."""
        if not returning:
            return
        budget = self._context.budget
        tokens = sum(self._context.count(s.segment) for s in self._archive.segments(returning))
        over = self._context.num_tokens + tokens + budget.reserve - budget.max_tokens
        if over > 0:
            raise InvalidInput(
                f"No room to bring them back: {tokens} tokens more are {over} over the budget of "
                f"{budget.max_tokens} (reserve for the reply: {budget.reserve}). Drop some first."
            )

    def _check_pins(self, segment_ids: Sequence[int]) -> None:
        """Pins must leave room for a conversation."""
        context = self._context
        new = [one for one in segment_ids if one not in context or not context[one].stays]
        added = sum(context.count(stored.segment) for stored in self._archive.segments(new))
        tokens, limit = context.pinned_tokens + added, context.most_pinned
        if tokens > limit:
            unpin = " Unpin some first." if context.pinned_tokens else ""
            raise InvalidInput(
                f"Pinned segments would take {tokens} tokens; at most {limit} may be pinned in a "
                f"budget of {context.budget.max_tokens} with this system prompt, core memory and "
                f"tools.{unpin}"
            )

    def _check_trusted(self, segment_ids: Sequence[int]) -> None:
        """Text that asks to stay for ever must not be able to make a model say so."""
        for stored in self._archive.segments(segment_ids):
            if stored.segment.trust < Trust.USER:
                raise InvalidInput(
                    f"Segment {stored.segment.id} is from {stored.segment.origin}, below user "
                    "trust: only the user may pin it."
                )
