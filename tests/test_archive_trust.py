"""The archive refuses trust that nobody could have given, whoever asks for it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agentmem.errors import InvalidInput
from agentmem.segment import MOST_TRUST, Kind, Message, Origin, Role, Segment, Trust
from agentmem.storage.archive import Archive, Store


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Archive]:
    with Store.open(tmp_path / "me.db") as store:
        yield store.for_user("ann")


def add(archive: Archive, segment: Segment) -> Segment:
    session_id = archive.session("main").id
    with archive.write() as transaction:
        return transaction.add_segment(session_id, 1, segment)


def segment(
    trust: Trust,
    *parents: int,
    origin: Origin = "summary",
    kind: Kind = "turn",
    role: Role = "user",
) -> Segment:
    said = (Message(role, f"{origin} {trust} {parents}"),)
    return Segment(said, kind=kind, origin=origin, trust=trust, parents=parents)


@pytest.mark.parametrize("origin", ["user", "assistant", "tool", "import"])
def test_an_origin_has_the_trust_it_can_have_and_no_more(archive: Archive, origin: Origin) -> None:
    most = MOST_TRUST[origin]
    stored = add(archive, segment(most, origin=origin))
    assert archive.segment(stored.id).segment.trust == most
    with pytest.raises(InvalidInput, match=f"of origin '{origin}' .* {most.name} trust at most"):
        add(archive, segment(Trust(most + 1), origin=origin))


def test_nothing_has_more_trust_than_the_least_of_what_it_was_made_of(archive: Archive) -> None:
    user = add(archive, segment(Trust.USER, origin="user")).id
    tool = add(archive, segment(Trust.EXTERNAL, origin="tool")).id
    assert add(archive, segment(Trust.USER, user)).trust == Trust.USER
    newest = tool
    for _ in range(3):
        with pytest.raises(InvalidInput, match=r"may have EXTERNAL trust at most: got USER"):
            add(archive, segment(Trust.USER, user, newest))
        newest = add(archive, segment(Trust.EXTERNAL, user, newest)).id


def test_forgetting_a_parent_frees_nothing_from_its_trust(archive: Archive) -> None:
    tool = add(archive, segment(Trust.EXTERNAL, origin="tool")).id
    with archive.write() as transaction:
        transaction.forget(tool)
    with pytest.raises(InvalidInput, match="EXTERNAL trust at most"):
        add(archive, segment(Trust.USER, tool))


def test_the_least_of_very_many_parents_is_found(archive: Archive) -> None:
    session_id = archive.session("main").id
    with archive.write() as transaction:
        ids = [
            transaction.add_segment(session_id, 1, segment(Trust.USER, origin="user")).id
            for _ in range(520)
        ]
        low = segment(Trust.EXTERNAL, origin="tool")
        ids.insert(3, transaction.add_segment(session_id, 1, low).id)
    with pytest.raises(InvalidInput, match="EXTERNAL trust at most"):
        add(archive, segment(Trust.USER, *ids))


@pytest.mark.parametrize(("kind", "role"), [("core_block", "user"), ("turn", "system")])
def test_what_is_below_user_trust_is_no_core_block_and_no_system_message(
    archive: Archive, kind: Kind, role: Role
) -> None:
    with pytest.raises(InvalidInput, match="Core blocks and system messages need USER trust"):
        add(archive, segment(Trust.EXTERNAL, origin="import", kind=kind, role=role))
    assert add(archive, segment(Trust.USER, origin="user", kind=kind, role=role)).id


def test_trust_and_source_are_read_as_they_were_stored_and_a_source_is_text(
    archive: Archive,
) -> None:
    low = replace(segment(Trust.EXTERNAL, origin="import"), source="00ff notes.md")
    stored = archive.segment(add(archive, low).id).segment
    assert (stored.trust, stored.source) == (Trust.EXTERNAL, "00ff notes.md")
    with pytest.raises(InvalidInput, match="The source of a segment"):
        add(archive, replace(low, source="a\0b"))


def test_a_forgotten_segment_keeps_no_source(tmp_path: Path) -> None:
    with Store.open(tmp_path / "me.db") as store:
        archive = store.for_user("ann")
        low = replace(segment(Trust.EXTERNAL, origin="import"), source="00ff secretname.md")
        one = add(archive, low).id
        with archive.write() as transaction:
            transaction.forget(one)
        assert store.purge()
    assert b"secretname" not in (tmp_path / "me.db").read_bytes()


def test_segments_of_an_origin_are_paged_over_all_sessions_and_of_one_user(tmp_path: Path) -> None:
    with Store.open(tmp_path / "me.db") as store:
        expected = []
        for user in ("ann", "bob"):
            archive = store.for_user(user)
            for name in ("one", "two"):
                session_id = archive.session(name).id
                with archive.write() as transaction:
                    for origin in ("user", "tool", "tool"):
                        trust = MOST_TRUST[origin]
                        new = segment(trust, origin=origin)
                        stored = transaction.add_segment(session_id, 1, new)
                        if user == "ann" and origin == "tool":
                            expected.append(stored.id)
        pages = list(store.for_user("ann").pages(origin="tool", page_size=3))
        assert [len(page) for page in pages] == [3, 1]
        assert [one.segment.id for page in pages for one in page] == expected
        assert list(store.for_user("eve").pages(origin="tool")) == []


def test_the_check_finds_trust_that_was_raised(tmp_path: Path) -> None:
    with Store.open(tmp_path / "me.db") as store:
        archive = store.for_user("ann")
        tool = add(archive, segment(Trust.EXTERNAL, origin="tool")).id
        child = add(archive, segment(Trust.EXTERNAL, tool)).id
        connection = sqlite3.connect(tmp_path / "me.db")
        connection.execute("UPDATE segments SET trust = 2 WHERE id = ?", [child])
        connection.commit()
        connection.close()
        (finding,) = (one for one in store.check() if one.name == "trust")
    assert finding.status == "fail" and f"[{child}]" in finding.message
