"""A model, its KV tier and an embedder that answer what was recorded, in its order.

A request that is not the one that was recorded is `ReplayDiverged` at once: hours of a conversation
would else be compared with another. They hold no weights and need no library.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentmem.audit.records import (
    change_mapping,
    completion_of,
    part_hash,
    request_hash,
    weigh_hash,
)
from agentmem.audit.replay_outside import ReplayOutside, raised
from agentmem.models.base import (
    Capabilities,
    ChatModel,
    Delta,
    Embedder,
    KVTier,
    KVUsage,
    Options,
    Part,
    PartKey,
    Tool,
    tools_part,
)
from agentmem.segment import Precision, State


class ReplayModel(ChatModel):
    """Says what another model said.

    Args:
        outside: what it said.
        settings: the opening's: its name and what it could do.
    """

    def __init__(self, outside: ReplayOutside, settings: Mapping[str, Any]) -> None:
        self._outside = outside
        self.name = str(settings["model"])
        self.capabilities = Capabilities(**settings["capabilities"])
        bytes_per_token = settings["dense_bytes_per_token"]
        self._kv = None if bytes_per_token is None else ReplayKV(outside, bytes_per_token)

    @property
    def kv(self) -> KVTier | None:
        """What the KV tier told."""
        return self._kv

    def count_tokens(self, part: Part) -> int:
        """Tokens of the part, as they were counted."""
        return self._outside.log.count(part_hash(part))

    def count_tools(self, tools: Sequence[Tool]) -> int:
        """Tokens the tools' descriptions take, as they were counted."""
        return self.count_tokens(tools_part(tools)) if tools else 0

    def weigh(
        self,
        examples: Sequence[Part],
        parts: Sequence[Part],
        answers: Sequence[str],
        options: Options,
    ) -> Iterator[tuple[float, ...]]:
        """Judge as it was judged.

        Raises:
            ReplayDiverged: something else was to be judged then.
        """
        log = self._outside.log
        request = weigh_hash(examples, parts, answers, options)
        log.take("weigh", key=request)
        for part in parts:
            if log.next_is("error"):
                record = log.take("error", key=request)
                raise raised(record[2], record[3])
            if not log.next_is("weight"):
                return
            yield tuple(log.take("weight", key=part.key)[2])

    def generate(self, prompt: Sequence[Part], options: Options) -> Iterator[Delta]:
        """Say it again, all at once.

        Raises:
            ReplayDiverged: something else was asked then.
        """
        log = self._outside.log
        kind = "aside" if options.ephemeral else "say"
        record = log.take(kind, "error", "away", key=request_hash(prompt, options))
        reply = self._outside.reply_of(log.turn) if log.turn else ""
        self._outside.is_speaking = True
        try:
            if record[0] == "error":
                if record[4]:
                    yield Delta(record[4])
                raise raised(record[2], record[3])
            if record[0] == "away":
                yield Delta(reply if record[2] is None else record[2])
                raise GeneratorExit
            completion = completion_of(record, reply)
            if completion.text:
                yield Delta(completion.text)
        finally:
            self._outside.is_speaking = False
        yield Delta(completion=completion)


class ReplayKV:
    """Tells what a KV tier told."""

    def __init__(self, outside: ReplayOutside, dense_bytes_per_token: int) -> None:
        self._outside = outside
        self._attention: dict[PartKey, float] = {}
        self._states: dict[PartKey, State] = {}
        self._bytes_per_token = dense_bytes_per_token

    @property
    def dense_bytes_per_token(self) -> int:
        """Bytes a token would have taken."""
        return self._bytes_per_token

    def has(self, key: PartKey) -> bool:
        """Whether there was KV of the part."""
        return bool(self._outside.log.take("has", key=key)[2])

    def attention(self) -> Mapping[PartKey, float]:
        """What was observed."""
        change_mapping(self._attention, *self._outside.log.take("attention")[1:])
        return dict(self._attention)

    def keep_as(self, key: PartKey, precision: Precision | None) -> None:
        """There is nothing to store."""

    def forget(self, key: PartKey) -> None:
        """There is nothing to delete."""

    def usage(self) -> KVUsage:
        """Where parts lived; bytes were not recorded."""
        change_mapping(self._states, *self._outside.log.take("states")[1:])
        return KVUsage(states=dict(self._states))


class ReplayEmbedder(Embedder):
    """Gives the vectors that are stored with the texts."""

    def __init__(self, outside: ReplayOutside, name: str, dim: int) -> None:
        self._outside = outside
        self.name = name
        self.dim = dim

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of shape (len(texts), dim)."""
        return self._outside.vectors(texts)
