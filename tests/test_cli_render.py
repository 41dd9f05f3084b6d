"""What a terminal is shown: hostile text escaped, tables and bars exact."""

from __future__ import annotations

import io
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from agentmem.cli import render, tables
from agentmem.events import Decided, Recalled, RecalledSegment, Usage

STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def screen(renderable: object, width: int = 80) -> str:
    """What a terminal of this width would show, without its control codes."""
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(renderable)
    output = console.file
    assert isinstance(output, io.StringIO)
    return "\n".join(line.rstrip() for line in output.getvalue().splitlines())


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]52;c;aGk=\x07", r"\x1b]52;c;aGk=\x07"),
        ("\x1b[2J\x1b[H", r"\x1b[2J\x1b[H"),
        ("\x9b31m", r"\x9b31m"),
        ("a\rb", r"a\x0db"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\u2066x\u2069", r"\u2066x\u2069"),
        ("two\nlines\tand tab", "two\nlines\tand tab"),
        ("你好 مرحبا é 🎉", "你好 مرحبا é 🎉"),
    ],
)
def test_what_could_steer_a_terminal_is_shown_escaped(text: str, shown: str) -> None:
    assert render.safe(text) == shown


@given(st.text())
@settings(deadline=None, max_examples=200)
def test_no_text_steers_a_terminal(text: str) -> None:
    assert not STEERING.search(render.safe(text))
    assert not STEERING.search(render.preview(text, 20)) and len(render.preview(text, 20)) <= 20


def test_markup_in_memory_is_text() -> None:
    assert screen(tables.table("id", "text", rows=[(1, "[red]x[/red] :smile:")])) == (
        "id  text\n 1  [red]x[/red] :smile:"
    )


def test_an_odd_bracket_is_no_error() -> None:
    assert "[/]" in screen(tables.table("id", "text", rows=[(1, "[/] [bold")]))


@given(st.text())
@settings(deadline=None, max_examples=100)
def test_json_is_one_line_of_the_same_text(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        raw = io.BytesIO()
        stdout = io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", newline="")
        patch.setattr("sys.stdout", stdout)
        render.write_json({"type": "x", "text": text})
    line = raw.getvalue().decode()
    assert line.count("\n") == 1 and line.endswith("\n")
    assert not STEERING.search(line)
    assert json.loads(line) == {"type": "x", "text": text}


def test_a_lone_surrogate_is_an_escape_in_json(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, "utf-8", errors="backslashreplace"))
    render.write_json({"text": "\ud83d"})
    assert json.loads(raw.getvalue()) == {"text": "\ud83d"}


def test_the_context_bar_shows_every_part_and_sums_to_the_budget() -> None:
    parts = [("system", 100), ("pinned", 0), ("recalled", 50), ("turns", 250), ("free", 400)]
    assert screen(render.context_bar(parts, width=16)) == (
        "████████········ 400/800 tokens\nsystem 100  pinned 0  recalled 50  turns 250  free 400"
    )


@given(st.lists(st.integers(0, 5000), min_size=6, max_size=6), st.integers(1, 200))
@settings(deadline=None)
def test_the_context_bar_is_as_wide_as_asked(tokens: list[int], width: int) -> None:
    names = ("system", "pinned", "recalled", "summaries", "turns", "free")
    bar = render.context_bar(list(zip(names, tokens, strict=True)), width).plain
    cells = len(bar.split(" ")[0])
    assert cells == (width if sum(tokens) else 0)


def test_the_status_line_has_tokens_bytes_and_states() -> None:
    usage = Usage(
        prompt_tokens=903,
        completion_tokens=41,
        budget=1024,
        kv_bytes=812_032,
        kv_bytes_dense=9_437_184,
        segments={"live": 9, "compressed": 4, "parked": 20, "archived": 0},
    )
    assert render.status_line(usage) == (
        "944/1024 tokens · KV 812.0 kB (dense 9.4 MB) · live 9 · compressed 4 · parked 20"
    )


def test_the_status_line_says_what_the_device_had_no_room_for() -> None:
    usage = Usage(budget=1024, kv_bytes=812_032, kv_bytes_host=300_000, kv_bytes_dense=9_437_184)
    assert "KV 812.0 kB (300.0 kB in host memory, dense 9.4 MB)" in render.status_line(usage)


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (12_345_678, "12.3 MB"), (5e9, "5.0 GB")],
)
def test_bytes_are_readable(number: int, shown: str) -> None:
    assert render.nbytes(number) == shown


def test_events_are_one_line_each() -> None:
    recalled = Recalled(12, "locker", (RecalledSegment(3, 0.714, "parked", "kv", 20),))
    assert render.event_text(recalled) == "recalled 3 (0.71, parked, kv)"
    dropped = Decided(
        7, 12, "drop", (31,), "policy", "it scores 0.1\x1b[2J", tokens_before=811, tokens_after=760
    )
    assert render.event_text(dropped) == (
        r"drop 31 (decision 7, policy, 811 -> 760 tokens): it scores 0.1\x1b[2J"
    )
    refused = Decided(0, 12, "drop", (5,), "controller", "Segment 5 is pinned.", valid=False)
    assert render.event_text(refused).startswith("refused: drop 5")
