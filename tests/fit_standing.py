"""Fits `agentmem/wording/standing_weights.json` to the sentences of `tests/standing`.

    python -m tests.fit_standing

A logistic regression with a ridge, by LBFGS.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from agentmem.models.base import Embedder
from agentmem.models.embed import default_embedder
from agentmem.wording import standing_odds
from agentmem.wording.standing_odds import StandingOdds, word_groups

SENTENCES = Path(__file__).parent / "standing"
WEIGHTS = Path(standing_odds.__file__).with_name(standing_odds.WEIGHTS)
_LEAST_SENTENCES = 3
"""A word group that fewer sentences have tells more of them than of its like."""
_VECTOR_SCALE = 6.0
"""Meaning pays so much less for its weights than words do: 384 numbers against thousands."""
_RIDGE = 1 / 0.3


def sentences_of(name: str) -> list[str]:
    """The sentences of one kind: `standing` or `other`."""
    return (SENTENCES / f"{name}.txt").read_text("utf-8").splitlines()


def fit(embedder: Embedder) -> StandingOdds:
    """The weights, fitted anew in the space of an embedder."""
    standing, other = sentences_of("standing"), sentences_of("other")
    texts = [*standing, *other]
    vectors = embedder.embed(texts)
    groups = [set(word_groups(text)) for text in texts]
    counts = Counter(group for of_one in groups for group in of_one)
    names = sorted(group for group, count in counts.items() if count >= _LEAST_SENTENCES)
    at = {name: column for column, name in enumerate(names)}
    words = np.zeros((len(texts), len(names)))
    for row, of_one in enumerate(groups):
        words[row, [at[group] for group in of_one if group in at]] = 1.0
    inputs = np.hstack([words, _VECTOR_SCALE * vectors])
    is_standing = np.arange(len(texts)) < len(standing)
    bias, weights = _regression(inputs, is_standing)
    vector = _VECTOR_SCALE * weights[len(names) :]
    return StandingOdds(
        space=embedder.name,
        bias=round(bias, 3),
        words={name: round(float(weights[at[name]]), 3) for name in names},
        vector=tuple(np.round(vector, 3).tolist()),
        most_by_meaning=round(float((vectors @ vector).max()), 3),
    )


def _regression(
    inputs: NDArray[np.float64], is_true: NDArray[np.bool_]
) -> tuple[float, NDArray[np.float64]]:
    """Bias and weights; float64, so that every machine finds the same."""
    features = torch.from_numpy(inputs)
    labels = torch.from_numpy(is_true).double()
    weights = torch.zeros(features.shape[1] + 1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weights], max_iter=500, tolerance_grad=1e-9, line_search_fn="strong_wolfe"
    )
    log_loss = torch.nn.BCEWithLogitsLoss(reduction="sum")

    def loss() -> float:
        optimizer.zero_grad()
        ridge = _RIDGE / 2 * weights[1:].square().sum()
        value: torch.Tensor = log_loss(features @ weights[1:] + weights[0], labels) + ridge
        value.backward()  # type: ignore[no-untyped-call]
        return value.item()

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    bias, *rest = weights.detach().numpy()
    return float(bias), np.array(rest)


def save(odds: StandingOdds) -> None:
    """Write the weights where the package reads them: a word group a line."""
    row = {
        "space": odds.space,
        "bias": odds.bias,
        "most_by_meaning": odds.most_by_meaning,
        "vector": list(odds.vector),
    }
    head = json.dumps(row)[:-1]
    lines = ",\n".join(f"{json.dumps(name)}: {odds.words[name]}" for name in sorted(odds.words))
    WEIGHTS.write_text(f'{head},\n"words": {{\n{lines}\n}}}}\n', "utf-8")


if __name__ == "__main__":
    save(fit(default_embedder()))
