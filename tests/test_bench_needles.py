"""Contexts with needles: a pure function of seed and text, and what the texts are."""

from __future__ import annotations

import re
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmem.bench.needles import (
    ANIMALS,
    BLOCK_TOKENS,
    CHAT_TOKENS,
    FRESH_TOKENS,
    LAYOUTS,
    NAMES,
    NEWEST_TOKENS,
    NUM_SINKS,
    ContextMaker,
    NeedleContext,
    draw_needles,
    num_needles,
)
from agentmem.bench.texts import DOMAINS, domain_text
from agentmem.errors import InvalidInput
from agentmem.models import calibration_text
from agentmem.models.calibration_phrases import LANGUAGES, TALK


class PieceTokenizer:
    """Words with the space before them, and single digits, as the small models' tokenizers do."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def encode(self, text: str) -> list[int]:
        pieces = re.findall(r" ?[^\W\d]+|\d|\s|[^\w\s]", text)
        return [self.ids.setdefault(piece, len(self.ids)) for piece in pieces]

    def decode(self, ids: list[int]) -> str:
        names = list(self.ids)
        return "".join(names[token] for token in ids)


START = 100_000
"""A token that begins every context and is no piece."""
TEXT = range(200_000, 206_000)
"""Tokens of a text, each another, so that its order can be told."""


def maker(layout: str, num_tokens: int = 1024, start: tuple[int, ...] = ()) -> ContextMaker:
    tokenizer = PieceTokenizer()
    return ContextMaker(TEXT, start, tokenizer.encode, tokenizer.decode, layout, num_tokens)


def is_text(token: int) -> bool:
    return token in TEXT


SETTINGS = settings(max_examples=25, deadline=None)


@SETTINGS
@given(
    seed=st.integers(0, 10_000),
    layout=st.sampled_from(LAYOUTS),
    num_tokens=st.sampled_from((600, 1024, 2048, 4096)),
)
def test_a_context_is_the_text_in_order_with_every_needle_in_its_body(
    seed: int, layout: str, num_tokens: int
) -> None:
    made = maker(layout, num_tokens)
    context = made.make(seed)
    assert len(context.token_ids) == num_tokens
    assert len(context.sinks) == NUM_SINKS and len(context.newest) == NEWEST_TOKENS
    assert len(context.fresh) == FRESH_TOKENS
    text = [token for token in (*context.token_ids, *context.fresh) if is_text(token)]
    assert text == list(range(text[0], text[0] + len(text)))
    assert all(map(is_text, (*context.sinks, *context.newest)))
    body = list(chain.from_iterable(context.body))
    for question in context.questions:
        stated = [*question.prompt, *question.answer]
        places = [i for i in range(len(body)) if body[i : i + len(stated)] == stated]
        assert len(places) == 1


@SETTINGS
@given(seed=st.integers(0, 10_000), num_tokens=st.integers(900, 3000))
def test_chat_is_cut_into_short_segments_and_a_needle_is_one_of_them(
    seed: int, num_tokens: int
) -> None:
    context = maker("chat", num_tokens).make(seed)
    shortest, longest = CHAT_TOKENS
    assert all(shortest <= len(segment) <= longest for segment in context.body)
    kinds = [{is_text(token) for token in segment} for segment in context.body]
    assert all(len(kind) == 1 for kind in kinds)
    assert kinds.count({False}) == len(context.questions)


def test_sixty_segments_make_two_thousand_tokens_of_chat() -> None:
    counts = [len(maker("chat", 2048).make(seed).body) for seed in range(20)]
    assert 55 <= sum(counts) / len(counts) <= 75


def test_a_document_is_cut_into_blocks_whose_last_may_be_short() -> None:
    lengths = [len(block) for block in maker("document", 2048).make(3).body]
    assert lengths == [BLOCK_TOKENS, BLOCK_TOKENS, BLOCK_TOKENS, 2048 - 68 - 3 * BLOCK_TOKENS]


def test_the_same_seed_gives_the_same_context_and_another_seed_another() -> None:
    def contexts(seed: int) -> list[NeedleContext]:
        return [maker(layout).make(seed) for layout in LAYOUTS]

    assert contexts(5) == contexts(5)
    assert contexts(5) != contexts(6)


def test_a_context_begins_with_the_token_the_model_expects_there() -> None:
    context = maker("chat", start=(START,)).make(0)
    assert context.sinks[0] == START and all(map(is_text, context.sinks[1:]))
    assert len(context.token_ids) == 1024


def test_only_digits_count_in_a_number_and_everything_in_a_word() -> None:
    for question in maker("document").make(1).questions:
        if question.kind == "digits":
            assert question.counted == (False, True, True, True, True, True)
        else:
            assert question.counted == (True,)


def test_needles_differ_in_name_and_value() -> None:
    import random

    needles = draw_needles(random.Random(0), 30, 10)
    assert [needle.kind for needle in needles].count("digits") == 30
    assert len({needle.question for needle in needles}) == 40
    assert len({needle.value for needle in needles}) == 40
    assert all(needle.statement == f"{needle.question} {needle.value}." for needle in needles)
    assert len(set(NAMES)) == len(NAMES) and len(set(ANIMALS)) == len(ANIMALS)


def test_longer_contexts_hold_more_needles_and_as_many_as_there_are_names() -> None:
    assert [num_needles(n) for n in (512, 1024, 4096)] == [(8, 2), (12, 4), (24, 8)]
    assert sum(num_needles(1 << 20)) <= len(NAMES)


def test_what_cannot_be_made_is_refused_with_the_number() -> None:
    import random

    with pytest.raises(InvalidInput, match=r"at most 48 needles: got 40 \+ 9"):
        draw_needles(random.Random(0), 40, 9)
    with pytest.raises(InvalidInput, match="use longer contexts than 256"):
        maker("chat", 256).make(0)
    with pytest.raises(InvalidInput, match="must hold 6064 tokens: got 6000"):
        maker("chat", 6000)
    with pytest.raises(InvalidInput, match="No layout 'book'"):
        maker("book")


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_domain_has_text_enough_that_says_nothing_needles_ask(domain: str) -> None:
    text = domain_text(domain)
    assert len(text) > 100_000
    assert text == domain_text(domain)
    for asked in ("secret pass code", "on the flag of"):
        assert asked not in text


def test_no_domain_is_what_models_are_calibrated_on() -> None:
    read = [calibration_text._prose(), calibration_text._code(), TALK, *LANGUAGES]
    known = {line.strip() for text in read for line in text.splitlines()}
    long = {line for line in known if len(line) > 50}
    for domain in DOMAINS:
        shared = [line for line in domain_text(domain).splitlines() if line.strip() in long]
        assert len(shared) <= 5, (domain, shared)


def test_prose_says_no_paragraph_twice_and_chinese_is_chinese() -> None:
    paragraphs = domain_text("prose").split("\n\n")
    assert len({" ".join(p.split()) for p in paragraphs}) == len(paragraphs)
    chinese = domain_text("chinese")
    assert sum("\u4e00" <= character <= "\u9fff" for character in chinese) > 0.8 * len(chinese)


def test_an_unknown_domain_is_refused() -> None:
    with pytest.raises(InvalidInput, match="'poems'.*prose, code, chat, chinese"):
        domain_text("poems")
