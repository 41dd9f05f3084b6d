"""Attention of a few queries in one layer: the queries turn to the stretches, pages stay packed.

What lies in host memory is attended to tile by tile as it comes. What is dense, the open tail and
dense pages, is attended to in one call of C where there are kernels for it, which also merges it
with what packed pages gave; else in eager PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from agentmem.kernels import cpu_dense
from agentmem.kernels.attention import merge
from agentmem.kernels.cpu_dense import DenseSource
from agentmem.kernels.page_table import PageTable
from agentmem.models.kv_window import Part, Step

if TYPE_CHECKING:
    from agentmem.models.kv_layer import SegmentLayer

_Part = tuple[Tensor, Tensor]
_Asked = tuple[Tensor, Tensor, PageTable, Tensor, Tensor, float | None]


def attend_rows(
    layer: SegmentLayer,
    states: Tensor,
    step: Step,
    tail: slice,
    call: dict[str, Any],
    mass: Tensor | None,
) -> Tensor:
    """Attention of the last queries of a forward over the window.

    Args:
        layer: which one.
        states: (num_query_heads, num_queries, head_dim), float32, scaled.
        step: what this forward may see.
        tail: the tail's place in the layer's buffer.
        call: softcap and s_aux as the model passes them.
        mass: (num_padded_columns,), float32; probabilities are added to it. None: not observed.

    Returns:
        (num_query_heads, num_queries, head_dim), float32.
    """
    geometry = layer.geometry
    heads, num_queries = geometry.num_kv_heads, states.shape[1]
    groups = geometry.num_query_heads // heads
    queries = states.reshape(heads, groups * num_queries, geometry.head_dim)
    softcap, sinks = call.get("softcap"), call.get("s_aux")
    limits = step.limits(geometry.window, num_queries, groups)
    sources: list[DenseSource] = []
    parts: list[_Part] = []
    weights: Tensor | None = None
    rows = layer.states_from(tail.start)
    # C masks the tail by position, and branches share theirs.
    if rows is not None and not step.branches:
        sources.append(DenseSource(queries, None, step.tail_table, rows, limits, softcap))
    else:
        hidden = step.tail_hidden(geometry.window, num_queries)
        part, weights = _attend_eagerly(layer, queries, tail, hidden, softcap)
        parts.append(part)
    ordered = queries
    if step.view.arenas:
        ordered = queries.index_select(-1, geometry.pair_order)
    asked: list[_Asked | None] = []
    for view in step.view.arenas:
        if view.stream is not None:
            tiles = view.parts(layer.index, layer.group)
            parts.append(merge([_attend_part(tile, ordered, limits, softcap) for tile in tiles]))
            asked.append(None)
            continue
        codec, pages = view.arena.codecs[layer.index], view.arena.layers[layer.index]
        rotations = view.rotations[layer.group]
        dense = None if rows is None else codec.dense_states(pages)
        if dense is not None:
            sources.append(DenseSource(ordered, rotations, view.table, dense, limits, softcap))
            asked.append(None)
        else:
            packed: _Asked = (ordered, rotations, view.table, pages, limits, softcap)
            asked.append(packed)
            parts.append(codec.attend(*packed))
    if sinks is not None:
        parts.append(sink_part(sinks, heads, num_queries, geometry.head_dim))
    mixed, whole = cpu_dense.attend(sources, parts) if sources else merge(parts)
    if mass is not None:
        tail_mass, *view_masses = step.split(mass)
        dense_masses = [tail_mass]
        for view, view_mass, question in zip(step.view.arenas, view_masses, asked, strict=True):
            if view.stream is not None:
                for tile in view.parts(layer.index, layer.group):
                    view_mass[tile.slots] += tile.codec.column_mass(
                        ordered, tile.rotations, tile.table, tile.pages, limits, softcap, whole
                    )
            elif question is None:
                dense_masses.append(view_mass)
            else:
                view_mass += view.arena.codecs[layer.index].column_mass(*question, whole)
        if sources:
            cpu_dense.add_column_mass(sources, dense_masses, whole)
        if weights is not None:
            shares = (parts[0][1] - whole).exp_()
            tail_mass[: step.num_tail] += (weights * shares[..., None]).sum((0, 1))
    return mixed.view(geometry.num_query_heads, num_queries, geometry.head_dim)


def _attend_part(part: Part, queries: Tensor, limits: Tensor, softcap: float | None) -> _Part:
    return part.codec.attend(queries, part.rotations, part.table, part.pages, limits, softcap)


def sink_part(sinks: Tensor, num_kv_heads: int, num_queries: int, head_dim: int) -> _Part:
    """Logits that take mass and give no value, as a part to merge."""
    by_group = sinks.float().view(num_kv_heads, -1, 1)
    log_sum_exp = by_group.expand(-1, -1, num_queries).reshape(num_kv_heads, -1)
    return log_sum_exp.new_zeros((*log_sum_exp.shape, head_dim)), log_sum_exp


def _attend_eagerly(
    layer: SegmentLayer, queries: Tensor, tail: slice, hidden: Tensor, softcap: float | None
) -> tuple[_Part, Tensor]:
    """Attention over the tail alone, where each query sees its own token at least.

    Args:
        queries: (num_kv_heads, groups * num_queries, head_dim), float32.
        hidden: (num_queries, num_tail), bool.

    Returns:
        Attended values and log-sum-exp of the logits; and the probabilities.
    """
    assert layer.tail_keys is not None and layer.tail_values is not None
    logits = torch.bmm(queries, layer.tail_keys[:, tail].float().mT)
    if softcap is not None:
        logits.div_(softcap).tanh_().mul_(softcap)
    logits.view(logits.shape[0], -1, *hidden.shape).masked_fill_(hidden, float("-inf"))
    log_sum_exp = logits.logsumexp(-1)
    weights = (logits - log_sum_exp[..., None]).exp_()
    return (torch.bmm(weights, layer.tail_values[:, tail].float()), log_sum_exp), weights
