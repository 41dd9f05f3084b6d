"""A session closed and opened again goes on from its KV; killed, from its text."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentmem import Agent, Budget, Reply, Store, open_memory
from agentmem.errors import BudgetTooSmall, StoreError
from agentmem.models.embed import HashEmbedder
from agentmem.models.engine import engine_for
from agentmem.models.loading import load
from agentmem.models.local import LocalModel
from tests.tiny_models import save_tiny_model

SAID = (
    "The quick brown fox jumps over a lazy dog.",
    "It rains in Oslo and the dog is lazy.",
    "Another fox and another dog, one over another.",
    "The reason is a lazy name.",
    "Keep the quick dog and drop a fox.",
    "While it rains, the user jumps.",
    "A system of foxes and a model of dogs.",
)


ROOT = Path(__file__).parent.parent
KILLED = """
import os, signal, sys
from agentmem import Agent, Budget
agent = Agent(
    f"hf:{sys.argv[2]}", store=sys.argv[1], embedder="hash", controller="off", recall="off",
    system_prompt="Be a fox.", max_new_tokens=6, budget=Budget(600, parked_ram_bytes=0),
)
agent.chat(sys.argv[3])
agent.memory.drop(*agent.turn_segments(1))
list(agent.model.generate(agent.context.prompt(), agent.session._options()))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A tiny model, held so that no opening has to load it again."""
    folder = save_tiny_model(tmp_path_factory.mktemp("tiny"))
    engine = engine_for(load(folder))
    yield folder
    del engine


@pytest.fixture
def opened(tmp_path: Path, tiny_dir: Path) -> Callable[..., Agent]:
    """Opens an agent over the tiny model, by default always the same session."""

    def open_agent(**options: Any) -> Agent:
        folder = options.pop("model_dir", tiny_dir)
        settings: dict[str, Any] = {
            "store": tmp_path / "me.db",
            "budget": 600,
            "embedder": HashEmbedder(),
            "controller": "policy",
            "policy": "window",
            "recall": "off",
            "system_prompt": "Be a fox.",
            "max_new_tokens": 6,
            **options,
        }
        return Agent(f"hf:{folder}", **settings)

    return open_agent


def talk(agent: Agent, texts: tuple[str, ...]) -> list[str]:
    return [agent.chat(text).text for text in texts]


def computed(agent: Agent) -> int:
    """Tokens the agent's model computed since it was opened."""
    assert isinstance(agent.model, LocalModel)
    return agent.model.num_computed_tokens


def attention(agent: Agent) -> dict[int | str, float]:
    """What the policies and the controller are told of each part."""
    assert agent.memory.kv is not None
    return dict(agent.memory.kv.attention())


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and "me.db.kv" in str(path))


@pytest.mark.parametrize(("kv", "budget"), [("dense", 600), ("q8", 260)])
def test_a_closed_session_goes_on_token_for_token_without_prefill(
    opened: Callable[..., Agent], tmp_path: Path, kv: str, budget: int
) -> None:
    with opened(kv=kv, budget=budget, store=tmp_path / "one.db") as agent:
        expected, costs, seen = [], [], []
        for text in SAID:
            before = computed(agent)
            expected += talk(agent, (text,))
            costs.append(computed(agent) - before)
            seen.append(attention(agent))
    said = []
    for number, text in enumerate(SAID):
        with opened(kv=kv, budget=budget) as agent:
            said += talk(agent, (text,))
            # What ends the reply before was read when the session was closed.
            assert computed(agent) <= costs[number]
            assert attention(agent) == pytest.approx(seen[number], rel=1e-4)
    assert said == expected


def test_a_window_in_host_memory_goes_on_token_for_token_as_well(
    opened: Callable[..., Agent], tmp_path: Path
) -> None:
    with opened(store=tmp_path / "one.db") as agent:
        expected = talk(agent, SAID[:4])
    said = []
    limits = Budget(600, kv_bytes=12_000, parked_ram_bytes=20_000)
    for text in SAID[:4]:
        with opened(budget=limits) as agent:
            reply = agent.chat(text)
            assert agent.memory.stats()["kv_bytes_host"] == reply.usage.kv_bytes_host
            said.append(reply.text)
    assert 0 < reply.usage.kv_bytes_host < reply.usage.kv_bytes
    assert said == expected


