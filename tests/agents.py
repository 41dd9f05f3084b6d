"""Agents over a scripted model: the whole pipeline without a real one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentmem import Agent, Reply, ScriptedModel
from agentmem.models.embed import HashEmbedder

TALK = (
    "I walked to the market and bought green apples today.",
    "My neighbour is painting the old fence blue again.",
    "The train was late by half an hour this morning.",
    "We are planning a short trip to the lake in spring.",
    "The cat slept on my keyboard for the whole afternoon.",
    "I watched a long film about sailors and storms.",
    "My sister plays the cello in a small orchestra.",
    "I planted tomatoes and basil on the balcony.",
)


def make_agent(folder: Path, model: ScriptedModel | None = None, **options: Any) -> Agent:
    """An agent over a scripted model with a KV tier, in a store of its own in `folder`."""
    settings: dict[str, Any] = {
        "store": folder / "me.db",
        "budget": 400,
        "embedder": HashEmbedder(),
        "controller": "policy",
        "policy": "window",
        "system_prompt": "Be kind.",
        **options,
    }
    return Agent(model or ScriptedModel(has_kv=True), **settings)


def talk(agent: Agent, turns: int) -> list[Reply]:
    """Small talk for so many turns."""
    return [agent.chat(f"{TALK[i % len(TALK)]} ({i})") for i in range(turns)]


def window(agent: Agent) -> list[tuple[int, str, int]]:
    """The window as ids, via and tokens, in order."""
    return [(entry.id, entry.via, entry.num_tokens) for entry in agent.context.entries]
