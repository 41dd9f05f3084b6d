"""Plain files as segments: text cut into parts, and JSONL of `{"role": ..., "content": ...}`.

Whatever such a file says, it is data: its segments are of origin "import" and below user trust.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from agentmem.documents import pieces
from agentmem.importing.lines import MAX_SEGMENT_BYTES, ImportLines
from agentmem.segment import Kind, Message, Role, Segment, Trust
from agentmem.storage.text import normalize_text

PART_BYTES = 800
"""Small enough for the recall share of a small window."""
_WHOLE_BYTES = 2 * PART_BYTES
"""A message up to this length is not cut."""
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def imported_segment(
    text: str, *, role: Role = "user", kind: Kind = "turn", source: str, created: float = 0.0
) -> Segment:
    """A segment of somebody else's words. Only an assistant's are not the user's: nobody who could
    give orders speaks in an import."""
    message = Message("assistant" if role == "assistant" else "user", normalize_text(text))
    return Segment(
        (message,),
        kind=kind,
        origin="import",
        trust=Trust.EXTERNAL,
        created=created,
        source=source,
    )


def text_segments(lines: ImportLines, source: str) -> Iterator[tuple[int, Segment]]:
    """The parts of a text, each with the number of the line at which its block began."""
    rest = ""
    number = 1
    for number, block in lines.texts():
        *whole, rest = _parts(rest + block)
        for text in filter(str.strip, whole):
            yield number, imported_segment(text, kind="document_part", source=source)
    for text in filter(str.strip, _parts(rest)):
        yield number, imported_segment(text, kind="document_part", source=source)


def message_segments(lines: ImportLines, source: str) -> Iterator[tuple[int, Segment]]:
    """The messages of a conversation; a long one is cut into parts.

    Raises:
        InvalidInput: a line is no message, or says more than 1 MiB.
    """
    for number, row in lines.objects():
        role = row.get("role")
        if role not in _ROLES:
            raise lines.fault(
                number, f"`role` must be one of {', '.join(_ROLES)}: got {role!r:.40}."
            )
        text = _content(lines, number, row)
        speaks: Role = "assistant" if role == "assistant" else "user"
        for one, kind in _cut(text):
            yield number, imported_segment(one, role=speaks, kind=kind, source=source)


def check_length(lines: ImportLines, number: int, text: str) -> None:
    """Refuse what is too long for one segment.

    Raises:
        InvalidInput: naming the line.
    """
    nbytes = len(text.encode("utf-8", "surrogatepass"))
    if nbytes > MAX_SEGMENT_BYTES:
        raise lines.fault(
            number, f"it says {nbytes:,} bytes of text; at most {MAX_SEGMENT_BYTES:,} are taken."
        )


def _content(lines: ImportLines, number: int, row: dict[str, Any]) -> str:
    """What a message says, its calls included, as text."""
    content = row.get("content")
    texts: list[str] = []
    if isinstance(content, str):
        texts.append(content)
    elif isinstance(content, list):
        blocks = [block.get("text") if isinstance(block, dict) else block for block in content]
        texts += [block for block in blocks if isinstance(block, str)]
    elif content is not None:
        kind = type(content).__name__
        raise lines.fault(number, f"`content` must be text or a list of blocks: got a {kind}.")
    calls = row.get("tool_calls")
    if isinstance(calls, list):
        texts += [json.dumps(call, ensure_ascii=False) for call in calls]
    text = "\n".join(filter(None, texts))
    check_length(lines, number, text)
    return text


def _cut(text: str) -> Iterator[tuple[str, Kind]]:
    if not text.strip():
        return
    if len(text.encode("utf-8", "surrogatepass")) <= _WHOLE_BYTES:
        yield text, "turn"
        return
    for part in filter(str.strip, _parts(text)):
        yield part, "document_part"


def _parts(text: str) -> list[str]:
    """The text in parts of about 800 bytes, whatever its script; at least one."""
    nbytes = len(text.encode("utf-8", "surrogatepass"))
    return pieces(text, max(1, PART_BYTES * len(text) // max(1, nbytes)))
