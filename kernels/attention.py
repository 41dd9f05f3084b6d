"""Attention over pages of keys and values, in eager PyTorch.

A page holds `page_tokens` tokens of one segment. Its keys are rotated by their offset inside the
page alone, so that the query is rotated once a page and moving a page costs nothing:

    logit[t] = <R(-page_start) q, k_page[t]>         R: rotary embedding, see rotary.py

Layouts, for P pages, H key/value heads, R query rows a head (query heads of the group x queries):

    keys     (P, H, page_tokens, head_dim)     queries  (P, H, R, head_dim), turned to the page
    values   (H, P, page_tokens, head_dim)     out      (P, H, R, page_tokens), any strides
    scales   as keys or values, without head_dim

Scales of int8 pages are folded into logits and probabilities: no dequantized copy outlives a call.
Reductions run in float32. Knows nothing of formats, positions or masks.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LOWEST = -1e30
"""Below every logit, yet finite: a row without any visible key must not become NaN."""


def page_logits(queries: Tensor, keys: Tensor, out: Tensor) -> None:
    """Write <query, key> of every page to `out`."""
    num_pages, num_heads, page_tokens, head_dim = keys.shape
    rows = queries.shape[2]
    products = torch.bmm(
        queries.reshape(num_pages * num_heads, rows, head_dim),
        keys.reshape(num_pages * num_heads, page_tokens, head_dim).float().transpose(1, 2),
    )
    out.copy_(products.view(num_pages, num_heads, rows, page_tokens))


def page_logits_int8(queries: Tensor, codes: Tensor, scales: Tensor, out: Tensor) -> None:
    """Write <query, code> * scale of every page to `out`."""
    num_pages, num_heads, page_tokens, head_dim = codes.shape
    rows = queries.shape[2]
    products = torch.bmm(
        queries.reshape(num_pages * num_heads, rows, head_dim),
        codes.float().reshape(num_pages * num_heads, page_tokens, head_dim).transpose(1, 2),
    )
    torch.mul(
        products.view(num_pages, num_heads, rows, page_tokens),
        scales.float()[:, :, None, :],
        out=out,
    )


def mix_pages(probabilities: Tensor, values: Tensor) -> Tensor:
    """The probability-weighted sum of values.

    Args:
        probabilities: (H, R, P * page_tokens), float32.
        values: (H, P, page_tokens, head_dim).

    Returns:
        (H, R, head_dim), float32.
    """
    return torch.bmm(probabilities, values.flatten(1, 2).float())


def mix_pages_int8(probabilities: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
    """As `mix_pages`, for values given as codes (H, P, page_tokens, head_dim) and scales."""
    weighted = probabilities * scales.float().flatten(1, 2)[:, None, :]
    return torch.bmm(weighted, codes.float().flatten(1, 2))


class OnlineSoftmax:
    """Softmax-weighted values of many queries, tile by tile, without the whole row of logits.

    Args:
        num_heads: key/value heads H.
        num_rows: query rows a head R.
        head_dim: channels of a value.
        sinks: (H, R) logits that take mass and give no value; None where the model has none.
    """

    def __init__(
        self, num_heads: int, num_rows: int, head_dim: int, device: torch.device,
        sinks: Tensor | None = None,
    ) -> None:  # fmt: skip
        if sinks is None:
            self._maximum = torch.full((num_heads, num_rows, 1), _LOWEST, device=device)
            self._total = torch.zeros((num_heads, num_rows, 1), device=device)
        else:
            self._maximum = sinks.float()[..., None].clone()
            self._total = torch.ones((num_heads, num_rows, 1), device=device)
        self._mixed = torch.zeros((num_heads, num_rows, head_dim), device=device)

    def fold(self, logits: Tensor, values: Tensor, rows: slice) -> None:
        """Take in one tile for some of the query rows.

        Args:
            logits: (H, rows, tokens), float32, -inf where masked; overwritten.
            values: (H, tokens, head_dim), float32.
            rows: which query rows these are.
        """
        maximum = self._maximum[:, rows]
        raised = torch.maximum(maximum, logits.amax(-1, keepdim=True))
        weights = logits.sub_(raised).exp_()
        shrink = (maximum - raised).exp_()
        self._total[:, rows] = self._total[:, rows] * shrink + weights.sum(-1, keepdim=True)
        self._mixed[:, rows] = self._mixed[:, rows] * shrink + torch.bmm(weights, values)
        self._maximum[:, rows] = raised

    def result(self) -> Tensor:
        """(H, R, head_dim), float32; zeros for a row that saw no key."""
        return self._mixed / self._total.clamp_min(torch.finfo(torch.float32).tiny)
