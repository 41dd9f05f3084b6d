"""One conversation on a tiny model: what is read, what is kept, what stands in the window."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from agentmem.errors import BudgetExceeded, DeviceFull, InvalidInput
from agentmem.models.base import Options, Part, complete
from agentmem.models.engine import Engine, engine_for
from agentmem.models.loading import load
from agentmem.models.local import LocalModel
from tests import chat_templates
from tests.local_models import (
    OPTIONS,
    conversation,
    next_ids,
    part,
    spoken,
    talk,
)
from tests.tiny_models import save_tiny_model

SAID = ["The quick brown fox.", "It rains in Oslo, 14 times.", "🦊 jumps over ünï.", "And then?"]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return engine_for(load(save_tiny_model(tmp_path_factory.mktemp("tiny"))))


@pytest.fixture
def model(engine: Engine) -> LocalModel:
    return LocalModel(engine, kv_format="dense")


@pytest.fixture(params=["dense", "q8", "text"])
def any_model(engine: Engine, request: pytest.FixtureRequest) -> LocalModel:
    if request.param == "text":
        return LocalModel(engine, use_kv=False)
    return LocalModel(engine, kv_format=request.param)


def test_the_tier_is_there(model: LocalModel) -> None:
    assert model.kv_problem == "" and model.template_problem == ""
    assert model.capabilities.has_kv and model.capabilities.has_logits
    assert model.capabilities.context_tokens == 4096


@pytest.mark.parametrize("kind", ["dense", "text"])
def test_many_turns_say_what_one_fresh_reading_says(engine: Engine, kind: str) -> None:
    model = LocalModel(engine, kv_format="dense", use_kv=kind == "dense")
    prompt = [part(1, "system", "You are a lazy dog.")]
    for words in SAID:
        talk(model, prompt, [words])
        expected = next_ids(model, prompt)
        stops = engine.vocabulary.stop_ids
        until = next((i for i, token in enumerate(expected) if token in stops), len(expected))
        assert spoken(model) == expected[: len(spoken(model))]
        assert len(spoken(model)) >= until - 3


def test_only_what_is_new_is_read(model: LocalModel) -> None:
    prompt = conversation(1)
    first = complete(model, prompt, OPTIONS)
    assert first.prefilled_tokens == first.prompt_tokens
    reply = part(50, "assistant", first.text)
    words = part(51, "user", "Why?")
    before = model.num_computed_tokens
    second = complete(model, [*prompt, reply, words], OPTIONS)
    header = len(model._ids.reply_header())
    # The reply's last token and its footer, the user's words, the header.
    assert second.prefilled_tokens <= model.count_tokens(words) + header + 4
    computed = model.num_computed_tokens - before
    assert computed == second.prefilled_tokens + second.completion_tokens - 1
    assert second.prompt_tokens == len(model.prompt_token_ids()) + header


def test_a_reply_keeps_the_tokens_it_was_spoken_in(any_model: LocalModel) -> None:
    model = any_model
    prompt = conversation(1)
    completion = complete(model, prompt, OPTIONS)
    said = spoken(model)
    retokenized = model._engine.vocabulary.encoder.encode("", completion.text)
    assert said != retokenized, "a random model spells as no tokenizer would"
    prompt += [part(50, "assistant", completion.text), part(51, "user", "Why?")]
    counted = model.count_tokens(prompt[-2])
    complete(model, prompt, OPTIONS)
    ids = model.prompt_token_ids()
    assert any(ids[i : i + len(said)] == said for i in range(len(ids)))
    assert counted == model.count_tokens(prompt[-2])


def test_a_reply_that_does_not_come_back_is_forgotten(model: LocalModel) -> None:
    prompt = conversation(1)
    complete(model, prompt, OPTIONS)
    again = complete(model, prompt, OPTIONS)
    assert again.prefilled_tokens == len(model._ids.reply_header())
    prompt += [part(50, "assistant", "Something else was said."), part(51, "user", "Why?")]
    complete(model, prompt, OPTIONS)
    assert "Something else was said." in model.window_text()
    assert spoken(model) == next_ids(model, prompt)[: len(spoken(model))]


def test_the_window_is_the_prompt(any_model: LocalModel) -> None:
    prompt = conversation(3)
    complete(any_model, prompt, OPTIONS)
    text = any_model.window_text()
    places = [text.index(message.messages[0].content) for message in prompt]
    assert places == sorted(places)
    complete(any_model, [prompt[0], *prompt[3:]], OPTIONS)
    assert prompt[1].messages[0].content not in any_model.window_text()


def test_a_part_that_leaves_is_parked_and_comes_back_unread(model: LocalModel) -> None:
    prompt = conversation(3)
    complete(model, prompt, OPTIONS)
    header = len(model._ids.reply_header())
    kv = model.kv
    assert kv is not None
    complete(model, [prompt[0], *prompt[3:]], OPTIONS)
    assert kv.usage().states[10] == "parked" and kv.has(10)
    assert kv.usage().parked_ram_bytes > 0
    back = complete(model, prompt, OPTIONS)
    assert back.prefilled_tokens == header
    assert kv.usage().states[10] == "live" and kv.usage().parked_ram_bytes == 0


def test_a_part_that_returns_answers_as_if_it_had_never_left(model: LocalModel) -> None:
    prompt = conversation(3)
    before = complete(model, prompt, OPTIONS)
    complete(model, [prompt[0], *prompt[3:]], OPTIONS)
    assert complete(model, prompt, OPTIONS).text == before.text


def test_a_text_that_only_passes_through_is_dropped(model: LocalModel) -> None:
    prompt = conversation(2)
    passing = part("recalled-3", "user", "An old text.")
    complete(model, [*prompt[:1], passing, *prompt[1:]], OPTIONS)
    kv = model.kv
    assert kv is not None and kv.has("recalled-3")
    complete(model, prompt, OPTIONS)
    assert not kv.has("recalled-3") and "recalled-3" not in kv.usage().states


def test_a_part_in_the_middle_is_read_at_its_place_alone(model: LocalModel) -> None:
    prompt = conversation(3)
    complete(model, prompt, OPTIONS)
    summary = part(77, "user", "A summary of the middle.")
    inserted = [*prompt[:2], summary, *prompt[3:]]
    completion = complete(model, inserted, OPTIONS)
    header = len(model._ids.reply_header())
    assert completion.prefilled_tokens == model.count_tokens(summary) + header
    text = model.window_text()
    assert text.index("A summary") > text.index(prompt[1].messages[0].content)
    assert text.index("A summary") < text.index(prompt[3].messages[0].content)
    cache = model._window.cache
    assert [cache.start(key) for key in cache.keys] == sorted(cache.start(k) for k in cache.keys)
    assert cache.num_tokens - cache.tail_length == cache.start(12) + model.count_tokens(prompt[-1])


def test_all_but_the_sinks_and_the_newest_turn_is_packed(engine: Engine) -> None:
    model = LocalModel(engine, kv_format="q8")
    prompt = conversation(3)
    complete(model, prompt, OPTIONS)
    kv = model.kv
    assert kv is not None
    # What is read in this turn stays dense while it is the newest.
    assert kv.usage().states[12] == "live"
    prompt += [part(50, "assistant", "It does."), part(51, "user", "Why?")]
    complete(model, prompt, OPTIONS)
    states = dict(kv.usage().states)
    assert {key for key, state in states.items() if state == "compressed"} == {10, 20, 11, 21, 12}
    assert states[1] == "live" and states[51] == "live"


@pytest.mark.parametrize("kind", ["dense", "q8", "text"])
def test_an_aside_leaves_no_trace(engine: Engine, kind: str) -> None:
    def make() -> LocalModel:
        return LocalModel(engine, kv_format="dense" if kind == "text" else kind,
                          use_kv=kind != "text")  # fmt: skip

    model, twin = make(), make()
    prompt = conversation(2)
    for each in (model, twin):
        complete(each, prompt, OPTIONS)
    question = part("review", "user", "Which dog may go?")
    aside = complete(model, [*prompt[:1], *prompt[2:], question], replace(OPTIONS, ephemeral=True))
    assert aside.completion_tokens > 0
    if model.kv is not None and twin.kv is not None:
        assert model.kv.usage() == twin.kv.usage()
        assert model.kv.attention() == twin.kv.attention()
    assert model._ids.pending == twin._ids.pending
    assert model.window_text() == twin.window_text()
    pending = model._ids.pending
    assert pending is not None
    prompt += [part(50, "assistant", pending.text), part(51, "user", "Why?")]
    logits = []
    for each in (model, twin):
        with torch.inference_mode():
            new = each._enter(each._window, each._ids.entries(prompt), [], OPTIONS)
            logits.append(each._forward.run(each._window, new, max_tokens=0))
    assert (logits[0] == logits[1]).all(), "bit by bit"


def test_an_aside_may_see_the_newest_reply_without_reading_it(model: LocalModel) -> None:
    prompt = conversation(2)
    completion = complete(model, prompt, OPTIONS)
    question = part("review", "user", "Keep?")
    with_reply = [*prompt, part(50, "assistant", completion.text), question]
    aside = complete(model, with_reply, replace(OPTIONS, ephemeral=True))
    header = len(model._ids.reply_header())
    assert aside.prefilled_tokens <= model.count_tokens(question) + header + 4
    after = complete(model, [*with_reply[:-1], part(51, "user", "Why?")], OPTIONS)
    assert after.prefilled_tokens <= model.count_tokens(part(51, "user", "Why?")) + header + 4


def test_the_budget_is_held_before_anything_changes(any_model: LocalModel) -> None:
    prompt = conversation(2)
    first = complete(any_model, prompt, OPTIONS)
    longer = [*prompt, part(50, "assistant", first.text), part(51, "user", "fox " * 90)]
    before = any_model.num_forwards
    with pytest.raises(BudgetExceeded, match="more than the budget of 120"):
        complete(any_model, longer, replace(OPTIONS, max_tokens=120))
    assert any_model.num_forwards == before
    text = any_model.window_text()
    assert "fox fox" not in text
    assert complete(any_model, longer, OPTIONS).prompt_tokens > 120


def test_a_reply_ends_where_the_budget_does(any_model: LocalModel) -> None:
    prompt = conversation(2)
    size = complete(any_model, prompt, replace(OPTIONS, max_new_tokens=1)).prompt_tokens
    any_model.peak_tokens = 0
    options = replace(OPTIONS, max_new_tokens=40, max_tokens=size + 5)
    completion = complete(any_model, prompt, options)
    if completion.finish_reason == "length":
        assert completion.completion_tokens == 6
    assert any_model.peak_tokens <= size + 5


def test_the_window_never_passes_the_models_context(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path, max_position_embeddings=64)
    model = LocalModel.load(folder, kv_format="dense")
    with pytest.raises(BudgetExceeded, match="64"):
        complete(model, conversation(3), replace(OPTIONS, max_tokens=0))
    completion = complete(model, [part(1, "user", "fox")], replace(OPTIONS, max_new_tokens=100))
    assert completion.finish_reason in ("length", "stop") and model.peak_tokens <= 64


def test_no_new_tokens_only_reads(any_model: LocalModel) -> None:
    prompt = conversation(2)
    completion = complete(any_model, prompt, replace(OPTIONS, max_new_tokens=0))
    assert completion.text == "" and completion.completion_tokens == 0
    assert completion.prefilled_tokens == completion.prompt_tokens > 0
    again = complete(any_model, prompt, OPTIONS)
    assert again.prefilled_tokens <= len(any_model._ids.reply_header())


def test_counts_are_the_truth_before_and_after(any_model: LocalModel) -> None:
    prompt = conversation(3)
    guessed = [any_model.count_tokens(each) for each in prompt]
    completion = complete(any_model, prompt, replace(OPTIONS, max_new_tokens=0))
    assert sum(guessed) == completion.prompt_tokens
    assert [any_model.count_tokens(each) for each in prompt] == guessed


def test_a_forgotten_part_is_nowhere(model: LocalModel) -> None:
    prompt = conversation(3)
    complete(model, prompt, OPTIONS)
    kv = model.kv
    assert kv is not None
    kv.forget(10)
    assert not kv.has(10) and 10 not in kv.usage().states
    assert "number 0" not in model.window_text()
    complete(model, [prompt[0], *prompt[2:]], OPTIONS)
    kv.forget(20)
    kv.forget(999)
    assert set(kv.usage().states) == {1, 11, 21, 12}


def test_attention_is_told_for_parts_alone(model: LocalModel) -> None:
    prompt = conversation(3)
    complete(model, prompt, OPTIONS)
    kv = model.kv
    assert kv is not None
    attention = kv.attention()
    assert set(attention) <= {1, 10, 20, 11, 21, 12} and len(attention) >= 5
    assert all(value > 0 for value in attention.values())
    assert kv.dense_bytes_per_token == 2 * 2 * 2 * 16 * 2


def test_two_conversations_share_weights_and_nothing_else(engine: Engine) -> None:
    first, second = (LocalModel.load(engine.loaded.folder, kv_format="dense") for _ in range(2))
    assert first._engine is second._engine is engine
    alone = [c.text for c in talk(LocalModel(engine, kv_format="dense"), conversation(1), SAID[:3])]
    one, two = conversation(1), conversation(1)
    mixed = []
    for index, words in enumerate(SAID[:3]):
        mixed += talk(first, one, [words])
        talk(second, two, [SAID[index - 1]])
    assert [completion.text for completion in mixed] == alone


def test_a_closed_conversation_holds_nothing(model: LocalModel) -> None:
    complete(model, conversation(2), OPTIONS)
    model.close()
    assert model.kv is not None and model.kv.usage().window_bytes == 0
    assert model.prompt_token_ids() == []


@pytest.mark.parametrize(
    ("prompt", "options", "reason"),
    [
        ([part(1, "user", "a"), part(1, "user", "b")], OPTIONS, "twice"),
        ([part("~lead", "user", "a")], OPTIONS, "ours"),
        ([part(1, "user", "a")], replace(OPTIONS, max_new_tokens=-1), "max_new_tokens"),
        ([part(1, "user", "a")], replace(OPTIONS, max_tokens=-5), "max_tokens"),
        ([part(1, "user", "a")], replace(OPTIONS, top_p=0.0), "top_p"),
        ([part(1, "user", "a")], replace(OPTIONS, json_schema={"type": "nope"}), "json_schema"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_read(
    model: LocalModel, prompt: list[Part], options: Options, reason: str
) -> None:
    with pytest.raises(InvalidInput, match=reason):
        complete(model, prompt, options)
    assert model.num_forwards == 0


@pytest.mark.parametrize("name", ["gemma", "mistral", "llama2", "llama3", "phi3", "qwen3"])
def test_every_familys_template_serves_a_conversation(name: str, tmp_path: Path) -> None:
    model = LocalModel.load(save_tiny_model(tmp_path, chat_templates.TAKEN_APART[name]))
    prompt = [part(1, "system", "You are a fox.")]
    completions = talk(model, prompt, SAID[:3])
    assert model.capabilities.has_kv
    assert completions[-1].prefilled_tokens < completions[-1].prompt_tokens / 2
    # A reply whose question is gone, and the other way round.
    complete(model, [prompt[0], *prompt[2:4], *prompt[5:]], OPTIONS)
    assert "jumps over" in model.window_text()


def test_a_key_that_stands_for_other_words_is_read_again(any_model: LocalModel) -> None:
    prompt = conversation(1)
    for words in ("The first recalled text.", "A second one."):
        passing = part("recalled", "user", words)
        complete(any_model, [*prompt, passing], OPTIONS)
        assert words in any_model.window_text()
        assert spoken(any_model) == next_ids(any_model, prompt)[: len(spoken(any_model))] or (
            any_model.kv is not None and any_model._window.cache.format == "q8"
        )


@contextmanager
def scarce_device(engine: Engine, *failing: int) -> Iterator[None]:
    """Let these forwards run out of memory half-way, counted from here."""
    calls = itertools.count()

    def fail(*_: Any) -> None:
        if next(calls) in failing:
            raise torch.OutOfMemoryError("Tried to allocate 2 GiB.")

    hook = engine.loaded.model.model.layers[1].mlp.register_forward_pre_hook(fail)
    yield
    hook.remove()


@pytest.mark.parametrize("forward", [0, 2])
@pytest.mark.parametrize("kv", ["dense", "q8"])
def test_a_forward_that_runs_out_of_memory_is_done_again_over_host_memory(
    engine: Engine, kv: str, forward: int
) -> None:
    said = []
    for failing in ((), (forward,)):
        model = LocalModel(engine, kv_format=kv)
        prompt = conversation(3)
        complete(model, prompt, OPTIONS)
        prompt += [part(50, "assistant", "Something else was said."), part(51, "user", "Why?")]
        with scarce_device(engine, *failing):
            complete(model, prompt, OPTIONS)
        assert model.kv is not None
        held = model.kv.usage()
        assert (held.window_host_bytes > 0) is bool(failing)
        said.append(spoken(model))
    assert said[0] == said[1]


@pytest.mark.parametrize("options", [{"kv_format": "q8"}, {"use_kv": False}])
def test_a_device_that_is_full_says_what_to_do_and_the_conversation_goes_on(
    engine: Engine, options: dict[str, Any]
) -> None:
    unlucky, lucky = LocalModel(engine, **options), LocalModel(engine, **options)
    prompt = conversation(2)
    for model in (unlucky, lucky):
        complete(model, prompt, OPTIONS)
    prompt += [part(50, "assistant", "Something else was said."), part(51, "user", "Why?")]
    with (
        scarce_device(engine, *range(99)),
        pytest.raises(DeviceFull, match=r"2 GiB.*smaller model"),
    ):
        complete(unlucky, prompt, OPTIONS)
    for model in (unlucky, lucky):
        complete(model, prompt, OPTIONS)
    assert spoken(unlucky) == spoken(lucky)
