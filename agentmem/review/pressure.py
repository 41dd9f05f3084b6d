"""Telling a model with memory tools that its window is nearly full, before anything leaves it.

    below the warning line -> over it: told in that turn, nothing leaves -> reviewed from the next
        turn on -> a review reaches the target: below it again

The notice stands in the prompts of that turn alone, counted like all of it. It is no segment:
nobody said it, so nothing stores, recalls or quotes it. It does not know whether a review can wait.
"""

from __future__ import annotations

from agentmem.memory import Memory
from agentmem.models.base import Part
from agentmem.prompts import prompt
from agentmem.segment import Message

NOTICE = Part("pressure", (Message("system", prompt("pressure")),))


class Pressure:
    """The one notice of each period in which a window is nearly full.

    Args:
        memory: with the window; its session remembers across processes that the model was told.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    @property
    def may_tell(self) -> bool:
        """Whether the model was not told in this period, or in this very turn."""
        return self._memory.warned_turn in (0, self._memory.turn)

    def tell(self) -> None:
        """Let the notice stand in the prompts of this turn."""
        self._memory.context.notice = NOTICE

    def withdraw(self) -> None:
        """Let it stand there no longer."""
        self._memory.context.notice = None

    def told(self) -> None:
        """Note that the model is told in this turn."""
        self._note(self._memory.turn)

    def ended(self) -> None:
        """Note that there is room again: the period is over."""
        self._note(0)

    def _note(self, turn: int) -> None:
        memory = self._memory
        if memory.warned_turn == turn:
            return
        memory.warned_turn = turn
        with memory.archive.write() as transaction:
            transaction.set_session_settings(memory.session.id, memory.settings())
