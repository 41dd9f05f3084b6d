"""A question is moved towards what answers it; nothing else is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from agentmem import Agent, ScriptedModel
from agentmem.facts.rivals import Between, Finding
from agentmem.models.embed import HashEmbedder, MiniLMEmbedder
from agentmem.recall.query_adapter import query_adapter
from tests.fit_query_adapter import fit, questions

QUESTION = "What sort of job have I got?"
ANSWER = "Guess who signed as the new night baker at Holm's this morning!"
TALK = "Jobs, jobs, jobs: the radio went on about them all morning."


@pytest.fixture(scope="module")
def embedder(minilm_dir: Path) -> MiniLMEmbedder:
    return MiniLMEmbedder(minilm_dir)


def test_what_answers_comes_nearer_and_talk_of_the_same_thing_does_not(
    embedder: MiniLMEmbedder,
) -> None:
    asked, answer, talk = embedder.embed([QUESTION, ANSWER, TALK])
    adapter = query_adapter(embedder.name)
    assert adapter is not None
    moved = adapter.apply(asked)
    assert moved.dtype == np.float32 and moved.shape == asked.shape
    assert np.linalg.norm(moved) == pytest.approx(1, abs=1e-5)
    assert asked @ answer < asked @ talk
    assert moved @ answer - moved @ talk > asked @ answer - asked @ talk + 0.05
    np.testing.assert_allclose(adapter.apply(3 * asked), moved, atol=1e-6)


def test_the_texts_here_are_none_of_those_it_was_fitted_to() -> None:
    known = {text for row in questions() for text in row.values()}
    assert not known & {QUESTION, ANSWER, TALK}


def test_another_embedding_space_has_none() -> None:
    assert query_adapter(HashEmbedder().name) is None
    assert query_adapter("minilm:000000000000:384") is None


def test_only_a_question_about_what_holds_is_moved(
    tmp_path: Path, embedder: MiniLMEmbedder
) -> None:
    with Agent(ScriptedModel(), store=tmp_path / "a.db", embedder=embedder, budget=2000) as agent:
        for text in (TALK, ANSWER, "Soup again for lunch."):
            agent.chat(text)
        finder = agent.memory.finder
        finder.embed_pending()
        asked = finder.rank(QUESTION)
        assert all(one.answering != one.cosine for one in asked)
        vector = embedder.embed([QUESTION])[0]
        for one in asked:
            assert one.cosine == pytest.approx(
                finder.similarity(vector, [one.segment_id])[one.segment_id], abs=1e-5
            )
        for text in ("I have got a job.", "What job did I use to have, years ago?"):
            assert all(one.answering == one.cosine for one in finder.rank(text))


def test_what_may_hold_instead_is_told_by_its_nearness_to_an_answer_and_whether_it_is_over(
    tmp_path: Path, embedder: MiniLMEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, newer = "My locker code is 5829.", "My locker code is 7714 now."
    question = "What is my locker code?"
    compared: dict[str, Finding] = {}

    def rivals(_: str, best: list[Finding], __: Between) -> dict[int, tuple[int, ...]]:
        compared.update((one.text, one) for one in best)
        return {}

    monkeypatch.setattr("agentmem.recall.finder.rivals", rivals)
    with Agent(ScriptedModel(), store=tmp_path / "a.db", embedder=embedder, budget=2000) as agent:
        for text in (older, newer):
            agent.chat(text)
        agent.memory.search(question)
    assert (compared[older].is_over, compared[newer].is_over) == (True, False)
    adapter = query_adapter(embedder.name)
    assert adapter is not None
    asked, *told = embedder.embed([question, older, newer])
    for text, vector in zip((older, newer), told, strict=True):
        assert compared[text].nearness == pytest.approx(adapter.apply(asked) @ vector, abs=1e-4)


@pytest.mark.slow
def test_held_out_answers_are_found_sooner(embedder: MiniLMEmbedder) -> None:
    rows = questions()[::20]
    adapter = fit(embedder, [row for row in questions() if row not in rows])
    asked = embedder.embed([row["question"] for row in rows])
    others = [text for row in rows for text in (row["near_miss"], row["older"])]
    statements = embedder.embed([*(row["newer"] for row in rows), *others])

    def reciprocal_rank(queries: np.ndarray) -> float:
        scores = queries @ statements.T
        ranks = (scores > np.diag(scores)[:, None]).sum(1) + 1
        return float((1 / ranks).mean())

    moved = np.stack([adapter.apply(one) for one in asked])
    assert reciprocal_rank(moved) > reciprocal_rank(asked) + 0.05


@pytest.mark.slow
def test_the_shipped_weights_are_those_of_the_questions(embedder: MiniLMEmbedder) -> None:
    shipped, fitted = query_adapter(embedder.name), fit(embedder, questions())
    assert shipped is not None and shipped.space == fitted.space
    for vector in embedder.embed([row["question"] for row in questions()[::10]]):
        assert shipped.apply(vector) @ fitted.apply(vector) > 0.99
