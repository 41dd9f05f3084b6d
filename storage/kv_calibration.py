"""What was learned of one model so that its keys and values can be coded with few bits.

A frozen value and its file: one safetensors of a few megabytes that names the model it is of and
carries a checksum. How many bits are spent is not in it: widths for any average are computed from
the importances. Knows nothing of how a model is calibrated.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from agentmem.errors import InvalidInput, StoreCorrupt, Unsupported
from agentmem.kernels.transform_coding import HeadTransforms, water_fill

_KIND = "agentmem-kv-calibration"
_VERSION = "1"
_IMPORTANCE_EXPONENT = 0.85
"""In other texts channels are less unlike than in the calibration's: their importances are drawn
together before bits are handed out."""
LEAST_BITS, MOST_BITS = 1.0, 4.0
"""Average bits a channel that widths are computed for."""
_FIELDS = {
    "mean": torch.float32,
    "directions": torch.float16,
    "spreads": torch.float32,
    "importances": torch.float32,
    "peaks": torch.float32,
}
"""Directions are unit vectors: float16 moves no error that can be measured, and halves the file."""


@dataclass(frozen=True, slots=True)
class LayerCalibration:
    """Transforms of one layer.

    Args:
        frequencies: (head_dim / 2,), float64: radians per position of each pair of channels.
        keys: of block-local keys in pair order, less their rotated mean.
        values: of values.
    """

    frequencies: Tensor
    keys: HeadTransforms
    values: HeadTransforms


@dataclass(frozen=True)
class KVCalibration:
    """The transforms of every layer of one model.

    Args:
        fingerprint: of the model.
        layers: in order.
    """

    fingerprint: str
    layers: tuple[LayerCalibration, ...]

    def widths(self, average_bits: float) -> tuple[tuple[Tensor, Tensor], ...]:
        """Bits of each group of four channels so that all average to this.

        Returns:
            For each layer the widths of keys and of values: (num_heads, head_dim / 4), uint8.

        Raises:
            InvalidInput: fewer than 1 bit, or more than 4.
        """
        if not LEAST_BITS <= average_bits <= MOST_BITS:
            raise InvalidInput(
                f"`average_bits` must lie in {LEAST_BITS:g} to {MOST_BITS:g}: got {average_bits}."
            )
        importances = [
            (
                layer.keys.importances.double() ** _IMPORTANCE_EXPONENT,
                layer.values.importances.double() ** _IMPORTANCE_EXPONENT,
            )
            for layer in self.layers
        ]
        return tuple(water_fill(importances, average_bits))

    @cached_property
    def nbytes(self) -> int:
        """Bytes of its tensors as they are stored."""
        return sum(tensor.nbytes for tensor in self._tensors().values())

    @cached_property
    def is_finite(self) -> bool:
        """Whether no number in it is NaN or infinite."""
        return all(bool(tensor.isfinite().all()) for tensor in self._tensors().values())

    @cached_property
    def checksum(self) -> str:
        """Of its tensors as they are stored, as hex digits."""
        return _checksum(self._tensors())

    def save(self, path: Path) -> None:
        """Write the file: whole, or not at all."""
        tensors = self._tensors()
        metadata = {
            "kind": _KIND,
            "version": _VERSION,
            "fingerprint": self.fingerprint,
            "num_layers": str(len(self.layers)),
            "sha256": self.checksum,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=path.parent) as folder:
            fresh = Path(folder) / path.name
            save_file(tensors, fresh, metadata)
            with fresh.open("rb") as file:
                os.fsync(file.fileno())
            fresh.chmod(0o644)
            fresh.replace(path)

    @staticmethod
    def load(path: Path, fingerprint: str) -> KVCalibration:
        """Read the file.

        Args:
            path: where it is.
            fingerprint: of the model it must be of.

        Raises:
            FileNotFoundError: there is none.
            StoreCorrupt: it is damaged, or no calibration.
            Unsupported: it is of another model, or of another version.
        """
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                # Clones: what is read otherwise stays mapped to the file.
                tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise StoreCorrupt(
                f"{path} cannot be read as a calibration ({error}): run `agentmem calibrate` again."
            ) from error
        if metadata.get("kind") != _KIND:
            raise StoreCorrupt(f"{path} is no calibration: it is {metadata.get('kind')!r}.")
        if metadata.get("version") != _VERSION:
            raise Unsupported(
                f"{path} is a calibration of version {metadata.get('version')!r}, this agentmem "
                f"reads {_VERSION}: run `agentmem calibrate` again."
            )
        if metadata.get("fingerprint") != fingerprint:
            raise Unsupported(
                f"{path} is the calibration of model {str(metadata.get('fingerprint'))[:12]}, not "
                f"of {fingerprint[:12]}: run `agentmem calibrate` for this one."
            )
        if metadata.get("sha256") != _checksum(tensors):
            raise StoreCorrupt(f"{path} is damaged: run `agentmem calibrate` again.")
        try:
            layers = tuple(
                LayerCalibration(
                    tensors[f"layers.{index}.frequencies"],
                    _transforms(tensors, f"layers.{index}.keys"),
                    _transforms(tensors, f"layers.{index}.values"),
                )
                for index in range(int(metadata["num_layers"]))
            )
        except (KeyError, ValueError) as error:
            raise StoreCorrupt(f"{path} is damaged: {error} is missing or malformed.") from error
        return KVCalibration(fingerprint, layers)

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {
            f"layers.{index}.{kind}.{name}": getattr(part, name).to(dtype).contiguous()
            for index, layer in enumerate(self.layers)
            for kind, part in (("keys", layer.keys), ("values", layer.values))
            for name, dtype in _FIELDS.items()
        }
        for index, layer in enumerate(self.layers):
            # A clone: layers share the tensor, which the file format refuses.
            tensors[f"layers.{index}.frequencies"] = layer.frequencies.double().clone()
        return tensors


def _transforms(tensors: Mapping[str, Tensor], prefix: str) -> HeadTransforms:
    return HeadTransforms(**{name: tensors[f"{prefix}.{name}"].float() for name in _FIELDS})


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()
