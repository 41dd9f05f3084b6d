"""Every segment policy over the same hard cases, and the laws all of them keep."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmem.budget import Budget
from agentmem.decision import Candidate, Decision
from agentmem.errors import InvalidInput
from agentmem.policies import (
    POLICIES,
    AttentionPolicy,
    ComposedPolicy,
    HysteresisPolicy,
    LRUPolicy,
    MixturePolicy,
    PinnedPolicy,
    PricePolicy,
    RelevancePolicy,
    ScorerPolicy,
    SegmentPolicy,
    SequencePolicy,
    SizePolicy,
    WindowPolicy,
    WorthPolicy,
    make_policy,
)
from agentmem.segment import Message, Segment


def segment(segment_id: int) -> Segment:
    return Segment(messages=(Message("user", f"text {segment_id}"),), id=segment_id)


def candidate(
    segment_id: int,
    num_tokens: int = 10,
    *,
    age: int = 0,
    idle: int | None = None,
    attention: float | None = None,
    similarity: float | None = None,
    worth: float | None = None,
    echo: float | None = None,
    recalls: int = 0,
    pinned: bool = False,
    protected: str = "",
) -> Candidate:
    return Candidate(
        segment=segment(segment_id),
        num_tokens=num_tokens,
        age_turns=age,
        idle_turns=age if idle is None else idle,
        attention=attention,
        similarity=similarity,
        worth=worth,
        echo=echo,
        recalls=recalls,
        pinned=pinned,
        protected=protected,
    )


def budget(target: int) -> Budget:
    """A budget whose reviews must reach `target` tokens."""
    return Budget(max_tokens=max(2 * target, 1), free_to=0.5, warn_at=0.7)


def dropped(policy: SegmentPolicy, candidates: Sequence[Candidate], target: int) -> list[int]:
    return [i for d in policy.decide(candidates, budget(target)) for i in d.segment_ids]


def kept_tokens(candidates: Sequence[Candidate], gone: Sequence[int]) -> int:
    return sum(c.num_tokens for c in candidates if c.id not in gone)


ALL: list[SegmentPolicy] = [
    *(make_policy(name) for name in POLICIES),
    ComposedPolicy([WindowPolicy(), AttentionPolicy()], weights=[1, 3]),
    PinnedPolicy(WindowPolicy(), predicate=lambda c: c.id == 10**6),
    SequencePolicy([LRUPolicy(), WindowPolicy()]),
]
every_policy = pytest.mark.parametrize("policy", ALL, ids=lambda policy: policy.name)


@every_policy
class TestHardCases:
    def test_empty_window_needs_no_decision(self, policy: SegmentPolicy) -> None:
        assert policy.decide([], budget(10)) == []

    def test_window_at_its_target_needs_no_decision(self, policy: SegmentPolicy) -> None:
        assert policy.decide([candidate(1, 50), candidate(2, 50)], budget(100)) == []

    def test_nothing_goes_when_everything_is_pinned_or_protected(
        self, policy: SegmentPolicy
    ) -> None:
        window = [candidate(1, 90, pinned=True), candidate(2, 90, protected="core")]
        assert policy.decide(window, budget(10)) == []

    def test_one_huge_segment_goes_alone(self, policy: SegmentPolicy) -> None:
        assert dropped(policy, [candidate(7, 100_000)], 100) == [7]

    def test_ties_go_by_id(self, policy: SegmentPolicy) -> None:
        window = [candidate(i, 10) for i in (3, 1, 2, 4)]
        assert dropped(policy, window, 20) == [1, 2]

    def test_zero_target_takes_every_movable_segment(self, policy: SegmentPolicy) -> None:
        window = [candidate(1), candidate(2, pinned=True), candidate(3), candidate(4)]
        assert sorted(dropped(policy, window, 0)) == [1, 3, 4]

    def test_segment_without_tokens_is_not_dropped_in_vain(self, policy: SegmentPolicy) -> None:
        assert dropped(policy, [candidate(1, 0, age=9), candidate(2, 10)], 5) == [2]

    def test_unknown_evidence_still_reaches_the_target(self, policy: SegmentPolicy) -> None:
        known = [candidate(i, attention=0.1 * i, similarity=0.1 * i) for i in range(1, 5)]
        unknown = [candidate(i, age=i) for i in range(5, 9)]
        window = known + unknown
        assert kept_tokens(window, dropped(policy, window, 40)) == 40

    def test_thousands_of_segments_are_decided_in_seconds(self, policy: SegmentPolicy) -> None:
        window = [
            candidate(i, 7, age=3000 - i, attention=None if i % 2 else i / 3000)
            for i in range(3000)
        ]
        gone = dropped(policy, window, 7000)
        assert len(gone) == 2000
        assert len(set(gone)) == 2000

    def test_each_decision_says_who_why_on_what_and_what_else(self, policy: SegmentPolicy) -> None:
        window = [candidate(i, 10 + i, age=9 - i, attention=i / 10) for i in range(1, 6)]
        for decision in policy.decide(window, budget(30)):
            (segment_id,) = decision.segment_ids
            assert decision.action == "drop"
            assert decision.source == "policy"
            assert decision.maker
            assert f"this frees {10 + segment_id}" in decision.reason
            assert "holds 65 tokens and must reach 30" in decision.reason
            assert decision.evidence[segment_id]["num_tokens"] == 10 + segment_id
            assert math.isfinite(decision.evidence[segment_id]["score"])
            assert "would have gone next" in decision.alternative

    def test_last_one_standing_has_no_alternative(self, policy: SegmentPolicy) -> None:
        (decision,) = policy.decide([candidate(1), candidate(2, pinned=True)], budget(5))
        assert decision.alternative.startswith("None")


shares = st.none() | st.floats(0, 1, allow_nan=False)
windows = st.lists(
    st.builds(
        candidate,
        st.integers(1, 10_000),
        st.integers(0, 200),
        age=st.integers(0, 50),
        idle=st.integers(0, 50),
        attention=shares,
        similarity=st.none() | st.floats(-1, 1, allow_nan=False),
        pinned=st.booleans(),
        protected=st.sampled_from(["", "", "core", "newest turn"]),
    ),
    max_size=25,
    unique_by=lambda c: c.id,
)


@every_policy
class TestLaws:
    @settings(deadline=None, max_examples=60)
    @given(window=windows, target=st.integers(0, 1500))
    def test_never_touches_what_may_not_move_and_reaches_the_target_where_it_can(
        self, policy: SegmentPolicy, window: list[Candidate], target: int
    ) -> None:
        gone = dropped(policy, window, target)
        by_id = {c.id: c for c in window}
        assert len(set(gone)) == len(gone)
        assert all(by_id[i].movable for i in gone)
        fixed = sum(c.num_tokens for c in window if not c.movable)
        assert kept_tokens(window, gone) <= max(target, fixed)

    @settings(deadline=None, max_examples=60)
    @given(window=windows, target=st.integers(0, 1500))
    def test_putting_the_last_dropped_back_would_exceed_the_target(
        self, policy: SegmentPolicy, window: list[Candidate], target: int
    ) -> None:
        gone = dropped(policy, window, target)
        if gone:
            assert kept_tokens(window, gone[:-1]) > target

    @settings(deadline=None, max_examples=60)
    @given(window=windows, target=st.integers(0, 1500), seed=st.integers(0, 99))
    def test_decisions_do_not_depend_on_the_order_of_the_candidates(
        self, policy: SegmentPolicy, window: list[Candidate], target: int, seed: int
    ) -> None:
        shuffled = random.Random(seed).sample(window, len(window))
        assert policy.decide(shuffled, budget(target)) == policy.decide(window, budget(target))


@dataclass(frozen=True)
class RecordingPolicy(ScorerPolicy):
    """Scores at random and remembers what it gave."""

    given: dict[int, float] = field(default_factory=dict)
    name = "recording"

    def score(self, candidate: Candidate, candidates: Sequence[Candidate]) -> float:
        self.given[candidate.id] = random.Random(candidate.id).random()
        return self.given[candidate.id]


@settings(deadline=None, max_examples=100)
@given(window=windows, target=st.integers(0, 1500))
def test_what_is_kept_is_what_scored_highest(window: list[Candidate], target: int) -> None:
    policy = RecordingPolicy()
    gone = dropped(policy, window, target)
    kept = [c.id for c in window if c.movable and c.num_tokens and c.id not in gone]
    if gone and kept:
        assert max(policy.given[i] for i in gone) < min(policy.given[i] for i in kept)


def test_window_drops_the_oldest() -> None:
    window = [candidate(1, age=2), candidate(2, age=9), candidate(3, age=5), candidate(4, age=0)]
    assert dropped(WindowPolicy(), window, 20) == [2, 3]


def test_lru_drops_what_was_idle_longest_not_what_is_oldest() -> None:
    window = [candidate(1, age=90, idle=1), candidate(2, age=8, idle=8), candidate(3, age=0)]
    assert dropped(LRUPolicy(), window, 20) == [2]


def test_relevance_drops_what_is_far_from_the_newest_message() -> None:
    window = [candidate(1, similarity=0.9), candidate(2, similarity=-0.1), candidate(3)]
    assert dropped(RelevancePolicy(), window, 20) == [2]


def test_relevance_prefers_the_newer_of_two_equally_near() -> None:
    window = [candidate(1, age=1, similarity=0.4), candidate(2, age=30, similarity=0.4)]
    assert dropped(RelevancePolicy(), window, 10) == [2]


def test_relevance_follows_its_formula() -> None:
    policy = RelevancePolicy(10, age_weight=0.4)
    one = candidate(1, age=10, similarity=0.6)
    assert policy.score(one, [one]) == pytest.approx(0.6 - 0.4 * 0.5)


def test_relevance_counts_unknown_similarity_as_the_mean_of_the_known() -> None:
    window = [candidate(1, similarity=0.2), candidate(2, similarity=0.6), candidate(3)]
    assert RelevancePolicy().score(window[2], window) == pytest.approx(0.4)


def test_attention_drops_what_the_model_looked_at_least_however_new() -> None:
    window = [
        candidate(1, age=50, attention=0.7),
        candidate(2, age=0, attention=0.01),
        candidate(3, age=20, attention=0.3),
    ]
    assert dropped(AttentionPolicy(), window, 20) == [2]


def test_attention_falls_back_on_age_and_says_so() -> None:
    window = [candidate(1, age=3), candidate(2, age=7), candidate(3, age=1)]
    (decision,) = AttentionPolicy().decide(window, budget(20))
    assert decision.segment_ids == (2,)
    assert "attention is unknown, so its age of 7 turns decided" in decision.reason


def test_attention_zero_is_not_unknown() -> None:
    window = [candidate(1, attention=0.0), candidate(2, age=40), candidate(3, attention=0.5)]
    assert dropped(AttentionPolicy(), window, 20) == [1]


def test_new_segment_of_unknown_attention_counts_as_an_average_one() -> None:
    window = [candidate(1, attention=0.1), candidate(2, attention=0.3), candidate(3)]
    assert AttentionPolicy().score(window[2], window) == pytest.approx(0.2)


def test_worth_drops_what_the_model_would_keep_least() -> None:
    window = [candidate(1, worth=2.0), candidate(2, worth=-1.0), candidate(3, worth=0.5)]
    assert dropped(WorthPolicy(), window, 20) == [2]


def test_what_was_not_judged_counts_as_an_average_one_that_fades() -> None:
    window = [candidate(1, worth=2.0), candidate(2, worth=0.0), candidate(3, age=10)]
    assert WorthPolicy(20).score(window[2], window) == pytest.approx(0.5)
    (decision,) = WorthPolicy(1).decide(window, budget(20))
    assert decision.segment_ids == (3,) and "was not asked" in decision.reason


def test_an_answer_loses_by_what_it_only_repeats() -> None:
    window = [candidate(1, worth=2.0), candidate(2, worth=2.0, echo=0.9), candidate(3, worth=1.0)]
    (decision,) = WorthPolicy().decide(window, budget(20))
    assert decision.segment_ids == (2,) and "90% of it echoes" in decision.reason
    assert dropped(WorthPolicy(echo_weight=0.5), window, 20) == [3]
    assert WorthPolicy().score(candidate(4, worth=1.0, echo=-0.3), window) == 1.0


def test_size_drops_the_longest() -> None:
    assert dropped(SizePolicy(), [candidate(1, 30), candidate(2, 90), candidate(3, 60)], 90) == [2]


def test_price_drops_what_takes_most_for_its_use() -> None:
    window = [candidate(1, 90), candidate(2, 30), candidate(3, 90, recalls=5)]
    assert dropped(PricePolicy(), window, 120) == [1]
    idle = [candidate(1, idle=40, age=40), candidate(2, idle=0)]
    assert dropped(PricePolicy(), idle, 10) == [1]


def test_hysteresis_spares_what_has_just_come_back_while_anything_else_is_left() -> None:
    window = [candidate(1, age=30, idle=1), candidate(2, age=9), candidate(3, age=2)]
    policy = HysteresisPolicy(WindowPolicy())
    assert dropped(policy, window, 20) == [2]
    assert dropped(policy, window, 0) == [2, 3, 1]
    assert not policy.came_back(candidate(4, age=1)), "being new is not coming back"


def test_the_mixture_follows_the_model_where_the_rest_is_equal() -> None:
    window = [candidate(1, worth=0.1), candidate(2, worth=-0.1), candidate(3, worth=0.4)]
    assert dropped(MixturePolicy(), window, 10) == [2, 1]


def test_the_mixture_can_overrule_the_model() -> None:
    window = [candidate(i, worth=0.0, age=1) for i in range(1, 6)]
    window += [candidate(6, 400, worth=0.05, age=90)]
    assert dropped(MixturePolicy({WorthPolicy(): 0.2, PricePolicy(): 1.0}), window, 60) == [6]


def test_a_mixture_of_nothing_or_of_no_weight_is_refused() -> None:
    with pytest.raises(InvalidInput, match="at least one"):
        MixturePolicy({})
    with pytest.raises(InvalidInput, match="positive: got 0"):
        MixturePolicy({WorthPolicy(): 0.0})


def test_pinned_wrapper_keeps_ids_and_what_the_predicate_names() -> None:
    policy = PinnedPolicy(WindowPolicy(), ids={1}, predicate=lambda c: c.num_tokens == 11)
    window = [candidate(1, age=9), candidate(2, 11, age=8), candidate(3, age=7), candidate(4)]
    assert dropped(policy, window, 0) == [3, 4]


def test_pinned_wrapper_holds_against_an_inner_policy_that_ignores_pins() -> None:
    class Ruthless(WindowPolicy):
        def decide(self, candidates: Sequence[Candidate], budget: Budget) -> list[Decision]:
            unpinned = [candidate(c.id, c.num_tokens, age=c.age_turns) for c in candidates]
            return super().decide(unpinned, budget)

    policy = PinnedPolicy(Ruthless(), ids={1})
    assert dropped(policy, [candidate(1, age=9), candidate(2)], 0) == [2]


def test_composed_policy_weighs_ranks_not_raw_scores() -> None:
    # Raw ages are a hundred times larger than attention; with ranks both count as weighted.
    window = [
        candidate(1, age=300, attention=0.003),
        candidate(2, age=200, attention=0.002),
        candidate(3, age=100, attention=0.001),
    ]
    policies = [WindowPolicy(), AttentionPolicy()]
    assert dropped(ComposedPolicy(policies, weights=[1, 2]), window, 20) == [3]
    assert dropped(ComposedPolicy(policies, weights=[2, 1]), window, 20) == [1]


def test_composed_policy_shares_ranks_among_equals() -> None:
    window = [candidate(1, age=5), candidate(2, age=5), candidate(3, age=0)]
    assert ComposedPolicy([WindowPolicy()]).scores(window) == {1: 0.25, 2: 0.25, 3: 1.0}


def test_sequence_lets_precious_segments_go_last() -> None:
    precious = PinnedPolicy(WindowPolicy(), ids={1})
    policy = SequencePolicy([precious, WindowPolicy()])
    window = [candidate(1, age=9), candidate(2, age=1), candidate(3, age=0)]
    assert dropped(policy, window, 10) == [2, 3]
    assert dropped(policy, window, 0) == [2, 3, 1]


def test_unknown_name_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(InvalidInput, match="'fifo'.*attention, composed, lru, mix.*, window"):
        make_policy("fifo")


@pytest.mark.parametrize("name", POLICIES)
def test_policy_is_made_by_its_name(name: str) -> None:
    assert isinstance(make_policy(name), SegmentPolicy)
    if name != "composed":
        assert make_policy(name).name == name


def test_score_that_is_no_number_is_refused() -> None:
    window = [candidate(1, similarity=math.nan), candidate(2)]
    with pytest.raises(InvalidInput, match="finite scores: got nan"):
        RelevancePolicy().decide(window, budget(5))


def test_same_segment_twice_is_refused() -> None:
    with pytest.raises(InvalidInput, match="distinct segment ids"):
        WindowPolicy().decide([candidate(1), candidate(1)], budget(5))


@pytest.mark.parametrize(
    "make",
    [
        lambda: RelevancePolicy(0),
        lambda: RelevancePolicy(age_weight=-1),
        lambda: AttentionPolicy(-2),
        lambda: ComposedPolicy([]),
        lambda: ComposedPolicy([LRUPolicy()], weights=[1, 2]),
        lambda: ComposedPolicy([LRUPolicy()], weights=[0]),
        lambda: SequencePolicy([]),
        lambda: PinnedPolicy(LRUPolicy()),
    ],
)
def test_parameters_out_of_range_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(InvalidInput):
        make()
