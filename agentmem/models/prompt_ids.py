"""The token ids of a prompt's parts: encoded once, and kept.

A part keeps the ids it first got, so that tokenizing again can never change what a window holds. A
reply keeps the ids the model spoke. Knows nothing of KV.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agentmem.models.base import Part, PartKey
from agentmem.models.engine import Engine
from agentmem.models.template import Block, Template
from agentmem.models.tool_text import plain_message
from agentmem.segment import Message, ToolCall

PROMPT_KEY = "~prompt"
_FRAME_TOKENS = 8
"""What a message's frame takes where the template does not say."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One part of a prompt as ids.

    Args:
        key: of the part; a name starting with `~` for what the template adds.
        token_ids: frame included.
        begins_turn: the user's own words begin here.
        is_reply: it begins with the ids of the last reply.
    """

    key: PartKey
    token_ids: tuple[int, ...]
    begins_turn: bool = False
    is_reply: bool = False


@dataclass(frozen=True, slots=True)
class PendingReply:
    """A reply that has not come back as a part yet.

    Args:
        token_ids: reply header and what the model said, without what ends it.
        text: what its message's content must be.
        tool_calls: calls its message must make.
    """

    token_ids: tuple[int, ...]
    text: str
    tool_calls: tuple[ToolCall, ...] = ()

    def is_spoken_by(self, message: Message) -> bool:
        """Whether the message is this reply."""
        calls = [(call.name, call.arguments) for call in message.tool_calls]
        return (
            message.role == "assistant"
            and message.content == self.text
            and calls == [(call.name, call.arguments) for call in self.tool_calls]
        )


@dataclass(frozen=True, slots=True)
class _Known:
    """The ids of a part that stood in a prompt."""

    block: Block
    token_ids: tuple[int, ...]

    def fits(self, block: Block) -> bool:
        """Whether the block has these ids too."""
        return self.block.variant == block.variant and self.says(block.messages)

    def says(self, messages: tuple[Message, ...]) -> bool:
        """Whether these are the part's messages."""
        return self.block.messages == messages

    @property
    def rendering(self) -> str:
        """What the ids are of, as a short text that tells nothing."""
        return f"{self.block.variant} {_hash(self.block.messages)}"


@dataclass(frozen=True, slots=True)
class _Saved:
    """The ids of a part that stood in a prompt of an earlier process."""

    rendering: str
    token_ids: tuple[int, ...]

    def fits(self, block: Block) -> bool:
        """Whether the block has these ids too."""
        return self.rendering == f"{block.variant} {_hash(block.messages)}"

    def says(self, messages: tuple[Message, ...]) -> bool:
        """Whether these are the part's messages."""
        return self.rendering.rpartition(" ")[2] == _hash(messages)


class PromptIds:
    """The ids of one conversation's parts.

    Attributes:
        pending: the last reply, until a part with its text adopts its ids.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: dict[PartKey, _Known | _Saved] = {}
        self.pending: PendingReply | None = None

    def entries(self, prompt: Sequence[Part]) -> list[Entry]:
        """The prompt as ids, what the template adds included. Changes nothing.

        Raises:
            Unsupported: the model's template refuses the conversation.
        """
        template = self._engine.template
        if template is None:
            return [Entry(PROMPT_KEY, tuple(self._engine.rendering.encode(prompt)))]
        blocks = template.blocks(prompt)
        # An older reply may have said the same: the last one is meant.
        reply = next((block for block in reversed(blocks) if self._is_pending(block)), None)
        entries = []
        for block in blocks:
            token_ids = self._token_ids(template, block)
            if token_ids:
                is_users = bool(block.messages) and block.messages[0].role == "user"
                begins_turn = is_users and not str(block.key).startswith("~")
                entries.append(Entry(block.key, token_ids, begins_turn, block is reply))
        return entries

    def reply_header(self) -> list[int]:
        """Ids that ask the model to answer; none where the rendering already ends with them."""
        template = self._engine.template
        return [] if template is None else template.reply_header_ids()

    def remember(self, prompt: Sequence[Part], entries: Sequence[Entry]) -> None:
        """Keep the ids of these entries for prompts to come."""
        template = self._engine.template
        if template is None:
            return
        blocks = {block.key: block for block in template.blocks(prompt)}
        for entry in entries:
            self._known[entry.key] = _Known(blocks[entry.key], entry.token_ids)

    def renderings(self) -> dict[PartKey, str]:
        """What each part's ids are of: for `take_up` in another process."""
        return {key: known.rendering for key, known in self._known.items()}

    def take_up(self, key: PartKey, token_ids: tuple[int, ...], rendering: str) -> None:
        """Keep ids that an earlier process had for a part; they are used while it says the same."""
        self._known[key] = _Saved(rendering, token_ids)

    def forget(self, keys: Iterable[PartKey]) -> None:
        """Let the ids of these parts go."""
        for key in keys:
            self._known.pop(key, None)

    def keys(self) -> list[PartKey]:
        """Parts whose ids are known."""
        return list(self._known)

    def copy(self) -> PromptIds:
        """Ids of its own that start equal."""
        other = PromptIds(self._engine)
        other._known, other.pending = dict(self._known), self.pending
        return other

    def count(self, part: Part) -> int:
        """Tokens of a part: the true number for one that is known or is the pending reply."""
        template = self._engine.template
        if template is None:
            encoder = self._engine.vocabulary.encoder
            return sum(
                len(encoder.encode("", plain_message(message)[1])) + _FRAME_TOKENS
                for message in part.messages
            )
        if not part.messages:
            return 0
        known = self._known.get(part.key)
        if known is not None and known.says(part.messages):
            return len(known.token_ids)
        is_system = part.messages[0].role == "system"
        block = Block(part.key, part.messages, "start" if is_system else "free")
        return len(self._token_ids(template, block))

    def _token_ids(self, template: Template, block: Block) -> tuple[int, ...]:
        known = self._known.get(block.key)
        if known is not None and known.fits(block):
            return known.token_ids
        if self.pending is not None and self._is_pending(block):
            return (*self.pending.token_ids, *template.encode_after_reply(block))
        return tuple(template.encode(block))

    def _is_known(self, block: Block) -> bool:
        known = self._known.get(block.key)
        return known is not None and known.fits(block)

    def _is_pending(self, block: Block) -> bool:
        return (
            self.pending is not None
            and not self._is_known(block)
            and bool(block.messages)
            and self.pending.is_spoken_by(block.messages[0])
        )


def _hash(messages: Sequence[Message]) -> str:
    texts = json.dumps([message.to_dict() for message in messages], sort_keys=True)
    return hashlib.sha256(texts.encode()).hexdigest()[:32]
