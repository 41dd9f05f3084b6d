"""Load a model's weights and tokenizer from a folder, once per process.

Conversations share what is loaded here. No code that comes with a model is ever run, and nothing is
downloaded: an id is looked up in the local Hugging Face cache.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
from safetensors import SafetensorError, safe_open

from agentmem.errors import InvalidInput, ModelCorrupt, ModelNotFound
from agentmem.models.fingerprint import fingerprint
from agentmem.models.quiet import quiet_libraries

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_SETUP = "run `agentmem setup`, or pass the folder of a transformers model"
_PREFIX = "hf:"


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """Weights and tokenizer, shared by every conversation of the process.

    Args:
        folder: where they came from.
        name: the folder's name.
        model: the transformers model, in evaluation mode.
        tokenizer: the transformers tokenizer.
        fingerprint: what a KV record of this model is filed under.
        lock: held during a forward: the attention function of a model is shared too.
    """

    folder: Path
    name: str
    model: Any
    tokenizer: Any
    fingerprint: str
    lock: threading.RLock

    @property
    def context_tokens(self) -> int:
        """Tokens the model can attend to; 0 where its configuration does not say."""
        config = self.model.config.get_text_config()
        return int(getattr(config, "max_position_embeddings", 0) or 0)

    @property
    def vocab_size(self) -> int:
        """Logits of the model."""
        return int(self.model.config.get_text_config().vocab_size)

    @property
    def weights_bytes(self) -> int:
        """Of parameters and buffers."""
        return int(self.model.get_memory_footprint())

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = self.model.device
        return device


_loaded: WeakValueDictionary[tuple[Path, str, str], LoadedModel] = WeakValueDictionary()
_loading = threading.Lock()


def load(spec: str | Path, *, dtype: str = "float32", device: str = "cpu") -> LoadedModel:
    """The model of a folder, or of `hf:PATH-or-ID`; the same object while anybody holds it.

    Args:
        spec: folder, `hf:folder` or `hf:owner/name` in the local Hugging Face cache.
        dtype: of the weights; on a CPU float32 is the fastest.
        device: of the weights.

    Raises:
        ModelNotFound: no such folder or id, or files are missing.
        ModelCorrupt: files are damaged.
        InvalidInput: no such dtype.
    """
    if dtype not in _DTYPES:
        raise InvalidInput(f"`dtype` must be one of {', '.join(_DTYPES)}: got {dtype!r}.")
    folder = resolve(spec).resolve()
    with _loading:
        key = (folder, dtype, device)
        loaded = _loaded.get(key)
        if loaded is None:
            loaded = _load(folder, dtype, device)
            _loaded[key] = loaded
        return loaded


def resolve(spec: str | Path) -> Path:
    """The folder a model specification names.

    Raises:
        ModelNotFound: there is none.
    """
    text = str(spec)
    is_hub = text.startswith(_PREFIX)
    text = text.removeprefix(_PREFIX)
    path = Path(text).expanduser()
    if path.is_dir():
        return path
    if is_hub and text.count("/") == 1 and not text.startswith((".", "/", "~")):
        return _in_hub_cache(text)
    raise ModelNotFound(f"No model folder at {path}: {_SETUP}.")


def _in_hub_cache(model_id: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model_id, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError) as error:
        raise ModelNotFound(
            f"`{model_id}` is neither a folder nor in the local Hugging Face cache: "
            f"download it with `hf download {model_id}`."
        ) from error


def _load(folder: Path, dtype: str, device: str) -> LoadedModel:
    check_files(folder)
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with quiet_libraries():
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
            raise ModelCorrupt(
                f"{folder}: the tokenizer cannot be read ({error}); {_SETUP}."
            ) from error
        try:
            model = AutoModelForCausalLM.from_pretrained(
                folder, dtype=_DTYPES[dtype], local_files_only=True
            )
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
            raise ModelCorrupt(
                f"{folder}: the model cannot be read ({error}); {_SETUP}."
            ) from error
    model = model.to(device).eval().requires_grad_(False)
    identity = fingerprint(folder, model.config, dtype)
    return LoadedModel(folder, folder.name, model, tokenizer, identity, threading.RLock())


def check_files(folder: Path) -> None:
    """Name the file that is missing or damaged, before a library fails in its own words.

    Raises:
        ModelNotFound: a file is missing.
        ModelCorrupt: a file is damaged.
    """
    config = folder / "config.json"
    if not config.is_file():
        raise ModelNotFound(f"{folder} is not a model folder: it has no config.json; {_SETUP}.")
    architectures = _read_json(config).get("architectures") or []
    if not any("CausalLM" in name or "ConditionalGeneration" in name for name in architectures):
        raise ModelCorrupt(
            f"{config} does not describe a model that writes text: architectures {architectures}; "
            f"{_SETUP}."
        )
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.is_file():
        raise ModelNotFound(f"{folder} has no tokenizer.json; {_SETUP}.")
    # The tokenizers library raises a bare `Exception` for such a file.
    if not (_read_json(tokenizer).get("model") or {}).get("vocab"):
        raise ModelCorrupt(f"{tokenizer} has no vocabulary; {_SETUP}.")
    for name in ("tokenizer_config.json", "generation_config.json"):
        if (folder / name).is_file():
            _read_json(folder / name)
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        raise ModelNotFound(f"{folder} has no weights (*.safetensors); {_SETUP}.")
    for path in weights:
        try:
            with safe_open(path, framework="pt") as file:
                file.keys()
        except (SafetensorError, OSError) as error:
            raise ModelCorrupt(f"{path} is damaged or cut short ({error}); {_SETUP}.") from error
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        named = set(_read_json(index).get("weight_map", {}).values())
        for name in sorted(named - {path.name for path in weights}):
            raise ModelNotFound(f"{folder / name} is missing: {index.name} names it; {_SETUP}.")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelCorrupt(f"{path} is not readable JSON ({error}); {_SETUP}.") from error
    if not isinstance(value, dict):
        raise ModelCorrupt(
            f"{path} must hold a JSON object: got a {type(value).__name__}; {_SETUP}."
        )
    return value
