"""The embedded model in conversation; few and short, since each token costs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from agentmem.models.base import Options, complete
from agentmem.models.engine import Engine, engine_for
from agentmem.models.loading import load
from agentmem.models.local import LocalModel
from tests.local_models import greedy, part

OPTIONS = Options(max_new_tokens=8, max_tokens=512)
SYSTEM = part(1, "system", "You are a helpful assistant.")
FACT = part(2, "user", "My locker code is 58291.")
TALK = [part(3, "assistant", "Thank you for telling me."), part(4, "user", "I planted basil."),
        part(5, "assistant", "Basil likes the sun.")]  # fmt: skip
QUESTION = part(6, "user", "What is my locker code?")


@pytest.fixture(scope="module")
def engine(smollm2_dir: Path) -> Engine:
    return engine_for(load(smollm2_dir))


def test_turns_on_a_warm_window_say_what_a_fresh_reading_says(engine: Engine) -> None:
    model = LocalModel(engine, kv_format="dense")
    first = complete(model, [SYSTEM, FACT], OPTIONS)
    prompt = [SYSTEM, FACT, part(3, "assistant", first.text), QUESTION]
    second = complete(model, prompt, OPTIONS)
    assert second.prefilled_tokens < 25
    ids = model.prompt_token_ids() + engine.loaded.tokenizer.encode("<|im_start|>assistant\n")
    expected = greedy(engine.loaded.model, ids, second.completion_tokens)
    pending = model._ids.pending
    assert pending is not None and list(pending.token_ids[-len(expected) :]) == expected


@pytest.mark.parametrize("kv_format", ["dense", "q8"])
def test_a_fact_that_left_the_window_is_known_again_when_it_returns(
    engine: Engine, kv_format: str
) -> None:
    model = LocalModel(engine, kv_format=kv_format)
    everything = [SYSTEM, FACT, *TALK, QUESTION]
    options = replace(OPTIONS, max_new_tokens=0)
    complete(model, [SYSTEM, FACT, *TALK], options)
    without = complete(model, [SYSTEM, *TALK, QUESTION], OPTIONS)
    assert "58291" not in without.text and "58291" not in model.window_text()
    back = complete(model, everything, replace(OPTIONS, max_new_tokens=12))
    assert "58291" in back.text
    assert back.prefilled_tokens == len(model._ids.reply_header())


def test_a_review_on_the_side_obeys_its_schema(engine: Engine) -> None:
    model = LocalModel(engine)
    complete(model, [SYSTEM, FACT], OPTIONS)
    schema = {
        "type": "object",
        "properties": {"action": {"enum": ["keep", "drop"]}, "segment": {"enum": [2, 7]}},
        "required": ["action", "segment"],
    }
    question = part("review", "user", "Which segment may go? Answer as JSON.")
    options = replace(OPTIONS, json_schema=schema, ephemeral=True, max_new_tokens=40)
    review = complete(model, [SYSTEM, FACT, question], options)
    assert json.loads(review.text)["segment"] in (2, 7)
    assert review.prefilled_tokens < 40
