"""Replies under a grammar, tool calls, and thoughts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from agentmem.models.base import Completion, Part, Tool, complete
from agentmem.models.engine import Engine, engine_for
from agentmem.models.loading import load
from agentmem.models.local import LocalModel
from agentmem.segment import Message, ToolCall
from tests import chat_templates
from tests.local_models import (
    OPTIONS,
    conversation,
    part,
    says,
    spoken,
)
from tests.tiny_models import save_tiny_model, tiny_tokenizer


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return engine_for(load(save_tiny_model(tmp_path_factory.mktemp("tiny"))))


@pytest.fixture
def model(engine: Engine) -> LocalModel:
    return LocalModel(engine, kv_format="dense")


@pytest.fixture(params=["dense", "q8", "text"])
def any_model(engine: Engine, request: pytest.FixtureRequest) -> LocalModel:
    if request.param == "text":
        return LocalModel(engine, use_kv=False)
    return LocalModel(engine, kv_format=request.param)


SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["keep", "drop"]}, "why": {"type": "string", "maxLength": 8}},
    "required": ["name", "why"],
}


@pytest.mark.parametrize("seed", range(3))
def test_a_schema_is_obeyed_and_forced_tokens_cost_no_forward(
    any_model: LocalModel, seed: int
) -> None:
    options = replace(
        OPTIONS, json_schema=SCHEMA, max_new_tokens=200, temperature=1.0, seed=seed, ephemeral=True
    )
    before = any_model.num_forwards
    completion = complete(any_model, conversation(2), options)
    value = json.loads(completion.text)
    assert value["name"] in ("keep", "drop") and len(value["why"]) <= 8
    assert completion.finish_reason == "stop"
    assert any_model.num_forwards - before < completion.completion_tokens


SEARCH = Tool(
    "search", "Search what was said.",
    {"type": "object", "properties": {"query": {"type": "string", "maxLength": 6}},
     "required": ["query"]},
)  # fmt: skip


def call_and_result(completion: Completion) -> Part:
    result = Message("tool", "Nothing found.", tool_call_id=completion.tool_calls[0].id)
    return Part(60, (Message("assistant", completion.text, completion.tool_calls), result))


def test_a_tool_call_is_read_kept_and_answered(model: LocalModel) -> None:
    options = replace(OPTIONS, tools=(SEARCH,), temperature=1.0, max_new_tokens=120)
    prompt = conversation(1)
    brace = model._engine.vocabulary.encoder.token_id("{")
    with says(model._engine.loaded.model, [brace or 0]):
        pieces = list(model.generate(prompt, options))
    completion = pieces[-1].completion
    assert (
        completion is not None
        and completion.finish_reason == "tool_calls"
        and completion.text == ""
    )
    assert "".join(piece.text for piece in pieces) == ""
    call = completion.tool_calls[0]
    assert call.name == "search" and set(call.parsed()) == {"query"}
    said = spoken(model)
    assert "search(query): Search what was said." in model.window_text()
    after = complete(model, [*prompt, call_and_result(completion)], options)
    assert "Tool result" in model.window_text()
    ids = model.prompt_token_ids()
    assert any(ids[i : i + len(said)] == said for i in range(len(ids)))
    assert after.prefilled_tokens < 60


def test_text_beside_tools_is_streamed_as_it_is(model: LocalModel) -> None:
    options = replace(OPTIONS, tools=(SEARCH,))
    pieces = list(model.generate(conversation(1), options))
    completion = pieces[-1].completion
    assert completion is not None and not completion.tool_calls
    assert "".join(piece.text for piece in pieces) == completion.text != ""


def test_a_call_in_the_history_is_rendered_again(model: LocalModel) -> None:
    call = ToolCall("c9", "search", '{"query":"fox"}')
    exchange = (Message("assistant", "", (call,)), Message("tool", "3 hits", tool_call_id="c9"))
    complete(model, [*conversation(1), Part(9, exchange)], OPTIONS)
    assert '{"name":"search","arguments":{"query":"fox"}}' in model.window_text()


RESPONSE_TEMPLATE = {
    "version": 1,
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "content": {"content": "text", "optional": True},
        "tool_calls": {
            "open": "<tool_call>", "close": "</tool_call>", "content": "json", "repeats": True
        },
    },
}  # fmt: skip


def test_calls_in_the_tokenizers_own_form_are_read_by_its_response_template(
    tmp_path: Path,
) -> None:
    folder = save_tiny_model(tmp_path, chat_templates.QWEN3)
    tokenizer = tiny_tokenizer(chat_templates.QWEN3, response_template=RESPONSE_TEMPLATE)
    tokenizer.save_pretrained(folder)
    model = LocalModel.load(folder)
    engine = model._engine
    call = '<tool_call>{"name":"search","arguments":{"query":"fox"}}</tool_call>'
    script = [*engine.vocabulary.encoder.encode("", call), 2]
    options = replace(OPTIONS, tools=(SEARCH,), max_new_tokens=80)
    with says(engine.loaded.model, script):
        pieces = list(model.generate(conversation(1), options))
    completion = pieces[-1].completion
    assert completion is not None and completion.finish_reason == "tool_calls"
    assert completion.tool_calls[0].name == "search"
    assert completion.tool_calls[0].parsed() == {"query": "fox"}
    assert "".join(piece.text for piece in pieces) == "" == completion.text
    complete(model, [*conversation(1), call_and_result(completion)], options)
    assert call in model.window_text()


def test_a_garbled_call_is_text(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path, chat_templates.QWEN3)
    tokenizer = tiny_tokenizer(chat_templates.QWEN3, response_template=RESPONSE_TEMPLATE)
    tokenizer.save_pretrained(folder)
    model = LocalModel.load(folder)
    script = [*model._engine.vocabulary.encoder.encode("", '<tool_call>{"name":'), 2]
    with says(model._engine.loaded.model, script):
        options = replace(OPTIONS, tools=(SEARCH,), max_new_tokens=40)
        completion = complete(model, conversation(1), options)
    assert completion.finish_reason == "stop" and completion.text == '<tool_call>{"name":'


def test_a_thought_is_told_apart_and_leaves_the_history(tmp_path: Path) -> None:
    model = LocalModel.load(save_tiny_model(tmp_path, chat_templates.QWEN3))
    engine = model._engine
    opens, closes = engine.vocabulary.thought_ids
    assert opens is not None and closes is not None
    script = [opens, *engine.vocabulary.encoder.encode("", "hm, a fox\n"), closes,
              *engine.vocabulary.encoder.encode("", "\n\nYes.")]  # fmt: skip
    with says(engine.loaded.model, [*script, 2]):
        completion = complete(model, conversation(1), replace(OPTIONS, max_new_tokens=40))
    assert (completion.text, completion.thought) == ("Yes.", "hm, a fox")
    prompt = [*conversation(1), part(50, "assistant", "Yes."), part(51, "user", "Why?")]
    complete(model, prompt, OPTIONS)
    assert "hm, a fox" not in model.window_text() and "Yes." in model.window_text()
