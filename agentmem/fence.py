"""A fence around text that may not be believed: data, whatever it says.

    <data-1f0c9a2b>
    ... the text, byte for byte ...
    </data-1f0c9a2b>

The mark is a keyed digest of the text itself and the key never leaves the process: a text cannot
name its own mark, and one that a model gave away opens no other fence. Knows segments and
messages; not where they stand in a prompt.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass, field, replace

from agentmem.segment import Message, Segment, Trust

_MARK_BYTES = 4
_ANY_MARK = re.compile(rf"</?data-[0-9a-f]{{{2 * _MARK_BYTES}}}>")


@dataclass(frozen=True)
class Fence:
    """Fences text with one secret key.

    Args:
        key: at most 64 bytes; a new one where none is given.
    """

    key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    def around(self, text: str) -> str:
        """The text between two marks that do not occur in it."""
        mark = self._mark(text)
        return f"<data-{mark}>\n{text}\n</data-{mark}>"

    @staticmethod
    def strip(text: str) -> str:
        """A text without the marks of any fence, for where it is quoted as data anyway."""
        return _ANY_MARK.sub("", text)

    def messages(self, segment: Segment) -> tuple[Message, ...]:
        """How a segment stands in a prompt: what is below user trust only as fenced data.

        The result of a call stays a tool's message, since a call must have one. All else becomes
        the user's: nobody else's words can be quoted without being taken for their own.
        """
        if segment.trust >= Trust.USER:
            return segment.messages
        called: set[str | None] = set()
        fenced: list[Message] = []
        for message in segment.messages:
            if message.role == "assistant" and message.tool_calls:
                called.update(call.id for call in message.tool_calls)
                fenced.append(message)
            elif message.role == "tool" and message.tool_call_id in called:
                fenced.append(replace(message, content=self._around_words(message.content)))
            else:
                fenced.append(Message("user", self._around_words(message.content)))
        return tuple(fenced)

    def quoted(self, segment: Segment) -> tuple[Message, ...]:
        """A segment as one message that quotes it, for where it stands out of its place."""
        if segment.trust >= Trust.USER:
            return segment.messages
        return (Message("user", self.around(segment.text)),)

    def _around_words(self, text: str) -> str:
        return self.around(text) if text else text

    def _mark(self, text: str) -> str:
        data = text.encode("utf-8", "surrogatepass")
        mark, tried = self._digest(data), 0
        while mark in text:
            tried += 1
            mark = self._digest(data + tried.to_bytes(8, "big"))
        return mark

    def _digest(self, data: bytes) -> str:
        return hashlib.blake2b(data, digest_size=_MARK_BYTES, key=self.key).hexdigest()
