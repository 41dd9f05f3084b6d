"""Prove on a model itself that segments can leave, return, move and be written in the middle.

A short history of operations runs on a segment cache; one dense forward over all its tokens, with
the mask of what each could see, must give the same logits. The history moves everything together,
so that one set of positions is right for every pair of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from agentmem.errors import Unsupported
from agentmem.models.attached import AttachedModel
from agentmem.models.segment_cache import SegmentCache

_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-4}
"""Relative L2 of logits; a wrong rotation or mask is off by more than 1e-2."""
_LOW_PRECISION_TOLERANCE = 5e-2
_SHIFT = 101
_PLACES = {"a": (0, 19), "b": (19, 13), "c": (32, 18), "d": (50, 5), "e": (55, 6), "f": (61, 4),
           "g": (32, 7), "h": (65, 3)}  # fmt: skip
"""Key: position and number of tokens. "g" is written where "c" was."""
_SEEN = {"a": "a", "b": "ab", "c": "abc", "d": "acd", "e": "abcde", "f": "abcdef", "g": "abg",
         "h": "abdefgh"}  # fmt: skip
"""What each segment's tokens could see."""


def self_test(attached: AttachedModel) -> float:
    """Run the history on the model.

    Returns:
        Relative L2 of the logits of the worst step.

    Raises:
        Unsupported: the logits differ.
    """
    vocabulary = int(attached.model.config.get_text_config(decoder=True).vocab_size)
    tokens, ids = 1, {}
    for key, (_, length) in _PLACES.items():
        ids[key] = [(tokens + 7 * index) % (vocabulary - 1) + 1 for index in range(length)]
        tokens += 7 * length
    found = _replay(attached, ids)
    expected = _dense(attached, ids)
    allowed = _TOLERANCE.get(attached.dtype, _LOW_PRECISION_TOLERANCE)
    worst = 0.0
    for key, logits in found.items():
        error = float((logits - expected[key]).norm() / expected[key].norm())
        if not error <= allowed:
            raise Unsupported(
                f"{type(attached.model).__name__} failed the self-test of the segment cache: "
                f"logits of step {key!r} are {error:.1e} off, {allowed:.0e} is allowed."
            )
        worst = max(worst, error)
    return worst


def _replay(attached: AttachedModel, ids: dict[str, list[int]]) -> dict[str, Tensor]:
    cache = SegmentCache(attached)
    logits: dict[str, Tensor] = {}

    def read(key: str) -> None:
        logits[key] = attached.forward(ids[key], cache, logits_to_keep=0).float()
        cache.seal(key)

    for key in "abc":
        read(key)
    cache.park("b")
    read("d")
    cache.restore("b", _PLACES["b"][0])
    read("e")
    cache.layout([(key, _PLACES[key][0] + _SHIFT) for key in "abcde"])
    read("f")
    cache.park("c")
    cache.begin(_PLACES["g"][0] + _SHIFT)
    read("g")
    read("h")
    return logits


def _dense(attached: AttachedModel, ids: dict[str, list[int]]) -> dict[str, Tensor]:
    keys = list(_PLACES)
    positions = [start + i for start, length in _PLACES.values() for i in range(length)]
    owners = [key for key, (_, length) in _PLACES.items() for _ in range(length)]
    place = torch.tensor(positions, device=attached.device)
    visible = torch.tensor(
        [[other in _SEEN[owner] for other in owners] for owner in owners], device=attached.device
    )
    visible &= place[None, :] <= place[:, None]
    with torch.no_grad():
        output = attached.model(
            input_ids=torch.tensor([[token for key in keys for token in ids[key]]]).to(place),
            position_ids=place[None],
            attention_mask=_masks(attached, visible, place),
            use_cache=False,
        )
    split = output.logits[0].float().split([len(ids[key]) for key in keys])
    return dict(zip(keys, split, strict=True))


def _masks(attached: AttachedModel, visible: Tensor, place: Tensor) -> Any:
    """The 4-D mask; one a layer type where windows differ and matter."""
    windows: Sequence[int] = sorted({layer.window for layer in attached.layers})
    span = int(place.max()) + 1
    masks = [
        visible & (place[None, :] > place[:, None] - window) if window else visible
        for window in windows
    ]
    if all(window == 0 or window >= span for window in windows):
        return visible[None, None]
    if len(windows) == 1:
        return masks[0][None, None]
    return {"full_attention": masks[0][None, None], "sliding_attention": masks[1][None, None]}
