"""How much attention each segment received, from the probabilities of observed queries.

Observed are one in four decoded tokens and the last 16 queries of every prompt: enough to see what
an answer looks at, and cheap. For one turn

    attention(segment) = sum over its tokens of mean(probability) / its number of tokens

the mean being over queries, heads, and all but the first two layers. The first tokens of the window
(sinks) do not count. A key never observed is absent, never 0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field

from agentmem.errors import InvalidInput

Observed = Mapping[Hashable, tuple[float, int]]
"""Of one turn: for each key its probability mass, and the queries that could see it."""


@dataclass(slots=True)
class _Turn:
    mass: dict[Hashable, float] = field(default_factory=dict)
    queries: dict[Hashable, int] = field(default_factory=dict)


class Evidence:
    """Attention mass per key over the last turns.

    Args:
        num_turns: turns that count, the current one included.
    """

    def __init__(self, num_turns: int = 4) -> None:
        if num_turns < 1:
            raise InvalidInput(f"`num_turns` must be positive: got {num_turns}.")
        self.num_turns = num_turns
        self._turns: deque[_Turn] = deque([_Turn()], maxlen=num_turns)

    def new_turn(self) -> None:
        """What follows belongs to the next turn; the oldest is forgotten."""
        self._turns.append(_Turn())

    def add(self, key: Hashable, mass: float, num_queries: int) -> None:
        """Count probability `mass` summed over `num_queries` queries that could see the key."""
        if num_queries <= 0:
            return
        turn = self._turns[-1]
        turn.mass[key] = turn.mass.get(key, 0.0) + mass
        turn.queries[key] = turn.queries.get(key, 0) + num_queries

    def forget(self, key: Hashable) -> None:
        """Remove all that is known of a key."""
        for turn in self._turns:
            turn.mass.pop(key, None)
            turn.queries.pop(key, None)

    def per_token(self, num_tokens: Mapping[Hashable, int]) -> dict[Hashable, float]:
        """Mean probability per token, for those of the given keys that were observed."""
        result = {}
        for key, tokens in num_tokens.items():
            queries = sum(turn.queries.get(key, 0) for turn in self._turns)
            if queries and tokens:
                mass = sum(turn.mass.get(key, 0.0) for turn in self._turns)
                result[key] = mass / queries / tokens
        return result

    def observed(self) -> tuple[Observed, ...]:
        """All that is known, for `take_up` in another process."""
        return tuple(
            {key: (mass, turn.queries[key]) for key, mass in turn.mass.items()}
            for turn in self._turns
        )

    def take_up(self, turns: Iterable[Observed]) -> None:
        """Begin with what an earlier process had observed, the oldest turn first."""
        self._turns.clear()
        for observed in turns:
            mass = {key: mass for key, (mass, _) in observed.items()}
            queries = {key: queries for key, (_, queries) in observed.items()}
            self._turns.append(_Turn(mass, queries))
        if not self._turns:
            self._turns.append(_Turn())

    def copy(self) -> Evidence:
        """Evidence of its own with the same observations."""
        other = Evidence(self.num_turns)
        other._turns = deque(
            (_Turn(dict(turn.mass), dict(turn.queries)) for turn in self._turns),
            maxlen=self.num_turns,
        )
        return other
