"""How the C kernels are compiled, kept, found again, and refused."""

from __future__ import annotations

import gc
import os
import platform
import stat
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest

from agentmem.kernels import cpu, cpu_library
from agentmem.kernels.cpu_layer import prepared
from tests.cpu_kernels import NEEDED_FEATURES, missing_here, with_kernels
from tests.packed_windows import random_layer


def test_the_kernels_are_ready_or_say_what_is_missing() -> None:
    missing, reason = missing_here(), cpu.why_unavailable()
    if missing is None:
        assert reason is None
    else:
        assert reason is not None and missing in reason


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for the compiler, named by `CC`, that copies the real library at once.

    It writes its arguments to `calls`.
    """
    real = cpu_library._library()
    source = real.functions._name if isinstance(real, cpu_library.Library) else ""
    program = tmp_path / "cc"
    program.write_text(
        "#!/bin/sh\n"
        f'echo "$@" >> {tmp_path}/calls\n'
        'while [ "$1" != "-o" ]; do shift; done\n'
        f'case "$2" in *.so) cp {source} "$2" ;; *) : > "$2" ;; esac\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CC", str(program))
    return program


def calls(compiler: Path) -> int:
    """How many libraries were linked."""
    return (compiler.parent / "calls").read_text().count("-shared")


@with_kernels
def test_a_library_is_compiled_once_and_found_again(compiler: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for _ in range(2):
        cpu_library.load_library(cache)
    assert calls(compiler) == 1
    assert [path.suffix for path in cache.iterdir()] == [".so"]


def test_importing_compiles_nothing_and_leaves_triton_alone(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "CC": "/bin/false"}
    subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, torch\n"
            "from agentmem.kernels.backend import kernels_for\n"
            "kernels_for(torch.device('cpu'), 1024)\n"
            "assert 'triton' not in sys.modules\n",
        ],
        check=True,
        cwd=Path(__file__).parent.parent,
        env=environment,
    )
    assert not list((tmp_path / "cache").rglob("*"))


@with_kernels
@pytest.mark.parametrize("kept", [0, 1000, -1])
def test_a_damaged_library_is_built_again(compiler: Path, tmp_path: Path, kept: int) -> None:
    cache = tmp_path / "cache"
    cpu_library.load_library(cache)
    (path,) = cache.iterdir()
    sound = path.read_bytes()
    # A new file: the old one is mapped into this process.
    path.unlink()
    path.write_bytes(sound[:kept] if kept >= 0 else sound[:5000] + b"\1" + sound[5001:])
    assert path.read_bytes() != sound
    cpu_library.load_library(cache)
    assert path.read_bytes() == sound
    assert calls(compiler) == 2


@with_kernels
def test_two_that_compile_at_once_both_get_a_library(compiler: Path, tmp_path: Path) -> None:
    text = compiler.read_text().replace("#!/bin/sh\n", "#!/bin/sh\nsleep 0.2\n")
    compiler.write_text(text)
    cache, loaded = tmp_path / "cache", []
    threads = [
        threading.Thread(target=lambda: loaded.append(cpu_library.load_library(cache)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loaded) == 4
    assert [path.suffix for path in cache.iterdir()] == [".so"], "nothing is left behind"


@with_kernels
def test_other_flags_or_processors_get_a_library_of_their_own(
    compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    cpu_library.load_library(cache)
    other = tmp_path / "cpuinfo"
    other.write_text(f"processor : 0\nflags : {' '.join(NEEDED_FEATURES)} tomorrow\n")
    monkeypatch.setattr(cpu_library, "_CPU_INFO", other)
    cpu_library.load_library(cache)
    monkeypatch.setenv("CC", f"{compiler} -g")
    cpu_library.load_library(cache)
    assert len(list(cache.iterdir())) == 3


def test_the_switch_turns_the_kernels_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTMEM_CPU_KERNELS", "off")
    assert cpu.why_unavailable() == "turned off by AGENTMEM_CPU_KERNELS=off"


def test_a_processor_that_lacks_an_instruction_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor : 0\nflags : fpu sse2 avx512f avx512bw avx512dq\n")
    monkeypatch.setattr(cpu_library, "_CPU_INFO", info)
    reason = cpu.why_unavailable(tmp_path / "cache")
    assert reason is not None
    if sys.platform == "linux" and platform.machine() in ("x86_64", "AMD64"):
        assert reason == "this processor lacks avx512vl"


@with_kernels
def test_a_machine_without_a_compiler_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cpu.why_unavailable(tmp_path / "a") == "no C compiler: looked for cc, gcc and clang"
    monkeypatch.setenv("CC", "/nowhere/cc -O2")
    reason = cpu.why_unavailable(tmp_path / "b")
    assert reason == "the C compiler named by CC is not found: /nowhere/cc"


@with_kernels
def test_a_compiler_that_fails_is_quoted(compiler: Path, tmp_path: Path) -> None:
    compiler.write_text(
        "#!/bin/sh\necho 'note: hello' >&2\necho 'x.c:1: error: boom' >&2\nexit 3\n"
    )
    reason = cpu.why_unavailable(tmp_path / "cache")
    assert reason == f"{compiler} failed with exit code 3: x.c:1: error: boom"
    assert not list((tmp_path / "cache").iterdir())


@with_kernels
def test_a_library_that_does_not_load_is_a_reason(compiler: Path, tmp_path: Path) -> None:
    compiler.write_text(
        '#!/bin/sh\nwhile [ "$1" != "-o" ]; do shift; done\necho "no library" > "$2"\n'
    )
    reason = cpu.why_unavailable(tmp_path / "cache")
    assert reason is not None and reason.startswith("the compiled kernels do not load")


@with_kernels
def test_a_cache_that_cannot_be_written_is_a_reason(compiler: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    reason = cpu.why_unavailable(tmp_path / "file" / "cache")
    assert reason == f"{tmp_path}/file/cache cannot be written: {os.strerror(20)}"


def test_a_layer_is_laid_out_once_and_forgotten_with_it() -> None:
    layer = random_layer(1, 64)
    first = weakref.ref(prepared(layer))
    assert prepared(layer) is first()
    del layer
    gc.collect()
    assert first() is None


_ATTENDED = """
import hashlib, torch
from agentmem.kernels import cpu
from tests.packed_windows import packed_window, random_layer
digest = hashlib.sha256()
for seed, widths in enumerate(((8,), (1, 2, 3, 4, 8))):
    layer = random_layer(3, 64, widths=widths, seed=seed, trellis=seed == 1)
    window = packed_window(layer, [20, 64, 65])
    attended, _ = cpu.attend(
        window.queries(9), window.rotations, window.table, window.pages, layer, window.limits(9)
    )
    digest.update(window.pages.numpy().tobytes() + attended.numpy().tobytes())
print(digest.hexdigest())
"""


@pytest.mark.slow
@with_kernels
def test_an_older_processor_computes_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    digests = set()
    for flags in ("", " -mno-avx512vnni -mno-avx512vbmi -mno-avx512vbmi2"):
        monkeypatch.setenv("CC", f"gcc{flags}")
        ran = subprocess.run(
            [sys.executable, "-c", _ATTENDED], capture_output=True, text=True, check=True
        )
        digests.add(ran.stdout)
    assert len(digests) == 1
