"""Random histories of one conversation: whatever comes and goes, the window is the prompt."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmem.models.base import Part, complete
from agentmem.models.engine import Engine, engine_for
from agentmem.models.loading import load
from agentmem.models.local import LocalModel
from tests import chat_templates
from tests.local_models import OPTIONS, part
from tests.tiny_models import save_tiny_model

MAX_TOKENS = 700
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["turn", "turn", "drop", "back", "insert", "aside", "read", "forget"]),
        st.integers(0, 50),
    ),
    min_size=3,
    max_size=14,
)


@pytest.fixture(scope="module", params=["chatml", "gemma", "default_system"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Engine]:
    """A template's name, and one engine with it for all examples."""
    folder = tmp_path_factory.mktemp(request.param)
    source = chat_templates.TAKEN_APART[request.param]
    return request.param, engine_for(load(save_tiny_model(folder, source)))


def check(model: LocalModel, prompt: list[Part]) -> None:
    """The cache holds the prompt's ids, in order and without gaps, and nothing else."""
    cache = model._window.cache
    position = 0
    ids: list[int] = []
    for key in cache.keys:
        assert cache.start(key) == position
        position += len(cache.token_ids(key))
        ids += cache.token_ids(key)
    assert ids == model.prompt_token_ids()
    ours = [key for key in cache.keys if not str(key).startswith("~")]
    assert ours == [each.key for each in prompt]
    assert cache.num_tokens == len(ids) + cache.tail_length
    assert model.peak_tokens <= MAX_TOKENS
    pending = model._ids.pending
    tail = cache.tail_token_ids
    assert not tail or (pending is not None and pending.token_ids[: len(tail)] == tail)


@pytest.mark.parametrize("kv_format", ["dense", "q8"])
@settings(deadline=None, max_examples=12)
@given(OPERATIONS)
def test_whatever_comes_and_goes_the_window_is_the_prompt(
    served: tuple[str, Engine], kv_format: str, operations: list[tuple[str, int]]
) -> None:
    template, engine = served
    model = LocalModel(engine, kv_format=kv_format, chunk_tokens=24)
    options = replace(OPTIONS, max_new_tokens=4, max_tokens=MAX_TOKENS, temperature=1.0)
    kv = model.kv
    assert kv is not None
    prompt: list[Part] = [] if template == "default_system" else [part(0, "system", "A fox.")]
    gone: list[Part] = []
    number = 1
    for name, pick in operations:
        options = replace(options, seed=pick)
        if name == "turn":
            prompt.append(part(number, "user", f"Turn {number}: the lazy dog."))
            completion = complete(model, prompt, options)
            check(model, prompt)
            prompt.append(part(number + 1, "assistant", completion.text))
            number += 2
            continue
        if name in ("drop", "forget") and len(prompt) > 1:
            part_gone = prompt.pop(1 + pick % (len(prompt) - 1))
            if name == "forget":
                kv.forget(part_gone.key)
                assert not kv.has(part_gone.key)
            else:
                gone.append(part_gone)
        elif name == "back" and gone:
            prompt.append(gone.pop(pick % len(gone)))
            prompt.sort(key=lambda each: int(each.key))
        elif name == "insert":
            summary = part(number, "user", f"Summary {number}.")
            prompt.insert(1 + pick % (len(prompt) or 1), summary)
            number += 1
        elif name == "aside":
            before = kv.usage()
            question = part("question", "user", "Which may go?")
            complete(model, [*prompt, question], replace(options, ephemeral=True))
            assert kv.usage() == before
            continue
        if not prompt:
            continue
        known = {each.key for each in prompt if kv.has(each.key)}
        completion = complete(model, prompt, replace(options, max_new_tokens=0))
        check(model, prompt)
        new = [each for each in prompt if each.key not in known]
        # Placeholders and a user message behind another neighbour may have to be read as well.
        slack = 200 if template == "gemma" else 0
        lead = len(model._entries[0].token_ids) if template == "default_system" else 0
        most = sum(model.count_tokens(each) for each in new) + slack + lead
        assert completion.prefilled_tokens <= most
