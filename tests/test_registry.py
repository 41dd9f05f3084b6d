"""A spec names a model; what cannot be opened says what to do."""

from __future__ import annotations

import builtins
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models.fake_chat_models import FakeListChatModel

from agentmem.errors import ConfigError, InvalidInput, MissingExtra, ModelNotFound, Unsupported
from agentmem.models.base import Options, Part, complete
from agentmem.models.embed import HashEmbedder, MiniLMEmbedder
from agentmem.models.langchain import LangChainModel
from agentmem.models.registry import FORMS, resolve_embedder, resolve_model
from agentmem.models.scripted import ScriptedModel
from agentmem.segment import Message
from tests.fake_openai import reply, serving

PROMPT = [Part(1, (Message("user", "Hi."),))]


def hide(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Make a package look as if it were not installed."""
    real = builtins.__import__

    def importing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == package:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
        return real(name, *args, **kwargs)

    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "agentmem.models.openai_chat", raising=False)
    monkeypatch.setattr(builtins, "__import__", importing)


def test_a_model_is_returned_as_it_is_and_a_langchain_model_is_wrapped() -> None:
    scripted = ScriptedModel()
    assert resolve_model(scripted) is scripted
    wrapped = resolve_model(FakeListChatModel(responses=["x"]), context_window=99)
    assert isinstance(wrapped, LangChainModel)
    assert wrapped.capabilities.context_tokens == 99


def test_scripted_says_ok_and_a_script_file_says_what_is_in_it(tmp_path: Path) -> None:
    assert complete(resolve_model("scripted"), PROMPT, Options()).text == "ok."
    (tmp_path / "script.jsonl").write_text('"Good day."\n', "utf-8")
    model = resolve_model(f"scripted:{tmp_path / 'script.jsonl'}")
    assert complete(model, PROMPT, Options()).text == "Good day."


def test_local_without_its_files_says_how_to_get_them() -> None:
    with pytest.raises(ModelNotFound, match="run `agentmem setup`"):
        resolve_model("local")


def test_local_is_the_embedded_model(embedded_models: Path) -> None:
    model = resolve_model("local", kv_format="dense")
    assert model.capabilities.has_kv
    assert model.count_tokens(PROMPT[0]) > 0
    model.close()


def test_the_local_engine_refuses_words_it_does_not_know(embedded_models: Path) -> None:
    with pytest.raises((InvalidInput, Unsupported), match="q9"):
        resolve_model("local", kv_format="q9")
    with pytest.raises((InvalidInput, Unsupported), match="int3"):
        resolve_model("local", dtype="int3")


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="nowhere"):
        resolve_model(f"hf:{tmp_path / 'nowhere'}")


def test_a_compatible_server_is_asked_at_its_address() -> None:
    with serving(reply("Hello.")) as server:
        model = resolve_model("openai-compatible:m", base_url=server.url, api_key="secret")
        assert complete(model, PROMPT, Options()).text == "Hello."
        model.close()
    assert server.requests[0]["model"] == "m"
    assert server.headers[0]["authorization"] == "Bearer secret"
    assert model.name == "openai-compatible:m"


def test_a_compatible_server_needs_an_address_but_the_known_ones_have_one() -> None:
    with pytest.raises(ConfigError, match="--base-url"):
        resolve_model("openai-compatible:m")
    model = resolve_model("ollama:qwen3:4b")
    assert isinstance(model, LangChainModel)
    assert getattr(model.chat_model, "openai_api_base", "") == "http://127.0.0.1:11434/v1"
    assert getattr(model.chat_model, "model_name", "") == "qwen3:4b"
    model.close()


def test_openai_needs_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        resolve_model("openai:gpt-5")
    model = resolve_model("openai:gpt-5", api_key="secret")
    assert model.name == "openai:gpt-5"
    assert not model.capabilities.alternates_roles
    model.close()


def test_a_missing_extra_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "langchain_openai")
    with pytest.raises(MissingExtra, match=r'pip install "\.\[openai\]"'):
        resolve_model("openai:gpt-5", api_key="x")
    hide(monkeypatch, "langchain")
    with pytest.raises(MissingExtra, match=r'pip install "\.\[langchain\]"'):
        resolve_model("mistralai:large")
    with pytest.raises(ModelNotFound, match="Did you mean 'openai:gpt-5'"):
        resolve_model("opnai:gpt-5")


def test_a_providers_missing_package_is_named() -> None:
    with pytest.raises(MissingExtra, match="langchain-mistralai"):
        resolve_model("mistralai:mistral-large")


@pytest.mark.parametrize(
    ("spec", "meant"),
    [
        ("locl", "'local'"),
        ("scriptd:x.jsonl", "'scripted:x.jsonl'"),
        ("openai-compatble:m", "'openai-compatible:m'"),
        ("opnai:gpt-5", "'openai:gpt-5'"),
    ],
)
def test_an_unknown_spec_names_the_nearest_and_all_forms(spec: str, meant: str) -> None:
    with pytest.raises(ModelNotFound) as caught:
        resolve_model(spec)
    assert f"Did you mean {meant}?" in str(caught.value)
    assert all(form in str(caught.value) for form in FORMS)


@pytest.mark.parametrize("spec", ["", ":", "hf:", "gpt 5", "???"])
def test_what_is_no_spec_at_all_is_refused(spec: str) -> None:
    with pytest.raises(ModelNotFound, match="The forms are"):
        resolve_model(spec)


def test_a_folder_is_recognised(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=f"Did you mean 'hf:{tmp_path}'"):
        resolve_model(str(tmp_path))


def test_an_object_that_is_no_model_is_refused() -> None:
    with pytest.raises(InvalidInput, match="got int"):
        resolve_model(7)  # type: ignore[arg-type]


def test_embedders_have_specs_too(minilm_dir: Path) -> None:
    assert resolve_embedder("hash").dim == 384
    assert resolve_embedder("hash:64").dim == 64
    assert isinstance(resolve_embedder(f"hf:{minilm_dir}"), MiniLMEmbedder)
    embedder = HashEmbedder()
    assert resolve_embedder(embedder) is embedder
    with pytest.raises(ModelNotFound, match="Did you mean 'minilm'"):
        resolve_embedder("minilmm")
    with pytest.raises(ModelNotFound, match="run `agentmem setup`"):
        resolve_embedder("minilm")
    with pytest.raises(InvalidInput, match="whole number"):
        resolve_embedder("hash:big")


def test_the_automatic_embedder_is_the_embedded_one_where_it_is_set_up(
    monkeypatch: pytest.MonkeyPatch, minilm_dir: Path
) -> None:
    assert isinstance(resolve_embedder(None), HashEmbedder)
    monkeypatch.setenv("AGENTMEM_MODELS_HOME", str(minilm_dir.parent))
    assert isinstance(resolve_embedder(None), MiniLMEmbedder)


def test_the_registry_imports_nothing_heavy() -> None:
    code = (
        "import sys; import agentmem.models.registry as r; r.resolve_model('scripted');"
        "r.resolve_embedder('hash');"
        "heavy = ('torch', 'transformers', 'langchain_core', 'faiss');"
        "print([name for name in heavy if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        cwd=Path(__file__).parents[1],
    )  # fmt: skip
    assert result.stdout.strip() == "[]"
