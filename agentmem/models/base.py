"""What agentmem asks of a model that answers, and of one that embeds.

A prompt is an ordered list of parts, each filed under a key. A model with a KV tier keeps the parts
of the last prompt by key and reads only the parts it has not seen; one without renders them all.
Neither knows why a part is in the prompt.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from agentmem.errors import Unsupported
from agentmem.segment import Message, Precision, State, ToolCall

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from agentmem.storage.kv_folder import KVFolder
    from agentmem.storage.kv_manifest import Manifest

PartKey = int | str
"""A segment's id, or a name for what is not a segment (a review's question, a recalled text)."""

FinishReason = Literal["stop", "length", "interrupted", "tool_calls"]


@dataclass(frozen=True, slots=True)
class Part:
    """One entry of a prompt. The same key always stands for the same messages."""

    key: PartKey
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Tool:
    """A function a model may call: `parameters` is the JSON Schema of its arguments."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Options:
    """How to generate.

    Args:
        max_new_tokens: tokens of the reply at most.
        max_tokens: tokens of any forward, cache included, at most (the budget); 0 means no ceiling.
        temperature: 0 decodes greedily.
        top_p: smallest set of tokens with this much probability.
        top_k: at most so many tokens; 0 means all.
        repetition_penalty: above 1 discourages repeating.
        seed: of the sampler; the same seed gives the same reply.
        stop: strings that end the reply; not part of it.
        json_schema: the reply must be one JSON value that fits this schema (under a grammar where
            the model's logits are at hand).
        grammar: a Lark grammar, where the model's logits are at hand; then it takes the place of
            `json_schema`, of which it should be a part.
        tools: functions the model may call.
        ephemeral: leave no trace: on a KV model the prompt runs on a fork of its cache.
        cancelled: asked between tokens; True ends the reply as it stands ("interrupted").
    """

    max_new_tokens: int = 256
    max_tokens: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    json_schema: Mapping[str, Any] | None = None
    grammar: str = ""
    tools: tuple[Tool, ...] = ()
    ephemeral: bool = False
    cancelled: Callable[[], bool] | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished reply.

    Args:
        text: the reply without stop string.
        finish_reason: why it ended.
        tool_calls: calls the model made, in order.
        thought: what the model thought before it answered, if its template has a place for that.
        prompt_tokens: tokens the model attended to when the reply began.
        completion_tokens: tokens of the reply.
        prefilled_tokens: tokens of the prompt that had to be computed.
        prefill_seconds, decode_seconds: wall-clock.
    """

    text: str
    finish_reason: FinishReason
    tool_calls: tuple[ToolCall, ...] = ()
    thought: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prefilled_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a reply as it streams; the last one carries the `completion`."""

    text: str = ""
    completion: Completion | None = None


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a model can do, as data."""

    has_kv: bool = False
    """Parts that left the prompt come back as KV, without prefill."""
    has_logits: bool = False
    """`json_schema` is enforced token by token."""
    calls_tools: bool = False
    """`Options.tools` is understood in an ordinary reply."""
    alternates_roles: bool = False
    """User and assistant must take turns; the model's adapter sees to it."""
    manages_memory: bool = False
    """It is fit to edit and search its memory by tools of its own accord."""
    writes_summaries: bool = True
    """Its summaries keep more than sentences taken from the originals."""
    caches_prefix: bool = False
    """An unchanged beginning of the prompt is cheaper."""
    context_tokens: int = 0
    """Tokens the model can attend to; 0 where unknown."""


@dataclass(frozen=True, slots=True)
class KVUsage:
    """What the KV tier of one conversation holds, in bytes, scales and metadata included."""

    window_bytes: int = 0
    window_host_bytes: int = 0
    """Of `window_bytes`, those in host memory because the device has no room for them."""
    parked_ram_bytes: int = 0
    parked_disk_bytes: int = 0
    states: Mapping[PartKey, State] = field(default_factory=dict)
    """`live` (dense), `compressed` or `parked`, for every key it holds."""


class KVTier(Protocol):
    """What a model's KV tier tells about its parts, and what can be asked of it."""

    @property
    def dense_bytes_per_token(self) -> int:
        """Bytes a token takes in a dense bf16 cache: 2 x layers x kv heads x head dim x 2."""
        ...

    def has(self, key: PartKey) -> bool:
        """Whether the part can be in the next prompt without prefill."""
        ...

    def attention(self) -> Mapping[PartKey, float]:
        """Attention mass per token each part received from the queries of the last turns.

        Mean over all but the first two layers, attention sinks excluded. Keys without an
        observation are absent.
        """
        ...

    def keep_as(self, key: PartKey, precision: Precision | None) -> None:
        """Store the part at this precision from the next prompt on; None is the tier's own.

        Less is made of what there is. For more the part is read again in the next prompt, and sees
        what stands before it then.
        """
        ...

    def forget(self, key: PartKey) -> None:
        """Delete the part's KV wherever it lives."""
        ...

    def usage(self) -> KVUsage:
        """Bytes held, and where each part lives."""
        ...


