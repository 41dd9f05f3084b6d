"""Asking: what a message wants of memory decides how near something must be to come back."""

import pytest

from agentmem.wording.asking import Need, need_of, only_asks


@pytest.mark.parametrize(
    ("text", "need"),
    [
        ("What is my locker code?", "own"),
        ("remind me where I parked", "own"),
        ("At what time does Anna arrive?", "own"),
        ("Which number silences Noemi's burglar siren?", "own"),
        ("Nice weather. What was our flight number again?", "own"),
        ("Wie lautet der Code von meinem Schließfach?", "own"),
        ("我的储物柜密码是什么", "own"),
        ("ما هو رمز خزانتي؟", "own"),
        ("Is fish stew difficult to make?", "open"),
        ("How would you say no without offending? I blame my toaster.", "open"),
        ("My locker code is 58291.", "none"),
        ("I walked to the market with Anna.", "none"),
        ("Thanks!", "none"),
        ("", "none"),
    ],
)
def test_need_is_read_from_the_sentences_that_ask(text: str, need: Need) -> None:
    assert need_of(text) == need


@pytest.mark.parametrize(
    ("text", "only"),
    [
        ("What is my locker code?", True),
        ("Remind me. What was it?", True),
        ("It is 58291. Why?", False),
        ("My locker code is 58291.", False),
        ("When does Anna arrive", True),
        ("where's my parking bay", True),
        ("how much do we pay the cleaner", True),
        ("When a pipe leaks, my neighbour calls Derek.", False),
        ("Where I grew up, everybody cycled.", False),
        ("What I drive is a Panda.", False),
        ("How we heat: with pellets.", False),
        ("", False),
    ],
)
def test_a_text_that_only_asks_tells_nothing(text: str, only: bool) -> None:
    assert only_asks(text) == only
