"""Sentences that stand without a word for it: found by words and meaning together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from agentmem import Agent, ScriptedModel, Store, replay, what_if
from agentmem.models.embed import HashEmbedder, MiniLMEmbedder
from agentmem.wording.standing import may_stand, standing_instructions
from agentmem.wording.standing_odds import ENOUGH, standing_odds, word_groups
from tests.agents import make_agent, talk
from tests.fit_standing import fit, sentences_of

STANDING = [
    "Temperatures in Fahrenheit for me, the other scale means nothing to me.",
    "When you write out recipes, leave the sugar in grams.",
    "No exclamation marks in what you write to me, please.",
    "If something I say makes no sense, tell me straight away.",
    "Plain sentences suit me better than tables in your answers.",
]
OTHER = [
    "My kettle has a crack in the lid.",
    "Write a two-line poem about our kettle.",
    "The plumber comes on Thursdays from now on.",
    "My manager wants shorter emails from all of us.",
    "I'd sooner walk than wait for that bus.",
]


def pins(agent: Agent) -> list[str]:
    return [entry.segment.text for entry in agent.context if entry.pinned]


@pytest.fixture(scope="module")
def embedder(minilm_dir: Path) -> MiniLMEmbedder:
    return MiniLMEmbedder(minilm_dir)


def odds(sentence: str, embedder: MiniLMEmbedder) -> float:
    return standing_odds().by_both(sentence, embedder.embed([sentence])[0].tolist())


@pytest.mark.parametrize("sentence", STANDING)
def test_what_is_meant_to_hold_stands_without_a_word_for_it(
    sentence: str, embedder: MiniLMEmbedder
) -> None:
    assert not standing_instructions(sentence)
    assert odds(sentence, embedder) >= ENOUGH


@pytest.mark.parametrize("sentence", OTHER)
def test_facts_single_requests_and_wishes_about_the_world_do_not(
    sentence: str, embedder: MiniLMEmbedder
) -> None:
    assert odds(sentence, embedder) < ENOUGH


def test_the_sentences_here_are_none_of_those_the_weights_were_fitted_to() -> None:
    assert not {*STANDING, *OTHER} & {*sentences_of("standing"), *sentences_of("other")}


def test_a_session_pins_what_is_meant_so_and_nothing_else_of_the_message(
    tmp_path: Path, embedder: MiniLMEmbedder
) -> None:
    with Agent(ScriptedModel(), store=tmp_path / "a.db", embedder=embedder, budget=2000) as agent:
        for sentence in (*OTHER, *STANDING[:2]):
            agent.chat(sentence)
        long = "We walked along the river and looked at the boats for a while. " * 6
        agent.chat(f"{long}{STANDING[2]}")
        assert pins(agent) == STANDING[:3]


def test_of_a_very_long_message_few_sentences_are_embedded(
    tmp_path: Path, embedder: MiniLMEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Agent(ScriptedModel(), store=tmp_path / "a.db", embedder=embedder, budget=2000) as agent:
        embedded: list[str] = []

        def embed_apart(texts: Sequence[str]) -> NDArray[np.float32]:
            embedded.extend(texts)
            return embedder.embed(texts)

        monkeypatch.setattr(agent.memory.finder, "embed_apart", embed_apart)
        filler = " ".join(f"Please look at the number {number} for me." for number in range(60))
        agent.chat(f"{filler} {STANDING[2]}")
        assert len(embedded) == 16 and STANDING[2] in embedded


def test_what_was_noticed_by_its_meaning_is_replayed_without_an_embedder(
    tmp_path: Path, embedder: MiniLMEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = f"We walked along the river and looked at the boats for a while. {STANDING[2]}"
    with make_agent(tmp_path, embedder=embedder) as agent:
        for text in (OTHER[0], STANDING[0], told):
            agent.chat(text)
        talk(agent, 20)
        assert pins(agent) == [STANDING[0], told]

    def never(*_: object) -> None:
        raise AssertionError("A replay embeds nothing.")

    monkeypatch.setattr(MiniLMEmbedder, "embed", never)
    with Store.open(tmp_path / "me.db") as store:
        came_to = replay(store.for_user("default"), "default")
        assert came_to.same, came_to.difference
        otherwise = what_if(store.for_user("default"), "default", policy="lru")
        differing = [one.text for one in otherwise.segments]
        assert not any(text.startswith((STANDING[0][:20], told[:20])) for text in differing)


def test_in_another_embedding_space_only_the_form_counts(tmp_path: Path) -> None:
    class Elsewhere(HashEmbedder):
        def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
            most = np.array(standing_odds().vector, np.float32)
            return np.tile(most / np.linalg.norm(most), (len(texts), 1))

    embedder = Elsewhere()
    assert standing_odds().by_both(STANDING[0], embedder.embed([""])[0].tolist()) >= ENOUGH
    with Agent(ScriptedModel(), store=tmp_path / "a.db", embedder=embedder, budget=2000) as agent:
        agent.chat(STANDING[0])
        agent.chat("From now on answer in French.")
        assert pins(agent) == ["From now on answer in French."]


def test_where_room_is_short_what_stands_least_surely_goes_first(
    tmp_path: Path, embedder: MiniLMEmbedder
) -> None:
    with Agent(ScriptedModel(), store=tmp_path / "a.db", embedder=embedder, budget=400) as agent:
        agent.chat("Never use emojis in your replies.")
        agent.chat(STANDING[3])
        assert pins(agent) == ["Never use emojis in your replies.", STANDING[3]]
        for topic in ("money", "sport", "films", "cars", "food"):
            if STANDING[3] not in pins(agent):
                break
            agent.chat(f"Never begin to talk to me about {topic}.")
        assert STANDING[3] not in pins(agent)
        assert "Never use emojis in your replies." in pins(agent)


def test_questions_quotations_and_data_may_not_stand() -> None:
    text = (
        'Could you be brief?\nHe said "no emojis in anything you write".\n{"tone": "formal"}\nYes.'
    )
    assert may_stand(text) == ["Yes."]


def test_word_groups_are_how_it_begins_words_neighbours_and_words_with_one_between() -> None:
    assert set(word_groups("Oh, no emojis please.")) == {
        "^no", "^no emojis", "no", "emojis", "please", ".", "no emojis", "emojis please",
        "please .", "no _ please", "emojis _ .",
    }  # fmt: skip


@pytest.mark.slow
def test_the_shipped_weights_are_those_of_the_sentences(embedder: MiniLMEmbedder) -> None:
    shipped, fitted = standing_odds(), fit(embedder)
    assert (fitted.space, fitted.words.keys()) == (shipped.space, shipped.words.keys())
    np.testing.assert_allclose(fitted.vector, shipped.vector, atol=5e-3)
    np.testing.assert_allclose(
        [fitted.words[name] for name in shipped.words], list(shipped.words.values()), atol=5e-3
    )
