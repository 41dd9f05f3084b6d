"""A chat template taken apart: what stands before and after each role's words.

With the frames known, every part of a prompt is encoded alone, once, and keeps its tokens wherever
it stands. Knows nothing of KV or of models; `template_probe.py` finds the frames.

    lead | before system after | before user after | before assistant after | ... | reply header

Where a template has no place of its own for the system prompt it opens the first user message.
Where roles must alternate, a one-line placeholder stands in for what is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from agentmem.models.base import Part, PartKey
from agentmem.models.text_encoder import TextEncoder
from agentmem.models.tool_text import plain_message
from agentmem.segment import Message

PlainRole = Literal["system", "user", "assistant"]

Turn = Literal["start", "open", "user", "assistant", "free"]
"""Whose words came last: nobody's, a system prompt's in an open user message, ...; `free` where
that does not matter."""

LEAD_KEY = "~lead"
PLACEHOLDER = "..."
JOINER = "\n\n"
"""Between a system prompt and the user's words where they share a message."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What a template puts around the words of one role."""

    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Block:
    """A part, a placeholder or the lead at its place in a prompt.

    Args:
        key: of the part; a name starting with `~` for what the template adds.
        messages: what it says; empty for the lead.
        turn: whose words came before it.
    """

    key: PartKey
    messages: tuple[Message, ...]
    turn: Turn

    @property
    def variant(self) -> str:
        """The same part has other ids where this differs: at the start, in an open user message."""
        if self.turn == "open":
            return "open"
        is_first = self.turn == "start" and bool(self.messages)
        return "first" if is_first and self.messages[0].role == "system" else ""


