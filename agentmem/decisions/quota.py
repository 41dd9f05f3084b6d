"""How much of the window a model may clear in one turn.

What a model reads may tell it to drop everything. One review frees what is needed and no more; this
bounds all reviews of a turn together. What must still go, a policy decides, which reads no text.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentmem.errors import InvalidInput


@dataclass
class TurnQuota:
    """Tokens a model may still take out of the window.

    Args:
        max_tokens: in one turn. Who is below it may finish a decision that passes it.
    """

    max_tokens: int
    _turn: int = -1
    _spent: int = 0

    def check(self, turn: int) -> None:
        """Refuse a decision once the turn's quota is spent.

        Raises:
            InvalidInput: with both numbers.
        """
        if turn == self._turn and self._spent >= self.max_tokens:
            raise InvalidInput(
                f"The model has taken {self._spent} tokens out of the window in this turn; "
                f"{self.max_tokens} are its quota. A policy or the user may take more."
            )

    def spend(self, turn: int, num_tokens: int) -> None:
        """Count what a decision took out."""
        spent = self._spent if turn == self._turn else 0
        self._turn, self._spent = turn, spent + num_tokens
