"""Playing a log: each thing that people did is done again, to an agent over a recording.

It plays and compares nothing: that is `replay`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any

from agentmem.agent import Agent
from agentmem.audit.log import BrokenOff, Log
from agentmem.audit.records import Record, elsewhere_records
from agentmem.audit.replay_model import ReplayEmbedder, ReplayModel
from agentmem.audit.replay_outside import ReplayOutside
from agentmem.audit.snapshot import fill, snapshot_of
from agentmem.block import Writer
from agentmem.budget import Budget
from agentmem.errors import AgentmemError, InvalidInput, ReplayDiverged
from agentmem.events import Token
from agentmem.fence import Fence
from agentmem.memory import Memory
from agentmem.opening import open_memory
from agentmem.policies import make_policy
from agentmem.policies.base import SegmentPolicy
from agentmem.segment import Trust
from agentmem.storage.archive import Archive, RecordingRow, SessionRow, Store

Watcher = Callable[[int, Memory], None]
"""Told of everything that was played: the number of the last turn, and the memory now."""


class Player:
    """Plays a log into a store file, one input after the other.

    Args:
        archive: where the session was recorded.
        session: which.
        rows: its log.
        path: of the store to make.
    """

    def __init__(
        self,
        archive: Archive,
        session: SessionRow,
        rows: list[RecordingRow],
        path: Path,
        *,
        policy: SegmentPolicy | None = None,
        watch: Watcher | None = None,
    ) -> None:
        self.begins_after = 0
        self.num_decisions_before = 0
        self.session_id = 0
        """Of the session in the store that is made."""
        self._archive = archive
        self._session = session
        self._path = path
        self._policy = policy
        self._watch = watch
        self._log = Log(rows)
        self._outside = ReplayOutside(archive, session, self._log)
        self._begins_at = rows[0].counters.changes if rows else archive.last_change()
        self._is_empty = not rows

    def play(self) -> None:
        """Play it to its end.

        Raises:
            ReplayDiverged: something else was asked for than was recorded.
        """
        self._begin()
        with ExitStack() as opened:
            target: Agent | Memory | None = None
            while (record := self._log.input()) is not None:
                if record[0] == "open":
                    opened.close()
                    target = None
                self._catch_up(self._log.elsewhere(), self._log.coming_changes)
                try:
                    if record[0] == "open":
                        target = opened.enter_context(self._open(record[1]))
                    elif record[0] == "turn":
                        self._play_turn(target, record)
                    else:
                        self._act(target, record[1], record[2])
                except (AgentmemError, GeneratorExit) as error:
                    # What failed then fails again; whether it was this is seen by what comes next.
                    if isinstance(error, ReplayDiverged):
                        raise
                if self._watch is not None and target is not None:
                    memory = target.memory if isinstance(target, Agent) else target
                    self._watch(self._log.turn, memory)

    def finish(self) -> None:
        """Take over what others did since."""
        others = self._archive.elsewhere(self._session.id)
        self._catch_up(list(elsewhere_records(others)), others.newest)

    def _catch_up(self, records: list[Record], newest: int) -> None:
        if not records and not self._outside.has_news(newest):
            return
        with Store.open(self._path) as store:
            self._outside.catch_up(store.for_user(self._archive.user), records, newest)

    def _begin(self) -> None:
        """Make the store, with the state that the log begins with."""
        state = None
        if self._log.next_is("from"):
            state = self._log.take("from")[1]
        elif self._is_empty:
            state = snapshot_of(self._archive, self._session)
        with Store.open(self._path) as store:
            archive = store.for_user(self._archive.user)
            self.session_id = archive.session(self._session.name).id
            if state is None:
                return
            self.begins_after = state["turns"]
            self._outside.space = self._first_space()
            with archive.write() as transaction:
                # What others said may stand in the window.
                self._outside.take_over(transaction, self._begins_at)
                fill(
                    transaction,
                    self.session_id,
                    source=self._archive,
                    source_session=self._session,
                    state=state,
                    space=self._first_space(),
                )
            made = archive.decisions(session_id=self.session_id, limit=2**31)
            self.num_decisions_before = len(made)

    def _first_space(self) -> str:
        return str(self._log.opening.get("embedder", ""))

    @contextmanager
    def _open(self, settings: dict[str, Any]) -> Iterator[Agent | Memory]:
        self._outside.space = settings["embedder"]
        if "fence" in settings:
            self._outside.fence = Fence(bytes.fromhex(settings["fence"]))
        embedder = ReplayEmbedder(self._outside, settings["embedder"], settings["dim"])
        common: dict[str, Any] = {
            "store": self._path,
            "user": self._archive.user,
            "session": self._session.name,
            "budget": Budget.recorded(settings["budget"]),
            "embedder": embedder,
            "outside": self._outside.observe,
        }
        if settings["kind"] == "memory":
            with open_memory(**common) as memory:
                yield memory
            return
        generation = settings["generation"] | {"stop": tuple(settings["generation"]["stop"])}
        with Agent(
            model=ReplayModel(self._outside, settings),
            kv=settings["kv"],
            controller=settings["controller"],
            policy=self._policy_of(settings),
            recall=settings["recall"],
            system_prompt=settings["system_prompt"],
            memory_tools=settings["memory_tools"],
            pin_instructions=settings["pin_instructions"],
            summaries=settings["summaries"],
            tools=self._outside.recorded_tools(settings["tools"]),
            **common,
            **generation,
        ) as agent:
            yield agent

    def _policy_of(self, settings: dict[str, Any]) -> SegmentPolicy:
        if self._policy is not None:
            return self._policy
        try:
            made = make_policy(settings["policy"])
        except InvalidInput as error:
            raise ReplayDiverged(
                f"The session was decided by a policy of its own, {settings['rule']}: pass it as "
                "`policy`."
            ) from error
        if repr(made) != settings["rule"]:
            raise ReplayDiverged(
                f"The session was decided by {settings['rule']}, the policy of that name is now "
                f"{made!r}: pass the former as `policy`.",
                recorded=settings["rule"],
                replayed=repr(made),
            )
        return made

    def _play_turn(self, target: Agent | Memory | None, record: Record) -> None:
        if not isinstance(target, Agent):
            raise BrokenOff("There is nobody to talk to.")
        if len(record) < 4:
            return  # it was refused before it began
        _, key, given, number = record
        self._log.turn = number
        reply = self._outside.reply_of(number) if given else None
        last = self._log.left()
        text = self._outside.text_of(number)
        with closing(target.session.events(text, turn=key, reply=reply)) as events:
            num_events = 0
            for event in events:
                at_word = isinstance(event, Token)
                num_events += not at_word
                if last == (num_events, at_word) and not self._outside.is_speaking:
                    self._log.take("left")
                    break

    def _act(self, target: Agent | Memory | None, action: str, arguments: list[Any]) -> None:
        if target is None:
            raise BrokenOff("There is nothing to act on.")
        if action == "recall":
            assert isinstance(target, Agent), "only an agent recalls"
            target.recall = arguments[0]
            return
        memory = target.memory if isinstance(target, Agent) else target
        act_on(memory, action, arguments)


def act_on(memory: Memory, action: str, arguments: list[Any]) -> Any:
    """Do again what somebody did, as the log names it; returns what came of it."""
    given: dict[str, Any] = {}
    if arguments and isinstance(arguments[-1], dict):
        *arguments, given = arguments
    if "by" in given:
        given = {"by": Writer(**given["by"])}
    if "trust" in given:
        given = {**given, "trust": Trust(given["trust"])}
    return attrgetter("restore" if action == "bring_back" else action)(memory)(*arguments, **given)
