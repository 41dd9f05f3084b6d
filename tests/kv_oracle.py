"""The oracle of the segment cache: a dense attention over every token ever computed.

It keeps the un-rotated keys and the values of all tokens in float64, whose they are, and where they
stand now. Every forward rotates all keys to the positions in force with the model's own rotary
module, masks what is not live, later, or out of the window, and attends in float64. Nothing here
uses the cache's code: pages, tails, arenas, tables of rotations and masks have no counterpart.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

NAME = "kv_oracle"


@dataclass
class _Token:
    owner: Hashable
    position: int
    live: bool = True


@dataclass
class Oracle:
    """All tokens of one history.

    Args:
        model: a copy of the model under test with `NAME` as its attention.
    """

    model: Any
    tokens: list[_Token] = field(default_factory=list)
    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)

    def append(self, owner: Hashable, token_ids: Sequence[int], start: int) -> Tensor:
        """Compute tokens at the given place; (num_tokens, vocab_size) logits."""
        self.tokens += [_Token(owner, start + index) for index in range(len(token_ids))]
        positions = torch.arange(start, start + len(token_ids))[None]
        with torch.no_grad():
            output = self.model(
                input_ids=torch.tensor([list(token_ids)]),
                position_ids=positions,
                use_cache=True,
                **{_cache_argument(self.model): _OracleCache(self)},
            )
        logits: Tensor = output.logits[0]
        return logits

    def rename(self, owner: Hashable, count: int, new: Hashable) -> None:
        """The first `count` tokens of `owner` belong to `new` from now on."""
        for token in [token for token in self.tokens if token.owner == owner][:count]:
            token.owner = new

    def hide(self, owner: Hashable) -> None:
        """Take a segment out of the window."""
        for token in self._of(owner):
            token.live = False

    def show(self, owner: Hashable, start: int) -> None:
        """Let a segment stand at `start`, whether it was in the window or not."""
        for index, token in enumerate(self._of(owner)):
            token.live, token.position = True, start + index

    def recode(
        self, owner: Hashable, layer: int, keys: Tensor, values: Tensor, turned_by: Tensor
    ) -> None:
        """Let a segment's keys and values in one layer be others, as packing makes them.

        Args:
            keys: (num_kv_heads, num_tokens, head_dim), each rotated to a position.
            values: the same shape, not rotated.
            turned_by: (num_tokens,): those positions.
        """
        mine = torch.tensor([index for index, t in enumerate(self.tokens) if t.owner == owner])
        cosine, sine = self._rotation(turned_by, layer)
        unrotated = _rotate(keys.double(), cosine, -sine, cosine**2 + sine**2)
        # Forks hold the same tensors.
        self.keys[layer] = self.keys[layer].index_copy(1, mine, unrotated)
        self.values[layer] = self.values[layer].index_copy(1, mine, values.double())

    def fork(self) -> Oracle:
        """A history of its own that starts equal."""
        return Oracle(
            self.model, copy.deepcopy(self.tokens), dict(self.keys), dict(self.values)
        )  # fmt: skip

    def _of(self, owner: Hashable) -> Iterator[_Token]:
        return (token for token in self.tokens if token.owner == owner)

    def _rotation(self, positions: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """The model's own cosine and sine: (num_tokens, rotated channels), float64."""
        body = self.model.base_model
        rotates = getattr(self.model.config, "no_rope_layers", None)
        if rotates is not None and not rotates[layer]:
            none = torch.zeros(len(positions), 2, dtype=torch.float64)
            return none + 1, none
        types = getattr(self.model.config, "layer_types", None)
        by_type = types is not None and hasattr(body.rotary_emb, f"{types[layer]}_inv_freq")
        arguments = (types[layer],) if by_type and types else ()
        cosine, sine = body.rotary_emb(torch.zeros(1), positions[None], *arguments)
        cosine, sine = cosine[0].double(), sine[0].double()
        if cosine.shape[-1] == getattr(body.rotary_emb, "inv_freq", cosine[0, :0]).numel():
            # GPT-OSS gives each angle once, the others once for either half.
            cosine, sine = torch.cat((cosine, cosine), -1), torch.cat((sine, sine), -1)
        return cosine, sine


class _OracleCache(Cache):  # type: ignore[misc]  # transformers is untyped
    def __init__(self, oracle: Oracle) -> None:
        super().__init__(layers=[])
        self.oracle = oracle

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Any, Any]:
        oracle = self.oracle
        count = key_states.shape[2]
        new = torch.tensor([token.position for token in oracle.tokens[-count:]])
        cosine, sine = oracle._rotation(new, layer_idx)
        unrotated = _rotate(key_states[0].double(), cosine, -sine, cosine**2 + sine**2)
        for store, states in (
            (oracle.keys, unrotated), (oracle.values, value_states[0].double()),
        ):  # fmt: skip
            known = store.get(layer_idx)
            store[layer_idx] = states if known is None else torch.cat((known, states), 1)
        return (oracle, layer_idx), None


def _attention(
    module: Any, query: Tensor, key: Any, value: Any, attention_mask: Any, **call: Any
) -> tuple[Tensor, None]:
    oracle, layer = key
    asked = torch.tensor([token.position for token in oracle.tokens[-query.shape[2] :]])
    # What is not live may as well be left out as masked.
    live = torch.tensor([index for index, token in enumerate(oracle.tokens) if token.live])
    positions = torch.tensor([token.position for token in oracle.tokens if token.live])
    cosine, sine = oracle._rotation(positions, layer)
    groups = query.shape[1] // oracle.keys[layer].shape[0]
    keys = _rotate(oracle.keys[layer][:, live], cosine, sine).repeat_interleave(groups, 0)
    values = oracle.values[layer][:, live].repeat_interleave(groups, 0)
    logits = query[0].double() @ keys.transpose(1, 2) * call["scaling"]
    if call.get("softcap") is not None:
        logits = call["softcap"] * torch.tanh(logits / call["softcap"])
    visible = positions[None, :] <= asked[:, None]
    if call.get("sliding_window"):
        visible &= asked[:, None] - positions[None, :] < call["sliding_window"]
    logits = logits.masked_fill(~visible, float("-inf"))
    if call.get("s_aux") is not None:
        # A token without a value, which every head weighs as its own.
        sink = call["s_aux"].double()[:, None, None].expand(-1, logits.shape[1], 1)
        logits = torch.cat((logits, sink), -1)
        values = torch.cat((values, torch.zeros_like(values[:, :1])), 1)
    mixed = logits.softmax(-1) @ values
    return mixed.transpose(0, 1)[None].to(query.dtype).contiguous(), None


def _rotate(
    states: Tensor, cosine: Tensor, sine: Tensor, divisor: Tensor | float = 1.0
) -> Tensor:  # fmt: skip
    """Halves rotated as in the RoPE paper's public implementations; the rest is left alone."""
    width = cosine.shape[-1]
    rotated, rest = states[..., :width], states[..., width:]
    first, second = rotated.chunk(2, -1)
    turned = (rotated * cosine + torch.cat((-second, first), -1) * sine) / divisor
    return torch.cat((turned, rest), -1)


def _cache_argument(model: Any) -> str:
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


@contextmanager
def oracle_for(model: Any) -> Iterator[Oracle]:
    """An oracle on the model's own weights; its attention is separate from the model's."""
    ALL_ATTENTION_FUNCTIONS.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, lambda **_: None)
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    twin = copy.deepcopy(model, shared)
    twin.set_attn_implementation(NAME)
    yield Oracle(twin)
