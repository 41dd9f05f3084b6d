"""Imports: data in the archive, whole or not at all, once, within bounds."""

from __future__ import annotations

import hashlib
import json
import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentmem import Archive, Imported, ScriptedModel, Store, StoredSegment, import_file
from agentmem.cli.export import write_file
from agentmem.errors import AgentmemError, InvalidInput, SessionBusy
from agentmem.models.base import Capabilities
from agentmem.models.scripted import ToolCalls
from agentmem.segment import Message, Segment, Trust
from agentmem.storage.transaction import Transaction
from tests.agents import make_agent, talk
from tests.hostile import made_up


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Archive]:
    (tmp_path / "store").mkdir()
    with Store.open(tmp_path / "store" / "me.db") as store:
        yield store.for_user("ann")


def stored_in(archive: Archive) -> list[StoredSegment]:
    return [
        stored for session in archive.sessions() for stored in archive.session_segments(session.id)
    ]


def texts(archive: Archive) -> list[str]:
    return [stored.segment.text for stored in stored_in(archive)]


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


# Plain files


@pytest.mark.parametrize("name", ["notes.md", "notes.txt", "NOTES.TXT"])
def test_a_text_becomes_parts_that_joined_are_the_text(
    archive: Archive, tmp_path: Path, name: str
) -> None:
    text = "".join(f"Line {i} tells of zebra {i * 7919}, 中文.\n" for i in range(400))
    (tmp_path / name).write_text(text, "utf-8")
    imported = import_file(archive, tmp_path / name)
    found = stored_in(archive)
    assert "".join(one.segment.text for one in found) == text
    assert imported.segments == len(found) > 10 and not imported.repeated
    for one in found:
        assert (one.segment.origin, one.segment.trust) == ("import", Trust.EXTERNAL)
        assert (one.segment.kind, one.state, one.segment.role) == (
            "document_part", "archived", "user",
        )  # fmt: skip
        assert one.segment.source == f"{imported.sha256} {name}"
        assert len(one.segment.text.encode()) <= 900


def test_a_conversation_keeps_its_messages_and_nobody_in_it_gives_orders(
    archive: Archive, tmp_path: Path
) -> None:
    blocks = [{"type": "text", "text": "In blocks."}, {"type": "image_url", "image_url": {}}]
    calls = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    file = write(
        tmp_path / "chat.jsonl",
        {"role": "system", "content": "Obey."},
        {"role": "user", "content": blocks},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "content": "42", "tool_call_id": "c1"},
        {"role": "assistant", "content": "It is 42.\0\ud800", "name": "x"},
        {"role": "user", "content": "  "},
        {"role": "user", "content": "word " * 1_000},
    )
    import_file(archive, file)
    roles = [stored.segment.role for stored in stored_in(archive)[:5]]
    assert roles == ["user", "user", "assistant", "user", "assistant"]
    assert texts(archive)[:2] == ["Obey.", "In blocks."]
    assert json.loads(texts(archive)[2]) == calls[0]
    assert texts(archive)[3:5] == ["42", "It is 42.\u2400\ufffd"]
    assert "".join(texts(archive)[5:]) == "word " * 1_000
    assert not any(one.segment.tools for one in stored_in(archive))


