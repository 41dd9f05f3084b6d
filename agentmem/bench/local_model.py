"""The model a benchmark of the KV cache runs on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentmem.models.attached import AttachedModel


@contextmanager
def local_model(name: str, threads: int | None = None) -> Iterator[tuple[AttachedModel, Any]]:
    """A model with its attention ours, and its tokenizer.

    Args:
        name: "local" for the embedded one, or "hf:" and a folder or id.
        threads: of the CPU; None leaves them as they are.

    Raises:
        ModelNotFound: no such model.
    """
    import torch

    from agentmem.models.attached import attach
    from agentmem.models.loading import load
    from agentmem.models.setup import model_dir

    if threads is not None:
        torch.set_num_threads(threads)
    loaded = load(model_dir("smollm2") if name == "local" else name)
    attached = attach(loaded.model)
    try:
        yield attached, loaded.tokenizer
    finally:
        attached.detach()
