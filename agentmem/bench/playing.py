"""What benchmarks that play conversations need first: the conversations, and a count of tokens."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from agentmem.bench.conversation import Conversation, load
from agentmem.bench.generator import generate
from agentmem.bench.options import PlayOptions

if TYPE_CHECKING:
    from agentmem import Agent


def prepare(options: PlayOptions, count_tokens: Callable[[str], int]) -> list[Conversation]:
    """The script's conversation, or generated ones."""
    if options.script is not None:
        return [load(options.script)]
    return [
        generate(
            seed,
            count_tokens=count_tokens,
            turns=options.turns,
            facts=options.facts,
            tokens=options.tokens,
            **options.more,
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
