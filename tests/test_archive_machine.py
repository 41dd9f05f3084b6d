"""The archive against a dict: any order of changes leaves what the dict has, also after a crash."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from agentmem.errors import SegmentNotFound
from agentmem.segment import Message, Segment, State
from agentmem.storage.archive import Archive, Store, WindowEntry
from agentmem.storage.text import normalize_text

STATES = st.sampled_from(("live", "compressed", "parked", "archived", "summarized"))


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    folder = Path(tempfile.mkdtemp())
    with Store.open(folder / "me.db", durability="relaxed") as opened:
        yield opened
    shutil.rmtree(folder)


class Crash(Exception):
    """Stands for whatever ends a block too early."""


class ArchiveMachine(RuleBasedStateMachine):
    """Two users in one store, each beside its model; every step is checked on both."""

    store: Store
    count = 0

    segments = Bundle("segments")

    def __init__(self) -> None:
        super().__init__()
        type(self).count += 1
        self.archives = [self.store.for_user(f"{self.count}{end}") for end in ("a", "A")]
        self.sessions: list[int] = []
        self.model: list[dict[int, dict[str, Any]]] = [{}, {}]
        self.windows: list[list[WindowEntry]] = [[], []]

    @initialize()
    def start(self) -> None:
        self.sessions = [archive.session("main").id for archive in self.archives]

    @rule(target=segments, user=st.integers(0, 1), text=st.text(max_size=20), crash=st.booleans())
    def add(self, user: int, text: str, crash: bool) -> Any:
        segment = Segment((Message("user", normalize_text(text)),))
        try:
            with self.archives[user].write() as transaction:
                stored = transaction.add_segment(self.sessions[user], 1, segment)
                if crash:
                    raise Crash
        except Crash:
            return multiple()
        assert stored.id not in self.model[0] and stored.id not in self.model[1]
        self.model[user][stored.id] = {"segment": stored, "state": "live", "pinned": False}
        return (user, stored.id)

    @rule(where=segments, state=STATES, pinned=st.booleans(), crash=st.booleans())
    def change(self, where: tuple[int, int], state: State, pinned: bool, crash: bool) -> None:
        user, segment_id = where
        try:
            with self.archives[user].write() as transaction:
                transaction.set_state([segment_id], state)
                transaction.set_pinned([segment_id], pinned)
                if crash:
                    raise Crash
        except Crash:
            return
        self.model[user][segment_id] |= {"state": state, "pinned": pinned}

    @rule(where=segments, state=STATES)
    def change_by_a_stranger(self, where: tuple[int, int], state: State) -> None:
        user, segment_id = where
        for change in ("set_state", "set_window", "forget"):
            with (
                pytest.raises(SegmentNotFound),
                self.archives[1 - user].write() as transaction,
            ):
                if change == "set_state":
                    transaction.set_state([segment_id], state)
                elif change == "set_window":
                    entry = WindowEntry(segment_id, 1)
                    transaction.set_window(self.sessions[1 - user], [entry])
                else:
                    transaction.forget(segment_id)

    @rule(where=st.lists(segments, unique=True, max_size=5), user=st.integers(0, 1))
    def set_window(self, where: list[tuple[int, int]], user: int) -> None:
        window = [WindowEntry(each, place=each) for owner, each in where if owner == user]
        with self.archives[user].write() as transaction:
            transaction.set_window(self.sessions[user], window)
        self.windows[user] = window

    @rule(where=consumes(segments))
    def forget(self, where: tuple[int, int]) -> None:
        user, segment_id = where
        with self.archives[user].write() as transaction:
            transaction.forget(segment_id)
        del self.model[user][segment_id]
        self.windows[user] = [e for e in self.windows[user] if e.segment_id != segment_id]
        with pytest.raises(SegmentNotFound):
            self.archives[user].segment(segment_id)

    @rule(user=st.integers(0, 1))
    def come_back(self, user: int) -> None:
        self.archives[user] = self.store.for_user(self.archives[user].user)

    @invariant()
    def both_users_have_what_their_models_have(self) -> None:
        for user, session_id in enumerate(self.sessions):
            check(self.archives[user], session_id, self.model[user], self.windows[user])


def check(
    archive: Archive,
    session_id: int,
    model: dict[int, dict[str, Any]],
    window: list[WindowEntry],
) -> None:
    found = {
        stored.segment.id: {
            "segment": stored.segment,
            "state": stored.state,
            "pinned": stored.pinned,
        }
        for stored in archive.session_segments(session_id)
    }
    assert found == model
    assert archive.window(session_id) == window
    counts = cast(dict[str, int], archive.states(session_id))
    counts.pop("forgotten", None)
    states = [row["state"] for row in model.values()]
    assert counts == {state: states.count(state) for state in set(states)}
    assert [each for each, _ in archive.words()] == sorted(model)


def test_any_history_leaves_what_a_dict_would_have(store: Store) -> None:
    ArchiveMachine.store = store
    run_state_machine_as_test(
        ArchiveMachine,
        settings=settings(
            max_examples=20,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert [finding for finding in store.check() if finding.status == "fail"] == []
