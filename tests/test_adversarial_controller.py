"""What a controller answers is repaired, shown its errors once, and then left to the policy."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from agentmem import Budget
from tests.adversarial_scripts import CALLS, DEEP
from tests.adversary import Outcome, Script, converse, decide, dropped, listed, play, say
from tests.fake_openai import Behaviour, after, drip, reply, tool_call


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a conversation whose next turn needs a review."""
    folder = tmp_path_factory.mktemp("before")
    converse(folder)
    return folder


def reviewed(folder: Path, before: Path, *reviews: Behaviour, **settings: object) -> Outcome:
    """One turn whose review is answered so, the last answer for ever."""
    answers = list(reviews)

    def review(handler: object) -> None:
        (answers.pop(0) if len(answers) > 1 else answers[0])(handler)  # type: ignore[arg-type]

    script = Script(name="review", review=review, turns=1, **settings)  # type: ignore[arg-type]
    outcome = play(script, folder, before=before)
    assert outcome.replies and not outcome.errors
    return outcome


def by_controller(outcome: Outcome) -> int:
    return len(outcome.carried_out("drop"))


@pytest.mark.parametrize(
    "answer",
    [
        say(lambda ids: f"Sure!\n```json\n[{CALLS % ids}]\n```\nDone."),
        say(lambda ids: f"{CALLS % ids[:2]}\n{CALLS % ids[2:]}"),
        say(lambda ids: f'[{CALLS % ids}, {{"name": "keep_segments", "argu'),
        say(lambda ids: json.dumps({"calls": [json.loads(CALLS % ids)]})),
        decide(("drop_segments", lambda ids: listed(map(str, ids)))),
        decide(("drop_segments", lambda ids: listed(map(float, ids)))),
        decide(("drop_segments", lambda ids: {"segment_ids": ids[0]})),
        decide(("drop_segments", lambda ids: ids)),
        decide(("drop_segments", lambda ids: {"ids": ids})),
        decide(("drop_segments", lambda ids: listed([*ids, 98765, -1]))),
        say(lambda ids: f"\0{CALLS % ids}\0"),
    ],
    ids=[
        "a code fence", "two objects", "a cut list", "one object too many", "strings", "floats",
        "one id for a list", "a list for an object", "another field's name", "some made up",
        "NUL",
    ],
)  # fmt: skip
def test_what_can_be_understood_is_done(answer: Behaviour, tmp_path: Path, before: Path) -> None:
    outcome = reviewed(tmp_path, before, answer)
    assert by_controller(outcome) > 0
    assert "changed nothing" not in json.dumps(outcome.asked("review"))


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (reply("I would rather talk about soup."), ""),
        (decide(("delete_everything", listed)), "delete_everything"),
        (decide(("drop_segments", lambda ids: listed([98765]))), "98765"),
        (decide(("drop_segments", lambda ids: '{"segment_ids": [NaN]}')), "NaN"),
        (tool_call("drop_segments", '{"segment_ids": [2, ', finish="length"), ""),
    ],
    ids=["prose", "unknown tool", "made up", "NaN", "truncated"],
)
def test_what_cannot_is_shown_to_the_model_once(
    answer: Behaviour, shown: str, tmp_path: Path, before: Path
) -> None:
    outcome = reviewed(tmp_path, before, answer, dropped)
    first, second = outcome.asked("review")
    assert json.dumps(first["messages"]) != json.dumps(second["messages"])
    assert shown in json.dumps(second["messages"])
    assert by_controller(outcome) > 0


def test_nonsense_for_ever_is_asked_twice_and_the_policy_decides(
    tmp_path: Path, before: Path
) -> None:
    outcome = reviewed(tmp_path, before, reply("I would rather talk about soup."))
    assert len(outcome.asked("review")) <= 2
    assert {event.source for event in outcome.decided if event.valid} == {"policy"}


def test_a_review_offers_as_many_rows_as_fit_beside_its_tools(tmp_path: Path, before: Path) -> None:
    outcome = reviewed(tmp_path, before, dropped, max_tokens=800)
    assert outcome.asked("review") and by_controller(outcome) > 0


def test_brackets_without_end_cost_no_time(tmp_path: Path, before: Path) -> None:
    began = time.process_time()
    reviewed(tmp_path, before, reply(DEEP))
    assert time.process_time() - began < 1.5


@pytest.mark.parametrize(
    "answer",
    [
        decide(("keep_segments", listed)),
        decide(("drop_segments", lambda ids: listed(range(200)))),
        decide(("summarize_segments", listed)),
        reply("No."),
    ],
    ids=["keeps", "drops", "summarizes", "refuses"],
)
def test_a_review_reaches_its_target_whatever_is_decided(
    answer: Behaviour, tmp_path: Path, before: Path
) -> None:
    # What is recalled has a share of its own beside the target.
    outcome = reviewed(tmp_path, before, answer, recall="off")
    done = [event for event in outcome.decided if event.valid]
    target = Budget(1024).target_tokens
    assert done[-1].tokens_after <= target
    # And drops hardly more than it must.
    assert done[-1].tokens_after > target - 200


def test_pins_leave_room_for_a_conversation(tmp_path: Path, before: Path) -> None:
    pins = [
        ("pin_segment", lambda ids, at=at: {"segment_id": ids[min(at, len(ids) - 1)]})
        for at in range(9)
    ]
    outcome = reviewed(tmp_path, before, decide(*pins))
    pinned = outcome.carried_out("pin")
    assert 0 < len(pinned) < 9
    assert any("may be pinned" in event.reason for event in outcome.decided if not event.valid)


def test_neither_the_newest_turn_nor_the_system_prompt_can_be_dropped(
    tmp_path: Path, before: Path
) -> None:
    outcome = reviewed(tmp_path, before, decide(("drop_segments", lambda ids: listed([1, 16, 17]))))
    refused = [event for event in outcome.decided if not event.valid]
    assert {1, 16} <= {one for event in refused for one in event.segments}
    assert all(event.reason for event in refused)


def test_an_answer_after_the_deadline_decides_nothing(tmp_path: Path, before: Path) -> None:
    outcome = reviewed(tmp_path, before, after(0.6, dropped), review_seconds=0.2)
    assert {event.source for event in outcome.decided if event.valid} == {"policy"}
    assert outcome.seconds[0] < 5.0


def test_a_controller_that_drips_is_left_at_the_deadline_of_the_review(
    tmp_path: Path, before: Path
) -> None:
    outcome = reviewed(tmp_path, before, drip("[", every_seconds=0.02), review_seconds=0.2)
    assert {event.source for event in outcome.decided if event.valid} == {"policy"}
    assert outcome.seconds[0] < 4.0
