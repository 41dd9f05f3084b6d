"""How an agent decides and recalls, by name."""

from __future__ import annotations

from typing import Literal

ControllerMode = Literal["llm", "scored", "tools", "policy", "off"]
RecallMode = Literal["kv", "text", "off"]
