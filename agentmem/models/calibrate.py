"""Calibrations of models: make one, keep it beside the embedded models, find it again.

A calibration is filed under the fingerprint of the model it is of, so that another model, dtype or
rotation never meets it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from agentmem.errors import ModelNotFound, ModelUnavailable, StoreCorrupt, Unsupported
from agentmem.kernels.transform_coding import fit_transforms
from agentmem.models.attached import AttachedModel, attach
from agentmem.models.calibration import collect_moments, measure_peaks
from agentmem.models.calibration_text import CalibrationText, calibration_texts
from agentmem.models.calibration_weights import measure_weights
from agentmem.models.loading import load
from agentmem.models.setup import model_dir, models_home
from agentmem.storage.kv_calibration import KVCalibration, LayerCalibration

NUM_TEXTS = 24
CONTEXT_TOKENS = 1156
"""Of each text: 17 stretches, what is skipped before and what is recent behind them."""
_NUM_PEAK_TEXTS = 8
_NUM_WEIGHT_TEXTS = 2


@dataclass(frozen=True, slots=True)
class StoredCalibration:
    """A calibration in its place. `is_new` tells whether it was made just now."""

    model: str
    fingerprint: str
    path: Path
    nbytes: int
    is_new: bool
    seconds: float


def calibration_path(fingerprint: str, *, home: Path | None = None) -> Path:
    """Where the calibration of that model is, or would be."""
    return (home or models_home()) / "calibrations" / f"{fingerprint[:32]}.safetensors"


def load_calibration(attached: AttachedModel, *, home: Path | None = None) -> KVCalibration:
    """The model's calibration.

    Raises:
        ModelNotFound: it was never calibrated; the message says what to run.
        StoreCorrupt: the file is damaged.
        Unsupported: the file is of another model, or of another version.
    """
    path = calibration_path(attached.fingerprint, home=home)
    try:
        return KVCalibration.load(path, attached.fingerprint)
    except FileNotFoundError as error:
        name = attached.model.config.name_or_path or "MODEL"
        raise ModelNotFound(
            f"The klt format needs a calibration of this model, and there is none at {path}: run "
            f"`agentmem calibrate {name}`, which takes minutes, once."
        ) from error


def calibrate(
    attached: AttachedModel,
    texts: Iterable[CalibrationText],
    *,
    gradients: bool = True,
    progress: Callable[[str], None] = lambda line: None,
) -> KVCalibration:
    """Read the texts and fit the transforms.

    Args:
        attached: the model.
        texts: what it reads.
        gradients: differentiate it: better, but it must fit in memory with what a backward needs.
        progress: told, a line at a time, how far it is.

    Raises:
        InvalidInput: there are no texts.
        Unsupported: the model cannot be differentiated, or computes NaN or infinity.
    """
    texts = list(texts)
    moments = collect_moments(
        attached,
        texts,
        gradients=gradients,
        progress=lambda done, total: progress(f"read {done} of {total} texts"),
    )
    if not gradients:
        moments = measure_weights(
            attached,
            texts[:_NUM_WEIGHT_TEXTS],
            moments,
            lambda done, total: progress(f"compared {done} of {total} layers"),
        )
    transforms = measure_peaks(attached, texts[:_NUM_PEAK_TEXTS], fit_transforms(moments))
    layers = tuple(
        LayerCalibration(one.frequencies, keys, values)
        for one, (keys, values) in zip(moments, transforms, strict=True)
    )
    calibration = KVCalibration(attached.fingerprint, layers)
    if not calibration.is_finite:
        raise Unsupported(
            f"{type(attached.model).__name__} computed NaN or infinity: it cannot be calibrated."
        )
    return calibration


def calibrate_model(
    spec: str,
    *,
    gradients: bool = True,
    force: bool = False,
    num_texts: int = NUM_TEXTS,
    progress: Callable[[str], None] = lambda line: None,
    home: Path | None = None,
) -> StoredCalibration:
    """Calibrate a model once and keep the result; do nothing where it is there and whole.

    Args:
        spec: local, `hf:PATH` or a folder.
        gradients: as `calibrate`.
        force: calibrate it even so.
        num_texts: how many it reads.
        progress: told, a line at a time, how far it is.
        home: the models' folder; by default `models_home()`.

    Raises:
        ModelNotFound, ModelCorrupt: there is no such model, or its files are damaged.
        ModelUnavailable: the folder cannot be written.
        Unsupported: the model cannot be served from segments, or not calibrated.
    """
    began = time.monotonic()
    loaded = load(model_dir("smollm2", home=home) if spec == "local" else spec)
    with loaded.lock:
        attached = attach(loaded.model)
        try:
            path = calibration_path(attached.fingerprint, home=home)
            is_new = force or not _is_whole(path, attached.fingerprint)
            if is_new:
                progress(f"{loaded.name}: calibrating, {num_texts} texts of a few seconds each ...")
                calibration = calibrate(
                    attached,
                    calibration_texts(loaded.tokenizer, num_texts, CONTEXT_TOKENS),
                    gradients=gradients,
                    progress=progress,
                )
                _save(calibration, path)
            return StoredCalibration(
                model=loaded.name,
                fingerprint=attached.fingerprint,
                path=path,
                nbytes=path.stat().st_size,
                is_new=is_new,
                seconds=time.monotonic() - began,
            )
        finally:
            attached.detach()


def _is_whole(path: Path, fingerprint: str) -> bool:
    try:
        KVCalibration.load(path, fingerprint)
    except (FileNotFoundError, StoreCorrupt, Unsupported):
        return False
    return True


def _save(calibration: KVCalibration, path: Path) -> None:
    try:
        calibration.save(path)
    except OSError as error:
        raise ModelUnavailable(
            f"Cannot write the calibration to {path}: {error}. Free space or rights there, or "
            "choose another folder with AGENTMEM_MODELS_HOME."
        ) from error
