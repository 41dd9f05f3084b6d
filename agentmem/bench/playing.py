"""What benchmarks that play conversations need first: the conversations, and a count of tokens."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from agentmem.bench.conversation import Conversation, load
from agentmem.bench.generator import generate

if TYPE_CHECKING:
    from agentmem import Agent


class Playable(Protocol):
    """What options say about the conversations to play."""

    @property
    def script(self) -> Path | None: ...
    @property
    def seed(self) -> int: ...
    @property
    def conversations(self) -> int: ...
    @property
    def turns(self) -> int: ...
    @property
    def facts(self) -> int: ...
    @property
    def tokens(self) -> int | None: ...


@runtime_checkable
class Changing(Playable, Protocol):
    """The same of conversations in which values change and instructions are given."""

    @property
    def updates(self) -> int | None: ...
    @property
    def instructions(self) -> int: ...


def prepare(options: Playable, count_tokens: Callable[[str], int]) -> list[Conversation]:
    """The script's conversation, or generated ones."""
    if options.script is not None:
        return [load(options.script)]
    more = {}
    if isinstance(options, Changing):
        updates = options.facts // 2 if options.updates is None else options.updates
        more = {"updates": updates, "instructions": options.instructions}
    return [
        generate(
            seed,
            count_tokens=count_tokens,
            turns=options.turns,
            facts=options.facts,
            tokens=options.tokens,
            **more,
        )
        for seed in range(options.seed, options.seed + options.conversations)
    ]


@contextmanager
def token_counter(
    model: str, budget: int, threads: int | None
) -> Iterator[tuple[Callable[[str], int], int]]:
    """Counts what a message takes in the model's own prompt, header included; and its window."""
    from agentmem import Agent

    with (
        tempfile.TemporaryDirectory(prefix="agentmem-bench-") as folder,
        Agent(
            model,
            store=Path(folder) / "count.db",
            budget=budget,
            controller="off",
            recall="off",
            threads=threads,
        ) as agent,
    ):
        yield message_counter(agent), agent.model.capabilities.context_tokens


def message_counter(agent: Agent) -> Callable[[str], int]:
    """Counts what a message takes in the agent's prompt, header included; nothing takes nothing."""
    from agentmem import Message, Segment

    return lambda text: agent.context.count(Segment((Message("user", text),))) if text else 0
