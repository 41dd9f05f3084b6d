"""How a transformers cache of a model may be gone on from: found by trying, once a model.

Some recurrent models (Mamba, Jamba and RecurrentGemma of transformers 5.24) drop their state when
they are given several tokens behind others, without a word. Given one token at a time they keep
it. Others keep a cache of a kind of their own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from agentmem.errors import Unsupported
from agentmem.models.forward import Forward
from agentmem.models.loading import LoadedModel
from agentmem.models.text_prefill import PrefixWindow

_NUM_FIRST = 20
_NUM_BEHIND = 4
_ROUNDING = 2e-3
"""Relative L2 of logits."""
_NOISE = 3.0
"""Times what single tokens are off: in low precision that is more than rounding."""
_BROKEN = 0.3
"""Off by more than this, a cache is not gone on from at all."""


def reads_one_by_one(loaded: LoadedModel) -> bool:
    """Whether tokens behind others must be read one at a time.

    Raises:
        Unsupported: the model does not go on from a transformers cache at all.
    """
    name = loaded.model.config.model_type
    try:
        whole = _read(loaded, 0)
        together, singly = (
            float(np.linalg.norm(_read(loaded, _NUM_FIRST, one_by_one) - whole))
            / float(np.linalg.norm(whole))
            for one_by_one in (False, True)
        )
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise Unsupported(
            f"{name} does not go on from a cache of transformers' own kind: "
            f"{type(error).__name__}: {error}"
        ) from error
    if not singly <= _BROKEN:
        raise Unsupported(
            f"{name} does not say the same when it goes on from its cache as when it reads all at "
            f"once: its logits are {singly:.1e} off."
        )
    return not together <= max(_ROUNDING, _NOISE * singly)


def _read(loaded: LoadedModel, num_first: int, one_by_one: bool = False) -> NDArray[np.float32]:
    """Logits after the last of some tokens, read in two parts unless `num_first` is 0."""
    count = _NUM_FIRST + _NUM_BEHIND
    ids = [1 + index * (loaded.vocab_size - 2) // count for index in range(count)]
    forward = Forward(loaded, one_by_one=one_by_one)
    window = PrefixWindow(loaded)
    if num_first:
        forward.run(window, ids[:num_first], max_tokens=0)
    return forward.run(window, ids[num_first:], max_tokens=0)
