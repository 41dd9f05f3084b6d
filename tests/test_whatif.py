"""What if: the same inputs and replies under another policy, beside what was recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentmem import ScriptedModel, Store, WhatIf, open_memory, what_if
from agentmem.errors import InvalidInput
from tests.agents import make_agent, talk
from tests.cli_run import run_cli


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A session of 16 turns from which the oldest went; only one segment was ever looked at."""
    folder = tmp_path_factory.mktemp("whatif")
    model = ScriptedModel(has_kv=True, default="ok.")
    with make_agent(folder, model, budget=300, recall="off") as agent:
        agent.chat("My locker code is 58291.")
        assert model.kv is not None
        model.kv.set_attention({2: 0.9})
        talk(agent, 6)
        agent.memory.pin(4)
        agent.memory.undo()
        talk(agent, 9)
        made = agent.memory.archive.decisions(session_id=agent.memory.session.id)
        agent.memory.undo(next(row.id for row in made if row.decision.source == "policy"))
    return folder


def asked(folder: Path, policy: str, budget: int | None = None, turn: int | None = None) -> WhatIf:
    with Store.open(folder / "me.db") as store:
        return what_if(
            store.for_user("default"), "default", policy=policy, budget=budget, turn=turn
        )


def test_the_same_policy_keeps_the_same(folder: Path) -> None:
    seen = asked(folder, "window", turn=15)
    assert seen.segments == () and (seen.turn, seen.budget, seen.recall) == (15, 300, "off")
    assert seen.tokens_freed[0] == seen.tokens_freed[1] > 0
    assert seen.window_tokens[0] == seen.window_tokens[1]


def test_another_policy_is_shown_by_what_only_one_of_the_two_keeps(folder: Path) -> None:
    seen = asked(folder, "attention", turn=15)
    other = {kept.id: kept for kept in seen.segments if not kept.recorded}
    # Attention was observed for this one alone: with it, the policy would have kept it.
    assert other[2].text == "My locker code is 58291." and other[2].num_tokens > 4
    assert [kept for kept in seen.segments if kept.recorded]
    assert seen.segments == tuple(sorted(seen.segments, key=lambda kept: (kept.turn, kept.id)))


def test_a_larger_budget_would_have_kept_everything(folder: Path) -> None:
    seen = asked(folder, "window", budget=2000)
    assert seen.tokens_freed[1] == 0 and seen.budget == 2000
    assert all(not kept.recorded for kept in seen.segments)
    assert {kept.id for kept in seen.segments} >= {2, 3}


def test_windows_are_compared_after_a_chosen_turn(folder: Path) -> None:
    assert asked(folder, "attention", turn=3).segments == ()
    assert asked(folder, "attention", turn=3).tokens_freed == (0, 0)


def test_undoing_a_reviews_decision_cannot_be_repeated_and_is_counted(folder: Path) -> None:
    assert asked(folder, "window").skipped == 1


@pytest.mark.parametrize(
    ("policy", "turn", "match"),
    [("no-such", None, "No policy"), ("lru", 99, "got 99, it has 1 to 16")],
)
def test_what_is_not_there_is_named(
    folder: Path, policy: str, turn: int | None, match: str
) -> None:
    with pytest.raises(InvalidInput, match=match):
        asked(folder, policy, turn=turn)


def test_the_commands_print_both_hashes_and_what_would_have_stayed(folder: Path) -> None:
    store = folder / "me.db"
    (ran,) = run_cli("replay", "--store", store, "--json").events
    assert ran["type"] == "replay" and ran["same"] and ran["recorded"] == ran["replayed"]
    assert (ran["turns"], len(ran["recorded"])) == (16, 64)
    shown = run_cli("replay", "--store", store).stdout
    assert ran["recorded"] in shown and "turns" in shown
    (other,) = run_cli("whatif", "--policy", "attention", "--store", store, "--json").events
    assert (other["type"], other["turn"]) == ("whatif", 16)
    assert any(kept["id"] == 2 and not kept["recorded"] for kept in other["segments"])
    table = run_cli("whatif", "--policy", "attention", "--store", store).stdout
    assert "My locker code is 58291." in table and "only in the window of" in table
    assert run_cli("whatif", "--policy", "no-such", "--store", store).code == 2
    assert run_cli("whatif", "--store", store).code == 2


def test_both_windows_are_counted_by_one_counter(tmp_path: Path) -> None:
    with make_agent(tmp_path, ScriptedModel(has_kv=True, default="ok."), recall="off") as agent:
        talk(agent, 3)
    with open_memory(store=tmp_path / "me.db", embedder="hash") as memory:
        memory.drop(2)  # counted without the model's tokenizer
    seen = asked(tmp_path, "lru")
    assert seen.segments == () and seen.window_tokens[0] == seen.window_tokens[1]


def test_the_commands_play_the_session_of_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make_agent(tmp_path, session="work") as agent:
        talk(agent, 1)
    monkeypatch.setenv("AGENTMEM_SESSION", "work")
    for words in (["replay"], ["whatif", "--policy", "lru"]):
        ran = run_cli(*words, "--store", tmp_path / "me.db", "--json")
        assert ran.code == 0 and ran.events[0].get("turns", ran.events[0].get("turn")) == 1, ran


def test_a_state_that_differs_exits_with_one_and_names_the_item(
    folder: Path, tmp_path: Path
) -> None:
    import sqlite3

    with Store.open(folder / "me.db") as store:
        store.backup(tmp_path / "me.db")
    connection = sqlite3.connect(tmp_path / "me.db")
    connection.execute("UPDATE segments SET kept_until = 3 WHERE id = 6")
    connection.commit()
    connection.close()
    ran = run_cli("replay", "--store", tmp_path / "me.db", "--json")
    assert ran.code == 1 and ran.events[0]["difference"].startswith("segment 6: recorded")
