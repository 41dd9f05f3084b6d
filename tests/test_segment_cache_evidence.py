"""What the queries of the last turns looked at, per segment."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from agentmem.errors import InvalidInput
from agentmem.models.attached import AttachedModel, attach
from agentmem.models.kv_evidence import Evidence
from agentmem.models.segment_cache import SegmentCache
from tests.kv_models import ask, filled, ids, tiny_model


@pytest.fixture(scope="module")
def attached() -> Iterator[AttachedModel]:
    made = attach(tiny_model("llama"))
    yield made
    made.detach()


def test_evidence_is_the_attention_a_segment_received(attached: AttachedModel) -> None:
    """Against the weights of the stock model's last layer, the only one that counts here."""
    cache = filled(attached, (20, 30, 10))
    cache.new_turn()
    cache.new_turn()
    cache.new_turn()
    cache.new_turn()
    assert cache.attention_mass() == {}
    question = ids(4, 99)
    attached.forward(question, cache)
    found = cache.attention_mass()

    eager = tiny_model("llama", attn_implementation="eager")
    text = [token for key in range(3) for token in ids((20, 30, 10)[key], key)] + question
    with torch.no_grad():
        weights = eager(torch.tensor([text]), output_attentions=True).attentions[2][0]
    received = weights[:, 60:].mean((0, 1))
    expected = {0: received[4:20].mean(), 1: received[20:50].mean(), 2: received[50:60].mean()}
    assert found == pytest.approx({k: float(v) for k, v in expected.items()}, rel=1e-4)


def test_evidence_of_old_turns_fades_and_unknown_segments_are_absent(
    attached: AttachedModel,
) -> None:
    cache = filled(attached, (20, 20), evidence_turns=2)
    cache.new_turn()
    cache.park(0)
    ask(attached, cache)
    assert set(cache.attention_mass()) == {1}
    cache.restore(0, 0)
    ask(attached, cache)
    assert set(cache.attention_mass()) == {0, 1}
    for _ in range(2):
        cache.new_turn()
    assert cache.attention_mass() == {}


def test_evidence_follows_segments_through_sealing_moving_and_packing(
    attached: AttachedModel,
) -> None:
    plain, busy = (filled(attached, (20, 30), format="q8", evidence_turns=1) for _ in range(2))
    for cache in (plain, busy):
        cache.new_turn()
    for position, token in enumerate(ids(24, 5)):
        attached.forward([token], plain)
        attached.forward([token], busy)
        if position == 11:
            busy.seal("reply")
            busy.layout([(0, 0), (1, 20), ("reply", 50)])
            busy.begin(62)
    plain.seal("reply", 12)
    for cache in (plain, busy):
        cache.discard_tail()
    assert busy.attention_mass() == pytest.approx(plain.attention_mass(), rel=1e-3)
    assert set(busy.attention_mass()) == {0, 1, "reply"}


def test_one_in_four_decoded_tokens_is_observed_wherever_a_reply_begins(
    attached: AttachedModel,
) -> None:
    for length, observed in ((20, 3), (21, 2), (23, 3)):
        cache = filled(attached, (length,), evidence_turns=1)
        cache.new_turn()
        for token in ids(10, 5):
            attached.forward([token], cache)
        ((mass, queries),) = cache.evidence.observed()[0].values()
        assert queries == observed and mass > 0


def test_the_sinks_of_a_window_are_no_evidence(attached: AttachedModel) -> None:
    cache = SegmentCache(attached)
    for key, length in (("first", 4), ("second", 20)):
        attached.forward(ids(length), cache)
        cache.seal(key)
    ask(attached, cache)
    assert set(cache.attention_mass()) == {"second"}


def test_mean_probability_per_token_over_turns() -> None:
    evidence = Evidence(num_turns=2)
    evidence.add("a", 3.0, 2)
    evidence.new_turn()
    evidence.add("a", 1.0, 2)
    evidence.add("b", 0.0, 5)
    evidence.add("c", 1.0, 0)
    assert evidence.per_token({"a": 10, "b": 1, "c": 1, "d": 1}) == {"a": 0.1, "b": 0.0}
    evidence.new_turn()
    assert evidence.per_token({"a": 10}) == {"a": 0.05}
    copy = evidence.copy()
    copy.forget("a")
    assert copy.per_token({"a": 10}) == {} and evidence.per_token({"a": 10}) == {"a": 0.05}
    with pytest.raises(InvalidInput, match="0"):
        Evidence(0)
