"""Who makes the summary of a stretch: the model, the extract, chance, or nobody.

llm       what `Memory.summarize` leaves in the window, as a session asks for it
extract   the same with a model that says nothing: sentences of the originals stand in
random    sentences of the originals drawn by chance, no longer than the extract
whole     the stretch itself
"""

from __future__ import annotations

import random
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agentmem.bench.stretches import Stretch
from agentmem.models.base import ChatModel, Completion, Delta, Options, Part
from agentmem.segment import Message

if TYPE_CHECKING:
    from agentmem import Agent

SYSTEMS = ("llm", "extract", "random", "whole")
WINDOW_TOKENS = 2048
"""Of the session in which a stretch is summarized: it never leaves by itself."""
FRAME = "[Summary of earlier messages]"
"""How a session's summaries begin; chance's do too, so that only their sentences differ."""

_SENTENCE_END = re.compile(r"(?<=[.!?。！？])\s+|\n+")


@dataclass(frozen=True, slots=True)
class Summary:
    """What stands in the window for a stretch.

    Args:
        messages: as the model is given them.
        by_model: whether a model wrote it.
        seconds: that making it took.
    """

    messages: tuple[Message, ...]
    by_model: bool = False
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """All that it says."""
        return "\n".join(message.content for message in self.messages)


Summarize = Callable[[Stretch], Summary]


class SilentModel(ChatModel):
    """Counts tokens as another model does and says nothing.

    Args:
        model: the other one.
    """

    name = "silent"

    def __init__(self, model: ChatModel) -> None:
        self._model = model

    def generate(self, prompt: Sequence[Part], options: Options) -> Iterator[Delta]:
        """End without a word."""
        yield Delta(completion=Completion("", "stop"))

    def count_tokens(self, part: Part) -> int:
        """The other model's count."""
        return self._model.count_tokens(part)


@contextmanager
def open_agent(model: str | ChatModel, threads: int | None = None) -> Iterator[Agent]:
    """A session that keeps what it is told and nothing else, in a store of its own.

    Nothing is reviewed, recalled, pinned, packed or noted in core memory.
    """
    from agentmem import Agent

    with (
        tempfile.TemporaryDirectory(prefix="agentmem-bench-") as folder,
        Agent(
            model,
            store=Path(folder) / "store.db",
            budget=WINDOW_TOKENS,
            kv="dense",
            controller="off",
            recall="off",
            memory_tools=False,
            pin_instructions=False,
            summaries="model",
            embedder="hash",
            threads=threads,
        ) as agent,
    ):
        yield agent


@contextmanager
def summarizer(system: str, agent: Agent, seed: int) -> Iterator[Summarize]:
    """The function that makes a system's summaries.

    Args:
        system: which.
        agent: of the model; its window holds nothing but the system prompt.
        seed: of chance.
    """
    if system == "llm":
        yield partial(summarized, agent)
    elif system == "whole":
        yield lambda stretch: Summary(stretch.messages)
    else:
        with open_agent(SilentModel(agent.model)) as silent:
            extract = partial(summarized, silent)
            if system == "extract":
                yield extract
            else:
                yield lambda stretch: by_chance(
                    stretch, extract(stretch), agent.model.count_tokens, seed
                )


def summarized(agent: Agent, stretch: Stretch) -> Summary:
    """Say the stretch in a session, have it summarized there, and clear the window again."""
    for turn in stretch.turns:
        agent.chat(turn.user, reply=turn.reply or "")
    memory = agent.memory
    originals = [entry.id for entry in agent.context if entry.segment.kind != "core_block"]
    start = time.perf_counter()
    decided = memory.summarize(*originals)
    seconds = time.perf_counter() - start
    effect = memory.archive.decision(decided.id).effect
    summary = memory.segment(effect["summary_id"]).segment
    memory.drop(summary.id)
    return Summary(summary.messages, effect["written_by"] != "extract", seconds)


def by_chance(
    stretch: Stretch, extract: Summary, count_tokens: Callable[[Part], int], seed: int
) -> Summary:
    """Sentences of the stretch in their order, each that still fits into the extract's length."""
    start = time.perf_counter()
    originals = "\n".join(message.content for message in stretch.messages)
    sentences = [one.strip() for one in _SENTENCE_END.split(originals) if one.strip()]
    max_tokens = count_tokens(Part("extract", extract.messages))
    order = list(range(len(sentences)))
    random.Random(f"{seed} sentences of {stretch.first}").shuffle(order)
    taken: list[int] = []
    for place in order:
        longer = _framed([sentences[i] for i in sorted([*taken, place])])
        if count_tokens(Part("random", (longer,))) <= max_tokens:
            taken.append(place)
    message = _framed([sentences[i] for i in sorted(taken)])
    return Summary((message,), seconds=time.perf_counter() - start)


def _framed(sentences: Sequence[str]) -> Message:
    return Message("user", " ".join([FRAME, *sentences]))
