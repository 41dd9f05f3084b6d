"""Calls of a model and their results, as one segment and what it has no room for.

A result too long for the window is cut there and stored whole as a document of parts. It knows
texts and how to count them; no window and no store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from agentmem.documents import Document, parts_of, stub_text
from agentmem.segment import Message, Segment, ToolCall, Trust
from agentmem.tools import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Calls and their results.

    Args:
        text: what the model said besides.
        calls: what it called.
        results: one of each call.
        note: follows the last result.
        quoted: ids of segments that the results quote: the exchange is made of them.
        part_tokens: a part of a long result takes at most so many.
        count: tokens of a segment in a prompt.
    """

    text: str
    calls: tuple[ToolCall, ...]
    results: Sequence[Result]
    note: str
    quoted: tuple[int, ...]
    part_tokens: int
    count: Callable[[Segment], int]
    _parts: dict[int, tuple[Segment, ...]] = field(default_factory=dict, init=False)

    def cut_to(self, longest: int) -> Document:
        """The exchange with every result cut to so many characters, and those that were in parts.

        The model has asked for the results and answers from what it sees: of these there is more
        to be seen than of a long message.
        """
        messages = [Message("assistant", self.text, self.calls)]
        parts: list[Segment] = []
        for i, (call, result) in enumerate(zip(self.calls, self.results, strict=True)):
            text = result.text
            if len(text) > longest:
                stored = self._stored(i)
                text = stub_text(text, len(stored), longest)
                parts += stored
            messages.append(Message("tool", text, tool_call_id=call.id))
        messages[-1] = replace(messages[-1], content=messages[-1].content + self.note)
        exchange = Segment(
            tuple(messages),
            kind="tool_exchange",
            origin="tool",
            trust=Trust.EXTERNAL,
            parents=self.quoted,
        )
        return Document(exchange, tuple(parts))

    def _stored(self, i: int) -> tuple[Segment, ...]:
        """A whole result as parts; it is split once, however often it is cut."""
        if i not in self._parts:
            text, call_id = self.results[i].text, self.calls[i].id
            message = Message("tool", text, tool_call_id=call_id)
            whole = Segment((message,), origin="tool", trust=Trust.EXTERNAL)
            self._parts[i] = parts_of(whole, self.part_tokens, self.count)
        return self._parts[i]
