"""Restoring a trusted export: core memory with its history, facts with intervals and sources."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentmem import Archive, Fact, ScriptedModel, Store
from agentmem.block import BlockVersion
from agentmem.cli.export import write_file
from agentmem.errors import InvalidInput
from agentmem.importing.file import import_file
from agentmem.importing.restoring import Restoring
from agentmem.memory import Memory
from agentmem.segment import Message, Segment
from agentmem.storage.rows import Source
from tests.agents import make_agent
from tests.cli_run import run_cli


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of two sessions: a value that changed, blocks that both edited."""
    folder = tmp_path_factory.mktemp("exported")
    with make_agent(folder, session="work", budget=900) as agent:
        agent.chat("My locker code is 58291.")
        agent.memory.blocks.append("human", "Has a locker at work.")
    with make_agent(folder, budget=900) as agent:
        agent.chat("Scratch that, my locker code is 77310 now.")
        agent.chat("My sister plays the cello.")
        memory, blocks = agent.memory, agent.memory.blocks
        with memory.archive.write() as transaction:
            segment_id = agent.turn_segments(2)[0]
            said = memory.segment(segment_id).segment.text
            transaction.add_statement(Source("sister", "the cello", said, segment_id, "a-model"))
            transaction.mark_read(segment_id, "a-model")
        blocks.append("human", "Wears size 43.")
        blocks.append("human", "Forgets this line.")
        third = blocks.get("human").segment_id
        blocks.undo("human")
        assert third is not None
        memory.forget(third)
        blocks.define("diet", description="what is eaten", max_tokens=60)
        blocks.append("diet", "Eats apples.")
        blocks.define("empty", description="nothing yet", max_tokens=20)
    with make_agent(folder, session="work", budget=900) as agent:
        agent.memory.blocks.append("diet", "Drinks tea.")
        write_file(agent.memory.archive, folder / "export.jsonl", force=True)
    return folder / "export.jsonl"


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Archive]:
    (tmp_path / "new").mkdir()
    with Store.open(tmp_path / "new" / "me.db") as store:
        yield store.for_user("default")


def told(archive: Archive, facts: list[Fact] | None = None) -> list[tuple[object, ...]]:
    """Facts without ids: what was said, by whom it was read, and from when to when it held."""
    return sorted(
        (
            fact.subject,
            str(fact.value),
            str(fact.valid_from),
            str(fact.valid_to),
            [
                (archive.segment(one.segment_id).segment.text, one.said_at, one.text, one.ended,
                 one.written_by, one.ordinal, int(one.trust))
                for one in fact.sources
            ],
        )
        for fact in (archive.facts() if facts is None else facts)
    )  # fmt: skip


def history(memory: Memory, label: str) -> list[tuple[object, ...]]:
    """Every version of a block, with the sessions of the edit and of its text."""
    names = {row.id: row.name for row in memory.archive.sessions()}

    def plain(one: BlockVersion) -> tuple[object, ...]:
        edit = one.edit
        assert edit.segment_id is not None
        said_in = names[memory.segment(edit.segment_id).session_id]
        return (edit.version, edit.operation, edit.maker, edit.reason, edit.turn, edit.created,
                edit.restored, one.text, names[edit.session_id], said_in)  # fmt: skip

    return [plain(one) for one in memory.blocks.history(label)]


def test_facts_come_back_with_their_intervals_and_sources(archive: Archive, export: Path) -> None:
    imported = import_file(archive, export, trusted=True)
    with Store.open(export.parent / "me.db") as store:
        original = store.for_user("default")
        facts = original.facts()
        assert told(archive) == told(original)
        assert imported.facts == len(facts) >= 3
    locker = {fact.value: fact for fact in archive.facts()}
    assert locker["58291"].valid_to == locker["77310"].valid_from is not None
    assert locker["77310"].valid_to is None
    assert any(fact.written_by == "a-model" for fact in archive.facts())


def test_blocks_come_back_with_their_history(
    archive: Archive, tmp_path: Path, export: Path
) -> None:
    imported = import_file(archive, export, trusted=True)
    assert imported.blocks == ("diet", "empty", "human") and imported.blocks_left == ()
    with make_agent(export.parent, budget=900) as old, make_agent(tmp_path / "new") as new:
        for label in ("human", "diet", "empty", "persona"):
            mine, theirs = (agent.memory.blocks.get(label) for agent in (new, old))
            assert (mine.description, mine.max_tokens, mine.text, mine.version) == (
                theirs.description, theirs.max_tokens, theirs.text, theirs.version,
            )  # fmt: skip
            assert history(new.memory, label) == history(old.memory, label)
        new.chat("Hello.")
        assert isinstance(new.model, ScriptedModel)
        core = [message.content for message in new.model.history[0].messages[1:3]]
        assert core[0].startswith("Core memory, diet") or core[1].startswith("Core memory, diet")
        assert any("Wears size 43." in text for text in core)
        assert new.memory.blocks.undo("human").text == "Has a locker at work."


