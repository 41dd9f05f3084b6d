"""Few queries over a window: C and eager PyTorch see and observe the same."""

from __future__ import annotations

from collections.abc import Hashable

import pytest
import torch
from torch import Tensor

from agentmem.models import kv_layer
from agentmem.models.attached import AttachedModel, attach
from agentmem.models.segment_cache import SegmentCache
from agentmem.storage import kv_dense
from tests.cpu_kernels import missing_here
from tests.kv_models import filled, ids, tiny_model


def replies(attached: AttachedModel) -> tuple[Tensor, dict[Hashable, float]]:
    """Logits of a prompt's end and of tokens decoded after it, in the middle of a window."""
    cache = filled(attached, (20, 30, 10, 40), format="q8")
    cache.compress(1)
    cache.layout([(0, 0), (1, 20), (2, 50), (3, 130)])
    cache.begin(62)
    logits = [attached.forward(ids(9, 7), cache, logits_to_keep=0)]
    logits += [attached.forward([token], cache) for token in ids(20, 8)]
    return torch.cat(logits), cache.attention_mass()


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss"])
def test_both_see_the_same_and_observe_the_same(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    attached = attach(tiny_model(family))
    in_c, observed_in_c = replies(attached)
    for module in (kv_layer, kv_dense):
        monkeypatch.setattr(module, "attends_dense_in_c", lambda *args: False)
    eagerly, observed = replies(attached)
    attached.detach()
    torch.testing.assert_close(in_c, eagerly, rtol=1e-3, atol=1e-3)
    assert observed_in_c == pytest.approx(observed, rel=1e-3)


def test_dense_pages_are_attended_to_in_c_where_that_runs() -> None:
    attached = attach(tiny_model("llama"))
    cache = SegmentCache(attached)
    attached.forward(ids(20), cache)
    in_c = cache.layers[0].states_from(0) is not None
    attached.detach()
    assert in_c is (missing_here() is None)
