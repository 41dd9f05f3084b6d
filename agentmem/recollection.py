"""Bringing segments back for a few turns: the newest message asks, the recall share limits.

As KV where the model has a valid record, else as text; in either case before the newest message.
They leave by themselves: no decision is made about them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentmem.events import RecalledSegment, Via
from agentmem.memory import Memory
from agentmem.modes import RecallMode
from agentmem.segment import State, Trust, refined
from agentmem.storage.rows import StoredSegment
from agentmem.wording.asking import only_asks

_MOST_LOOKED_AT = 32


@dataclass
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

    def make_room(self, tokens_over: int, *, keep: Collection[int] = ()) -> None:
        """Let recalled segments go, the longest here first, until so many tokens are free."""
        context = self.memory.context
        target = context.num_tokens - tokens_over
        recalled = [entry for entry in context if entry.recalled and entry.id not in keep]
        for entry in sorted(recalled, key=lambda entry: (entry.until_turn or 0, entry.id)):
            if context.num_tokens <= target:
                return
            context.remove([entry.id])

    def bring_back(
        self, newest: StoredSegment, text: str, vector: NDArray[np.float32]
    ) -> tuple[RecalledSegment, ...]:
        """Bring back what the message needs, best first, while there is room.

        What an earlier message brought back and this one does not need makes room for it.

        Args:
            newest: the message's own segment; it is not in the window yet.
            text: the message, whole.
            vector: its embedding.
        """
        if self.mode == "off":
            return ()
        memory, context = self.memory, self.memory.context
        until = memory.turn + memory.recall.lifetime_turns
        incoming = context.count(newest.segment)
        ranked = memory.finder.rank(text, vector, exclude=newest.segment.id, limit=_MOST_LOOKED_AT)
        found = memory.archive.present(scored.segment_id for scored in ranked)
        # A question says nothing that a question could need.
        telling = [
            scored
            for scored in ranked
            if scored.segment_id in found and not only_asks(found[scored.segment_id].segment.text)
        ]
        worth = memory.recall.worth(text, telling)
        states = memory.held_states()
        back: list[RecalledSegment] = []
        used: list[int] = []
        for scored in worth:
            if scored.segment_id in context:
                entry = context[scored.segment_id]
                if entry.recalled:
                    context.put(entry.stored, via=entry.via, until_turn=until)
                used.append(scored.segment_id)
                continue
            stored = found[scored.segment_id]
            state = refined(stored.state, states.get(scored.segment_id))
            taken = self._place(stored, scored.score, state, until, incoming, used)
            if taken is not None:
                back.append(taken)
                used.append(taken.id)
        if used:
            with memory.archive.write() as transaction:
                transaction.add_recalls(used, memory.turn)
        return tuple(back)

    def _over(self, incoming: int) -> int:
        """Tokens by which recall is over its share, or the window over what it may hold."""
        context, budget = self.memory.context, self.memory.context.budget
        share = context.recalled_tokens - budget.recall_tokens
        total = context.num_tokens + incoming + budget.reserve - budget.max_tokens
        return max(share, total)

    def _place(
        self,
        stored: StoredSegment,
        score: float,
        state: State,
        until: int,
        incoming: int,
        used: Collection[int],
    ) -> RecalledSegment | None:
        """Place one segment; None where it does not fit."""
        memory, context, segment_id = self.memory, self.memory.context, stored.segment.id
        as_kv = (
            self.mode == "kv"
            and memory.kv is not None
            and memory.kv.has(segment_id)
            and stored.segment.trust >= Trust.USER
        )
        via: Via = "kv" if as_kv else "text"
        before = context.num_tokens
        context.put(stored, via=via, until_turn=until)
        tokens = context.num_tokens - before
        recalled = [entry for entry in context if entry.recalled and entry.id != segment_id]
        self.make_room(self._over(incoming), keep=(*used, segment_id))
        if self._over(incoming) > 0:
            # It does not fit whatever makes room for it.
            context.remove([segment_id])
            for entry in recalled:
                context.put(entry.stored, via=entry.via, until_turn=entry.until_turn)
            return None
        return RecalledSegment(segment_id, score, state, via, tokens)
