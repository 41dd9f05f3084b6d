"""The index of facts follows their rows, and a statement changes no more of them than it must."""

from __future__ import annotations

from pathlib import Path

from agentmem.segment import Message, Segment
from agentmem.storage.archive import Store
from agentmem.storage.fact_index import FactIndex
from agentmem.storage.rows import Source


def test_a_statement_changes_only_the_facts_it_bears_on(tmp_path: Path) -> None:
    with Store.open(tmp_path / "me.db") as store:
        archive = store.for_user("ann")
        session_id = archive.session("main").id

        def say(value: str, about: int | None) -> tuple[int, int]:
            with archive.write() as transaction:
                segment = transaction.add_segment(session_id, 1, Segment((Message("user", value),)))
                source = Source("code", value, f"It is {value}.", segment.id, "patterns")
                return segment.id, transaction.add_statement(source, about)

        _, about = say("11", None)
        ids = [say(value, about)[0] for value in ("22", "33", "44", "44")]
        index = FactIndex(archive)
        assert index.facts()[-1].segment_ids == (ids[-2], ids[-1])
        before = archive.last_change()
        new, _ = say("55", about)
        changed = [one.segment_id for one in archive.changes(before) if one.op == "fact"]
        assert changed == [*ids[-2:], new]
        # A fact that loses one of its statements keeps its id and its time, and is another one.
        with archive.write() as transaction:
            transaction.forget(ids[-1])
        assert index.check().status == "ok"
        assert index.facts()[-2].segment_ids == (ids[-2],)
        assert [one.name for one in store.check() if one.status == "fail"] == []
