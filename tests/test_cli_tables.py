"""Tables on narrow terminals: what matters stays whole, whatever the width."""

from __future__ import annotations

import io
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from agentmem import Decision, DecisionRow, Fact, Hit, Message, Segment, Source
from agentmem.cli import records, render, tables
from tests.cli_run import SCRIPTED, run_cli

BEGAN = time.mktime((2026, 5, 4, 9, 30, 11, 0, 0, -1))
ENDED = time.mktime((2027, 11, 12, 18, 45, 59, 0, 0, -1))
SAID = (
    ("locker code", "58291", "My locker code is 58291."),
    ("dentist", "Dr. Amelia Featherstonehaugh", "My sister's dentist is Dr. Amelia "
     "Featherstonehaugh in the old town of Salzburg, next to the swimming hall, second floor."),
    ("allergy", None, "My daughter is allergic to walnuts, hazelnuts, peanuts and sesame."),
    ("cat", "咪咪", "我的猫叫咪咪。"),
)  # fmt: skip


def screen(renderable: object, width: int) -> list[str]:
    """The lines that a terminal of this width would show."""
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(renderable)
    output = console.file
    assert isinstance(output, io.StringIO)
    return [line.rstrip() for line in output.getvalue().splitlines()]


def made_facts() -> list[Fact]:
    """Ten facts, every second one of which holds no longer."""
    facts = []
    for number in range(10):
        subject, value, text = SAID[number % len(SAID)]
        source = Source(subject, value, text, 1200 + number, "patterns", turn=40 + number)
        facts.append(Fact(number + 1, number + 1, (source,), BEGAN, ENDED if number % 2 else None))
    return facts


def words_of(lines: list[str]) -> list[str]:
    return " ".join(lines).split()


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_facts_show_value_statement_and_interval_whole(width: int) -> None:
    facts = made_facts()
    lines = screen(tables.FactsTable(facts), width)
    shown = "\n".join(lines)
    assert "…" not in shown
    assert shown.count("since 2026-05-04 09:30:11") == 10
    assert shown.count("until 2027-11-12 18:45:59") == 5
    words = words_of(lines)
    for fact in facts:
        said = f"{fact.value or ''} {fact.statement} {fact.segment_ids[0]}".split()
        assert set(said) <= set(words), fact


@pytest.mark.parametrize("width", [60, 80])
def test_a_narrow_table_of_facts_reads_from_top_to_bottom(width: int) -> None:
    lines = screen(tables.FactsTable(made_facts()[3:5]), width)
    assert lines == [
        "segments  held                       value and statement",
        "1203      since 2026-05-04 09:30:11  咪咪",
        "          until 2027-11-12 18:45:59  我的猫叫咪咪。",
        "1204      since 2026-05-04 09:30:11  58291",
        *(["                                     My locker code is 58291."] if width == 80 else
          ["                                     My locker code is", " " * 37 + "58291."]),
    ]  # fmt: skip


def test_a_wide_table_has_a_fact_a_line() -> None:
    header, first, *_ = screen(tables.FactsTable(made_facts()[:1]), 200)
    assert header.split() == ["id", "turn", "held", "segments", "value", "statement"]
    assert re.split(r"\s{2,}", first.strip()) == [
        "1", "40", "since 2026-05-04 09:30:11", "1200", "58291", "My locker code is 58291.",
    ]  # fmt: skip


def test_what_only_used_to_be_has_no_beginning() -> None:
    fact = replace(made_facts()[1], valid_from=None)
    shown = "\n".join(screen(tables.FactsTable([fact]), 80))
    assert "since" not in shown and "until 2027-11-12 18:45:59" in shown


@pytest.mark.parametrize("width", [60, 80])
def test_ids_stay_whole_and_long_cells_wrap(width: int) -> None:
    ids = tuple(range(1200, 1220))
    decision = Decision("summarize", ids, "controller", reason="it is large and old " * 2)
    lines = screen(tables.decisions_table([DecisionRow(1234, 1, 987, decision)]), width)
    assert not [line for line in lines if "…" in line or len(line) > width]
    assert {"1234", "987", "summarize", "controller", *map(str, ids)} <= set(words_of(lines))


@pytest.mark.parametrize("width", [60, 80])
def test_a_long_word_goes_on_in_the_next_line(width: int) -> None:
    link = "https://example.org/" + "a" * 90
    lines = screen(tables.table("id", "state", "text", rows=[(7, "archived", link)]), width)
    assert "".join(line[14:] for line in lines[1:]) == link


def test_hostile_text_in_a_fact_is_escaped() -> None:
    fact = made_facts()[0]
    source = replace(fact.sources[0], value="5\x1b[2J8", text="My code is 5\x1b[2J8.")
    for width in (80, 200):
        shown = "\n".join(screen(tables.FactsTable([replace(fact, sources=(source,))]), width))
        assert "\x1b" not in shown and r"My code is 5\x1b[2J8." in shown


def test_a_pipe_has_room_unless_columns_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", io.StringIO())
    monkeypatch.delenv("COLUMNS", raising=False)
    assert render.table_console().width == 200
    monkeypatch.setenv("COLUMNS", "60")
    assert render.table_console().width == 60
    for nonsense in ("", "0", "wide"):
        monkeypatch.setenv("COLUMNS", nonsense)
        assert render.table_console().width == 200


def test_a_long_path_is_shown_whole() -> None:
    path = "/home/somebody/" + "x" * 100 + "/me.db"
    lines = screen(render.facts({"store": path}), 60)
    assert "".join(line[7:] for line in lines) == path


def test_a_fact_that_changed_is_whole_on_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in SCRIPTED.items():
        monkeypatch.setenv(name, value)
    run_cli("chat", stdin="My locker code is 58291.\nMy locker code is 77310 now.\n")
    newer, older = run_cli("facts", "--json").of_type("fact")
    lines = run_cli("facts", columns=60).stdout.splitlines()
    assert max(map(len, lines)) <= 60
    shown = "\n".join(lines)
    assert f"since {render.when(newer['valid_from'])}" in shown
    assert f"until {render.when(older['valid_to'])}" in shown
    assert {"58291", "77310", "58291."} <= set(words_of(lines))
    for words in (["show"], ["search", "locker"], ["decisions"], ["sessions", "list"]):
        ran = run_cli(*words, columns=60)
        assert ran.code == 0 and max(map(len, ran.stdout.splitlines())) <= 60


def test_an_older_hit_tells_what_was_told_later_and_when() -> None:
    segment = Segment((Message("user", "I drive a Panda."),), id=3, created=BEGAN)
    older = Hit(segment, 1.0, "archived", 1, {}, instead=7, until=ENDED)
    shown = " ".join(" ".join(screen(tables.hits_table([older]), 200)).split())
    assert f"probably until {render.when(ENDED)}, then segment 7" in shown
    told = records.hit_json(older)
    assert (told["instead"], told["until"]) == (7, ENDED)
