"""Random sessions over a scripted model, seeded: everything a conversation may contain."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentmem import Agent, Budget, ScriptedModel, open_memory
from agentmem.errors import AgentmemError, InvalidInput, ModelUnavailable
from agentmem.models.base import Capabilities, Options, Part
from agentmem.models.embed import HashEmbedder
from agentmem.models.scripted import Line, ScriptItem, ToolCalls
from agentmem.models.scripted import Reply as Said
from agentmem.modes import RecallMode
from tests.agents import TALK, make_agent

BUDGET = Budget(640, warn_at=0.25, free_to=0.12, reserve=64)
"""Room for a review's question, and little for much talk."""
BIG_BUDGET = Budget(6800, warn_at=0.2, free_to=0.17, reserve=256)
"""Room for the descriptions of memory tools."""


def weather(city: str) -> str:
    """Weather of a city.

    Args:
        city: Its name.
    """
    if city == "Nowhere":
        raise ValueError("There is no such city.")
    return f"Rain in {city}. " * (40 if city == "Lima" else 2)


ACTS = (
    "append", "keep", "rewrite", "summarize", "insert", "pin", "undo", "drop", "restore", "unpin",
    "drop",
)  # fmt: skip


def worth(part: Part) -> tuple[float, float, float]:
    """What a part is worth, by its text."""
    length = len(part.messages[0].content)
    return 1.0 + length % 7, 1.0 + length % 5, 1.0 + length % 3


def decides(chance: random.Random) -> Callable[[Sequence[Part], Options], Line]:
    """An answer to reviews and summaries: calls about what is on offer, or nonsense."""

    def answer(prompt: Sequence[Part], options: Options) -> Line:
        if options.json_schema is None and not options.tools:
            said: list[Line] = ["They talked.", "", "A walk and a train.", ModelUnavailable("!")]
            return chance.choice(said)
        rows = prompt[-1].messages[0].content.splitlines()
        ids = [int(row.split("|")[0]) for row in rows if row.split("|")[0].isdigit()]
        if chance.random() < 0.2 or not ids:
            wrong: list[Line] = ["I would rather not.", "[", ModelUnavailable("down")]
            return chance.choice(wrong)
        verb = chance.choice(["drop_segments", "summarize_segments", "keep_segments"])
        some = chance.sample(ids, chance.randint(1, len(ids)))
        call = {"name": verb, "arguments": {"segment_ids": [*some, 9999][: chance.randint(1, 9)]}}
        return json.dumps([call])

    return answer


