"""Bringing segments back for a few turns: the newest message asks, the recall share limits.

As KV to their place in time order where the model has a valid record, else as text before the
newest message. They leave by themselves: no decision is made about them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from agentmem.events import RecalledSegment, Via
from agentmem.memory import Memory
from agentmem.recall import Scored
from agentmem.segment import Trust
from agentmem.storage.rows import StoredSegment

RecallMode = Literal["kv", "text", "off"]


@dataclass(frozen=True)
class Recollection:
    """Fills the recall share of the window for one message.

    Args:
        memory: where to look and where to put.
        mode: "kv" as KV where there is a record, "text" always as text, "off" never.
    """

    memory: Memory
    mode: RecallMode = "kv"

    def leave(self, turn: int) -> None:
        """Let go what was recalled and not used since."""
        self.memory.context.remove(self.memory.context.expired(turn))

    def make_room(self, tokens_over: int) -> None:
        """Let recalled segments go, the longest here first, until so many tokens are free."""
        context = self.memory.context
        target = context.num_tokens - tokens_over
        recalled = [entry for entry in context if entry.recalled]
        for entry in sorted(recalled, key=lambda entry: (entry.until_turn or 0, entry.id)):
            if context.num_tokens <= target:
                return
            context.remove([entry.id])

    def bring_back(
        self, newest: StoredSegment, text: str, vector: NDArray[np.float32]
    ) -> tuple[RecalledSegment, ...]:
        """Bring back what the message needs, best first, while there is room.

        Args:
            newest: the message's own segment; it is not in the window yet.
            text: the message, whole.
            vector: its embedding.
        """
        if self.mode == "off":
            return ()
        memory, context = self.memory, self.memory.context
        ranked = [s for s in memory.finder.rank(text, vector) if s.segment_id != newest.segment.id]
        until = memory.turn + memory.recall.lifetime_turns
        room = self._room(context.count(newest.segment))
        back: list[RecalledSegment] = []
        used: list[int] = []
        for scored in memory.recall.worth(text, ranked):
            if scored.segment_id in context:
                entry = context[scored.segment_id]
                if entry.recalled:
                    context.put(entry.stored, via=entry.via, until_turn=until)
                used.append(scored.segment_id)
                continue
            taken = self._place(scored, until, room)
            if taken is not None:
                back.append(taken)
                used.append(taken.id)
                room -= taken.num_tokens
        if used:
            with memory.archive.write() as transaction:
                transaction.add_recalls(used, memory.turn)
        return tuple(back)

    def _room(self, incoming: int) -> int:
        context, budget = self.memory.context, self.memory.context.budget
        share = budget.recall_tokens - context.recalled_tokens
        free = budget.max_tokens - budget.reserve - context.num_tokens - incoming
        return min(share, free)

    def _place(self, scored: Scored, until: int, room: int) -> RecalledSegment | None:
        """Place one segment; None where it does not fit or must not come back."""
        memory, context = self.memory, self.memory.context
        stored = memory.segment(scored.segment_id)
        if stored.segment.kind == "core_block":
            return None
        as_kv = (
            self.mode == "kv"
            and memory.kv is not None
            and memory.kv.has(scored.segment_id)
            and stored.segment.trust >= Trust.USER
        )
        via: Via = "kv" if as_kv else "text"
        before = context.num_tokens
        context.put(stored, via=via, until_turn=until)
        tokens = context.num_tokens - before
        if tokens > room:
            context.remove([scored.segment_id])
            return None
        state = memory.state(stored)
        return RecalledSegment(scored.segment_id, scored.score, state, via, tokens)
