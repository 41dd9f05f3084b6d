"""Where a LongRoPE model changes its frequencies: every key in a cache must be of one side."""

from __future__ import annotations

from typing import Any


def switch_tokens(config: Any) -> int:
    """Tokens up to which the short factors hold; 0 where a model has one set of frequencies.

    transformers chooses by the highest position of a forward, so keys read before the switch and
    after it do not belong together.

    Args:
        config: of the model's text decoder.
    """
    parameters = getattr(config, "rope_parameters", None) or {}
    if parameters.get("rope_type") != "longrope":
        return 0
    return int(parameters.get("original_max_position_embeddings") or 0)
