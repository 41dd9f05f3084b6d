"""The attention and mask functions registered with transformers under the name "agentmem".

A cache of ours answers `update` with a handle instead of tensors; transformers passes it through
untouched and the handle attends by itself. Plain tensors go to SDPA with the mask SDPA wants, so
that everybody else who uses the model is served as before. No model is patched.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from agentmem.errors import InvalidInput

IMPLEMENTATION = "agentmem"


@runtime_checkable
class Handle(Protocol):
    """What a cache hands to the attention function in place of keys and values."""

    def attend(self, module: nn.Module, query: Tensor, call: dict[str, Any]) -> Tensor:
        """Attention of the query over whatever the handle stands for.

        Args:
            module: the attention module that asks.
            query: (batch, num_query_heads, num_queries, head_dim), rotated.
            call: what the model passed besides: scaling, softcap, sliding_window, s_aux, ...

        Returns:
            (batch, num_queries, num_query_heads, head_dim), the query's dtype.
        """
        ...


class OwnedLength(int):
    """A cache's length that says whose it is: the mask function is told lengths, not caches."""


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor | Handle,
    value: Tensor | Handle,
    attention_mask: Tensor | None,
    **call: Any,
) -> tuple[Tensor, Tensor | None]:
    """The attention function transformers calls.

    Raises:
        InvalidInput: a mask of the caller's own meets a cache that masks by position.
    """
    if not isinstance(key, Tensor):
        if attention_mask is not None:
            raise InvalidInput(
                "A segment cache masks by position and takes no custom attention mask: "
                f"got one of shape {tuple(attention_mask.shape)}. Pass none, or all ones."
            )
        return key.attend(module, query, call), None
    assert isinstance(value, Tensor)
    if call.get("softcap") is None and call.get("s_aux") is None:
        attended: Tensor = sdpa_attention_forward(
            module, query, key, value, attention_mask, **call
        )[0]
        return attended, None
    return _eager(query, key, value, attention_mask, call), None


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    attention_mask: Tensor | None = None,
    **call: Any,
) -> Tensor | None:
    """The mask function transformers calls: SDPA's, and none at all for caches of ours.

    Raises:
        InvalidInput: the caller masks tokens of a segment cache.
    """
    if not isinstance(kv_length, OwnedLength):
        made: Tensor | None = sdpa_mask(
            batch_size=batch_size, q_length=q_length, kv_length=kv_length,
            attention_mask=attention_mask, **call,
        )  # fmt: skip
        return made
    if attention_mask is None:
        return None
    if attention_mask.shape[-1] != kv_length:
        raise InvalidInput(
            f"The attention mask covers {attention_mask.shape[-1]} tokens: a segment cache needs "
            f"one over its whole logical length, {int(kv_length)}, or none."
        )
    if not bool(attention_mask.all()):
        hidden = int((~attention_mask.bool()).sum())
        raise InvalidInput(
            f"A segment cache holds one conversation without padding: the attention mask hides "
            f"{hidden} of {attention_mask.shape[-1]} tokens. Drop segments instead."
        )
    return None


def register() -> None:
    """Make both functions known to transformers; harmless when done twice."""
    ALL_ATTENTION_FUNCTIONS.register(IMPLEMENTATION, attention)
    AttentionMaskInterface.register(IMPLEMENTATION, mask)


def _eager(
    query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, call: dict[str, Any]
) -> Tensor:
    """Soft-capped logits and sinks, which SDPA cannot do."""
    groups = query.shape[1] // key.shape[1]
    key = key.repeat_interleave(groups, dim=1)
    value = value.repeat_interleave(groups, dim=1)
    scaling = call.get("scaling")
    logits = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    softcap = call.get("softcap")
    if softcap is not None:
        logits = torch.tanh(logits / softcap) * softcap
    num_queries, num_keys = logits.shape[-2:]
    if attention_mask is None and num_queries > 1:
        # SDPA's mask function leaves a plain causal mask out.
        attention_mask = torch.ones(
            (num_queries, num_keys), dtype=torch.bool, device=query.device
        ).tril(num_keys - num_queries)
    if attention_mask is not None:
        if attention_mask.dtype == torch.bool:
            logits = logits.masked_fill(~attention_mask, torch.finfo(logits.dtype).min)
        else:
            logits = logits + attention_mask
    sinks = call.get("s_aux")
    if sinks is not None:
        column = sinks.view(1, -1, 1, 1).expand(*logits.shape[:3], 1).to(logits.dtype)
        logits = torch.cat((logits, column), -1)
    weights = logits.softmax(-1, dtype=torch.float32).to(query.dtype)
    mixed: Tensor = weights[..., :num_keys] @ value
    return mixed.transpose(1, 2).contiguous()
