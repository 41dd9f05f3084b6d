"""A transformers model made ready for segment caches, through public plug-in points only.

`attach` sets the model's attention to ours (plain tensors fall through to SDPA), asks how it
rotates its keys, and proves on the model itself that segments can be dropped, moved and brought
back. A model that fails raises `Unsupported` with the reason and is left as it was; its caller
reads text again instead.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from agentmem.errors import InvalidInput, Unsupported
from agentmem.kernels.page_table import STRETCH_TOKENS
from agentmem.models import kv_attention
from agentmem.models.key_center import KeyCenter, key_centers
from agentmem.models.rope_probe import LayerGeometry, probe, refuse_by_config
from agentmem.storage.kv_format import LayerShape

if TYPE_CHECKING:
    from agentmem.models.segment_cache import SegmentCache

_LAYOUT_VERSION = 2
_SAMPLED_WEIGHTS = 16
"""Values of every parameter that go into the fingerprint: enough to tell fine-tunes apart."""

_MODEL_FAILURES = (
    ArithmeticError, AssertionError, AttributeError, LookupError, NotImplementedError, RuntimeError,
    TypeError, ValueError,
)  # fmt: skip
"""What a model's own code raises when it meets a cache or an attention it was not written for."""

_attached: weakref.WeakValueDictionary[int, AttachedModel] = weakref.WeakValueDictionary()


class AttachedModel:
    """A model whose attention understands segment caches. Made by `attach`.

    Args:
        model: a transformers causal language model.
        previous: the attention implementation to go back to.
        layers: the geometry of its layers.
        centers: for each layer the mean of its keys.
    """

    def __init__(
        self,
        model: Any,
        previous: str,
        layers: Sequence[LayerGeometry],
        centers: Sequence[KeyCenter],
    ) -> None:
        self.model = model
        self.layers = tuple(layers)
        self.centers: tuple[KeyCenter, ...] = tuple(centers)
        self.cache_argument = _cache_argument(model)
        self.frequencies: list[Tensor] = []
        """The distinct frequencies of its layers."""
        self.groups: list[int] = []
        """For each layer, which of `frequencies` it uses."""
        for layer in self.layers:
            self.groups.append(_index_of(layer.frequencies, self.frequencies))
        self.fingerprint = _fingerprint(model, self.layers)
        self._previous = previous
        self._users = 1
        self._keeps_logits = "logits_to_keep" in inspect.signature(model.forward).parameters

    @property
    def is_attached(self) -> bool:
        """Whether the model's attention is still ours."""
        return self._users > 0

    @property
    def device(self) -> torch.device:
        """Where the model's weights are."""
        return next(self.model.parameters()).device  # type: ignore[no-any-return]

    @property
    def dtype(self) -> torch.dtype:
        """Of the model's keys and values."""
        return self.model.dtype  # type: ignore[no-any-return]

    @property
    def shapes(self) -> tuple[LayerShape, ...]:
        """Heads and channels of each layer."""
        return tuple(LayerShape(layer.num_kv_heads, layer.head_dim) for layer in self.layers)

    @property
    def dense_bytes_per_token(self) -> int:
        """Bytes a token takes in a dense bf16 cache."""
        return sum(2 * 2 * layer.num_kv_heads * layer.head_dim for layer in self.layers)

    def forward(
        self, token_ids: Sequence[int], cache: SegmentCache, logits_to_keep: int = 1
    ) -> Tensor:  # fmt: skip
        """Read tokens into the cache's open tail.

        Args:
            token_ids: at least one.
            cache: of this model.
            logits_to_keep: of how many last tokens to compute logits; 0 means all.

        Returns:
            (logits_to_keep, vocab_size): logits of the token that follows.
        """
        if not token_ids:
            raise InvalidInput("A forward needs at least one token: got none.")
        ids = torch.tensor([list(token_ids)], device=self.device)
        first = cache.next_position
        positions = torch.arange(first, first + ids.shape[1], device=self.device)[None]
        options = {"logits_to_keep": logits_to_keep} if self._keeps_logits else {}
        with torch.no_grad():
            output = self.model(
                input_ids=ids, position_ids=positions, use_cache=True,
                **{self.cache_argument: cache}, **options,
            )  # fmt: skip
        cache.note_tokens(token_ids)
        return output.logits[0, -logits_to_keep:]  # type: ignore[no-any-return]

    def forward_branches(
        self, branches: Sequence[Sequence[int]], cache: SegmentCache, logits_to_keep: Sequence[int]
    ) -> list[Tensor]:
        """Read several continuations of the cache's tail in one forward, and keep none of them.

        Args:
            branches: token ids of each, at least one.
            cache: of this model; it is left as it was.
            logits_to_keep: of how many last tokens of each to compute logits.

        Returns:
            For each (logits_to_keep, vocab_size): logits of the token that follows.
        """
        lengths = [len(branch) for branch in branches]
        if not lengths or not all(lengths):
            raise InvalidInput(f"Every branch needs at least one token: got {lengths}.")
        first = cache.next_position
        tokens = [token for branch in branches for token in branch]
        places = [first + index for length in lengths for index in range(length)]
        ends = list(itertools.accumulate(lengths))
        kept = [
            index
            for end, keep in zip(ends, logits_to_keep, strict=True)
            for index in range(end - keep, end)
        ]
        kept_indices = torch.tensor(kept, device=self.device)
        options = {"logits_to_keep": kept_indices} if self._keeps_logits else {}
        with torch.no_grad(), cache.branching(lengths):
            output = self.model(
                input_ids=torch.tensor([tokens], device=self.device),
                position_ids=torch.tensor([places], device=self.device),
                use_cache=True, **{self.cache_argument: cache}, **options,
            )  # fmt: skip
        logits = output.logits[0] if self._keeps_logits else output.logits[0, kept_indices]
        return list(logits.split(list(logits_to_keep)))

    def detach(self) -> None:
        """Give the model its former attention back, once everyone who attached it has detached."""
        if self._users:
            self._users -= 1
            if not self._users:
                _attached.pop(id(self.model), None)
                self.model.set_attn_implementation(self._previous)


