"""A store whose every table holds rows, of two users, and the rows of any store as plain values.

The second user has what the first has, in a script of its own: what is done to one and reaches the
other is seen. It knows nothing of what is done to the store.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agentmem.decision import Decision
from agentmem.segment import Kind, Message, Origin, Role, Segment, ToolCall, Trust
from agentmem.storage.archive import Archive, Store, Transaction, WindowEntry
from agentmem.storage.rows import BlockEdit, Source

NOW = 1_700_000_000.0
USERS = ("ann", "Ünï 王 \u202e🧑🏽‍🚀")
WORD = {USERS[0]: "zanzibar", USERS[1]: "größe"}
"""A word that a user's first message, and all that was made of it, holds."""

Row = tuple[tuple[str, Any], ...]
Rows = dict[str, set[Row]]


@dataclass(frozen=True)
class Filled:
    """Ids of one user's rows.

    In the window of `main` stand four segments of `work`: `guest`, which stands in its own too,
    `lone`, which does not, `parked`, for some turns, and a version of a block.
    """

    user: int
    word: str
    main: int
    work: int
    early: int
    code: int
    answer: int
    tool: int
    summary: int
    name: int
    block: int
    newer_block: int
    passage: int
    imported: int
    gone: int
    guest: int
    lone: int
    parked: int
    doubt: int
    doubted: int


def rows_of(path: Path) -> Rows:
    """All rows of all tables as values, with their columns' names."""
    connection = sqlite3.connect(path)
    names = [
        name
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        if name not in ("alembic_version", "sqlite_stat1")
    ]
    found: Rows = {}
    for name in names:
        cursor = connection.execute(f'SELECT * FROM "{name}"')  # noqa: S608, a table's name
        columns = [column for column, *_ in cursor.description]
        found[name] = {tuple(zip(columns, row, strict=True)) for row in cursor}
    connection.close()
    return found


def fill_store(path: Path) -> list[Filled]:
    """Make a store with rows in every table; what each user has, in the users' order."""
    with Store.open(path, durability="relaxed", clock=lambda: NOW) as store:
        filled = [_fill(store.for_user(name)) for name in USERS]
    connection = sqlite3.connect(path)
    # Left by a process that was killed.
    values = [(one.main, "höst", 2**22 + 1, NOW) for one in filled]
    connection.executemany("INSERT INTO leases VALUES (?, ?, ?, ?)", values)
    connection.commit()
    connection.close()
    return filled


def _said(text: str, kind: Kind = "turn", origin: Origin = "user", *parents: int) -> Segment:
    """What was said, the later the longer its text."""
    role: Role = "assistant" if origin == "assistant" else "user"
    trust = Trust.EXTERNAL if origin == "import" else Trust.USER
    source = "0f0f notes.txt" if origin == "import" else ""
    created = NOW + len(text)
    return Segment((Message(role, text),), kind, origin, trust, created, parents, source=source)


