"""What a conversation costs: measured after each turn, beside what a dense cache would hold."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Mapping

from agentmem.events import Usage
from agentmem.memory import Memory
from agentmem.models.base import Completion


def measure(
    memory: Memory, completion: Completion, *, peak_tokens: int, seconds: Mapping[str, float]
) -> Usage:
    """The usage after a turn that ended with this completion."""
    kv = memory.kv
    held = kv.usage() if kv is not None else None
    return Usage(
        prompt_tokens=completion.prompt_tokens,
        completion_tokens=completion.completion_tokens,
        peak_tokens=peak_tokens,
        budget=memory.context.budget.max_tokens,
        kv_bytes=held.window_bytes if held else 0,
        kv_bytes_host=held.window_host_bytes if held else 0,
        kv_bytes_dense=kv.dense_bytes_per_token * memory.said_tokens if kv else 0,
        kv_bytes_parked_ram=held.parked_ram_bytes if held else 0,
        kv_bytes_parked_disk=held.parked_disk_bytes if held else 0,
        rss=resident_bytes(),
        segments=memory.states(),
        seconds=dict(seconds),
    )


def resident_bytes() -> int:
    """Resident memory of this process in bytes; its peak where the system tells no more."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
