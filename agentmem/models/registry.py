"""From a name on the command line to a model. Nothing is imported before it is asked for."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentmem.errors import ConfigError, InvalidInput, MissingExtra, ModelNotFound
from agentmem.models.base import ChatModel, Embedder

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

FORMS = (
    "local",
    "hf:PATH-or-ID",
    "scripted",
    "scripted:FILE",
    "openai-compatible:NAME",
    "ollama:NAME",
    "llamacpp:NAME",
    "lmstudio:NAME",
    "vllm:NAME",
    "provider:NAME",
)
SERVERS = {
    "ollama": "http://127.0.0.1:11434/v1",
    "llamacpp": "http://127.0.0.1:8080/v1",
    "lmstudio": "http://127.0.0.1:1234/v1",
    "vllm": "http://127.0.0.1:8000/v1",
}
"""Where servers on one's own machine answer, unless a `base_url` says otherwise."""
EMBEDDER_FORMS = ("auto", "minilm", "hash", "hash:DIM", "hf:PATH")


def resolve_model(
    spec: str | BaseChatModel | ChatModel,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    context_window: int | None = None,
    kv_format: str = "q8",
    threads: int | None = None,
    kv_bytes: int = 0,
    parked_ram_bytes: int | None = None,
    dtype: str | None = None,
) -> ChatModel:
    """The model a spec names.

    Args:
        spec: one of `FORMS`, a LangChain chat model, or a `ChatModel`, which is returned as it is.
        base_url, api_key: of an endpoint.
        context_window: tokens the model can attend to, where it does not tell.
        kv_format, threads, kv_bytes, parked_ram_bytes, dtype: of the local engine.

    Raises:
        ModelNotFound: no model is called that, or its files are missing.
        ModelUnavailable: it is at a hub or server that does not answer.
        MissingExtra: a package is not installed; the message names the command.
        ConfigError: a `base_url` or key is missing.
    """
    if isinstance(spec, ChatModel):
        return spec
    if not isinstance(spec, str):
        return _wrap(spec, context_window)
    form, _, name = spec.partition(":")
    if spec == "local" or (form == "hf" and name):
        return _local(spec, kv_format, threads, kv_bytes, parked_ram_bytes, dtype)
    if form == "scripted":
        from agentmem.models.scripted import ScriptedModel, read_script

        return read_script(name) if name else ScriptedModel()
    if name and (form == "openai-compatible" or form in SERVERS):
        url = base_url or SERVERS.get(form)
        if url is None:
            raise ConfigError(
                f"The model {spec!r} needs the address of its server: give a base URL, such as "
                "http://127.0.0.1:8000/v1 (`--base-url`)."
            )
        return _openai(name, url, api_key, context_window)
    if name and form == "openai":
        if base_url is None and not (api_key or os.environ.get("OPENAI_API_KEY")):
            raise ConfigError(f"The model {spec!r} needs a key: set OPENAI_API_KEY.")
        return _openai(name, base_url, api_key, context_window)
    if name and re.fullmatch(r"[a-z][a-z0-9_-]*", form):
        return _by_provider(spec, base_url, api_key, context_window)
    raise _unknown(spec)


def resolve_embedder(spec: str | Embedder | None) -> Embedder:
    """The embedder a spec names: one of `EMBEDDER_FORMS`; None is "auto".

    Raises:
        ModelNotFound: no embedder is called that, or its files are missing.
        InvalidInput: the dimension is not a whole number above 0.
    """
    if isinstance(spec, Embedder):
        return spec
    from agentmem.models.embed import HashEmbedder, MiniLMEmbedder, default_embedder
    from agentmem.models.setup import model_dir

    form, _, name = (spec or "auto").partition(":")
    if form == "auto" and not name:
        return default_embedder()
    if form == "minilm" and not name:
        return MiniLMEmbedder(model_dir("minilm"))
    if form == "hash":
        if name and not name.isdecimal():
            raise InvalidInput(f"`hash:DIM` needs a whole number: got {spec!r}.")
        return HashEmbedder(int(name)) if name else HashEmbedder()
    if form == "hf" and name:
        return MiniLMEmbedder(Path(name).expanduser())
    near = difflib.get_close_matches(str(spec), EMBEDDER_FORMS, 1, 0.5)
    meant = f" Did you mean {near[0]!r}?" if near else ""
    raise ModelNotFound(
        f"No embedder is called {spec!r}.{meant} The forms are {', '.join(EMBEDDER_FORMS)}."
    )


def _local(
    spec: str,
    kv_format: str,
    threads: int | None,
    kv_bytes: int,
    parked_ram_bytes: int | None,
    dtype: str | None,
) -> ChatModel:
    from agentmem.models.setup import model_dir

    source = model_dir("smollm2") if spec == "local" else spec
    # After what may fail: this import takes seconds.
    from agentmem.models.local import LocalModel

    return LocalModel.load(
        source,
        kv_format=kv_format,
        threads=threads,
        kv_bytes=kv_bytes,
        parked_ram_bytes=parked_ram_bytes,
        dtype=dtype,
    )


def _wrap(spec: object, context_window: int | None) -> ChatModel:
    from langchain_core.language_models import BaseChatModel

    from agentmem.models.langchain import LangChainModel

    if not isinstance(spec, BaseChatModel):
        raise InvalidInput(
            "`model` must be a spec, a LangChain chat model or a `ChatModel`: "
            f"got {type(spec).__name__}."
        )
    return LangChainModel(spec, context_tokens=context_window)


def _openai(
    name: str, base_url: str | None, api_key: str | None, context_window: int | None
) -> ChatModel:
    try:
        from agentmem.models.openai_chat import openai_model
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f'The model {name!r} needs {error.name}: run `pip install ".[openai]"`.'
        ) from error
    return openai_model(name, base_url=base_url, api_key=api_key, context_tokens=context_window)


def _by_provider(
    spec: str, base_url: str | None, api_key: str | None, context_window: int | None
) -> ChatModel:
    """Whatever LangChain knows by `provider:name`."""
    from agentmem.models.langchain import LangChainModel

    try:
        from langchain.chat_models import init_chat_model
    except ModuleNotFoundError as error:
        if near := _nearest(spec):
            raise _unknown(spec, near) from error
        raise MissingExtra(
            f'The model {spec!r} needs LangChain: run `pip install ".[langchain]"`, and the '
            "package of the provider."
        ) from error
    given = {"base_url": base_url, "api_key": api_key}
    settings: dict[str, Any] = {key: value for key, value in given.items() if value}
    try:
        chat_model = init_chat_model(spec, **settings)
    except ImportError as error:
        raise MissingExtra(f"{error}") from error
    except ValueError as error:
        if "nsupported" in str(error) or "nable to infer" in str(error):
            raise _unknown(spec) from error
        raise ConfigError(f"The model {spec!r} cannot be opened: {error}") from error
    return LangChainModel(chat_model, name=spec, context_tokens=context_window)


def _nearest(spec: str) -> str | None:
    form, colon, name = spec.partition(":")
    heads = [one.partition(":")[0] for one in FORMS] + ["openai", "anthropic"]
    near = difflib.get_close_matches(form, heads, 1, 0.7)
    return near[0] + colon + name if near else None


def _unknown(spec: str, near: str | None = None) -> ModelNotFound:
    near = near or _nearest(spec)
    if near is None and Path(spec).expanduser().is_dir():
        near = f"hf:{spec}"
    meant = f" Did you mean {near!r}?" if near and near != spec else ""
    return ModelNotFound(f"No model is called {spec!r}.{meant} The forms are {', '.join(FORMS)}.")