def _fill(archive: Archive) -> Filled:
    word = WORD[archive.user]
    with archive.write() as transaction:
        main, work = transaction.session("main"), transaction.session("wörk")
        early = transaction.session("early")
        user = transaction._user_id
        gone = transaction.add_segment(work, 1, _said("Forget this."))
        transaction.forget(gone.id)
        for session in (main, early):
            transaction.add_recording(session, transaction.counters(main), [["say", "é", None]])
        transaction.set_session_settings(main, {"model": "local", "none": None, "text": "é"})
        turn = transaction.add_turn(main, "a key", f"My code is {word}.")
        code = transaction.add_segment(main, 1, _said(f"My code is {word}."))
        answer = transaction.add_segment(main, 1, _said(f"Noted {word}.", "turn", "assistant"))
        transaction.answer_turn(turn.id, {"text": f"Noted {word}.", "tokens": 5, "nil": None})
        transaction.add_turn(main, None, "What is my name?\n\x01")
        name = transaction.add_segment(main, 2, _said("My name is Ann, 日本語, e\u0301."))
        call = ToolCall("call-1", "weather", '{"city": "Oslo"}')
        messages = (Message("assistant", "", (call,)), Message("tool", "Rain ☔.", (), "call-1"))
        exchange = Segment(messages, "tool_exchange", "tool", Trust.EXTERNAL)
        tool = transaction.add_segment(main, 2, exchange)
        summary = transaction.add_segment(
            work, 1, _said(f"A code, {word}.", "summary", "summary", code.id, answer.id)
        )
        before = transaction.counters(work)
        transaction.add_recording(work, before, [["say", f"{word} — é", None]])
        transaction.add_turn(work, "1", "Work is done. What next?")
        guest = transaction.add_segment(work, 1, _said("Work is done."))
        imported = transaction.add_segment(
            work, 0, _said("A page.", "document_part", "import"), state="archived"
        )
        passage = transaction.add_segment(work, 1, _said("Pears cost 4.", "passage"))
        transaction.tag_passage(passage.id, ["fruit", "früchte"])
        transaction.set_state([code.id, answer.id], "summarized")
        transaction.set_pinned([name.id], True)
        transaction.set_kept_until([name.id], 9)
        transaction.add_recalls([code.id], 2)
        blocks = _add_blocks(transaction, main, work)
        told = transaction.add_turn(main, None, "Yes? No.")
        doubt = transaction.add_segment(main, 3, _said("Well: Yes? No. Or yes."))
        doubted = transaction.add_segment(main, 3, _said("Yes?", "turn", "assistant"))
        transaction.answer_turn(told.id, {"text": "So: Yes? You said: Well: Yes? No. Or yes."})
        lone = transaction.add_segment(work, 1, _said("Nobody else."))
        parked = transaction.add_segment(work, 1, _said("Parked here."), state="parked")
        ids = (code.id, answer.id, name.id, tool.id, summary.id)
        _add_decisions(transaction, main, work, early, ids, word)
        _add_facts(transaction, code.id, name.id, guest.id, word)
        for space, dim in (("hash:4", 4), ("mini", 2)):
            for at, one in enumerate((code, name, summary)):
                vector = np.eye(4, dtype=np.float32)[at][:dim] + np.float32(0.125)
                transaction.add_embedding(space, one.id, vector)
        transaction.set_window(
            main, [WindowEntry(name.id, 3), WindowEntry(code.id, 1, "kv", 9),
                   WindowEntry(guest.id, 7), WindowEntry(lone.id, 8), WindowEntry(blocks[1], 0),
                   WindowEntry(parked.id, 9, "text", 9)]
        )  # fmt: skip
        transaction.set_window(work, [WindowEntry(summary.id, 1), WindowEntry(guest.id, 7)])
        before = transaction.counters(main)
        transaction.add_recording(main, before, [["say", f"{word} — é", None]])
    return Filled(
        user, word, main, work, early, code.id, answer.id, tool.id, summary.id, name.id, *blocks,
        passage.id, imported.id, gone.id, guest.id, lone.id, parked.id, doubt.id, doubted.id,
    )  # fmt: skip


def _add_blocks(transaction: Transaction, main: int, work: int) -> tuple[int, int]:
    transaction.define_block("human", "who — it is", 100)
    transaction.define_block("empty", "", 10)
    made = []
    for version, text in enumerate(("Name: Änn", "Name: Ann, likes tea")):
        segment = transaction.add_segment(
            main if version == 0 else work, 2, _said(text, "core_block"), searchable=False
        )
        edit = BlockEdit(
            "human", 0, "rewrite", "user", f"why {version}?", main if version == 0 else work, 2,
            segment_id=segment.id,
        )  # fmt: skip
        assert transaction.add_block_edit(edit, follows=version) == version + 1
        made.append(segment.id)
    edit = BlockEdit("empty", 0, "undo", "m", "", main, 2, restored=0)
    assert transaction.add_block_edit(edit, follows=0) == 1
    transaction.set_state(made[:1], "archived")
    return made[0], made[1]


def _add_decisions(
    transaction: Transaction, main: int, work: int, early: int, ids: tuple[int, ...], word: str
) -> None:
    code, answer, name, tool, summary = ids
    made = []
    for session, turn, about, effect in (
        (main, 1, (code,), {"tokens_before": 9, "why": word}),
        (work, 1, (code, answer), {"summary_id": summary}),
        (main, 2, (name, answer), {}),
        (work, 3, (name, code), {}),
        (early, 1, (answer,), {}),
        (early, 2, (tool,), {}),
    ):
        decision = Decision(
            "drop",
            about,
            "controller",
            f"It says {word}.",
            "scripted",
            {about[0]: {"num_tokens": 5, "attention": None, "why": word}},
            f"keep {word}",
            {"id": "1", "name": "drop", "arguments": word},
        )
        made.append(
            transaction.add_decision(
                session, turn, decision,
                window_before=[WindowEntry(about[0], 1), WindowEntry(about[-1], 2, "text", 7)],
                window_after=[WindowEntry(about[-1], 2)],
                states_before={about[0]: ("live", True)},
                effect=effect,
                cost={"raw": [f"Let {word} go."], "calls": 1},
            )
        )  # fmt: skip
    transaction.mark_undone(made[0], made[2])


def _add_facts(transaction: Transaction, code: int, name: int, guest: int, word: str) -> None:
    abouts: list[int] = []
    for segment, value, ended, at, about in (
        (code, word, False, 1.0, None),
        (name, word.upper(), False, 2.0, 0),
        (guest, "other", True, 3.0, 0),
        (name, None, False, 2.0, None),
    ):
        source = Source(
            "My code", value, f"It is {value}.", segment, "patterns", len(abouts), ended, 1, at
        )
        known = None if about is None else abouts[about]
        abouts.append(transaction.add_statement(source, known))
    for segment in (code, name):
        transaction.mark_read(segment, "patterns")
