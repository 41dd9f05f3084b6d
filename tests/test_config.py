"""Settings: who wins, and what a wrong one is answered with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmem.config import Settings, load_settings
from agentmem.errors import ConfigError, InvalidInput
from agentmem.folders import config_dir, data_dir, default_store


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project folder, and the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_user_file(text: str) -> Path:
    """Write the user's settings file."""
    path = config_dir() / "config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_without_anything_the_defaults_hold() -> None:
    chosen = load_settings()
    assert (chosen.model, chosen.budget, chosen.kv, chosen.controller) == (
        "local",
        2048,
        "q8",
        "llm",
    )
    assert chosen.store is None


def test_flag_wins_over_environment_over_project_over_user(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_user_file("budget = 1000\nseed = 1\npolicy = 'lru'\nuser = 'ann'")
    (project / "agentmem.toml").write_text("budget = 2000\nseed = 2\npolicy = 'window'")
    monkeypatch.setenv("AGENTMEM_BUDGET", "3000")
    monkeypatch.setenv("AGENTMEM_SEED", "3")
    chosen = load_settings(budget=4000)
    assert (chosen.budget, chosen.seed, chosen.policy, chosen.user) == (4000, 3, "window", "ann")


def test_a_flag_that_was_not_given_does_not_win() -> None:
    write_user_file("budget = 1000")
    assert load_settings(budget=None).budget == 1000


def test_an_empty_variable_is_as_if_it_were_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTMEM_MODEL", "")
    assert load_settings().model == "local"


def test_memory_tools_are_on_off_or_left_to_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "memory_tools" not in load_settings().agent_arguments()
    write_user_file("memory_tools = true")
    assert load_settings().agent_arguments()["memory_tools"] is True
    monkeypatch.setenv("AGENTMEM_MEMORY_TOOLS", "false")
    assert load_settings().agent_arguments()["memory_tools"] is False


def test_a_stop_string_may_be_one_or_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTMEM_STOP", "[END]")
    assert load_settings().stop == ("[END]",)
    monkeypatch.delenv("AGENTMEM_STOP")
    write_user_file('stop = ["a", "b"]')
    assert load_settings().stop == ("a", "b")


def test_a_home_in_the_store_path_is_expanded(home: Path) -> None:
    write_user_file('store = "~/me.db"')
    assert load_settings().store == home / "me.db"


def test_folders_follow_the_xdg_variables(home: Path) -> None:
    assert data_dir() == home / "data" / "agentmem"
    assert default_store() == data_dir() / "agentmem.db"
    assert config_dir() == home / "config" / "agentmem"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("budget = \nkv = 1", ["is not valid TOML", "line 1"]),
        ("bugdet = 512", ["unknown key `bugdet`", "512", "Did you mean `budget`?"]),
        ("[memory]\nsize = 1", ["unknown key `memory`", "Known keys: store, user"]),
        ('budget = "many"', ["`budget`", "'many'", "valid integer"]),
        ("budget = true", ["`budget`", "True", "Only `memory_tools` is true"]),
        ("budget = -5", ["`budget`", "-5", "greater than 0"]),
        ("kv = 'q3'", ["`kv`", "'q3'", "Use dense, q8, fp8, q4, klt"]),
        ("model = 5", ["`model`", "got 5", "valid string"]),
        ("top_p = 1.5", ["`top_p`", "1.5", "less than or equal to 1"]),
        ("stop = ['a', 3]", ["`stop`", "got 3", "valid string"]),
    ],
)
def test_a_wrong_file_is_named_with_key_value_and_what_is_right(
    project: Path, text: str, words: list[str]
) -> None:
    (project / "agentmem.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_settings()
    for word in ["agentmem.toml", *words]:
        assert word in str(caught.value)


def test_the_file_that_is_wrong_is_named_not_the_other(project: Path) -> None:
    (project / "agentmem.toml").write_text("seed = 1")
    path = write_user_file("budget = 'x'")
    with pytest.raises(ConfigError, match=str(path)):
        load_settings()


def test_a_file_that_is_not_utf8_is_a_typed_error(project: Path) -> None:
    (project / "agentmem.toml").write_bytes(b"user = '\xff'")
    with pytest.raises(ConfigError, match=r"agentmem\.toml is not valid TOML"):
        load_settings()


def test_a_file_that_cannot_be_read_is_a_typed_error(project: Path) -> None:
    (project / "agentmem.toml").mkdir()
    with pytest.raises(ConfigError, match=r"agentmem\.toml cannot be read: Is a directory"):
        load_settings()


def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTMEM_BUDGET", "lots")
    with pytest.raises(ConfigError, match=r"AGENTMEM_BUDGET: `budget` is wrong: got 'lots'"):
        load_settings()


def test_a_wrong_flag_is_a_usage_error() -> None:
    with pytest.raises(InvalidInput, match=r"--max-new-tokens: .*got 0.*greater than 0") as caught:
        load_settings(max_new_tokens=0)
    assert caught.value.exit_code == 2


def test_arguments_for_an_agent_leave_out_what_was_not_set() -> None:
    arguments = load_settings(seed=7).agent_arguments()
    assert arguments["seed"] == 7
    assert "store" not in arguments and "temperature" not in arguments


@given(
    st.dictionaries(
        st.sampled_from([*Settings.model_fields, "unknown"]),
        st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.lists(st.integers()),
        max_size=3,
    )
)
@settings(deadline=None, max_examples=100)
def test_any_flags_give_settings_or_a_typed_error(flags: dict[str, Any]) -> None:
    try:
        assert isinstance(load_settings(**flags), Settings)
    except (ConfigError, InvalidInput) as error:
        assert str(error)
