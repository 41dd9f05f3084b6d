"""A model, its KV tier and the application's functions, with what they answer written down.

They answer as the real ones do; only attention is rounded to what is written, so that a replay
computes with the same numbers. What nobody's input caused (a status line, an export) is not noted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from agentmem.audit.tape import weigh_hash
from agentmem.models.base import (
    ChatModel,
    Completion,
    Delta,
    KVTier,
    KVUsage,
    Options,
    Part,
    PartKey,
    Tool,
    tools_part,
)
from agentmem.segment import Precision
from agentmem.tools import FAILED, INVALID, DescribedTool, describe

ATTENTION_DIGITS = 5


class Notes(Protocol):
    """What is written down by whom is recorded."""

    @property
    def active(self) -> bool:
        """Whether anything is written down now."""
        ...

    def note(self, *record: Any) -> None:
        """Write a record down."""
        ...

    def count(self, part: Part, num_tokens: int) -> None:
        """A part takes so many tokens."""
        ...

    def at_work(self) -> AbstractContextManager[None]:
        """Inside, the model works and looks at the clock for itself alone."""
        ...

    def begin_reply(self, prompt: Sequence[Part], options: Options) -> None:
        """The model is asked."""
        ...

    def piece(self, text: str) -> None:
        """It said so much more."""
        ...

    def end_reply(self, completion: Completion, *, ephemeral: bool) -> None:
        """It has answered."""
        ...

    def fail_reply(self, error: BaseException) -> None:
        """It failed, or was interrupted."""
        ...


class RecordingModel(ChatModel):
    """Another model, recorded.

    Args:
        model: answers.
        notes: where its answers go.
    """

    def __init__(self, model: ChatModel, notes: Notes) -> None:
        self._model = model
        self._notes = notes
        self._kv = None if model.kv is None else RecordingKV(model.kv, notes)
        self.name = model.name
        self.capabilities = model.capabilities

    @property
    def peak_tokens(self) -> int:
        """Most tokens any forward attended to since this was set to 0."""
        return self._model.peak_tokens

    @peak_tokens.setter
    def peak_tokens(self, value: int) -> None:
        self._model.peak_tokens = value

    @property
    def kv(self) -> KVTier | None:
        """The KV tier, recorded."""
        return self._kv

    def count_tokens(self, part: Part) -> int:
        """Tokens of the part in a prompt."""
        num_tokens = self._model.count_tokens(part)
        self._notes.count(part, num_tokens)
        return num_tokens

    def generate(self, prompt: Sequence[Part], options: Options) -> Iterator[Delta]:
        """Answer the prompt."""
        self._notes.begin_reply(prompt, options)
        try:
            for delta in self._model.generate(prompt, options):
                if delta.text:
                    self._notes.piece(delta.text)
                if delta.completion is not None:
                    self._notes.end_reply(delta.completion, ephemeral=options.ephemeral)
                yield delta
        except BaseException as error:
            self._notes.fail_reply(error)
            raise

    def count_tools(self, tools: Sequence[Tool]) -> int:
        """Tokens the tools' descriptions take."""
        num_tokens = self._model.count_tools(tools)
        if tools:
            self._notes.count(tools_part(tools), num_tokens)
        return num_tokens

    def weigh(
        self,
        examples: Sequence[Part],
        parts: Sequence[Part],
        answers: Sequence[str],
        options: Options,
    ) -> Iterator[tuple[float, ...]]:
        """How likely each answer is to each part."""
        request = weigh_hash(examples, parts, answers, options)
        self._notes.note("weigh", request)
        weighed = self._model.weigh(examples, parts, answers, options)
        for part in parts:
            try:
                with self._notes.at_work():
                    row = next(weighed, None)
            except BaseException as error:
                self._notes.note("error", request, type(error).__name__, str(error), "")
                raise
            if row is None:
                return
            logs = tuple(map(float, row))
            self._notes.note("weight", part.key, list(logs))
            yield logs

    def begin_anew(self) -> None:
        """Tell all that the KV tier says once more, not only what is new."""
        if self._kv is not None:
            self._kv.begin_anew()

    def let_go(self) -> None:
        """Drop all that is kept of what was read."""
        self._model.let_go()


class RecordingKV:
    """A KV tier, recorded: of its mappings only what changed since they were last asked for."""

    def __init__(self, kv: KVTier, notes: Notes) -> None:
        self._kv = kv
        self._notes = notes
        self._attention: dict[PartKey, float] = {}
        self._states: dict[PartKey, str] = {}

    @property
    def dense_bytes_per_token(self) -> int:
        """Bytes a token would take in a dense cache."""
        return self._kv.dense_bytes_per_token

    def has(self, key: PartKey) -> bool:
        """Whether the part can be in the next prompt without prefill."""
        there = self._kv.has(key)
        self._notes.note("has", key, there)
        return there

    def attention(self) -> Mapping[PartKey, float]:
        """Attention mass per token of each part, to five digits."""
        observed = {
            key: float(f"{mass:.{ATTENTION_DIGITS}g}") for key, mass in self._kv.attention().items()
        }
        if self._notes.active:
            self._notes.note("attention", *changes(self._attention, observed))
            self._attention = observed
        return observed

    def keep_as(self, key: PartKey, precision: Precision | None) -> None:
        """Store the part at this precision."""
        self._kv.keep_as(key, precision)

    def forget(self, key: PartKey) -> None:
        """Delete the part's KV wherever it lives."""
        self._kv.forget(key)

    def usage(self) -> KVUsage:
        """Bytes held, and where each part lives."""
        usage = self._kv.usage()
        if self._notes.active:
            states = dict(usage.states)
            self._notes.note("states", *changes(self._states, states))
            self._states = {**states}
        return usage

    def begin_anew(self) -> None:
        """Tell everything once more."""
        self._attention, self._states = {}, {}


def changes(old: Mapping[Any, Any], new: Mapping[Any, Any]) -> tuple[list[Any], list[Any]]:
    """What is new or other, as keys and values in turn, and the keys that are gone."""
    other = [[key, value] for key, value in new.items() if old.get(key) != value]
    return [item for pair in other for item in pair], [key for key in old if key not in new]


def changed(old: dict[Any, Any], new: Sequence[Any], gone: Sequence[Any]) -> None:
    """Make the mapping what `changes` told."""
    for key in gone:
        old.pop(key, None)
    old.update(zip(new[::2], new[1::2], strict=True))


def recorded_tool(function: Callable[..., Any], note: Callable[..., None]) -> DescribedTool:
    """The function, with its result as text written down."""

    def call(**arguments: Any) -> str:
        try:
            result = function(**arguments)
            if not isinstance(result, str):
                result = json.dumps(result, ensure_ascii=False, default=str)
        except (*INVALID, *FAILED) as error:
            note("tool", "invalid" if isinstance(error, INVALID) else "failed", str(error))
            raise
        note("tool", "returned", result)
        return result

    return DescribedTool(describe(function), call)
