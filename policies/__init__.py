"""Which segments leave the window, decided without a model: one method, one file.

`make_policy(name)` builds one by the name settings use; wrappers (`PinnedPolicy`, `ComposedPolicy`,
`SequencePolicy`, `HysteresisPolicy`) are built in code around others.
"""

from __future__ import annotations

from collections.abc import Callable

from agentmem.errors import InvalidInput
from agentmem.policies.attention import AttentionPolicy
from agentmem.policies.base import ScorerPolicy, SegmentPolicy
from agentmem.policies.composed import ComposedPolicy
from agentmem.policies.hysteresis import HysteresisPolicy
from agentmem.policies.lru import LRUPolicy
from agentmem.policies.mixture import MixturePolicy
from agentmem.policies.pinned import PinnedPolicy
from agentmem.policies.price import PricePolicy
from agentmem.policies.relevance import RelevancePolicy
from agentmem.policies.sequence import SequencePolicy
from agentmem.policies.size import SizePolicy
from agentmem.policies.window import WindowPolicy
from agentmem.policies.worth import WorthPolicy

__all__ = [
    "POLICIES",
    "AttentionPolicy",
    "ComposedPolicy",
    "HysteresisPolicy",
    "LRUPolicy",
    "MixturePolicy",
    "PinnedPolicy",
    "PricePolicy",
    "RelevancePolicy",
    "ScorerPolicy",
    "SegmentPolicy",
    "SequencePolicy",
    "SizePolicy",
    "WindowPolicy",
    "WorthPolicy",
    "make_policy",
]


def _composed() -> ComposedPolicy:
    return ComposedPolicy([RelevancePolicy(), AttentionPolicy(), LRUPolicy()])


POLICIES: dict[str, Callable[[], SegmentPolicy]] = {
    "attention": AttentionPolicy,
    "composed": _composed,
    "lru": LRUPolicy,
    "mixture": MixturePolicy,
    "price": PricePolicy,
    "relevance": RelevancePolicy,
    "size": SizePolicy,
    "window": WindowPolicy,
    "worth": WorthPolicy,
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
