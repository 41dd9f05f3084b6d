"""One block of core memory: what it says, how it stands in the window, and how long it may be.

Knows a window's tokens; nothing of sessions, versions or SQL.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from agentmem.budget import TWO_TURNS_TOKENS
from agentmem.context import Context
from agentmem.errors import InvalidInput
from agentmem.segment import Message, Segment
from agentmem.storage.rows import BlockEdit
from agentmem.storage.text import normalize_text

DEFAULT_BLOCKS = {
    "human": "what is known of the user",
    "instructions": "what to do and how, as the user wants it",
    "persona": "who the assistant is",
}
DEFAULT_MAX_TOKENS = 128
_LABEL = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_MAX_DESCRIPTION_CHARS = 80


@dataclass(frozen=True, slots=True)
class Block:
    """A block as it is now.

    Args:
        label: what it is called.
        description: what it is for.
        max_tokens: what it may take in the window, its heading included.
        text: what it says; "" while it is empty.
        num_tokens: what it takes in the window.
        version: of its current edit; 0 where there is none.
        segment_id: the segment with its text; None while it is empty.
    """

    label: str
    description: str
    max_tokens: int
    text: str = ""
    num_tokens: int = 0
    version: int = 0
    segment_id: int | None = None


@dataclass(frozen=True, slots=True)
class BlockVersion:
    """One version of a block: its edit, and the text that it left."""

    edit: BlockEdit
    text: str


@dataclass(frozen=True, slots=True)
class Writer:
    """Who edits a block.

    Args:
        maker: "user", or a model's name.
        reason: why, in one sentence.
        sources: segments the text was taken from: forgetting one takes the version back.
    """

    maker: str = "user"
    reason: str = "The user asked for it."
    sources: tuple[int, ...] = ()


USER = Writer()


def check_label(label: str) -> str:
    """The label, if it can be one.

    Raises:
        InvalidInput: it cannot.
    """
    if not isinstance(label, str) or not _LABEL.fullmatch(label):
        raise InvalidInput(
            "A block's label must be a small letter and up to 31 more, digits, `_` or `-`: "
            f"got {label!r:.60}."
        )
    return label


def check_description(description: str) -> str:
    """The description, if it is one short line.

    Raises:
        InvalidInput: it is not.
    """
    description = normalize_text(description).strip()
    if len(description) > _MAX_DESCRIPTION_CHARS or "\n" in description:
        raise InvalidInput(
            f"A block's description must be one line of at most {_MAX_DESCRIPTION_CHARS} "
            f"characters: got {description[:100]!r}."
        )
    return description


def block_segment(block: Block, text: str, maker: str, parents: Iterable[int]) -> Segment:
    """A version as it stands in the window: one line that names the block, then its text."""
    about = f" ({block.description})" if block.description else ""
    return Segment(
        (Message("system", f"Core memory, {block.label}{about}:\n{text}"),),
        kind="core_block",
        origin="user" if maker == "user" else "assistant",
        parents=tuple(dict.fromkeys(parents)),
    )


def text_of(segment: Segment) -> str:
    """What the version in a segment says."""
    return segment.messages[0].content.partition("\n")[2]


def is_block(segment: Segment) -> bool:
    """Whether a segment is a version of a block."""
    return segment.kind == "core_block" and not segment.is_system_prompt


def checked_text(text: str, name: str) -> str:
    """The text as a block keeps it.

    Raises:
        InvalidInput: it is no text, or nothing is left of it.
    """
    if not isinstance(text, str):
        raise InvalidInput(f"`{name}` must be a text: got {text!r:.80}.")
    text = normalize_text(text).strip()
    if not text:
        raise InvalidInput(f"`{name}` must not be empty: a block is emptied by undoing its edits.")
    return text


def check_room(block: Block, segment: Segment, context: Context, turn: int) -> None:
    """Refuse a version that is over a limit, or that leaves no room for the conversation.

    Args:
        block: as it is now.
        segment: the version that is to follow.
        context: the window it must fit.
        turn: the newest, whose segments stay.

    Raises:
        InvalidInput: saying by how many tokens it is too long.
    """
    tokens, budget = context.count(segment), context.budget
    if tokens > block.max_tokens:
        raise InvalidInput(
            f"Block `{block.label}` would take {tokens} tokens; at most {block.max_tokens} "
            f"are allowed. Say it in {tokens - block.max_tokens} tokens less, or rewrite the "
            "block without what matters least. Nothing was changed."
        )
    if tokens <= block.num_tokens:
        return
    others = [e for e in context if e.id != block.segment_id]
    together = tokens + sum(e.num_tokens for e in others if is_block(e.segment))
    if together > budget.block_tokens:
        raise InvalidInput(
            f"All blocks together would take {together} tokens; at most {budget.block_tokens} "
            f"of the budget of {budget.max_tokens} are theirs. Shorten one of them first. "
            "Nothing was changed."
        )
    newest = sum(e.num_tokens for e in others if e.stored.turn >= turn and not e.stays)
    staying = context.staying_tokens - block.num_tokens + tokens
    over = staying + max(newest, TWO_TURNS_TOKENS) + budget.reserve - budget.max_tokens
    if over > 0:
        raise InvalidInput(
            f"There is no room for {tokens} tokens of block `{block.label}` beside what must "
            f"stay in the window: {over} too many. Say it shorter. Nothing was changed."
        )
