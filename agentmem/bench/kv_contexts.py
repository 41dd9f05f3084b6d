"""Contexts in agentmem's cache, packed and ready to be asked.

A context is read once, dense. Its keys and values then go into the cache that is measured, which
packs them as it packs anybody's: answers come from packed bytes through the kernels this machine
runs, not from a copy rounded for the occasion.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from agentmem.bench.needles import NeedleContext
from agentmem.models.segment_cache import SegmentCache

if TYPE_CHECKING:
    from agentmem.models.attached import AttachedModel
    from agentmem.storage.kv_record import KVRecord

STEP_TOKENS = 16
"""Tokens read at once: as many as the kernels for packed pages take without unpacking them."""
_SINKS, _NEWEST = "sinks", "newest"


class PackedContext(ABC):
    """A context in one system's cache.

    Args:
        packed_bytes, packed_tokens: what is packed of it.
        dense_tokens: the rest.
        prefill_seconds: what reading and packing it took.
    """

    packed_bytes: int
    packed_tokens: int
    dense_tokens: int
    prefill_seconds: float

    def read(self, token_ids: Sequence[int], keep: int) -> Tensor:
        """Read tokens after the context, and forget them.

        Args:
            token_ids: what to read.
            keep: of how many last ones the log-probabilities of what follows are wanted.

        Returns:
            (keep, vocab_size), float32.
        """
        kept = []
        for first in range(0, len(token_ids), STEP_TOKENS):
            part = token_ids[first : first + STEP_TOKENS]
            wanted = first + len(part) - max(first, len(token_ids) - keep)
            logits = self._forward(part, max(1, wanted))
            if wanted > 0:
                kept.append(logits)
        self._forget()
        return torch.cat(kept).float().log_softmax(-1)

    def read_all(self, texts: Sequence[Sequence[int]], keep: Sequence[int]) -> list[Tensor]:
        """What `read` gives of each of several texts; at once, where the system can."""
        return [self.read(text, count) for text, count in zip(texts, keep, strict=True)]

    def step(self, token_id: int) -> Tensor:
        """Read one token and keep it; (vocab_size,), the logits of the one that follows."""
        return self._forward([token_id], 1)[-1]

    def decode_seconds(self, token_ids: Sequence[int]) -> list[float]:
        """What each token takes, read one by one."""
        seconds = []
        for token in token_ids:
            begun = perf_counter()
            self._forward([token], 1)
            seconds.append(perf_counter() - begun)
        self._forget()
        return seconds

    @abstractmethod
    def _forward(self, token_ids: Sequence[int], keep: int) -> Tensor:
        """Read on; logits of the last `keep` tokens."""

    @abstractmethod
    def _forget(self) -> None:
        """Go back to the end of the context."""


@dataclass(frozen=True)
class ReadContext:
    """A context read by the model.

    Args:
        attached: the model.
        context: what was read.
        records: keys and values of each segment, with its key and the position it starts at.
        seconds: what reading took.
    """

    attached: AttachedModel
    context: NeedleContext
    records: tuple[tuple[Hashable, int, KVRecord], ...]
    seconds: float


def read_context(attached: AttachedModel, context: NeedleContext) -> ReadContext:
    """Read a context in one forward and take its segments' keys and values."""
    cache = SegmentCache(attached, "dense")
    begun = perf_counter()
    attached.forward(context.token_ids, cache)
    seconds = perf_counter() - begun
    for key, segment in zip(_keys(context), context.segments, strict=True):
        cache.seal(key, len(segment))
    records = tuple((key, cache.start(key), cache.park(key)) for key in cache.keys)
    return ReadContext(attached, context, records, seconds)


def _keys(context: NeedleContext) -> list[Hashable]:
    return [_SINKS, *range(len(context.body)), _NEWEST]


class SegmentContext(PackedContext):
    """In agentmem's cache: the body packed, the first tokens and the newest dense.

    Args:
        read: the context.
        format: of the body.
    """

    def __init__(self, read: ReadContext, format: str) -> None:
        self.format = format
        self._attached = read.attached
        self._cache = SegmentCache(read.attached, format)
        ends = [record for record in read.records if record[0] in (_SINKS, _NEWEST)]
        for key, start, record in ends:
            self._cache.restore(key, start, record)
        beside = self._cache.nbytes
        body = [record for record in read.records if record[0] not in (_SINKS, _NEWEST)]
        for key, start, record in body:
            self._cache.restore(key, start, record)
        begun = perf_counter()
        for key, _, _ in body:
            self._cache.compress(key)
        self.prefill_seconds = read.seconds + perf_counter() - begun
        self.packed_bytes = self._cache.nbytes - beside
        self.packed_tokens = sum(map(len, read.context.body))
        self.dense_tokens = self._cache.num_tokens - self.packed_tokens

    def read_all(self, texts: Sequence[Sequence[int]], keep: Sequence[int]) -> list[Tensor]:
        """Branches of one forward."""
        if not texts:
            return []
        logits = self._attached.forward_branches(texts, self._cache, keep)
        return [one.float().log_softmax(-1) for one in logits]

    def _forward(self, token_ids: Sequence[int], keep: int) -> Tensor:
        return self._attached.forward(token_ids, self._cache, logits_to_keep=keep)

    def _forget(self) -> None:
        self._cache.discard_tail()
