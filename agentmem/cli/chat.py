"""`agentmem chat`: a conversation, at a terminal or through a pipe."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from agentmem.cli import options

if TYPE_CHECKING:
    from agentmem import Agent


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(chat)


def chat(
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
    history: Annotated[
        bool, typer.Option("--history/--no-history", help="Keep what is typed in a file.")
    ] = True,
    store: options.Store = None,
    user: options.User = None,
    as_json: options.Json = False,
) -> None:
    """Talk; a piped stdin gives one turn a line: text, or {"turn": ID, "text": ...}."""
    flags = {name: value for name, value in locals().items() if name not in ("history", "as_json")}
    from agentmem.cli.signals import Stopped

    try:
        with options.open_agent(**flags) as agent:
            code = converse(agent, as_json=as_json, history=history)
    except Stopped as stop:
        code = stop.exit_code
    raise typer.Exit(code)


def converse(agent: Agent, *, as_json: bool, history: bool) -> int:
    """Hold the conversation the way the streams allow; the exit code."""
    if as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        from agentmem.cli.piped import PipedChat

        return PipedChat(agent, as_json=as_json).run(sys.stdin.buffer)
    from agentmem.cli.render import stdout_console
    from agentmem.cli.terminal import TerminalChat, prompt_reader
    from agentmem.cli.typed import history_file

    read = prompt_reader(history_file() if history else None)
    return TerminalChat(agent, stdout_console(), read).run()
