"""A model that says what it was told to say, so that everything else runs without one.

It streams, counts tokens, stops, is cancelled and refuses a prompt over the budget as a real model
does. It does not look at the prompt; a script may (`Callable` items do).
"""

from __future__ import annotations

import json
import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentmem.errors import BudgetExceeded, ConfigError, ModelUnavailable
from agentmem.models.base import (
    Capabilities,
    ChatModel,
    Completion,
    Delta,
    FinishReason,
    Options,
    Part,
    PartKey,
)
from agentmem.models.schema_instance import minimal_instance
from agentmem.models.scripted_kv import ScriptedKV
from agentmem.segment import Message, ToolCall

# A token is at most eight letters, so that one long word is not cheap.
_PIECE = re.compile(r"\s?\w{1,8}|\s?[^\w\s]|\s")
HEADER_TOKENS = 4
"""Tokens of a message besides its text."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A scripted reply.

    Args:
        text: what is said.
        thought: what is thought before.
        error: raised after the text was streamed, in place of an end.
    """

    text: str
    thought: str = ""
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class ToolCalls:
    """A scripted reply that calls tools. A call with the id "" is given one."""

    calls: tuple[ToolCall, ...]
    text: str = ""

    @classmethod
    def of(cls, name: str, **arguments: Any) -> ToolCalls:
        """One call with these arguments."""
        return cls((ToolCall("", name, json.dumps(arguments)),))


