"""Attention over pages in eager PyTorch: what every format shares.

Keys are rotated by their offset in their stretch alone, so that the query is turned once a stretch
and moving pages costs nothing:

    logit[t] = <R(-stretch_start) q, k[t]>         R: rotary embedding, see rotary.py

Attention over parts (arenas, the open tail, sinks) is merged by the log-sum-exp of their logits.
P pages, H key/value heads, R query rows a head (query heads of the group x queries), D channels.
Reductions run in float32. Knows nothing of formats.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from agentmem.kernels.code_stream import PAGE_TOKENS
from agentmem.kernels.page_table import PageTable
from agentmem.kernels.rotary import as_channels, ordered_pairs

TILE_TOKENS = 4096
"""Tokens decoded at a time."""
_LOWEST = -1e30
"""Below every logit, yet finite: a row without any visible key must not become NaN."""


def turned_queries(queries: Tensor, rotations: Tensor, table: PageTable) -> tuple[Tensor, Tensor]:
    """Queries as the stretches of a table see them.

    Args:
        queries: (H, R, D), float32, in pair order.
        rotations: (S, D / 2), complex64, what turns a query back by each stretch's start.

    Returns:
        (stretches of the table, H, R, D), float32, and (P,): each page's index in it.
    """
    first, last = int(table.stretches[0]), int(table.stretches[-1])
    turned = as_channels(
        ordered_pairs(queries.contiguous()) * rotations[first : last + 1, None, None]
    )
    return turned, table.stretches - first


def page_products(queries: Tensor, of_page: Tensor, keys: Tensor) -> Tensor:
    """<query, key> of every page: (P, H, R, 16).

    Args:
        queries: (stretches, H, R, D).
        of_page: (P,), int32: which stretch a page belongs to.
        keys: (P, H, 16, D), float32.
    """
    pages, heads = keys.shape[:2]
    asked = queries.index_select(0, of_page).flatten(0, 1)
    products = torch.bmm(asked, keys.flatten(0, 1).transpose(1, 2))
    return products.view(pages, heads, -1, PAGE_TOKENS)


def masked_logits(
    products: Tensor, table: PageTable, limits: Tensor, softcap: float | None
) -> Tensor:  # fmt: skip
    """(H, R, P * 16): -inf where a row may not see.

    Args:
        products: (P, H, R, 16).
        limits: (R, 2), int32: each row sees positions [low, high).
    """
    logits = products.permute(1, 2, 0, 3).flatten(2)
    if softcap is not None:
        logits = logits.div_(softcap).tanh_().mul_(softcap)
    return logits.masked_fill_(~table.visible(limits), float("-inf"))


def probabilities(logits: Tensor, log_sum_exp: Tensor) -> Tensor:
    """Share of each logit of what its row saw in all; 0 in a row that saw nothing.

    Args:
        logits: (H, R, tokens), float32, -inf where masked; overwritten.
        log_sum_exp: (H, R), float32.
    """
    return logits.sub_(log_sum_exp.clamp_min(_LOWEST)[..., None]).exp_()


class OnlineSoftmax:
    """Softmax-weighted values of many queries, tile by tile, without the whole row of logits.

    Args:
        num_heads: key/value heads H.
        num_rows: query rows a head R.
        head_dim: channels of a value.
    """

    def __init__(
        self, num_heads: int, num_rows: int, head_dim: int, device: torch.device
    ) -> None:  # fmt: skip
        self._maximum = torch.full((num_heads, num_rows, 1), _LOWEST, device=device)
        self._total = torch.zeros((num_heads, num_rows, 1), device=device)
        self._mixed = torch.zeros((num_heads, num_rows, head_dim), device=device)

    def fold(self, logits: Tensor, values: Tensor) -> None:
        """Take in one tile.

        Args:
            logits: (H, R, tokens), float32, -inf where masked; overwritten.
            values: (H, tokens, D), float32.
        """
        weights = self._weigh(logits)
        self._mixed += torch.bmm(weights, values)

    def fold_pages(self, logits: Tensor, values: Tensor) -> None:
        """Take in one tile of pages.

        Args:
            logits: (H, R, P * 16), float32, -inf where masked; overwritten.
            values: (P, H, D, 16), float32: channel by channel.
        """
        heads, rows, _ = logits.shape
        weights = self._weigh(logits).view(heads, rows, -1, PAGE_TOKENS).permute(2, 0, 1, 3)
        mixed = torch.bmm(weights.reshape(-1, rows, PAGE_TOKENS), values.flatten(0, 1).mT)
        self._mixed += mixed.view(-1, heads, rows, mixed.shape[-1]).sum(0)

    def _weigh(self, logits: Tensor) -> Tensor:
        raised = torch.maximum(self._maximum, logits.amax(-1, keepdim=True))
        weights = logits.sub_(raised).exp_()
        shrink = self._maximum.sub_(raised).exp_()
        self._total.mul_(shrink).add_(weights.sum(-1, keepdim=True))
        self._mixed.mul_(shrink)
        self._maximum = raised
        return weights

    def result(self) -> Tensor:
        """(H, R, D), float32; zeros for a row that saw no key."""
        return self._mixed / self._total.clamp_min(torch.finfo(torch.float32).tiny)

    def log_sum_exp(self) -> Tensor:
        """(H, R), float32, of the logits; -inf for a row that saw no key."""
        return (self._total.log() + self._maximum)[..., 0]


def merge(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Attention over all parts from that over each.

    Args:
        parts: attended values (H, R, D) and log-sum-exp (H, R) of each part, float32.

    Returns:
        The same two over everything; 0 and -inf for a row that saw nothing.
    """
    if len(parts) == 1:
        return parts[0]
    each = torch.stack([log_sum_exp for _, log_sum_exp in parts])
    whole = each.logsumexp(0)
    shares = each.sub_(whole.clamp_min(_LOWEST)).exp_()
    mixed = parts[0][0] * shares[0, ..., None]
    for (values, _), share in zip(parts[1:], shares[1:], strict=True):
        mixed.addcmul_(values, share[..., None])
    return mixed, whole
