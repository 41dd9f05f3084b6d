"""A calibration's file: what is saved comes back, what is foreign or damaged is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from agentmem.errors import InvalidInput, StoreCorrupt, Unsupported
from agentmem.kernels.page_table import PAGES_PER_STRETCH
from agentmem.kernels.transform_coding import HeadTransforms, rotated_mean
from agentmem.storage.kv_calibration import KVCalibration, LayerCalibration
from agentmem.storage.kv_format import LayerShape, phases_of
from agentmem.storage.kv_klt import KltFormat

FINGERPRINT = "0123456789abcdef" * 4
SHAPES = ((2, 16), (1, 32))


def transforms(heads: int, head_dim: int, generator: torch.Generator) -> HeadTransforms:
    directions = torch.linalg.qr(torch.randn((heads, head_dim, head_dim), generator=generator))[0]
    falling = torch.logspace(0, -3, head_dim).expand(heads, -1)
    return HeadTransforms(
        mean=torch.randn((heads, head_dim), generator=generator),
        directions=directions,
        spreads=falling.sqrt(),
        importances=falling.clone(),
        peaks=torch.full((heads, head_dim), 4.0),
    )


def calibration(seed: int = 0) -> KVCalibration:
    generator = torch.Generator().manual_seed(seed)
    layers = tuple(
        LayerCalibration(
            torch.linspace(1, 0, head_dim // 2, dtype=torch.float64),
            transforms(heads, head_dim, generator),
            transforms(heads, head_dim, generator),
        )
        for heads, head_dim in SHAPES
    )
    return KVCalibration(FINGERPRINT, layers)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "deep" / "calibration.safetensors"
    calibration().save(path)
    return path


def test_what_is_saved_comes_back_with_directions_in_half_precision(saved: Path) -> None:
    expected, found = calibration(), KVCalibration.load(saved, FINGERPRINT)
    assert found.fingerprint == FINGERPRINT and found.nbytes == expected.nbytes
    for before, after in zip(expected.layers, found.layers, strict=True):
        assert torch.equal(before.frequencies, after.frequencies)
        for mine, theirs in ((before.keys, after.keys), (before.values, after.values)):
            for name in ("mean", "spreads", "importances", "peaks"):
                assert torch.equal(getattr(mine, name), getattr(theirs, name))
            assert torch.equal(mine.directions.half().float(), theirs.directions)
            # However directions were rounded, the inverse is theirs.
            product = theirs.forward @ theirs.inverse
            assert torch.allclose(
                product, torch.eye(product.shape[-1]).expand_as(product), atol=1e-4
            )


def test_the_calibration_of_another_model_is_refused(saved: Path) -> None:
    with pytest.raises(Unsupported, match="calibration of model 0123456789ab, not of ffff"):
        KVCalibration.load(saved, "f" * 64)


def test_a_missing_file_is_told_from_a_damaged_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        KVCalibration.load(tmp_path / "none.safetensors", FINGERPRINT)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.6, 0.999])
def test_one_changed_byte_anywhere_is_found(saved: Path, share: float) -> None:
    data = bytearray(saved.read_bytes())
    data[int(share * len(data))] ^= 0x40
    saved.write_bytes(data)
    with pytest.raises((StoreCorrupt, Unsupported)):
        KVCalibration.load(saved, FINGERPRINT)


@pytest.mark.parametrize("length", [0, 4, 200, 5000])
def test_a_truncated_file_is_corrupt(saved: Path, length: int) -> None:
    saved.write_bytes(saved.read_bytes()[:length])
    with pytest.raises(StoreCorrupt):
        KVCalibration.load(saved, FINGERPRINT)


def test_another_safetensors_file_is_no_calibration(saved: Path) -> None:
    save_file({"x": torch.zeros(1)}, saved)
    with pytest.raises(StoreCorrupt, match="no calibration"):
        KVCalibration.load(saved, FINGERPRINT)


def test_a_newer_version_is_refused_with_its_number(saved: Path) -> None:
    metadata = {"kind": "agentmem-kv-calibration", "version": "9", "fingerprint": FINGERPRINT}
    save_file(load_file(saved), saved, metadata)
    with pytest.raises(Unsupported, match="version '9'"):
        KVCalibration.load(saved, FINGERPRINT)


def test_a_save_that_fails_leaves_the_old_file(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = saved.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        calibration(1).save(saved)
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


@pytest.mark.parametrize("bits", [1.0, 1.6, 2.0, 2.1, 4.0])
def test_widths_average_to_the_bits_asked_for(bits: float) -> None:
    widths = calibration().widths(bits)
    flat = torch.cat([part.flatten() for layer in widths for part in layer]).float()
    # Up to half a word of a token, which is eight bits of groups.
    assert abs(float(flat.mean()) - bits) <= 4 / len(flat) + 1e-6
    assert [layer[0].shape for layer in widths] == [(2, 4), (1, 8)]


@pytest.mark.parametrize("bits", [0.9, 4.1, float("nan")])
def test_bits_out_of_range_are_refused_with_the_number(bits: float) -> None:
    with pytest.raises(InvalidInput, match=f"got {bits}"):
        calibration().widths(bits)


def test_a_calibration_with_nan_says_so() -> None:
    made = calibration()
    layer = made.layers[0]
    keys = replace(layer.keys, mean=torch.full_like(layer.keys.mean, float("nan")))
    assert made.is_finite
    assert not KVCalibration("x", (replace(layer, keys=keys), made.layers[1])).is_finite


def states(index: int, num_pages: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values as the calibration expects them: (num_pages, heads, 16, head_dim)."""
    generator = torch.Generator().manual_seed(9)
    heads, head_dim = SHAPES[index]
    layer = calibration().layers[index]
    made = []
    for part in (layer.keys, layer.values):
        z = torch.randn((num_pages, heads, 16, head_dim), generator=generator)
        made.append(z @ part.inverse)
    keys, values = made
    offsets = torch.arange(num_pages * 16).reshape(num_pages, 16) % 64
    centers = rotated_mean(layer.keys.mean, layer.frequencies)[offsets]
    return keys + centers.transpose(1, 2), values + layer.values.mean[:, None]


