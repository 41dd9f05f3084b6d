"""Several continuations of one tail in one forward: as if each had been read alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from agentmem.errors import InvalidInput
from agentmem.models.attached import AttachedModel, attach
from agentmem.models.segment_cache import SegmentCache
from tests.kv_models import filled, ids, tiny_model

BRANCHES = [ids(5, 1), ids(40, 2), ids(1, 3), ids(18, 4)]
KEEP = [2, 40, 1, 3]


@pytest.fixture(scope="module", params=["llama", "mistral_sliding", "gemma2"])
def attached(request: pytest.FixtureRequest) -> Iterator[AttachedModel]:
    made = attach(tiny_model(request.param))
    yield made
    made.detach()


def packed_window(attached: AttachedModel, format: str) -> SegmentCache:
    """Three segments, all but the last packed, and an open tail."""
    cache = filled(attached, (20, 37, 10), format=format)
    for key in (0, 1):
        cache.compress(key)
    attached.forward(ids(7, 9), cache)
    return cache


@pytest.mark.parametrize(("format", "tolerance"), [("dense", 1e-5), ("q8", 1e-3)])
def test_branches_say_what_each_says_alone(
    attached: AttachedModel, format: str, tolerance: float
) -> None:
    cache = packed_window(attached, format)
    found = attached.forward_branches(BRANCHES, cache, KEEP)
    for branch, keep, logits in zip(BRANCHES, KEEP, found, strict=True):
        alone = attached.forward(branch, cache, logits_to_keep=keep)
        cache.truncate_tail(7)
        assert logits.shape == alone.shape
        assert float((logits - alone).norm() / alone.norm()) < tolerance


def test_branches_leave_the_cache_as_it_was(attached: AttachedModel) -> None:
    cache, other = (packed_window(attached, "q8") for _ in range(2))
    attached.forward_branches(BRANCHES, cache, KEEP)
    assert (cache.tail_length, cache.tail_token_ids) == (7, tuple(ids(7, 9)))
    assert cache.attention_mass() == other.attention_mass(), "nobody asked these in earnest"
    assert torch.equal(attached.forward([5, 6], cache), attached.forward([5, 6], other))


def test_a_branch_that_fails_leaves_no_branches_behind(attached: AttachedModel) -> None:
    cache = packed_window(attached, "dense")
    for wrong in ([], [ids(3), []]):
        with pytest.raises(InvalidInput, match="at least one token"):
            attached.forward_branches(wrong, cache, [1] * len(wrong))
    with pytest.raises(InvalidInput, match="reach into segment 'later'"):
        filler = filled(attached, (20,))
        attached.forward(ids(5), filler)
        filler.seal("later")
        filler.layout([(0, 0), ("later", 30)])
        filler.begin(20)
        attached.forward_branches([ids(3), ids(11)], filler, [1, 1])
    attached.forward(ids(10), filler)
    assert filler.tail_length == 10
