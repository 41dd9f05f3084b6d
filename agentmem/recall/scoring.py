"""Finding what was said before: meaning and words, scored together.

    score(segment, query) = z(answering) + coverage^2 * z(BM25)
    answering = the cosine; of a question, moved towards what answers it (`recall.query_adapter`)
    coverage = the best segment's BM25 / that of a segment that holds every word of the query

Both are z-normalized over all of a user's segments, so that either can find what the other cannot.
BM25 is sparse: one shared word in a question that is otherwise about something else would have a
z-score beyond any cosine's, so words count by how much of the query they cover. The scores rank; a
floor on the cosine, which depends on what the message asks of memory, decides whether anything is
worth bringing back: small talk recalls next to nothing. It reads the two indexes and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from agentmem.storage.vector import VectorIndex
from agentmem.storage.words import WordIndex
from agentmem.wording.asking import Need, need_of


@dataclass(frozen=True, slots=True)
class Scored:
    """A segment as one query sees it; every score is higher for nearer.

    Args:
        segment_id: which.
        score: sum of the two z-scores, the second weighted by coverage.
        cosine: of the embeddings, in [-1, 1]; None while the segment has none.
        words: share of the query's words the segment covers, by their weight, in [0, 1].
        answering: how near it is to what would answer the query; the cosine, where nobody knows.
        for_older: the nearness of what it took the place of and stands above, where that is more
            than its own; -1 for none.
        instead: the newer segment that stands above it because it answers the query instead; None
            where none does.
    """

    segment_id: int
    score: float
    cosine: float | None
    words: float
    answering: float | None = None
    for_older: float = -1.0
    instead: int | None = None

    @property
    def nearness(self) -> float:
        """Its cosine, or its share of words without one; that of what it replaced if higher."""
        own = self.words if self.cosine is None else self.cosine
        return max(own, self.for_older)


@dataclass(frozen=True, kw_only=True)
class Recall:
    """How a query is scored, and what is worth bringing back.

    Args:
        min_cosine: a segment must be at least this near in meaning to come back, by what the
            message asks of memory: about the speaker's own world, any other question, none.
        margin: what scores more than this below the best one stays away, where the words cover the
            query; where they cover nothing of it, so much more.
        max_segments: at most so many come back.
        lifetime_turns: a recalled segment stays for so many turns after its last use.
    """

    min_cosine: Mapping[Need, float] = field(
        default_factory=lambda: {"own": 0.3, "open": 0.55, "none": 0.7}
    )
    margin: tuple[float, float] = (1.0, 1.5)
    max_segments: int = 6
    lifetime_turns: int = 3

    def rank(
        self,
        text: str,
        vector: NDArray[np.float32],
        *,
        vectors: VectorIndex,
        words: WordIndex,
        answer: NDArray[np.float32] | None = None,
        exclude: int = 0,
        limit: int | None = None,
        beside: Callable[[list[int]], Collection[int]] | None = None,
    ) -> list[Scored]:
        """Segments of the user by their score, best first; ties by id, newest first.

        Args:
            text: the query.
            vector: its embedding.
            vectors, words: the two indexes.
            answer: near what would answer the query, in the same space; None is the query's own.
            exclude: the query's own segment, where it is stored already.
            limit: the best so many; None is every segment.
            beside: told the ids of these, names others that are wanted below them.
        """
        near = [vector] if answer is None else [vector, answer]
        vector_ids, nearness = _without(exclude, *vectors.scores_each(near))
        word_ids, bm25 = _without(exclude, *words.scores(text))
        ids = _union(vector_ids, word_ids)
        if ids.size == 0:
            return []
        embedded = np.zeros(ids.size, dtype=bool)
        embedded[np.searchsorted(ids, vector_ids)] = True
        # A segment without a vector is neither near nor far.
        spread = [
            _spread(ids, vector_ids, each, default=float(each.mean()) if each.size else 0.0)
            for each in nearness
        ]
        cosine, answering = spread[0], spread[-1]
        word = _spread(ids, word_ids, bm25, default=0.0)
        weight = words.weight(text)
        coverage = np.minimum(1.0, word / weight) if weight > 1e-9 else np.zeros_like(word)
        score = _z(answering) + float(coverage.max()) ** 2 * _z(word)
        best = _best(score, ids, limit)
        if beside is not None:
            wanted = np.array(sorted(beside(ids[best].tolist())), dtype=np.int64)
            below = np.setdiff1d(np.flatnonzero(np.isin(ids, wanted)), best)
            best = np.concatenate((best, below[_best(score[below], ids[below], None)]))
        return [
            Scored(
                int(ids[i]),
                float(score[i]),
                float(cosine[i]) if embedded[i] else None,
                float(coverage[i]),
                float(answering[i]) if embedded[i] else None,
            )
            for i in best
        ]

    def worth(self, text: str, ranked: list[Scored]) -> list[Scored]:
        """What is worth bringing back for a text, best first.

        Segments already in the window count too: a text that the window answers best brings little
        else.
        """
        if not ranked:
            return []
        min_cosine = self.min_cosine[need_of(text)]
        least, more = self.margin
        margin = least + more * (1 - max(scored.words for scored in ranked))
        return [
            scored
            for scored in ranked[: self.max_segments]
            if scored.score >= ranked[0].score - margin and scored.nearness >= min_cosine
        ]


def newest_first(
    ranked: list[Scored],
    successors: Mapping[int, Collection[int]],
    *,
    all_of_them: bool = False,
) -> list[Scored]:
    """The same segments, none whose words hold no longer above one that says what holds instead.

    A successor that stands below is lifted to just above what it took the place of, and scores as
    high: so one brings the other, and neither is lost.

    Args:
        ranked: segments, best first.
        successors: by segment, those that say what holds instead.
        all_of_them: each of those has to stand above, in their order; else any one will do, and it
            is the best ranked where none does yet.
    """
    by_id = {scored.segment_id: scored for scored in ranked}
    placed: dict[int, Scored] = {}

    def place(scored: Scored, above: Scored | None, path: tuple[int, ...]) -> None:
        one = scored.segment_id
        if one in placed or one in path:
            return
        if above is not None:
            lifted = max(scored.score, above.score)
            scored = replace(scored, score=lifted, for_older=above.nearness)
        newer = [each for each in successors.get(one, ()) if each in by_id and each not in path]
        if not all_of_them:
            is_above = any(each in placed for each in newer)
            newer = [] if is_above else sorted(newer, key=lambda each: -by_id[each].score)[:1]
        for each in newer:
            place(by_id[each], scored, (*path, one))
        placed[one] = replace(scored, instead=newer[0]) if newer and all_of_them else scored

    for scored in ranked:
        place(scored, None, ())
    return list(placed.values())


def _without(
    exclude: int, ids: NDArray[np.int64], scores: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The same but one id; scores are (n,) or (n queries, n)."""
    others = ids != exclude
    return (ids, scores) if others.all() else (ids[others], scores[..., others])


