"""Conversations with local models, for the tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from agentmem.models.base import Completion, Options, Part, complete
from agentmem.models.local import LocalModel
from agentmem.segment import Message, Role

OPTIONS = Options(max_new_tokens=12, max_tokens=2000)


def part(key: int | str, role: Role, text: str) -> Part:
    """A part of one message."""
    return Part(key, (Message(role, text),))


def conversation(num_turns: int = 2) -> list[Part]:
    """A system prompt and some turns, ending with the user's words."""
    prompt = [part(1, "system", "You are a quick brown fox.")]
    for turn in range(num_turns):
        prompt.append(part(10 + turn, "user", f"The lazy dog number {turn} jumps over a fox."))
        if turn < num_turns - 1:
            prompt.append(part(20 + turn, "assistant", f"And another one, {turn}."))
    return prompt


def talk(model: LocalModel, prompt: list[Part], user: Sequence[str]) -> list[Completion]:
    """Extend the prompt turn by turn with what the user says and the model answers."""
    completions = []
    for words in user:
        prompt.append(part(100 + len(prompt), "user", words))
        completion = complete(model, prompt, OPTIONS)
        prompt.append(part(100 + len(prompt), "assistant", completion.text))
        completions.append(completion)
    return completions


def greedy(
    weights: Any, token_ids: Sequence[int], count: int, mute_ids: Sequence[int] = ()
) -> list[int]:
    """The greedy continuation by transformers alone, everything read afresh."""
    output = weights.generate(
        torch.tensor([list(token_ids)]),
        attention_mask=torch.ones((1, len(token_ids)), dtype=torch.long),
        max_new_tokens=count,
        do_sample=False,
        suppress_tokens=list(mute_ids) or None,
        eos_token_id=None,
        pad_token_id=0,
    )
    return [int(token_id) for token_id in output[0, len(token_ids) :]]


@contextmanager
def says(weights: Any, token_ids: Sequence[int]) -> Iterator[None]:
    """Make the model say these ids first, one a forward."""
    script = iter(token_ids)

    def say(_: Any, __: Any, output: Any) -> Any:
        token_id = next(script, None)
        if token_id is not None:
            output[..., token_id] += 1000.0
        return output

    hook = weights.lm_head.register_forward_hook(say)
    try:
        yield
    finally:
        hook.remove()


def next_ids(model: LocalModel, prompt: list[Part], count: int = 12) -> list[int]:
    """What transformers alone says to the ids that stand in the model's window."""
    ids = model.prompt_token_ids() + model._ids.reply_header()
    mute_ids = sorted(model._engine.vocabulary.mute_ids)
    return greedy(model._engine.loaded.model, ids, count, mute_ids)


def spoken(model: LocalModel) -> list[int]:
    """Ids of the reply that waits to be adopted."""
    assert model._ids.pending is not None
    return list(model._ids.pending.token_ids[len(model._ids.reply_header()) :])


def interrupting(after: int) -> Any:
    """A `cancelled` that says yes when asked for the `after`-th time."""
    asked = iter(range(10_000))
    return lambda: next(asked) >= after


def letters(model: LocalModel, text: str) -> list[int]:
    """One token a letter."""
    encode = model._engine.vocabulary.encoder.encode
    return [token_id for letter in text for token_id in encode("", letter)]
