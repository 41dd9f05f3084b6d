"""The embedded models' place on disk.

Knows files, hashes and pip; does not know what a model is used for.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from agentmem.errors import ModelNotFound

ModelName = Literal["smollm2", "minilm"]


def models_home() -> Path:
    """The folder that holds the embedded models: `$XDG_CACHE_HOME/agentmem/models`."""
    if override := os.environ.get("AGENTMEM_MODELS_HOME"):
        return Path(override)
    import platformdirs

    return Path(platformdirs.user_cache_dir("agentmem")) / "models"


def model_dir(name: ModelName, *, home: Path | None = None) -> Path:
    """The folder of an embedded model.

    Raises:
        ModelNotFound: it has not been set up.
    """
    path = (home or models_home()) / name
    if not (path / "config.json").is_file():
        raise ModelNotFound(f"The embedded model `{name}` is not in {path}: run `agentmem setup`.")
    return path
