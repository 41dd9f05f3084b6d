"""Answers weighed by their logits: as a fresh reading would weigh them, and without a trace."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from agentmem.errors import BudgetExceeded, InvalidInput
from agentmem.models.base import Options, Part
from agentmem.models.engine import Engine, engine_for
from agentmem.models.loading import load
from agentmem.models.local import LocalModel
from tests.local_models import OPTIONS, conversation, next_ids, part
from tests.tiny_models import save_tiny_model

ANSWERS = ("keep", "summarize", "drop")
EXAMPLES = [
    part("judge:system", "system", "Say keep or drop."),
    part("judge:0", "user", "The fox lives at 12 Elm Road."),
    part("judge:1", "assistant", "keep"),
]
WEIGHED = Options(max_tokens=512)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return engine_for(load(save_tiny_model(tmp_path_factory.mktemp("tiny"))))


@pytest.fixture(params=["dense", "q8", "text"])
def model(engine: Engine, request: pytest.FixtureRequest) -> LocalModel:
    if request.param == "text":
        return LocalModel(engine, use_kv=False)
    return LocalModel(engine, kv_format=request.param)


def read_whole(engine: Engine, asked: Part) -> tuple[float, ...]:
    """What a fresh reading of examples and part says, by the plain model."""
    fresh = LocalModel(engine, use_kv=False)
    ids = fresh._ids
    entries = ids.entries([*EXAMPLES, asked])
    token_ids = [one for entry in entries for one in entry.token_ids] + ids.reply_header()
    logits = fresh._forward.run(fresh._window, token_ids, max_tokens=0)
    encode = partial(engine.vocabulary.encoder.encode, "")
    some = np.array([logits[encode(answer)[0]] for answer in ANSWERS], dtype=np.float64)
    return tuple(some - np.logaddexp.reduce(some))


def weigh(model: LocalModel, *parts: Part, options: Options = WEIGHED) -> list[tuple[float, ...]]:
    return list(model.weigh(EXAMPLES, parts, ANSWERS, options))


def test_unread_parts_are_weighed_as_a_fresh_reading_weighs_them(
    engine: Engine, model: LocalModel
) -> None:
    asked = [part(7, "user", "It rains in Oslo."), part(8, "user", "Hello, hello again!")]
    found = weigh(model, *asked)
    for one, logs in zip(asked, found, strict=True):
        assert logs == pytest.approx(read_whole(engine, one), abs=2e-4)
        assert math.fsum(map(math.exp, logs)) == pytest.approx(1)
    assert found[0] != pytest.approx(found[1], abs=1e-3), "the part matters"


def test_a_part_of_the_window_is_borrowed_and_not_read_again(engine: Engine) -> None:
    model = LocalModel(engine, kv_format="dense")
    asked = part(7, "user", "It rains in Oslo.")
    # Read behind the same examples, its KV is what a fresh reading has.
    list(model.generate([*EXAMPLES, asked], replace(OPTIONS, max_new_tokens=1)))
    weigh(model, part(9, "user", "Who?"))
    before = model.num_computed_tokens
    (logs,) = weigh(model, asked)
    assert model.num_computed_tokens - before == len(model._ids.reply_header())
    assert logs == pytest.approx(read_whole(engine, asked), abs=2e-4)


def test_weighing_leaves_no_trace(model: LocalModel) -> None:
    prompt = conversation(3)
    expected = next_ids(model, prompt)
    usage = model.kv.usage() if model.kv else None
    weigh(model, *(one for one in prompt if one.messages[0].role == "user"))
    assert (model.kv.usage() if model.kv else None) == usage
    assert next_ids(model, prompt) == expected


def test_what_was_borrowed_can_be_forgotten(engine: Engine) -> None:
    model = LocalModel(engine, kv_format="q8")
    prompt = conversation(2)
    next_ids(model, prompt)
    weigh(model, prompt[1])
    window = model._likelihoods._window
    assert window is not None and set(window.cache.keys) == {one.key for one in EXAMPLES}


def test_the_examples_are_read_once(model: LocalModel) -> None:
    asked = part(7, "user", "It rains.")
    weigh(model, asked)
    before = model.num_computed_tokens
    weigh(model, asked)
    read = model.num_computed_tokens - before
    assert read <= model.count_tokens(asked) + len(model._ids.reply_header())


def test_the_budget_holds_for_every_forward(model: LocalModel) -> None:
    asked = part(7, "user", "It rains in Oslo. " * 20)
    with pytest.raises(BudgetExceeded):
        weigh(model, asked, options=Options(max_tokens=100))
    small = part(8, "user", "It rains.")
    assert len(weigh(model, small, options=Options(max_tokens=100))) == 1
    assert model.peak_tokens <= 100


def test_a_cancelled_weighing_ends_early(model: LocalModel) -> None:
    asked = [part(i, "user", f"It rains {i} times.") for i in range(7, 12)]
    answers = iter([False, False, False, True, True, True])
    found = weigh(model, *asked, options=replace(WEIGHED, cancelled=lambda: next(answers)))
    assert len(found) < len(asked)
    assert len(weigh(model, *asked)) == len(asked)


def test_answers_that_begin_alike_are_refused(model: LocalModel) -> None:
    with pytest.raises(InvalidInput, match="first token"):
        list(model.weigh(EXAMPLES, [part(7, "user", "x")], ("keep", "keep"), WEIGHED))


def test_a_closed_conversation_weighs_afresh(engine: Engine) -> None:
    model = LocalModel(engine, kv_format="dense")
    asked = part(7, "user", "It rains.")
    (first,) = weigh(model, asked)
    model.close()
    (again,) = weigh(model, asked)
    assert again == pytest.approx(first, abs=1e-6)
