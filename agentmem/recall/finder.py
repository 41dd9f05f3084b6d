"""Finding segments of a user by meaning and by words, and giving new ones their vectors."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from agentmem.errors import InvalidInput
from agentmem.facts.cues import is_former
from agentmem.facts.rivals import Finding, rivals
from agentmem.models.base import Embedder
from agentmem.outside import Outside
from agentmem.recall.query_adapter import query_adapter
from agentmem.recall.scoring import Recall, Scored, newest_first
from agentmem.segment import Segment, Trust
from agentmem.storage.archive import Archive
from agentmem.storage.fact_index import FactIndex
from agentmem.storage.text import normalize_text
from agentmem.storage.vector import VectorIndex
from agentmem.storage.words import WordIndex
from agentmem.wording.asking import asks, only_asks

_LOOKED_AT = 24
"""So many of the best are compared: a newer one may stand above one that it answers instead of."""


class Finder:
    """The indexes of one user, kept in step with the archive.

    Args:
        archive: the truth that both indexes are built from.
        embedder: for meaning; its name is the space the vectors live in.
        recall: how queries are scored.
        outside: where the vectors of queries come from.
    """

    def __init__(
        self, archive: Archive, embedder: Embedder, recall: Recall, outside: Outside
    ) -> None:
        self._archive = archive
        self._outside = outside
        self._embedder = outside.embedder(embedder)
        self._recall = recall
        self._vectors = VectorIndex(archive, embedder.name, embedder.dim)
        self._words = WordIndex(archive)
        self._adapter = query_adapter(embedder.name)
        self.facts = FactIndex(archive)

    def embed(self, text: str) -> NDArray[np.float32]:
        """The vector of a text, shape (dim,)."""
        return self._outside.query(text, lambda: self._embedder.embed([text])[0])

    @property
    def space(self) -> str:
        """The embedding space."""
        return self._embedder.name

    def embed_apart(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of texts that nothing is looked for with, shape (len(texts), dim).

        What a session concludes from them has to come through `Outside`.
        """
        return self._embedder.embed(texts)

    def embed_pending(
        self, limit: int = 64, *, known: Mapping[int, NDArray[np.float32]] | None = None
    ) -> int:
        """Give segments without a vector theirs; how many got one.

        Args:
            limit: at most so many.
            known: vectors that are computed already, by segment id.
        """
        pending = self._archive.pending_embeddings(self._embedder.name, limit)
        if not pending:
            return 0
        vectors = dict(known or {})
        unknown = [one.segment for one in pending if one.segment.id not in vectors]
        if unknown:
            computed = self._embedder.embed([segment.text for segment in unknown])
            vectors |= {s.id: v for s, v in zip(unknown, computed, strict=True)}
        with self._archive.write(derived=True) as transaction:
            for one in pending:
                transaction.add_embedding(
                    self._embedder.name, one.segment.id, vectors[one.segment.id]
                )
        return len(pending)

    def rank(
        self,
        text: str,
        vector: NDArray[np.float32] | None = None,
        *,
        exclude: int = 0,
        limit: int | None = None,
    ) -> list[Scored]:
        """Segments of the user by their nearness to the text, best first.

        What holds no longer stands below what holds instead, unless the text asks for the past.

        Args:
            text: the query.
            vector: its embedding, where it is known already.
            exclude: the query's own segment, where it is stored already.
            limit: the best so many; None is every segment.
        """
        if vector is None:
            vector = self.embed(text)
        former = is_former(text)
        successors: dict[int, Collection[int]] = {}

        def instead(best: Iterable[int]) -> Collection[int]:
            # What holds instead of one of the best may be far below it, and is lifted.
            lifted: set[int] = set()
            while not former and (newer := self.facts.successors(text, best)):
                successors.update(newer)
                best = {*chain(*newer.values())} - successors.keys() - lifted
                lifted |= best
            return lifted

        ranked = self._recall.rank(
            text,
            vector,
            vectors=self._vectors,
            words=self._words,
            answer=None if former else self._answer(text, vector),
            exclude=exclude,
            limit=limit,
            beside=instead,
        )
        ranked = newest_first(ranked, successors)[:limit]
        if former:
            return ranked
        return newest_first(ranked, self._rivals(text, ranked, successors), all_of_them=True)

    def _answer(self, text: str, vector: NDArray[np.float32]) -> NDArray[np.float32] | None:
        """Near what would answer a text that asks; None where it does not or nobody knows."""
        return self._adapter.apply(vector) if self._adapter and asks(text) else None

    def _rivals(
        self, text: str, ranked: list[Scored], over: Collection[int]
    ) -> Mapping[int, Collection[int]]:
        """Among the best that the user told, by segment: newer ones that may hold instead."""
        near = {
            one.segment_id: one.answering
            for one in ranked[:_LOOKED_AT]
            if one.answering is not None
        }
        there = self._archive.present(near)
        told = [
            Finding(one, there[one].segment.text, there[one].segment.created, nearness, one in over)
            for one, nearness in near.items()
            if one in there and _is_told(there[one].segment)
        ]
        return rivals(text, told, self.between)

    def search(self, query: str, among: Collection[int] | None = None) -> list[Scored]:
        """Every segment that has something of the query, best first.

        Args:
            query: what to look for.
            among: ids to choose from, before anything is ranked away; None is all.

        Raises:
            InvalidInput: the query is empty.
        """
        query = normalize_text(query)
        if not query.strip():
            raise InvalidInput("`query` must not be empty.")
        # In the middle of somebody's turn nothing changes: what is new is found by its words.
        while not self._outside.turnstile.is_others and self.embed_pending():
            pass
        return [
            scored
            for scored in self.rank(query)
            if ((scored.cosine or 0) > 0 or scored.words > 0)
            and (among is None or scored.segment_id in among)
        ]

    def similarity(self, vector: NDArray[np.float32], ids: Iterable[int]) -> dict[int, float]:
        """Cosine similarity to a vector, by id, of those of these segments that have one."""
        return self._vectors.scores_of(vector, ids)

    def between(self, pairs: Sequence[tuple[int, int]]) -> list[float | None]:
        """Cosine similarity of segments to each other; None where one has no vector yet."""
        return self._vectors.between(pairs)

    def near(self, segment_id: int) -> dict[int, float]:
        """Cosine similarity of every embedded segment to one of them, by id."""
        _, vectors = self._archive.embeddings(self._embedder.name, [segment_id])
        if not len(vectors):
            return {}
        ids, cosines = self._vectors.scores(vectors[0])
        return dict(zip(ids.tolist(), cosines.tolist(), strict=True))


def _is_told(segment: Segment) -> bool:
    """Whether the user told something in it, in a turn: no question, no summary, no document."""
    is_users = segment.kind == "turn" and segment.origin == "user"
    return is_users and segment.trust >= Trust.USER and not only_asks(segment.text)
