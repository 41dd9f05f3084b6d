"""The part of a segment cache that transformers talks to: positions, masks, and the open tail.

A forward writes every layer's new keys and values behind the tail and commits when the last layer
has attended, so that a forward that fails half-way leaves nothing. Sealed segments are only read
here, through a `WindowView`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from agentmem.errors import InvalidInput, Unsupported
from agentmem.models.attached import AttachedModel
from agentmem.models.kv_attention import OwnedLength
from agentmem.models.kv_evidence import Evidence
from agentmem.models.kv_layer import MAX_ROW_QUERIES, SegmentLayer
from agentmem.models.kv_window import NUM_SINKS, Resident, Step, WindowView

_SKIPPED_LAYERS = 2
"""The first layers look at everything alike: no evidence."""
_OBSERVED_EVERY = 4
"""Of decoded tokens one in so many is observed, which costs a second reading of all keys. By
position, so that a conversation gathers the same evidence however it is interrupted."""


@contextmanager
def plain_tensors() -> Iterator[None]:
    """Make tensors that may be written both inside and outside of inference mode."""
    with torch.inference_mode(False), torch.no_grad():
        yield


class _LayerHandle:
    """What `update` returns in place of keys and values; lives for one attention call."""

    __slots__ = ("_cache", "_layer")

    def __init__(self, cache: TailCache, layer: SegmentLayer) -> None:
        self._cache = cache
        self._layer = layer

    def attend(self, module: nn.Module, query: Tensor, call: dict[str, Any]) -> Tensor:
        return self._cache._attend(self._layer, module, query, call)


class TailCache(Cache):  # type: ignore[misc]  # transformers is untyped
    """An open tail over a window of sealed segments.

    Args:
        attached: the model it belongs to.
        evidence_turns: turns whose queries count as evidence.
    """

    layers: list[SegmentLayer]

    def __init__(self, attached: AttachedModel, evidence_turns: int) -> None:
        super().__init__(
            layers=[
                SegmentLayer(index, geometry, attached.groups[index])
                for index, geometry in enumerate(attached.layers)
            ]
        )
        self.attached = attached
        self._device = attached.device
        self._residents: dict[Hashable, Resident] = {}
        self._tail_start: int | None = None
        self._tail_begin = 0
        self._tail_length = 0
        self._tail_ids: list[int] = []
        self._step: Step | None = None
        self._branches: tuple[int, ...] = ()
        self._observed_layers = min(_SKIPPED_LAYERS, len(self.layers) - 1)
        self._evidence = Evidence(evidence_turns)
        self._mass = torch.zeros(0, device=self._device)
        self._step_mass = self._mass
        self._num_observed = 0
        self._tail_mass = torch.zeros(0, device=self._device)
        self._tail_observed = 0

    def __bool__(self) -> bool:
        # An empty transformers cache has length 0; `cache or DynamicCache()` must keep ours.
        return True

    @property
    def next_position(self) -> int:
        """Where the next token goes: behind the tail, or behind the window's last segment."""
        if self._tail_start is not None:
            return self._tail_start + self._tail_length
        return max((resident.end for resident in self._residents.values()), default=0)

    @property
    def tail_length(self) -> int:
        """Tokens in the open tail."""
        return self._tail_length

    @property
    def tail_token_ids(self) -> tuple[int, ...]:
        """The open tail's tokens, as far as the cache was told."""
        return tuple(self._tail_ids)

    def note_tokens(self, token_ids: Sequence[int]) -> None:
        """Say which tokens the last forward read; `AttachedModel.forward` does.

        Raises:
            InvalidInput: the tail holds fewer tokens.
        """
        known = len(self._tail_ids) + len(token_ids)
        if known > self._tail_length:
            raise InvalidInput(f"The tail holds {self._tail_length} tokens: got ids of {known}.")
        # Behind tokens nobody named, these would be taken for the others.
        if known == self._tail_length:
            self._tail_ids += token_ids

    def begin(self, start: int) -> None:
        """Say at which position the next token goes; the default is behind everything.

        Raises:
            InvalidInput: the tail is not empty, or the position is taken or negative.
        """
        if self._tail_length:
            raise InvalidInput(
                f"The tail holds {self._tail_length} tokens: seal or discard it before `begin`."
            )
        if start < 0:
            raise InvalidInput(f"A position must not be negative: got {start}.")
        for key, resident in self._residents.items():
            if resident.start <= start < resident.end:
                raise InvalidInput(
                    f"Position {start} belongs to segment {key!r} "
                    f"({resident.start} to {resident.end - 1})."
                )
        self._tail_start = start

    def truncate_tail(self, num_tokens: int) -> None:
        """Keep the first `num_tokens` of the open tail."""
        if not 0 <= num_tokens <= self._tail_length:
            raise InvalidInput(
                f"`num_tokens` must lie in 0 to {self._tail_length}, the tail's length: "
                f"got {num_tokens}."
            )
        self._collect()
        self._tail_length = num_tokens
        del self._tail_ids[num_tokens:]
        self._tail_mass = self._tail_mass[:num_tokens]

    def discard_tail(self) -> None:
        """Forget the open tail, and where it began."""
        self.truncate_tail(0)
        self._reset_tail()

    @contextmanager
    def branching(self, lengths: Sequence[int]) -> Iterator[None]:
        """Inside, a forward reads several continuations of the tail at once, and keeps none.

        Args:
            lengths: of the continuations, which follow each other in the forward's tokens. Each
                begins where the tail ends, and does not see the others.
        """
        self._branches = tuple(lengths)
        try:
            yield
        finally:
            self._branches = ()

    # What transformers calls.

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[_LayerHandle, _LayerHandle]:
        """Take one layer's new keys and values: (1, num_kv_heads, num_tokens, head_dim)."""
        if layer_idx == 0:
            self._start_step(key_states)
        step = self._step
        if step is None or key_states.shape[2] != step.num_new:
            raise InvalidInput(f"Layer {layer_idx} was updated outside of a forward of layer 0.")
        layer = self.layers[layer_idx]
        layer.append(key_states[0], value_states[0], self._tail_begin + step.num_past)
        handle = _LayerHandle(self, layer)
        return handle, handle

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """The next logical position; not the number of stored tokens."""
        return self.next_position

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Logical length and offset; masks themselves are computed here, by position.

        Raises:
            InvalidInput: there is nothing to read.
        """
        if query_length == 0:
            raise InvalidInput(
                f"No tokens are left to read. `generate` on a cache of {self.next_position} "
                "logical tokens needs either all token ids, or the new ids and an attention mask "
                "of ones over the whole logical length."
            )
        return OwnedLength(self.next_position + query_length), 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """-1: no maximum."""
        return -1

    def crop(self, tokens_to_remove: int) -> None:
        """Remove tokens from the tail's end; transformers passes a negative number."""
        if tokens_to_remove > 0 or -tokens_to_remove > self._tail_length:
            raise InvalidInput(
                f"`crop` removes up to {self._tail_length} tokens of the open tail, given as a "
                f"negative number: got {tokens_to_remove}. Sealed segments are dropped whole."
            )
        self.truncate_tail(self._tail_length + tokens_to_remove)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Refused: one conversation has one beam."""
        raise Unsupported("A segment cache holds one sequence: beam search is not possible.")

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Refused: a batch of one."""
        raise Unsupported(f"A segment cache holds one sequence: it cannot be repeated {repeats}x.")

    def batch_select_indices(self, indices: Tensor) -> None:
        """Refused: a batch of one."""
        raise Unsupported("A segment cache holds one sequence: there is nothing to select.")

    # Evidence.

    def new_turn(self) -> None:
        """Queries from here on belong to the next turn."""
        self._collect()
        self._evidence.new_turn()

    def attention_mass(self) -> dict[Hashable, float]:
        """Attention mass per token each segment received from the queries of the last turns.

        Mean over queries, heads and all but the first two layers; the window's first four tokens
        do not count. Observed are one in four decoded tokens and the last 16 of every longer
        forward. Segments never observed are absent. A segment counts all queries since its tail
        began, its own too.
        """
        self._collect()
        counted = {key: resident.num_tokens for key, resident in self._residents.items()}
        sinks = NUM_SINKS
        for key, resident in sorted(self._residents.items(), key=lambda item: item[1].start):
            taken = min(sinks, resident.num_tokens)
            counted[key] -= taken
            sinks -= taken
        return self._evidence.per_token(counted)

    @property
    def evidence(self) -> Evidence:
        """What has been observed of each segment so far."""
        self._collect()
        return self._evidence

    # Inside.

    @abstractmethod
    def _window(self) -> WindowView:
        """The sealed segments as the kernels read them now."""

    def _start_step(self, keys: Tensor) -> None:
        if not self.attached.is_attached:
            raise InvalidInput("The cache's model was detached: attach it again.")
        if keys.shape[0] != 1:
            raise Unsupported(
                f"A segment cache holds one sequence: got a batch of {keys.shape[0]}."
            )
        if torch.is_grad_enabled() and keys.requires_grad:
            raise InvalidInput("A segment cache cannot be trained through: use torch.no_grad().")
        view = self._window()
        start = self.next_position - self._tail_length
        end = start + self._tail_length + max(self._branches, default=keys.shape[2])
        for key, resident in self._residents.items():
            if start < resident.end and resident.start < end:
                raise InvalidInput(
                    f"Positions up to {end - 1} reach into segment {key!r}, which starts at "
                    f"{resident.start}: move it away first."
                )
        self._step = Step(
            view, start, self._tail_length, keys.shape[2], self._device, self._branches
        )
        if self._mass.shape[0] < self._step.num_padded_columns:
            with plain_tensors():
                grown = torch.zeros(self._step.num_padded_columns + 256, device=self._device)
                grown[: self._mass.shape[0]] = self._mass
            self._mass = grown
        self._step_mass = self._mass[: self._step.num_padded_columns]

    def _attend(
        self, layer: SegmentLayer, module: nn.Module, query: Tensor, call: dict[str, Any]
    ) -> Tensor:
        step = self._step
        assert step is not None
        if module is not layer.geometry.module:
            raise InvalidInput("The cache belongs to another model: make one for this model.")
        if layer.index == 0:
            _check_positions(call.get("position_ids"), step)
        is_observed = step.num_new > 1 or step.first_position % _OBSERVED_EVERY == 0
        observes = is_observed and not step.branches and layer.index >= self._observed_layers
        mass = self._step_mass if observes else None
        attended = layer.attend(query, step, self._tail_begin, call, mass)
        if layer.index == len(self.layers) - 1 and step.branches:
            self._step = None
        elif layer.index == len(self.layers) - 1:
            self._tail_start = step.first_position - step.num_past
            self._tail_length = step.num_tail
            if is_observed:
                self._num_observed += min(step.num_new, MAX_ROW_QUERIES)
            self._step = None
        return attended

    def _reset_tail(self) -> None:
        self._tail_start = None
        self._tail_begin = self._tail_length = 0
        self._tail_ids = []
        self._tail_mass = self._tail_mass[:0]
        self._tail_observed = 0

    def _collect(self) -> None:
        """Hand the mass gathered since the last call to the segments; before anything moves."""
        if self._num_observed:
            self._collect_from(self._window())

    def _collect_from(self, view: WindowView) -> None:
        queries, self._num_observed = self._num_observed, 0
        start = self._tail_start or 0
        num_columns = view.num_slots + self._tail_length
        weight = sum(
            layer.geometry.num_query_heads for layer in self.layers[self._observed_layers :]
        )
        with plain_tensors():
            mass = self._mass[:num_columns] / weight
            self._mass = torch.zeros_like(self._mass)
            tail = torch.arange(start, start + self._tail_length, device=self._device)
            positions = torch.cat((view.positions, tail))
            sinks = positions.topk(min(NUM_SINKS, num_columns), largest=False).indices
            mass[sinks] = 0.0
            sums = torch.zeros(len(view.keys) + 1, device=self._device)
            sums.index_add_(0, view.owners, mass[: view.num_slots])
            grown = torch.zeros(self._tail_length, device=self._device)
            grown[: self._tail_mass.shape[0]] = self._tail_mass
            self._tail_mass = grown + mass[view.num_slots :]
        self._tail_observed += queries
        for key, total in zip(view.keys, sums.tolist(), strict=False):
            # Nobody in the tail could see a segment behind it.
            if self._residents[key].start < start:
                self._evidence.add(key, total, queries)


def _check_positions(position_ids: Tensor | None, step: Step) -> None:
    if position_ids is None:
        return
    first, last = int(position_ids[0, 0]), int(position_ids[0, -1])
    num_last = step.branches[-1] if step.branches else step.num_new
    if first != step.first_position or last != step.first_position + num_last - 1:
        raise InvalidInput(
            f"The forward's positions are {first} to {last}: the cache's next position is "
            f"{step.first_position}. Call `begin` to write elsewhere."
        )
