"""A controller's calls become decisions."""

import json

import llguidance
import pytest

from agentmem.decision import Candidate
from agentmem.review.tools import ReviewTools
from agentmem.segment import Message, Segment, ToolCall
from agentmem.tools import describe


def candidate(segment_id: int, num_tokens: int = 10, kind: str = "turn") -> Candidate:
    segment = Segment((Message("user", f"text {segment_id}"),), kind=kind, id=segment_id)  # type: ignore[arg-type]
    return Candidate(segment, num_tokens)


def review_tools(*candidates: Candidate, max_tokens_freed: int = 10**9) -> ReviewTools:
    return ReviewTools(
        candidates, alternatives={1: "policy says"}, maker="m", max_tokens_freed=max_tokens_freed
    )


def call(tools: ReviewTools, name: str, **arguments: object) -> str:
    return tools.call(ToolCall("c", name, json.dumps(arguments)))


def test_its_tools_are_described_by_signature_and_docstring() -> None:
    tools = review_tools(candidate(1)).functions
    assert describe(tools["drop_segments"]).parameters["required"] == ["segment_ids"]
    assert describe(tools["pin_segment"]).description.startswith("Pin a rule or preference")


def test_each_dropped_segment_is_a_decision_of_its_own() -> None:
    tools = review_tools(candidate(1), candidate(2), candidate(3))
    assert call(tools, "drop_segments", segment_ids=[1, 3]) == "ok"
    assert [d.segment_ids for d in tools.decisions] == [(1,), (3,)]
    assert tools.decisions[0].alternative == "policy says"
    assert tools.decisions[0].tool_call == {
        "name": "drop_segments",
        "arguments": {"segment_ids": [1, 3]},
    }
    assert list(tools.offered) == [2]


def test_segments_are_summarized_together() -> None:
    tools = review_tools(candidate(1, 40), candidate(2, 40))
    call(tools, "summarize_segments", segment_ids=[1, 2])
    assert [d.segment_ids for d in tools.decisions] == [(1, 2)]
    assert tools.tokens_freed == 80


def test_segments_too_short_to_summarize_stay_on_offer() -> None:
    tools = review_tools(candidate(1), candidate(2))
    call(tools, "summarize_segments", segment_ids=[1, 2])
    assert not tools.decisions and list(tools.offered) == [1, 2]
    assert tools.refusals[0].reason == "20 tokens are too few to summarize"


def test_an_id_that_is_not_on_offer_is_refused_and_the_rest_goes_through() -> None:
    tools = review_tools(candidate(1))
    assert "not on offer: [9]" in call(tools, "drop_segments", segment_ids=[9, 1])
    assert [d.segment_ids for d in tools.decisions] == [(1,)]
    assert tools.refusals[0].segment_ids == (9,)


def test_a_segment_is_decided_once() -> None:
    tools = review_tools(candidate(1))
    call(tools, "keep_segments", segment_ids=[1])
    call(tools, "drop_segments", segment_ids=[1])
    assert [d.action for d in tools.decisions] == ["keep"]


def test_once_enough_is_freed_nothing_more_may_go() -> None:
    tools = review_tools(candidate(1), candidate(2), candidate(3), max_tokens_freed=15)
    call(tools, "drop_segments", segment_ids=[1, 2, 3])
    assert [d.segment_ids for d in tools.decisions] == [(1,), (2,)]
    assert tools.refusals[0].reason == "enough tokens are freed already"


def test_a_summary_is_not_summarized_again() -> None:
    tools = review_tools(candidate(1, kind="summary"))
    call(tools, "summarize_segments", segment_ids=[1])
    assert not tools.decisions and tools.refusals[0].reason == "already a summary"


@pytest.mark.parametrize("ids", ["1", [1.0], [True], ["1"], {"a": 1}, None])
def test_ids_that_are_not_integers_are_an_error_for_the_model(ids: object) -> None:
    tools = review_tools(candidate(1))
    assert call(tools, "drop_segments", segment_ids=ids).startswith("Error:")
    assert not tools.decisions


def test_the_schema_holds_the_live_ids_and_only_the_named_tools() -> None:
    tools = review_tools(candidate(1), candidate(7))
    schema = json.dumps(tools.schema(["drop_segments"]))
    assert '"enum": [1, 7]' in schema and "keep_segments" not in schema


def accepted(grammar: str, text: str) -> bool:
    """Whether a text fits a Lark grammar, as llguidance reads it byte by byte."""
    tokenizer = llguidance.LLTokenizer("byte")
    matcher = llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_lark(grammar))
    return bool(matcher.consume_tokens(list(text.encode()))) and bool(matcher.is_accepting())


def test_the_grammar_takes_each_segment_once_and_only_live_ids() -> None:
    grammar = review_tools(candidate(3), candidate(7), candidate(12)).grammar(
        ["drop_segments", "keep_segments", "pin_segment"]
    )
    drop = '{"name":"drop_segments","arguments":{"segment_ids":[%s]}}'
    pin = '{"name":"pin_segment","arguments":{"segment_id":7}}'
    for ids in ("3", "12", "3,12", "3,7,12"):
        assert accepted(grammar, f"[{drop % ids}]")
    for ids in ("", "3,3", "7,3", "1", "4", "3,7,12,12"):
        assert not accepted(grammar, f"[{drop % ids}]")
    assert accepted(grammar, f"[{drop % 3},{pin}]") and accepted(grammar, f"[{pin}]")
    assert not accepted(grammar, f"[{pin},{drop % 3}]")
    assert not accepted(grammar, f"[{drop % 3},{drop % 7}]")
