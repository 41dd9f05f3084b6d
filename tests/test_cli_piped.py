"""Lines of a pipe as turns: what is a turn, what is not, and what a stream may hold."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmem.cli import piped
from agentmem.cli.piped import Turn, parse_line, read_lines
from agentmem.errors import InvalidInput
from tests.cli_run import SCRIPTED, run_cli


@pytest.mark.parametrize(
    ("line", "turn"),
    [
        ("hello", Turn("hello")),
        ('{"turn": 7, "text": "hi"}', Turn("hi", 7)),
        ('{"text": "hi", "turn": "a-1"}', Turn("hi", "a-1")),
        ('  { "turn" : 7, "text" : "hi" }  ', Turn("hi", 7)),
        ('{"text": "no name"}', Turn("no name")),
        ('{"text": "\\ud83d\\ude00"}', Turn("😀")),
        # Text that happens to be JSON, or to look like a command, is text.
        ('{"colour": "red"}', Turn('{"colour": "red"}')),
        ("{not json", Turn("{not json")),
        ("[1, 2]", Turn("[1, 2]")),
        ("/quit", Turn("/quit")),
    ],
)
def test_a_line_is_a_turn(line: str, turn: Turn) -> None:
    assert parse_line(line) == turn


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"turn": 7, "text": "hi"', "Malformed turn"),
        ('{"turn": 7}', "`text` must be a string: got None"),
        ('{"turn": 7, "text": 3}', "`text` must be a string: got 3"),
        ('{"turn": 1.5, "text": "hi"}', "`turn` must be a number or a string: got 1.5"),
        ('{"turn": true, "text": "hi"}', "`turn` must be a number or a string: got True"),
        ('{"turn": [1], "text": "hi"}', "`turn` must be"),
        ('{"turn": 1, "text": "hi", "txet": 1}', "Unknown key 'txet'"),
        ('{"turn": ' + "[" * 100_000, "Malformed turn"),
        ('{"turn": ' + "9" * 5000 + ', "text": "hi"}', "Malformed turn"),
        ('{"text": "hi"} trailing', "Malformed turn"),
    ],
)
def test_a_malformed_turn_is_a_typed_error_that_shows_what_is_right(line: str, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_line(line)
    assert words in str(caught.value)
    assert '{"turn": ID, "text": "..."}' in str(caught.value)


@pytest.mark.parametrize(
    ("line", "key"),
    [('{"turn": "b"}', "b"), ('{"turn": 7, "text": 1}', 7), ('{"turn": [1]}', None),
     ('{"turn": true}', None), ('{"turn": 7', None), ('{"text": 1}', None)],
)  # fmt: skip
def test_the_fault_of_a_turn_names_it_where_it_can_be_read(
    line: str, key: int | str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SCRIPTED.items():
        monkeypatch.setenv(name, value)
    (error,) = run_cli("chat", "--json", stdin=line + "\n").of_type("error")
    assert error.get("turn") == key and error["code"] == "InvalidInput"


@given(st.text(alphabet=st.characters(exclude_characters="\n")))
@settings(deadline=None)
def test_any_line_is_a_turn_or_a_typed_error(line: str) -> None:
    try:
        assert parse_line(line).text or not line
    except InvalidInput:
        pass


def test_lines_lose_their_ends_and_only_those() -> None:
    stream = io.BytesIO(b"one\ntwo\r\n  three \n\nlast")
    assert list(read_lines(stream)) == ["one", "two", "  three ", "", "last"]


def test_bytes_that_are_no_utf8_are_replaced() -> None:
    assert list(read_lines(io.BytesIO(b"caf\xe9\n\xff\xfe\n"))) == ["caf\ufffd", "\ufffd\ufffd"]


def test_a_line_of_a_megabyte_comes_whole() -> None:
    line = "word " * 200_000
    assert list(read_lines(io.BytesIO(line.encode() + b"\nnext\n"))) == [line, "next"]


def test_a_line_too_long_is_skipped_whole_and_the_next_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(piped, "MAX_LINE_BYTES", 8)
    stream = io.BytesIO(b"x" * 100 + b"\nshort\n" + b"y" * 20)
    assert list(read_lines(stream)) == [None, "short", None]


def test_a_line_of_exactly_the_limit_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(piped, "MAX_LINE_BYTES", 8)
    assert list(read_lines(io.BytesIO(b"1234567\nx\n"))) == ["1234567", "x"]
