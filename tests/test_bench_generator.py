"""Generated conversations are hard in the ways they promise, and the same for the same seed."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache

import pytest
import Stemmer

from agentmem.bench.attributes import ATTRIBUTES, OWNERS, STATEMENTS, WORDINGS, WORDS
from agentmem.bench.conversation import Conversation, contains
from agentmem.bench.generator import generate
from agentmem.bench.phrases import GRAMMAR
from agentmem.bench.scoring import (
    check_difficulty,
    exact,
    window_share,
)
from agentmem.bench.small_talk import PHRASES
from agentmem.errors import InvalidInput

STOP_WORDS = frozenset(
    "a about after am an and any are as at be been before but by can could did do does for from "
    "get had has have he her him his how i if in into is it its just me my no not of off on or our "
    "please she should so than that the their them then there these they this those to under up "
    "used was we were what when where which who whom whose why will with would you your".split()
)

_STEMMER = Stemmer.Stemmer("english")


def content_stems(text: str) -> set[str]:
    """Stems of the words that carry meaning."""
    words = re.findall(r"[^\W_]+", text.casefold())
    return set(_STEMMER.stemWords([w for w in words if w not in STOP_WORDS and w != "s"]))


def count_tokens(text: str) -> int:
    """About what a tokenizer counts, a header of five included."""
    return len(re.findall(r"\w{1,6}|[^\w\s]", text)) + 5


@cache
def conversation(seed: int) -> Conversation:
    return generate(seed, count_tokens=count_tokens)


def size(conversation: Conversation) -> int:
    return sum(count_tokens(t.user) + count_tokens(t.reply or "") for t in conversation.turns)


seeds = pytest.mark.parametrize("seed", [0, 1, 2])


@seeds
def test_conversation_has_the_turns_facts_and_tokens_asked_for(seed: int) -> None:
    made = conversation(seed)
    assert len(made.turns) == 300
    assert len(made.questions) == 40
    assert len(made.facts) == 160
    assert size(made) == pytest.approx(12_000, rel=0.05)
    assert made.meta["tokens"] == size(made)
    assert all(turn.reply for turn in made.turns)


def test_same_seed_gives_the_same_conversation_and_another_another() -> None:
    assert generate(1, count_tokens=count_tokens) == conversation(1)
    assert conversation(0).turns != conversation(1).turns


def test_updates_and_instructions_change_nothing_else() -> None:
    plain = conversation(0)
    made = generate(0, count_tokens=count_tokens, updates=20, instructions=6)
    assert made.questions == plain.questions
    assert [(f.id, f.turn, f.value, f.former) for f in made.facts] == [
        (f.id, f.turn, f.value, f.former) for f in plain.facts
    ]
    restated = {f.id for f, g in zip(made.facts, plain.facts, strict=True) if f != g}
    assert len({one.removesuffix("-former") for one in restated}) == 20
    older = [made.replaced(question) for question in made.questions]
    as_true = [fact for fact in older if fact and "used to" not in fact.statement]
    assert len(as_true) == 20 and all(fact.former for fact in as_true)
    for fact in as_true:
        assert "used to" not in (made.turns[fact.turn - 1].reply or "")


def test_instructions_are_said_once_in_the_first_half() -> None:
    made = generate(3, count_tokens=count_tokens, instructions=8)
    assert len({one.text for one in made.instructions}) == 8
    for one in made.instructions:
        assert one.turn <= 200 and made.turns[one.turn - 1].user == one.text
    with pytest.raises(InvalidInput, match="`instructions` must lie in 0..10 for 300 .*got 11"):
        generate(3, count_tokens=count_tokens, instructions=11)
    with pytest.raises(InvalidInput, match="`updates` must lie in 0..40, the facts: got 41"):
        generate(3, count_tokens=count_tokens, updates=41)


def test_topics_return_five_hundred_turns_after_they_were_stated() -> None:
    made = generate(1, count_tokens=count_tokens, turns=700, facts=60, returning=12)
    asked = {one.turn: one for one in made.questions if one.turn is not None}
    assert len(asked) == 12 and len(made.last_questions) == 48
    for turn, question in asked.items():
        assert turn - made.fact(question.fact).turn >= 500
        assert (made.turns[turn - 1].user, made.turns[turn - 1].kind) == (question.text, "question")
        assert made.turns[turn - 1].reply is None
    others = generate(1, count_tokens=count_tokens, turns=700, facts=60)
    assert made.facts == others.facts
    with pytest.raises(InvalidInput, match="`returning` must lie in 0..0, the facts .* got 1"):
        generate(1, count_tokens=count_tokens, returning=1)


@seeds
def test_every_value_is_said_in_one_turn_only(seed: int) -> None:
    made = conversation(seed)
    said = [f"{turn.user}\n{turn.reply}" for turn in made.turns]
    said += [question.text for question in made.questions]
    for fact in made.facts:
        assert sum(contains(text, fact.value) for text in said) == 1, fact


@seeds
def test_every_fact_has_three_near_misses_in_other_turns(seed: int) -> None:
    made = conversation(seed)
    for question in made.questions:
        fact = made.fact(question.fact)
        near = [made.fact(fact_id) for fact_id in question.distractors]
        assert len({fact.turn, *(other.turn for other in near)}) == 4
        assert {other.attribute for other in near} == {fact.attribute}
        (former,) = (other for other in near if other.former)
        assert former.owner == fact.owner
        assert former.turn < fact.turn
        owners = {other.owner for other in near if not other.former}
        assert len(owners) == 2
        assert fact.owner not in owners


@seeds
def test_a_quarter_of_the_questions_shares_no_content_word_with_the_statement(seed: int) -> None:
    made = conversation(seed)
    hard = [question for question in made.questions if question.paraphrase]
    assert len(hard) == 10
    for question in hard:
        statement = made.fact(question.fact).statement
        assert content_stems(question.text).isdisjoint(content_stems(statement)), question


def test_no_paraphrase_in_the_tables_shares_a_word_with_its_statement() -> None:
    for attribute in ATTRIBUTES:
        verb = WORDINGS[attribute.kind].verb
        stated = " ".join(STATEMENTS).format(
            Whose="", whose="", noun=attribute.noun, verb=verb, value=""
        )
        shared = content_stems(attribute.paraphrase.format(whose="")) & content_stems(stated)
        assert not shared, attribute
    for owner in OWNERS:
        assert not content_stems(owner.possessive) & content_stems(owner.paraphrase), owner


def test_content_words_are_compared_by_their_stems() -> None:
    assert content_stems("My sister's spaniels are called Biscuit.") == content_stems(
        "the sisters' spaniel calls biscuits"
    )


def test_no_value_is_in_the_vocabulary_of_small_talk_or_in_two_lists() -> None:
    values = Counter(word for words in WORDS.values() for word in words)
    assert [word for word, times in values.items() if times > 1] == []
    assert [word for word in values if contains(GRAMMAR, word)] == []


def test_small_talk_seldom_repeats_a_sentence() -> None:
    said = Counter(
        sentence
        for turn in conversation(0).turns
        if turn.kind == "small_talk"
        for text in (turn.user, turn.reply or "")
        for sentence in re.split(r"(?<=[.!?]) ", text)
    )
    assert len(said) > 0.9 * said.total()


def test_small_talk_has_many_shapes_and_no_unfilled_names() -> None:
    texts = [t.user for t in conversation(0).turns if t.kind == "small_talk"]
    assert len({" ".join(text.split()[:2]) for text in texts}) > 50
    assert sum("?" in text for text in texts) > 20
    assert not any("{" in text or "|" in text for text in texts)
    assert len(PHRASES) == GRAMMAR.count(":\n")


@seeds
def test_a_statement_is_answered_with_the_fact_in_the_second_person(seed: int) -> None:
    made = conversation(seed)
    for fact in made.facts:
        reply = made.turns[fact.turn - 1].reply
        assert reply is not None and contains(reply, fact.value)
        assert "your" in reply if fact.owner.startswith("my") else fact.owner in reply


@pytest.mark.parametrize("seed", range(12))
def test_plain_window_knows_little(seed: int) -> None:
    made = generate(seed, count_tokens=count_tokens, turns=72, facts=10)
    assert window_share(made, 512, count_tokens) <= 0.30


def test_window_share_counts_facts_in_the_last_tokens() -> None:
    made = conversation(0)
    last = max(made.fact(question.fact).turn for question in made.questions)
    tail = sum(count_tokens(t.user) + count_tokens(t.reply or "") for t in made.turns[last - 1 :])
    assert window_share(made, tail, count_tokens) == 1 / 40
    assert window_share(made, tail - 1, count_tokens) == 0
    assert window_share(made, 10**6, count_tokens) == 1


def test_conversation_too_easy_for_the_budget_is_refused() -> None:
    with pytest.raises(InvalidInput, match="so a plain window finds them"):
        check_difficulty(conversation(0), 8192, count_tokens)


def test_conversation_without_questions_is_refused() -> None:
    made = conversation(0)
    with pytest.raises(InvalidInput, match="no questions"):
        check_difficulty(Conversation(made.turns), 1024, count_tokens)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"turns": 100, "facts": 26}, "`facts` must lie in 1..25 for 100 turns"),
        ({"facts": 0}, "`facts` must lie in 1..75"),
        ({"turns": 40, "facts": 5, "tokens": 100}, "`tokens` must lie within 5% of .*got 100"),
        ({"turns": 4000, "facts": 1000}, "`facts` must be at most 80 .*got 1000"),
    ],
)
def test_what_cannot_be_made_is_refused(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        generate(0, count_tokens=count_tokens, **arguments)


def test_more_facts_than_attributes_are_about_other_owners() -> None:
    made = generate(0, count_tokens=count_tokens, turns=300, facts=70)
    subjects = Counter((fact.owner, fact.attribute, fact.former) for fact in made.facts)
    assert max(subjects.values()) == 1


def test_exact_wants_the_value_in_the_reply() -> None:
    assert exact("July 9th", "It is on july 9th.")
    assert not exact("July 9th", "It is on July 19th.")
    assert not exact("1234", "12345")
