"""A message or tool result too long for the window: stored whole as parts, cut in its place.

The stub holds head, tail and a pointer; the parts are found by search like any segment and are read
only when recalled. Joined, the parts are the message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from agentmem.segment import Segment


@dataclass(frozen=True, slots=True)
class Document:
    """What stands in the window for something long, and the parts it is stored in."""

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
    parts = parts_of(segment, part_tokens, count)
    return Document(_stub(segment, len(parts), stub_tokens, count), parts)


def parts_of(
    segment: Segment, part_tokens: int, count: Callable[[Segment], int]
) -> tuple[Segment, ...]:
    """A segment of one message as parts of at most so many tokens; joined, they are the message."""
    # One token is seldom more than eight characters: a first cut that is safe to count.
    texts = pieces(segment.messages[0].content, 8 * part_tokens)[::-1]
    parts: list[Segment] = []
    while texts:
        text = texts.pop()
        part = replace(_with_text(segment, text), kind="document_part")
        if len(text) > 1 and count(part) > part_tokens:
            half = _cut(text, len(text) // 2)
            texts += [text[half:], text[:half]]
        else:
            parts.append(part)
    return tuple(parts)


def stub_text(text: str, num_parts: int, length: int) -> str:
    """Head and tail of a text, so many characters together, and where the rest is."""
    head = text[: length * 2 // 3].rstrip()
    tail = text[len(text) - length // 3 :].lstrip()
    return f"{head}\n[… {len(text):,} characters, stored whole in {num_parts} parts …]\n{tail}"


def _stub(
    segment: Segment, num_parts: int, stub_tokens: int, count: Callable[[Segment], int]
) -> Segment:
    text = segment.messages[0].content
    length = 4 * stub_tokens
    while True:
        stub = _with_text(segment, stub_text(text, num_parts, length))
        if length < 16 or count(stub) <= stub_tokens:
            return stub
        length = length * 3 // 4


def _with_text(segment: Segment, text: str) -> Segment:
    return replace(segment, messages=(replace(segment.messages[0], content=text),))


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
