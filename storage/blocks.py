"""Core memory in SQL: a user's blocks, and every edit of them. The newest edit left is the current.

The text of a version is that of its segment, and goes with it: an edit whose segment is forgotten
is no longer there, and what came before it holds again.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Connection, delete, func, insert, select, update

from agentmem.errors import InvalidInput
from agentmem.storage.ids import portions
from agentmem.storage.rows import BlockEdit, BlockRow
from agentmem.storage.schema import AnyRow, AnySelect, block_edits, blocks, segments
from agentmem.storage.segments import FORGOTTEN


def _of(user_id: int, label: str) -> ColumnElement[bool]:
    return (blocks.c.user_id == user_id) & (blocks.c.label == label)


def all_of(connection: Connection, user_id: int) -> list[BlockRow]:
    """A user's blocks by label, each with its current edit."""
    newest = (
        select(block_edits.c.label, func.max(block_edits.c.version).label("version"))
        .where(block_edits.c.user_id == user_id)
        .group_by(block_edits.c.label)
        .subquery()
    )
    query = (
        select(blocks, newest.c.version.label("current"), block_edits.c.segment_id)
        .outerjoin(newest, newest.c.label == blocks.c.label)
        .outerjoin(
            block_edits,
            (block_edits.c.user_id == blocks.c.user_id)
            & (block_edits.c.label == blocks.c.label)
            & (block_edits.c.version == newest.c.version),
        )
        .where(blocks.c.user_id == user_id)
        .order_by(blocks.c.label)
    )
    return [
        BlockRow(row.label, row.description, row.max_tokens, row.current or 0, row.segment_id)
        for row in connection.execute(query)
    ]


def edits_of(connection: Connection, user_id: int, label: str) -> list[BlockEdit]:
    """The edits of a block that are left, oldest first."""
    return [_edit(row) for row in connection.execute(_select_edits(user_id, label))]


def _select_edits(user_id: int, label: str) -> AnySelect:
    mine = (block_edits.c.user_id == user_id, block_edits.c.label == label)
    return select(block_edits).where(*mine).order_by(block_edits.c.version)


def _edit(row: AnyRow) -> BlockEdit:
    return BlockEdit(
        label=row.label,
        version=row.version,
        operation=row.operation,
        maker=row.maker,
        reason=row.reason,
        session_id=row.session_id,
        turn=row.turn,
        created=row.created,
        segment_id=row.segment_id,
        restored=row.restored,
    )


def define(
    connection: Connection, user_id: int, label: str, description: str, max_tokens: int
) -> None:
    """Make a block, or change what it is for and how long it may be."""
    values = {"description": description, "max_tokens": max_tokens}
    changed = connection.execute(update(blocks).where(_of(user_id, label)).values(values))
    if not changed.rowcount:
        made = {"user_id": user_id, "label": label, "version": 0, **values}
        connection.execute(insert(blocks).values(made))


def add_edit(connection: Connection, user_id: int, edit: BlockEdit, *, follows: int) -> int | None:
    """Append an edit with the next version, and return that.

    Args:
        follows: the current version it was made from.

    Returns:
        None where another edit came first: nothing was stored.
    """
    (block,) = [row for row in all_of(connection, user_id) if row.label == edit.label]
    if block.version != follows:
        return None
    of_block = _of(user_id, edit.label)
    connection.execute(update(blocks).where(of_block).values(version=blocks.c.version + 1))
    version = int(connection.execute(select(blocks.c.version).where(of_block)).scalar_one())
    connection.execute(
        insert(block_edits).values(
            user_id=user_id,
            label=edit.label,
            version=version,
            session_id=edit.session_id,
            turn=edit.turn,
            segment_id=edit.segment_id,
            operation=edit.operation,
            restored=edit.restored,
            maker=edit.maker,
            reason=edit.reason,
            created=edit.created,
        )
    )
    return version


def remove_edits(connection: Connection, segment_ids: Sequence[int]) -> None:
    """Delete the edits whose text these segments hold."""
    for portion in portions(segment_ids):
        connection.execute(delete(block_edits).where(block_edits.c.segment_id.in_(portion)))


def remove_all(connection: Connection, user_id: int) -> None:
    """Delete a user's blocks with all their edits."""
    connection.execute(delete(blocks).where(blocks.c.user_id == user_id))


def misfiled(connection: Connection) -> list[tuple[str, int]]:
    """Label and version of edits, of all users, that do not name a core block of their user."""
    query = (
        select(block_edits.c.label, block_edits.c.version)
        .join(blocks, (blocks.c.user_id == block_edits.c.user_id)
              & (blocks.c.label == block_edits.c.label))
        .outerjoin(segments, segments.c.id == block_edits.c.segment_id)
        .where(
            (block_edits.c.version > blocks.c.version)
            | block_edits.c.segment_id.is_not(None)
            & (
                (segments.c.user_id != block_edits.c.user_id)
                | (segments.c.kind != "core_block")
                | (segments.c.state == FORGOTTEN)
            )
        )
        .order_by(block_edits.c.label, block_edits.c.version)
    )  # fmt: skip
    return [(label, version) for label, version in connection.execute(query)]


def check_label(connection: Connection, user_id: int, label: str) -> None:
    """Refuse an edit of a block that was never defined.

    Raises:
        InvalidInput: naming it.
    """
    if connection.execute(select(blocks.c.label).where(_of(user_id, label))).first() is None:
        raise InvalidInput(f"There is no block {label!r}: define it first.")
