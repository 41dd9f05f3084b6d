"""Laws of sampling, and of the text that becomes of sampled ids."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from agentmem.errors import InvalidInput, ModelCorrupt
from agentmem.models.reply_text import Detokenizer, StopStrings, ThoughtSplitter
from agentmem.models.sampling import Sampler

LOGITS = st.lists(st.floats(-20, 20, width=32, allow_nan=False), min_size=1, max_size=40).map(
    lambda values: np.array(values, dtype=np.float32)
)
EXAMPLES = settings(deadline=None, max_examples=80)


def probabilities(logits: NDArray[np.float32], temperature: float) -> NDArray[np.float64]:
    scaled = logits.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    result: NDArray[np.float64] = weights / weights.sum()
    return result


@EXAMPLES
@given(LOGITS, st.integers(1, 10), st.integers(0, 9))
def test_top_k_never_draws_outside_the_best_k(
    logits: NDArray[np.float32], top_k: int, seed: int
) -> None:
    sampler = Sampler(temperature=1.5, top_k=top_k, seed=seed)
    for _ in range(5):
        token_id = sampler.sample(logits)
        assert int((logits > logits[token_id]).sum()) < top_k


@EXAMPLES
@given(LOGITS, st.floats(0.05, 0.95), st.integers(0, 9))
def test_top_p_draws_from_the_smallest_set_with_that_mass(
    logits: NDArray[np.float32], top_p: float, seed: int
) -> None:
    token_id = Sampler(temperature=1.0, top_p=top_p, seed=seed).sample(logits)
    shares = probabilities(logits, 1.0)
    # Everything better than the drawn token together has not reached the share yet.
    assert shares[logits > logits[token_id]].sum() < top_p + 1e-9


@EXAMPLES
@given(LOGITS, st.floats(0.0, 3.0), st.floats(0.1, 1.0), st.integers(0, 20), st.integers(0, 2**31))
def test_the_same_seed_draws_the_same_tokens(
    logits: NDArray[np.float32], temperature: float, top_p: float, top_k: int, seed: int
) -> None:
    first, second = (
        [sampler.sample(logits) for _ in range(6)]
        for sampler in (
            Sampler(temperature=temperature, top_p=top_p, top_k=top_k, seed=seed) for _ in range(2)
        )
    )
    assert first == second


@EXAMPLES
@given(LOGITS, st.data(), st.floats(0.0, 3.0))
def test_what_the_grammar_forbids_is_never_drawn(
    logits: NDArray[np.float32], data: st.DataObject, temperature: float
) -> None:
    size = len(logits)
    allowed = np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)))
    allowed[data.draw(st.integers(0, size - 1))] = True
    token_id = Sampler(temperature=temperature, top_p=0.9).sample(logits, allowed=allowed)
    assert allowed[token_id]


def test_greedy_takes_the_first_of_equals() -> None:
    assert Sampler().sample(np.array([1, 3, 3, 2], dtype=np.float32)) == 1


def test_frequencies_are_the_probabilities() -> None:
    logits = np.array([0.0, 1.0, 2.0], dtype=np.float32)
    sampler = Sampler(temperature=0.7, seed=3)
    drawn = np.bincount([sampler.sample(logits) for _ in range(4000)], minlength=3) / 4000
    assert np.abs(drawn - probabilities(logits, 0.7)).max() < 0.03


def test_a_penalty_makes_spoken_tokens_less_likely_whatever_their_sign() -> None:
    for sign in (1, -1):
        logits = np.array([2.0, 1.9], dtype=np.float32) * sign
        best = int(np.argmax(logits))
        assert Sampler(repetition_penalty=1.5).sample(logits, [best]) == 1 - best
    assert Sampler(repetition_penalty=1.5).sample(np.array([2, 1.9], dtype=np.float32)) == 0


def test_a_penalty_leaves_the_callers_logits_as_they_are() -> None:
    logits = np.array([2.0, 1.9], dtype=np.float32)
    Sampler(repetition_penalty=2.0).sample(logits, [0, 1])
    assert logits.tolist() == pytest.approx([2.0, 1.9])


def test_logits_that_are_not_numbers_are_an_error() -> None:
    with pytest.raises(ModelCorrupt, match="NaN"):
        Sampler().sample(np.array([0.0, np.nan], dtype=np.float32))


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"top_k": -1},
        {"repetition_penalty": 0.0},
    ],
)
def test_options_out_of_range_are_refused_by_name(options: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(options))):
        Sampler(**options)  # type: ignore[arg-type]


def pieces(text: str, cuts: Sequence[int]) -> list[str]:
    """The text cut at these places."""
    places = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[a:b] for a, b in zip(places, places[1:], strict=False)]


def stopped(chunks: Sequence[str], stops: Sequence[str]) -> str:
    filtered = StopStrings(stops)
    return "".join(filtered.push(chunk) for chunk in chunks) + filtered.flush()


@settings(deadline=None, max_examples=300)
@given(
    st.text("ab\n", max_size=24),
    st.lists(st.text("ab\n", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(0, 99), max_size=6),
)
def test_no_stop_string_is_ever_shown_and_chunks_do_not_matter(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    shown = stopped(pieces(text, cuts), stops)
    assert not any(stop in shown for stop in stops)
    assert text.startswith(shown)
    assert shown == stopped(list(text), stops)
    if not any(stop in text for stop in stops):
        assert shown == text


def test_what_may_become_a_stop_string_is_held_back_and_nothing_else() -> None:
    filtered = StopStrings(["\nUser:"])
    assert filtered.push("Hello\nUs") == "Hello"
    assert filtered.push("ed books") == "\nUsed books"
    assert filtered.push("\nUser: hi") == ""
    assert filtered.is_stopped and filtered.push("more") == ""


def byte_decode(token_ids: Sequence[int]) -> str:
    return bytes(token_ids).decode("utf-8", "replace")


@settings(deadline=None, max_examples=200)
@given(st.text(max_size=30))
def test_a_character_is_shown_whole_or_not_at_all(text: str) -> None:
    detokenizer = Detokenizer(byte_decode)
    shown = [detokenizer.push(byte) for byte in text.encode("utf-8")]
    assert "".join(shown) == text
    assert all("\ufffd" not in piece or "\ufffd" in text for piece in shown)
    assert not detokenizer.is_holding


def test_half_a_character_at_the_end_is_held() -> None:
    detokenizer = Detokenizer(byte_decode)
    assert "".join(map(detokenizer.push, "a€".encode()[:-1])) == "a"
    assert detokenizer.is_holding


@given(st.binary(max_size=40))
def test_garbage_does_not_hold_the_text_back_for_ever(garbage: bytes) -> None:
    detokenizer = Detokenizer(byte_decode)
    shown = "".join(map(detokenizer.push, garbage + b"the end."))
    assert shown.endswith("the end.")


def test_a_leading_space_is_seen_in_context() -> None:
    def decode(token_ids: Sequence[int]) -> str:
        return "".join([" the", " cat"][token_id] for token_id in token_ids).lstrip(" ")

    assert Detokenizer(decode).push(1) == "cat"
    assert Detokenizer(decode, context=[0]).push(1) == " cat"


def test_a_thought_is_no_part_of_the_answer() -> None:
    splitter = ThoughtSplitter(1, 2)
    assert splitter.is_marker(1)
    assert splitter.split("hm\n\n") == ("hm\n\n", "")
    assert splitter.is_marker(2)
    assert splitter.split("\n") == ("", "")
    assert splitter.split("\nYes.\n") == ("", "Yes.\n")
    assert splitter.split("\n\nSure.") == ("", "\n\nSure.")


def test_a_prompt_may_have_opened_the_thought() -> None:
    assert ThoughtSplitter(1, 2, is_open=True).split("hm") == ("hm", "")
    assert not ThoughtSplitter(None, None, is_open=True).is_marker(1)
