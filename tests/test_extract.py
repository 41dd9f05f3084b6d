"""Sentences that stand in for a summary: what cannot be guessed survives, within its tokens."""

from __future__ import annotations

import random
import time

import pytest

from agentmem.bench.conversation import Conversation, contains
from agentmem.bench.generator import generate
from agentmem.wording.extract import extract, left_out_terms
from agentmem.wording.sentences import sentences_of
from agentmem.wording.telling import telling_terms


def count(text: str) -> int:
    return -(-len(text.encode()) // 3)


def short(text: str, max_tokens: int = 20) -> str:
    return extract(text, max_tokens=max_tokens, count=count)


def test_sentences_with_numbers_and_names_come_first() -> None:
    text = "It was fine. The code is 58291. We then had some more tea. Ask Mr. Bell about it."
    assert short(text, 8) == "The code is 58291."
    assert short(text, 17) == "The code is 58291. Ask Mr. Bell about it."


@pytest.mark.parametrize(
    ("telling", "idle"),
    [
        ("We decided to take the blue one.", "We talked about it for a good while."),
        ("You must call before noon.", "You can call if that is good for you."),
        ("My cat is called pepper.", "The cat sat on the wall again."),
        ("It starts on Monday.", "It starts in a while, I think."),
        ("Wir haben beschlossen, das blaue zu nehmen.", "Wir haben lange darüber geredet, und so."),
        ("Meine Katze heißt pfeffer.", "Die Katze lag wieder auf dem Sofa."),
        ("Nous avons décidé de partir.", "Nous avons parlé un bon moment hier."),
        ("Mon chat s'appelle poivre.", "Le chat est encore sur le mur."),
        ("Hemos decidido salir pronto.", "Hemos hablado un buen rato ayer."),
        ("Mi gato se llama pimienta.", "El gato sigue encima del muro."),
        ("我们决定星期五去。", "今早的天气真的不错啊。"),
        ("我的猫叫胡椒。", "早上好啊朋友们呀。"),
        ("Her box number is 17.", "How many boxes are there then?"),
    ],
)
def test_decisions_dates_and_statements_come_before_chatter(telling: str, idle: str) -> None:
    for text in (f"{telling} {idle}", f"{idle} {telling}"):
        assert short(text, max(count(telling), count(idle))) == telling


def test_the_same_is_not_said_twice() -> None:
    text = "My code is 58291. Noted: your code is 58291. His bike is in Utrecht."
    assert short(text, 20) == "My code is 58291. His bike is in Utrecht."


def test_numbers_addresses_and_titles_do_not_end_a_sentence() -> None:
    text = "Pay 3.14 to Dr. Bell at v1.2.3 of example.com! 好的。 走吧。Then go.\nDone"
    assert sentences_of(text) == [
        "Pay 3.14 to Dr. Bell at v1.2.3 of example.com!", "好的。", "走吧。", "Then go.", "Done",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text", ["word " * 100, "x" * 5000, "汉" * 900, "a" * 200 + " 4711 " + "b" * 200]
)
@pytest.mark.parametrize("max_tokens", [0, 1, 10, 40])
def test_one_endless_sentence_is_cut(text: str, max_tokens: int) -> None:
    assert count(short(text, max_tokens)) <= max_tokens
    if max_tokens == 40:
        assert short(text, max_tokens)


def test_the_piece_of_a_long_sentence_is_the_one_that_tells() -> None:
    text = "and so on " * 50 + "the code of Ingrid is 58291 and " + "then some more " * 50
    assert "58291" in short(text, 20)


def test_names_inside_a_sentence_tell_more_than_its_first_word() -> None:
    terms = telling_terms("Yesterday we met Ingrid. Perhaps 14 of them.")
    assert terms["14"] > terms["ingrid"] > terms["yesterday"]
    assert "perhaps" in terms and "met" not in terms


def test_common_words_are_never_named_as_left_out() -> None:
    assert left_out_terms("You and I were there with them", "nothing") == []


def test_a_line_of_base64_is_no_term_to_look_up() -> None:
    terms = left_out_terms("See " + "aGVsbG8x" * 500 + " and Ingrid.", "nothing")
    assert "Ingrid" in terms and all(len(term) <= 40 for term in terms)


def test_thousands_of_sentences_take_no_quadratic_time() -> None:
    text = "".join(f"a{n}. " for n in range(5_000))
    began = time.process_time()
    assert count(short(text, 64)) <= 64
    assert time.process_time() - began < 4.0


def share_kept(conversation: Conversation, turns: int, how: str) -> float:
    """The share of facts whose value is in 64 tokens taken of so many turns."""
    rng = random.Random(0)
    kept = [
        contains(taken, fact.value)
        for first in range(0, len(conversation.turns), turns)
        for text in [_said(conversation, first, turns)]
        for taken in [short(text, 64) if how == "extract" else _at_random(text, 64, rng)]
        for fact in conversation.facts
        if first < fact.turn <= first + turns
    ]
    return sum(kept) / len(kept)


def _said(conversation: Conversation, first: int, turns: int) -> str:
    chosen = conversation.turns[first : first + turns]
    return "\n".join(text for turn in chosen for text in (turn.user, turn.reply) if text)


def _at_random(text: str, max_tokens: int, rng: random.Random) -> str:
    sentences = sentences_of(text)
    taken: list[int] = []
    for i in rng.sample(range(len(sentences)), len(sentences)):
        if count(" ".join(sentences[j] for j in (*taken, i))) <= max_tokens:
            taken.append(i)
    return " ".join(sentences[i] for i in sorted(taken))


@pytest.mark.parametrize(("turns", "floor"), [(4, 0.9), (8, 0.65)])
def test_far_more_facts_survive_than_in_sentences_taken_at_random(turns: int, floor: float) -> None:
    conversation = generate(7, count_tokens=count, turns=160, facts=20, tokens=160 * 60)
    kept = share_kept(conversation, turns, "extract")
    assert kept >= floor
    assert kept >= share_kept(conversation, turns, "random") + 0.3
