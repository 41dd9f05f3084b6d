"""What a review leaves on record, and what `why` makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentmem import Agent, Candidate, Decision, ScriptedModel
from agentmem.errors import SegmentNotFound
from agentmem.review.tools import Refusal
from agentmem.review.verdict import Verdict
from agentmem.segment import Message, Segment
from tests.agents import make_agent, talk

CALL = {"name": "drop_segments", "arguments": {"segment_ids": [2, 99]}}


def candidates(attention: float = 0.5) -> list[Candidate]:
    return [
        Candidate(Segment((Message("user", f"text {i}"),), id=i), 10 * i, attention=attention)
        for i in range(1, 5)
    ]


def record(given: list[Candidate]) -> dict[str, Any]:
    dropped = Decision("drop", (2,), "controller", tool_call=CALL)
    refused = Refusal("drop", (99,), "not on offer", CALL)
    verdict = Verdict(given, 500, "m", [dropped], [refused], calls=1, raw=["[...]"])
    return verdict.cost()


def test_the_same_inputs_have_the_same_hash_and_others_another() -> None:
    made = record(candidates())
    assert made["inputs"] == record(candidates())["inputs"] != record(candidates(0.4))["inputs"]
    assert made["offered"] == [1, 2, 3, 4] and made["raw"] == ("[...]",)
    assert made["parsed"] == [{"call": CALL, "accepted": [2], "refused": [[[99], "not on offer"]]}]
    assert "text 1" not in json.dumps(made)


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    made = make_agent(tmp_path, ScriptedModel(has_kv=True), budget=900)
    talk(made, 4)
    return made


def reviewed(agent: Agent) -> list[int]:
    """Two drops by one review, with its record; the ids of the decisions."""
    memory = agent.memory
    memory.ledger.turn += 1
    offered = memory.candidates()
    decisions = [
        Decision("drop", (one,), "controller", maker="m", tool_call=CALL) for one in (2, 4)
    ]
    refused = Refusal("summarize", (2,), "12 tokens are too few to summarize", CALL)
    raw = ["I drop 2 and 4, they speak of apples."]
    verdict = Verdict(offered, 400, "m", decisions, [refused], calls=1, raw=raw)
    return [one.id for one in memory.ledger.apply_all(decisions, verdict.cost())]


def test_the_record_is_filed_once_and_found_from_every_decision_of_the_review(
    agent: Agent,
) -> None:
    first, second = reviewed(agent)
    rows = [agent.memory.archive.decision(one) for one in (first, second)]
    assert rows[0].cost["calls"] == 1 and rows[1].cost == {"review": first}
    for row in rows:
        assert [one.id for one in agent.memory.archive.review(row)] == [first, second]


def test_why_names_what_was_on_offer_what_was_refused_and_what_might_have_gone_instead(
    agent: Agent,
) -> None:
    reviewed(agent)
    tokens = {c.id: c.num_tokens for c in agent.memory.candidates()}
    for one in (2, 4):
        text = str(agent.memory.why(one))
        assert "segments were on offer" in text
        assert "The model answered 1 times with 1 calls; 1 were taken up." in text
        assert "would have kept it" in text
    assert "refused: 12 tokens are too few" in str(agent.memory.why(2))
    assert "Letting segment 6 go instead" in str(agent.memory.why(2)) and tokens[6] > 0


def test_forgetting_takes_the_models_words_out_of_reviews_in_which_it_was_on_offer(
    agent: Agent,
) -> None:
    first, _ = reviewed(agent)
    agent.memory.forget(6)
    cost = agent.memory.archive.decision(first).cost
    assert "apples" not in json.dumps(dict(cost)) and 6 in cost["offered"]
    assert agent.memory.archive.decision(first).decision.maker == "m"


def test_why_answers_for_what_no_decision_took_out(tmp_path: Path) -> None:
    with make_agent(tmp_path, session="work") as other:
        other.chat("The door code is 4711.")
    with make_agent(tmp_path, budget=500) as agent:
        agent.chat("".join(f"Line {i} holds the secret {i * 7919}.\n" for i in range(60)))
        stored = agent.memory.archive.session_segments(agent.memory.session.id)
        parts = [one.segment.id for one in stored if one.segment.kind == "document_part"]
        part = next(one for one in parts if one not in agent.context)
        text = str(agent.memory.why(part))
        assert "part of a document" in text and "is in the window. A part is" in text
        assert "said in session 'work'" in str(agent.memory.why(2))
        agent.chat("What is the door code?")
        for _ in range(5):
            agent.chat("Zebras yawn.")
        assert 2 not in agent.context
        assert "left by itself" in str(agent.memory.why(2))
        core = agent.context.entries[0].id
    with make_agent(tmp_path, budget=500, system_prompt="Be brief.") as agent:
        assert "Another system prompt took its place" in str(agent.memory.why(core))
        agent.memory.drop(agent.turn_segments(2)[0])
        gone = agent.turn_segments(2)[0]
        agent.memory.forget(gone)
        text = str(agent.memory.why(gone))
        assert "was forgotten" in text and "dropped" in text and "door code" not in text
        with pytest.raises(SegmentNotFound):
            agent.memory.why(999)


def test_why_answers_for_every_segment_of_a_session(tmp_path: Path) -> None:
    with make_agent(tmp_path) as agent:
        agent.chat("".join(f"Line {i} holds the secret {i * 7919}.\n" for i in range(40)))
        talk(agent, 12)
        agent.chat("Which line holds the secret 79190?")
        talk(agent, 5)
        for stored in agent.memory.archive.session_segments(agent.memory.session.id):
            if stored.segment.id not in agent.context:
                lines = str(agent.memory.why(stored.segment.id)).splitlines()
                assert len(lines) > 3 or "No decision" not in lines[-1], lines
