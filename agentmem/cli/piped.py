"""A conversation without a terminal: each line of stdin is a turn, nothing is ever asked.

A line is text, or `{"turn": ID, "text": ...}`. The reply is written and flushed once its turn is
committed: whoever reads it may take it as an acknowledgement. Knows lines, events and exit codes.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from agentmem.cli import render
from agentmem.cli.signals import Interrupts, Stopped
from agentmem.errors import AgentmemError, InvalidInput
from agentmem.events import Decided, Event, Recalled, Reply, SessionStarted, TurnKey

if TYPE_CHECKING:
    from agentmem import Agent

MAX_LINE_BYTES = 16 * 2**20
_TURN_OBJECT = re.compile(r'\s*\{\s*"(turn|text)"\s*:')


@dataclass(frozen=True)
class Turn:
    """What one line asks for: `key` is the caller's name for the turn, if it gave one."""

    text: str
    key: TurnKey | None = None


def read_lines(stream: BinaryIO) -> Iterator[str | None]:
    """Lines without their ends; bytes that are not UTF-8 are replaced; None for one too long."""
    while line := stream.readline(MAX_LINE_BYTES):
        too_long = len(line) == MAX_LINE_BYTES and not line.endswith(b"\n")
        while too_long and (rest := stream.readline(MAX_LINE_BYTES)):
            if rest.endswith(b"\n"):
                break
        yield None if too_long else line.decode("utf-8", "replace").rstrip("\r\n")


def parse_line(line: str) -> Turn:
    """Read one line.

    Raises:
        InvalidInput: it begins like a turn object and is not one.
    """
    if not _TURN_OBJECT.match(line):
        return Turn(line)
    wanted = 'a turn is `{"turn": ID, "text": "..."}` on one line'
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"Malformed turn: {error}; {wanted}.") from error
    for name in data:
        if name not in ("turn", "text"):
            raise InvalidInput(f"Unknown key {name[:40]!r} in a turn; {wanted}.")
    text, key = data.get("text"), data.get("turn")
    if not isinstance(text, str):
        raise InvalidInput(f"`text` must be a string: got {text!r}; {wanted}.")
    if isinstance(key, bool) or not isinstance(key, int | str | None):
        raise InvalidInput(f"`turn` must be a number or a string: got {key!r}; {wanted}.")
    return Turn(text, key)


def _key_of(line: str) -> TurnKey | None:
    """The turn that a faulty line names, where it can be read."""
    try:
        key = json.loads(line)["turn"]
    except (ValueError, RecursionError, LookupError, TypeError):
        return None
    return key if isinstance(key, int | str) and not isinstance(key, bool) else None


class PipedChat:
    """Answers the turns of a stream.

    Args:
        agent: who answers.
        as_json: write every event as a line of JSON; otherwise only the replies, as text.
    """

    def __init__(self, agent: Agent, *, as_json: bool) -> None:
        self.agent = agent
        self.as_json = as_json
        self.exit_code = 0

    def run(self, stream: BinaryIO) -> int:
        """Answer until the stream ends or a signal comes; the exit code."""
        with Interrupts(self.agent.cancel, stop_on_interrupt=True) as interrupts:
            try:
                self.write(self.agent.started)
                for number, line in enumerate(read_lines(stream), start=1):
                    with interrupts.answering():
                        self.take(line, number, interrupts)
                    if interrupts.stopped:
                        raise interrupts.stopped
            except Stopped as stop:
                return stop.exit_code
        return self.exit_code

    def say(self, text: str) -> int:
        """Answer one text; the exit code."""
        with Interrupts(self.agent.cancel, stop_on_interrupt=True) as interrupts:
            self.write(self.agent.started)
            with interrupts.answering():
                self.answer(Turn(text), interrupts)
        return interrupts.stopped.exit_code if interrupts.stopped else self.exit_code

    def take(self, line: str | None, number: int, interrupts: Interrupts) -> None:
        """Answer one line. Faults are reported; the conversation goes on."""
        if line is not None and not line.strip("\ufeff \t"):
            print(f"line {number} is empty: skipped", file=sys.stderr)
            return
        said = "" if line is None else line.removeprefix("\ufeff") if number == 1 else line
        try:
            if line is None:
                raise InvalidInput(f"Line {number} is longer than {MAX_LINE_BYTES} bytes.")
            turn = parse_line(said)
        except InvalidInput as error:
            self.fail(error, _key_of(said))
        else:
            self.answer(turn, interrupts)

    def answer(self, turn: Turn, interrupts: Interrupts) -> None:
        """Answer one turn, writing what happens as it happens."""
        try:
            if not turn.text.strip():
                raise InvalidInput("`text` is empty: a turn says something.")
            for event in self.agent.events(turn.text, turn=turn.key):
                interrupts.renew()
                self.write(event)
        except AgentmemError as error:
            self.fail(error, turn.key)

    def write(self, event: Event) -> None:
        """Write an event; what streams is in the reply again and is not written."""
        if not self.as_json:
            if isinstance(event, Reply):
                # A terminal is shown what could steer it escaped; a file gets the bytes.
                text = render.safe(event.text) if sys.stdout.isatty() else event.text
                sys.stdout.write(text + "\n")
                sys.stdout.flush()
        elif isinstance(event, SessionStarted | Decided | Recalled):
            render.write_json(event.to_dict())
        elif isinstance(event, Reply):
            repeated = {"repeated": True} if event.repeated else {}
            render.write_json(event.to_dict() | repeated)

    def fail(self, error: AgentmemError, key: TurnKey | None) -> None:
        """Report a fault, with the turn it belongs to; it decides the exit code."""
        self.exit_code = error.exit_code
        if self.as_json:
            turn = {} if key is None else {"turn": key}
            render.write_json({"type": "error", "code": error.code, "message": str(error)} | turn)
        else:
            render.write_error(str(error))
