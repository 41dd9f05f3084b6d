"""Stretches of a conversation: where they begin and end, and what is asked about their facts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from agentmem.bench.conversation import Conversation, Fact, Question, Turn
from agentmem.bench.generator import generate
from agentmem.bench.stretches import STRETCH_TOKENS, Stretch, cut, draw


def count_words(text: str) -> int:
    return len(text.split())


def tokens_of(turns: Sequence[Turn]) -> int:
    return sum(count_words(turn.user) + count_words(turn.reply or "") for turn in turns)


@pytest.fixture(scope="module")
def conversation() -> Conversation:
    return generate(3, count_tokens=count_words, turns=80, facts=12)


@pytest.fixture(scope="module")
def found(conversation: Conversation) -> list[Stretch]:
    return cut(conversation, count_words)


def test_stretches_follow_each_other_and_take_about_their_tokens(
    conversation: Conversation, found: list[Stretch]
) -> None:
    assert len(found) >= 10
    assert found[0].first == 1
    for stretch, following in zip(found, found[1:], strict=False):
        assert following.first == stretch.first + len(stretch.turns)
    for stretch in found[:-1]:
        after = stretch.first - 1 + len(stretch.turns)
        assert stretch.turns == conversation.turns[stretch.first - 1 : after]
        tokens = tokens_of(stretch.turns)
        away = abs(tokens - STRETCH_TOKENS)
        assert away <= abs(tokens + tokens_of([conversation.turns[after]]) - STRETCH_TOKENS)
        assert away <= abs(tokens - tokens_of(stretch.turns[-1:]) - STRETCH_TOKENS)


def test_a_fact_is_in_the_stretch_that_states_it(found: list[Stretch]) -> None:
    for stretch in found:
        said = [message.content for message in stretch.messages if message.role == "user"]
        assert stretch.facts and len(stretch.questions) == len(stretch.facts)
        assert all(any(fact.statement in text for text in said) for fact in stretch.facts)
    stated = [fact.id for stretch in found for fact in stretch.facts]
    assert len(stated) == len(set(stated)) > 40


def test_a_fact_is_asked_for_by_its_question_a_near_miss_plainly_and_a_former_value_not_at_all(
    conversation: Conversation, found: list[Stretch]
) -> None:
    own = {question.fact: question.text for question in conversation.questions}
    for stretch in found:
        for fact, question in zip(stretch.facts, stretch.questions, strict=True):
            if fact.id in own:
                assert question == own[fact.id]
            elif fact.former:
                assert question is None
            else:
                assert question is not None and question.endswith("?")
                assert fact.owner in question and fact.attribute in question
                assert fact.value not in question


def test_what_the_generator_has_no_words_for_is_asked_only_if_there_is_a_question() -> None:
    turns = (Turn("My boat is called Otter.", "I see."), Turn("My hat is red. " + "word " * 290))
    facts = (
        Fact("f1", 1, "my", "boat", "Otter", "My boat is called Otter."),
        Fact("f2", 2, "my", "hat", "red", "My hat is red."),
    )
    asked = Conversation(turns, facts, (Question("What colour is my hat?", "red", "f2"),))
    (stretch,) = cut(asked, count_words)
    assert stretch.questions == (None, "What colour is my hat?")
    assert [message.role for message in stretch.messages] == ["user", "assistant", "user"]


def test_turns_far_from_that_long_and_turns_without_a_fact_are_no_stretch() -> None:
    fact = Fact("f1", 1, "my", "hat", "red", "My hat is red.")
    short, long = Turn("My hat is red."), Turn("My hat is red. " + "word " * 500)
    right = Turn("My hat is red. " + "word " * 300)
    assert [len(cut(Conversation((turn,), (fact,)), count_words)) for turn in (short, long)] == [
        0, 0,
    ]  # fmt: skip
    assert len(cut(Conversation((right,), (fact,)), count_words)) == 1
    assert cut(Conversation((right,)), count_words) == []
    # A long turn does not spoil its neighbours.
    after = replace(fact, id="f2", turn=2)
    (stretch,) = cut(Conversation((long, right), (fact, after)), count_words)
    assert (stretch.first, stretch.facts) == (2, (after,))


def test_stretches_are_drawn_by_a_seed_and_keep_their_order(found: list[Stretch]) -> None:
    drawn = draw(found, 4, 7)
    assert drawn == draw(found, 4, 7) and len(drawn) == 4
    assert any(draw(found, 4, seed) != drawn for seed in range(3))
    assert [one.first for one in drawn] == sorted({one.first for one in drawn})
    assert draw(found, 1000, 7) == found