def test_the_restored_store_has_no_fault(archive: Archive, tmp_path: Path, export: Path) -> None:
    import_file(archive, export, trusted=True)
    with Store.open(tmp_path / "new" / "me.db") as store:
        # What the machine's own SQLite is like is nobody's fault here.
        faults = [one for one in store.check() if one.status != "ok" and one.name != "sqlite"]
        assert faults == []


def test_what_was_read_is_not_read_again(archive: Archive, tmp_path: Path, export: Path) -> None:
    import_file(archive, export, trusted=True)
    before = told(archive)
    with make_agent(tmp_path / "new", session="default", budget=900) as agent:
        agent.chat("Hello.")
        agent.chat("Good night.")
    assert told(archive) == before


def test_a_newer_statement_closes_a_restored_fact(
    archive: Archive, tmp_path: Path, export: Path
) -> None:
    import_file(archive, export, trusted=True)
    with make_agent(tmp_path / "new", budget=900) as agent:
        agent.chat("My locker code is 10101 now.")
        held = [fact.value for fact in agent.memory.facts() if fact.valid_to is None]
        assert "10101" in held and "77310" not in held


def test_a_block_that_is_there_stays_and_is_reported(
    archive: Archive, tmp_path: Path, export: Path
) -> None:
    with make_agent(tmp_path / "new", session="own") as agent:
        agent.memory.blocks.append("human", "Is somebody else.")
    imported = import_file(archive, export, trusted=True)
    assert imported.blocks == ("diet", "empty") and imported.blocks_left == ("human",)
    with make_agent(tmp_path / "new", session="own") as agent:
        assert agent.memory.blocks.get("human").text == "Is somebody else."
        assert len(agent.memory.blocks.history("human")) == 1


@pytest.mark.parametrize("how", ["not trusted", "another hash"])
def test_of_a_file_that_is_not_trusted_no_block_and_no_fact_is_restored(
    archive: Archive, tmp_path: Path, export: Path, how: str
) -> None:
    file = tmp_path / "in.jsonl"
    text = export.read_text("utf-8")
    file.write_text(text.replace("Eats apples", "Eats apricots") if how != "not trusted" else text)
    imported = import_file(archive, file, trusted=how != "not trusted")
    assert not imported.trusted and (imported.blocks, imported.facts) == ((), 0)
    assert archive.blocks() == [] and archive.facts() == []


def test_the_same_export_beside_itself_makes_no_fact_twice(tmp_path: Path, export: Path) -> None:
    with Store.open(tmp_path / "own.db") as store:
        archive = store.for_user("default")
        import_file(archive, export, trusted=True)
        again = tmp_path / "again.jsonl"
        first, *rest = export.read_bytes().splitlines(keepends=True)
        body = b"".join([*rest, b"\n"])
        manifest = json.loads(first) | {"sha256": hashlib.sha256(body).hexdigest()}
        again.write_bytes(json.dumps(manifest).encode() + b"\n" + body)
        before = archive.facts()
        imported = import_file(archive, again, trusted=True)
        after = archive.facts()
        assert imported.trusted and imported.blocks_left == ("diet", "empty", "human")
        assert [(one.value, one.valid_from, one.valid_to) for one in after] == [
            (one.value, one.valid_from, one.valid_to) for one in before
        ]
        assert [len(one.sources) for one in after] == [2 * len(one.sources) for one in before]


def test_forgetting_reaches_what_was_restored(
    archive: Archive, tmp_path: Path, export: Path
) -> None:
    import_file(archive, export, trusted=True)
    with make_agent(tmp_path / "new", session="other", budget=900) as agent:
        memory = agent.memory
        said = next(fact for fact in memory.facts() if fact.value == "58291").segment_ids[0]
        block = memory.blocks.get("diet").segment_id
        assert block is not None
        memory.forget(said)
        memory.forget(block)
        assert "58291" not in {fact.value for fact in memory.facts()}
        assert memory.blocks.get("diet").text == "Eats apples."


