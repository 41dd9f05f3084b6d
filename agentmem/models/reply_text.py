"""From token ids to the text a reader may see, piece by piece.

Half a character is held back until it is whole, half a stop string until it is decided, what the
model thinks until it answers. However the pieces fall, the text is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

_UNFINISHED = "\ufffd"
_MAX_CHARACTER_TOKENS = 4
"""A UTF-8 character has four bytes at most: more tokens without one are not its beginning."""


class Detokenizer:
    """Turns ids into text without ever showing half a character.

    Args:
        decode: ids to text.
        context: ids before the first, so that a leading space is kept.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], context: Sequence[int] = ()) -> None:
        self._decode = decode
        self._shown = list(context)
        self._held: list[int] = []

    def push(self, token_id: int) -> str:
        """The text that has become certain with this id."""
        self._held.append(token_id)
        text = self._text()
        if text.endswith(_UNFINISHED) and len(self._held) < _MAX_CHARACTER_TOKENS:
            return ""
        return self._show(text)

    @property
    def is_holding(self) -> bool:
        """Half a character is held back. At the end of a reply it is dropped."""
        return bool(self._held)

    def _text(self) -> str:
        known = self._decode(self._shown)
        return self._decode(self._shown + self._held)[len(known) :]

    def _show(self, text: str) -> str:
        self._shown, self._held = self._held, []
        return text


class StopStrings:
    """Cuts a text where a stop string is complete, and holds back what may become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.is_stopped = False

    def push(self, text: str) -> str:
        """The text that can no longer belong to a stop string."""
        if self.is_stopped:
            return ""
        self._held += text
        found = [(at + len(stop), at) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            # The one complete first, as if the text had come letter by letter.
            self.is_stopped = True
            shown, self._held = self._held[: min(found)[1]], ""
            return shown
        keep = max((self._overlap(stop) for stop in self._stops), default=0)
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def flush(self) -> str:
        """What was held back and did not become a stop string."""
        shown, self._held = self._held, ""
        return shown

    def _overlap(self, stop: str) -> int:
        """Letters at the end of the held text that begin the stop string."""
        for length in range(min(len(stop) - 1, len(self._held)), 0, -1):
            if self._held.endswith(stop[:length]):
                return length
        return 0


class ThoughtSplitter:
    """Parts what a model thinks from what it answers, by its two marker tokens.

    Args:
        opens, closes: ids of the markers; None where the model has none.
        is_open: the prompt already opened the thought.
    """

    def __init__(self, opens: int | None, closes: int | None, *, is_open: bool = False) -> None:
        self._opens, self._closes = opens, closes
        self._is_open = is_open and closes is not None
        self._follows_thought = False
        self.has_thought = self._is_open

    def is_marker(self, token_id: int) -> bool:
        """Take note of a marker; True if the id is one."""
        if self._opens is None or self._closes is None:
            return False
        if token_id == self._opens:
            self._is_open = self.has_thought = True
        elif token_id == self._closes:
            self._is_open, self._follows_thought = False, True
        else:
            return False
        return True

    def split(self, text: str) -> tuple[str, str]:
        """The text as (thought, answer). Blank lines between the two belong to neither."""
        if self._is_open:
            return text, ""
        if self._follows_thought:
            text = text.lstrip()
            self._follows_thought = not text
        return "", text
