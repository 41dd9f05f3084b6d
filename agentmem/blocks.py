"""Core memory: short texts that are always in the window, and that the model itself may edit.

A block belongs to the user: what is learned in one session holds in the next. Every version is a
segment, made from the one before; the newest that was not forgotten is the current one, and stands
right after the system prompt. An edit is whole or not at all. Who may write what is not known here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace

from agentmem.block import (
    DEFAULT_BLOCKS,
    DEFAULT_MAX_TOKENS,
    USER,
    Block,
    BlockVersion,
    Writer,
    block_segment,
    check_description,
    check_label,
    check_room,
    checked_text,
    is_block,
    text_of,
)
from agentmem.context import Context
from agentmem.errors import InvalidInput, Overtaken
from agentmem.outside import Outside
from agentmem.segment import Segment
from agentmem.storage.archive import Archive
from agentmem.storage.rows import BlockEdit, BlockOperation, BlockRow, SessionRow, WindowEntry
from agentmem.storage.text import normalize_text


class Blocks:
    """The blocks of a user, in the window of one session.

    Args:
        archive: the truth.
        session: edits are filed under it.
        context: its window.
        turn: the number of the turn that is being answered, or was last.
        outside: edits are acts, to be recorded.
    """

    def __init__(
        self,
        archive: Archive,
        session: SessionRow,
        context: Context,
        turn: Callable[[], int],
        outside: Outside,
    ) -> None:
        self._archive = archive
        self._session = session
        self._context = context
        self._turn = turn
        self._outside = outside

    def list(self) -> tuple[Block, ...]:
        """Every block by label: those that were defined, and the three that always are."""
        rows = {row.label: row for row in self._archive.blocks()}
        labels = sorted({*rows, *DEFAULT_BLOCKS})
        return tuple(self._block(label, rows.get(label)) for label in labels)

    def get(self, label: str) -> Block:
        """One block.

        Raises:
            InvalidInput: there is none of this label.
        """
        blocks = {block.label: block for block in self.list()}
        if label not in blocks:
            raise InvalidInput(f"There is no block {label!r:.40}: there are {', '.join(blocks)}.")
        return blocks[label]

    def define(
        self, label: str, *, description: str | None = None, max_tokens: int | None = None
    ) -> None:
        """Make a block, or change what it is for and how long it may be.

        Args:
            label: a letter and up to 31 more, digits, `_` and `-`.
            description: one short line; the model reads it from the next version on.
            max_tokens: of the model's own count, heading included.
        """
        given = {"description": description, "max_tokens": max_tokens}
        with self._outside.act("blocks.define", [label, given]):
            rows = {row.label: row for row in self._archive.blocks()}
            block = self._block(check_label(label), rows.get(label))
            line = block.description if description is None else check_description(description)
            tokens = block.max_tokens if max_tokens is None else max_tokens
            with self._archive.write() as transaction:
                transaction.define_block(label, line, tokens)

    def append(self, label: str, text: str, *, by: Writer = USER) -> Block:
        """Add a line to a block.

        Args:
            label: which; one there is not yet is made.
            text: what to add.
            by: who does it, why, and from what.

        Raises:
            InvalidInput: the text is empty or stands there already, or the block would be too long.
        """
        new = checked_text(text, "text")

        def added(block: Block) -> str:
            if new in block.text:
                raise InvalidInput(f"Block `{label}` says that already: nothing was added.")
            return f"{block.text}\n{new}" if block.text else new

        with self._outside.act("blocks.append", [label, text, {"by": asdict(by)}]):
            return self._edit(label, "append", added, by)

    def replace(self, label: str, old_text: str, new_text: str, *, by: Writer = USER) -> Block:
        """Put another text in the place of one that stands in a block once.

        Args: as of `append`; `new_text` may be empty where something is left.

        Raises:
            InvalidInput: the old text is empty, or does not stand there exactly once; or nothing
                would be left, or the block would be too long.
        """
        old, new = normalize_text(old_text), normalize_text(new_text)
        if not old.strip():
            raise InvalidInput("`old_text` must not be empty: name the words to replace.")

        def replaced(block: Block) -> str:
            times = block.text.count(old)
            if times == 1:
                return checked_text(block.text.replace(old, new), "the block's text")
            says = f"It says: {block.text}" if block.text else "It is empty."
            if times:
                raise InvalidInput(
                    f"`old_text` stands {times} times in block `{label}`: name more of the words "
                    f"around it. {says}"
                )
            raise InvalidInput(f"`old_text` does not stand in block `{label}`. {says}")

        arguments = [label, old_text, new_text, {"by": asdict(by)}]
        with self._outside.act("blocks.replace", arguments):
            return self._edit(label, "replace", replaced, by)

    def rewrite(self, label: str, text: str, *, by: Writer = USER) -> Block:
        """Make a text the whole of a block.

        Args: as of `append`.

        Raises:
            InvalidInput: the text is empty, what the block says already, or too long.
        """
        new = checked_text(text, "text")

        def rewritten(block: Block) -> str:
            if new == block.text:
                raise InvalidInput(f"Block `{label}` says that already: nothing was changed.")
            return new

        with self._outside.act("blocks.rewrite", [label, text, {"by": asdict(by)}]):
            return self._edit(label, "rewrite", rewritten, by)

    def history(self, label: str) -> tuple[BlockVersion, ...]:
        """Every version of a block that was not forgotten, oldest first."""
        self.get(label)
        edits = self._archive.block_edits(label)
        ids = [edit.segment_id for edit in edits if edit.segment_id is not None]
        texts = {s.segment.id: text_of(s.segment) for s in self._archive.segments(ids)}
        return tuple(BlockVersion(edit, texts.get(edit.segment_id or 0, "")) for edit in edits)

    def undo(self, label: str) -> Block:
        """Go back to the version before the current one, by appending it once more.

        Undone again, it goes back further. Before the first version the block is empty.

        Raises:
            InvalidInput: there is nothing to undo, or the version is too long by now.
        """
        versions = {one.edit.version: one for one in self.history(label)}
        current = self.get(label).version
        place = _place(versions, current)
        if not place:
            raise InvalidInput(f"Block `{label}` has no edit to undo.")
        before = _place(versions, max((v for v in versions if v < place), default=0))
        text = versions[before].text if before else ""
        by = Writer(reason=f"Undo of version {place}.")
        with self._outside.act("blocks.undo", [label]):
            return self._edit(label, "undo", lambda _: text, by, restored=before)

    def follow(self) -> None:
        """Let the window hold the current versions, whichever session they were written in."""
        wanted = {row.segment_id for row in self._archive.blocks() if row.segment_id is not None}
        shown = {entry.id for entry in self._context if is_block(entry.segment)}
        self._context.remove(shown - wanted)
        for stored in self._archive.segments(sorted(wanted - shown)):
            self._context.put(stored)

    def _block(self, label: str, row: BlockRow | None) -> Block:
        if row is None:
            return Block(label, DEFAULT_BLOCKS.get(label, ""), DEFAULT_MAX_TOKENS)
        text, tokens = "", 0
        if row.segment_id is not None:
            segment = self._archive.segment(row.segment_id).segment
            text, tokens = text_of(segment), self._context.count(segment)
        return Block(
            label, row.description, row.max_tokens, text, tokens, row.version, row.segment_id
        )

    def _edit(
        self,
        label: str,
        operation: BlockOperation,
        change: Callable[[Block], str],
        by: Writer,
        *,
        restored: int | None = None,
    ) -> Block:
        """Store what `change` makes of the block; once more where another session came first."""
        while True:
            rows = {row.label: row for row in self._archive.blocks()}
            block = self._block(check_label(label), rows.get(label))
            text = change(block)
            segment = None
            if text:
                parents = [] if block.segment_id is None else [block.segment_id]
                segment = block_segment(block, text, by.maker, [*parents, *by.sources])
                check_room(block, segment, self._context, self._turn())
            edit = BlockEdit(
                label=label,
                version=0,
                operation=operation,
                maker=by.maker,
                reason=by.reason,
                session_id=self._session.id,
                turn=self._turn(),
                restored=restored,
            )
            try:
                self._store(block, edit, segment, is_new=label not in rows)
            except Overtaken:
                self._outside.look_again()
                continue
            self.follow()
            return self.get(label)

    def _store(
        self, block: Block, edit: BlockEdit, segment: Segment | None, *, is_new: bool
    ) -> None:
        """Commit a version with its edit and the window that shows it."""
        session_id = self._session.id
        window = [row for row in self._context.snapshot() if row.segment_id != block.segment_id]
        with self._archive.write() as transaction:
            if is_new:
                transaction.define_block(block.label, block.description, block.max_tokens)
            segment_id = None
            if segment is not None:
                stored = transaction.add_segment(session_id, edit.turn, segment, searchable=False)
                segment_id = stored.id
                window.insert(1, WindowEntry(segment_id, segment_id, "prompt", None))
            if block.segment_id is not None:
                transaction.set_state([block.segment_id], "archived")
            made = replace(edit, segment_id=segment_id)
            if transaction.add_block_edit(made, follows=block.version) is None:
                raise Overtaken(f"Another session edited block `{block.label}` first: try again.")
            transaction.set_window(session_id, window)


def _place(versions: dict[int, BlockVersion], version: int) -> int:
    """The version whose text one has that may itself be an undo; 0 for none at all."""
    if version not in versions:
        return 0
    restored = versions[version].edit.restored
    return version if restored is None else restored
