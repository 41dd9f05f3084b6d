"""A reply as it arrives from a LangChain chat model, chunk by chunk, until it is a `Completion`.

Knows where providers put reasons, counts and thoughts; does not know how the call is made.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk

from agentmem.models.base import Completion, FinishReason, Options
from agentmem.models.langchain_messages import clean_text, thought_of, tool_calls_of
from agentmem.models.reply_text import StopStrings

_MAX_BYTES_PER_TOKEN = 16
"""A reply longer than this is cut off here: the endpoint does not obey its limit."""
_CALL_BYTES = 32
"""What the beginning of a call takes besides its name and arguments."""
_LENGTH_REASONS = frozenset({"length", "max_tokens", "model_length", "max_output_tokens"})


class StreamedReply:
    """What has arrived of a reply.

    Args:
        options: of the request.
    """

    def __init__(self, options: Options) -> None:
        self.begin(options, 0)

    def begin(self, options: Options, num_prompt: int) -> None:
        """Start afresh: a try that failed has left nothing."""
        self.finish_reason: FinishReason | None = None
        self.num_shown = 0
        self._options = options
        self._num_prompt = num_prompt
        self._stops = StopStrings(options.stop if options.json_schema is None else ())
        self._text = ""
        self._room = _MAX_BYTES_PER_TOKEN * options.max_new_tokens
        self._whole: AIMessage | None = None
        self._began = time.monotonic()
        self._first: float | None = None

    @property
    def has_begun(self) -> bool:
        """Some of its text was shown."""
        return self.num_shown > 0

    @property
    def is_over(self) -> bool:
        """Nothing after this belongs to the reply."""
        return self.finish_reason is not None or self._stops.is_stopped

    @property
    def is_cut(self) -> bool:
        """The stream ended, but did not say why."""
        return not self.is_over and not _finish_reason_of(self._whole)

    def is_empty(self, completion: Completion) -> bool:
        """The model ended it without having said or called anything."""
        was_ended = completion.finish_reason == "interrupted" or self._stops.is_stopped
        return not (was_ended or completion.text.strip() or completion.tool_calls)

    def take(self, chunk: AIMessage) -> str:
        """Add what arrived; return the text that may be shown."""
        said = clean_text(str(chunk.text))
        calls = getattr(chunk, "tool_call_chunks", ())
        if (said or calls) and self._first is None:
            self._first = time.monotonic()
        size = len(said) + len(thought_of(chunk))
        size += sum(map(_size_of_call, calls))
        if size > self._room:
            # What the endpoint says beyond its limit is not kept, however much it is.
            self.finish_reason = "length"
            said = said[: self._room]
        elif isinstance(chunk, AIMessageChunk) and isinstance(self._whole, AIMessageChunk):
            self._whole = self._whole + chunk
        else:
            self._whole = chunk
        self._room -= min(size, self._room)
        text = self._stops.push(said)
        self._text += text
        self.num_shown = len(self._text)
        return text

    def completion(self) -> Completion:
        """The finished reply."""
        ended = time.monotonic()
        first = self._first or ended
        whole = self._whole or AIMessage("")
        self._text += self._stops.flush()
        usage: Mapping[str, Any] = whole.usage_metadata or {}
        num_prompt = usage.get("input_tokens") or self._num_prompt
        num_cached = (usage.get("input_token_details") or {}).get("cache_read") or 0
        reason = self.finish_reason
        if reason is None:
            reason = "length" if _finish_reason_of(whole) in _LENGTH_REASONS else "stop"
        # A call of a tool that was not offered is no answer.
        offered = bool(self._options.tools) or self._options.json_schema is not None
        calls = tool_calls_of(whole, is_cut=reason == "length") if offered else ()
        if reason == "interrupted":
            calls = ()
        return Completion(
            text=self._text,
            finish_reason="tool_calls" if calls and reason == "stop" else reason,
            tool_calls=calls,
            thought=thought_of(whole),
            prompt_tokens=num_prompt,
            completion_tokens=usage.get("output_tokens") or -(-len(self._text.encode()) // 4),
            prefilled_tokens=max(0, num_prompt - num_cached),
            prefill_seconds=first - self._began,
            decode_seconds=ended - first,
        )


def _size_of_call(piece: Mapping[str, Any]) -> int:
    """What a piece of a call takes, in bytes."""
    begins = _CALL_BYTES if piece.get("id") or piece.get("name") else 0
    return begins + sum(len(piece.get(key) or "") for key in ("id", "name", "args"))


def _finish_reason_of(message: AIMessage | None) -> str:
    metadata = message.response_metadata if message is not None else {}
    for key in ("finish_reason", "stop_reason", "done_reason"):
        if metadata.get(key):
            return str(metadata[key]).lower()
    return ""