@dataclass(frozen=True)
class Template:
    """The frames of one tokenizer's chat template.

    Args:
        encoder: turns text into ids.
        lead: what a prompt begins with when its first message is not a system prompt.
        system_first: frame of a system prompt at the very start.
        system: frame of one that stands later; None where only users may speak there.
        user, assistant: frames of these roles.
        reply_header: what asks the model to answer.
        system_opens_user: the first system prompt and the user's words share one message.
        alternates: user and assistant must take turns.
        trimmed: roles whose words the template strips.
        stop_texts: strings that end a reply, for models without an end token.
    """

    encoder: TextEncoder
    lead: str
    system_first: Frame
    system: Frame | None
    user: Frame
    assistant: Frame
    reply_header: str
    system_opens_user: bool = False
    alternates: bool = False
    trimmed: frozenset[str] = frozenset()
    stop_texts: tuple[str, ...] = ()

    @classmethod
    def plain(cls, encoder: TextEncoder) -> Template:
        """For a tokenizer without a chat template: `User:` and `Assistant:` lines."""
        system = Frame("", JOINER)
        return cls(
            encoder,
            lead="",
            system_first=system,
            system=system,
            user=Frame("User: ", "\n"),
            assistant=Frame("Assistant: ", "\n"),
            reply_header="Assistant:",
            stop_texts=("\nUser:", "\nAssistant:"),
        )

    @property
    def keeps_replies(self) -> bool:
        """A reply in the history stands where it was generated, but for a space before it."""
        return self.reply_header.rstrip(" ") == self.assistant.before.rstrip(" ")

    def reply_header_ids(self) -> list[int]:
        """Ids that ask the model to answer."""
        return self.encoder.encode(self.reply_header)

    def reply_footer_ids(self) -> list[int]:
        """Ids that end a reply in the history."""
        return self.encoder.encode(self.assistant.after)

    def stop_ids(self) -> frozenset[int]:
        """Control tokens that end a reply: what closes it, and what would open the next message."""
        stops: set[int] = set()
        for text in (
            self.assistant.after,
            self.user.before,
            self.assistant.before,
            self.system_first.before,
        ):
            first = self.encoder.encode(text)[:1] if text.strip() else []
            stops.update(token_id for token_id in first if token_id in self.encoder.control_ids)
        return frozenset(stops)

    def blocks(self, prompt: Sequence[Part]) -> list[Block]:
        """The prompt with lead and placeholders at their places, ready for a reply."""
        blocks: list[Block] = []
        turn: Turn = "start"
        first = next((part.messages[0] for part in prompt if part.messages), None)
        if self.lead and (first is None or first.role != "system"):
            blocks.append(Block(LEAD_KEY, (), "start"))
            turn = self._after("system", "start") if not self.system_opens_user else "start"
        for part in prompt:
            if not part.messages:
                continue
            blocks += self._bridge_block(turn, _role(part.messages[0]), part.key)
            turn = self._end_of_bridge(turn, _role(part.messages[0]))
            blocks.append(Block(part.key, part.messages, turn))
            turn = [after for _, after in self._walk(part.messages, turn)][-1]
        return blocks + self._bridge_block(turn, "assistant", "reply")

    def encode(self, block: Block) -> list[int]:
        """The token ids of a block."""
        if not block.messages:
            return self.encoder.encode(self.lead)
        token_ids: list[int] = []
        for (before, content, after), _ in self._walk(block.messages, block.turn):
            token_ids += self.encoder.encode(before, content, after)
        return token_ids

    def encode_after_reply(self, block: Block) -> list[int]:
        """Ids of what follows the words of an assistant's first message in a block."""
        steps = [step for step, _ in self._walk(block.messages, block.turn)]
        token_ids = self.encoder.encode(steps[0][2])
        for before, content, after in steps[1:]:
            token_ids += self.encoder.encode(before, content, after)
        return token_ids

    def render(self, prompt: Sequence[Part]) -> str:
        """The whole prompt as text, reply header included."""
        texts = []
        for block in self.blocks(prompt):
            steps = self._walk(block.messages, block.turn)
            texts.append(
                "".join("".join(step) for step, _ in steps) if block.messages else self.lead
            )
        return "".join(texts) + self.reply_header

    def _walk(
        self, messages: Sequence[Message], turn: Turn
    ) -> Iterator[tuple[tuple[str, str, str], Turn]]:
        """Frame each message, placeholders between them included; yields the turn after each."""
        for message in messages:
            role = _role(message)
            bridge = self._bridge(turn, role)
            if bridge is not None:
                frame, turn = self._framed(bridge, turn)
                yield frame, turn
            frame, turn = self._framed(message, turn)
            yield frame, turn

    def _framed(self, message: Message, turn: Turn) -> tuple[tuple[str, str, str], Turn]:
        role, content = plain_message(message)
        if role in self.trimmed:
            content = content.strip()
        after = self._after(_role(message), turn)
        if role == "system" and turn == "start":
            return (self.system_first.before, content, self.system_first.after), after
        if role == "system" and turn == "open":
            return ("", content, JOINER), after
        if role == "system" and self.system is not None:
            return (self.system.before, content, self.system.after), after
        if role == "assistant":
            return (self.assistant.before, content, self.assistant.after), after
        return ("" if turn == "open" else self.user.before, content, self.user.after), after

    def _after(self, role: PlainRole, turn: Turn) -> Turn:
        """Whose words came last once `role` has spoken."""
        if role == "system" and self.system_opens_user and turn in ("start", "open"):
            return "open"
        if not self.alternates:
            return "free"
        if role == "system" and self.system is not None:
            return turn if turn in ("user", "assistant") else "assistant"
        return "assistant" if role == "assistant" else "user"

    def _bridge(self, turn: Turn, role: PlainRole) -> Message | None:
        """The placeholder that must stand before `role` may speak."""
        if turn == "open":
            # The user's message is open: close it without a word.
            return Message("user", "") if role == "assistant" else None
        if not self.alternates:
            return None
        speaks_as_user = role == "user" or (
            role == "system" and self.system is None and turn != "start"
        )
        if speaks_as_user and turn == "user":
            return Message("assistant", PLACEHOLDER)
        if role == "assistant" and turn in ("assistant", "start"):
            return Message("user", PLACEHOLDER)
        return None

    def _end_of_bridge(self, turn: Turn, role: PlainRole) -> Turn:
        bridge = self._bridge(turn, role)
        return turn if bridge is None else self._after(_role(bridge), turn)

    def _bridge_block(self, turn: Turn, role: PlainRole, before: PartKey) -> list[Block]:
        bridge = self._bridge(turn, role)
        return [] if bridge is None else [Block(f"~gap:{before}", (bridge,), turn)]


def _role(message: Message) -> PlainRole:
    return "user" if message.role == "tool" else message.role
