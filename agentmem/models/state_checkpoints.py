"""Copies of a transformers cache at the ends of segments, to go on from after a change.

A model with recurrent layers cannot take a segment out of its state. It reads a changed prompt
again, but only from the last copy made before the change. What full attention layers hold of a
stretch of tokens is kept once, however many copies include it; a state is kept in every copy.
Knows tokens and layers, no texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agentmem.errors import InvalidInput
from agentmem.models import stock_layers


@dataclass(frozen=True, eq=False, slots=True)
class _Stretch:
    """What full attention layers hold of some tokens.

    Args:
        layers: keys and values of each layer, (1, heads, num_tokens, head_dim); None: it has none.
    """

    layers: tuple[tuple[Tensor, Tensor] | None, ...]

    @property
    def nbytes(self) -> int:
        return sum(
            tensor.numel() * tensor.element_size() for held in self.layers for tensor in held or ()
        )


@dataclass(eq=False, slots=True)
class Checkpoint:
    """A cache as it was after some tokens.

    Args:
        token_ids: all that were read, from the first.
        stretches: of full attention layers, in order.
        states: of each layer the rest.
        used: when it was made or gone on from last.
    """

    token_ids: tuple[int, ...]
    stretches: tuple[_Stretch, ...]
    states: tuple[Any, ...]
    used: int = 0

    def begins(self, token_ids: Sequence[int]) -> bool:
        """Whether these ids begin with the checkpoint's."""
        return tuple(token_ids[: len(self.token_ids)]) == self.token_ids

    def layers(self) -> list[Any]:
        """The layers of the cache again; the checkpoint is not changed through them."""
        layers = [stock_layers.twin(state) for state in self.states]
        for index, layer in enumerate(layers):
            held = [pair for s in self.stretches if (pair := s.layers[index]) is not None]
            if held:
                layer.keys, layer.values = (
                    torch.cat([pair[which] for pair in held], 2) for which in (0, 1)
                )
        return layers


class StateCheckpoints:
    """Checkpoints of one conversation, bounded in bytes.

    Where there is no room for all, those go first that the window does not begin with any more, the
    longest unused before others; then those that save the fewest tokens over the one before them.

    Args:
        max_bytes: of all tensors in them.
    """

    def __init__(self, max_bytes: int) -> None:
        if max_bytes < 0:
            raise InvalidInput(f"`max_bytes` must not be negative: got {max_bytes}.")
        self.max_bytes = max_bytes
        self._held: list[Checkpoint] = []
        self._clock = 0

    def __len__(self) -> int:
        return len(self._held)

    @property
    def nbytes(self) -> int:
        """Bytes held, a stretch that several share counted once."""
        stretches = {id(s): s for held in self._held for s in held.stretches}
        return sum(s.nbytes for s in stretches.values()) + sum(
            stock_layers.nbytes(state) for held in self._held for state in held.states
        )

    def longest(self, token_ids: Sequence[int]) -> Checkpoint | None:
        """The checkpoint that has most of the beginning of these ids; None where none has any."""
        fitting = [held for held in self._held if held.begins(token_ids)]
        if not fitting:
            return None
        best = max(fitting, key=lambda held: len(held.token_ids))
        self._clock += 1
        best.used = self._clock
        return best

    def keep(self, token_ids: Sequence[int], layers: Sequence[Any]) -> None:
        """Copy a cache.

        Args:
            token_ids: all it has read, at least one.
            layers: of the cache.
        """
        before = self.longest(token_ids)
        start = len(before.token_ids) if before is not None else 0
        if start == len(token_ids):
            return
        stretch = _Stretch(tuple(_since(layer, start) for layer in layers))
        made = Checkpoint(
            tuple(token_ids),
            (*(before.stretches if before is not None else ()), stretch),
            tuple(stock_layers.state_of(layer) for layer in layers),
            self._clock,
        )
        self._held.append(made)
        while self.nbytes > self.max_bytes:
            self._held.remove(self._least_useful(made))

    def clear(self) -> None:
        """Forget all."""
        self._held = []

    def _least_useful(self, newest: Checkpoint) -> Checkpoint:
        def usefulness(held: Checkpoint) -> tuple[bool, bool, int]:
            is_current = held.begins(newest.token_ids)
            return held is newest, is_current, self._saves(held) if is_current else held.used

        return min(self._held, key=usefulness)

    def _saves(self, checkpoint: Checkpoint) -> int:
        """Tokens that would be read again without it."""
        shorter = [
            len(held.token_ids)
            for held in self._held
            if held is not checkpoint and held.begins(checkpoint.token_ids)
        ]
        return len(checkpoint.token_ids) - max(shorter, default=0)


def _since(layer: Any, start: int) -> tuple[Tensor, Tensor] | None:
    held = stock_layers.full_attention(layer)
    if held is None:
        return None
    keys, values = (tensor[:, :, start:].clone() for tensor in held)
    return keys, values
