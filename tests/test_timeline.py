"""The timeline of one subject: what held when, from all that was ever said about it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentmem.segment import Trust
from agentmem.storage.rows import Source
from agentmem.storage.timeline import timeline


def said(value: str | None, at: float, *, ended: bool = False, trust: Trust = Trust.USER) -> Source:
    return Source(
        "my code", value, f"It is {value}.", int(at * 10), "patterns",
        ended=ended, said_at=at, trust=trust,
    )  # fmt: skip


def spans(*sources: Source) -> list[tuple[str | None, float | None, float | None, int]]:
    return [
        (span.sources[0].value, span.valid_from, span.valid_to, len(span.sources))
        for span in timeline(sources)
    ]


def test_a_newer_value_closes_the_older_and_deletes_nothing() -> None:
    assert spans(said("A", 1), said("B", 5)) == [("A", 1, 5, 1), ("B", 5, None, 1)]


def test_the_same_value_again_is_more_evidence_of_one_fact() -> None:
    assert spans(said("A", 1), said("A", 2), said("a", 3)) == [("A", 1, None, 3)]


def test_one_value_in_two_disjoint_periods_is_two_facts() -> None:
    assert spans(said("A", 1), said("B", 5), said("A", 9)) == [
        ("A", 1, 5, 1),
        ("B", 5, 9, 1),
        ("A", 9, None, 1),
    ]


def test_what_used_to_be_ends_nothing_else() -> None:
    former = said("Z", 7, ended=True)
    assert spans(said("A", 1), former) == [("A", 1, None, 1), ("Z", None, 1, 1)]


def test_what_is_over_ends_where_that_was_said() -> None:
    assert spans(said("A", 1), said("A", 4, ended=True)) == [("A", 1, 4, 2)]


def test_what_is_trusted_less_ends_nothing_and_holds_for_no_time() -> None:
    claim = said("X", 5, trust=Trust.EXTERNAL)
    assert spans(said("A", 1), claim) == [("A", 1, None, 1), ("X", 5, 5, 1)]
    over = said("A", 5, ended=True, trust=Trust.EXTERNAL)
    assert spans(said("A", 1), over)[0] == ("A", 1, None, 1)


def test_the_user_ends_what_somebody_else_claimed() -> None:
    claim = said("X", 1, trust=Trust.EXTERNAL)
    assert spans(claim, said("A", 5)) == [("X", 1, 5, 1), ("A", 5, None, 1)]


SOURCES = st.lists(
    st.builds(
        Source,
        st.just("my code"),
        st.sampled_from(["1", "2", "3", None]),
        st.sampled_from(["It is.", "It was."]),
        st.integers(1, 9),
        st.just("patterns"),
        st.integers(0, 2),
        st.booleans(),
        said_at=st.integers(1, 6).map(float),
        trust=st.sampled_from([Trust.EXTERNAL, Trust.USER]),
    ),
    max_size=12,
    unique_by=lambda source: (source.said_at, source.segment_id, source.ordinal),
)


@given(SOURCES, st.randoms(use_true_random=False))
def test_the_order_in_which_evidence_is_learned_does_not_matter(
    sources: list[Source], rng: object
) -> None:
    shuffled = sorted(sources, key=lambda _: rng.random())  # type: ignore[attr-defined]
    assert timeline(shuffled) == timeline(sources)


@given(SOURCES)
def test_every_statement_is_evidence_of_exactly_one_fact(sources: list[Source]) -> None:
    kept = [source for span in timeline(sources) for source in span.sources]
    assert len(kept) == len(sources) and set(kept) == set(sources)


@given(SOURCES)
def test_spans_with_a_known_beginning_never_overlap(sources: list[Source]) -> None:
    known = [span for span in timeline(sources) if span.valid_from is not None]
    held = [
        (span.valid_from, float("inf") if span.valid_to is None else span.valid_to)
        for span in known
        if span.valid_from is not None
    ]
    assert all(began <= ended for began, ended in held)
    lasting = sorted(one for one in held if one[0] < one[1])
    assert all(one[1] <= other[0] for one, other in zip(lasting, lasting[1:], strict=False))


@given(SOURCES, st.integers(0, 11))
def test_one_statement_more_loses_none_that_was_there(sources: list[Source], at: int) -> None:
    if not sources:
        return
    newest = sources[at % len(sources)]
    before = {s for span in timeline(s for s in sources if s != newest) for s in span.sources}
    after = {s for span in timeline(sources) for s in span.sources}
    assert after == before | {newest}
