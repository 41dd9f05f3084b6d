"""Where in an embedding space the answers to a question lie: not where the question does.

    answer = unit(query + up · down · query)

An embedder of sentences puts "What do I do for a living?" near other talk of livings; "From Monday
on I'm a platform engineer." answers it. A matrix of low rank moves the query towards what answers
such questions; what is stored stays as it is. It was fitted by contrast, to questions that people
ask of their own lives, with two statements that answer each, an older and a newer, and two that
nearly do (`python -m tests.fit_query_adapter`); it belongs to one embedding space.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import as_file, files

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

WEIGHTS = "query_adapter.safetensors"


@dataclass(frozen=True, slots=True)
class QueryAdapter:
    """Moves queries towards their answers.

    Args:
        space: the embedding space it belongs to.
        down: (rank, dim), float32.
        up: (dim, rank), float32.
    """

    space: str
    down: NDArray[np.float32]
    up: NDArray[np.float32]

    def apply(self, query: NDArray[np.float32]) -> NDArray[np.float32]:
        """What answers a query is near to this: (dim,), float32, of unit length."""
        query = query / np.linalg.norm(query)
        moved: NDArray[np.float32] = query + self.up @ (self.down @ query)
        return (moved / np.linalg.norm(moved)).astype(np.float32)


def query_adapter(space: str) -> QueryAdapter | None:
    """That of an embedding space; None where there is none."""
    shipped = _shipped()
    return shipped if shipped.space == space else None


@cache
def _shipped() -> QueryAdapter:
    with as_file(files("agentmem.recall") / WEIGHTS) as path, safe_open(path, "np") as weights:
        down, up = (weights.get_tensor(name).astype(np.float32) for name in ("down", "up"))
        return QueryAdapter(weights.metadata()["space"], down, up)
