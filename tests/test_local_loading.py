"""What is said of a model folder that cannot be used, and who a model is."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from agentmem.errors import InvalidInput, ModelCorrupt, ModelNotFound
from agentmem.models import local
from agentmem.models.base import Options, complete
from agentmem.models.engine import engine_for
from agentmem.models.loading import LoadedModel, load, resolve
from agentmem.models.local import LocalModel
from agentmem.storage.kv_parking import Parking
from tests.chat_templates import NUMBERED
from tests.kv_models import save_family
from tests.local_models import OPTIONS, conversation, next_ids, part, spoken
from tests.tiny_models import save_tiny_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_tiny_model(tmp_path / "tiny")


def cut(name: str, keep: float) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: int(len(data) * keep)])

    return damage


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def write(name: str, text: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).write_text(text, "utf-8")

    return damage


def no_model(folder: Path) -> None:
    state = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    del state["model"]["vocab"]
    (folder / "tokenizer.json").write_text(json.dumps(state), "utf-8")


def strange_architecture(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["BertModel"]}))


def another_shape(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"hidden_size": 32}))


@pytest.mark.parametrize(
    ("damage", "error", "named"),
    [
        (remove("config.json"), ModelNotFound, "config.json"),
        (remove("tokenizer.json"), ModelNotFound, "tokenizer.json"),
        (remove("model.safetensors"), ModelNotFound, "safetensors"),
        (cut("model.safetensors", 0.5), ModelCorrupt, "model.safetensors"),
        (cut("model.safetensors", 0.0), ModelCorrupt, "model.safetensors"),
        (cut("config.json", 0.5), ModelCorrupt, "config.json"),
        (cut("tokenizer.json", 0.5), ModelCorrupt, "tokenizer.json"),
        (write("config.json", "[1]"), ModelCorrupt, "config.json"),
        (write("config.json", "{}"), ModelCorrupt, "config.json"),
        (write("tokenizer_config.json", "{"), ModelCorrupt, "tokenizer_config.json"),
        (no_model, ModelCorrupt, "tokenizer"),
        (strange_architecture, ModelCorrupt, "BertModel"),
        (another_shape, ModelCorrupt, "tiny"),
        (write("model.safetensors.index.json", '{"weight_map": {"a": "model-2.safetensors"}}'),
         ModelNotFound, "model-2.safetensors"),
    ],
)  # fmt: skip
def test_a_damaged_folder_is_named_with_the_file_and_what_to_do(
    folder: Path, damage: Callable[[Path], None], error: type[Exception], named: str
) -> None:
    damage(folder)
    with pytest.raises(error, match="run `agentmem setup`") as caught:
        LocalModel.load(folder)
    assert named in str(caught.value) and str(folder) in str(caught.value)


def test_a_missing_folder_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="nowhere"):
        LocalModel.load(tmp_path / "nowhere")


def test_an_id_that_was_never_downloaded_is_not_found_and_not_fetched() -> None:
    with pytest.raises(ModelNotFound, match="hf download owner/name"):
        LocalModel.load("hf:owner/name")


def test_an_id_is_found_in_the_local_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    hub = folder.parent / "hub"
    repo = hub / "models--owner--name"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text("abc")
    (repo / "snapshots").mkdir()
    folder.rename(repo / "snapshots" / "abc")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(hub))
    assert resolve("hf:owner/name") == repo / "snapshots" / "abc"


def test_a_folder_may_be_named_with_or_without_its_kind(folder: Path) -> None:
    assert resolve(f"hf:{folder}") == resolve(folder) == folder


def test_code_that_comes_with_a_model_is_never_run(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config |= {"model_type": "strange", "auto_map": {"AutoConfig": "code.Config",
               "AutoModelForCausalLM": "code.Model"}}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text(f"open({str(folder / 'ran')!r}, 'w')")
    with pytest.raises(ModelCorrupt):
        LocalModel.load(folder)
    assert not (folder / "ran").exists()


def test_a_model_is_loaded_once_and_let_go_when_nobody_holds_it(folder: Path) -> None:
    first, second = load(folder), load(f"hf:{folder}")
    assert first is second and load(folder, dtype="bfloat16") is not first
    model = LocalModel.load(folder)
    assert model._engine is LocalModel.load(folder)._engine
    assert model._engine.loaded is first
    weights = weakref.ref(first.model)
    del first, second, model
    gc.collect()
    assert weights() is None


def test_parked_kv_may_take_a_sixteenth_of_the_weights_in_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load(folder)
    parameters = sum(each.numel() for each in loaded.model.parameters())
    assert loaded.weights_bytes >= 4 * parameters
    engine = engine_for(loaded)
    given: list[int] = []

    def parking(max_bytes: int) -> Parking:
        given.append(max_bytes)
        return Parking(max_bytes)

    monkeypatch.setattr(local, "Parking", parking)
    LocalModel(engine)
    monkeypatch.setattr(LoadedModel, "weights_bytes", 2**34)
    LocalModel(engine)
    LocalModel(engine, parked_ram_bytes=0)
    assert given == [32 * 2**20, 2**30, 0]


def test_the_fingerprint_tells_models_apart(tmp_path: Path, folder: Path) -> None:
    same = load(folder).fingerprint
    # The same weights read other words: their KV is still theirs.
    assert load(save_tiny_model(tmp_path / "template", NUMBERED)).fingerprint == same
    others = {
        load(folder, dtype="bfloat16").fingerprint,
        load(save_tiny_model(tmp_path / "seed", seed=1)).fingerprint,
        load(
            save_tiny_model(
                tmp_path / "rope", rope_parameters={"rope_type": "default", "rope_theta": 5e5}
            )
        ).fingerprint,
    }
    assert len(others) == 3 and same not in others
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    assert load(copy).fingerprint == same


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"dtype": "int3"}, "dtype"),
        ({"threads": 0}, "threads"),
        ({"chunk_tokens": 0}, "chunk_tokens"),
        ({"kv_format": "zip"}, "format"),
        ({"parked_ram_bytes": -1}, "max_bytes"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(
    folder: Path, options: dict[str, object], named: str
) -> None:
    with pytest.raises(InvalidInput, match=named):
        LocalModel.load(folder, **options)  # type: ignore[arg-type]


def test_a_template_that_cannot_be_taken_apart_is_read_as_text(tmp_path: Path) -> None:
    model = LocalModel.load(save_tiny_model(tmp_path, NUMBERED))
    assert not model.capabilities.has_kv and model.kv is None
    assert "chat template" in model.kv_problem and model.kv_problem == model.template_problem
    prompt = conversation(2)
    first = complete(model, prompt, OPTIONS)
    assert "<|im_start|>user 2\nThe lazy dog number 0" in model.window_text()
    prompt += [part(50, "assistant", first.text), part(51, "user", "Why?")]
    second = complete(model, prompt, OPTIONS)
    assert second.prefilled_tokens < second.prompt_tokens
    assert model.count_tokens(prompt[0]) > 0


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("dynamic", "llama uses dynamic RoPE: its frequencies change with the length"),
        ("longrope", "phi3 uses longrope RoPE: its frequencies change with the length"),
        ("deepseek_v3", "deepseek_v3 uses latent attention (MLA): its cache holds no heads to"),
    ],
)
def test_a_refused_model_says_why_in_one_line_and_reads_text(
    family: str, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = save_family(tmp_path / family, family)
    with caplog.at_level("WARNING", "agentmem"):
        model, other = LocalModel.load(folder), LocalModel.load(folder)
    (line,) = [record.getMessage() for record in caplog.records if "agentmem" in record.name]
    assert line.startswith(f"{family} runs without a KV tier, on text: {reason}")
    assert line.endswith(model.kv_problem) and "\n" not in line
    assert model.kv is None and not model.capabilities.has_kv
    prompt = conversation(2)
    complete(model, prompt, OPTIONS)
    assert spoken(model) == next_ids(model, prompt, len(spoken(model)))
    assert other.kv_problem == model.kv_problem


def test_a_model_without_a_template_speaks_in_lines(tmp_path: Path) -> None:
    model = LocalModel.load(save_tiny_model(tmp_path, None))
    prompt = conversation(2)
    completion = complete(model, prompt, Options(max_new_tokens=8))
    assert model.window_text().endswith("User: The lazy dog number 1 jumps over a fox.\n")
    assert "\nUser:" not in completion.text