@dataclass(frozen=True, slots=True)
class Request:
    """What a model was asked."""

    prompt: tuple[Part, ...]
    options: Options

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages of all parts, in order."""
        return tuple(message for part in self.prompt for message in part.messages)


Line = str | Reply | ToolCalls | Exception
"""What a script can say; an exception is raised."""
ScriptItem = Line | Callable[[Sequence[Part], Options], Line]


def pieces(text: str) -> list[str]:
    """The tokens of a text: words of at most eight letters, marks, spaces. Joined they are it."""
    return _PIECE.findall(text)


class ScriptedModel(ChatModel):
    """Plays replies and tool calls in order, then `default` for ever.

    An aside is a request with a JSON schema, or an ephemeral one: a review, a summary. A request
    with a JSON schema that finds nothing scripted for it gets the smallest value that fits.

    Args:
        replies: what to say. A callable is given the prompt and the options; an exception is
            raised.
        default: what to say when the script is at its end.
        asides: what to say to asides, whatever it is; `replies` are then left to the others. By
            default asides take from `replies` too, but a request with a JSON schema leaves alone
            what does not begin like JSON.
        weights: how likely each answer is to a part, up to a factor; equally where None.
        has_kv: keep the keys of parts as a KV tier would (`kv`).
        capabilities: what the model claims to be able to do.
    """

    def __init__(
        self,
        replies: Iterable[ScriptItem] = (),
        default: ScriptItem = "ok.",
        *,
        asides: Iterable[ScriptItem] | None = None,
        weights: Callable[[Part], Sequence[float]] | None = None,
        has_kv: bool = False,
        capabilities: Capabilities = Capabilities(calls_tools=True),  # noqa: B008, frozen
        name: str = "scripted",
    ) -> None:
        self.name = name
        self.capabilities = replace(capabilities, has_kv=has_kv or capabilities.has_kv)
        self.history: list[Request] = []
        """Every request so far, oldest first."""
        self.weighed: list[PartKey] = []
        """Keys of all parts whose answers were weighed."""
        self._weights = weights
        self._replies: deque[ScriptItem] = deque(replies)
        self._asides: deque[ScriptItem] | None = None if asides is None else deque(asides)
        self._default = default
        self._kv = ScriptedKV(self.count_tokens) if self.capabilities.has_kv else None
        self._num_calls = 0

    @property
    def kv(self) -> ScriptedKV | None:
        """The KV tier, if there is one; `kv.set_attention` decides what it tells."""
        return self._kv

    @property
    def num_unplayed(self) -> int:
        """Scripted replies that no request has taken yet, asides included."""
        return len(self._replies) + len(self._asides or ())

    def enqueue(self, *replies: ScriptItem) -> None:
        """Add replies to the end of the script."""
        self._replies.extend(replies)

    def enqueue_asides(self, *replies: ScriptItem) -> None:
        """Add replies to asides; from now on only these are played to them."""
        self._asides = self._asides or deque()
        self._asides.extend(replies)

    def count_tokens(self, part: Part) -> int:
        """Tokens of the part: its `pieces`, and four for the header of each message."""
        return sum(
            HEADER_TOKENS
            + len(pieces(message.content))
            + sum(len(pieces(call.name + call.arguments)) for call in message.tool_calls)
            for message in part.messages
        )

    def generate(self, prompt: Sequence[Part], options: Options) -> Iterator[Delta]:
        """Stream the next reply of the script, a token at a time.

        Raises:
            BudgetExceeded: the prompt is longer than `options.max_tokens`.
            InvalidInput: a KV tier was asked for, and a key is doubled or changed its messages.
        """
        self.history.append(Request(tuple(prompt), options))
        num_prompt = sum(map(self.count_tokens, prompt))
        room = options.max_tokens - num_prompt if options.max_tokens else options.max_new_tokens
        if room < 0:
            raise BudgetExceeded(
                f"The prompt has {num_prompt} tokens: at most {options.max_tokens} are allowed."
            )
        num_prefilled = num_prompt
        if self._kv is not None:
            num_prefilled = self._kv.read(prompt, ephemeral=options.ephemeral)
        line = self._next_line(prompt, options)
        if isinstance(line, Exception):
            raise line
        reply = Reply(line) if isinstance(line, str) else line
        yield from self._play(
            reply,
            options,
            limit=min(room, options.max_new_tokens),
            counts=Completion("", "stop", prompt_tokens=num_prompt, prefilled_tokens=num_prefilled),
        )

    def weigh(
        self,
        examples: Sequence[Part],
        parts: Sequence[Part],
        answers: Sequence[str],
        options: Options,
    ) -> Iterator[tuple[float, ...]]:
        """Log-probabilities by the script's `weights`.

        Raises:
            Unsupported: the model claims no logits.
            BudgetExceeded: examples and a part are longer than `options.max_tokens`.
        """
        if not self.capabilities.has_logits:
            yield from super().weigh(examples, parts, answers, options)
        num_examples = sum(map(self.count_tokens, examples))
        for part in parts:
            if options.cancelled is not None and options.cancelled():
                return
            num_tokens = num_examples + self.count_tokens(part)
            if options.max_tokens and num_tokens > options.max_tokens:
                raise BudgetExceeded(
                    f"Examples and part have {num_tokens} tokens: at most {options.max_tokens} "
                    "are allowed."
                )
            self.weighed.append(part.key)
            weights = [1.0] * len(answers) if self._weights is None else self._weights(part)
            yield tuple(math.log(weight / math.fsum(weights)) for weight in weights)

    def close(self) -> None:
        """Let the parts of the KV tier go."""
        if self._kv is not None:
            self._kv.clear()

    def _play(
        self, reply: Reply | ToolCalls, options: Options, *, limit: int, counts: Completion
    ) -> Iterator[Delta]:
        text = reply.text
        ends = [text.index(stop) for stop in options.stop if stop and stop in text]
        text = text[: min(ends)] if ends else text
        said: list[str] = []
        reason: FinishReason = "stop"
        for piece in pieces(text):
            if options.cancelled is not None and options.cancelled():
                reason = "interrupted"
                break
            if len(said) >= limit:
                reason = "length"
                break
            said.append(piece)
            yield Delta(piece)
        if isinstance(reply, Reply) and reply.error is not None:
            raise reply.error
        calls: tuple[ToolCall, ...] = ()
        if isinstance(reply, ToolCalls) and reason == "stop":
            calls, reason = tuple(map(self._with_id, reply.calls)), "tool_calls"
        yield Delta(
            completion=replace(
                counts,
                text="".join(said),
                finish_reason=reason,
                tool_calls=calls,
                thought=reply.thought if isinstance(reply, Reply) else "",
                completion_tokens=len(said),
            )
        )

    def _with_id(self, call: ToolCall) -> ToolCall:
        self._num_calls += 1
        return call if call.id else replace(call, id=f"call_{self._num_calls}")

    def _next_line(self, prompt: Sequence[Part], options: Options) -> Line:
        item = self._take(options)
        if item is None:
            return json.dumps(minimal_instance(options.json_schema or {}), ensure_ascii=False)
        if isinstance(item, str | Reply | ToolCalls | Exception):
            return item
        return item(prompt, options)

    def _take(self, options: Options) -> ScriptItem | None:
        """The item to play; None for the smallest value that fits the schema."""
        wants_json = options.json_schema is not None
        if self._asides is not None and (wants_json or options.ephemeral):
            if self._asides:
                return self._asides.popleft()
            return None if wants_json else self._default
        for index, item in enumerate(self._replies):
            if not wants_json or _may_be_json(item):
                del self._replies[index]
                return item
        return self._default if not wants_json or _may_be_json(self._default) else None


def _may_be_json(item: ScriptItem) -> bool:
    if isinstance(item, ToolCalls):
        return False
    text = item.text if isinstance(item, Reply) else item
    return not isinstance(text, str) or text.lstrip()[:1] in ("{", "[")


def read_script(path: str | Path) -> ScriptedModel:
    """A model that plays a file of one JSON value a line.

    A string is a reply. An object is `{"text": ...}`, `{"json": VALUE}` (the value as text),
    `{"tool_calls": [{"name": ..., "arguments": {...}}]}` or `{"error": MESSAGE}` (the endpoint
    fails); with `"aside": true` it is played to asides, which take nothing else.

    Raises:
        ConfigError: the file cannot be read, or a line is none of these.
    """
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Cannot read the script {str(path)!r}: {error}.") from error
    replies: list[ScriptItem] = []
    asides: list[ScriptItem] = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                value = json.loads(line)
                is_aside = isinstance(value, dict) and bool(value.get("aside"))
                (asides if is_aside else replies).append(_read_line(value))
            except (ValueError, TypeError, KeyError) as error:
                raise ConfigError(
                    f"{path}, line {number}: a script line must be a string or an object with "
                    f"`text`, `json`, `tool_calls` or `error`: got {line[:80]!r} ({error})."
                ) from error
    return ScriptedModel(replies, asides=asides)


def _read_line(value: Any) -> Line:
    if isinstance(value, str):
        return value
    if "error" in value:
        return ModelUnavailable(value["error"])
    if "tool_calls" in value:
        calls = [
            ToolCall(call.get("id", ""), call["name"], json.dumps(call.get("arguments", {})))
            for call in value["tool_calls"]
        ]
        return ToolCalls(tuple(calls), value.get("text", ""))
    if "json" in value:
        return json.dumps(value["json"], ensure_ascii=False)
    return Reply(str(value["text"]), value.get("thought", ""))
