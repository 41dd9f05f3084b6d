"""Who a model is: what must be equal before one process may use another's KV.

KV computed by other weights, another tokenizer, dtype or RoPE is garbage, not an approximation.
Knows files and configurations, no tensors.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_WEIGHT_SUFFIXES = (".safetensors", ".bin")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")
_SAMPLED_BYTES = 1 << 20


def fingerprint(folder: Path, config: Any, dtype: str) -> str:
    """32 hex digits over configuration, weights, tokenizer, dtype and RoPE.

    Of a weights file its size, first and last megabyte count: the header with every tensor's place
    stands at its beginning.

    Args:
        folder: the model's files.
        config: the transformers configuration.
        dtype: of the loaded weights.
    """
    digest = hashlib.sha256()
    facts = {
        "config": json.loads((folder / "config.json").read_text("utf-8")),
        "rope": getattr(config, "rope_parameters", None),
        "dtype": dtype,
    }
    digest.update(json.dumps(facts, sort_keys=True, default=str).encode())
    for path in _files(folder, _WEIGHT_SUFFIXES):
        size = path.stat().st_size
        digest.update(f"{path.name}:{size}".encode())
        with path.open("rb") as file:
            digest.update(file.read(_SAMPLED_BYTES))
            file.seek(max(0, size - _SAMPLED_BYTES))
            digest.update(file.read(_SAMPLED_BYTES))
    for name in _TOKENIZER_FILES:
        if (folder / name).is_file():
            digest.update((folder / name).read_bytes())
    return digest.hexdigest()[:32]


def _files(folder: Path, suffixes: Iterable[str]) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix in tuple(suffixes))
