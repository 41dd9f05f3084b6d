"""The recall benchmark end to end without a model, and the report it writes."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import cast

import pytest

from agentmem import Agent, Hit, Message, Segment, Usage
from agentmem.bench.conversation import Conversation, Fact, Question, Turn, load, save
from agentmem.bench.growth import Growth, Meter, Stretch
from agentmem.bench.play import _search
from agentmem.bench.recall import (
    SYSTEMS,
    RecallOptions,
    RecallRow,
    draw,
    kv_against_text,
    prepare,
    render,
    render_growth,
    run_recall,
)
from agentmem.bench.recall_row import pooled
from agentmem.bench.report import Report, bar_chart, machine, table, versions
from agentmem.errors import InvalidInput

QUICK = RecallOptions.quick(model="scripted", controller="policy")


@pytest.fixture
def by_name(embedded_models: Path, tmp_path: Path) -> dict[str, RecallRow]:
    """A row of every system, over one conversation; the files lie in `tmp_path`."""
    options = replace(QUICK, out=tmp_path / "r.json", write_script=tmp_path / "c.jsonl")
    return {f"{row.system}:{row.via}": row for row in run_recall(options)}


def test_all_systems_play_one_conversation_within_the_budget(
    by_name: dict[str, RecallRow], tmp_path: Path
) -> None:
    assert set(by_name) == {
        "dense:off", "window:off", "oracle:off", "agentmem:kv", "agentmem:text"
    }  # fmt: skip
    dense, window, oracle = (by_name[f"{name}:off"] for name in ("dense", "window", "oracle"))
    agentmem = by_name["agentmem:text"]
    # Everything is in a dense window, the oracle's by hand; what is left tells the others apart.
    assert dense.in_window == 1
    assert oracle.in_window == 1
    assert window.in_window <= 0.5
    assert agentmem.in_window > window.in_window
    assert dense.peak_prompt_tokens > dense.tokens
    for row in (window, oracle, agentmem):
        assert 0 < row.peak_prompt_tokens <= 512
    assert window.small_talk_recall_share == 0
    assert 0 <= agentmem.small_talk_recall_share <= 0.25
    assert all(row.exact == 0 for row in by_name.values()), "the scripted model knows nothing"
    assert all(row.seconds_per_turn["recall"] > 0 for row in by_name.values())
    assert (agentmem.instructions_in_window or 0) >= 0.8 and dense.instructions_in_window == 1
    assert (agentmem.newest_first or 0) >= 0.9 and (agentmem.older_found or 0) >= 0.6
    assert window.newest_first is None, "nothing is searched there"

    # What was written is complete, and a second run measures nothing again.
    written = json.loads((tmp_path / "r.json").read_text())
    assert set(written) == {"bench", "command", "machine", "versions", "rows"}
    assert written["bench"] == "recall"
    assert len(written["rows"]) == 5
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
    told: list[str] = []
    again = run_recall(replace(QUICK, out=tmp_path / "r.json"), progress=told.append)
    assert again == list(by_name.values())
    assert told == [f"{name}: measured before" for name in SYSTEMS]

    # The script that was written is the conversation that was played.
    script = load(tmp_path / "c.jsonl")
    assert len(script.turns) == 72
    assert len(script.questions) == 10


def small_script(path: Path, *, code: str = "58291") -> Path:
    turns = [Turn(f"My locker code is {code}.", "Noted.", "statement")]
    turns += [Turn(f"Today I saw cloud number {n} over the hill.", "Lovely.") for n in range(40)]
    statement = turns[0].user
    save(
        Conversation(
            tuple(turns),
            (Fact("f", 1, "my", "locker code", code, statement),),
            (Question("What is my locker code?", code, "f"),),
        ),
        path,
    )
    return path


@pytest.mark.usefixtures("embedded_models")
def test_script_of_others_is_played_and_measured_again_when_it_changed(tmp_path: Path) -> None:
    script = small_script(tmp_path / "theirs.jsonl")
    options = replace(QUICK, script=script, out=tmp_path / "r.json", systems=("agentmem:text",))
    (first,) = run_recall(options)
    assert (first.turns, first.questions, first.in_window) == (41, 1, 1.0)
    assert first.in_window_paraphrase is None
    small_script(script, code="40716")
    (second,) = run_recall(options)
    assert second.conversation != first.conversation
    assert [r["conversation"] for r in json.loads((tmp_path / "r.json").read_text())["rows"]] == [
        second.conversation
    ]


@pytest.mark.usefixtures("embedded_models")
def test_a_question_within_the_conversation_is_answered_from_what_is_in_view_then(
    tmp_path: Path,
) -> None:
    turns = [Turn("My locker code is 58291.", "Noted.", "statement")]
    turns += [Turn(f"Today I saw cloud number {n} over the hill.", "Lovely.") for n in range(40)]
    turns += [Turn("What is my locker code?", kind="question"), Turn("Thank you.", "Welcome.")]
    fact = Fact("f", 1, "my", "locker code", "58291", turns[0].user)
    asked = Question("What is my locker code?", "58291", "f", turn=42)
    last = Question("Which number opens my locker?", "58291", "f")
    save(Conversation(tuple(turns), (fact,), (asked, last)), tmp_path / "c.jsonl")
    options = replace(
        QUICK, script=tmp_path / "c.jsonl", systems=("window", "oracle", "agentmem:text")
    )
    window, oracle, agentmem = run_recall(replace(options, generate=True))
    assert window.returning_in_window == 0
    assert window.missed == [asked.text, last.text] and agentmem.missed == []
    assert oracle.returning_in_window == agentmem.returning_in_window == 1
    assert (agentmem.questions, agentmem.facts) == (1, 2)
    assert [one["turn"] for one in agentmem.stretches] == [43]
    # The given replies are not in it: the model answers itself.
    assert agentmem.tokens < run_recall(replace(options, systems=("window",)))[0].tokens


def stretches(growth: float) -> list[Stretch]:
    """A conversation of 2,000 turns; its seconds and resident memory grow by this much."""
    return [
        Stretch(turn, 1 + growth * (turn > 1000), 1 + growth * (turn > 1900) / 2, 900,
                round(1e9 + growth * 1e6 * turn), 5_000_000 + 4000 * turn)
        for turn in range(50, 2001, 50)
    ]  # fmt: skip


def test_growth_compares_the_end_with_the_beginning_and_fits_a_line_to_the_store() -> None:
    flat, growing = Growth.of(stretches(0)), Growth.of(stretches(0.5))
    assert flat is not None and growing is not None
    assert (flat.seconds_ratio, flat.resident_share) == (1, 0)
    assert flat.store_bytes_a_turn == pytest.approx(4000)
    assert flat.store_off_line_share == pytest.approx(0)
    assert growing.seconds_ratio == 1.5 and growing.cpu_seconds_ratio == 1.25
    assert growing.resident_share == pytest.approx(0.9e9 / 1.1e9, rel=1e-3)
    bent = [replace(one, store_bytes=one.turn**2) for one in stretches(0)]
    assert (found := Growth.of(bent)) is not None and found.store_off_line_share > 0.2
    assert Growth.of(stretches(0)[:5]) is None


def test_a_long_conversation_has_a_second_table_and_a_second_picture(tmp_path: Path) -> None:
    long = replace(ROW, system="agentmem", turns=2000,
                   stretches=[asdict(one) for one in stretches(0.5)])  # fmt: skip
    drawn = render_growth([ROW, long])
    assert drawn is not None and drawn.row_count == 1
    assert render_growth([ROW]) is None
    assert draw([ROW, long], tmp_path / "r.png")
    assert (tmp_path / "r-growth.png").read_bytes().startswith(b"\x89PNG")
    meter = Meter()
    usage = Usage(prompt_tokens=7, peak_tokens=9)
    assert [meter.turn(n, n, n / 2, usage) for n in (49, 50, 51)] == [False, True, False]
    meter.end(51, 1, 2)
    meter.end(51, 1, 2)
    assert meter.stretches == [Stretch(51, 50, 25, 9, 1, 2)]


@pytest.mark.usefixtures("embedded_models")
def test_conversation_that_is_too_easy_is_refused(tmp_path: Path) -> None:
    options = replace(QUICK, script=small_script(tmp_path / "c.jsonl"), budget=4096)
    with pytest.raises(InvalidInput, match="100% of the answers lie in the last 4096 tokens"):
        run_recall(options)


def test_systems_are_named_in_any_order_and_agentmem_is_both_of_its_ways() -> None:
    assert RecallOptions(systems=("agentmem", "dense")).wanted == [
        "dense", "agentmem:kv", "agentmem:text"
    ]  # fmt: skip
    with pytest.raises(InvalidInput, match="No system 'mem0': use some of agentmem, agentmem:kv"):
        RecallOptions(systems=("mem0",))


def test_command_names_what_changes_a_row_and_nothing_else() -> None:
    assert RecallOptions().command == "agentmem bench recall"
    options = RecallOptions(budget=2048, max_new_tokens=8, out=Path("x"), systems=("dense",))
    assert options.command == "agentmem bench recall --budget 2048 --max-new-tokens 8"
    assert RecallOptions(generate=True).command == "agentmem bench recall --generate"


ROW = RecallRow(
    system="window", via="off", conversation="0" * 16, turns=300, facts=40, budget=1024,
    tokens=12_000, questions=2, paraphrases=10, window_share=0.1, in_window=0.125,
    in_window_paraphrase=None, exact=0.5, exact_paraphrase=None, exact_each=[True, False],
    peak_prompt_tokens=1001, kv_bytes_end=12_345_678, kv_bytes_dense_end=0,
    small_talk_recall_share=0.0, seconds_per_turn={"recall": 0.25, "decode": 0.5},
    seconds_per_question={}, missed=["What?"],
)  # fmt: skip


def test_rows_are_shown_as_a_table() -> None:
    drawn = render([ROW])
    cells = {str(column.header): list(column.cells)[0] for column in drawn.columns}
    assert cells["in_window"] == "0.125"
    assert cells["exact_paraphrase"] == "-"
    assert cells["kv_bytes_end"] == "12,345,678"
    assert cells["seconds_a_turn"] == "0.75"
    assert drawn.caption is None


def test_conversations_are_pooled_system_by_system() -> None:
    second = replace(
        ROW, conversation="1" * 16, exact=1.0, exact_each=[True, True], in_window_paraphrase=0.5,
        peak_prompt_tokens=1003, kv_bytes_end=1, seconds_per_turn={"recall": 0.75, "decode": 0.5},
    )  # fmt: skip
    alone = replace(ROW, system="oracle")
    window, oracle = pooled([ROW, alone, second])
    assert oracle is alone
    assert (window.exact, window.questions, window.peak_prompt_tokens) == (0.75, 4, 1003)
    assert window.exact_each == [True, False, True, True]
    assert window.missed == ["What?", "What?"]
    assert window.in_window_paraphrase == 0.5
    assert window.seconds_per_turn == {"recall": 0.5, "decode": 0.5}


def test_kv_is_compared_with_text_question_by_question() -> None:
    kv = replace(ROW, system="agentmem", via="kv", exact_each=[True, True, False, True])
    text = replace(ROW, system="agentmem", via="text", exact_each=[True, False, False, True])
    assert kv_against_text([kv]) is None
    difference = kv_against_text([ROW, text, kv])
    assert difference is not None
    assert difference.mean == 0.25
    assert "via kv less via text: +25.0 points" in str(render([kv, text]).caption)


def test_several_conversations_cannot_come_from_one_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="holds one conversation"):
        RecallOptions(script=tmp_path / "c.jsonl", conversations=2)
    with pytest.raises(InvalidInput, match="`conversations` must be positive: got 0"):
        RecallOptions(conversations=0)


def test_conversations_are_those_of_the_seeds_that_follow() -> None:
    options = replace(QUICK, seed=3, conversations=2, tokens=7000)
    _, second = prepare(options, len)
    assert prepare(replace(options, seed=4, conversations=1), len) == [second]


@pytest.mark.usefixtures("embedded_models")
def test_conversations_are_played_one_after_the_other_and_kept(tmp_path: Path) -> None:
    options = replace(QUICK, systems=("window",), conversations=2, out=tmp_path / "r.json")
    first, second = run_recall(options)
    assert first.conversation != second.conversation
    said: list[str] = []
    assert len(run_recall(options, progress=said.append)) == 2
    assert said == [f"conversation {n} of 2, window: measured before" for n in (1, 2)]


def test_report_is_taken_up_only_by_the_same_command_and_versions(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "r.json"
    Report("b", "run it", path, versions={"agentmem": "1"}).add({"x": 1})
    assert Report("b", "run it", path, versions={"agentmem": "1"}).resume() == [{"x": 1}]
    assert Report("b", "run that", path, versions={"agentmem": "1"}).resume() == []
    assert Report("b", "run it", path, versions={"agentmem": "2"}).resume() == []
    assert [file.name for file in path.parent.iterdir()] == ["r.json"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"bench": "b"}', "no json"])
def test_file_that_is_no_report_is_not_overwritten(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(InvalidInput, match="is no report of a benchmark"):
        Report("b", "run it", tmp_path / "r.json").resume()


def test_report_says_where_it_ran() -> None:
    assert machine()["cores"] >= 1
    assert machine()["processor"]
    assert "torch" in versions()


def test_table_of_no_rows_has_its_columns() -> None:
    assert [column.header for column in table("t", [], ["a", "b"]).columns] == ["a", "b"]


def test_without_matplotlib_there_is_no_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    assert bar_chart(tmp_path / "x.png", "t", ["a"], {"s": [0.5]}) is False
    assert not (tmp_path / "x.png").exists()


class _Search:
    """Stands in for an agent: every search finds these texts, in this order."""

    def __init__(self, *texts: str, until: float | None = None) -> None:
        segments = [Segment((Message("user", text),)) for text in texts]
        self._hits = [Hit(one, 1.0, "archived", 1, {}, until=until) for one in segments]
        self.memory = self

    def search(self, query: str, k: int) -> list[Hit]:
        return self._hits


@pytest.mark.parametrize(
    ("texts", "first"),
    [
        (("It moved from Porto to Braga.", "It is in Porto."), True),
        (("It is in Porto.", "It moved from Porto to Braga."), False),
        (("It moved from Porto to Braga.",), True),
        (("It is in Porto.",), False),
    ],
)
def test_a_newer_statement_that_names_the_older_value_is_not_the_older(
    texts: tuple[str, ...], first: bool
) -> None:
    question = Question("Where is it?", "Braga", "f2")
    older = Fact("f1", 1, "its", "city", "Porto", "It is in Porto.", former=True)
    assert _search(cast(Agent, _Search(*texts)), question, older) == (first, False)
    found = _search(cast(Agent, _Search(*texts, until=9.0)), question, older)
    assert found == (first, "It is in Porto." in texts)
