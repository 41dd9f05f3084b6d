"""Playing a log's messages and replies with another policy, and what its window is in the end."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentmem.agent import Agent
from agentmem.audit.player import Player, act_on
from agentmem.audit.records import ELSEWHERE, INPUTS, Record
from agentmem.audit.replay_model import ReplayEmbedder
from agentmem.audit.whatif_outside import WhatIfModel, WhatIfOutside
from agentmem.budget import Budget
from agentmem.context import Context
from agentmem.errors import AgentmemError
from agentmem.events import Decided
from agentmem.fence import Fence
from agentmem.memory import Memory
from agentmem.modes import RecallMode
from agentmem.storage.archive import (
    Archive,
    DecisionRow,
    RecordingRow,
    SessionRow,
    Store,
    StoredSegment,
)

_REPEATED = (
    "keep", "pin", "unpin", "drop", "bring_back", "passages.insert", "blocks.define",
    "blocks.append", "blocks.replace", "blocks.rewrite", "blocks.undo",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kept:
    """A segment that is in one of the two windows and not in the other.

    Args:
        id: its id in the session; a summary or part that only the other play made has its own.
        recorded: whether it is in the recorded window.
    """

    id: int
    turn: int
    num_tokens: int
    recorded: bool
    origin: str
    text: str


Window = dict[tuple[int, str, str, str], Kept]
"""A window by what a segment is in both plays: turn, kind, origin, content hash."""


class WhatIfPlayer(Player):
    """Plays a log's inputs and replies with another policy.

    Args:
        archive, session, rows, path: as `Player`'s.
        policy: the name of the policy that decides.
        budget: tokens of the window; None leaves what the session had.
        turn: the last turn that is played.
    """

    def __init__(
        self,
        archive: Archive,
        session: SessionRow,
        rows: list[RecordingRow],
        path: Path,
        policy: str,
        budget: int | None,
        turn: int,
    ) -> None:
        super().__init__(archive, session, rows, path)
        self.window: Window = {}
        self.tokens = 0
        self._context: Context | None = None
        self.freed = 0
        self.skipped = 0
        self.recall: RecallMode = "off"
        self.budget_tokens = 0
        self._rows = rows
        self._policy_name = policy
        self._budget = budget
        self._turn = turn
        self._whatif = WhatIfOutside(archive, session, rows)
        self._made: dict[int, int] = {}
        """What people decided, by the recorded decision's id."""

    def play(self) -> None:
        """Play up to the turn."""
        self._begin()
        with ExitStack() as opened:
            agent: Agent | None = None
            for record, following, row in _inputs(self._rows):
                number = record[3] if record[0] == "turn" and len(record) > 3 else 0
                if number > self._turn:
                    break
                self._whatif.prepare(number, following, row)
                with Store.open(self._path) as store:
                    elsewhere = [one for one in following if one[0] in ELSEWHERE]
                    target = store.for_user(self._archive.user)
                    self._whatif.catch_up(target, elsewhere, row.counters.changes)
                if record[0] == "open":
                    if record[1]["kind"] == "agent":
                        opened.close()
                        agent = opened.enter_context(self._agent(record[1]))
                elif agent is None:
                    self.skipped += 1
                elif record[0] == "do":
                    self.skipped += not self._repeat(agent, record[1], record[2], row)
                elif number:
                    self._say(agent, number, record[1])
            if agent is not None:
                self._look(agent.memory)

    def _say(self, agent: Agent, number: int, key: str | None) -> None:
        try:
            agent.chat(self._whatif.text_of(number), turn=key)
        except AgentmemError:
            # It was not answered then either: the next turn finds it as it is.
            return

    def _repeat(self, agent: Agent, action: str, arguments: list[Any], row: RecordingRow) -> bool:
        """Act on memory as somebody did, if it can be done here."""
        if action == "recall":
            agent.recall = "off" if arguments[0] == "off" else "text"
            return True
        memory, decision_id = agent.memory, row.counters.decisions + 1
        try:
            if action == "undo":
                undone = self._archive.decision(decision_id).effect.get("undoes")
                if undone not in self._made:
                    return False
                memory.undo(self._made[undone])
            elif action in _REPEATED:
                decided = act_on(memory, action, arguments)
                if isinstance(decided, Decided):
                    self._made[decision_id] = decided.id
            return action == "undo" or action in _REPEATED
        except AgentmemError:
            return False

    def _look(self, memory: Memory) -> None:
        """Keep what there is to compare."""
        self.window = window_of(memory)
        self.tokens = memory.context.num_tokens
        self._context = memory.context
        made = memory.archive.decisions(session_id=memory.session.id, limit=2**31)
        self.freed = tokens_freed(made, self._turn)

    def count(self, context: Context) -> int:
        """Tokens of another window as this play counts: two tokenizers cannot be compared."""
        mine = self._context
        if mine is None:
            return context.num_tokens
        recalled = [entry.num_tokens for entry in context if entry.recalled]
        header = context.recalled_tokens - sum(recalled)
        entries = sum(mine.count(entry.segment, entry.via) for entry in context)
        return mine.fixed_tokens + entries + header

    def _agent(self, settings: Mapping[str, Any]) -> Agent:
        self._whatif.space = settings["embedder"]
        self._whatif.fence = Fence(bytes.fromhex(settings["fence"]))
        limits = Budget.recorded(settings["budget"])
        if self._budget is not None:
            limits = replace(limits, max_tokens=self._budget, reserve=0)
        self.budget_tokens = limits.max_tokens
        self.recall = "off" if settings["recall"] == "off" else "text"
        return Agent(
            model=WhatIfModel(self._whatif, settings),
            store=self._path,
            user=self._archive.user,
            session=self._session.name,
            budget=limits,
            controller="policy",
            policy=self._policy_name,
            recall=self.recall,
            system_prompt=settings["system_prompt"],
            memory_tools=settings["memory_tools"],
            pin_instructions=settings["pin_instructions"],
            summaries=settings["summaries"],
            tools=self._whatif.recorded_tools(settings["tools"]),
            embedder=ReplayEmbedder(self._whatif, settings["embedder"], settings["dim"]),
            outside=self._whatif.observe,
        )


def _inputs(rows: list[RecordingRow]) -> list[tuple[Record, list[Record], RecordingRow]]:
    """Every input of a log with what followed it, and the row it was committed in."""
    found: list[tuple[Record, list[Record], RecordingRow]] = []
    for row in rows:
        for record in row.records:
            if record[0] in INPUTS:
                found.append((record, [], row))
            elif found:
                found[-1][1].append(record)
    return found


def tokens_freed(made: list[DecisionRow], turn: int) -> int:
    """Tokens that decisions took out of the window up to a turn."""
    return sum(
        row.effect.get("tokens_before", 0) - row.effect.get("tokens_after", 0)
        for row in made
        if row.turn <= turn and row.decision.action in ("drop", "summarize")
    )


def window_of(memory: Memory) -> Window:
    return {
        _key(entry.stored): Kept(
            entry.id,
            entry.stored.turn,
            entry.num_tokens,
            True,
            entry.segment.origin,
            entry.segment.text,
        )
        for entry in memory.context
    }


def _key(stored: StoredSegment) -> tuple[int, str, str, str]:
    segment = stored.segment
    return stored.turn, segment.kind, segment.origin, segment.content_hash