def test_the_window_is_the_same_ids_again(opened: Callable[..., Agent]) -> None:
    with opened() as agent:
        talk(agent, SAID[:2])
        assert isinstance(agent.model, LocalModel)
        ids = agent.model.prompt_token_ids()
    with opened() as agent:
        talk(agent, SAID[2:3])
        assert isinstance(agent.model, LocalModel)
        assert agent.model.prompt_token_ids()[: len(ids)] == ids


def test_what_left_the_window_returns_in_another_process_without_prefill(
    opened: Callable[..., Agent], tmp_path: Path
) -> None:
    # Nothing fits into RAM, so everything parked goes straight to the disk.
    limits = Budget(600, parked_ram_bytes=0)
    with opened(budget=limits) as agent:
        talk(agent, SAID[:4])
        agent.memory.drop(*agent.turn_segments(1))
        reply = agent.chat(SAID[4])
        assert reply.usage.kv_bytes_parked_disk > 0 and reply.usage.kv_bytes_parked_ram == 0
        assert agent.memory.stats()["kv_bytes_parked_disk"] == reply.usage.kv_bytes_parked_disk
        dropped = agent.turn_segments(1)
        states = agent.memory.held_states()
        assert [states[one] for one in dropped] == ["parked", "parked"]
    with opened(budget=limits) as agent:
        assert all(agent.memory.held_states()[one] == "parked" for one in dropped)
        agent.memory.restore(*dropped)
        assert all(agent.context[one].via == "kv" for one in dropped)
        before = computed(agent)
        agent.chat(SAID[5])
        tokens = agent.context[agent.turn_segments(6)[0]].num_tokens
        assert computed(agent) - before <= tokens + 6 + 10


def test_a_closed_session_tells_what_it_left(opened: Callable[..., Agent], tmp_path: Path) -> None:
    with opened() as agent:
        talk(agent, SAID[:1])
        assert not files(tmp_path)
    left = files(tmp_path)
    assert left and left[-1].name == "manifest"
    with open_memory(store=tmp_path / "me.db", embedder="hash", only_look=True) as memory:
        assert memory.stats()["kv_bytes_parked_disk"] == sum(one.stat().st_size for one in left)
    with opened() as agent:
        assert files(tmp_path) == left[:-1]
        agent.chat(SAID[1])
        assert not files(tmp_path)


def test_after_a_kill_everything_works_from_text(
    opened: Callable[..., Agent], tmp_path: Path, tiny_dir: Path
) -> None:
    with opened(store=tmp_path / "one.db") as agent:
        expected = talk(agent, SAID[:3])
    with opened() as agent:
        said = talk(agent, SAID[:2])
    arguments = (str(tmp_path / "me.db"), str(tiny_dir), SAID[2])
    process = subprocess.run(
        [sys.executable, "-c", KILLED, *arguments], cwd=ROOT, capture_output=True, check=False
    )
    assert process.returncode == -signal.SIGKILL, process.stderr.decode()
    left = files(tmp_path)
    assert len(left) > 1 and "manifest" not in [path.name for path in left]
    with opened() as agent:
        assert not files(tmp_path) and not agent.memory.held_states()
        said.append(agent.memory.segment(agent.turn_segments(3)[1]).segment.text)
        agent.chat(SAID[3])
        assert computed(agent) > agent.context.num_tokens // 2
    assert said == expected