class RandomSession:
    """Plays turns and acts at random into a store in `folder`.

    Args:
        folder: where the store is, or will be.
        seed: decides everything.
        forgets: whether something is forgotten now and then.
    """

    def __init__(self, folder: Path, seed: int, *, forgets: bool = False) -> None:
        self.folder = folder
        self.seed = seed
        self.chance = random.Random(seed)
        self.forgets = forgets
        self.has_memory_tools = self.chance.random() < 0.4
        self.story = 150 if self.has_memory_tools else 35
        self.options: dict[str, Any] = {
            "budget": BIG_BUDGET if self.has_memory_tools else BUDGET,
            "controller": self.chance.choice(["scored", "scored", "tools", "tools", "policy"]),
            "policy": self.chance.choice(["window", "lru", "relevance", "mixture"]),
            "recall": self.chance.choice(["kv", "kv", "text", "off"]),
            "tools": [weather],
            "memory_tools": self.has_memory_tools,
        }
        self.capabilities = Capabilities(
            calls_tools=True, has_logits=True, has_kv=self.chance.random() < 0.7
        )

    def open(self) -> Agent:
        """Open the session, anew or again."""
        model = ScriptedModel(
            asides=[decides(self.chance)] * 200,
            default=self._reply,
            weights=worth,
            capabilities=self.capabilities,
        )
        agent = make_agent(self.folder, model, **self.options)
        if model.kv is not None:
            model.kv.set_attention(
                {one: self.chance.random() for one in range(2, 200) if self.chance.random() < 0.8}
            )
        return agent

    def _reply(self, prompt: Sequence[Part], options: Options) -> Line:
        lines: list[ScriptItem] = [
            "ok.", "ok.", self.chance.choice(TALK), f"The code is {self.chance.randint(1, 99)}.",
            *[ToolCalls.of("weather", city=city) for city in ("Oslo", "Lima", "Nowhere")],
            Said("Well.", thought="They ask again."), Said("Half", error=ModelUnavailable("gone")),
        ]  # fmt: skip
        if self.has_memory_tools and self.chance.random() < 0.5:
            return self._memory_tool()
        line = self.chance.choice(lines)
        assert not callable(line)
        return line

    def _memory_tool(self) -> ToolCalls:
        number = self.chance.randint(1, 40)
        calls = [
            ToolCalls.of("core_memory_append", label="human", text=f"Has locker {number}."),
            ToolCalls.of("core_memory_rewrite", label="persona", text=f"Is kind, {number} times."),
            ToolCalls.of("core_memory_replace", label="human", old_text="Has", new_text="Had"),
            ToolCalls.of("core_memory_append", label="nobody", text="?"),
            ToolCalls.of("conversation_search", query="code of locker"),
            ToolCalls.of("archival_memory_insert", text=f"Apples cost {number}.", tags=["fruit"]),
            ToolCalls.of("archival_memory_search", query="apples", tags=["fruit"]),
        ]
        return self.chance.choice(calls)

    def play(self, num_steps: int) -> None:
        """Play so many steps; the session is closed and opened again on the way.

        It begins with a long reply, so that the window is soon reviewed.
        """
        agent = self.open()
        try:
            with suppress(AgentmemError):
                agent.chat("Tell me a story.", reply="A long story. " * self.story)
            for step in range(num_steps):
                if step == 1:
                    self._take_back(agent.memory)
                    with suppress(AgentmemError):
                        self._act(agent.memory, ACTS[self.seed % len(ACTS)])
                if self.chance.random() < 0.08:
                    agent.close()
                    self._act_without_a_model()
                    agent = self.open()
                self.step(agent)
        finally:
            agent.close()

    def _take_back(self, memory: Any) -> None:
        """The first message is forgotten, or dropped and brought back."""
        if self.forgets:
            memory.forget(2)
            return
        with suppress(AgentmemError):
            if 2 in memory.context:
                memory.drop(2)
            memory.restore(2)

    def step(self, agent: Agent) -> None:
        """One turn or one act; what is refused is refused."""
        try:
            if self.chance.random() < 0.7:
                self._turn(agent)
            else:
                self._act(agent.memory)
        except AgentmemError:
            pass

    def _turn(self, agent: Agent) -> None:
        kind = self.chance.random()
        number = self.chance.randint(1, 40)
        text = f"{self.chance.choice(TALK)} ({number})"
        if kind < 0.2:
            text = f"The code of locker {number} is {number * 7919}."
        elif kind < 0.45:
            text = f"What is the code of locker {number}?"
        elif kind < 0.5:
            text = f"My locker is number {number}. Always answer in {number % 3} lines, please."
        elif kind < (0.7 if self.has_memory_tools else 0.54):
            text = "".join(f"Line {i} says {i * number}.\n" for i in range(60))
        if kind > 0.93:
            modes: list[RecallMode] = ["text", "off", "kv"]
            agent.recall = self.chance.choice(modes)
        if kind > 0.85:
            agent.chat(text, reply=self.chance.choice(["Noted.", "A long story. " * 60]))
        elif kind > 0.8:
            events = agent.events(text)
            for _ in range(self.chance.randint(1, 3)):
                next(events, None)
            events.close()  # type: ignore[attr-defined]
        elif kind > 0.75:
            key = f"turn-{self.chance.randint(1, 3)}"
            agent.chat("Say it again.", turn=key)
        else:
            agent.chat(text)

    def _act(self, memory: Any, verb: str = "") -> None:
        ids = [entry.id for entry in memory.context] + [self.chance.randint(2, 60)]
        verb = verb or self.chance.choice([*ACTS, *["forget"] * self.forgets])
        number = self.chance.randint(1, 9)
        if verb == "append":
            memory.blocks.append("human", f"Wears size {number}.")
        elif verb == "rewrite":
            memory.blocks.define("diet", description="what is eaten", max_tokens=60 + number)
            memory.blocks.rewrite("diet", f"Eats {number} apples.")
            memory.blocks.undo("diet")
        elif verb == "insert":
            memory.passages.insert(f"Pears cost {number}.", ["fruit", "price"])
        elif verb == "undo":
            rows = memory.archive.decisions(session_id=memory.session.id, limit=20)
            memory.undo(self.chance.choice([None, *[row.id for row in rows]]))
        elif verb == "forget":
            memory.forget(self.chance.choice(ids))
        else:
            getattr(memory, verb)(*self.chance.sample(ids, self.chance.randint(1, 2)))

    def _act_without_a_model(self) -> None:
        with open_memory(store=self.folder / "me.db", embedder=HashEmbedder()) as memory:
            try:
                self._act(memory)
            except (InvalidInput, AgentmemError):
                pass
