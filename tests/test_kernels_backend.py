"""Which kernels attend where."""

from __future__ import annotations

import pytest
import torch

from agentmem.kernels import cpu, packed
from agentmem.kernels.backend import kernels_for, kernels_in_words

CPU = torch.device("cpu")


def test_c_attends_where_it_can_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "why_unavailable", lambda: None)
    assert kernels_for(CPU, 64) is cpu
    assert kernels_in_words(CPU, 64) == "C for AVX-512 VNNI"


def test_eager_attends_where_there_is_no_compiler_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu, "why_unavailable", lambda: "no C compiler was found")
    assert kernels_for(CPU, 64) is packed
    assert kernels_in_words(CPU, 64) == "eager PyTorch, which is slower: no C compiler was found"


def test_eager_attends_to_heads_too_wide_for_c() -> None:
    assert kernels_for(CPU, cpu.MAX_HEAD_DIM + 4) is packed
    assert "heads have 260 channels" in kernels_in_words(CPU, 260)


def test_eager_attends_on_other_devices() -> None:
    assert kernels_for(torch.device("meta"), 64) is packed
    assert kernels_in_words(torch.device("meta"), 64) == "eager PyTorch on meta"
