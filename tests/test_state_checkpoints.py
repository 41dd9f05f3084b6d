"""Models that cannot take a segment out of their state read again from the last checkpoint."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers.cache_utils import LinearAttentionLayer

from agentmem.errors import InvalidInput, Unsupported
from agentmem.models import stock_layers
from agentmem.models.base import complete
from agentmem.models.continuation import reads_one_by_one
from agentmem.models.engine import engine_for
from agentmem.models.forward import Cancelled, Forward
from agentmem.models.loading import LoadedModel, load
from agentmem.models.local import LocalModel
from agentmem.models.prompt_ids import Entry
from agentmem.models.state_checkpoints import StateCheckpoints
from agentmem.models.text_prefill import PrefixWindow
from tests.kv_models import ids, save_family, tiny_model
from tests.local_models import OPTIONS, conversation, next_ids, spoken

FAMILIES = ["jamba", "qwen3_next", "mamba2", "bamba", "falcon_h1", "mamba", "mistral_sliding"]
ONE_BY_ONE = {"mamba", "jamba"}
PLENTY = 2**30


def loaded_model(family: str) -> LoadedModel:
    """A tiny model of a family, without a tokenizer."""
    # Mamba's two ways to compute the same differ by 3e-5 in float32.
    model = tiny_model(family).to(torch.float64 if family == "mamba" else torch.float32)
    return LoadedModel(Path(), family, model, None, "", threading.RLock())


def entry(key: int, num_tokens: int = 12) -> Entry:
    return Entry(key, tuple(ids(num_tokens, key)))


class Conversation:
    """One window, and what is read into it."""

    def __init__(self, loaded: LoadedModel, max_bytes: int = PLENTY) -> None:
        self.loaded = loaded
        self.window = PrefixWindow(loaded, max_checkpoint_bytes=max_bytes)
        self.forward = Forward(loaded, one_by_one=loaded.name in ONE_BY_ONE)

    def ask(self, entries: Sequence[Entry], window: PrefixWindow | None = None) -> int:
        """Read a prompt, and how many tokens that took; what it says is what a full read says."""
        window = self.window if window is None else window
        before, header = self.forward.num_tokens, ids(3, 99)
        rest = window.enter(entries, header, lambda new: self.read(new, window))
        found = self.read(rest, window)
        token_ids = [token_id for one in entries for token_id in one.token_ids] + header
        assert window.token_ids == token_ids
        with torch.inference_mode():
            expected = self.loaded.model(torch.tensor([token_ids])).logits[0, -1].float().numpy()
        assert np.linalg.norm(found - expected) < 1e-5 * np.linalg.norm(expected)
        return self.forward.num_tokens - before - len(header)

    def read(self, token_ids: Sequence[int], window: PrefixWindow) -> NDArray[np.float32]:
        return self.forward.run(window, token_ids, max_tokens=0)


@pytest.fixture(scope="module")
def bamba() -> LoadedModel:
    """Two kinds of layers, one of full attention and two recurrent ones."""
    return loaded_model("bamba")


@pytest.mark.parametrize("family", FAMILIES)
def test_any_history_of_windows_says_what_a_full_read_says(family: str) -> None:
    conversation = Conversation(loaded_model(family))
    chance = random.Random(3)
    window: list[int] = []
    for key in range(9):
        if len(window) > 2 and chance.random() < 0.7:
            window.remove(chance.choice(window))
        away = [old for old in range(key) if old not in window]
        if away and chance.random() < 0.4:
            window = sorted([*window, chance.choice(away)])
        window.append(key)
        conversation.ask([entry(one, 3 + one) for one in window])


@pytest.mark.parametrize("family", ["bamba", "falcon_h1", "mistral_sliding"])
def test_only_what_is_behind_a_change_is_read(family: str) -> None:
    conversation = Conversation(loaded_model(family))
    a, b, c, d, e = (entry(key) for key in range(5))
    assert conversation.ask([a, b, c]) == 36
    assert conversation.ask([a, b, c, d]) == 12, "an append"
    assert conversation.ask([a, c, d]) == 24, "what followed a segment that left"
    assert conversation.ask([a, b, c, d]) == 0, "a window that was there before"
    assert conversation.ask([a, c, d, e]) == 12, "one that was there before, and an append"
    assert conversation.ask([b, a]) == 24, "another beginning"


def test_a_window_goes_on_from_where_it_is_without_a_checkpoint(bamba: LoadedModel) -> None:
    conversation = Conversation(bamba, max_bytes=0)
    a, b, c = (entry(key) for key in range(3))
    assert conversation.ask([a, b]) == 24
    said = Entry("reply", (*ids(3, 99), 7, 8, 9))
    assert conversation.ask([a, b, said, c]) == 15, "of the reply its header had been read"
    assert conversation.ask([a, b]) == 24 and len(conversation.window.checkpoints) == 0


def test_a_fork_never_changes_its_parent_and_leaves_no_checkpoint(bamba: LoadedModel) -> None:
    conversation = Conversation(bamba)
    a, b, c = (entry(key) for key in range(3))
    conversation.ask([a, b])
    before = [stock_layers.twin(layer) for layer in conversation.window.cache.layers]
    fork = conversation.window.fork()
    assert conversation.ask([a, c], fork) == 12, "it knows the checkpoints of its parent"
    fork.close()
    assert len(conversation.window.checkpoints) == 2
    for layer, old in zip(conversation.window.cache.layers, before, strict=True):
        assert same_tensors(layer, old)
    assert conversation.ask([a, b, c]) == 12


def same_tensors(left: Any, right: Any) -> bool:
    pairs = list(zip(stock_layers.tensors(left), stock_layers.tensors(right), strict=True))
    return bool(pairs) and all(torch.equal(one, other) for one, other in pairs)


def test_an_interrupted_forward_falls_back_to_the_last_checkpoint(bamba: LoadedModel) -> None:
    conversation = Conversation(bamba)
    a, b, c = (entry(key) for key in range(3))
    conversation.ask([a, b])

    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    hook = bamba.model.model.layers[-1].register_forward_pre_hook(fail)
    with pytest.raises(KeyboardInterrupt):
        conversation.read([7, 8], conversation.window)
    hook.remove()
    assert conversation.window.num_tokens == 24, "the end of the second segment"
    assert conversation.ask([a, b, c]) == 12


def test_a_cancelled_reading_is_gone_on_from(bamba: LoadedModel) -> None:
    conversation = Conversation(bamba)
    entries = [entry(key) for key in range(4)]
    done: list[int] = []

    def read(token_ids: Sequence[int]) -> None:
        if len(done) == 2:
            raise Cancelled
        done.append(len(token_ids))
        conversation.read(token_ids, conversation.window)

    with pytest.raises(Cancelled):
        conversation.window.enter(entries, ids(3, 99), read)
    assert conversation.ask(entries) == 24


def test_checkpoints_are_bounded_in_bytes_and_shared_stretches_count_once(
    bamba: LoadedModel,
) -> None:
    conversation = Conversation(bamba)
    entries = [entry(key) for key in range(6)]
    conversation.ask(entries)
    layers = conversation.window.cache.layers
    state = sum(stock_layers.nbytes(stock_layers.state_of(layer)) for layer in layers)
    attention = 2 * 2 * 16 * 4 * sum(
        1 for layer in layers if stock_layers.full_attention(layer) is not None
    )  # fmt: skip
    checkpoints = conversation.window.checkpoints
    assert len(checkpoints) == 6 and state > 0
    assert checkpoints.nbytes == 6 * state + 72 * attention
    bounded = Conversation(bamba, max_bytes=3 * state + 72 * attention)
    for count in range(1, 7):
        bounded.ask(entries[:count])
        assert bounded.window.checkpoints.nbytes <= bounded.window.checkpoints.max_bytes
    assert len(bounded.window.checkpoints) == 3
    bounded.window.close()
    assert bounded.window.checkpoints.nbytes == 0


def test_what_the_window_no_longer_begins_with_goes_first_then_what_saves_least() -> None:
    layer = LinearAttentionLayer()
    layer.update_recurrent_state(torch.ones(1, 1, 1, 25))
    checkpoints = StateCheckpoints(400)
    for end in (10, 12, 30):
        checkpoints.keep(range(end), [layer])
    checkpoints.keep([*range(10), 77], [layer])
    assert checkpoints.nbytes == 400

    def held() -> list[int]:
        return sorted(len(one.token_ids) for one in checkpoints._held)

    checkpoints.keep(range(50), [layer])
    assert held() == [10, 12, 30, 50], "the other window's went"
    checkpoints.keep(range(60), [layer])
    assert held() == [10, 30, 50, 60], "the one two tokens behind another went"
    checkpoints.keep([5, 6, 7], [layer])
    assert held() == [3, 30, 50, 60], "of other windows' the one unused the longest"
    small = StateCheckpoints(99)
    small.keep([1, 2], [layer])
    assert len(small) == 0, "one that has no room alone is not kept"
    with pytest.raises(InvalidInput, match="must not be negative: got -1"):
        StateCheckpoints(-1)


@pytest.mark.parametrize("family", ["mamba", "bamba", "falcon_h1", "llama"])
def test_how_a_model_goes_on_from_its_cache_is_found_by_trying(family: str) -> None:
    assert reads_one_by_one(loaded_model(family)) is (family in ONE_BY_ONE)


def test_a_model_that_does_not_go_on_from_a_cache_is_refused() -> None:
    with pytest.raises(Unsupported, match="rwkv does not"):
        reads_one_by_one(loaded_model("rwkv"))


@pytest.mark.parametrize("family", ["bamba", "mamba"])
def test_a_recurrent_model_converses_on_text_prefill(family: str, tmp_path: Path) -> None:
    model = LocalModel(engine_for(load(save_family(tmp_path, family))))
    assert model.kv is None and "linear_attention" in model.kv_problem
    prompt = conversation(3)
    assert complete(model, prompt, OPTIONS).prefilled_tokens > 100
    assert spoken(model) == next_ids(model, prompt, len(spoken(model)))
    left = complete(model, [*prompt[:-2], prompt[-1]], OPTIONS)
    assert left.prefilled_tokens < left.prompt_tokens / 2
    assert spoken(model) == next_ids(model, prompt, len(spoken(model)))
    again = complete(model, prompt, OPTIONS)
    assert again.prefilled_tokens < 10
    assert spoken(model) == next_ids(model, prompt, len(spoken(model)))
    model.close()
