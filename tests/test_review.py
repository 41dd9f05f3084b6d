"""The review: how far it frees the window, and what of it does not count."""

from __future__ import annotations

from pathlib import Path

from agentmem import Agent
from tests.agents import make_agent, talk


def recall(agent: Agent, ids: list[int]) -> None:
    """Bring segments back for a while, as recall does."""
    for one in ids:
        agent.context.put(agent.memory.segment(one), via="text", until_turn=agent.memory.turn + 3)


def test_nothing_goes_so_that_what_was_recalled_can_stay(tmp_path: Path) -> None:
    with make_agent(tmp_path, budget=1000, recall="text") as agent:
        budget = agent.context.budget
        talk(agent, 6)
        gone = [entry.id for entry in agent.context if entry.segment.kind == "turn"]
        agent.memory.drop(*gone)
        while agent.context.own_tokens < budget.warn_tokens - 40:
            talk(agent, 1)
        recall(agent, gone)
        recalled = agent.recalled_tokens
        assert recalled > 90
        before = agent.context.own_tokens
        while agent.context.own_tokens >= before:
            before = agent.context.own_tokens
            agent.context.remove(set(agent.context.expired(10**6)) - {*gone})
            recall(agent, [one for one in gone if one not in agent.context])
            talk(agent, 1)
        # The largest segment and the newest turn bound what one review goes below its target by.
        assert budget.target_tokens - 40 < agent.context.own_tokens <= budget.target_tokens + 60


def test_what_was_recalled_leaves_first_where_the_reply_would_not_fit(tmp_path: Path) -> None:
    with make_agent(tmp_path, budget=400, recall="off") as agent:
        talk(agent, 4)
        gone = [entry.id for entry in agent.context if entry.segment.kind == "turn"]
        agent.memory.drop(*gone)
        while agent.context.own_tokens < 240:
            talk(agent, 1)
        own = {entry.id for entry in agent.context}
        recall(agent, gone)
        budget = agent.context.budget
        assert agent.context.num_tokens + budget.reserve > budget.max_tokens - 15
        agent.chat("Hi.")
        assert own <= {entry.id for entry in agent.context}
        assert not {*gone} <= {entry.id for entry in agent.context}
