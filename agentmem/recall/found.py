"""What a search found, in pages that fit: each result is cut, and so is all of them together.

Knows texts and how to count them; not what was searched, or how.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentmem.errors import InvalidInput
from agentmem.storage.terms import analyze
from agentmem.wording.dates import day

_MOST_RESULTS = 5
_RESULT_TOKENS = 32
"""A result gets at least so many, so a small answer holds fewer of them."""
_HEADING_TOKENS = 16
_BEFORE_CHARS = 40
"""Characters shown before the first word of the query."""


@dataclass(frozen=True, slots=True)
class Found:
    """One result.

    Args:
        id: its segment's.
        created: seconds since the epoch.
        text: all that it says.
    """

    id: int
    created: float
    text: str


@dataclass(frozen=True, slots=True)
class Pages:
    """Results in pages, the nearest first.

    Args:
        all_ids: of what was found.
        size: results of a page.
        max_tokens: of a page.
    """

    all_ids: Sequence[int]
    size: int
    max_tokens: int

    def __len__(self) -> int:
        return -(-len(self.all_ids) // self.size)

    def ids(self, page: int) -> Sequence[int]:
        """The ids of one page; none where nothing was found.

        Raises:
            InvalidInput: there is no such page.
        """
        if type(page) is not int or not 1 <= page <= max(1, len(self)):
            raise InvalidInput(f"`page` must lie in 1..{max(1, len(self))}: got {page!r:.40}.")
        return self.all_ids[(page - 1) * self.size : page * self.size]

    def text(
        self, page: int, found: Sequence[Found], query: str, count: Callable[[str], int]
    ) -> str:
        """One page as a model reads it.

        Args:
            page: its number.
            found: its results.
            query: what was looked for: long results are cut around it.
            count: tokens of a text.
        """
        if not found:
            return "Nothing was found."
        lines = [f"Page {page} of {len(self)}, {len(self.all_ids)} found:"]
        each = (self.max_tokens - _HEADING_TOKENS) // self.size
        words = set(analyze(query))
        for one in found:
            lines.append(_cut(f"[{one.id}] {day(one.created)} ", one.text, words, each, count))
        return "\n".join(lines)


def pages_of(ids: Sequence[int], max_tokens: int) -> Pages:
    """The results in pages that take at most so many tokens."""
    size = (max_tokens - _HEADING_TOKENS) // _RESULT_TOKENS
    return Pages(ids, min(max(size, 1), _MOST_RESULTS), max_tokens)


def _cut(
    head: str, text: str, words: set[str], max_tokens: int, count: Callable[[str], int]
) -> str:
    """One line of at most so many tokens, from shortly before the first word of the query on."""
    text = " ".join(text.split())
    if count(head + text) <= max_tokens:
        return head + text
    place = 0
    start = 0
    for word in text.split(" "):
        if words.intersection(analyze(word)):
            start = max(0, place - _BEFORE_CHARS)
            break
        place += len(word) + 1
    head += "…" if start else ""
    # One token is seldom more than eight characters: a first cut that is cheap to count.
    length = min(len(text) - start, 8 * max_tokens)
    while length > 1 and count(f"{head}{text[start : start + length]}…") > max_tokens:
        length = length * 7 // 8
    return f"{head}{text[start : start + length]}…"
