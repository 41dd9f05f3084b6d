"""A conversation at a terminal: a prompt, the streaming answer, one status line.

Knows an agent, a console and a way to read a line; the prompt with its keys and history is made by
`prompt_reader`, so that tests read from a list.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown
from rich.text import Text

from agentmem.cli import render
from agentmem.cli.signals import Interrupts, Stopped
from agentmem.cli.slash import LEAVING, SlashCommands
from agentmem.errors import AgentmemError
from agentmem.events import Reply, Token

if TYPE_CHECKING:
    from agentmem import Agent

HINT = "Press Ctrl-C again, Ctrl-D or type /quit to leave."


class TerminalChat:
    """Reads, answers, prints, until told to stop.

    Args:
        agent: who answers.
        console: where everything is printed.
        read: the next line; raises EOFError at the end, KeyboardInterrupt for Ctrl-C.
    """

    def __init__(self, agent: Agent, console: Console, read: Callable[[], str]) -> None:
        self.agent = agent
        self.console = console
        self.read = read
        self.slash = SlashCommands(agent, console)

    def run(self) -> int:
        """Converse; the exit code."""
        self.greet()
        with Interrupts(self.agent.cancel, stop_on_interrupt=False) as interrupts:
            while True:
                try:
                    line = self.read().strip()
                except EOFError:
                    return 0
                except Stopped as stop:
                    return stop.exit_code
                except KeyboardInterrupt:
                    if interrupts.again():
                        return 130
                    self.say(HINT)
                    continue
                if line in LEAVING:
                    return 0
                if line.startswith("/") and not line.startswith("//"):
                    self.command(line)
                elif line:
                    with interrupts.answering():
                        self.answer(line.removeprefix("/"), interrupts)
                    if interrupts.stopped:
                        return interrupts.stopped.exit_code

    def command(self, line: str) -> None:
        """Run a slash command; Ctrl-C ends it and nothing else.

        Raises:
            Stopped: another signal came.
        """
        try:
            self.slash.run(line)
        except Stopped as stop:
            if stop.signum != signal.SIGINT:
                raise
            self.say("(stopped)")

    def greet(self) -> None:
        """Say which session this is, and how to get help."""
        started = self.agent.started
        turns = f", {started.turns} turns so far" if started.turns else ""
        self.say(f"{started.model} · session {started.session}{turns} · /help lists commands")

    def answer(self, text: str, interrupts: Interrupts) -> None:
        """Stream the answer to one message. A fault is printed; the conversation goes on."""
        answer, reply = "", None
        try:
            with Live(console=self.console, transient=True, auto_refresh=False) as live:
                for event in self.agent.events(text):
                    interrupts.renew()
                    if isinstance(event, Token):
                        answer += event.text
                        if self.console.is_terminal:
                            live.update(self._tail(answer), refresh=True)
                    elif isinstance(event, Reply):
                        reply = event
                    elif line := render.event_text(event):
                        self.say(line)
        except AgentmemError as error:
            self.console.print(render.safe(f"error: {error}"), style="red", markup=False)
            return
        if reply is not None:
            self._show(reply)

    def _tail(self, answer: str) -> Text:
        """The end of the answer that fits the screen; the whole of it is printed at the end."""
        text = Text(render.safe(answer))
        lines = text.wrap(self.console, self.console.width)
        return Text("\n").join(lines[-max(1, self.console.height - 2) :])

    def _show(self, reply: Reply) -> None:
        answer = render.safe(reply.text)
        if self.console.is_terminal:
            # No hyperlinks: their targets would be hidden, and the text is not ours.
            self.console.print(Markdown(answer, hyperlinks=False))
        else:
            self.console.print(answer, markup=False, highlight=False)
        if reply.finish_reason == "interrupted":
            self.say("(stopped; what was said is kept)")
        self.say(render.status_line(reply.usage))

    def say(self, text: str) -> None:
        """Print a dim line of ours."""
        self.console.print(render.safe(text), style="dim", markup=False, highlight=False)


def prompt_reader(history: Path | None) -> Callable[[], str]:
    """A prompt with editing, several lines (Alt-Enter, paste) and a history file, mode 0600."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import FileHistory, History, InMemoryHistory
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    store: History = InMemoryHistory()
    if history is not None:
        history.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(history, os.O_CREAT | os.O_WRONLY, 0o600))
        history.chmod(0o600)
        store = FileHistory(str(history))
    session: PromptSession[str] = PromptSession("you> ", history=store, key_bindings=keys)
    return session.prompt
