"""Recall: meaning and words ranked together, and a floor below which nothing comes back."""

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from agentmem.recall.scoring import Recall, Scored, newest_first
from agentmem.storage.vector import VectorIndex
from agentmem.storage.words import WordIndex

VECTOR = np.zeros(4, dtype=np.float32)


class Index:
    """Scores as given, in place of an index."""

    def __init__(self, scores: Mapping[int, float], weight: float = 0.0) -> None:
        self._scores = dict(sorted(scores.items()))
        self._weight = weight

    def scores(self, _: Any) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        ids = np.array(list(self._scores), dtype=np.int64)
        return ids, np.array(list(self._scores.values()), dtype=np.float32)

    def scores_each(self, vectors: list[Any]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        ids, scores = self.scores(None)
        return ids, np.stack([scores] * len(vectors))

    def weight(self, _: str) -> float:
        return self._weight


def rank(
    cosines: Mapping[int, float],
    words: Mapping[int, float],
    weight: float,
    exclude: int = 0,
    **fewer: Any,
) -> list[Scored]:
    return Recall().rank(
        "query",
        VECTOR,
        vectors=cast(VectorIndex, Index(cosines)),
        words=cast(WordIndex, Index(words, weight)),
        exclude=exclude,
        **fewer,
    )


def crowd(value: float) -> dict[int, float]:
    """Forty segments that are all about something else."""
    return {i: value + 0.001 * (i % 7) for i in range(1, 41)}


def test_one_stray_word_does_not_outrank_what_is_near_in_meaning() -> None:
    cosines = {**crowd(0.1), 50: 0.5, 51: 0.1}
    words = {**crowd(0.0), 50: 0.0, 51: 2.0}
    assert rank(cosines, words, weight=12.0)[0].segment_id == 50


def test_words_that_cover_the_query_decide_between_near_meanings() -> None:
    cosines = {**crowd(0.1), 50: 0.80, 51: 0.82}
    words = {**crowd(0.0), 50: 11.0, 51: 4.0}
    assert rank(cosines, words, weight=12.0)[0].segment_id == 50


def test_equal_scores_come_newest_first() -> None:
    ranked = rank({1: 0.5, 2: 0.5, 3: 0.1}, {1: 0.0, 2: 0.0, 3: 0.0}, weight=1.0)
    assert [scored.segment_id for scored in ranked] == [2, 1, 3]


def test_the_querys_own_segment_changes_nothing() -> None:
    cosines, words = {**crowd(0.1), 50: 0.5}, {**crowd(0.0), 50: 1.0}
    with_it = rank({**cosines, 60: 1.0}, {**words, 60: 12.0}, weight=12.0, exclude=60)
    assert with_it == rank(cosines, words, weight=12.0)


def test_a_segment_without_a_vector_is_found_by_its_words() -> None:
    (best, *_) = rank(crowd(0.1), {**crowd(0.0), 50: 12.0}, weight=12.0)
    assert (best.segment_id, best.cosine, best.words) == (50, None, 1.0)


def test_nothing_stored_is_nothing_found() -> None:
    assert rank({}, {}, weight=0.0) == []
    assert Recall().worth("What is my code?", []) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [("What is my locker code?", [1, 2]), ("How do tides work?", [1]), ("I like tea.", [])],
)
def test_the_floor_depends_on_what_the_message_asks(text: str, expected: list[int]) -> None:
    ranked = [Scored(1, 9.0, 0.6, 0.9), Scored(2, 8.5, 0.4, 0.5)]
    assert [scored.segment_id for scored in Recall().worth(text, ranked)] == expected


def test_what_stands_far_below_the_best_stays_away() -> None:
    covered = [Scored(1, 9.0, 0.6, 1.0), Scored(2, 7.8, 0.6, 0.5)]
    assert len(Recall().worth("What is my code?", covered)) == 1
    uncovered = [Scored(1, 9.0, 0.6, 0.0), Scored(2, 7.8, 0.6, 0.0)]
    assert len(Recall().worth("What is my code?", uncovered)) == 2


@given(
    st.dictionaries(st.integers(1, 99), st.floats(-1, 1, width=32), max_size=30),
    st.dictionaries(st.integers(1, 99), st.floats(0, 20, width=32), max_size=30),
    st.floats(0, 50),
)
def test_every_segment_is_ranked_once_best_first(
    cosines: dict[int, float], words: dict[int, float], weight: float
) -> None:
    ranked = rank(cosines, words, weight)
    assert sorted(scored.segment_id for scored in ranked) == sorted({*cosines, *words})
    assert all(a.score >= b.score for a, b in zip(ranked, ranked[1:], strict=False))
    assert all(0 <= scored.words <= 1 for scored in ranked)


@given(
    st.dictionaries(st.integers(1, 30), st.floats(-1, 1, width=32), min_size=1, max_size=30),
    st.dictionaries(
        st.integers(1, 30), st.lists(st.integers(1, 30), min_size=1, max_size=3), max_size=6
    ),
    st.integers(1, 12),
)
def test_the_best_few_are_those_of_all_whatever_is_lifted_among_them(
    cosines: dict[int, float], successors: dict[int, list[int]], limit: int
) -> None:
    def beside(best: list[int]) -> set[int]:
        lifted: set[int] = set()
        newer = {*best}
        while newer := {two for one in newer for two in successors.get(one, ())} - lifted:
            lifted |= newer
        return lifted

    few = rank(cosines, {}, 0, limit=limit, beside=beside)
    everything = rank(cosines, {}, 0)
    assert newest_first(few, successors)[:limit] == newest_first(everything, successors)[:limit]


@given(
    st.dictionaries(st.integers(1, 30), st.floats(-1, 1, width=32), min_size=1, max_size=30),
    st.dictionaries(
        st.integers(1, 29), st.lists(st.integers(2, 30), min_size=1, max_size=3), max_size=6
    ),
)
def test_where_all_have_to_each_stands_above_and_the_older_names_the_first_of_them(
    cosines: dict[int, float], successors: dict[int, list[int]]
) -> None:
    newer = {one: [two for two in those if two > one] for one, those in successors.items()}
    ranked = rank(cosines, {}, 0)
    lifted = newest_first(ranked, newer, all_of_them=True)
    at = {scored.segment_id: place for place, scored in enumerate(lifted)}
    assert sorted(at) == sorted(cosines)
    for scored in lifted:
        there = [each for each in newer.get(scored.segment_id, ()) if each in at]
        assert scored.instead == (there[0] if there else None)
        assert all(at[each] < at[scored.segment_id] for each in there)
