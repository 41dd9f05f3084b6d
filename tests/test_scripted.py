"""The scripted model streams, counts, stops and refuses as a real one does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmem.errors import BudgetExceeded, ConfigError, InvalidInput, ModelUnavailable
from agentmem.models.base import Options, Part, complete
from agentmem.models.scripted import (
    HEADER_TOKENS,
    Reply,
    ScriptedModel,
    ToolCalls,
    pieces,
    read_script,
)
from agentmem.segment import Message, ToolCall

SCHEMA = {
    "type": "object",
    "properties": {"drop": {"type": "array", "items": {"type": "integer"}, "minItems": 1}},
    "required": ["drop"],
}


def part(key: int | str, text: str = "Hello there.") -> Part:
    return Part(key, (Message("user", text),))


def say(model: ScriptedModel, options: Options = Options()) -> str:  # noqa: B008, frozen
    return complete(model, [part(1)], options).text


def test_replies_come_in_order_and_then_the_default_for_ever() -> None:
    model = ScriptedModel(["one", Reply("two")])
    model.enqueue("three")
    assert [say(model) for _ in range(5)] == ["one", "two", "three", "ok.", "ok."]


def test_a_reply_streams_in_pieces_that_join_to_its_text() -> None:
    deltas = list(ScriptedModel(["Hello, wide world!"]).generate([part(1)], Options()))
    streamed = [delta.text for delta in deltas[:-1]]
    assert streamed == ["Hello", ",", " wide", " world", "!"]
    completion = deltas[-1].completion
    assert completion is not None
    assert completion.text == "Hello, wide world!"
    assert completion.finish_reason == "stop"
    assert completion.completion_tokens == 5
    assert completion.prompt_tokens == completion.prefilled_tokens == 3 + HEADER_TOKENS


@given(st.text())
@settings(deadline=None, max_examples=200)
def test_pieces_lose_no_character(text: str) -> None:
    assert "".join(pieces(text)) == text


def test_a_long_word_and_long_whitespace_cost_as_many_tokens_as_they_are_long() -> None:
    assert len(pieces("x" * 8_000)) == 1_000
    assert len(pieces(" " * 1_000)) == 1_000


def test_tool_calls_count_as_tokens_of_their_part() -> None:
    call = ToolCall("c", "drop", '{"a": 1}')
    model = ScriptedModel()
    bare = Part(1, (Message("assistant", "x"),))
    calling = Part(1, (Message("assistant", "x", (call,)),))
    assert model.count_tokens(calling) > model.count_tokens(bare)


def test_max_new_tokens_cuts_a_reply_short() -> None:
    completion = complete(ScriptedModel(["a b c d"]), [part(1)], Options(max_new_tokens=2))
    assert (completion.text, completion.finish_reason) == ("a b", "length")


def test_a_stop_string_ends_a_reply_and_is_not_part_of_it() -> None:
    options = Options(stop=("END", "never"))
    completion = complete(ScriptedModel(["yes END no"]), [part(1)], options)
    assert (completion.text, completion.finish_reason) == ("yes ", "stop")


def test_a_cancelled_reply_ends_as_it_stands() -> None:
    answers = iter([False, False, True])
    options = Options(cancelled=lambda: next(answers))
    completion = complete(ScriptedModel(["a b c d"]), [part(1)], options)
    assert (completion.text, completion.finish_reason) == ("a b", "interrupted")


def test_a_prompt_over_the_budget_is_refused_and_a_reply_ends_at_it() -> None:
    prompt = [part(1, "one two three")]
    with pytest.raises(BudgetExceeded, match="7 tokens: at most 6"):
        complete(ScriptedModel(), prompt, Options(max_tokens=6))
    completion = complete(ScriptedModel(["a b c d"]), prompt, Options(max_tokens=9))
    assert (completion.text, completion.finish_reason) == ("a b", "length")


def test_tool_calls_are_played_with_ids_of_their_own() -> None:
    model = ScriptedModel([ToolCalls.of("search", query="cat"), ToolCalls.of("search", query="x")])
    first, second = (complete(model, [part(1)], Options()) for _ in range(2))
    assert first.finish_reason == "tool_calls"
    assert first.tool_calls[0].name == "search"
    assert first.tool_calls[0].parsed() == {"query": "cat"}
    assert first.tool_calls[0].id != second.tool_calls[0].id


def test_a_scripted_exception_is_raised_and_the_script_goes_on() -> None:
    model = ScriptedModel([ModelUnavailable("down"), "back"])
    with pytest.raises(ModelUnavailable, match="down"):
        say(model)
    assert say(model) == "back"


def test_a_stream_can_break_in_the_middle() -> None:
    stream = ScriptedModel([Reply("half of", error=ModelUnavailable("cut"))]).generate(
        [part(1)], Options()
    )
    assert next(stream).text + next(stream).text == "half of"
    with pytest.raises(ModelUnavailable, match="cut"):
        next(stream)


def test_a_callable_sees_the_prompt_and_the_options() -> None:
    def echo(prompt: Sequence[Part], options: Options) -> str:
        return f"{prompt[-1].messages[0].content} {options.seed}"

    assert say(ScriptedModel(default=echo), Options(seed=7)) == "Hello there. 7"


def test_the_history_holds_what_was_asked_in_order() -> None:
    model = ScriptedModel()
    complete(model, [part(1, "a"), part(2, "b")], Options(seed=1))
    complete(model, [part(3, "c")], Options(seed=2))
    assert [request.options.seed for request in model.history] == [1, 2]
    assert [message.content for message in model.history[0].messages] == ["a", "b"]


def test_a_request_for_json_gets_the_smallest_fitting_value_where_nothing_is_scripted() -> None:
    model = ScriptedModel(["A reply for the user."])
    options = Options(json_schema=SCHEMA)
    assert json.loads(say(model, options)) == {"drop": [0]}
    assert model.num_unplayed == 1
    assert say(model) == "A reply for the user."


@pytest.mark.parametrize("item", ['{"drop": [3]}', '{"broken', Reply("[1")], ids=repr)
def test_a_request_for_json_plays_what_looks_scripted_for_it_even_when_it_is_wrong(
    item: str | Reply,
) -> None:
    model = ScriptedModel(["Prose.", item])
    expected = item if isinstance(item, str) else item.text
    assert say(model, Options(json_schema=SCHEMA)) == expected
    assert say(model) == "Prose."


def test_asides_have_a_script_of_their_own_that_is_played_whatever_it_is() -> None:
    model = ScriptedModel(["for the user"], asides=["a summary", "nonsense"])
    assert say(model, Options(ephemeral=True)) == "a summary"
    assert say(model, Options(json_schema=SCHEMA)) == "nonsense"
    assert say(model, Options(ephemeral=True)) == "ok."
    assert json.loads(say(model, Options(json_schema=SCHEMA))) == {"drop": [0]}
    assert say(model) == "for the user"


def test_asides_can_be_enqueued() -> None:
    model = ScriptedModel(["for the user"])
    model.enqueue_asides("one", "two")
    assert model.num_unplayed == 3
    assert [say(model, Options(ephemeral=True)) for _ in range(3)] == ["one", "two", "ok."]


def test_without_a_kv_tier_everything_is_read_every_time() -> None:
    model = ScriptedModel()
    assert model.kv is None
    assert not model.capabilities.has_kv
    for _ in range(2):
        completion = complete(model, [part(1)], Options())
        assert completion.prefilled_tokens == completion.prompt_tokens


def test_the_kv_tier_reads_only_new_parts_and_parks_segments_that_left() -> None:
    model = ScriptedModel(has_kv=True)
    kv = model.kv
    assert kv is not None
    complete(model, [part("header"), part(1), part(2)], Options())
    completion = complete(model, [part(2), part(3)], Options())
    assert completion.prefilled_tokens == model.count_tokens(part(3))
    assert kv.usage().states == {2: "live", 3: "live", 1: "parked"}
    assert not kv.has("header")
    back = complete(model, [part(1), part(2)], Options())
    assert back.prefilled_tokens == 0
    usage = kv.usage()
    assert usage.window_bytes == 2 * kv.dense_bytes_per_token * model.count_tokens(part(1))
    assert usage.parked_ram_bytes == usage.window_bytes // 2


def test_an_ephemeral_request_leaves_no_trace_in_the_kv_tier() -> None:
    model = ScriptedModel(has_kv=True)
    assert model.kv is not None
    complete(model, [part(1)], Options())
    before = model.kv.usage()
    completion = complete(model, [part(1), part("question")], Options(ephemeral=True))
    assert completion.prefilled_tokens == model.count_tokens(part("question"))
    assert model.kv.usage() == before


def test_the_kv_tier_forgets_and_tells_the_attention_it_was_given() -> None:
    model = ScriptedModel(has_kv=True)
    assert model.kv is not None
    complete(model, [part(1), part(2)], Options())
    model.kv.set_attention({1: 0.5, 2: 0.25, 9: 1.0})
    assert model.kv.attention() == {1: 0.5, 2: 0.25}
    model.kv.forget(1)
    assert not model.kv.has(1)
    assert model.kv.attention() == {2: 0.25}
    model.close()
    assert not model.kv.has(2)


def test_the_kv_tier_refuses_a_doubled_key_and_a_changed_part() -> None:
    model = ScriptedModel(has_kv=True)
    with pytest.raises(InvalidInput, match="got 1 twice"):
        complete(model, [part(1), part(1)], Options())
    complete(model, [part(1, "a")], Options())
    with pytest.raises(InvalidInput, match="The part 1 must keep its messages"):
        complete(model, [part(1, "b")], Options())


def test_a_script_file_plays_replies_json_tool_calls_and_errors(tmp_path: Path) -> None:
    path = tmp_path / "script.jsonl"
    lines = [
        '"plain"',
        "",
        '{"text": "wordy", "thought": "hm"}',
        '{"tool_calls": [{"name": "search", "arguments": {"query": "ü"}}]}',
        '{"json": {"drop": [2]}, "aside": true}',
        '{"error": "down"}',
    ]
    path.write_text("\n".join(lines), "utf-8")
    model = read_script(path)
    assert say(model) == "plain"
    assert complete(model, [part(1)], Options()).thought == "hm"
    assert complete(model, [part(1)], Options()).tool_calls[0].parsed() == {"query": "ü"}
    assert json.loads(say(model, Options(json_schema=SCHEMA))) == {"drop": [2]}
    with pytest.raises(ModelUnavailable, match="down"):
        say(model)


@pytest.mark.parametrize("line", ["{", "7", '{"txt": "x"}', '{"tool_calls": [{}]}', "[1]"])
def test_a_bad_script_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "script.jsonl"
    path.write_text(f'"fine"\n{line}\n', "utf-8")
    with pytest.raises(ConfigError, match=r"script\.jsonl, line 2"):
        read_script(path)


def test_a_missing_script_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.jsonl"):
        read_script(tmp_path / "nowhere.jsonl")