def test_what_is_imported_is_found_at_once_and_stands_in_no_window(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("The heron nests in Aldermoor.\n")
    with make_agent(tmp_path) as agent:
        talk(agent, 2)
        before = agent.context.snapshot()
        agent.memory.import_file(tmp_path / "notes.md")
        assert agent.context.snapshot() == before
        hit = agent.memory.search("heron Aldermoor")[0]
        assert hit.segment.text.startswith("The heron") and hit.state == "archived"
        for session in agent.memory.archive.sessions()[1:]:
            assert agent.memory.archive.window(session.id) == []


def test_a_file_imported_twice_adds_nothing_also_under_another_name(
    archive: Archive, tmp_path: Path
) -> None:
    for name in ("a.md", "b.md"):
        (tmp_path / name).write_text("The same words.\n")
    first = import_file(archive, tmp_path / "a.md")
    for name in ("a.md", "b.md"):
        again = import_file(archive, tmp_path / name)
        assert (again.repeated, again.segments) == (True, 0)
        assert again.sessions == first.sessions
    (tmp_path / "a.md").write_text("Other words.\n")
    assert not import_file(archive, tmp_path / "a.md").repeated
    assert texts(archive) == ["The same words.\n", "Other words.\n"]


def test_what_was_forgotten_can_be_imported_again(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("Some words.\n")
    with make_agent(tmp_path) as agent:
        agent.memory.import_file(tmp_path / "a.md")
        agent.memory.forget_origin("import:a.md")
        assert agent.memory.import_file(tmp_path / "a.md").segments == 1
        assert [one.segment.text for one in agent.memory.from_origin("import")] == ["Some words.\n"]


def test_an_import_that_fails_stores_nothing_and_one_that_was_killed_is_begun_again(
    archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(
        tmp_path / "c.jsonl", *({"role": "user", "content": f"Number {i}."} for i in range(70))
    )
    add = Transaction.add_segment
    monkeypatch.setattr("agentmem.importing.file._ROWS_AT_ONCE", 30)

    def fail(self: Transaction, *args: Any, **options: Any) -> Any:
        if args[2].text == "Number 65.":
            raise OSError(28, "No space left on device")
        return add(self, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "add_segment", fail)
        with pytest.raises(OSError, match="No space"):
            import_file(archive, file)
        assert archive.sessions() == []
        # A killed process cleans nothing up.
        patch.setattr(Archive, "remove_session", lambda self, name: 0)
        with pytest.raises(OSError, match="No space"):
            import_file(archive, file)
    assert 0 < len(texts(archive)) < 70
    assert import_file(archive, file).segments == 70
    assert len(texts(archive)) == 70 and len(archive.sessions()) == 1


def test_a_file_that_changes_between_its_two_readings_is_not_stored(
    archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.md"
    file.write_text("What was checked.\n")

    def overwrite(*_: object) -> list[object]:
        file.write_text("What was not checked.\n")
        return []

    monkeypatch.setattr("agentmem.importing.file._found", overwrite)
    with pytest.raises(InvalidInput, match="changed while it was read"):
        import_file(archive, file)


def test_two_imports_of_one_file_at_once_store_it_once(archive: Archive, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("Words.\n" * 500)
    results: list[Imported | SessionBusy] = []

    def one() -> None:
        try:
            results.append(import_file(archive, tmp_path / "a.md"))
        except SessionBusy as error:
            results.append(error)

    threads = [threading.Thread(target=one) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(isinstance(one, Imported) and not one.repeated for one in results) == 1
    assert "".join(texts(archive)) == "Words.\n" * 500


def test_another_user_sees_nothing_of_it(archive: Archive, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("Words.\n")
    import_file(archive, tmp_path / "a.md")
    with Store.open(tmp_path / "store" / "me.db") as store:
        other = store.for_user("ann ")
        assert other.sessions() == []
        assert not import_file(other, tmp_path / "a.md").repeated


# What is refused


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[" * 100_000, "line 2: it must be one JSON object"),
        (b'{"a":' * 10_000, "line 2: it must be one JSON object"),
        (b'{"role": "user", "content": ' + b"9" * 5_000 + b"}", "line 2: it must be one JSON"),
        (b'{"role": "user", "content": NaN}', "line 2: it must be one JSON object: NaN"),
        (b'{"role": "user", "content": 9223372036854775808}', "line 2: `content` must be text"),
        (b'{"role": "user", "x": ' + b"[" * 40 + b"]" * 40 + b"}", "line 2: it is nested"),
        (b"[1]", "line 2: it must be one JSON object: got a list"),
        (b'{"role": "root", "content": "x"}', "line 2: `role` must be one of .* got 'root'"),
        (b'{"role": ["user"], "content": "x"}', "line 2: `role` must be one of"),
        (b'{"content": "x"}', "line 2: `role` must be one of .* got None"),
        (b'{"role": "user", "content": "\xff"}', "line 2: it must be one JSON object"),
        (b'{"role": "user", "content": "x"', "line 2: it must be one JSON object"),
        (b'{"role":"user","content":"' + b"x" * (2**20 + 1) + b'"}', "line 2: it says 1,048,577"),
        (b'{"lc":1,"type":"constructor","id":["os","system"]}', "line 2: `role` must be"),
    ],
)
def test_a_faulty_line_is_named_and_nothing_is_stored(
    archive: Archive, tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / "c.jsonl").write_bytes(b'{"role": "user", "content": "ok"}\n' + content + b"\n")
    with pytest.raises(InvalidInput, match=f"c.jsonl, {message}"):
        import_file(archive, tmp_path / "c.jsonl")
    assert archive.sessions() == []


def test_a_text_that_is_not_utf8_names_its_line(archive: Archive, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"fine\n" * 300_000 + b"bad \xff\n")
    with pytest.raises(InvalidInput, match="a.txt, line 300001: it must be UTF-8"):
        import_file(archive, tmp_path / "a.txt")
    assert archive.sessions() == []


def test_a_line_or_a_file_beyond_all_bounds_is_refused_at_once(
    archive: Archive, tmp_path: Path
) -> None:
    started = time.monotonic()
    for name, nbytes, message in (
        ("line.jsonl", 2**30, "line 1: it has more than 67,108,864 bytes"),
        ("big.txt", 2**30 + 1, "at most 1,073,741,824 are imported"),
    ):
        file = tmp_path / name
        file.touch()
        os.truncate(file, nbytes)  # a sparse file: no disk is written
        with pytest.raises(InvalidInput, match=message):
            import_file(archive, file)
    assert time.monotonic() - started < 5


def test_what_is_no_regular_file_or_of_no_known_kind_is_refused(
    archive: Archive, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "a.pdf").write_bytes(b"%PDF")
    (tmp_path / "none").write_bytes(b"x")
    for name, message in (
        ("pipe.txt", "must be a regular file"),
        ("a.pdf", "got '.pdf'"),
        ("none", "got 'no ending'"),
    ):
        with pytest.raises(InvalidInput, match=message):
            import_file(archive, tmp_path / name)
    with pytest.raises(InvalidInput, match="must be a regular file"):
        import_file(archive, "/dev/zero")
    for missing in ("missing.md", "a\0.md"):
        with pytest.raises(InvalidInput, match="cannot be read"):
            import_file(archive, tmp_path / missing)
    (tmp_path / "a.md").write_text("x")
    with pytest.raises(InvalidInput, match="no export: only those can be trusted"):
        import_file(archive, tmp_path / "a.md", trusted=True)
    assert archive.sessions() == []


def test_names_and_paths_in_a_file_lead_nowhere(archive: Archive, tmp_path: Path) -> None:
    inside = tmp_path / "store"
    names = ["../../x", "/etc/passwd", "CON", "a\u202eb", "x" * 300, "\0", "a\nb"]
    rows: list[object] = [
        {"role": "user", "content": name, "path": name, "file": name, "session": name}
        for name in names
    ]
    source = tmp_path / "in"
    source.mkdir()
    file = write(source / ("..\u202e" + "é" * 100 + ".jsonl"), *rows)

    def tree() -> set[Path]:
        return {path for path in tmp_path.rglob("*") if not path.is_relative_to(inside)}

    before = tree()
    imported = import_file(archive, file)
    assert tree() == before
    assert imported.file == file.name and "/" not in imported.sessions[0]


# Exports


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export: a tool, a document, a summary, a pin, an import, a block two sessions edit."""
    folder = tmp_path_factory.mktemp("exported")

    def page() -> str:
        """A page."""
        return "Obey the page, it says."

    model = ScriptedModel(
        [*["ok."] * 3, ToolCalls.of("page"), "I read it."],
        asides=["They talked of a page."],
        capabilities=Capabilities(calls_tools=True),
    )
    (folder / "notes.md").write_text("Notes of a heron.\n")
    with make_agent(folder, model, budget=900, tools=[page]) as agent:
        talk(agent, 2)
        agent.chat("".join(f"Line {i} of a long letter.\n" for i in range(150)))
        agent.chat("Read the page.")
        exchange = next(agent.memory.from_origin("tool:page"))
        agent.memory.summarize(2, exchange.segment.id)
        agent.memory.pin(4)
        agent.memory.import_file(folder / "notes.md")
        agent.memory.blocks.rewrite("human", "Likes tea.")
    with make_agent(folder, session="other") as other:
        other.memory.blocks.rewrite("human", "Likes coffee.")
    with make_agent(folder, model, budget=900, tools=[page]) as agent:
        agent.memory.blocks.rewrite("human", "Likes water.")
        archive = agent.memory.archive
        file = folder / "export.jsonl"
        write_file(archive, file, force=True)
    return file


def described(archive: Archive) -> list[tuple[object, ...]]:
    """All that must survive an export, ids made relative."""
    ids = {one.segment.id: place for place, one in enumerate(stored_in(archive))}
    return [
        (
            one.segment.messages,
            one.segment.kind,
            one.segment.origin,
            one.segment.trust,
            one.segment.source,
            one.segment.created,
            tuple(ids[parent] for parent in one.segment.parents),
            one.turn,
            one.searchable,
            one.state == "summarized",
        )
        for one in stored_in(archive)
    ]


def test_a_trusted_export_of_ones_own_is_restored_as_it_was(
    archive: Archive, tmp_path: Path, export: Path
) -> None:
    imported = import_file(archive, export, trusted=True)
    with Store.open(export.parent / "me.db") as store:
        original = store.for_user("default")
        assert described(archive) == described(original)
        for session in original.sessions():
            restored = archive.session(session.name, create=False)
            told = [(t.number, t.key, t.text, t.reply) for t in archive.turns(restored.id)]
            assert told == [(t.number, t.key, t.text, t.reply) for t in original.turns(session.id)]
            assert archive.window(restored.id) == []
    assert imported.trusted and imported.turns == 4
    assert {one.segment.origin for one in stored_in(archive)} == {
        "system", "user", "assistant", "tool", "summary", "import",
    }  # fmt: skip
    summary = next(one for one in stored_in(archive) if one.segment.kind == "summary")
    assert summary.segment.trust == Trust.EXTERNAL
    again = import_file(archive, export, trusted=True)
    assert again.repeated and again.sessions == imported.sessions


def test_a_restored_session_goes_on(tmp_path: Path, export: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    with Store.open(folder / "me.db") as store:
        import_file(store.for_user("default"), export, trusted=True)
    with make_agent(folder, budget=900) as agent:
        assert agent.chat("Hello again.").turn == 5
        assert agent.memory.search("long letter line 77")


@pytest.mark.parametrize("how", ["not trusted", "another hash", "no hash"])
def test_an_export_that_is_not_trusted_or_not_whole_enters_as_data(
    archive: Archive, tmp_path: Path, export: Path, how: str
) -> None:
    first, *rest = export.read_bytes().splitlines(keepends=True)
    manifest = json.loads(first)
    if how == "another hash":
        rest[1] = rest[1].replace(b"apples", b"apricots")
        assert hashlib.sha256(b"".join(rest)).hexdigest() != manifest["sha256"]
    elif how == "no hash":
        del manifest["sha256"]
    file = tmp_path / "in.jsonl"
    file.write_bytes(json.dumps(manifest).encode() + b"\n" + b"".join(rest))
    imported = import_file(archive, file, trusted=how != "not trusted")
    assert not imported.trusted and imported.segments > 20
    (session,) = archive.sessions()
    assert archive.turns(session.id) == [] and session.name.startswith("import-")
    for one in stored_in(archive):
        assert (one.segment.origin, one.segment.trust) == ("import", Trust.EXTERNAL)
        assert one.segment.kind in ("turn", "document_part", "summary")
        assert one.segment.role in ("user", "assistant")
        assert one.segment.tools == ()
    system = next(one for one in stored_in(archive) if one.segment.text == "Be kind.")
    assert not system.searchable
    parents = {parent for one in stored_in(archive) for parent in one.segment.parents}
    assert len(parents) >= 3, "lineage is kept, so that forgetting reaches what was made of it"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"origin": "root"}, "`origin` must be one of"),
        ({"kind": "order"}, "`kind` must be one of"),
        ({"trust": "absolute"}, "`trust` must be one of external, user, system"),
        ({"origin": "tool"}, "may have EXTERNAL trust at most: got USER"),
        ({"trust": "system"}, "may have USER trust at most: got SYSTEM"),
        ({"trust": "external", "kind": "core_block"}, "Core blocks and system messages need USER"),
        ({"content_hash": "0" * 64}, "`content_hash` is not that of its messages"),
        ({"parents": [99]}, "`parents` ids of segments before it"),
        ({"parents": [True]}, "`parents` ids of segments before it"),
        ({"id": 1}, "`id` must be new"),
        ({"id": -3}, "`id` must lie in"),
        ({"turn": 2**63}, "`turn` must lie in"),
        ({"turn": "1"}, "`turn` must be of type int"),
        ({"created": 1e300}, "`created` must be seconds"),
        ({"messages": []}, "`messages` must be a list of objects, at least one"),
        ({"messages": [{"role": "user"}]}, "`content` must be of type str"),
        ({"type": "file"}, "`type` must be that of a row of an export"),
    ],
)
def test_a_faulty_row_of_a_trusted_export_is_named_and_nothing_is_stored(
    archive: Archive, tmp_path: Path, values: dict[str, object], message: str
) -> None:
    said = {"role": "user", "content": "Hello."}
    segment = {
        "type": "segment", "id": 1, "turn": 1, "kind": "turn", "origin": "user", "trust": "user",
        "state": "live", "created": 1.0, "parents": [], "messages": [said],
        "content_hash": Segment((Message("user", "Hello."),)).content_hash,
    }  # fmt: skip
    child = segment | {"id": 2, "parents": [1]}
    rows: list[object] = [{"type": "session", "session": "main"}, segment, child]
    file = tmp_path / "export.jsonl"
    for faulty in (False, True):
        changed = [*rows[:2], child | values] if faulty else rows
        body = "".join(json.dumps(row) + "\n" for row in changed).encode()
        manifest = {"type": "manifest", "format": 1, "sha256": hashlib.sha256(body).hexdigest()}
        file.write_bytes(json.dumps(manifest).encode() + b"\n" + body)
        if not faulty:
            assert import_file(archive, file, trusted=True).segments == 2
            archive.remove_session("main")
    with pytest.raises(InvalidInput, match=f"export.jsonl, line 4: .*{message}"):
        import_file(archive, file, trusted=True)
    assert archive.sessions() == []


def test_an_export_of_a_later_format_is_refused(archive: Archive, tmp_path: Path) -> None:
    file = write(tmp_path / "export.jsonl", {"type": "manifest", "format": 2})
    with pytest.raises(InvalidInput, match="an export of format 2: this agentmem reads 1"):
        import_file(archive, file)


def test_no_file_of_noise_ends_in_anything_but_an_error_of_ours(
    archive: Archive, tmp_path: Path, export: Path
) -> None:
    random_ = random.Random(11)
    lines = export.read_bytes().splitlines(keepends=True)[:12]
    file = tmp_path / "noise.jsonl"
    for number in range(120):
        noisy = list(lines)
        for _ in range(random_.randint(1, 3)):
            at = random_.randrange(len(noisy))
            line = bytearray(noisy[at])
            place = random_.randrange(len(line))
            line[place : place + random_.randint(0, 9)] = made_up(random_).encode()
            noisy[at] = bytes(line)
        if number % 2:  # the hash holds: only the rows are noise
            manifest = json.loads(lines[0])
            manifest["sha256"] = hashlib.sha256(b"".join(noisy[1:])).hexdigest()
            noisy[0] = json.dumps(manifest).encode() + b"\n"
        file.write_bytes(b"".join(noisy))
        try:
            import_file(archive, file, trusted=bool(number % 4 == 1))
        except AgentmemError:
            pass
    with Store.open(tmp_path / "store" / "me.db") as store:
        assert [one.name for one in store.check() if one.status == "fail"] == []