def test_an_import_that_breaks_off_leaves_no_block_and_is_begun_again(
    archive: Archive, export: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Restoring.put_blocks

    def breaks(self: Restoring, *arguments: Any) -> None:
        whole(self, *arguments)
        raise OSError("no space left")

    monkeypatch.setattr(Restoring, "put_blocks", breaks)
    with pytest.raises(OSError, match="no space"):
        import_file(archive, export, trusted=True)
    assert archive.blocks() == [] and archive.facts() == [] and archive.sessions() == []
    monkeypatch.undo()
    assert import_file(archive, export, trusted=True).blocks == ("diet", "empty", "human")


def test_facts_of_an_export_without_sources_are_read_from_the_text_again(
    archive: Archive, tmp_path: Path, export: Path
) -> None:
    file = edited(export, tmp_path, "fact", lambda row: row.pop("sources"))
    assert import_file(archive, file, trusted=True).facts == 0
    assert archive.facts() == []


def edited(
    export: Path, folder: Path, kind: str, change: Callable[[dict[str, Any]], object]
) -> Path:
    """The export with every row of a kind changed (a block's edits with it), its hash too."""
    rows = [json.loads(line) for line in export.read_text("utf-8").splitlines()]
    for row in rows:
        if row["type"].startswith(kind):
            change(row)
    body = "".join(json.dumps(row) + "\n" for row in rows[1:]).encode()
    rows[0]["sha256"] = hashlib.sha256(body).hexdigest()
    file = folder / "edited.jsonl"
    file.write_bytes(json.dumps(rows[0]).encode() + b"\n" + body)
    return file


FAULTS: list[tuple[str, dict[str, Any], str]] = [
    ("block", {"label": "Human!"}, "label must be a small letter"),
    ("block", {"label": "same"}, "`label` must be new"),
    ("block", {"description": "two\nlines"}, "must be one line"),
    ("block", {"max_tokens": 0}, "`max_tokens` positive"),
    ("block", {"version": 0}, "`version` must lie in 1..0"),
    ("block_edit", {"label": "persona"}, "must follow its block"),
    ("block_edit", {"version": 1}, "`version` must lie in 2.."),
    ("block_edit", {"operation": "seize"}, "`operation` must be one of append, replace"),
    ("block_edit", {"session": "nowhere"}, "`session` must be one before it"),
    ("block_edit", {"segment": 9999}, "Segment 9999 did not come before it"),
    ("block_edit", {"segment": 2}, "is no version of a block"),
    ("block_edit", {"reason": "nul\0"}, "NUL"),
    ("block_edit", {"created": -1}, "`created` must be seconds"),
    ("fact", {"sources": []}, "`sources` must be a list of objects"),
    ("fact", {"about": "x"}, "`about` must be of type int"),
]
SOURCE_FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"segment": 9999}, "Segment 9999 did not come before it"),
    ({"ended": 1}, "`ended` must be of type bool"),
    ({"value": 7}, "`value` must be of type str"),
    ({"statement": None}, "`statement` must be of type str"),
    ({"segment": 2, "ordinal": 0, "written_by": "me"}, "`ordinal` must be new"),
    ({"subject": "nul\0"}, "NUL"),
]


@pytest.mark.parametrize(("kind", "values", "message"), FAULTS)
def test_a_faulty_row_is_named_and_nothing_is_stored(
    archive: Archive, tmp_path: Path, export: Path, kind: str, values: dict[str, Any], message: str
) -> None:
    file = edited(export, tmp_path, kind, lambda row: row.update(values))
    with pytest.raises(InvalidInput, match=rf"edited.jsonl, line \d+: .*{message}"):
        import_file(archive, file, trusted=True)
    assert archive.sessions() == [] and archive.blocks() == [] and archive.facts() == []


@pytest.mark.parametrize(("values", "message"), SOURCE_FAULTS)
def test_a_faulty_source_is_named_and_nothing_is_stored(
    archive: Archive, tmp_path: Path, export: Path, values: dict[str, Any], message: str
) -> None:
    def change(row: dict[str, Any]) -> None:
        for source in row["sources"]:
            source.update(values)

    with pytest.raises(InvalidInput, match=rf"edited.jsonl, line \d+: .*{message}"):
        import_file(archive, edited(export, tmp_path, "fact", change), trusted=True)
    assert archive.sessions() == [] and archive.facts() == []


def test_the_command_says_what_was_restored_and_what_was_left(tmp_path: Path, export: Path) -> None:
    store = str(tmp_path / "me.db")
    (told,) = run_cli("import", export, "--trusted", "--store", store, "--json").events
    assert told["blocks"] == ["diet", "empty", "human"] and told["facts"] >= 3
    with Store.open(store) as opened:
        archive = opened.for_user("default")
        with archive.write() as transaction:
            session_id = transaction.session("x")
            transaction.add_segment(session_id, 0, Segment((Message("user", "Hi."),)))
        write_file(archive, tmp_path / "own.jsonl", force=True)
    ran = run_cli("import", tmp_path / "own.jsonl", "--trusted", "--store", store, "--json")
    assert "Left as they were: blocks diet, empty, human." in ran.stderr
    (told,) = ran.events
    assert told["blocks"] == [] and told["blocks_left"] == ["diet", "empty", "human"]
