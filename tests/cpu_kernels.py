"""Where the C kernels run, and what a test of them does where they do not."""

from __future__ import annotations

import functools
import platform
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentmem.kernels import cpu
from tests.packed_windows import packed_window, random_layer

NEEDED_FEATURES = ("avx512f", "avx512bw", "avx512dq", "avx512vl")


def missing_here() -> str | None:
    """What the kernels should find missing on this machine, found in another way than theirs."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        return "made for Linux on x86-64"
    words = set(Path("/proc/cpuinfo").read_text("utf-8").split())
    if missing := [name for name in NEEDED_FEATURES if name not in words]:
        return f"this processor lacks {', '.join(missing)}"
    if not any(shutil.which(name) for name in ("cc", "gcc", "clang")):
        return "no C compiler"
    return None


def with_kernels(test: Callable[..., None]) -> Callable[..., None]:
    """Where the kernels cannot run, check that calling them says why, and no more."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        missing = missing_here()
        if missing is None:
            test(*args, **kwargs)
            return
        window = packed_window(random_layer(1, 64), [20])
        with pytest.raises(cpu.KernelsUnavailable, match=missing):
            cpu.attend(
                window.queries(1), window.rotations, window.table, window.pages, window.layer,
                window.limits(1),
            )  # fmt: skip

    return run
