"""The flags commands share, and what they open with them.

A flag that was not given is None, so that the environment and the settings files can speak.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentmem.modes import ControllerMode, RecallMode

if TYPE_CHECKING:
    from agentmem import Agent, Archive, Memory
    from agentmem import Store as OpenStore
    from agentmem.config import Settings

Store = Annotated[
    Path | None,
    typer.Option("--store", metavar="PATH", help="The store to use.", show_default=False),
]
User = Annotated[
    str | None, typer.Option("--user", metavar="NAME", help="Whose memory.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Write JSON, one object a line.")]
Session = Annotated[
    str | None, typer.Option("--session", metavar="NAME", help="Which conversation.")
]
New = Annotated[bool, typer.Option("--new", help="Begin a new conversation under this name.")]
Model = Annotated[
    str | None,
    typer.Option("--model", metavar="SPEC", help="local, scripted, or provider:name.")]  # fmt: skip
BudgetTokens = Annotated[
    int | None, typer.Option("--budget", metavar="TOKENS", help="Tokens of the window.")
]
KV = Annotated[
    str | None,
    typer.Option(
        "--kv",
        metavar="FORMAT",
        help="How keys and values are kept: dense, q8, fp8, q4, klt or klt1.6, binary.",
    ),
]
Controller = Annotated[
    ControllerMode | None,
    typer.Option("--controller", help="Who decides what to keep, summarize or drop."),
]
Policy = Annotated[
    str | None, typer.Option("--policy", metavar="NAME", help="The policy that finishes the job.")
]
RecallVia = Annotated[
    RecallMode | None,
    typer.Option("--recall", help="How what was said before comes back."),
]
MaxNewTokens = Annotated[
    int | None, typer.Option("--max-new-tokens", metavar="N", help="Tokens of a reply at most.")
]
Temperature = Annotated[
    float | None, typer.Option("--temperature", help="0 always says the likeliest.")
]
TopP = Annotated[float | None, typer.Option("--top-p", help="Share of probability sampled from.")]
TopK = Annotated[int | None, typer.Option("--top-k", help="Tokens sampled from; 0 for all.")]
RepetitionPenalty = Annotated[
    float | None, typer.Option("--repetition-penalty", help="Above 1 discourages repeating.")
]
Seed = Annotated[int | None, typer.Option("--seed", metavar="N", help="Of the sampler.")]
Stop = Annotated[
    list[str] | None,
    typer.Option("--stop", metavar="TEXT", help="Ends the reply; may be repeated."),
]
SystemPrompt = Annotated[
    str | None, typer.Option("--system-prompt", metavar="TEXT", help="What the assistant is told.")
]
MemoryTools = Annotated[
    bool | None,
    typer.Option(
        "--memory-tools/--no-memory-tools",
        help="Let the model edit its core memory and search what was said.",
        show_default=False,
    ),
]
EmbedderName = Annotated[
    str | None,
    typer.Option("--embedder", metavar="SPEC", help="auto, minilm, hash or hf:PATH."),
]
BaseUrl = Annotated[
    str | None, typer.Option("--base-url", metavar="URL", help="Of an OpenAI-compatible server.")
]
Threads = Annotated[
    int | None, typer.Option("--threads", metavar="N", help="CPU threads of the local model.")
]


def settings(**flags: Any) -> Settings:
    """The settings with these flags on top."""
    from agentmem.config import load_settings

    return load_settings(**{name: value for name, value in flags.items() if value != []})


def open_agent(*, new: bool, **flags: Any) -> Agent:
    """The agent the settings describe."""
    from agentmem import Agent

    chosen = settings(**flags)
    return Agent(**chosen.agent_arguments(), new=new)


def open_memory(
    store: Path | None, user: str | None, session: str | None
) -> AbstractContextManager[Memory]:
    """The memory the settings describe, without a model, to act on its window."""
    from agentmem import open_memory as open_

    chosen = settings(store=store, user=user, session=session)
    return open_(
        store=chosen.store,
        user=chosen.user,
        session=chosen.session,
        embedder=chosen.embedder,
    )


def look(
    store: Path | None, user: str | None, session: str | None = None
) -> AbstractContextManager[Memory]:
    """The memory of the user the settings describe, to look at only: it may be in use meanwhile.

    Args:
        session: None is the newest, for what asks about no window.
    """
    from agentmem import open_memory as open_

    chosen = settings(store=store, user=user)
    return open_(
        store=chosen.store,
        user=chosen.user,
        session=session,
        embedder=chosen.embedder,
        only_look=True,
    )


def open_store(store: Path | None, *, lock_seconds: float = 30.0) -> OpenStore:
    """The store the settings describe; it must exist."""
    from agentmem import Store as OpenStore

    return OpenStore.open(
        store_path(settings(store=store)), create=False, lock_seconds=lock_seconds
    )


@contextmanager
def open_archive(store: Path | None, user: str | None) -> Iterator[Archive]:
    """Everything of the user the settings describe."""
    with open_store(store) as opened:
        yield opened.for_user(settings(user=user).user)


def store_path(chosen: Settings) -> Path:
    """Where the store is, or would be."""
    from agentmem.folders import default_store

    return chosen.store or default_store()
