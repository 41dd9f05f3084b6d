"""The window: which segments the model sees, in what order, and what each takes.

The context is the truth and the KV cache obeys it. Order is time order: every segment stands at its
place, a summary at the place of its first original, wherever it was when it was not here; only what
is recalled for a few turns stands before the newest message. It knows tokens and places; not why a
segment is in the window, and nothing of SQL or KV.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from agentmem.budget import Budget
from agentmem.fence import Fence
from agentmem.models.base import Part, estimate_tokens
from agentmem.segment import Message, Segment, State
from agentmem.storage.rows import StoredSegment, WindowEntry, WindowVia

RECALL_HEADER = Part("recall:header", (Message("user", "Earlier in this conversation:"),))


@dataclass(frozen=True, slots=True)
class Entry:
    """One segment in the window.

    Args:
        stored: the segment and what the archive knows of it.
        num_tokens: what it takes, by the model's own tokenizer.
        via: "prompt" where it was said, "kv" or "text" for how it was brought back.
        until_turn: a recalled segment leaves after this turn; None stays.
    """

    stored: StoredSegment
    num_tokens: int
    via: WindowVia = "prompt"
    until_turn: int | None = None

    @property
    def id(self) -> int:
        """The segment's id."""
        return self.stored.segment.id

    @property
    def segment(self) -> Segment:
        """The segment itself."""
        return self.stored.segment

    @property
    def state(self) -> State:
        """Where the archive says it lives."""
        return self.stored.state

    @property
    def pinned(self) -> bool:
        """Whether it may not be dropped or summarized."""
        return self.stored.pinned

    @property
    def is_core(self) -> bool:
        """Whether it is the system prompt or core memory."""
        return self.segment.kind == "core_block"

    @property
    def stays(self) -> bool:
        """Whether no review may take it out."""
        return self.is_core or self.pinned

    @property
    def recalled(self) -> bool:
        """Whether it is here for a few turns only."""
        return self.until_turn is not None


