"""Sentences are the same for all who look at texts."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmem.summary import _whole_sentences
from agentmem.wording.asking import need_of, only_asks
from agentmem.wording.clauses import sentences
from agentmem.wording.sentences import is_ended, sentences_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Is version 2.0 faster?", ["Is version 2.0 faster?"]),
        ("Could Dr. Smith come at 3.30?", ["Could Dr. Smith come at 3.30?"]),
        ("Mrs. J. R. Lee, e.g. No. 5.", ["Mrs. J. R. Lee, e.g. No. 5."]),
        ("No. I do not. See a.py?x=1!y", ["No.", "I do not.", "See a.py?x=1!y"]),
        ("He said “Go.” Then (at last.) we left", ["He said “Go.”", "Then (at last.)", "we left"]),
        ("Wait… What?! Yes", ["Wait…", "What?!", "Yes"]),
        ("我的名字是李雷。“真的？”是的", ["我的名字是李雷。", "“真的？”", "是的"]),
        ("ما هو؟ هذا", ["ما هو؟", "هذا"]),
        ("one line\n\nanother", ["one line", "another"]),
        (" \n ", []),
    ],
)
def test_a_text_has_the_same_sentences_for_everybody(text: str, expected: list[str]) -> None:
    assert sentences_of(text) == expected == list(sentences(text))


@given(st.text(alphabet='aA1.?!…。？"”) \n', max_size=40))
def test_sentences_lose_nothing_but_white_space(text: str) -> None:
    assert "".join("".join(sentences_of(text)).split()) == "".join(text.split())


@pytest.mark.parametrize(
    "text", ["." * 10**5 + "x", "。" * 10**5, ".”" * 10**5 + "x", "A. " * 10**4]
)
def test_a_long_text_is_read_once(text: str) -> None:
    started = time.process_time()
    sentences_of(text)
    assert time.process_time() - started < 3


def test_a_number_or_a_title_ends_no_question() -> None:
    for text in (
        "Is version 2.0 faster?",
        "Could Dr. Smith come at 3.30?",
        "Can you meet Mr. Lee?",
    ):
        assert only_asks(text)
    assert need_of("It is 2.5 km from my house. Is fish difficult to cook?") == "open"


def test_an_unfinished_sentence_is_left_off_and_a_number_ends_none() -> None:
    assert is_ended("It is done.") and not is_ended("It was Dr.") and not is_ended("It is 2.0 or")
    assert _whole_sentences("She moved. It runs version 2.0 of the") == "She moved."
    assert _whole_sentences("It runs version 2.0 of the") == "It runs version 2.0 of the"
    assert _whole_sentences("She moved. He stayed.") == "She moved. He stayed."
