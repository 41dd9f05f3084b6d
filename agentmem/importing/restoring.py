"""Core memory and facts of a trusted export, put back into a store.

A block whose label is there already is left as it is: two histories cannot be made one. A statement
that the store has word for word, said at the same moment, is about what it is about there: the same
file restored beside itself makes no fact twice, only its evidence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from agentmem.importing.core_memory import BlockRead, EditRead, FactRead
from agentmem.storage.archive import Archive
from agentmem.storage.rows import BlockEdit, BlockRow, Fact, Source
from agentmem.storage.transaction import Transaction

_Said = tuple[str, str, float, bool]


@dataclass
class Restoring:
    """What one import restores.

    Attributes:
        blocks, blocks_left: labels of blocks that were made, and of those that were there.
        num_facts: facts that were read.
    """

    blocks: list[str] = field(default_factory=list)
    blocks_left: list[str] = field(default_factory=list)
    num_facts: int = 0
    _read: list[tuple[BlockRead, list[tuple[BlockEdit, str]]]] = field(default_factory=list)
    _abouts: dict[int, int] = field(default_factory=dict)
    _known: dict[_Said, int] = field(default_factory=dict)

    @classmethod
    def into(cls, archive: Archive) -> Restoring:
        """Into a user's memory, which knows some facts."""
        made = cls()
        for fact in archive.facts():
            made._note(fact)
        return made

    def _note(self, fact: Fact) -> None:
        for source in fact.sources:
            self._known.setdefault(_said(source), fact.about)

    def add_fact(
        self, transaction: Transaction, read: FactRead, new_ids: Mapping[int, int]
    ) -> None:
        """Store a fact's statements, about what they were about together.

        Args:
            new_ids: of segments, by the ids they had.
        """
        self.num_facts += 1
        for source in read.sources:
            about = self._abouts.get(read.about, self._known.get(_said(source)))
            mine = replace(source, segment_id=new_ids[source.segment_id])
            self._abouts[read.about] = transaction.add_statement(mine, about)
            # It was read: nobody needs to read it again.
            transaction.mark_read(mine.segment_id, source.written_by)

    def take(self, read: BlockRead | EditRead) -> None:
        """Keep a block, or an edit of the last one, until all sessions are there."""
        if isinstance(read, BlockRead):
            self._read.append((read, []))
        else:
            self._read[-1][1].append((read.edit, read.session))

    def put_blocks(
        self, transaction: Transaction, new_ids: Mapping[int, int], sessions: Mapping[str, int]
    ) -> None:
        """Make the blocks whose labels are not there yet, with their history.

        Args:
            new_ids: of segments, by the ids they had.
            sessions: ids by the names they had.
        """
        there = transaction.block_labels()
        for block, edits in self._read:
            if block.label in there:
                self.blocks_left.append(block.label)
                continue
            row = BlockRow(block.label, block.description, block.max_tokens, block.version)
            transaction.put_block(row, list(_filed(edits, new_ids, sessions)))
            self.blocks.append(block.label)


def _filed(
    edits: Iterable[tuple[BlockEdit, str]], new_ids: Mapping[int, int], sessions: Mapping[str, int]
) -> Iterable[BlockEdit]:
    for edit, session in edits:
        segment_id = None if edit.segment_id is None else new_ids[edit.segment_id]
        yield replace(edit, segment_id=segment_id, session_id=sessions[session])


def _said(source: Source) -> _Said:
    return source.text, source.value or "", source.said_at, source.ended
