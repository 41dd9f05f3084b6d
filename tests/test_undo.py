"""Any decision can be taken back: at once to the identical window, later to the former state."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentmem import Agent, Decided, DecisionRow, ScriptedModel
from agentmem.decision import Decision
from agentmem.errors import InvalidInput, UndoBlocked
from agentmem.segment import Message, Segment, Trust
from agentmem.storage.rows import WindowEntry
from tests.agents import make_agent, talk

VERBS = ("drop", "summarize", "pin", "keep", "restore")


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    made = make_agent(
        tmp_path, ScriptedModel(has_kv=True, asides=["They talked."] * 999), budget=900
    )
    talk(made, 5)
    with made.memory.archive.write() as transaction:
        fenced = Segment((Message("user", "Foreign words."),), trust=Trust.EXTERNAL)
        transaction.add_segment(made.memory.session.id, 1, fenced, state="archived")
    return made


def whole(agent: Agent) -> list[tuple[Any, ...]]:
    """The window to the last detail, as it is here and as it is stored."""
    stored = agent.memory.archive.window(agent.memory.session.id)
    assert stored == list(agent.context.snapshot())
    return [
        (e.id, e.segment.place, e.via, e.until_turn, e.num_tokens, e.pinned, e.state,
         e.stored.kept_until)
        for e in agent.context.entries
    ]  # fmt: skip


def decide(agent: Agent, chance: random.Random) -> Decided | None:
    """One decision at random by the user; None where it is refused."""
    inside = [entry.id for entry in agent.context if entry.segment.kind != "core_block"]
    stored = agent.memory.archive.session_segments(agent.memory.session.id)
    outside = [one.segment.id for one in stored if one.segment.id not in agent.context]
    verb = chance.choice(VERBS)
    pool = inside + outside if verb == "restore" else inside
    ids = chance.sample(pool, min(len(pool), chance.randint(1, 2)))
    if not ids:
        return None
    if chance.random() < 0.2 and outside:
        # As recall does, so that decisions are made about what is here for a while only.
        one = chance.choice(outside)
        via: Any = chance.choice(["kv", "text"])
        agent.context.put(agent.memory.segment(one), via=via, until_turn=agent.memory.turn + 2)
        with agent.memory.archive.write() as transaction:
            transaction.set_window(agent.memory.session.id, agent.context.snapshot())
    try:
        decided: Decided = getattr(agent.memory, verb)(*ids)
    except InvalidInput:
        return None
    return decided


@pytest.mark.parametrize("num_decisions", [30, pytest.param(200, marks=pytest.mark.slow)])
def test_undo_at_once_of_any_decision_is_the_identical_window(
    agent: Agent, num_decisions: int
) -> None:
    chance = random.Random(11)
    undone = 0
    before = states(agent)
    while undone < num_decisions:
        if len(agent.context) < 4:
            agent.memory.restore(2, 3)
            before = states(agent)
        decided = decide(agent, chance)
        if decided is None:
            continue
        window_before = agent.memory.archive.decision(decided.id).window_before
        assert agent.context.num_tokens == decided.tokens_after, decided
        agent.memory.undo(decided.id)
        assert agent.context.snapshot() == window_before, decided
        assert agent.context.num_tokens == decided.tokens_before, decided
        after = states(agent)
        assert {one: after[one] for one in before} == before, decided
        before = after
        undone += 1
        if chance.random() < 0.2 and decide(agent, chance) is not None:
            before = states(agent)
    whole(agent)


def states(agent: Agent) -> dict[int, tuple[str, bool, int]]:
    """State, pin and keep of every segment."""
    stored = agent.memory.archive.session_segments(agent.memory.session.id)
    return {one.segment.id: (one.state, one.pinned, one.kept_until) for one in stored}


def former(agent: Agent, row: DecisionRow) -> dict[int, tuple[str, bool]]:
    """State and pin of a decision's segments now."""
    stored = agent.memory.archive.segments(row.decision.segment_ids)
    return {one.segment.id: (one.state, one.pinned) for one in stored}


