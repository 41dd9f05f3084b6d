"""A model, its KV tier and the application's functions, with what they answer written down.

They answer as the real ones do; only attention is rounded to what is written, so that a replay
computes with the same numbers. What nobody's input caused (a status line, an export) is not noted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentmem.audit.records import mapping_changes, weigh_hash
from agentmem.errors import AgentmemError, InvalidInput
from agentmem.models.base import (
    ChatModel,
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
from agentmem.tools import DescribedTool, describe, in_words, invoke

if TYPE_CHECKING:
    from agentmem.audit.recorder import Recorder

ATTENTION_DIGITS = 5


class RecordingModel(ChatModel):
    """Another model, recorded.

    Args:
        model: answers.
        recorder: writes its answers down.
    """

    def __init__(self, model: ChatModel, recorder: Recorder) -> None:
        self._model = model
        self._recorder = recorder
        self._kv = None if model.kv is None else RecordingKV(model.kv, recorder)
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
        self._recorder.count(part, num_tokens)
        return num_tokens

    def generate(self, prompt: Sequence[Part], options: Options) -> Iterator[Delta]:
        """Answer the prompt."""
        self._recorder.begin_reply(prompt, options)
        try:
            for delta in self._model.generate(prompt, options):
                if delta.text:
                    self._recorder.piece(delta.text)
                if delta.completion is not None:
                    self._recorder.end_reply(delta.completion, ephemeral=options.ephemeral)
                yield delta
        except BaseException as error:
            self._recorder.fail_reply(error)
            raise

    def count_tools(self, tools: Sequence[Tool]) -> int:
        """Tokens the tools' descriptions take."""
        num_tokens = self._model.count_tools(tools)
        if tools:
            self._recorder.count(tools_part(tools), num_tokens)
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
        self._recorder.note("weigh", request)
        weighed = self._model.weigh(examples, parts, answers, options)
        for part in parts:
            try:
                with self._recorder.at_work():
                    row = next(weighed, None)
            except BaseException as error:
                self._recorder.note("error", request, type(error).__name__, str(error), "")
                raise
            if row is None:
                return
            logs = tuple(map(float, row))
            self._recorder.note("weight", part.key, list(logs))
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

    def __init__(self, kv: KVTier, recorder: Recorder) -> None:
        self._kv = kv
        self._recorder = recorder
        self._attention: dict[PartKey, float] = {}
        self._states: dict[PartKey, str] = {}

    @property
    def dense_bytes_per_token(self) -> int:
        """Bytes a token would take in a dense cache."""
        return self._kv.dense_bytes_per_token

    def has(self, key: PartKey) -> bool:
        """Whether the part can be in the next prompt without prefill."""
        there = self._kv.has(key)
        self._recorder.note("has", key, there)
        return there

    def attention(self) -> Mapping[PartKey, float]:
        """Attention mass per token of each part, to five digits."""
        observed = {
            key: float(f"{mass:.{ATTENTION_DIGITS}g}") for key, mass in self._kv.attention().items()
        }
        if self._recorder.active:
            self._recorder.note("attention", *mapping_changes(self._attention, observed))
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
        if self._recorder.active:
            states = dict(usage.states)
            self._recorder.note("states", *mapping_changes(self._states, states))
            self._states = {**states}
        return usage

    def begin_anew(self) -> None:
        """Tell everything once more."""
        self._attention, self._states = {}, {}


def recorded_tool(function: Callable[..., Any], note: Callable[..., None]) -> DescribedTool:
    """The function, with its result as text written down."""

    def call(**arguments: Any) -> str:
        try:
            result = invoke(function, arguments)
        except InvalidInput as error:
            note("tool", "invalid", str(error))
            raise
        except AgentmemError as error:
            note("tool", error.code, str(error))
            raise
        except Exception as error:
            # What is not ours may raise anything: it is noted, and goes on to the caller.
            note("tool", "failed", in_words(error))
            raise
        note("tool", "returned", result)
        return result

    return DescribedTool(describe(function), call)
