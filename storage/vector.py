"""Finding segments by meaning: cosine similarity over one user's vectors, exact, in FAISS.

FAISS takes NaN, Inf, float64 and double ids without a word and then answers nonsense, so everything
is checked here before it gets in: shape, dtype, finite, not zero, ids unique.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentmem.errors import InvalidInput
from agentmem.storage.derived import DerivedIndex, Ids, Scores, nearest
from agentmem.storage.embeddings import check_dim, check_vector
from agentmem.storage.rows import ChangeOp
from agentmem.storage.user_archive import Archive


class VectorIndex(DerivedIndex):
    """One user's vectors of one embedding space.

    Args:
        archive: whose vectors.
        space: the embedding space: one model at one revision.
        dim: its dimension.

    Raises:
        StoreError: the space has vectors of another dimension.
    """

    name = "vectors"
    follows: ChangeOp = "embed"

    def __init__(self, archive: Archive, space: str, dim: int) -> None:
        super().__init__(archive)
        if dim < 1:
            raise InvalidInput(f"`dim` must be positive: got {dim}.")
        self.space = space
        self.dim = dim
        known = archive.space_dim(space)
        if known is not None:
            check_dim(space, known, dim)
        self._ids: set[int] = set()
        self._index: Any = None

    def __len__(self) -> int:
        """Vectors in the index, as of the last search."""
        return len(self._ids)

    def scores(self, vector: NDArray[np.float32]) -> tuple[Ids, Scores]:
        """Cosine similarity of every vector to this one.

        Args:
            vector: (dim,), float32, of any length but 0.

        Returns:
            ids: (n,), int64, ascending.
            scores: (n,), float32, in [-1, 1]; higher is nearer.

        Raises:
            InvalidInput: the vector is not finite, zero, or of another shape or dtype.
        """
        ids, scores = self.scores_each([vector])
        return ids, scores[0]

    def scores_each(self, vectors: Sequence[NDArray[np.float32]]) -> tuple[Ids, Scores]:
        """As `scores`, to several vectors at the same moment: scores of shape (n vectors, n)."""
        queries = _unit(np.stack([check_vector(vector, self.dim) for vector in vectors]))
        with self._lock:
            self.apply()
            if not self._ids:
                return np.zeros(0, np.int64), np.zeros((len(queries), 0), np.float32)
            _faiss()
            # One pass over all: no cosine is as low as the radius.
            _, found, ids = self._index.range_search(queries, -2.0)
        ids, found = ids.reshape(len(queries), -1), found.reshape(len(queries), -1)
        if (ids[:, 1:] < ids[:, :-1]).any():
            order = np.argsort(ids, axis=1)
            ids, found = np.take_along_axis(ids, order, 1), np.take_along_axis(found, order, 1)
        return ids[0], np.clip(found, -1.0, 1.0)

    def scores_of(self, vector: NDArray[np.float32], ids: Iterable[int]) -> dict[int, float]:
        """Cosine similarity of some segments to a vector, by id; those without one are left out.

        Args:
            vector: as `scores` has it.
            ids: whatever they are.

        Raises:
            InvalidInput: as `scores`.
        """
        query = _unit(check_vector(vector, self.dim)[None, :])[0]
        with self._lock:
            self.apply()
            return {
                one: min(1.0, max(-1.0, float(self._index.reconstruct(one) @ query)))
                for one in ids
                if one in self._ids
            }

    def between(self, pairs: Sequence[tuple[int, int]]) -> list[float | None]:
        """Cosine similarity of segments to each other, pair by pair; None without two vectors."""
        with self._lock:
            self.apply()
            return [
                float(self._index.reconstruct(one) @ self._index.reconstruct(other))
                if one in self._ids and other in self._ids
                else None
                for one, other in pairs
            ]

    def search(
        self, vector: NDArray[np.float32], k: int, exclude: Collection[int] = ()
    ) -> tuple[Ids, Scores]:
        """The k nearest segments but those in `exclude`, nearest first; as `scores` otherwise."""
        ids, scores = self.scores(vector)
        return nearest(ids, scores, k, exclude)

    def _clear(self) -> None:
        faiss = _faiss()
        self._ids = set()
        self._index = faiss.IndexIDMap2(faiss.IndexFlatIP(self.dim))

    def _load(self, ids: Sequence[int] | None) -> None:
        found, vectors = self._archive.embeddings(self.space, ids)
        if not len(found):
            return
        check_dim(self.space, vectors.shape[1], self.dim)
        units = _unit(vectors)
        if not np.isfinite(units).all() or found.min() < 1 or self._ids & set(found.tolist()):
            raise InvalidInput(
                f"Vectors of {self.space!r} must be finite, not zero, and one a segment."
            )
        _faiss()
        self._index.add_with_ids(units, found)
        self._ids.update(found.tolist())

    def _remove(self, ids: Collection[int]) -> None:
        held = self._ids.intersection(ids)
        if held:
            self._index.remove_ids(np.fromiter(held, np.int64, len(held)))
            self._ids -= held

    def _contents(self) -> dict[int, bytes]:
        return {each: self._index.reconstruct(each).tobytes() for each in sorted(self._ids)}

    def _blank(self) -> VectorIndex:
        return VectorIndex(self._archive, self.space, self.dim)


def _faiss() -> Any:
    """FAISS on one thread: on a busy machine two are slower. Each thread has its own setting."""
    import faiss

    faiss.omp_set_num_threads(1)
    return faiss


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Vectors (n, dim) at length 1; lengths in float64, the squares of large numbers overflow."""
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    return np.ascontiguousarray(vectors / lengths, dtype=np.float32)