@pytest.mark.parametrize("other", ["format", "model", "session", "store"])
def test_records_of_something_else_are_never_used(
    opened: Callable[..., Agent], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory,
    other: str,
) -> None:  # fmt: skip
    with opened() as agent:
        talk(agent, SAID[:2])
    options: dict[str, Any] = {}
    if other == "format":
        options["kv"] = "dense"
    elif other == "model":
        options["model_dir"] = save_tiny_model(tmp_path_factory.mktemp("other"), seed=1)
    elif other == "session":
        with opened(session="work") as agent:
            assert not agent.memory.held_states()
        (mine,) = {one.parent for one in files(tmp_path)}
        shutil.copytree(mine, mine.parent / "2")
        options["session"] = "work"
    else:
        (tmp_path / "me.db").unlink()
        for name in ("me.db-wal", "me.db-shm"):
            (tmp_path / name).unlink(missing_ok=True)
    with opened(**options) as agent:
        assert not agent.memory.held_states()
        assert [one.parent.name for one in files(tmp_path)] == (
            ["1"] * 6 if other == "session" else []
        )
        reply = agent.chat(SAID[2])
        assert isinstance(reply, Reply)


def test_another_user_has_another_folder(opened: Callable[..., Agent], tmp_path: Path) -> None:
    with opened(user="ann") as agent:
        talk(agent, SAID[:2])
    before = {path: path.read_bytes() for path in files(tmp_path)}
    with opened(user="bob") as agent:
        assert not agent.memory.held_states()
        talk(agent, SAID[:2])
    assert {path: path.read_bytes() for path in before} == before
    assert len({path.parent.parent for path in files(tmp_path)}) == 2


def test_what_is_forgotten_while_the_session_is_closed_is_on_no_disk(
    opened: Callable[..., Agent], tmp_path: Path
) -> None:
    with opened() as agent:
        talk(agent, SAID[:3])
        second, last = agent.turn_segments(2)[0], agent.turn_segments(3)[0]
    before = len(files(tmp_path))
    with open_memory(store=tmp_path / "me.db", embedder="hash") as memory:
        receipt = memory.forget(second)
    names = [path.name for path in files(tmp_path)]
    assert receipt["kv_files"] == before - len(names) > 0
    assert all(int(name.split(".")[0]) < second for name in names if name != "manifest")
    with opened() as agent:
        held = agent.memory.held_states()
        assert held and max(key for key in held if isinstance(key, int)) < second
        agent.chat(SAID[3])
        assert SAID[1] not in agent.window_text() and SAID[2] in agent.window_text()
        assert last in agent.memory.held_states()


def test_forgetting_everything_leaves_no_file(opened: Callable[..., Agent], tmp_path: Path) -> None:
    for session in ("default", "work"):
        with opened(session=session) as agent:
            talk(agent, SAID[:2])
    assert files(tmp_path)
    with Store.open(tmp_path / "me.db") as store:
        archive = store.for_user("default")
        for row in archive.sessions():
            archive.remove_session(row.name)
    assert not files(tmp_path)


