"""A model decoding after a context: agentmem's cache in every format against DynamicCache.

All systems hold the same context and are given the same tokens, those DynamicCache would say, one
step each in turn. agentmem's packs all but the first four tokens and the newest 64, as a session
does, and gathers evidence as it decodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from agentmem.bench.kernels_row import BASELINE, DecodeRow, KernelOptions
from agentmem.bench.kv_contexts import PackedContext, SegmentContext, read_context
from agentmem.bench.kv_quantized import PlainStates, forward_plain
from agentmem.bench.needles import FRESH_TOKENS, ContextMaker, NeedleContext
from agentmem.bench.texts import domain_text
from agentmem.bench.timing import median_of, time_once
from agentmem.errors import AgentmemError

if TYPE_CHECKING:
    from agentmem.models.attached import AttachedModel

DYNAMIC = "DynamicCache"
_WARM_UP = 3


class PlainContext(PackedContext):
    """A context in transformers' own dense cache.

    Args:
        states: of the context; their cache grows with every step.
    """

    def __init__(self, states: PlainStates) -> None:
        from transformers import DynamicCache

        self._attached = states.attached
        self._cache: Any = DynamicCache(config=states.attached.model.config)
        for index, (keys, values) in enumerate(states.layers):
            self._cache.update(keys, values, index)
        self._num_tokens = self._position = states.layers[0][0].shape[2]
        self.packed_tokens = self.packed_bytes = 0
        self.dense_tokens = self._num_tokens
        self.prefill_seconds = states.seconds

    def _forward(self, token_ids: Sequence[int], keep: int) -> Tensor:
        first, self._position = self._position, self._position + len(token_ids)
        return forward_plain(self._attached, self._cache, token_ids, first, keep)

    def _forget(self) -> None:
        self._cache.crop(self._num_tokens)
        self._position = self._num_tokens


def decode_rows(options: KernelOptions) -> Iterator[DecodeRow]:
    """Every context and system that is asked for, with nothing measured yet."""
    systems = [DYNAMIC, *(name for name in options.formats if name != BASELINE)]
    for context in options.contexts:
        for layout in options.layouts:
            for system in systems:
                yield DecodeRow(context=context, layout=layout, system=system)


def measure_decode(
    rows: Sequence[DecodeRow], attached: AttachedModel, tokenizer: Any, decoded: int, seed: int
) -> list[DecodeRow]:
    """Let all systems of one context decode in turn.

    Args:
        rows: of one context and layout, DynamicCache's among them.
        decoded: tokens.
        seed: of the text.
    """
    context = _context(tokenizer, rows[0].layout, rows[0].context, seed)
    contexts: dict[str, PackedContext] = {DYNAMIC: PlainContext(PlainStates(attached, context))}
    read = read_context(attached, context)
    notes: dict[str, str] = {}
    for row in rows:
        if row.system == DYNAMIC:
            continue
        try:
            contexts[row.system] = SegmentContext(read, row.system)
        except AgentmemError as error:
            notes[row.system] = str(error)
    said, times = _decode(contexts, context, decoded)
    dynamic = median_of(times[DYNAMIC]).ms
    dense_nbytes = attached.dense_bytes_per_token // 2 * attached.dtype.itemsize
    found = []
    for row in rows:
        if row.system in notes:
            found.append(replace(row, note=notes[row.system]))
            continue
        timing, packed = median_of(times[row.system]), contexts[row.system]
        agreeing = zip(said[row.system], said[DYNAMIC], strict=True)
        found.append(
            replace(
                row, ms=timing.ms, wall_ms=timing.wall_ms, tokens_a_second=1e3 / timing.ms,
                speedup=dynamic / timing.ms,
                same=sum(one == other for one, other in agreeing) / decoded,
                nbytes=packed.packed_bytes + packed.dense_tokens * dense_nbytes,
            )
        )  # fmt: skip
    return found


def _decode(
    contexts: dict[str, PackedContext], context: NeedleContext, decoded: int
) -> tuple[dict[str, list[int]], dict[str, list[tuple[float, float]]]]:
    """The tokens each system would say, and what each step took it."""
    said: dict[str, list[int]] = {name: [] for name in contexts}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in contexts}
    token = context.fresh[0]
    for number in range(_WARM_UP + decoded):
        for name, packed in contexts.items():
            step = _Step(packed, token)
            seconds = time_once(step)
            if number >= _WARM_UP:
                times[name].append(seconds)
                said[name].append(step.said)
            if name == DYNAMIC:
                following = step.said
        token = following
    return said, times


class _Step:
    """One decoded token of one system."""

    def __init__(self, packed: PackedContext, token: int) -> None:
        self._packed, self._token = packed, token
        self.said = -1

    def __call__(self) -> None:
        with torch.inference_mode():
            self.said = int(self._packed.step(self._token).argmax())


def _context(tokenizer: Any, layout: str, num_tokens: int, seed: int) -> NeedleContext:
    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False).input_ids
        return ids

    text = encode(domain_text("prose"))
    text *= -(-(num_tokens + FRESH_TOKENS) // len(text))
    start = tokenizer("", verbose=False).input_ids
    decode: Callable[[list[int]], str] = tokenizer.decode
    return ContextMaker(text, start, encode, decode, layout, num_tokens).make(seed)
