"""agentmem keeps one assistant conversation going for months inside a fixed budget of tokens.

    from agentmem import Agent

    agent = Agent("local", store="me.db", budget=2048)
    print(agent.chat("My locker code is 58291.").text)

Names are resolved when first used: importing agentmem loads neither torch nor transformers nor
faiss.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentmem.agent import Agent as Agent
    from agentmem.audit.replay import Replay as Replay
    from agentmem.audit.replay import replay as replay
    from agentmem.audit.state_hash import state_hash as state_hash
    from agentmem.audit.whatif import WhatIf as WhatIf
    from agentmem.audit.whatif import what_if as what_if
    from agentmem.block import Block as Block
    from agentmem.block import BlockVersion as BlockVersion
    from agentmem.budget import Budget as Budget
    from agentmem.consolidation import consolidate_memory as consolidate_memory
    from agentmem.context import Context as Context
    from agentmem.decision import Candidate as Candidate
    from agentmem.decision import Decision as Decision
    from agentmem.decisions.explain import Explanation as Explanation
    from agentmem.errors import AgentmemError as AgentmemError
    from agentmem.events import Decided as Decided
    from agentmem.events import Recalled as Recalled
    from agentmem.events import Reply as Reply
    from agentmem.events import SessionStarted as SessionStarted
    from agentmem.events import Token as Token
    from agentmem.events import Usage as Usage
    from agentmem.importing.file import Imported as Imported
    from agentmem.importing.file import import_file as import_file
    from agentmem.memory import Hit as Hit
    from agentmem.memory import Memory as Memory
    from agentmem.models.base import ChatModel as ChatModel
    from agentmem.models.base import Embedder as Embedder
    from agentmem.models.scripted import ScriptedModel as ScriptedModel
    from agentmem.opening import open_memory as open_memory
    from agentmem.origin import from_origin as from_origin
    from agentmem.origin import origin_name as origin_name
    from agentmem.policies.base import ScorerPolicy as ScorerPolicy
    from agentmem.policies.base import SegmentPolicy as SegmentPolicy
    from agentmem.segment import Message as Message
    from agentmem.segment import Segment as Segment
    from agentmem.storage.archive import Archive as Archive
    from agentmem.storage.rows import BlockEdit as BlockEdit
    from agentmem.storage.rows import DecisionRow as DecisionRow
    from agentmem.storage.rows import Fact as Fact
    from agentmem.storage.rows import RecordingRow as RecordingRow
    from agentmem.storage.rows import SessionRow as SessionRow
    from agentmem.storage.rows import Source as Source
    from agentmem.storage.rows import StoredSegment as StoredSegment
    from agentmem.storage.rows import TurnRow as TurnRow
    from agentmem.storage.store import Store as Store

__version__ = "0.1.0"

_HOME = {
    "Agent": "agent",
    "AgentmemError": "errors",
    "Archive": "storage.archive",
    "Block": "block",
    "BlockEdit": "storage.rows",
    "BlockVersion": "block",
    "Budget": "budget",
    "Candidate": "decision",
    "ChatModel": "models.base",
    "Context": "context",
    "Decided": "events",
    "Decision": "decision",
    "DecisionRow": "storage.rows",
    "Embedder": "models.base",
    "Explanation": "decisions.explain",
    "Fact": "storage.rows",
    "Hit": "memory",
    "Imported": "importing.file",
    "Memory": "memory",
    "Message": "segment",
    "Recalled": "events",
    "RecordingRow": "storage.rows",
    "Replay": "audit.replay",
    "Reply": "events",
    "ScorerPolicy": "policies.base",
    "ScriptedModel": "models.scripted",
    "Segment": "segment",
    "SegmentPolicy": "policies.base",
    "SessionRow": "storage.rows",
    "SessionStarted": "events",
    "Source": "storage.rows",
    "Store": "storage.store",
    "StoredSegment": "storage.rows",
    "Token": "events",
    "TurnRow": "storage.rows",
    "Usage": "events",
    "WhatIf": "audit.whatif",
    "consolidate_memory": "consolidation",
    "from_origin": "origin",
    "import_file": "importing.file",
    "open_memory": "opening",
    "origin_name": "origin",
    "replay": "audit.replay",
    "state_hash": "audit.state_hash",
    "what_if": "audit.whatif",
}

__all__ = [
    "Agent",
    "AgentmemError",
    "Archive",
    "Block",
    "BlockEdit",
    "BlockVersion",
    "Budget",
    "Candidate",
    "ChatModel",
    "Context",
    "Decided",
    "Decision",
    "DecisionRow",
    "Embedder",
    "Explanation",
    "Fact",
    "Hit",
    "Imported",
    "Memory",
    "Message",
    "Recalled",
    "RecordingRow",
    "Replay",
    "Reply",
    "ScorerPolicy",
    "ScriptedModel",
    "Segment",
    "SegmentPolicy",
    "SessionRow",
    "SessionStarted",
    "Source",
    "Store",
    "StoredSegment",
    "Token",
    "TurnRow",
    "Usage",
    "WhatIf",
    "consolidate_memory",
    "from_origin",
    "import_file",
    "open_memory",
    "origin_name",
    "replay",
    "state_hash",
    "what_if",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'agentmem' has no attribute {name!r}")
    value = getattr(import_module(f"agentmem.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
