"""Fits `agentmem/recall/query_adapter.safetensors` to the questions of `tests/answers`.

    python -m tests.fit_query_adapter

By contrast: of the statements of a batch, the one that answers is to be the nearest, the older or
the newer of two that do; those that nearly answer are among the others.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file

from agentmem.models.base import Embedder
from agentmem.models.embed import default_embedder
from agentmem.recall import query_adapter
from agentmem.recall.query_adapter import QueryAdapter

QUESTIONS = Path(__file__).parent / "answers"
WEIGHTS = Path(query_adapter.__file__).with_name(query_adapter.WEIGHTS)
_RANK, _STEPS, _BATCH, _RATE, _DECAY, _TEMPERATURE, _NOISE = 32, 300, 256, 1e-3, 1e-3, 0.07, 5e-3
_NEWER_COUNTS = 0.65
"""The newer statement is the one that is meant, and the less like the question."""


def questions() -> list[dict[str, str]]:
    """The questions, each with what it is compared with.

    `older` and `newer` answer it; `near_miss` does for somebody else, `also_true` answers another.
    """
    files = sorted(QUESTIONS.glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]


def fit(embedder: Embedder, rows: list[dict[str, str]]) -> QueryAdapter:
    """The adapter, fitted anew in the space of an embedder."""

    def vectors(name: str) -> torch.Tensor:
        texts = [row.get(name, row["near_miss"]) for row in rows]
        return torch.from_numpy(embedder.embed(texts))

    asked, newer, older, *others = map(
        vectors, ("question", "newer", "older", "near_miss", "also_true")
    )
    random = torch.Generator().manual_seed(0)
    down = (torch.randn(_RANK, embedder.dim, generator=random) / 50).requires_grad_()
    up = (torch.randn(embedder.dim, _RANK, generator=random) / 50).requires_grad_()
    optimizer = torch.optim.AdamW([down, up], lr=_RATE, weight_decay=_DECAY)
    for _ in range(_STEPS):
        batch = torch.randperm(len(rows), generator=random)[:_BATCH]
        noise = torch.randn(len(batch), embedder.dim, generator=random)
        query = asked[batch] + _NOISE * noise
        moved = torch.nn.functional.normalize(query + query @ down.T @ up.T, dim=-1)
        losses = []
        for answers in (newer, older):
            statements = torch.cat([one[batch] for one in (answers, *others)])
            logits = moved @ statements.T / _TEMPERATURE
            losses.append(torch.nn.functional.cross_entropy(logits, torch.arange(len(batch))))
        loss = _NEWER_COUNTS * losses[0] + (1 - _NEWER_COUNTS) * losses[1]
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return QueryAdapter(embedder.name, down.detach().numpy(), up.detach().numpy())


def save(adapter: QueryAdapter) -> None:
    """Write the weights where the package reads them, in half precision."""
    tensors = {"down": adapter.down, "up": adapter.up}
    half = {name: np.ascontiguousarray(one, np.float16) for name, one in tensors.items()}
    save_file(half, WEIGHTS, {"space": adapter.space})


if __name__ == "__main__":
    save(fit(default_embedder(), questions()))
