"""Where segments came from, as people name it: `tool`, `tool:search`, `import:notes.md`.

Knows what segments say of themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

from agentmem.errors import InvalidInput
from agentmem.segment import Origin, Segment
from agentmem.storage.archive import Archive
from agentmem.storage.rows import StoredSegment

ORIGINS: tuple[Origin, ...] = tuple(one for one in get_args(Origin) if one != "system")
"""What can be asked for; what the application itself wrote is not among it."""
_HASH = re.compile("[0-9a-f]{12,64}")


@dataclass(frozen=True, slots=True)
class OriginFilter:
    """Segments of one origin.

    Args:
        origin: who wrote them.
        detail: one tool's name, or one import by its file's name or the beginning of its hash (12
            digits or more); "" for all of them.
    """

    origin: Origin
    detail: str = ""

    @classmethod
    def parse(cls, text: str) -> OriginFilter:
        """Read an origin as people write it.

        Raises:
            InvalidInput: it is none.
        """
        name, colon, detail = text.partition(":")
        origin = next((one for one in ORIGINS if one == name), None)
        if origin is None or bool(colon) != bool(detail):
            raise InvalidInput(f"{_EXPECTED}: got {text!r:.80}.")
        if detail and origin not in ("tool", "import"):
            raise InvalidInput(f"Only tools and imports have names. {_EXPECTED}: got {text!r:.80}.")
        return cls(origin, detail)

    def matches(self, segment: Segment) -> bool:
        """Whether the segment is one of them."""
        if segment.origin != self.origin:
            return False
        if not self.detail:
            return True
        if self.origin == "tool":
            return self.detail in segment.tools
        digest, _, name = segment.source.partition(" ")
        by_hash = _HASH.fullmatch(self.detail) is not None and digest.startswith(self.detail)
        return by_hash or name == self.detail


_EXPECTED = f"An origin must be one of {', '.join(ORIGINS)}, tool:NAME or import:NAME-or-HASH"


def origin_name(segment: Segment) -> str:
    """Where a segment came from, in the words `OriginFilter.parse` reads."""
    if segment.origin == "tool" and segment.tools:
        return f"tool:{','.join(segment.tools)}"
    if segment.origin == "import" and segment.source:
        return f"import:{segment.source.partition(' ')[2]}"
    return segment.origin


def from_origin(archive: Archive, origin: str) -> Iterator[StoredSegment]:
    """Segments that came from somewhere, of all sessions, by id.

    Raises:
        InvalidInput: it is no origin.
    """
    wanted = OriginFilter.parse(origin)
    return (
        stored
        for page in archive.pages(origin=wanted.origin)
        for stored in page
        if wanted.matches(stored.segment)
    )