@pytest.mark.parametrize("num_steps", [36, pytest.param(400, marks=pytest.mark.slow)])
def test_later_undos_restore_the_former_state_or_say_how_many_tokens_are_in_the_way(
    agent: Agent, num_steps: int
) -> None:
    chance = random.Random(12)
    blocked = restored = 0
    made: list[int] = []
    for step in range(num_steps):
        if step % 25 == 24:
            talk(agent, 1)
        if (decided := decide(agent, chance)) is not None:
            made.append(decided.id)
        if len(made) < 4 or chance.random() < 0.5:
            continue
        row = agent.memory.archive.decision(made.pop(chance.randrange(len(made) - 1)))
        budget = agent.context.budget
        if chance.random() < 0.5:
            agent.context.budget = replace(budget, max_tokens=agent.context.num_tokens)
        before = whole(agent)
        try:
            agent.memory.undo(row.id)
        except UndoBlocked as error:
            blocked += 1
            assert whole(agent) == before
            if "would be pinned" in str(error):
                agent.context.budget = budget
                continue
            if "over the budget" in str(error):
                agent.context.budget = replace(
                    budget, max_tokens=agent.context.budget.max_tokens + error.tokens_over - 1
                )
                with pytest.raises(UndoBlocked, match="1 over the budget"):
                    agent.memory.undo(row.id)
                agent.context.budget = replace(
                    budget, max_tokens=agent.context.budget.max_tokens + 1
                )
            try:
                agent.memory.undo(row.id)
                assert agent.context.num_tokens == agent.context.budget.max_tokens
            except UndoBlocked as pins:
                # So small a budget does not hold the pins it would bring back.
                assert "would be pinned" in str(pins) and whole(agent) == before
                agent.context.budget = budget
                agent.memory.undo(row.id)
        restored += 1
        assert former(agent, row) == dict(row.states_before)
        was = {entry.segment_id: entry for entry in row.window_before}
        now = {entry.segment_id: entry for entry in agent.context.snapshot()}
        ids = row.decision.segment_ids
        assert {i: now.get(i) for i in ids} == {i: was.get(i) for i in ids}
        assert agent.context.num_tokens <= agent.context.budget.max_tokens
        agent.context.budget = budget
        whole(agent)
    assert restored > 6 and blocked


def test_undoing_a_keep_brings_back_the_former_one(agent: Agent) -> None:
    agent.memory.keep(2)
    until = agent.memory.segment(2).kept_until
    talk(agent, 2)
    decided = agent.memory.keep(2)
    assert agent.memory.segment(2).kept_until > until
    agent.memory.undo(decided.id)
    assert agent.memory.segment(2).kept_until == until


def test_undo_at_once_leaves_out_what_was_forgotten_meanwhile(agent: Agent) -> None:
    decided = agent.memory.drop(2, 4)
    agent.memory.forget(4)
    agent.memory.undo(decided.id)
    assert 2 in agent.context and 4 not in agent.context


def test_decisions_of_one_review_can_be_undone_one_by_one(agent: Agent) -> None:
    start = whole(agent)
    asked = [Decision("drop", (one,), "policy", maker="window") for one in (2, 4, 6)]
    made = agent.memory.ledger.apply_all(asked, {"seconds": 0.1})
    for decided in made:
        agent.memory.undo(decided.id)
    assert whole(agent) == start
    assert WindowEntry(2, 2) in agent.context.snapshot()


@pytest.mark.parametrize(
    ("verb", "reverse", "words"),
    [
        ("pin", "unpin", "unpinned by user"),
        ("unpin", "pin", "pinned by user"),
        ("keep", "unkeep", "kept no more by user"),
        ("drop", "bring_back", "brought back by user"),
        ("restore", "drop", "dropped by user"),
    ],
)
def test_an_undo_is_on_record_as_the_reverse_of_what_it_takes_back(
    agent: Agent, verb: str, reverse: str, words: str
) -> None:
    if verb == "restore":
        agent.memory.drop(2)
    decided = getattr(agent.memory, verb)(2)
    undone = agent.memory.undo(decided.id)
    assert undone.action == reverse
    lines = agent.memory.why(2).text.splitlines()
    assert f"Decision {undone.id}, turn 5: {words}." in lines


def test_undo_at_once_is_blocked_in_a_smaller_budget(tmp_path: Path) -> None:
    with make_agent(tmp_path, budget=2000) as agent:
        talk(agent, 24)
        agent.memory.drop(*[e.id for e in agent.context if e.segment.kind == "turn"])
    with make_agent(tmp_path, budget=400) as agent:
        before = agent.context.snapshot()
        with pytest.raises(UndoBlocked, match="over the budget of 400"):
            agent.memory.undo()
        assert agent.context.snapshot() == before


def test_undoing_an_unpin_is_blocked_where_pins_would_take_too_much(tmp_path: Path) -> None:
    with make_agent(tmp_path) as agent:
        talk(agent, 5)
        agent.memory.pin(2, 4)
        decided = agent.memory.unpin(2, 4)
        agent.memory.pin(6, 8)
        agent.context.budget = replace(agent.context.budget, free_to=0.3)
        with pytest.raises(UndoBlocked, match="tokens would be pinned"):
            agent.memory.undo(decided.id)