@pytest.mark.parametrize("index", [0, 1])
def test_a_page_costs_its_bits_and_no_more_and_more_bits_are_nearer(index: int) -> None:
    num_pages = 2 * PAGES_PER_STRETCH
    keys, values = states(index, num_pages)
    phases = phases_of(num_pages)
    errors = []
    for bits in (1.0, 2.0, 3.0, 4.0):
        made = KltFormat(calibration(), bits)
        codec = made.layer(index, LayerShape(*SHAPES[index]))
        widths = calibration().widths(bits)[index]
        assert codec.page_nbytes == 8 * sum(int(part.sum()) for part in widths)
        pages = codec.encode(keys, values, phases)
        assert pages.shape == (num_pages, codec.page_nbytes)
        found_keys, found_values = codec.decode(pages, phases)
        errors.append(
            float((found_keys - keys).square().mean() + (found_values - values).square().mean())
        )
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < errors[0] / 10


def test_a_short_segment_costs_the_same_bits_a_page_as_a_long_one() -> None:
    codec = KltFormat(calibration(), 2.0).layer(0, LayerShape(*SHAPES[0]))
    keys, values = states(0, 8)
    long = codec.encode(keys, values, phases_of(8))
    short = codec.encode(keys[:1], values[:1], phases_of(1))
    assert torch.equal(short, long[:1])


@pytest.mark.parametrize(("index", "shape"), [(0, (2, 32)), (1, (2, 32)), (2, (2, 16))])
def test_layers_the_calibration_does_not_know_are_refused(
    index: int, shape: tuple[int, int]
) -> None:
    with pytest.raises(Unsupported, match="calibration has layers"):
        KltFormat(calibration()).layer(index, LayerShape(*shape))
