"""Finding segments by meaning: exact, incremental, and closed to what FAISS would swallow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from agentmem.errors import InvalidInput, SegmentNotFound, StoreError
from agentmem.segment import Message, Segment
from agentmem.storage.archive import Archive, Store
from agentmem.storage.vector import VectorIndex

DIM = 8


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    path = tmp_path_factory.mktemp("vector") / "me.db"
    with Store.open(path, durability="relaxed") as opened:
        yield opened


_count = iter(range(10**6))


@pytest.fixture
def archive(store: Store) -> Archive:
    return store.for_user(f"user-{next(_count)}")


def vectors(count: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((count, DIM)).astype(np.float32)


def put(archive: Archive, rows: NDArray[np.float32], space: str = "space") -> list[int]:
    session_id = archive.session("main").id
    ids = []
    with archive.write() as transaction:
        for row in rows:
            stored = transaction.add_segment(session_id, 1, Segment((Message("user", "x"),)))
            transaction.add_embedding(space, stored.id, row)
            ids.append(stored.id)
    return ids


def test_segments_are_compared_to_each_other_where_both_have_vectors(archive: Archive) -> None:
    rows = vectors(3)
    one, two, three = put(archive, rows)
    index = VectorIndex(archive, "space", DIM)
    found = index.between([(one, two), (three, three), (one, 10**6)])
    expected = rows[0] @ rows[1] / np.linalg.norm(rows[0]) / np.linalg.norm(rows[1])
    assert found[:2] == [pytest.approx(float(expected), abs=1e-6), pytest.approx(1.0, abs=1e-6)]
    assert found[2] is None and index.between([]) == []


def test_some_segments_are_compared_to_a_vector_as_all_are(archive: Archive) -> None:
    ids = put(archive, vectors(5))
    index = VectorIndex(archive, "space", DIM)
    query = vectors(1, seed=9)[0]
    found = index.scores_of(query, [ids[3], 10**6, ids[0]])
    known, cosines = index.scores(query)
    expected = {one: float(cosines[known.tolist().index(one)]) for one in (ids[3], ids[0])}
    assert list(found) == [ids[3], ids[0]] and found == pytest.approx(expected, abs=1e-6)
    assert VectorIndex(archive, "other", DIM).scores_of(query, ids) == {}


def test_several_vectors_are_compared_at_once_as_each_alone(archive: Archive) -> None:
    put(archive, vectors(6))
    index = VectorIndex(archive, "space", DIM)
    queries = list(vectors(3, seed=9))
    ids, scores = index.scores_each(queries)
    for query, row in zip(queries, scores, strict=True):
        alone = index.scores(query)
        assert ids.tolist() == alone[0].tolist() == sorted(ids.tolist())
        np.testing.assert_allclose(row, alone[1], atol=1e-6)
    assert VectorIndex(archive, "other", DIM).scores_each(queries)[1].shape == (3, 0)


def test_scores_are_the_cosines_of_all_vectors_by_id(archive: Archive) -> None:
    rows = vectors(50) * np.float32(37.0)
    ids = put(archive, rows)
    query = vectors(1, seed=1)[0]
    found, scores = VectorIndex(archive, "space", DIM).scores(query)
    expected = rows @ query / np.linalg.norm(rows, axis=1) / np.linalg.norm(query)
    assert found.tolist() == ids and found.dtype == np.int64
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-6)


def test_the_nearest_come_first_and_ties_by_id(archive: Archive) -> None:
    east, north = np.eye(DIM, dtype=np.float32)[:2]
    ids = put(archive, np.stack([north, east, -east, east, north + east, east]))
    index = VectorIndex(archive, "space", DIM)
    found, scores = index.search(east, 3)
    assert found.tolist() == [ids[1], ids[3], ids[5]]
    np.testing.assert_allclose(scores, [1, 1, 1], atol=1e-6)
    assert index.search(east, 2)[0].tolist() == [ids[1], ids[3]]
    assert index.search(east, 3, exclude={ids[3], 10**9})[0].tolist() == [ids[1], ids[5], ids[4]]
    assert index.search(east, 100)[0].tolist()[-1] == ids[2]
    assert index.search(east, 0)[0].tolist() == []


def test_an_empty_index_finds_nothing(archive: Archive) -> None:
    index = VectorIndex(archive, "space of nobody", DIM)
    ids, scores = index.search(vectors(1)[0], 10_000)
    assert (ids.size, scores.size, len(index)) == (0, 0, 0)
    assert ids.dtype == np.int64 and scores.dtype == np.float32


NAN, INF = float("nan"), float("inf")
BAD = {
    "NaN": np.array([NAN] + [0.0] * (DIM - 1), np.float32),
    "Inf": np.array([INF] + [0.0] * (DIM - 1), np.float32),
    "zero": np.zeros(DIM, np.float32),
    "tiny": np.full(DIM, 1e-20, np.float32),
    "float64": np.ones(DIM),
    "ints": np.ones(DIM, np.int64),
    "two dimensions": np.ones((1, DIM), np.float32),
    "a list": [1.0] * DIM,
    "None": None,
}


@pytest.mark.parametrize("name", BAD)
def test_a_vector_without_a_direction_gets_in_nowhere(archive: Archive, name: str) -> None:
    bad: Any = BAD[name]
    (one,) = put(archive, vectors(1))
    with pytest.raises(InvalidInput), archive.write() as transaction:
        transaction.add_embedding("space", one, bad)
    index = VectorIndex(archive, "space", DIM)
    with pytest.raises(InvalidInput):
        index.scores(bad)
    with pytest.raises(InvalidInput):
        index.search(bad, 1)
    assert index.search(vectors(1)[0], 5)[0].tolist() == [one]


def test_a_huge_vector_has_a_direction(archive: Archive) -> None:
    ids = put(archive, np.full((1, DIM), 3e38, np.float32))
    index = VectorIndex(archive, "space", DIM)
    found, scores = index.search(np.full(DIM, 1e38, np.float32), 1)
    assert found.tolist() == ids
    np.testing.assert_allclose(scores, [1.0], atol=1e-6)


def test_another_dimension_is_an_error_and_nothing_is_made_anew(archive: Archive) -> None:
    (one,) = put(archive, vectors(1))
    other = np.ones(DIM + 1, np.float32)
    with (
        pytest.raises(StoreError, match=f"{DIM} dimensions.*{DIM + 1}"),
        archive.write() as transaction,
    ):
        transaction.add_embedding("space", one, other)
    with pytest.raises(StoreError, match=f"{DIM} dimensions.*{DIM + 1}"):
        VectorIndex(archive, "space", DIM + 1)
    with pytest.raises(InvalidInput, match=f"{DIM} numbers"):
        VectorIndex(archive, "space", DIM).scores(other)
    with pytest.raises(InvalidInput, match="`dim`"):
        VectorIndex(archive, "space", 0)
    assert archive.embeddings("space")[0].tolist() == [one]


def test_two_spaces_never_meet(archive: Archive) -> None:
    first = put(archive, vectors(3), "first model")
    second = put(archive, vectors(3), "second model")
    query = vectors(1)[0]
    assert VectorIndex(archive, "first model", DIM).scores(query)[0].tolist() == first
    assert VectorIndex(archive, "second model", DIM).scores(query)[0].tolist() == second


def test_a_vector_for_an_unknown_segment_is_refused(archive: Archive) -> None:
    for missing in (0, -1, 10**9):
        with pytest.raises(SegmentNotFound), archive.write() as transaction:
            transaction.add_embedding("space", missing, vectors(1)[0])


def test_a_second_vector_of_a_segment_replaces_the_first(archive: Archive) -> None:
    (one,) = put(archive, vectors(1))
    index = VectorIndex(archive, "space", DIM)
    index.apply()
    again = vectors(1, seed=5)[0]
    with archive.write() as transaction:
        transaction.add_embedding("space", one, again)
        transaction.add_embedding("space", one, again)
    ids, scores = index.scores(again)
    assert ids.tolist() == [one]
    np.testing.assert_allclose(scores, [1.0], atol=1e-6)


def test_removing_the_first_of_many_leaves_the_others_their_ids(archive: Archive) -> None:
    rows = vectors(100)
    ids = put(archive, rows)
    index = VectorIndex(archive, "space", DIM)
    index.apply()
    with archive.write() as transaction:
        transaction.forget(ids[0])
    for segment_id, row in zip(ids[1:], rows[1:], strict=True):
        assert index.search(row, 1)[0].tolist() == [segment_id]
    assert len(index) == 99 and index.check().status == "ok"


def test_a_small_users_segments_are_found_among_many_users(store: Store) -> None:
    query = vectors(1)[0]
    users = [store.for_user(f"one of many {number}") for number in range(20)]
    ids = [put(user, vectors(10, seed=number), "shared") for number, user in enumerate(users)]
    for user, mine in zip(users, ids, strict=True):
        found, _ = VectorIndex(user, "shared", DIM).search(query, 10)
        assert sorted(found.tolist()) == mine


def test_the_check_finds_an_index_that_differs(archive: Archive) -> None:
    ids = put(archive, vectors(5))
    index = VectorIndex(archive, "space", DIM)
    index.apply()
    assert index.check().status == "ok"
    index._remove([ids[2]])
    assert index.check().status == "fail"
    index.rebuild()
    assert index.check().status == "ok"


def test_threads_may_search_while_others_add(archive: Archive) -> None:
    put(archive, vectors(20))
    index = VectorIndex(archive, "space", DIM)
    faults: list[BaseException] = []

    def search() -> None:
        try:
            for seed in range(30):
                ids, scores = index.scores(vectors(1, seed)[0])
                assert len(ids) == len(set(ids.tolist())) and np.isfinite(scores).all()
        except BaseException as error:
            faults.append(error)

    threads = [Thread(target=search) for _ in range(3)]
    for thread in threads:
        thread.start()
    for seed in range(15):
        put(archive, vectors(2, seed))
    for thread in threads:
        thread.join()
    assert faults == [] and index.check().status == "ok"


STEPS = st.lists(
    st.tuples(st.sampled_from(("add", "embed", "forget", "search")), st.integers(0, 10**6)),
    max_size=25,
)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=STEPS)
def test_an_index_that_followed_equals_one_made_anew(store: Store, steps: list[Any]) -> None:
    archive = store.for_user(f"user-{next(_count)}")
    session_id = archive.session("main").id
    index = VectorIndex(archive, "followed", DIM)
    ids: list[int] = []
    for action, seed in steps:
        with archive.write() as transaction:
            if action == "add":
                segment = Segment((Message("user", "x"),))
                ids.append(transaction.add_segment(session_id, 1, segment).id)
            elif action == "embed" and ids:
                row = vectors(1, seed)[0]
                transaction.add_embedding("followed", ids[seed % len(ids)], row)
            elif action == "forget" and ids:
                transaction.forget(ids.pop(seed % len(ids)))
        if action == "search":
            index.search(vectors(1, seed)[0], 3)
    fresh = VectorIndex(archive, "followed", DIM)
    query = vectors(1, seed=99)[0]
    for wanted, got in zip(fresh.scores(query), index.scores(query), strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert set(index.scores(query)[0].tolist()) <= set(ids)
    assert index.check().status == "ok"


def test_an_index_survives_an_archive_that_fails_in_the_middle(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = vectors(6)
    ids = put(archive, rows[:3])
    index = VectorIndex(archive, "space", DIM)
    index.apply()
    ids += put(archive, rows[3:])
    with monkeypatch.context() as patch:
        patch.setattr(archive, "embeddings", lambda *_: (_ for _ in ()).throw(StoreError("gone")))
        with pytest.raises(StoreError, match="gone"):
            index.scores(rows[0])
    assert index.scores(rows[0])[0].tolist() == ids


def test_non_ascii_paths_and_spaces_will_do(tmp_path: Path) -> None:
    with Store.open(tmp_path / "Ünï ストア" / "me.db") as store:
        archive = store.for_user("ann")
        ids = put(archive, vectors(3), "модель/모델@1")
        index = VectorIndex(archive, "модель/모델@1", DIM)
        assert index.scores(vectors(1)[0])[0].tolist() == ids
