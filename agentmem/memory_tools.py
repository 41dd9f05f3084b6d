"""The tools with which a model edits its core memory, searches what was said, and keeps notes.

Signature and docstring are what the model reads: every word of them costs a token in every prompt.
What is wrong with a call is raised as `InvalidInput`, in words the model can act on. No tool takes
a user: they act on the memory they were made for.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

from agentmem.block import Block, Writer
from agentmem.errors import BudgetTooSmall, InvalidInput, Unsupported
from agentmem.memory import Memory
from agentmem.models.base import ChatModel
from agentmem.passages import passage_text
from agentmem.recall.found import Found, pages_of
from agentmem.segment import Message, Segment
from agentmem.tools import describe
from agentmem.wording.dates import span
from agentmem.wording.grounding import Grounds, ground

logger = logging.getLogger(__name__)

SHARE = 0.15
"""Of a budget, what the descriptions of these tools may take."""
_ANSWER_SHARE = 8
"""The answer to a search takes at most the budget divided by this."""
_ROLES = ("user", "assistant", "tool")
_SHOWN = 3
"""Foreign words a refusal names."""


class MemoryTools:
    """The memory tools of one session.

    Args:
        memory: what they act on.
        maker: name of the model that calls.
    """

    def __init__(self, memory: Memory, maker: str) -> None:
        self._memory = memory
        self._maker = maker
        self._quoted: set[int] = set()

    @property
    def functions(self) -> tuple[Callable[..., str], ...]:
        """The tools, as a model is told of them."""
        return (
            self.core_memory_append,
            self.core_memory_replace,
            self.core_memory_rewrite,
            self.conversation_search,
            self.archival_memory_insert,
            self.archival_memory_search,
        )

    @property
    def names(self) -> frozenset[str]:
        """What the tools are called."""
        return frozenset(function.__name__ for function in self.functions)

    def take_quoted(self) -> tuple[int, ...]:
        """Segments that were made or shown by calls since this was last asked, by id."""
        quoted, self._quoted = tuple(sorted(self._quoted)), set()
        return quoted

    def core_memory_append(self, label: str, text: str) -> str:
        """Add to core memory: persona, human or instructions.

        Args:
            label: Which block.
            text: What to add.
        """
        by = self._writer(label, text, "append")
        return self._edited(self._memory.blocks.append(label, text, by=by))

    def core_memory_replace(self, label: str, old_text: str, new_text: str) -> str:
        """Change part of a block.

        Args:
            label: Which block.
            old_text: What stands there, word for word.
            new_text: What shall stand there.
        """
        by = self._writer(label, new_text, "replace")
        _check_text("old_text", old_text)
        return self._edited(self._memory.blocks.replace(label, old_text, new_text, by=by))

    def core_memory_rewrite(self, label: str, text: str) -> str:
        """Replace a whole block.

        Args:
            label: Which block.
            text: All of it.
        """
        by = self._writer(label, text, "rewrite")
        return self._edited(self._memory.blocks.rewrite(label, text, by=by))

    def conversation_search(
        self,
        query: str,
        role: Literal["user", "assistant", "tool"] | None = None,
        start_date: str | None = None,
        end_date: str | None = None,
        page: int = 1,
    ) -> str:
        """Find what was said.

        Args:
            query: What to look for.
            role: Who said it.
            start_date: ISO date.
            end_date: ISO date, included.
            page: 1 is the nearest.
        """
        _check_text("query", query)
        if role and role not in _ROLES:
            raise InvalidInput(f"`role` must be one of {', '.join(_ROLES)}: got {role!r:.40}.")
        since, until = span(start_date, end_date)
        memory = self._memory
        said = memory.archive.said_ids(
            origin=role or None,
            since=since,
            until=until,
            not_in=(memory.session.id, memory.turn),
        )
        found = memory.finder.search(query, set(said))
        return self._page([one.segment_id for one in found], query, page, _spoken)

    def archival_memory_insert(self, text: str, tags: Sequence[str] = ()) -> str:
        """Store a note.

        Args:
            text: The note.
            tags: To find it by.
        """
        _check_text("text", text)
        grounds = self._ground(text)
        passage = self._memory.passages.insert(
            text, tags, maker=self._maker, trust=grounds.trust, sources=grounds.sources
        )
        self._quoted.add(passage.id)
        return "Stored."

    def archival_memory_search(self, query: str, tags: Sequence[str] = (), page: int = 1) -> str:
        """Find notes.

        Args:
            query: What to look for.
            tags: All must be on it.
            page: 1 is the nearest.
        """
        _check_text("query", query)
        found = self._memory.passages.search(query, tags)
        return self._page([one.segment_id for one in found], query, page, _noted)

    def _writer(self, label: str, text: str, operation: str) -> Writer:
        """The model as the writer of a text, if it may write it.

        Raises:
            InvalidInput: there is no such block, or the text is another's than the user's.
        """
        _check_text("label", label)
        _check_text("text", text)
        self._memory.blocks.get(label)
        grounds = self._ground(text)
        if grounds.foreign:
            words = ", ".join(f"“{one}”" for one in grounds.foreign[:_SHOWN])
            raise InvalidInput(
                f"Not stored: {words} comes from a tool or an import, not from the user. Ask the "
                "user whether you shall remember it, and store it once the user has agreed."
            )
        return Writer(self._maker, f"The model called core_memory_{operation}.", grounds.sources)

    def _ground(self, text: str) -> Grounds:
        """Whose words a text is made of: of all in the window, and of what tools quoted there."""
        shown = [entry.segment for entry in self._memory.context]
        ids = {one.id for one in shown}
        quoted = {
            parent
            for segment in shown
            if segment.kind == "tool_exchange"
            for parent in segment.parents
            if parent not in ids
        }
        rest = self._memory.archive.segments(sorted(quoted))
        return ground(text, [*shown, *(stored.segment for stored in rest)])

    def _edited(self, block: Block) -> str:
        if block.segment_id is not None:
            self._quoted.add(block.segment_id)
        return f"Done. Block {block.label} says: {block.text}"

    def _page(
        self, ids: Sequence[int], query: str, page: int, wording: Callable[[Segment], str]
    ) -> str:
        """One page of what a search found."""
        memory = self._memory
        pages = pages_of(ids, memory.context.budget.max_tokens // _ANSWER_SHARE)
        chosen = pages.ids(page)
        found = [
            Found(stored.segment.id, stored.segment.created, wording(stored.segment))
            for stored in memory.archive.segments(chosen)
        ]
        self._quoted.update(chosen)
        return pages.text(page, found, query, self._count)

    def _count(self, text: str) -> int:
        return self._memory.context.count(Segment((Message("tool", text),)))


def memory_tools_for(memory: Memory, model: ChatModel, wanted: bool | None) -> MemoryTools | None:
    """The memory tools of a session, or None where it has none.

    Args:
        memory: what they act on.
        model: calls them.
        wanted: None gives them to models that say they manage their memory, where there is room.

    Raises:
        BudgetTooSmall: they are wanted and their descriptions would take too much of the budget.
        Unsupported: they are wanted and the model calls no tools.
    """
    can = model.capabilities
    if wanted is False or (wanted is None and not (can.manages_memory and can.calls_tools)):
        return None
    if not can.calls_tools:
        raise Unsupported(f"{model.name} calls no tools: leave `memory_tools` out.")
    tools = MemoryTools(memory, model.name)
    tokens = model.count_tools(list(map(describe, tools.functions)))
    budget = memory.context.budget.max_tokens
    if tokens <= SHARE * budget:
        return tools
    message = (
        f"The memory tools take {tokens} tokens, {tokens / budget:.0%} of a budget of {budget}; at "
        f"most {SHARE:.0%} may be theirs"
    )
    if wanted:
        raise BudgetTooSmall(
            f"{message}. Use `budget={math.ceil(tokens / SHARE)}` or more, or leave `memory_tools` "
            "out."
        )
    logger.info("%s: they are left off.", message)
    return None


def _spoken(segment: Segment) -> str:
    return f"{segment.origin}: {segment.text}"


def _noted(segment: Segment) -> str:
    return passage_text(segment)


def _check_text(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise InvalidInput(f"`{name}` must be a text: got {value!r:.80}.")
