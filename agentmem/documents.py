"""A message too long for the window: stored whole as parts, with a stub in its place.

The stub holds head, tail and a pointer; the parts are found by search like any segment and are read
only when recalled. Joined, the parts are the message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from agentmem.segment import Message, Segment


@dataclass(frozen=True, slots=True)
class Document:
    """A long message as what stands in the window and what is stored."""

    stub: Segment
    parts: tuple[Segment, ...]


def split_document(
    segment: Segment,
    *,
    stub_tokens: int,
    part_tokens: int,
    count: Callable[[Segment], int],
) -> Document:
    """Split a segment of one message.

    Args:
        segment: the message, whole.
        stub_tokens: the stub takes at most so many.
        part_tokens: a part takes at most so many.
        count: tokens of a segment in a prompt.
    """
    message = segment.messages[0]

    def with_text(text: str) -> Segment:
        return replace(segment, messages=(replace(message, content=text),))

    # One token is seldom more than eight characters: a first cut that is safe to count.
    texts = pieces(message.content, 8 * part_tokens)[::-1]
    parts: list[Segment] = []
    while texts:
        text = texts.pop()
        part = replace(with_text(text), kind="document_part")
        if len(text) > 1 and count(part) > part_tokens:
            half = _cut(text, len(text) // 2)
            texts += [text[half:], text[:half]]
        else:
            parts.append(part)
    return Document(_stub(segment, message, len(parts), stub_tokens, count), tuple(parts))


def _stub(
    segment: Segment,
    message: Message,
    num_parts: int,
    stub_tokens: int,
    count: Callable[[Segment], int],
) -> Segment:
    text = message.content
    length = 4 * stub_tokens
    while True:
        head = text[: length * 2 // 3].rstrip()
        tail = text[len(text) - length // 3 :].lstrip()
        middle = f"\n[… {len(text):,} characters, stored whole in {num_parts} parts …]\n"
        stub = replace(segment, messages=(replace(message, content=head + middle + tail),))
        if length < 16 or count(stub) <= stub_tokens:
            return stub
        length = length * 3 // 4


def pieces(text: str, max_chars: int) -> list[str]:
    """The text in pieces of at most `max_chars`, cut at ends of lines or words; at least one."""
    found = []
    start = 0
    while len(text) - start > max_chars:
        end = start + _cut(text[start : start + max_chars], max_chars)
        found.append(text[start:end])
        start = end
    found.append(text[start:])
    return found


def _cut(text: str, near: int) -> int:
    """A good place to cut at or a little before `near`, never 0."""
    floor = max(1, near * 3 // 4)
    for separator in ("\n\n", "\n", ". ", "。", " "):
        at = text.rfind(separator, floor, near)
        if at >= 0:
            return at + len(separator)
    return max(1, near)
