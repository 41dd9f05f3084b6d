"""Where segments came from: naming it, listing it, and forgetting all of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agentmem import Agent, ScriptedModel, Store, from_origin, origin_name
from agentmem.decision import Decision
from agentmem.errors import InvalidInput
from agentmem.models.base import Capabilities
from agentmem.models.scripted import ToolCalls
from agentmem.origin import OriginFilter
from agentmem.segment import Message, Segment, ToolCall, Trust
from tests.agents import make_agent, talk, window

DIGEST = "0123456789abcdef" * 4


def search() -> str:
    """Search the web."""
    return "Zanzibar is far away."


def clock() -> str:
    """Tell the time."""
    return "It is noon in Quito."


def open_agent(folder: Path, **options: object) -> Agent:
    model = ScriptedModel(
        [ToolCalls.of("search"), "ok.", ToolCalls.of("clock"), "ok."],
        asides=["They spoke of Zanzibar."] * 9,
        has_kv=True,
        capabilities=Capabilities(calls_tools=True),
    )
    return make_agent(folder, model, budget=2_000, tools=[search, clock], **options)


@pytest.mark.parametrize(
    ("text", "origin", "detail"),
    [
        ("user", "user", ""),
        ("tool:search", "tool", "search"),
        ("tool:a:b", "tool", "a:b"),
        ("import:notes v2.md", "import", "notes v2.md"),
    ],
)
def test_an_origin_is_read_as_people_write_it(text: str, origin: str, detail: str) -> None:
    found = OriginFilter.parse(text)
    assert (found.origin, found.detail) == (origin, detail)


@pytest.mark.parametrize(
    "text", ["", "system", "tool:", "import:", "user:ann", "summary:3", "tools", "TOOL", " tool"]
)
def test_what_is_no_origin_is_refused_with_those_there_are(text: str) -> None:
    with pytest.raises(InvalidInput, match="user, assistant, tool, import, summary, tool:NAME"):
        OriginFilter.parse(text)


def test_one_tool_and_one_import_are_matched_exactly() -> None:
    calls = (ToolCall("1", "search"), ToolCall("2", "clock"), ToolCall("3", "search"))
    exchange = Segment((Message("assistant", "", calls),), origin="tool", trust=Trust.EXTERNAL)
    assert exchange.tools == ("search", "clock")
    for detail, matches in (("search", True), ("clock", True), ("sear", False), ("", True)):
        assert OriginFilter("tool", detail).matches(exchange) is matches
    told = Segment(
        (Message("user", "x"),),
        origin="import",
        trust=Trust.EXTERNAL,
        source=f"{DIGEST} 0123456789ab c.md",
    )
    for detail, matches in (
        ("0123456789ab c.md", True), (DIGEST, True), (DIGEST[:12], True), (DIGEST[:11], False),
        ("c.md", False), ("0123456789AB", False), ("abcdef012345", False), ("", True),
    ):  # fmt: skip
        assert OriginFilter("import", detail).matches(told) is matches, detail
    assert not OriginFilter("tool").matches(told)
    assert OriginFilter.parse(origin_name(told)).matches(told)
    assert origin_name(exchange) == "tool:search,clock"
    assert origin_name(replace(told, source="", origin="user")) == "user"


def test_one_tools_results_are_forgotten_with_all_that_was_made_of_them(tmp_path: Path) -> None:
    with open_agent(tmp_path) as agent:
        agent.chat("Search.")
        agent.chat("What time is it?")
        (found,) = from_origin(agent.memory.archive, "tool:search")
        agent.memory.summarize(2, found.segment.id)
        summary = next(e.id for e in agent.context if e.segment.kind == "summary")
        receipt = agent.memory.forget_origin("tool:search")
        assert receipt["segments"] == [found.segment.id] and receipt["made_of_it"] == [summary]
        assert receipt["origin"] == "tool:search" and receipt["kv_records"] > 0
        assert [one.segment.tools for one in agent.memory.from_origin("tool")] == [("clock",)]
        assert "Zanzibar" not in agent.window_text() and "Quito" in agent.window_text()
        assert agent.memory.segment(2).segment.text == "Search."
        assert agent.chat("Go on.").text == "ok."


def test_the_summary_of_what_was_summarized_can_be_forgotten_alone_and_the_rest_brought_back(
    tmp_path: Path,
) -> None:
    with open_agent(tmp_path) as agent:
        agent.chat("Search.")
        before = window(agent)
        agent.memory.summarize(2, 3)
        assert len(agent.memory.forget_origin("summary")["segments"]) == 1
        agent.memory.undo()
        assert window(agent) == before


def test_undo_brings_back_what_is_left_of_a_window(tmp_path: Path) -> None:
    with open_agent(tmp_path) as agent:
        agent.chat("Search.")
        agent.memory.summarize(2, 3)
        agent.memory.forget_origin("tool")
        agent.memory.undo()
        assert [row[0] for row in window(agent)] == [1, 2, 4]


def test_what_is_forgotten_leaves_the_windows_of_other_open_sessions(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("Herons nest in Aldermoor.")
    with open_agent(tmp_path, session="one") as first, open_agent(tmp_path, session="two") as other:
        first.chat("Search.")
        first.memory.import_file(tmp_path / "notes.md")
        (found,) = first.memory.from_origin("import")
        first.memory.restore(found.segment.id)
        assert len(other.memory.forget_origin("tool")["segments"]) == 1
        assert other.memory.forget_origin("import")["segments"] == [found.segment.id]
        assert first.chat("Go on.").text
        assert "Zanzibar" not in first.window_text() and "Herons" not in first.window_text()


def test_an_origin_of_which_there_is_nothing_forgets_nothing(tmp_path: Path) -> None:
    with open_agent(tmp_path) as agent:
        talk(agent, 1)
        before = window(agent)
        assert agent.memory.forget_origin("import:nothing.md")["segments"] == []
        assert window(agent) == before


def test_what_a_model_answered_in_a_review_is_forgotten_with_what_it_was_shown(
    tmp_path: Path,
) -> None:
    """The answer is kept with decisions about other segments too."""
    with open_agent(tmp_path) as agent:
        talk(agent, 1)
        agent.chat("Search once more.")
        told = next(one for one in agent.memory.from_origin("tool")).segment
        early = Decision("drop", (2,), "controller")
        late = Decision("drop", (3,), "controller")
        quoting = {"calls": 1, "raw": ["I drop 2, since Zanzibar is far."]}
        agent.memory.ledger.turn = 1
        agent.memory.ledger.apply_all([early], {"calls": 1, "raw": ["Early."]})
        agent.memory.ledger.turn = 2
        agent.memory.ledger.apply_all([late], quoting)
        agent.memory.forget(told.id)
        costs = [row.cost for row in agent.memory.archive.decisions()]
    assert [cost["calls"] for cost in costs] == [1, 1]
    with Store.open(tmp_path / "me.db") as store:
        assert store.purge()
    assert b"Zanzibar" not in (tmp_path / "me.db").read_bytes()
