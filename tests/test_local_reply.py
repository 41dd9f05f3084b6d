"""How a reply is spoken, cut and interrupted, and what stays of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from agentmem.models.base import Delta, complete
from agentmem.models.engine import Engine, engine_for
from agentmem.models.loading import load
from agentmem.models.local import LocalModel
from tests.local_models import (
    OPTIONS,
    conversation,
    interrupting,
    letters,
    next_ids,
    part,
    says,
    spoken,
)
from tests.tiny_models import save_tiny_model


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


@pytest.mark.parametrize("after", range(8))
def test_a_reply_interrupted_at_any_token_is_kept(any_model: LocalModel, after: int) -> None:
    prompt = conversation(2)
    whole = complete(any_model, prompt, OPTIONS).text
    fresh = LocalModel(any_model._engine, kv_format="dense",
                       use_kv=any_model.kv is not None)  # fmt: skip
    completion = complete(fresh, prompt, replace(OPTIONS, cancelled=interrupting(after)))
    assert completion.finish_reason == "interrupted"
    assert completion.completion_tokens == after
    if any_model.kv is None or any_model.kv.usage().states.get(10) == "live":
        assert whole.startswith(completion.text)
    prompt += [part(50, "assistant", completion.text), part(51, "user", "Go on.")]
    complete(fresh, prompt, OPTIONS)
    assert spoken(fresh) == next_ids(fresh, prompt)[: len(spoken(fresh))]


@pytest.mark.parametrize("after", range(5))
def test_reading_interrupted_at_any_chunk_is_taken_up_again(engine: Engine, after: int) -> None:
    model = LocalModel(engine, kv_format="dense", chunk_tokens=16)
    prompt = conversation(3)
    completion = complete(model, prompt, replace(OPTIONS, cancelled=interrupting(after)))
    assert completion.finish_reason == "interrupted" and completion.text == ""
    assert completion.prefilled_tokens <= 16 * after or after == 0
    complete(model, prompt, OPTIONS)
    assert spoken(model) == next_ids(model, prompt)[: len(spoken(model))]


@pytest.mark.parametrize("after", range(5))
def test_a_closed_stream_leaves_the_window_as_it_was_read(
    any_model: LocalModel, after: int
) -> None:
    prompt = conversation(2)
    stream = any_model.generate(prompt, OPTIONS)
    shown = ""
    for _ in range(after):
        shown += next(stream, Delta()).text
    assert isinstance(stream, Iterator)
    stream.close()  # type: ignore[attr-defined]
    prompt += [part(50, "assistant", shown or "Nothing."), part(51, "user", "Go on.")]
    complete(any_model, prompt, OPTIONS)
    assert (shown or "Nothing.") in any_model.window_text()
    if any_model.kv is None or any_model._window.cache.format == "dense":
        assert spoken(any_model) == next_ids(any_model, prompt)[: len(spoken(any_model))]


@pytest.mark.parametrize("kind", ["dense", "text"])
@pytest.mark.parametrize("place", ["first layer", "last layer", "behind the layers"])
@pytest.mark.parametrize("forward", [0, 1, 3, 9])
def test_a_key_press_in_the_middle_of_a_forward_leaves_the_window_whole(
    engine: Engine, kind: str, place: str, forward: int
) -> None:
    model = LocalModel(engine, kv_format="dense", use_kv=kind == "dense", chunk_tokens=24)
    prompt = conversation(2)
    calls = iter(range(1000))

    def press(*_: Any) -> None:
        if next(calls) == forward:
            raise KeyboardInterrupt

    weights = engine.loaded.model
    module = {
        "first layer": weights.model.layers[0].mlp,
        "last layer": weights.model.layers[-1].mlp,
        "behind the layers": weights.lm_head,
    }[place]
    hook = module.register_forward_pre_hook(press)
    try:
        with pytest.raises(KeyboardInterrupt):
            complete(model, prompt, replace(OPTIONS, max_new_tokens=20))
    finally:
        hook.remove()
    pending = model._ids.pending
    assert (pending is not None) is (forward == 9), "the last one strikes while it speaks"
    window = model._window
    assert window.cache.get_seq_length() == window.next_position
    if pending is not None:
        said = len(pending.token_ids) - len(model._ids.reply_header())
        assert said == 9 - 4 and pending.text
    prompt += [part(50, "assistant", pending.text if pending else ""), part(51, "user", "Go on.")]
    complete(model, prompt, OPTIONS)
    assert spoken(model) == next_ids(model, prompt)[: len(spoken(model))]


def test_a_closed_stream_keeps_no_more_than_was_shown(any_model: LocalModel) -> None:
    options = replace(OPTIONS, stop=("XYZ",))
    with says(any_model._engine.loaded.model, letters(any_model, "abXYc")):
        stream = any_model.generate(conversation(1), options)
        shown = next(stream).text + next(stream).text
        assert shown == "ab"
        stream.close()  # type: ignore[attr-defined]
    pending = any_model._ids.pending
    assert pending is not None and pending.text == "ab"


def test_an_interrupted_reply_shows_what_was_held_back(model: LocalModel) -> None:
    options = replace(OPTIONS, stop=("XYZ",), cancelled=interrupting(4))
    with says(model._engine.loaded.model, letters(model, "abXY")):
        pieces = list(model.generate(conversation(1), options))
    shown = "".join(piece.text for piece in pieces)
    completion = pieces[-1].completion
    assert completion is not None and completion.text == shown == "abXY"


def test_a_reply_cut_by_a_stop_string_is_not_read_again(model: LocalModel) -> None:
    prompt = conversation(1)
    with says(model._engine.loaded.model, letters(model, "abcXYZ")):
        completion = complete(model, prompt, replace(OPTIONS, stop=("XYZ",)))
    assert completion.text == "abc"
    words = part(51, "user", "Why?")
    after = complete(model, [*prompt, part(50, "assistant", "abc"), words], OPTIONS)
    assert "XYZ" not in model.window_text()
    header = len(model._ids.reply_header())
    footer = len(model._engine.vocabulary.encoder.encode("<|im_end|>\n"))
    assert after.prefilled_tokens == footer + model.count_tokens(words) + header


def test_a_stop_string_ends_the_reply_and_is_no_part_of_it(any_model: LocalModel) -> None:
    prompt = conversation(2)
    whole = complete(any_model, prompt, OPTIONS).text
    stop = whole[4:6]
    pieces = list(any_model.generate(prompt, replace(OPTIONS, stop=(stop,))))
    completion = pieces[-1].completion
    assert completion is not None
    assert completion.text == whole[: whole.index(stop)]
    assert completion.finish_reason == "stop"
    assert "".join(piece.text for piece in pieces) == completion.text
    reply = part(50, "assistant", completion.text)
    complete(any_model, [*prompt, reply, part(51, "user", "Go on.")], OPTIONS)
    assert any_model.window_text().count(completion.text) >= 1


def test_the_pieces_are_the_text(any_model: LocalModel) -> None:
    for seed in range(4):
        options = replace(OPTIONS, temperature=1.5, seed=seed, max_new_tokens=30)
        pieces = list(any_model.generate(conversation(1), options))
        completion = pieces[-1].completion
        assert completion is not None
        assert "".join(piece.text for piece in pieces) == completion.text
        assert all(piece.completion is None for piece in pieces[:-1])


def test_the_same_seed_says_the_same(any_model: LocalModel) -> None:
    options = replace(OPTIONS, temperature=1.5, top_p=0.9, seed=7)
    texts = {complete(any_model, conversation(1), options).text for _ in range(2)}
    other = complete(any_model, conversation(1), replace(options, seed=8)).text
    assert len(texts) == 1 and other not in texts


def test_a_mute_model_speaks_no_control_token(any_model: LocalModel) -> None:
    special = any_model._engine.vocabulary.encoder.special_ids
    for seed in range(3):
        options = replace(OPTIONS, temperature=3.0, seed=seed, max_new_tokens=40)
        complete(any_model, conversation(1), options)
        assert not special.intersection(spoken(any_model))
