"""How an agent decides, recalls and summarizes, by name."""

from __future__ import annotations

from typing import Literal

ControllerMode = Literal["llm", "scored", "tools", "policy", "off"]
RecallMode = Literal["kv", "text", "off"]
SummaryMode = Literal["auto", "model", "extract"]
