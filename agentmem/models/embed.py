"""Models that turn texts into vectors: all-MiniLM-L6-v2, and hashed words that need no model.

Knows texts and vectors; nothing of segments or of where vectors are kept. An embedder's name is
the space its vectors live in: other weights or another dimension give another name.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agentmem.errors import InvalidInput, ModelCorrupt, ModelNotFound
from agentmem.models.base import Embedder
from agentmem.models.manifest import weights_hash
from agentmem.models.setup import model_dir

if TYPE_CHECKING:
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

WINDOW_PIECES = 256
"""Word pieces the model reads at once, the two that frame them included: as in its training."""
MAX_WINDOWS = 32
"""A longer text is represented by so many windows, evenly spread."""
_loading = threading.Lock()


class MiniLMEmbedder(Embedder):
    """A BERT-like sentence embedder: masked mean pooling, then unit length.

    A text longer than a window is the mean of its windows, each weighted by its pieces. Weights are
    loaded at the first call, once in a process; torch's number of threads is left alone.

    Args:
        path: a folder with config.json, model.safetensors and tokenizer.json.
        batch_size: windows of one forward.

    Raises:
        ModelNotFound: the folder lacks a file.
    """

    def __init__(self, path: str | Path, *, batch_size: int = 32) -> None:
        self.path = Path(path)
        for name in ("config.json", "model.safetensors", "tokenizer.json"):
            if not (self.path / name).is_file():
                raise ModelNotFound(f"An embedder's folder must hold {name}: {self.path} does not.")
        self.dim = int(json.loads((self.path / "config.json").read_text("utf-8"))["hidden_size"])
        self.name = f"minilm:{weights_hash(self.path)[:12]}:{self.dim}"
        self._batch_size = batch_size

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of shape (len(texts), dim), float32, unit length."""
        vectors = np.zeros((len(texts), self.dim), np.float32)
        if not texts:
            return vectors
        model, tokenizer = _loaded(self.path)
        # Half of a surrogate pair is no text for a tokenizer.
        clean = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]
        windows = [
            (row, window)
            for row, pieces in enumerate(tokenizer.encode_batch(clean, add_special_tokens=False))
            for window in _windows(pieces.ids, WINDOW_PIECES - 2)
        ]
        # Texts of one length share a forward, so that little of it is padding.
        windows.sort(key=lambda one: len(one[1]))
        for start in range(0, len(windows), self._batch_size):
            batch = windows[start : start + self._batch_size]
            pooled = self._pool(model, tokenizer, [window for _, window in batch])
            for (row, window), vector in zip(batch, pooled, strict=True):
                vectors[row] += vector * (len(window) + 2)
        return _unit(vectors)

    def _pool(self, model: Any, tokenizer: Any, windows: list[list[int]]) -> NDArray[np.float32]:
        """Mean of the last hidden states over each window: (len(windows), dim)."""
        import torch

        longest = max(map(len, windows)) + 2
        opens, closes, pad = map(tokenizer.token_to_id, ("[CLS]", "[SEP]", "[PAD]"))
        ids = torch.full((len(windows), longest), pad)
        mask = torch.zeros_like(ids)
        for row, window in enumerate(windows):
            framed = [opens, *window, closes]
            ids[row, : len(framed)] = torch.tensor(framed)
            mask[row, : len(framed)] = 1
        with torch.inference_mode():
            hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        pooled: NDArray[np.float32] = ((hidden * weights).sum(1) / weights.sum(1)).numpy()
        return pooled


class HashEmbedder(Embedder):
    """Words and their trigrams, hashed into signed buckets: lexical, without a model.

    Texts that share words or parts of words are near; synonyms are not. An empty text is a fixed
    unit vector.

    Args:
        dim: number of buckets.
    """

    def __init__(self, dim: int = 384) -> None:
        if dim < 1:
            raise InvalidInput(f"`dim` must be at least 1: got {dim}.")
        self.dim = dim
        self.name = f"hash:{dim}"

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of shape (len(texts), dim), float32, unit length."""
        vectors = np.zeros((len(texts), self.dim), np.float32)
        for row, text in enumerate(texts):
            for feature, weight in _features(text).items():
                bucket = _bucket(feature)
                # The lowest bit is the sign, so that what collides cancels on average.
                sign = 1.0 if bucket & 1 else -1.0
                vectors[row, (bucket >> 1) % self.dim] += sign * np.sqrt(weight)
        return _unit(vectors)


def default_embedder() -> Embedder:
    """The embedded embedder; hashed words where it has not been set up.

    Raises:
        ModelCorrupt: its files are damaged.
    """
    try:
        return MiniLMEmbedder(model_dir("minilm"))
    except ModelNotFound as error:
        logger.info("%s Until then texts are compared by their words.", error)
        return HashEmbedder()


def _loaded(path: Path) -> tuple[Any, Any]:
    """The model and the tokenizer of a folder, shared by all that embed with it."""
    # Without the lock, two threads would both load the weights.
    with _loading:
        return _load(path)


@lru_cache(maxsize=2)
def _load(path: Path) -> tuple[Any, Any]:
    import torch
    from safetensors import SafetensorError
    from tokenizers import Tokenizer
    from transformers import AutoModel

    from agentmem.models.quiet import quiet_libraries

    try:
        with quiet_libraries():
            model = AutoModel.from_pretrained(path, dtype=torch.float32, local_files_only=True)
        tokenizer = Tokenizer.from_str((path / "tokenizer.json").read_text("utf-8"))
    except (OSError, SafetensorError, ValueError) as error:
        raise ModelCorrupt(
            f"Cannot load the embedder in {path}: {error}. Run `agentmem setup --force`."
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return model.eval(), tokenizer


def _windows(pieces: list[int], size: int) -> Iterator[list[int]]:
    starts = range(0, max(len(pieces), 1), size)
    if len(starts) > MAX_WINDOWS:
        last = len(starts) - 1
        starts_kept = [starts[round(i * last / (MAX_WINDOWS - 1))] for i in range(MAX_WINDOWS)]
    else:
        starts_kept = list(starts)
    for start in starts_kept:
        yield pieces[start : start + size]


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows of unit length; a row of zeros becomes the first axis."""
    vectors[~vectors.any(axis=1), 0] = 1.0
    norms: NDArray[np.float32] = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / norms


def _features(text: str) -> Counter[str]:
    features: Counter[str] = Counter()
    for word in re.findall(r"\w+", text.casefold()):
        # A word weighs as much as four of its trigrams.
        features[word] += 4
        framed = f"^{word}$"
        for start in range(len(framed) - 2):
            features["3:" + framed[start : start + 3]] += 1
    return features


@lru_cache(maxsize=65536)
def _bucket(feature: str) -> int:
    encoded = feature.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(encoded, digest_size=8).digest(), "little")
