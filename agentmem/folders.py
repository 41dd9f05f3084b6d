"""Where agentmem keeps things: the platform's own folders, the XDG variables' where it has them."""

from __future__ import annotations

from pathlib import Path

from platformdirs import user_cache_path, user_config_path, user_data_path, user_state_path


def data_dir() -> Path:
    """Where stores live: `$XDG_DATA_HOME/agentmem`."""
    return user_data_path("agentmem", appauthor=False)


def default_store() -> Path:
    """Where memory lives unless told otherwise: `$XDG_DATA_HOME/agentmem/agentmem.db`."""
    return data_dir() / "agentmem.db"


def cache_dir() -> Path:
    """Where models live: `$XDG_CACHE_HOME/agentmem`."""
    return user_cache_path("agentmem", appauthor=False)


def state_dir() -> Path:
    """Where the prompt's history lives: `$XDG_STATE_HOME/agentmem`."""
    return user_state_path("agentmem", appauthor=False)


def config_dir() -> Path:
    """Where the user's `config.toml` lives: `$XDG_CONFIG_HOME/agentmem`."""
    return user_config_path("agentmem", appauthor=False)