class Context:
    """The window of one session.

    Args:
        budget: its ceilings.
        count_tokens: the model's own count for a part of a prompt.
        fence: around foreign text in prompts; one with a new key where None.
    """

    def __init__(
        self, budget: Budget, count_tokens: Callable[[Part], int], *, fence: Fence | None = None
    ) -> None:
        self.budget = budget
        self._count_tokens = count_tokens
        self.fixed_tokens = 0
        """Tokens of what stands in every prompt besides segments: the tools' descriptions."""
        self.notice: Part | None = None
        """What the model is told before the newest user message, in this turn alone."""
        self._entries: dict[int, Entry] = {}
        self._fence = fence or Fence()

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Every segment in the window, in order: system prompt, core memory, then by time."""
        return tuple(sorted(self._entries.values(), key=_order))

    def __contains__(self, segment_id: int) -> bool:
        return segment_id in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, segment_id: int) -> Entry:
        return self._entries[segment_id]

    @property
    def num_tokens(self) -> int:
        """Tokens of the whole window."""
        segments = sum(entry.num_tokens for entry in self._entries.values())
        return self.fixed_tokens + segments + self._header_tokens() + self._notice_tokens()

    @property
    def recalled_tokens(self) -> int:
        """Tokens of what recall brought back."""
        recalled = sum(entry.num_tokens for entry in self._entries.values() if entry.recalled)
        return recalled + self._header_tokens()

    @property
    def own_tokens(self) -> int:
        """Tokens of what is here by itself."""
        return self.num_tokens - self.recalled_tokens

    @property
    def tokens_per_estimate(self) -> float:
        """How the model's count of the window compares to an estimate without a tokenizer."""
        parts = [self.part(entry.segment) for entry in self._entries.values()]
        estimate = sum(map(estimate_tokens, parts))
        return sum(map(self._count_tokens, parts)) / estimate if estimate else 1.0

    @property
    def core_tokens(self) -> int:
        """Tokens of system prompt and core memory."""
        return sum(e.num_tokens for e in self._entries.values() if e.is_core)

    @property
    def pinned_tokens(self) -> int:
        """Tokens of what is pinned, core memory not counted."""
        return sum(e.num_tokens for e in self._entries.values() if e.pinned and not e.is_core)

    @property
    def staying_tokens(self) -> int:
        """Tokens of what no review may take out: tools, system prompt, core memory, pins."""
        return self.fixed_tokens + self.core_tokens + self.pinned_tokens

    @property
    def longest_message(self) -> int:
        """Tokens of a message that still fits beside what must always be in the window."""
        fits = self.budget.max_tokens - self.budget.reserve - self.staying_tokens
        return min(self.budget.message_tokens, fits)

    @property
    def most_pinned(self) -> int:
        """Tokens that may be pinned: half of what a review frees to, but never a message's room."""
        budget = self.budget
        rest = budget.max_tokens - budget.reserve - self.fixed_tokens - self.core_tokens
        return max(0, min(budget.target_tokens // 2, rest - budget.message_tokens))

    def check_budget(self, system_prompt: Segment | None = None) -> None:
        """Refuse a budget that cannot hold what must always be in the window.

        Args:
            system_prompt: that is to enter yet.

        Raises:
            BudgetTooSmall: with the sum shown.
        """
        entering = 0 if system_prompt is None else self.count(system_prompt)
        self.budget.check(
            system_tokens=self.core_tokens + entering,
            tools_tokens=self.fixed_tokens,
            pinned_tokens=self.pinned_tokens,
        )

    def _header_tokens(self) -> int:
        recalled = any(entry.recalled for entry in self._entries.values())
        return self._count_tokens(RECALL_HEADER) if recalled else 0

    def _notice_tokens(self) -> int:
        return 0 if self.notice is None else self._count_tokens(self.notice)

    def part(self, segment: Segment, via: WindowVia = "prompt") -> Part:
        """How the segment stands in a prompt: what is below user trust only as fenced data."""
        if via != "text":
            return Part(segment.id, self._fence.messages(segment))
        return Part(f"recall:{segment.id}", self._fence.quoted(segment))

    def shown(self, segment: Segment) -> Segment:
        """The segment with the messages that stand for it in prompts, for who builds one of it."""
        messages = self._fence.messages(segment)
        return segment if messages == segment.messages else replace(segment, messages=messages)

    def count(self, segment: Segment, via: WindowVia = "prompt") -> int:
        """Tokens the segment takes or would take."""
        return self._count_tokens(self.part(segment, via))

    def put(
        self, stored: StoredSegment, *, via: WindowVia = "prompt", until_turn: int | None = None
    ) -> Entry:
        """Place a segment, or change how it is here."""
        segment = stored.segment
        entry = Entry(stored, self.count(segment, via), via, until_turn)
        self._entries[segment.id] = entry
        return entry

    def remove(self, segment_ids: Iterable[int]) -> None:
        """Take segments out; those not here are ignored."""
        for segment_id in segment_ids:
            self._entries.pop(segment_id, None)

    def expired(self, turn: int) -> list[int]:
        """Recalled segments whose time is over at this turn."""
        return [
            entry.id
            for entry in self.entries
            if entry.until_turn is not None and entry.until_turn < turn
        ]

    def snapshot(self) -> tuple[WindowEntry, ...]:
        """The window as the archive stores it."""
        return tuple(
            WindowEntry(entry.id, entry.segment.place, entry.via, entry.until_turn)
            for entry in self.entries
        )

    def load(self, window: Iterable[WindowEntry], segments: Mapping[int, StoredSegment]) -> None:
        """Become the window that `snapshot` gave."""
        self._entries.clear()
        for row in window:
            self.put(segments[row.segment_id], via=row.via, until_turn=row.until_turn)

    def would_take(
        self, window: Iterable[WindowEntry], segments: Mapping[int, StoredSegment]
    ) -> int:
        """Tokens of another window, were it this one."""
        rows = list(window)
        header = any(row.until_turn is not None for row in rows)
        return (
            self.fixed_tokens
            + sum(self.count(segments[row.segment_id].segment, row.via) for row in rows)
            + (self._count_tokens(RECALL_HEADER) if header else 0)
        )

    def prompt(self) -> list[Part]:
        """The window as a prompt.

        What was recalled stands in one block before the newest user message, as KV or as text: a
        model finds it there far more often than at its old place (its KV moves by changing one
        integer), and all before it stays byte-identical between reviews. A notice follows it.
        """
        parts = [self.part(entry.segment) for entry in self.entries if not entry.recalled]
        block = [self.part(entry.segment, entry.via) for entry in self.entries if entry.recalled]
        if block:
            block.insert(0, RECALL_HEADER)
        if self.notice is not None:
            block.append(self.notice)
        if block:
            at = next(
                (i for i in range(len(parts) - 1, -1, -1) if parts[i].messages[0].role == "user"),
                len(parts),
            )
            parts[at:at] = block
        return parts

    def bar(self) -> list[tuple[str, int]]:
        """Tokens per part of the window; with "free" they sum to the budget."""
        parts = {
            "system": self.fixed_tokens + self._notice_tokens(),
            "pinned": 0,
            "recalled": 0,
            "summaries": 0,
            "turns": 0,
        }
        for entry in self._entries.values():
            parts[_bar_part(entry)] += entry.num_tokens
        parts["recalled"] += self._header_tokens()
        free = self.budget.max_tokens - sum(parts.values())
        return [*parts.items(), ("free", free)]

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)


def _order(entry: Entry) -> tuple[bool, bool, int, int]:
    segment = entry.segment
    return not segment.is_system_prompt, not entry.is_core, segment.place, segment.id


def _bar_part(entry: Entry) -> str:
    if entry.is_core:
        return "system"
    if entry.pinned:
        return "pinned"
    if entry.recalled:
        return "recalled"
    return "summaries" if entry.segment.kind == "summary" else "turns"
