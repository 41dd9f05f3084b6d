"""Any LangChain chat model answers as a `ChatModel`; a bad server costs an error, not an hour."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

from agentmem.errors import BudgetExceeded, InvalidInput, ModelUnavailable
from agentmem.models.base import Completion, Options, Part, Tool, complete, tools_part
from agentmem.models.langchain import LangChainModel
from agentmem.models.openai_chat import openai_model
from agentmem.segment import Message
from tests import fake_openai
from tests.fake_openai import (
    Behaviour,
    FakeOpenAI,
    chunk,
    reply,
    serving,
    status,
    stream,
    tool_call,
)

PROMPT = [Part(1, (Message("system", "Be brief."),)), Part(2, (Message("user", "Hi."),))]
SCHEMA = {"type": "object", "properties": {"drop": {"type": "array"}}, "required": ["drop"]}
SEARCH = Tool("search", "Search the memory.", {"type": "object", "properties": {}})


DEFAULTS = Options()


def model_at(server: FakeOpenAI, seconds: float = 5.0) -> LangChainModel:
    return openai_model("m", base_url=server.url, seconds=seconds, first_wait_seconds=0.01)


def ask(
    *behaviours: Behaviour,
    options: Options = DEFAULTS,
    seconds: float = 5.0,
) -> tuple[Completion, FakeOpenAI]:
    with serving(*behaviours) as server:
        model = model_at(server, seconds)
        try:
            return complete(model, PROMPT, options), server
        finally:
            model.close()


def failure(*behaviours: Behaviour, seconds: float = 5.0) -> tuple[str, FakeOpenAI]:
    with serving(*behaviours) as server:
        model = model_at(server, seconds)
        with pytest.raises(ModelUnavailable) as caught:
            complete(model, PROMPT, Options())
        model.close()
        return str(caught.value), server


def test_a_reply_streams_as_it_comes_and_ends_with_its_counts() -> None:
    usage = fake_openai.usage_chunk(12, 2, cached=4)
    with serving(reply("Hel", "lo.", usage=usage)) as server:
        model = model_at(server)
        deltas = list(model.generate(PROMPT, Options()))
        model.close()
    assert [delta.text for delta in deltas[:-1]] == ["Hel", "lo."]
    completion = deltas[-1].completion
    assert completion is not None
    assert (completion.text, completion.finish_reason) == ("Hello.", "stop")
    assert (completion.prompt_tokens, completion.completion_tokens) == (12, 2)
    assert completion.prefilled_tokens == 8
    assert completion.prefill_seconds > 0


def test_the_request_carries_messages_limits_and_sampling_and_asks_for_usage() -> None:
    options = Options(max_new_tokens=9, temperature=0.5, top_p=0.9, seed=3, stop=("END",))
    _, server = ask(reply("x"), options=options)
    body = server.requests[0]
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert body["messages"][1]["content"] == "Hi."
    sent = {key: body[key] for key in ("max_tokens", "temperature", "top_p", "seed", "stop")}
    assert sent == {"max_tokens": 9, "temperature": 0.5, "top_p": 0.9, "seed": 3, "stop": ["END"]}
    assert body["stream_options"] == {"include_usage": True}


def test_a_reply_cut_at_its_limit_says_length() -> None:
    completion, _ = ask(reply("a b", finish="length"))
    assert completion.finish_reason == "length"


def test_a_server_that_ignores_the_limit_is_cut_off() -> None:
    completion, _ = ask(reply(*["x" * 50] * 20), options=Options(max_new_tokens=10))
    assert completion.finish_reason == "length"
    assert len(completion.text) <= 250


def test_a_stop_string_ends_a_reply_even_where_the_server_ignores_it() -> None:
    completion, _ = ask(reply("yes E", "ND no"), options=Options(stop=("END",)))
    assert (completion.text, completion.finish_reason) == ("yes ", "stop")


def test_a_tool_call_comes_in_pieces_and_arrives_whole() -> None:
    completion, server = ask(
        tool_call("search", '{"query": ', '"cat"}', id="c9"), options=Options(tools=(SEARCH,))
    )
    assert completion.finish_reason == "tool_calls"
    [call] = completion.tool_calls
    assert (call.id, call.name, call.parsed()) == ("c9", "search", {"query": "cat"})
    assert server.requests[0]["tools"][0]["function"]["name"] == "search"


def test_a_tool_call_cut_short_stays_cut_short() -> None:
    completion, _ = ask(
        tool_call("drop", '{"ids": [1', finish="length"), options=Options(tools=(SEARCH,))
    )
    assert completion.tool_calls[0].arguments == '{"ids": [1'
    with pytest.raises(ValueError, match="delimiter"):
        completion.tool_calls[0].parsed()


def test_json_is_asked_for_as_the_arguments_of_one_forced_tool() -> None:
    completion, server = ask(
        tool_call("answer", '{"drop": [3, 5]}'), options=Options(json_schema=SCHEMA)
    )
    assert completion.text == '{"drop": [3, 5]}'
    assert (completion.finish_reason, completion.tool_calls) == ("stop", ())
    body = server.requests[0]
    assert body["tools"][0]["function"]["parameters"] == SCHEMA
    assert body["tool_choice"] == {"type": "function", "function": {"name": "answer"}}


def test_json_that_is_no_object_travels_as_a_value() -> None:
    schema = {"type": "array", "items": {"$ref": "#/$defs/A"}, "$defs": {"A": {"type": "integer"}}}
    completion, server = ask(
        tool_call("answer", '{"value": [3, 5]}'), options=Options(json_schema=schema)
    )
    assert json.loads(completion.text) == [3, 5]
    parameters = server.requests[0]["tools"][0]["function"]["parameters"]
    assert parameters["$defs"] == schema["$defs"]
    assert parameters["properties"]["value"] == {"type": "array", "items": schema["items"]}


def test_json_is_asked_for_in_words_where_the_server_has_no_tools() -> None:
    with serving(
        status(400, "tool_choice is not supported"),
        status(400, "m does not support tools"),
        reply('Sure:\n```json\n{"drop": [1]}\n```\nDone.'),
    ) as server:
        model = model_at(server)
        for _ in range(2):
            completion = complete(model, PROMPT, Options(json_schema=SCHEMA))
            assert completion.text == '{"drop": [1]}'
        model.close()
    assert not model.capabilities.calls_tools
    assert len(server.requests) == 4
    roles = [message["role"] for message in server.requests[-1]["messages"]]
    assert roles == ["system", "user"]
    assert '"required": ["drop"]' in server.requests[-1]["messages"][-1]["content"]
    assert "tools" not in server.requests[-1]


def test_a_refused_parameter_is_left_out_from_then_on() -> None:
    refused = "Unsupported value: 'temperature' does not support 0 with this model."
    with serving(status(400, refused), reply("x")) as server:
        model = model_at(server)
        assert complete(model, PROMPT, Options()).text == "x"
        assert complete(model, PROMPT, Options()).text == "x"
        model.close()
    assert ["temperature" in body for body in server.requests] == [True, False, False]


def test_too_many_requests_and_server_errors_are_tried_again_as_told() -> None:
    began = time.monotonic()
    completion, server = ask(
        status(429, "slow down", {"Retry-After": "0.2"}), status(503, "busy"), reply("x")
    )
    assert completion.text == "x"
    assert len(server.requests) == 3
    assert time.monotonic() - began >= 0.2


def test_four_tries_are_the_most() -> None:
    message, server = failure(status(500, "oops"))
    assert len(server.requests) == 4
    assert "status 500" in message
    assert "oops" in message


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (400, "This model's maximum context length is 8 tokens."),
        (401, "Incorrect API key."),
        (404, "The model `m` does not exist."),
        (429, "You exceeded your quota (insufficient_quota)."),
    ],
)
def test_what_will_not_pass_is_told_at_once_in_the_servers_words(code: int, text: str) -> None:
    message, server = failure(status(code, text))
    assert text in message
    assert len(server.requests) == 1


def test_a_wait_longer_than_the_deadline_is_not_waited() -> None:
    began = time.monotonic()
    message, _ = failure(status(429, "later", {"Retry-After": "30"}))
    assert "later" in message
    assert time.monotonic() - began < 4


def test_a_dripping_server_is_left_at_the_deadline_and_its_thread_ends() -> None:
    began = time.monotonic()
    with serving(fake_openai.drip("one ")) as server:
        model = model_at(server, seconds=0.6)
        stream_ = model.generate(PROMPT, Options())
        assert next(stream_).text == "one "
        with pytest.raises(ModelUnavailable, match=r"within 0\.6 s"):
            next(stream_)
        assert time.monotonic() - began < 2
        _wait_for(lambda: server.num_open == 0 and not _call_threads())
        model.close()


def test_a_silent_server_is_left_at_the_deadline() -> None:
    began = time.monotonic()
    message, _ = failure(fake_openai.stall, seconds=0.4)
    assert "within 0.4 s" in message
    assert time.monotonic() - began < 3
    _wait_for(lambda: not _call_threads())


def test_a_server_that_hangs_up_is_tried_again_and_one_that_is_not_there_is_unavailable() -> None:
    completion, server = ask(fake_openai.hang_up, reply("x"))
    assert completion.text == "x"
    assert len(server.requests) == 2
    model = openai_model("m", base_url="http://127.0.0.1:9/v1", first_wait_seconds=0.01)
    with pytest.raises(ModelUnavailable, match="openai-compatible:m failed"):
        complete(model, PROMPT, Options())


def test_a_stream_that_breaks_off_is_an_error_and_not_a_short_reply() -> None:
    message, server = failure(stream(chunk({"content": "The code is 58"}), is_whole=False))
    assert "broke off" in message
    assert len(server.requests) == 1


def test_a_stream_that_is_no_json_is_unavailable() -> None:
    message, _ = failure(fake_openai.garbage)
    assert "openai-compatible:m failed" in message


def test_a_cancelled_reply_ends_as_it_stands_and_hangs_up() -> None:
    with serving(fake_openai.drip("one ")) as server:
        model = model_at(server)
        asked = threading.Event()
        seen: list[str] = []
        for delta in model.generate(PROMPT, Options(cancelled=asked.is_set)):
            seen.append(delta.text)
            asked.set()
            completion = delta.completion
        assert completion is not None
        assert (completion.text, completion.finish_reason) == ("one ", "interrupted")
        _wait_for(lambda: server.num_open == 0)
        model.close()


def test_a_reader_who_leaves_hangs_up() -> None:
    with serving(fake_openai.drip("one ")) as server:
        model = model_at(server)
        stream_ = model.generate(PROMPT, Options())
        next(stream_)
        stream_.close()  # type: ignore[attr-defined]
        _wait_for(lambda: server.num_open == 0)
        model.close()


def test_a_prompt_over_the_budget_is_refused_before_it_is_sent() -> None:
    with serving(reply("x")) as server:
        model = model_at(server)
        with pytest.raises(BudgetExceeded, match="at most 10"):
            complete(model, PROMPT, Options(max_tokens=10))
        model.close()
    assert server.requests == []


def test_the_reply_may_take_what_prompt_and_tools_leave_of_the_budget() -> None:
    model = LangChainModel(FakeListChatModel(responses=[]))
    fixed = sum(map(model.count_tokens, [*PROMPT, tools_part([SEARCH])]))
    options = Options(max_new_tokens=100, max_tokens=fixed + 7, tools=(SEARCH,))
    _, server = ask(reply("x"), options=options)
    assert server.requests[0]["max_tokens"] == 7
    with pytest.raises(BudgetExceeded, match=f"has {fixed} tokens: at most {fixed} are"):
        ask(reply("x"), options=replace(options, max_tokens=fixed))


def test_what_is_put_between_messages_counts_too() -> None:
    prompt = [Part(1, (Message("assistant", "Hello."),))]
    with serving(reply("x")) as server:
        model = model_at(server)
        complete(model, prompt, Options(max_tokens=100, max_new_tokens=100))
        sent = server.requests[0]
        model.close()
    assert [message["role"] for message in sent["messages"]] == ["user", "assistant"]
    parts = [Part(i, (Message(m["role"], m["content"]),)) for i, m in enumerate(sent["messages"])]
    assert sum(map(model.count_tokens, parts)) + sent["max_tokens"] == 100


def test_a_reply_of_no_tokens_is_not_asked_for() -> None:
    completion, server = ask(reply("x"), options=Options(max_new_tokens=0))
    assert (completion.text, completion.finish_reason, server.requests) == ("", "length", [])
    assert completion.prompt_tokens == 16


@pytest.mark.parametrize(
    "behaviour", [reply(""), reply(" \n"), tool_call("search", "{}"), reply("", finish="length")]
)
def test_an_answer_without_words_or_calls_that_were_asked_for_is_an_error(
    behaviour: Behaviour,
) -> None:
    text, server = failure(behaviour)
    assert text == "openai-compatible:m gave an empty answer."
    assert len(server.requests) == 1


@pytest.mark.parametrize("size", [2_000, 10 * 2**20])
def test_of_an_answer_beyond_its_limit_nothing_is_kept_however_large_a_piece(size: int) -> None:
    completion, _ = ask(reply("x" * size), options=Options(max_new_tokens=10))
    assert completion.text == "x" * 160 and completion.finish_reason == "length"


def test_a_call_that_lost_its_arguments_is_not_one_without() -> None:
    huge = tool_call("search", '{"query": "' + "x" * 5000 + '"}')
    completion, _ = ask(huge, options=Options(tools=(SEARCH,), max_new_tokens=10))
    [call] = completion.tool_calls
    assert completion.finish_reason == "length"
    with pytest.raises(ValueError, match="Expecting value"):
        call.parsed()


def test_calls_beyond_the_length_of_a_reply_are_not_kept() -> None:
    many = fake_openai.tool_calls(*[(f"c{n}", "search", "{}") for n in range(500)])
    completion, _ = ask(many, options=Options(tools=(SEARCH,), max_new_tokens=64))
    assert 8 < len(completion.tool_calls) < 40


def test_a_try_that_was_lost_leaves_nothing_to_the_next_one() -> None:
    half = {"index": 0, "id": "c", "type": "function",
            "function": {"name": "search", "arguments": '{"que'}}  # fmt: skip
    for lost in (
        fake_openai.broken(chunk({"tool_calls": [half]})),
        stream(chunk({"tool_calls": [half]}), is_whole=False),
    ):
        completion, server = ask(
            lost, tool_call("search", '{"query": "cat"}'), options=Options(tools=(SEARCH,))
        )
        assert [call.parsed() for call in completion.tool_calls] == [{"query": "cat"}]
        assert len(server.requests) == 2


def test_calls_have_ids_of_their_own_and_text_that_can_be_stored() -> None:
    behaviour = fake_openai.tool_calls(
        ("a", "search", "{}"), ("a", "sea\0rch", "{}"), ("", "\ud800", "{}"), ("call_1", "x", "{}")
    )
    completion, _ = ask(behaviour, options=Options(tools=(SEARCH,)))
    assert len({call.id for call in completion.tool_calls}) == 4
    assert [call.name for call in completion.tool_calls] == ["search", "sea␀rch", "\ufffd", "x"]


def test_half_a_character_in_a_reply_is_replaced() -> None:
    completion, _ = ask(reply("a \ud83d", " b\0"))
    assert completion.text == "a \ufffd b␀"


def test_the_words_of_an_error_are_cut() -> None:
    text, _ = failure(status(400, "x" * 100_000))
    assert len(text) < 600


def test_tokens_are_counted_high_and_without_the_network() -> None:
    model = LangChainModel(FakeListChatModel(responses=["x"]))
    assert model.count_tokens(Part(1, (Message("user", "x" * 30),))) == 16
    assert model.count_tokens(Part(1, (Message("user", "ü" * 30),))) == 26
    assert model.count_tokens(Part(1, (Message("user", "\ud800"),))) == 7


def test_any_chat_model_streams_even_one_without_usage_or_tools() -> None:
    model = LangChainModel(FakeListChatModel(responses=["Hello there."]), context_tokens=512)
    completion = complete(model, PROMPT, Options())
    assert completion.text == "Hello there."
    assert completion.prompt_tokens == sum(map(model.count_tokens, PROMPT))
    assert completion.completion_tokens > 0
    assert not model.capabilities.calls_tools
    assert model.capabilities.context_tokens == 512


class WholeModel(BaseChatModel):
    """Answers all at once, with a thought and calls; refuses a keyword as Python does."""

    seen: list[dict[str, Any]] = []

    @property
    def _llm_type(self) -> str:
        return "whole"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        self.seen.append(kwargs)
        if "temperature" in kwargs:
            raise TypeError("create() got an unexpected keyword argument 'temperature'")
        message = AIMessage(
            [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Yes."}],
            tool_calls=[{"name": "search", "args": {"query": "x"}, "id": "a"}],
            usage_metadata={"input_tokens": 5, "output_tokens": 6, "total_tokens": 11},
        )
        return ChatResult(generations=[ChatGeneration(message=message)])


def test_a_model_that_does_not_stream_gives_its_reply_thought_calls_and_usage() -> None:
    model = LangChainModel(WholeModel(seen=[]))
    completion = complete(model, PROMPT, Options(tools=(SEARCH,)))
    assert (completion.text, completion.thought) == ("Yes.", "Hm.")
    assert completion.tool_calls[0].parsed() == {"query": "x"}
    assert (completion.prompt_tokens, completion.completion_tokens) == (5, 6)
    assert model.name == "whole"


class BrokenModel(FakeListChatModel):
    """Streams a little, then fails with an error of its own."""

    def _stream(self, *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        yield ChatGenerationChunk(message=AIMessageChunk(content="half"))
        raise ConnectionError("reset by peer")


def test_an_error_in_the_middle_of_a_reply_is_told_and_not_tried_again() -> None:
    model = LangChainModel(BrokenModel(responses=[]), name="broken", first_wait_seconds=0.01)
    stream_ = model.generate(PROMPT, Options())
    assert next(stream_).text == "half"
    with pytest.raises(ModelUnavailable, match="broken broke off: reset by peer"):
        next(stream_)


def test_a_deadline_must_be_in_the_future() -> None:
    with pytest.raises(InvalidInput, match="must be above 0: got 0"):
        LangChainModel(FakeListChatModel(responses=[]), seconds=0)


def _call_threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "agentmem-call"]


def _wait_for(is_true: Any, seconds: float = 3.0) -> None:
    until = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.01)