def _union(ids: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.int64]:
    """Both, ascending; at no cost where the first has all of the second, as is usual."""
    at = np.searchsorted(ids, others)
    if at.size == 0 or (at[-1] < ids.size and (ids[at] == others).all()):
        return ids
    return np.union1d(ids, others)


def _best(
    score: NDArray[np.float64], ids: NDArray[np.int64], limit: int | None
) -> NDArray[np.int64]:
    """Where the highest scores stand, the highest first; of equal ones the newest id first."""
    among = np.arange(ids.size)
    if limit is not None and limit < ids.size:
        among = np.flatnonzero(score >= np.partition(score, -limit)[-limit])
    return among[np.lexsort((-ids[among], -score[among]))][:limit]


def _spread(
    ids: NDArray[np.int64],
    some: NDArray[np.int64],
    scores: NDArray[np.float32],
    *,
    default: float,
) -> NDArray[np.float64]:
    """Scores laid out over all ids; `default` where an index has none."""
    full = np.full(ids.size, default, dtype=np.float64)
    full[np.searchsorted(ids, some)] = scores
    return full


def _z(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scores in standard deviations from their mean; all 0 where they do not differ."""
    deviation = float(scores.std())
    if deviation < 1e-9:
        return np.zeros_like(scores)
    standard: NDArray[np.float64] = (scores - scores.mean()) / deviation
    return standard