def test_a_forget_that_cannot_delete_a_file_does_not_say_it_did(
    opened: Callable[..., Agent], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened() as agent:
        talk(agent, SAID[:2])
        segment = agent.turn_segments(2)[0]
    real = Path.unlink

    def refuse(self: Path, missing_ok: bool = False) -> None:
        if self.suffix == ".kv":
            raise PermissionError(13, "Permission denied", str(self))
        real(self, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    with open_memory(store=tmp_path / "me.db", embedder="hash") as memory:
        with pytest.raises(StoreError, match="cannot be deleted"):
            memory.forget(segment)
        assert memory.segment(segment).segment.text == SAID[1]


def test_what_another_process_forgets_meanwhile_is_not_left_behind(
    opened: Callable[..., Agent], tmp_path: Path
) -> None:
    with opened(session="work") as agent:
        talk(agent, SAID[:1])
        forgotten = agent.turn_segments(1)[0]
    with opened() as agent:
        talk(agent, SAID[:2])
        with open_memory(store=tmp_path / "me.db", session="work", embedder="hash") as memory:
            memory.forget(forgotten)
    names = [path.name for path in files(tmp_path) if path.suffix == ".kv"]
    assert not [name for name in names if int(name.split(".")[0]) >= forgotten]


def test_a_store_older_than_its_kv_is_read_from_text(
    opened: Callable[..., Agent], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened() as agent:
        talk(agent, SAID[:1])
    with Store.open(tmp_path / "me.db") as store:
        store.backup(tmp_path / "backup.db")
    with opened() as agent:
        talk(agent, SAID[1:2])
    os.replace(tmp_path / "backup.db", tmp_path / "me.db")
    for name in ("me.db-wal", "me.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    with caplog.at_level(logging.WARNING), opened() as agent:
        assert not agent.memory.held_states() and "newer than its store" in caplog.text
        assert agent.chat(SAID[2]).text


def test_a_damaged_record_is_read_from_text(opened: Callable[..., Agent], tmp_path: Path) -> None:
    with opened(store=tmp_path / "one.db", kv="dense") as agent:
        expected = talk(agent, SAID[:4])
    with opened(kv="dense") as agent:
        talk(agent, SAID[:3])
        damaged = agent.turn_segments(2)[0]
    (file,) = (path for path in files(tmp_path) if path.name.startswith(f"{damaged}."))
    content = bytearray(file.read_bytes())
    content[-100] ^= 1
    file.write_bytes(content)
    with opened(kv="dense") as agent:
        assert damaged in agent.memory.held_states()
        assert agent.chat(SAID[3]).text == expected[3]
        tokens = agent.context[damaged].num_tokens
        assert computed(agent) >= tokens


def test_a_full_disk_costs_a_prefill_and_nothing_else(
    opened: Callable[..., Agent], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened() as agent:
        expected = talk(agent, SAID[:1])

        def full(*_: object) -> int:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr("agentmem.storage.new_file.os.write", full)
            agent.close()
    assert not files(tmp_path)
    with opened() as agent:
        assert len(expected) == 1 and agent.chat(SAID[1]).text


def test_no_disk_budget_leaves_no_file(opened: Callable[..., Agent], tmp_path: Path) -> None:
    with opened() as agent:
        talk(agent, SAID[:2])
    assert files(tmp_path)
    with opened(budget=Budget(600, parked_disk_bytes=0)) as agent:
        assert not files(tmp_path)
        talk(agent, SAID[2:3])
    assert not files(tmp_path)


def test_the_disk_stays_within_its_budget(opened: Callable[..., Agent], tmp_path: Path) -> None:
    limit = 150_000
    for session in ("default", "work", "default"):
        with opened(session=session, budget=Budget(600, parked_disk_bytes=limit)) as agent:
            talk(agent, SAID[:5])
        assert 0 < sum(path.stat().st_size for path in files(tmp_path)) < limit + 20_000


def test_opening_that_fails_costs_no_kv(opened: Callable[..., Agent], tmp_path: Path) -> None:
    with opened() as agent:
        talk(agent, SAID[:2])
    left = [path.name for path in files(tmp_path)]
    with pytest.raises(BudgetTooSmall):
        opened(system_prompt="A long prompt. " * 200)
    assert [path.name for path in files(tmp_path)] == left
    with opened() as agent:
        assert agent.memory.held_states()


def test_a_session_set_aside_goes_on_from_its_kv(
    opened: Callable[..., Agent], tmp_path: Path
) -> None:
    with opened() as agent:
        talk(agent, SAID[:2])
    with opened(new=True) as agent:
        assert not agent.memory.held_states()
    with opened(session="default-1") as agent:
        assert agent.memory.held_states()


def test_a_model_without_kv_leaves_the_files_alone(
    opened: Callable[..., Agent], tmp_path: Path
) -> None:
    with opened() as agent:
        talk(agent, SAID[:1])
    left = files(tmp_path)
    with Agent(
        "scripted", store=tmp_path / "me.db", budget=600, system_prompt="Be a fox."
    ) as agent:
        agent.chat("Who are you?")
    assert files(tmp_path) == left
    with opened() as agent:
        assert agent.memory.held_states()
        agent.chat(SAID[2])
