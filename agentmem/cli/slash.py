"""The commands inside a chat: a line that begins with `/`.

Each is a row of a table: name, argument, help, what to do. Knows an agent and a console; not how
lines are read.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console

from agentmem.cli import render, tables
from agentmem.errors import AgentmemError, InvalidInput

if TYPE_CHECKING:
    from agentmem import Agent
    from agentmem.events import Decided

NEWEST = 20
"""Segments `/memory` lists."""
LEAVING = ("/quit", "/exit", "/bye", "exit", "quit")


@dataclass(frozen=True)
class Command:
    """One slash command: what follows its name, what it does in words, and the doing."""

    argument: str
    help: str
    run: Callable[[SlashCommands, str], None]


class SlashCommands:
    """Runs slash commands on an agent and prints what they answer."""

    def __init__(self, agent: Agent, console: Console) -> None:
        self.agent = agent
        self.console = console

    def run(self, line: str) -> None:
        """Run one line that begins with `/`. Faults are printed; the conversation goes on."""
        name, _, argument = line.removeprefix("/").partition(" ")
        command = COMMANDS.get(name)
        if command is None:
            near = difflib.get_close_matches(name, COMMANDS, n=1)
            hint = f" Did you mean /{near[0]}?" if near else ""
            self.say(f"Unknown command /{render.preview(name, 40)}.{hint} /help lists all.", "red")
            return
        try:
            command.run(self, argument.strip())
        except AgentmemError as error:
            self.say(f"error: {error}", "red")

    def say(self, text: str, style: str = "") -> None:
        """Print a line of ours."""
        self.console.print(render.safe(text), style=style, markup=False, highlight=False)

    def help(self, argument: str) -> None:
        """List the commands."""
        for name, command in COMMANDS.items():
            self.say(f"{f'/{name} {command.argument}'.rstrip():<20} {command.help}")

    def context(self, argument: str) -> None:
        """Draw the window and list what is in it."""
        context = self.agent.context
        self.console.print(render.context_bar(context.bar()))
        rows = [
            (
                entry.segment.id,
                entry.num_tokens,
                entry.state + (" pinned" if entry.pinned else ""),
                entry.via,
                render.preview(entry.segment.text),
            )
            for entry in context.entries
        ]
        self.console.print(tables.table("id", "tokens", "state", "via", "text", rows=rows))

    def memory(self, argument: str) -> None:
        """List the newest segments, or show one in full."""
        if argument:
            (segment_id,) = self._ids("memory", argument, at_most=1)
            self.console.print(render.segment_text(self.agent.memory.segment(segment_id)))
        else:
            memory = self.agent.memory
            newest = memory.archive.session_segments(memory.session.id)[-NEWEST:]
            self.console.print(tables.segments_table(newest))

    def why(self, argument: str) -> None:
        """Explain what was decided about a segment."""
        (segment_id,) = self._ids("why", argument, at_most=1)
        self.say(str(self.agent.memory.why(segment_id)))

    def search(self, argument: str) -> None:
        """Search everything that was ever said."""
        if not argument:
            raise InvalidInput("`/search` needs words to look for, as in `/search locker code`.")
        self.console.print(tables.hits_table(self.agent.memory.search(argument)))

    def blocks(self, argument: str) -> None:
        """Show the blocks of core memory, or one of them."""
        blocks = self.agent.memory.blocks
        for block in [blocks.get(argument)] if argument else blocks.list():
            self.say(render.block_text(block))

    def facts(self, argument: str) -> None:
        """List what was stated, and from when to when it held."""
        self.console.print(tables.FactsTable(self.agent.memory.facts(argument or None)))

    def undo(self, argument: str) -> None:
        """Revert a decision; the newest where none is named."""
        ids = self._ids("undo", argument, at_most=1) if argument else [None]
        self._decided(self.agent.memory.undo(ids[0]))

    def stats(self, argument: str) -> None:
        """Show what the conversation costs and what the store holds."""
        self.say(render.status_line(self.agent.usage))
        for name, value in self.agent.memory.stats().items():
            self.say(f"{name}: {value}")

    def decide(self, action: str, argument: str) -> None:
        """Run one of the memory's verbs on segments."""
        ids = self._ids(action, argument)
        self._decided(getattr(self.agent.memory, action)(*ids))

    def _decided(self, event: Decided) -> None:
        self.say(render.decided_text(event))

    def _ids(self, name: str, argument: str, *, at_most: int = 100) -> list[int]:
        words = argument.replace(",", " ").split()
        if not words or len(words) > at_most or not all(_is_id(word) for word in words):
            what = "one id" if at_most == 1 else "segment ids"
            got = f"got {argument[:40]!r}" if argument else "got none"
            raise InvalidInput(f"`/{name}` needs {what}, as in `/{name} 12`: {got}.")
        return [int(word) for word in words]


def _is_id(word: str) -> bool:
    return word.isascii() and word.isdecimal() and len(word) <= 18


def _verb(action: str) -> Callable[[SlashCommands, str], None]:
    return lambda commands, argument: commands.decide(action, argument)


COMMANDS: dict[str, Command] = {
    "help": Command("", "list these commands", SlashCommands.help),
    "context": Command("", "the window: its parts, and the segments in it", SlashCommands.context),
    "memory": Command("[ID]", "the newest segments, or one in full", SlashCommands.memory),
    "why": Command("ID", "what was decided about a segment, and why", SlashCommands.why),
    "search": Command("WORDS", "search everything that was said", SlashCommands.search),
    "facts": Command("[WORDS]", "what was stated, and while it held", SlashCommands.facts),
    "keep": Command("ID...", "do not offer these to the controller for a while", _verb("keep")),
    "summarize": Command("ID...", "replace these by one summary", _verb("summarize")),
    "drop": Command("ID...", "take these out of the window", _verb("drop")),
    "restore": Command("ID...", "bring these back into the window", _verb("restore")),
    "pin": Command("ID...", "never drop or summarize these", _verb("pin")),
    "unpin": Command("ID...", "let these be dropped again", _verb("unpin")),
    "blocks": Command("[LABEL]", "core memory: what is always in view", SlashCommands.blocks),
    "undo": Command("[DECISION]", "revert a decision, or the newest one", SlashCommands.undo),
    "stats": Command("", "tokens, bytes, segments per state", SlashCommands.stats),
    "quit": Command("", "leave; also /exit, exit, quit, Ctrl-D", lambda commands, argument: None),
}
