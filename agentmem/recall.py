"""Finding what was said before: meaning and words, scored together.

Cosine similarity of embeddings and BM25 over words are each z-normalized over all of a user's
segments and summed, so that either can find what the other cannot and neither needs tuning to the
other's scale. The z-scores rank; a floor on the unnormalized evidence decides whether anything is
worth bringing back at all: small talk recalls nothing. It reads the two indexes and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentmem.storage.vector import VectorIndex
from agentmem.storage.words import WordIndex


@dataclass(frozen=True, slots=True)
class Scored:
    """A segment as one query sees it; every score is higher for nearer.

    Args:
        segment_id: which.
        score: sum of the two z-scores.
        cosine: of the embeddings, in [-1, 1]; None while the segment has none.
        words: share of the query's word evidence (BM25, by its best segment's) in [0, 1].
    """

    segment_id: int
    score: float
    cosine: float | None
    words: float


@dataclass(frozen=True, kw_only=True)
class Recall:
    """How a query is scored, and what is worth bringing back.

    Args:
        min_cosine: a segment at least this near in meaning may come back.
        min_score: and it must stand out this far from all others (sum of two z-scores).
        margin: what scores more than this below the best one stays away.
        max_segments: at most so many come back.
        lifetime_turns: a recalled segment stays for so many turns after its last use.
    """

    min_cosine: float = 0.3
    min_score: float = 4.0
    margin: float = 3.0
    max_segments: int = 8
    lifetime_turns: int = 3

    def rank(
        self,
        text: str,
        vector: NDArray[np.float32],
        *,
        vectors: VectorIndex,
        words: WordIndex,
    ) -> list[Scored]:
        """Every segment of the user by its score, best first; ties by id, newest first."""
        vector_ids, cosines = vectors.scores(vector)
        word_ids, bm25 = words.scores(text)
        ids = np.union1d(vector_ids, word_ids)
        if ids.size == 0:
            return []
        # A segment without a vector is neither near nor far.
        average = float(cosines.mean()) if cosines.size else 0.0
        cosine = _spread(ids, vector_ids, cosines, default=average)
        word = _spread(ids, word_ids, bm25, default=0.0)
        embedded = np.isin(ids, vector_ids)
        score = _z(cosine) + _z(word)
        best_word = float(word.max())
        share = word / best_word if best_word > 0 else word
        order = np.lexsort((-ids, -score))
        return [
            Scored(
                int(ids[i]),
                float(score[i]),
                float(cosine[i]) if embedded[i] else None,
                float(share[i]),
            )
            for i in order
        ]

    def worth(self, text: str, ranked: list[Scored]) -> list[Scored]:
        """What is worth bringing back for a text, best first.

        Segments already in the window count too: a text that the window answers best brings little
        else.
        """
        if not ranked:
            return []
        floor = max(self.min_score, ranked[0].score - self.margin)
        return [
            scored
            for scored in ranked
            if scored.score >= floor and (scored.cosine is None or scored.cosine >= self.min_cosine)
        ][: self.max_segments]


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
