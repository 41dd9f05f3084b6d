"""Settings: flags over `AGENTMEM_*` over `./agentmem.toml` over the user's `config.toml`.

Knows names, types and where each value came from; not what the values are used for. Importing it
costs a third of a second (pydantic), so the command line imports it inside its commands.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from agentmem.errors import ConfigError, InvalidInput
from agentmem.folders import config_dir
from agentmem.modes import ControllerMode, RecallMode

ENV_PREFIX = "AGENTMEM_"
PROJECT_FILE = "agentmem.toml"

_KV_FORMAT = re.compile(r"dense|q8|fp8|q4|binary|klt([1-4](\.\d+)?)?")


def _known_format(name: str) -> str:
    if _KV_FORMAT.fullmatch(name) is None:
        raise ValueError("Use dense, q8, fp8, q4, klt (or klt1 to klt4, as klt1.6) or binary")
    return name


KVFormat = Annotated[str, AfterValidator(_known_format)]
"""How keys and values are kept; klt may name its bits a channel."""


def settings_files() -> tuple[Path, ...]:
    """The settings files, the one that wins first. They need not exist."""
    return (Path(PROJECT_FILE), config_dir() / "config.toml")


class Settings(BaseSettings):
    """What an agent is opened with. The keys of the files are the names of these fields."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_ignore_empty=True, extra="forbid", frozen=True
    )

    store: Path | None = None
    """The store; None is the default one in the data directory."""
    user: str = Field("default", min_length=1)
    session: str = Field("default", min_length=1)
    model: str = Field("local", min_length=1)
    embedder: str | None = None
    base_url: str | None = None
    budget: int = Field(2048, gt=0)
    kv: KVFormat = "q8"
    controller: ControllerMode = "llm"
    policy: str = Field("mixture", min_length=1)
    recall: RecallMode = "kv"
    max_new_tokens: int = Field(256, gt=0)
    temperature: float | None = Field(None, ge=0)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0)
    repetition_penalty: float | None = Field(None, gt=0)
    seed: int = Field(0, ge=0)
    stop: Annotated[tuple[str, ...], NoDecode] = ()
    system_prompt: str | None = None
    memory_tools: bool | None = None
    threads: int | None = Field(None, gt=0)

    @field_validator("store")
    @classmethod
    def _expand_home(cls, store: Path | None) -> Path | None:
        return None if store is None else store.expanduser()

    @field_validator("stop", mode="before")
    @classmethod
    def _one_stop_string(cls, stop: object) -> object:
        return (stop,) if isinstance(stop, str) else stop

    @field_validator("*", mode="before")
    @classmethod
    def _no_booleans(cls, value: object, info: ValidationInfo) -> object:
        # pydantic would read `budget = true` as 1.
        if isinstance(value, bool) and info.field_name != "memory_tools":
            raise ValueError("Only `memory_tools` is true or false")
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, environment, project file, user file: the first that has a value wins."""
        files = [InitSettingsSource(settings_cls, read_file(path)) for path in settings_files()]
        return (init_settings, env_settings, *files)

    def agent_arguments(self) -> dict[str, Any]:
        """Keyword arguments for `Agent`; what was not set keeps the agent's own default."""
        return {name: value for name, value in self if value is not None}


def load_settings(**flags: Any) -> Settings:
    """Settings with these flags on top; a flag that is None was not given.

    Raises:
        ConfigError: a file is not TOML, or a key or value is wrong: file, key and value are named.
        InvalidInput: a flag's value is wrong.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        return Settings(**given)
    except ValidationError as error:
        details = error.errors(include_url=False)[0]
        wrong = InvalidInput if details["loc"][0] in given else ConfigError
        raise wrong(_explain(details, given)) from error


def read_file(path: Path) -> dict[str, Any]:
    """The keys of a settings file; none where there is no such file.

    Raises:
        ConfigError: it cannot be read, is not TOML, or has a key no setting is called by.
    """
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:  # not TOML, or not UTF-8
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error
    for key, value in values.items():
        if key not in Settings.model_fields:
            near = difflib.get_close_matches(key, Settings.model_fields, n=1)
            hint = f"Did you mean `{near[0]}`? " if near else ""
            known = ", ".join(Settings.model_fields)
            raise ConfigError(
                f"{path}: unknown key `{key}` (value {value!r}). {hint}Known keys: {known}."
            )
    return values


def origin(key: str, flags: dict[str, Any]) -> str:
    """Where the value of a setting comes from, in words."""
    if key in flags:
        return f"--{key.replace('_', '-')}"
    if os.environ.get(variable := f"{ENV_PREFIX}{key.upper()}"):
        return variable
    for path in settings_files():
        if key in read_file(path):
            return str(path)
    return "the default"


def _explain(details: ErrorDetails, flags: dict[str, Any]) -> str:
    key = str(details["loc"][0])
    message = details["msg"].removeprefix("Value error, ")
    where = origin(key, flags)
    return f"{where}: `{key}` is wrong: got {details['input']!r}. {message}."