def attach(model: Any, *, self_test: bool = True) -> AttachedModel:
    """Make a model ready for segment caches; the same object for everyone who attaches it.

    Args:
        model: a transformers causal language model with its weights loaded.
        self_test: prove dropping, moving and returning on the model itself (about 60 tokens).

    Raises:
        Unsupported: the model cannot be served from segments, with the reason.
    """
    known = _attached.get(id(model))
    if known is not None and known.is_attached:
        known._users += 1
        return known
    config = model.config.get_text_config(decoder=True)
    refuse_by_config(config)
    if not model._can_set_attn_implementation():
        raise Unsupported(f"{config.model_type} has no replaceable attention function.")
    previous = model.config._attn_implementation
    if previous == kv_attention.IMPLEMENTATION:
        previous = "sdpa"
    was_training = model.training
    kv_attention.register()
    model.eval()
    model.set_attn_implementation(kv_attention.IMPLEMENTATION)
    try:
        argument = _cache_argument(model)
        layers = probe(model, argument)
        attached = AttachedModel(model, previous, layers, key_centers(model, argument, layers))
        if self_test:
            from agentmem.models.kv_selftest import self_test as run_self_test

            run_self_test(attached)
    except _MODEL_FAILURES as error:
        model.set_attn_implementation(previous)
        raise Unsupported(
            f"{config.model_type} failed while it was asked how it attends: "
            f"{type(error).__name__}: {error}"
        ) from error
    except BaseException:
        model.set_attn_implementation(previous)
        raise
    finally:
        model.train(was_training)
    _attached[id(model)] = attached
    return attached


def _cache_argument(model: Any) -> str:
    """What the model's forward calls its cache: transformers 5.24 renamed it."""
    parameters = inspect.signature(model.forward).parameters
    for name in ("cache", "past_key_values"):
        if name in parameters:
            return name
    raise Unsupported(f"{type(model).__name__}.forward takes no cache.")


def _index_of(frequencies: Tensor, known: list[Tensor]) -> int:
    for index, other in enumerate(known):
        if other.shape == frequencies.shape and torch.equal(other, frequencies):
            return index
    known.append(frequencies)
    return len(known) - 1


def _fingerprint(model: Any, layers: Sequence[LayerGeometry]) -> str:
    """Identity of the weights, their dtype, the rotation and our page layout, as a hash."""
    digest = hashlib.sha256()
    digest.update(f"{_LAYOUT_VERSION} {STRETCH_TOKENS} {type(model).__name__}".encode())
    for layer in layers:
        shape = (layer.num_query_heads, layer.num_kv_heads, layer.head_dim, layer.window)
        digest.update(json.dumps([*shape, layer.convention]).encode())
        digest.update(layer.frequencies.cpu().numpy().tobytes())
    for name, parameter in model.named_parameters():
        values = parameter.detach().reshape(-1)
        step = max(1, values.numel() // _SAMPLED_WEIGHTS)
        sample = values[::step][:_SAMPLED_WEIGHTS].double().cpu()
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}".encode())
        digest.update(sample.numpy().tobytes())
    return digest.hexdigest()
