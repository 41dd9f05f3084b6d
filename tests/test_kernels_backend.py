"""Which kernels code and attend to packed pages where."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from agentmem.errors import InvalidInput
from agentmem.kernels import backend, cpu, packed
from agentmem.kernels.backend import kernels_for, kernels_in_words
from agentmem.storage.kv_format import LayerShape
from agentmem.storage.kv_packed import PackedCodec
from tests.cpu_kernels import with_kernels
from tests.packed_windows import ALL_WIDTHS, random_layer, random_states

CPU = torch.device("cpu")
CUDA = torch.device("cuda")
TRITON = "agentmem.kernels.triton_kernels"


@pytest.fixture(autouse=True)
def _forget_whether_triton_was_there() -> Iterator[None]:
    backend._triton_kernels.cache_clear()
    yield
    backend._triton_kernels.cache_clear()


def test_c_runs_where_it_can_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "why_unavailable", lambda: None)
    assert kernels_for(CPU, 64) is cpu
    assert kernels_in_words(CPU, 64) == "C for AVX-512"


def test_eager_runs_where_there_is_no_compiler_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu, "why_unavailable", lambda: "no C compiler was found")
    assert kernels_for(CPU, 64) is packed
    assert kernels_in_words(CPU, 64) == "eager PyTorch, which is slower: no C compiler was found"


def test_eager_takes_heads_too_wide_for_c() -> None:
    assert kernels_for(CPU, cpu.MAX_HEAD_DIM + 4) is packed
    assert "heads have 260 channels" in kernels_in_words(CPU, 260)


def test_triton_runs_on_cuda_where_it_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{TRITON}.why_unavailable", lambda device, head_dim: None)
    kernels = kernels_for(CUDA, 64)
    for name in ("encode", "decode", "attend", "column_mass"):
        assert getattr(kernels, name).__module__.startswith("agentmem.kernels.triton_")
    assert kernels_in_words(CUDA, 64) == "Triton on cuda"


def test_eager_runs_on_cuda_where_triton_is_missing_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "agentmem.kernels.triton_kernels", None)
    monkeypatch.delattr("agentmem.kernels.triton_kernels", raising=False)
    assert kernels_for(CUDA, 64) is packed
    words = kernels_in_words(CUDA, 64)
    assert words.startswith("eager PyTorch on cuda, which is slower: Triton cannot be imported: ")


def test_eager_runs_on_cuda_where_triton_is_wrong_or_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = "Triton's attend is 0.5 off there, 0.02 allowed"
    monkeypatch.setattr(f"{TRITON}.why_unavailable", lambda device, head_dim: wrong)
    assert kernels_for(CUDA, 64) is packed
    assert kernels_in_words(CUDA, 64).endswith(f"which is slower: {wrong}")


def test_eager_takes_heads_too_wide_for_triton() -> None:
    assert kernels_for(CUDA, 260) is packed
    assert kernels_in_words(CUDA, 260).endswith("which is slower: heads have 260 channels")


def test_eager_runs_on_other_devices() -> None:
    assert kernels_for(torch.device("meta"), 64) is packed
    assert kernels_in_words(torch.device("meta"), 64) == "eager PyTorch on meta"


@with_kernels
@pytest.mark.parametrize("framed", [False, True])
def test_a_codec_writes_the_same_bytes_with_c_and_without(
    framed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = random_layer(2, 64, widths=ALL_WIDTHS, centered=framed, transformed=framed)
    codec = PackedCodec("any", LayerShape(2, 64), layer)
    keys, values, phases = random_states(layer, 3)
    calls: list[str] = []
    for name in ("encode", "decode"):
        monkeypatch.setattr(cpu, name, _counted(getattr(cpu, name), calls))
    pages = codec.encode(keys, values, phases)
    decoded = codec.decode(pages, phases)
    assert calls == ["encode", "decode"]
    monkeypatch.setattr(cpu, "why_unavailable", lambda: "turned off")
    assert torch.equal(codec.encode(keys, values, phases), pages)
    for one, other in zip(codec.decode(pages, phases), decoded, strict=True):
        assert torch.equal(one, other)
    assert calls == ["encode", "decode"]


def _counted(function: Callable[..., Any], calls: list[str]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        calls.append(function.__name__)
        return function(*arguments)

    return call


@pytest.mark.parametrize("switch", ["", "off"])
def test_a_codec_names_its_format_when_values_do_not_fit(
    switch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTMEM_CPU_KERNELS", switch)
    layer = random_layer(1, 64)
    keys, values, phases = random_states(layer, 1)
    keys[0, 0, 0, 0] = float("nan")
    with pytest.raises(InvalidInput, match="q9 cannot hold .* NaN or infinity"):
        PackedCodec("q9", LayerShape(1, 64), layer).encode(keys, values, phases)
