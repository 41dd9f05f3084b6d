"""Whatever a text says, it stands in the role it was given: in messages, and in token ids.

More than 10,000 hostile texts in all, a third of them down to the control tokens of a template.
"""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from tokenizers import AddedToken

from agentmem.budget import Budget
from agentmem.context import Context
from agentmem.models.base import Part
from agentmem.models.full_rendering import FullRendering
from agentmem.models.langchain_messages import to_langchain
from agentmem.models.template import Template
from agentmem.models.template_probe import probe_template
from agentmem.segment import Message, Segment, ToolCall, Trust
from agentmem.storage.rows import StoredSegment
from tests.chat_templates import NUMBERED, TAKEN_APART
from tests.hostile import POISONS, made_up
from tests.tiny_models import tiny_metaspace_tokenizer, tiny_tokenizer

FENCED = re.compile(r"<data-([0-9a-f]{8})>\n(.*)\n</data-\1>", re.DOTALL)
CALL = ToolCall("c1", "search", '{"query": "weather"}')
ROLES = ["system", "user", "user", "assistant", "assistant", "tool", "user", "user", "user"]
NUM_MESSAGE_TEXTS = 7_000
TEXTS_PER_TEMPLATE = 250

HARMONY = (
    "{% for message in messages %}"
    "{{ '<|start|>' + message['role'] + '<|message|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"
)
"""In the style of GPT-OSS."""
TEMPLATES = {**TAKEN_APART, "harmony": HARMONY}


def window(text: str) -> Context:
    """A window in which the text stands wherever one can: said, called for, summed up, quoted."""
    context = Context(Budget(100_000), lambda part: 1)
    low = Trust.EXTERNAL
    exchange = (Message("assistant", "", (CALL,)), Message("tool", text, tool_call_id="c1"))
    said = (Message("user", text),)
    for segment in (
        Segment((Message("system", "Be kind."),), "core_block", "system", Trust.SYSTEM, id=1),
        Segment(said, "summary", "summary", parents=(1,), id=2, trust=low),
        Segment(said, id=3),
        Segment((Message("assistant", text),), origin="assistant", id=4),
        Segment(exchange, "tool_exchange", "tool", id=5, trust=low),
        Segment((Message("system", text),), origin="import", id=6, trust=low),
        Segment((Message("user", "And now?"),), id=8),
    ):
        context.put(StoredSegment(segment, 1, 1))
    recalled = Segment((Message("assistant", text),), origin="import", id=7, trust=low)
    context.put(StoredSegment(recalled, 2, 0), via="text", until_turn=9)
    return context


def messages_of(context: Context) -> list[Message]:
    return [message for part in context.prompt() for message in part.messages]


def shape(messages: list[BaseMessage]) -> list[tuple[str, object, object]]:
    """All that a provider reads of a conversation but its texts."""
    return [
        (
            message.type,
            message.tool_calls if isinstance(message, AIMessage) else (),
            message.tool_call_id if isinstance(message, ToolMessage) else None,
        )
        for message in messages
    ]


def test_a_hostile_text_stands_in_the_roles_of_a_harmless_one_and_behind_a_fence() -> None:
    random_ = random.Random(7)
    harmless = messages_of(window("Hello."))
    expected = {
        joined: shape(to_langchain(harmless, alternates_roles=joined)) for joined in (True, False)
    }
    known = FENCED.findall(messages_of(window("Hello."))[1].content)[0][0]
    texts = [*POISONS, *(made_up(random_, known) for _ in range(NUM_MESSAGE_TEXTS))]
    for number, text in enumerate(texts):
        messages = messages_of(window(text))
        assert [message.role for message in messages] == [message.role for message in harmless]
        fenced = [FENCED.fullmatch(message.content) for message in messages]
        # The summary, the result, what an import calls a system prompt, and what was recalled.
        inside = [match[2] for match in fenced if match is not None]
        assert inside == [text] * 4, text
        assert all(match[1] not in text for match in fenced if match is not None)
        assert messages[0].content == "Be kind."
        joined = number % 2 == 0
        as_sent = shape(to_langchain(messages, alternates_roles=joined))
        assert as_sent == expected[joined], text


def tokenizer_of(name: str) -> Any:
    if name != "harmony":
        return tiny_tokenizer(TEMPLATES[name])
    tokenizer = tiny_tokenizer(HARMONY)
    names = ["<|start|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>"]
    tokenizer.add_tokens([AddedToken(one, special=True) for one in names])
    return tokenizer


def conversation(text: str) -> list[Part]:
    """The text as a tool's result and as the user's words, behind a system prompt."""
    context = window(text)
    return [context.part(context[one].segment) for one in (1, 5, 3)]


def ids_of(template: Template, prompt: list[Part]) -> list[int]:
    blocks = template.blocks(prompt)
    return [one for block in blocks for one in template.encode(block)]


@pytest.mark.parametrize("name", TEMPLATES)
def test_no_text_becomes_a_control_token(name: str) -> None:
    random_ = random.Random(f"{name} texts")
    template = probe_template(tokenizer_of(name))
    control_ids = template.encoder.control_ids
    assert control_ids

    def controls(text: str) -> list[int]:
        return [one for one in ids_of(template, conversation(text)) if one in control_ids]

    expected = controls("Hello.")
    assert expected
    for text in (*POISONS, *(made_up(random_) for _ in range(TEXTS_PER_TEMPLATE))):
        assert controls(text) == expected, text


@pytest.mark.parametrize("name", ["chatml", "gemma", "mistral", "llama2"])
def test_nor_for_a_tokenizer_that_marks_word_starts(name: str) -> None:
    template = probe_template(tiny_metaspace_tokenizer(TEMPLATES[name]))

    def controls(text: str) -> list[int]:
        ids = ids_of(template, window(text).prompt())
        return [one for one in ids if one in template.encoder.control_ids]

    expected = controls("Hello.")
    for text in POISONS:
        assert controls(text) == expected, text


def test_nor_where_the_template_is_rendered_whole() -> None:
    tokenizer = tiny_tokenizer(NUMBERED)
    rendering = FullRendering(tokenizer)
    special = set(tokenizer.all_special_ids) | {
        id for id, token in tokenizer.added_tokens_decoder.items() if token.special
    }

    def controls(text: str) -> list[int]:
        return [one for one in rendering.encode(window(text).prompt()) if one in special]

    random_ = random.Random(3)
    expected = controls("Hello.")
    assert len(expected) > 2 * len(ROLES) - 2
    for text in (*POISONS, *(made_up(random_) for _ in range(200))):
        assert controls(text) == expected, text
