"""Which segments leave the window, decided without a model: one method, one file.

`make_policy(name)` builds one by the name settings use; wrappers (`PinnedPolicy`, `ComposedPolicy`,
`SequencePolicy`) are built in code around others.
"""

from __future__ import annotations

from collections.abc import Callable

from agentmem.errors import InvalidInput
from agentmem.policies.attention import AttentionPolicy
from agentmem.policies.base import ScorerPolicy, SegmentPolicy
from agentmem.policies.composed import ComposedPolicy
from agentmem.policies.lru import LRUPolicy
from agentmem.policies.pinned import PinnedPolicy
from agentmem.policies.relevance import RelevancePolicy
from agentmem.policies.sequence import SequencePolicy
from agentmem.policies.window import WindowPolicy

__all__ = [
    "POLICIES",
    "AttentionPolicy",
    "ComposedPolicy",
    "LRUPolicy",
    "PinnedPolicy",
    "RelevancePolicy",
    "ScorerPolicy",
    "SegmentPolicy",
    "SequencePolicy",
    "WindowPolicy",
    "make_policy",
]


def _composed() -> ComposedPolicy:
    return ComposedPolicy([RelevancePolicy(), AttentionPolicy(), LRUPolicy()])


POLICIES: dict[str, Callable[[], SegmentPolicy]] = {
    "attention": AttentionPolicy,
    "composed": _composed,
    "lru": LRUPolicy,
    "relevance": RelevancePolicy,
    "window": WindowPolicy,
}
"""Every policy that can be named in settings, with its default parameters."""


def make_policy(name: str) -> SegmentPolicy:
    """The policy of this name, with its default parameters.

    Raises:
        InvalidInput: there is none; the message lists those there are.
    """
    if name not in POLICIES:
        raise InvalidInput(f"No policy is called {name!r}: use one of {', '.join(POLICIES)}.")
    return POLICIES[name]()
