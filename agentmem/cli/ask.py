"""`agentmem ask TEXT`: one turn, then exit."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from agentmem.cli import options


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(ask)


def ask(
    text: Annotated[str, typer.Argument(help="What to say; a piped stdin is joined to it.")],
    session: options.Session = None,
    new: options.New = False,
    model: options.Model = None,
    budget: options.BudgetTokens = None,
    kv: options.KV = None,
    controller: options.Controller = None,
    policy: options.Policy = None,
    recall: options.RecallVia = None,
    max_new_tokens: options.MaxNewTokens = None,
    temperature: options.Temperature = None,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    repetition_penalty: options.RepetitionPenalty = None,
    seed: options.Seed = None,
    stop: options.Stop = None,
    system_prompt: options.SystemPrompt = None,
    memory_tools: options.MemoryTools = None,
    embedder: options.EmbedderName = None,
    base_url: options.BaseUrl = None,
    threads: options.Threads = None,
    store: options.Store = None,
    user: options.User = None,
    as_json: options.Json = False,
) -> None:
    """Say one thing and print the answer."""
    flags = {name: value for name, value in locals().items() if name not in ("text", "as_json")}
    piped = "" if sys.stdin.isatty() else sys.stdin.buffer.read().decode("utf-8", "replace")
    with options.open_agent(**flags) as agent:
        from agentmem.cli.piped import PipedChat

        code = PipedChat(agent, as_json=as_json).say(
            "\n\n".join(filter(None, (text, piped.strip())))
        )
    raise typer.Exit(code)
