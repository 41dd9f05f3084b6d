"""Choose the next token from logits.

Knows numbers only: repetition penalty, then temperature, then top-k, then top-p, as everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from agentmem.errors import InvalidInput, ModelCorrupt

_COLDEST = 1e-6
"""Below this temperature only the best token has any weight left."""


class Sampler:
    """Draws tokens; the same seed and logits draw the same ones.

    Args:
        temperature: 0 takes the best token.
        top_p: smallest set of tokens with this much probability, in (0, 1].
        top_k: at most so many tokens; 0 means all.
        repetition_penalty: above 1 discourages tokens of the reply so far. The prompt's are not
            touched: its facts must stay as easy to repeat as they are.
        seed: of the generator.
        mute_ids: tokens that are never drawn.

    Raises:
        InvalidInput: a value is out of range.
    """

    def __init__(
        self,
        *,
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        repetition_penalty: float = 1.0,
        seed: int = 0,
        mute_ids: Sequence[int] = (),
    ) -> None:
        if not temperature >= 0:
            raise InvalidInput(f"`temperature` must not be negative: got {temperature}.")
        if not 0 < top_p <= 1:
            raise InvalidInput(f"`top_p` must lie in (0, 1]: got {top_p}.")
        if top_k < 0:
            raise InvalidInput(f"`top_k` must not be negative (0 means all): got {top_k}.")
        if not repetition_penalty > 0:
            raise InvalidInput(f"`repetition_penalty` must be positive: got {repetition_penalty}.")
        self._temperature = temperature
        self._top_p = top_p
        self._top_k = top_k
        self._penalty = repetition_penalty
        self._mute_ids = np.asarray(mute_ids, dtype=np.int64)
        self._generator = np.random.default_rng(abs(seed))

    def sample(
        self,
        logits: NDArray[np.float32],
        spoken: Sequence[int] = (),
        allowed: NDArray[np.bool_] | None = None,
    ) -> int:
        """The next token id.

        Args:
            logits: (vocab_size,), float32.
            spoken: ids of the reply so far.
            allowed: (vocab_size,), what the grammar lets through; None means everything.

        Raises:
            ModelCorrupt: the logits are not numbers.
        """
        if np.isnan(logits).any():
            raise ModelCorrupt("The model's logits are not numbers (NaN): its weights are damaged.")
        if spoken and self._penalty != 1.0:
            logits = logits.copy()
            seen = np.unique(np.asarray(spoken, dtype=np.int64))
            values = logits[seen]
            logits[seen] = np.where(values > 0, values / self._penalty, values * self._penalty)
        if self._mute_ids.size:
            logits = logits.copy()
            logits[self._mute_ids[self._mute_ids < len(logits)]] = -np.inf
        if allowed is not None:
            logits = np.where(allowed, logits, -np.inf)
        if self._temperature == 0:
            return int(np.argmax(logits))
        candidates = self._candidates(logits)
        weights = logits[candidates].astype(np.float64)
        weights = np.exp((weights - weights.max()) / max(self._temperature, _COLDEST))
        weights /= weights.sum()
        if self._top_p < 1:
            # The first token that reaches the share still belongs to the set.
            keep = int(np.searchsorted(np.cumsum(weights), self._top_p)) + 1
            candidates, weights = candidates[:keep], weights[:keep]
        cumulative = np.cumsum(weights)
        drawn = self._generator.random() * cumulative[-1]
        return int(
            candidates[min(int(np.searchsorted(cumulative, drawn, "right")), len(weights) - 1)]
        )

    def _candidates(self, logits: NDArray[np.float32]) -> NDArray[np.int64]:
        """Ids that may be drawn, best first; equal ones in the order of their ids."""
        if self._top_k and self._top_k < len(logits):
            threshold = np.partition(logits, -self._top_k)[-self._top_k]
            better = np.flatnonzero(logits > threshold)
            equal = np.flatnonzero(logits == threshold)[: self._top_k - len(better)]
            best = np.concatenate([better, equal])
        else:
            best = np.flatnonzero(logits > -np.inf)
        return best[np.argsort(-logits[best], kind="stable")]
