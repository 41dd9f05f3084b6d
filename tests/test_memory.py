"""Memory: every decision is explained, and every decision can be taken back."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sqlalchemy import Connection

from agentmem import Agent, ScriptedModel
from agentmem.errors import InvalidInput, SegmentNotFound, StoreFull, UndoBlocked
from agentmem.models.base import Capabilities
from agentmem.models.embed import HashEmbedder
from agentmem.models.scripted import ToolCalls
from agentmem.modes import RecallMode
from agentmem.opening import open_memory
from agentmem.recall.scoring import Scored
from agentmem.storage import segments
from agentmem.storage.rows import StoredSegment
from agentmem.storage.transaction import Transaction
from tests.agents import make_agent, talk, window


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    made = make_agent(tmp_path, ScriptedModel(has_kv=True, asides=["They talked."] * 99))
    talk(made, 4)
    return made


def test_a_dropped_segment_leaves_the_window_and_stays_searchable(agent: Agent) -> None:
    decided = agent.memory.drop(2)
    assert 2 not in agent.context and decided.tokens_after < decided.tokens_before
    assert agent.memory.search("market apples")[0].segment.id == 2


@pytest.mark.parametrize("action", ["drop", "summarize", "keep", "pin"])
def test_undo_at_once_brings_back_the_identical_window(agent: Agent, action: str) -> None:
    before = window(agent)
    decided = getattr(agent.memory, action)(*((2, 3) if action == "summarize" else (2,)))
    undone = agent.memory.undo(decided.id)
    assert window(agent) == before
    assert undone.reason == f"Undo of decision {decided.id} ({action})."
    assert agent.memory.archive.window(agent.memory.session.id) == list(agent.context.snapshot())


def test_a_summary_that_cannot_be_stored_whole_leaves_its_sources_where_they_are(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise StoreFull("The disk is full.")

    before, stored = window(agent), agent.memory.archive.session_segments(agent.memory.session.id)
    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "add_decision", full)
        with pytest.raises(StoreFull):
            agent.memory.summarize(2, 3)
    assert window(agent) == before
    assert agent.memory.archive.session_segments(agent.memory.session.id) == stored
    assert agent.memory.archive.window(agent.memory.session.id) == list(agent.context.snapshot())


def test_what_is_too_short_to_summarize_is_refused_and_stays(agent: Agent) -> None:
    before = window(agent)
    with pytest.raises(InvalidInput, match="too few to summarize"):
        agent.memory.summarize(3)
    assert window(agent) == before


def test_undo_takes_the_last_decision_first_and_never_one_twice(agent: Agent) -> None:
    start = window(agent)
    agent.memory.drop(2)
    agent.memory.drop(3)
    agent.memory.undo()
    agent.memory.undo()
    assert window(agent) == start
    with pytest.raises(InvalidInput, match="no decision to undo"):
        agent.memory.undo()


def test_a_decision_is_undone_only_once(agent: Agent) -> None:
    decided = agent.memory.drop(2)
    undone = agent.memory.undo(decided.id)
    with pytest.raises(InvalidInput, match=f"was undone by {undone.id}"):
        agent.memory.undo(decided.id)


def test_any_of_many_random_decisions_undone_at_once_restores_the_window(agent: Agent) -> None:
    random.seed(5)
    for _ in range(60):
        movable = [entry.id for entry in agent.context if entry.segment.kind == "turn"]
        gone = [i for i in range(2, 10) if i not in agent.context]
        before = window(agent)
        verb = random.choice(["drop", "summarize", "pin", "keep", "restore"])
        if verb == "restore":
            if not gone:
                continue
            agent.memory.restore(random.choice(gone))
        elif movable:
            try:
                getattr(agent.memory, verb)(random.choice(movable))
            except InvalidInput:
                continue
        else:
            continue
        agent.memory.undo()
        assert window(agent) == before
        if gone and random.random() < 0.5:
            agent.memory.restore(gone[0])
        elif movable:
            agent.memory.drop(movable[0])


def test_undo_later_brings_back_the_segment_if_the_budget_holds_it(agent: Agent) -> None:
    decided = agent.memory.drop(2)
    agent.chat("Something else was said since then.")
    agent.memory.undo(decided.id)
    assert 2 in agent.context
    assert [entry.id for entry in agent.context][:3] == [1, 2, 3]


def test_undo_later_is_blocked_when_the_window_would_be_over_budget(agent: Agent) -> None:
    tokens = agent.context[2].num_tokens
    decided = agent.memory.drop(2)
    agent.chat("Something else was said since then.")
    agent.context.budget = replace(agent.context.budget, max_tokens=agent.context.num_tokens)
    with pytest.raises(UndoBlocked, match=f"{tokens} over the budget") as caught:
        agent.memory.undo(decided.id)
    assert caught.value.tokens_over == tokens


def test_undoing_a_summary_brings_its_originals_back_and_takes_it_out(agent: Agent) -> None:
    before = window(agent)
    agent.memory.summarize(2, 3, 4)
    summary = next(e for e in agent.context if e.segment.kind == "summary")
    assert [entry.id for entry in agent.context][:2] == [1, summary.id]
    assert summary.segment.parents == (2, 3, 4)
    agent.memory.undo()
    assert window(agent) == before


def test_originals_of_a_summary_stay_byte_identical_in_the_archive(agent: Agent) -> None:
    texts = [agent.memory.segment(i).segment for i in (2, 3)]
    agent.memory.summarize(2, 3)
    assert [agent.memory.segment(i).segment for i in (2, 3)] == texts
    assert agent.memory.segment(2).state == "summarized"


def test_restore_brings_a_segment_back_to_its_place(agent: Agent) -> None:
    before = window(agent)
    agent.memory.drop(3)
    agent.memory.restore(3)
    assert [row[0] for row in window(agent)] == [row[0] for row in before]


def test_restore_beyond_the_budget_is_refused_with_the_sum(tmp_path: Path) -> None:
    with make_agent(tmp_path) as agent:
        talk(agent, 40)
        gone = [i for i in range(2, 70) if i not in agent.context]
        with pytest.raises(InvalidInput, match="over the budget of 400"):
            agent.memory.restore(*gone)


def test_a_pinned_segment_survives_every_review(agent: Agent) -> None:
    agent.memory.pin(2)
    talk(agent, 25)
    assert 2 in agent.context
    agent.memory.unpin(2)
    talk(agent, 25)
    assert 2 not in agent.context


def test_pins_cannot_fill_the_window(agent: Agent) -> None:
    talk(agent, 4)
    with pytest.raises(InvalidInput, match="at most 100 may be pinned"):
        agent.memory.pin(*[entry.id for entry in agent.context if entry.id > 1])


def test_a_kept_segment_is_not_offered_for_eight_turns(agent: Agent) -> None:
    agent.memory.keep(2)
    protected = {c.id: c.protected for c in agent.memory.candidates()}
    assert protected[2] == "kept"
    talk(agent, 8)
    assert {c.id: c.protected for c in agent.memory.candidates()}[2] == "kept"
    talk(agent, 1)
    assert {c.id: c.protected for c in agent.memory.candidates()}.get(2, "") == ""


def test_the_system_prompt_cannot_be_dropped_or_forgotten(agent: Agent) -> None:
    with pytest.raises(InvalidInput, match="system prompt"):
        agent.memory.drop(1)
    with pytest.raises(InvalidInput, match="system prompt"):
        agent.memory.forget(1)


@pytest.mark.parametrize("verb", ["drop", "keep", "pin", "restore", "summarize", "why", "forget"])
def test_an_unknown_segment_is_named(agent: Agent, verb: str) -> None:
    with pytest.raises(SegmentNotFound, match="999"):
        getattr(agent.memory, verb)(999)


def test_a_turn_is_read_without_the_rest_of_its_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look() -> str:
        """Look."""
        return "nothing"

    model = ScriptedModel([ToolCalls.of("look"), "Nothing."])
    with make_agent(tmp_path, model, tools=[look], budget=1000) as agent:
        agent.chat("Look around. " + "Here is a long story that has no end. " * 100)
        agent.chat("And now?")
        read: list[int] = []
        assemble = segments.assemble

        def counting(connection: Connection, rows: Sequence[Any]) -> list[StoredSegment]:
            read.append(len(rows))
            return assemble(connection, rows)

        monkeypatch.setattr(segments, "assemble", counting)
        first = agent.memory.turn_segments(1)
        assert [one.segment.kind for one in first] == ["turn", "tool_exchange", "turn"]
        assert [one.segment.role for one in agent.memory.turn_segments(2)] == ["user", "assistant"]
        assert agent.memory.turn_segments(9) == agent.memory.turn_segments(2**70) == []
        assert read == [3, 2, 0]


def test_a_review_compares_only_what_is_in_the_window(tmp_path: Path) -> None:
    with make_agent(tmp_path) as agent:
        talk(agent, 30)
        finder = agent.memory.finder
        vector = finder.embed("apples")
        window_ids = {entry.id for entry in agent.context}
        asked: list[int] = []
        similarity = finder.similarity

        def noting(vector: NDArray[np.float32], ids: Iterable[int]) -> dict[int, float]:
            asked.extend(ids)
            return similarity(vector, asked)

        finder.similarity = noting  # type: ignore[method-assign]
        candidates = agent.memory.candidates(vector)
        assert set(asked) == window_ids
        assert any(one.similarity is not None for one in candidates)


def test_why_names_evidence_runner_up_and_what_would_have_kept_it(tmp_path: Path) -> None:
    with make_agent(tmp_path) as agent:
        talk(agent, 40)
        text = str(agent.memory.why(2))
    assert "It is not in the window (parked)." in text
    assert "dropped by policy window" in text
    assert "Evidence: num tokens" in text
    assert "Runner-up: Segment" in text
    assert "It would have stayed: a pin" in text


def test_why_names_a_call_only_where_the_controller_could_make_one(tmp_path: Path) -> None:
    judges = ScriptedModel(capabilities=Capabilities(has_logits=True))
    with make_agent(tmp_path, judges, controller="scored", policy="mixture") as agent:
        talk(agent, 30)
        dropped = [
            row
            for row in agent.memory.archive.decisions(session_id=agent.memory.session.id)
            if row.decision.action == "drop" and row.decision.source == "controller"
        ]
        text = str(agent.memory.why(dropped[0].decision.segment_ids[0]))
    assert "a score above" in text and "keep_segments" not in text


def test_why_answers_for_every_segment_that_is_not_in_the_window(tmp_path: Path) -> None:
    with make_agent(tmp_path) as agent:
        talk(agent, 30)
        for stored in agent.memory.archive.session_segments(agent.memory.session.id):
            if stored.segment.id not in agent.context:
                assert agent.memory.why(stored.segment.id).decisions


def test_forget_takes_the_text_out_of_every_tier(agent: Agent) -> None:
    agent.memory.summarize(2, 3)
    receipt = agent.memory.forget(2)
    assert len(receipt["made_of_it"]) == 1
    assert all(hit.segment.id != 2 for hit in agent.memory.search("market apples"))
    with pytest.raises(SegmentNotFound):
        agent.memory.segment(2)
    assert "apples" not in agent.window_text()
    agent.chat("Go on.")


def test_forgetting_a_document_forgets_all_of_it(tmp_path: Path) -> None:
    with make_agent(tmp_path) as agent:
        agent.chat("".join(f"Line {i} holds the secret {i * 7919}.\n" for i in range(200)))
        receipt = agent.memory.forget(2)
        assert len(receipt["made_of_it"]) > 5
        assert all(hit.segment.origin != "user" for hit in agent.memory.search("Line 77 secret"))
        assert "holds the secret" not in "".join(
            turn.text for turn in agent.memory.archive.turns(agent.memory.session.id)
        )


def test_undo_passes_over_what_was_forgotten(agent: Agent) -> None:
    agent.memory.drop(4)
    agent.memory.drop(2)
    agent.memory.forget(2)
    agent.memory.undo()
    assert 4 in agent.context


def test_an_undo_is_not_undone(agent: Agent) -> None:
    agent.memory.summarize(2, 3, 4)
    undone = agent.memory.undo()
    with pytest.raises(InvalidInput, match="itself an undo"):
        agent.memory.undo(undone.id)


def test_states_count_the_kv_tier_in(tmp_path: Path) -> None:
    with make_agent(tmp_path) as agent:
        talk(agent, 40)
        states = agent.memory.states()
    assert states["parked"] > 0 and states["live"] > 0
    assert sum(states.values()) == 81


def test_a_search_leaves_out_what_another_process_forgets_meanwhile(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in ("My bike is a red Gazelle.", "My bike has a blue bell."):
        agent.chat(text)
    gone, left = (hit.segment.id for hit in agent.memory.search("bike")[:2])
    search = agent.memory.finder.search

    def slowly(query: str) -> list[Scored]:
        found = search(query)
        with agent.memory.archive.write() as transaction:
            transaction.forget(gone)
        return found

    monkeypatch.setattr(agent.memory.finder, "search", slowly)
    found = [hit.segment.id for hit in agent.memory.search("bike")]
    assert left in found and gone not in found


@pytest.mark.parametrize("k", [0, -1, 1001])
def test_a_search_for_too_few_or_too_many_is_refused(agent: Agent, k: int) -> None:
    with pytest.raises(InvalidInput, match=str(k)):
        agent.memory.search("market", k=k)


def test_memory_opens_without_a_model(tmp_path: Path) -> None:
    with make_agent(tmp_path) as agent:
        talk(agent, 40)
        before = [row[0] for row in window(agent)]
    with open_memory(store=tmp_path / "me.db", embedder=HashEmbedder()) as memory:
        assert [entry.id for entry in memory.context] == before
        assert memory.context.budget.max_tokens == 400
        assert memory.search("cello orchestra")
        memory.drop(before[-1])
        memory.undo()
        with pytest.raises(InvalidInput, match="no model"):
            memory.summarize(before[-1])
    with make_agent(tmp_path) as agent:
        assert [row[0] for row in window(agent)] == before


def test_recall_modes_are_checked(tmp_path: Path) -> None:
    wrong: RecallMode = "sometimes"  # type: ignore[assignment]
    with pytest.raises(InvalidInput, match="sometimes"):
        make_agent(tmp_path, recall=wrong)


def test_an_answer_that_repeats_its_question_is_seen_to_echo_it(tmp_path: Path) -> None:
    model = ScriptedModel(["The blue fence stands there.", "Quite."], has_kv=True)
    with make_agent(tmp_path, model, budget=1000) as agent:
        agent.chat("There stands the blue fence.")
        agent.chat("Onions are cheap today.")
        agent.chat("Done.")
        echoes = {c.segment.text: c.echo for c in agent.memory.candidates()}
        assert (echoes["The blue fence stands there."] or 0) > 0.9
        assert (echoes["Quite."] or 0) < 0.5
        assert echoes["There stands the blue fence."] is None, "only answers echo"
        agent.memory.drop(agent.turn_segments(1)[0])
        echoes = {c.segment.text: c.echo for c in agent.memory.candidates()}
        assert echoes["The blue fence stands there."] is None, "now it alone says so"


def test_a_memory_that_is_only_looked_at_refuses_every_act(tmp_path: Path) -> None:
    with make_agent(tmp_path) as agent:
        talk(agent, 2)
        before = window(agent)
        with open_memory(store=tmp_path / "me.db", embedder="hash", only_look=True) as memory:
            assert memory.search("market")[0].segment.id == 2
            acts: list[Callable[[], object]] = [
                lambda: memory.drop(2),
                lambda: memory.pin(2),
                lambda: memory.undo(),
                lambda: memory.forget(2),
                lambda: memory.forget_origin("user"),
                lambda: memory.blocks.append("human", "Kind."),
                lambda: memory.passages.insert("A note."),
            ]
            for act in acts:
                with pytest.raises(InvalidInput, match="only to be looked at"):
                    act()
        assert window(agent) == before and not agent.memory.archive.decisions()


def test_a_system_prompt_is_forgotten_once_no_session_uses_it(tmp_path: Path) -> None:
    with make_agent(tmp_path, system_prompt="Old words.") as agent:
        old = agent.context.entries[0].id
        with make_agent(tmp_path, session="other") as other:
            with pytest.raises(InvalidInput, match="system prompt"):
                other.memory.forget(old)
    with make_agent(tmp_path, system_prompt="New words.") as agent:
        agent.memory.forget(old)
        with pytest.raises(SegmentNotFound):
            agent.memory.segment(old)
        assert agent.context.entries[0].segment.text == "New words."


def test_forgetting_a_reply_leaves_why_it_ended(tmp_path: Path) -> None:
    with make_agent(tmp_path, ScriptedModel(["stop"])) as agent:
        agent.chat("Say it.", turn="one")
        agent.memory.forget(agent.turn_segments(1)[1])
        again = agent.chat("Say it.", turn="one")
        assert (again.text, again.finish_reason, again.repeated) == ("", "stop", True)