class ChatModel(ABC):
    """A model that answers, serving one conversation. Only `generate` must be written."""

    name: str = "model"
    capabilities: Capabilities = Capabilities()
    peak_tokens: int = 0
    """Most tokens any forward attended to since the caller last set this to 0, where known."""

    @abstractmethod
    def generate(self, prompt: Sequence[Part], options: Options) -> Iterator[Delta]:
        """Answer the prompt; the last delta carries the completion.

        Raises:
            BudgetExceeded: a forward would pass `options.max_tokens`.
            ModelUnavailable: an endpoint failed.
        """

    def weigh(
        self,
        examples: Sequence[Part],
        parts: Sequence[Part],
        answers: Sequence[str],
        options: Options,
    ) -> Iterator[tuple[float, ...]]:
        """How likely each answer is to each part, where it must be one of them: nothing is spoken.

        Every part is weighed alone behind the same examples, so where it stands in the window and
        what stands beside it have no influence. Of a model with a KV tier, a part whose key is in
        its window is not read again.

        Args:
            examples: a prompt that shows what is asked: messages and the right answers to them.
            parts: what is to be answered, one message or exchange each.
            answers: what may be answered; they differ in their first token.
            options: `max_tokens` and `cancelled` count.

        Yields:
            For each part, natural logarithms of the answers' probabilities, which sum to 1. It
            ends early where it is cancelled.

        Raises:
            Unsupported: the model's logits are not at hand (`Capabilities.has_logits`).
            InvalidInput: two answers begin with the same token.
            BudgetExceeded: a forward would pass `options.max_tokens`.
        """
        raise Unsupported(f"{self.name} does not show how likely its answers are.")

    def count_tokens(self, part: Part) -> int:
        """Tokens of the part in a prompt, headers included; an estimate unless overridden."""
        return estimate_tokens(part)

    def count_tools(self, tools: Sequence[Tool]) -> int:
        """Tokens the tools' descriptions take in every prompt; of their schemas unless overridden.

        Args:
            tools: all that `Options.tools` names.
        """
        if not tools:
            return 0
        return self.count_tokens(tools_part(tools))

    @property
    def kv(self) -> KVTier | None:
        """The KV tier, where the model has one."""
        return None

    def resume(  # noqa: B027, most models hold nothing
        self, folder: KVFolder, manifest: Manifest | None, max_bytes: int
    ) -> None:
        """Keep KV that leaves memory in a folder, and go on from what is there.

        Args:
            folder: this conversation's own; what is of no use in it is deleted.
            manifest: what the last clean close left there; None where there was none.
            max_bytes: of all files together.
        """

    def suspend(self, prompt: Sequence[Part]) -> Manifest | None:
        """Write all KV the conversation holds to the folder it was resumed with.

        It can be closed then and nothing else. A later `resume` with what is returned here goes on
        from this prompt without reading it again.

        Args:
            prompt: with the last reply in it.
        """
        return None

    def let_go(self) -> None:  # noqa: B027, most models hold nothing
        """Drop all that is kept of what was read: something was forgotten that may be in it.

        Of a KV tier segments are forgotten one by one instead.
        """

    def close(self) -> None:  # noqa: B027, most models hold nothing
        """Free what the conversation holds. The weights may be shared and stay."""


def estimate_tokens(part: Part) -> int:
    """Tokens of a part where no tokenizer is at hand: three UTF-8 bytes each, headers added."""
    num_bytes = sum(
        len(message.content.encode("utf-8", "replace"))
        + sum(len(call.name) + len(call.arguments) + 8 for call in message.tool_calls)
        for message in part.messages
    )
    return -(-num_bytes // 3) + 6 * len(part.messages)


def tools_part(tools: Sequence[Tool]) -> Part:
    """The descriptions of tools as a part of the prompt: what is to be counted of them."""
    described = json.dumps([asdict(tool) for tool in tools], ensure_ascii=False)
    return Part("tools", (Message("system", described),))


def complete(model: ChatModel, prompt: Sequence[Part], options: Options) -> Completion:
    """Generate to the end and return the completion."""
    completion = None
    for delta in model.generate(prompt, options):
        completion = delta.completion or completion
    if completion is None:
        raise RuntimeError(f"{model.name}: `generate` ended without a completion.")
    return completion


class Embedder(ABC):
    """A model that turns texts into vectors of unit length."""

    name: str = "embedder"
    dim: int = 0

    @abstractmethod
    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of shape (len(texts), dim), float32, unit length: a dot product is the cosine."""
