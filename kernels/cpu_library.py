"""The C kernels as a loaded library: compiled once by the system's compiler, kept in a cache.

Lazily: nothing is compiled or read on import. The file's name is a digest of the sources, the
compiler and its flags, and what this processor can do, so that a home shared by several machines
holds one library for each. The file ends with a digest of itself: one that was cut short or
damaged is built again. Knows nothing of what the kernels compute.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

SWITCH = "AGENTMEM_CPU_KERNELS"
"""Set to `off`, the kernels are not used."""
SOURCES = Path(__file__).parent / "cpu"
_CPU_INFO = Path("/proc/cpuinfo")
_NEEDED = ("avx512f", "avx512bw", "avx512dq", "avx512vl")
# Contraction is off so that encoding rounds as PyTorch does; where it may be, fma is written out.
_FLAGS = ("-O3", "-march=native", "-std=gnu11", "-ffp-contract=off", "-fPIC")
_COMPILE_SECONDS = 900
_DIGEST_BYTES = 32


class KernelsUnavailable(RuntimeError):
    """The C kernels cannot be used here; the message says why, in one line."""


@dataclass(frozen=True, slots=True)
class Library:
    """A loaded library.

    Args:
        functions: what it exports.
        has_threads: whether it shares PyTorch's OpenMP threads; else it runs on the caller's.
    """

    functions: ctypes.CDLL
    has_threads: bool


def load_library(cache_dir: Path | None = None) -> Library:
    """Load the kernels, compiling them first if this machine never has.

    Args:
        cache_dir: where libraries are kept; None: `agentmem/kernels` in the user's cache.

    Raises:
        KernelsUnavailable: turned off, another processor, no compiler, or it failed.
    """
    if os.environ.get(SWITCH, "").strip().lower() == "off":
        raise KernelsUnavailable(f"turned off by {SWITCH}=off")
    features = _processor_features()
    compiler = _find_compiler()
    folder = _default_cache_dir() if cache_dir is None else cache_dir
    runtime = _openmp_runtime()
    if runtime is not None:
        # Ours must not bring a second pool of threads into the process: its calls are resolved
        # against the runtime that PyTorch has loaded, which is made visible to it here.
        ctypes.CDLL(runtime, mode=ctypes.RTLD_GLOBAL)
        try:
            path = _built(folder, compiler, features, ("-fopenmp",))
            return Library(_load(path), has_threads=True)
        except (OSError, KernelsUnavailable):
            # A compiler without OpenMP, or whose OpenMP is another than the one loaded.
            pass
    path = _built(folder, compiler, features, ())
    try:
        return Library(_load(path), has_threads=False)
    except OSError as error:
        raise KernelsUnavailable(f"the compiled kernels do not load: {error}") from error


def why_unavailable(cache_dir: Path | None = None) -> str | None:
    """Why the kernels cannot be used here, in one line; None where they can.

    Compiles them where that was never done, which takes seconds.
    """
    found = _library(cache_dir)
    return str(found) if isinstance(found, KernelsUnavailable) else None


def ready_functions() -> ctypes.CDLL:
    """What the library exports, loaded once.

    Raises:
        KernelsUnavailable: `why_unavailable` says why.
    """
    global _functions
    if _functions is None:
        found = _library()
        if isinstance(found, KernelsUnavailable):
            raise found
        _functions = found.functions
    return _functions


_loaded: dict[tuple[str, Path | None], Library | KernelsUnavailable] = {}
_functions: ctypes.CDLL | None = None


def _library(cache_dir: Path | None = None) -> Library | KernelsUnavailable:
    key = (os.environ.get(SWITCH, ""), cache_dir)
    found = _loaded.get(key)
    if found is None:
        try:
            found = load_library(cache_dir)
        except KernelsUnavailable as error:
            found = error
        _loaded[key] = found
    return found


_POINTER = ctypes.c_void_p
_EXPORTS: dict[str, tuple[list[type], type | None]] = {
    "agentmem_attend": ([_POINTER] * 5, ctypes.c_int),
    "agentmem_column_mass": ([_POINTER] * 5, ctypes.c_int),
    "agentmem_attend_dense": ([_POINTER] * 4, ctypes.c_int),
    "agentmem_dense_mass": ([_POINTER] * 3, ctypes.c_int),
    "agentmem_center": ([_POINTER] * 3 + [ctypes.c_int32, _POINTER], ctypes.c_int),
    "agentmem_encode": ([_POINTER] * 3, ctypes.c_int),
    "agentmem_decode": ([_POINTER] * 2, None),
}


def _load(path: Path) -> ctypes.CDLL:
    functions = ctypes.CDLL(str(path))
    for name, (argument_types, result_type) in _EXPORTS.items():
        function = getattr(functions, name)
        function.argtypes, function.restype = argument_types, result_type
    return functions


def _processor_features() -> str:
    """The processor's features as the system lists them."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        raise KernelsUnavailable(
            f"made for Linux on x86-64: this is {sys.platform} on {platform.machine()}"
        )
    try:
        lines = _CPU_INFO.read_text("utf-8").splitlines()
    except OSError as error:
        raise KernelsUnavailable(f"{_CPU_INFO} cannot be read: {error.strerror}") from error
    flags = next((line.partition(":")[2] for line in lines if line.startswith("flags")), "")
    features = sorted(set(flags.split()))
    missing = [name for name in _NEEDED if name not in features]
    if missing:
        raise KernelsUnavailable(f"this processor lacks {', '.join(missing)}")
    return " ".join(features)


def _find_compiler() -> tuple[str, ...]:
    if named := shlex.split(os.environ.get("CC", "")):
        if found := shutil.which(named[0]):
            return (found, *named[1:])
        raise KernelsUnavailable(f"the C compiler named by CC is not found: {named[0]}")
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            return (found,)
    raise KernelsUnavailable("no C compiler: looked for cc, gcc and clang")


def _default_cache_dir() -> Path:
    """What platformdirs calls the user's cache on Linux; kernels import no more than PyTorch."""
    home = os.environ.get("XDG_CACHE_HOME", "").strip()
    return (Path(home) if home else Path("~/.cache").expanduser()) / "agentmem" / "kernels"


def _openmp_runtime() -> str | None:
    """The OpenMP runtime this process has loaded, PyTorch's own."""
    try:
        maps = Path("/proc/self/maps").read_text("utf-8").splitlines()
    except OSError:
        return None
    for line in maps:
        path = line.split(maxsplit=5)[-1]
        if Path(path).name.startswith(("libgomp", "libiomp5", "libomp")):
            return path
    return None


def _built(
    folder: Path, compiler: tuple[str, ...], features: str, more_flags: tuple[str, ...]
) -> Path:  # fmt: skip
    """The library's file, sound."""
    flags = (*_FLAGS, *more_flags)
    sources = sorted(path for path in SOURCES.iterdir() if path.suffix in (".c", ".h"))
    digest = hashlib.sha256()
    for part in (*compiler, *flags, features):
        digest.update(part.encode() + b"\0")
    for source in sources:
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    path = folder / f"kernels-{digest.hexdigest()[:24]}.so"
    if _is_sound(path):
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Built beside its place and renamed into it: two processes at once both succeed.
        with tempfile.TemporaryDirectory(dir=folder, prefix="building-") as temporary:
            library = _compile(compiler, flags, sources, Path(temporary))
            content = library.read_bytes()
            library.write_bytes(content + hashlib.sha256(content).digest())
            os.replace(library, path)
    except OSError as error:
        raise KernelsUnavailable(f"{folder} cannot be written: {error.strerror}") from error
    return path


def _is_sound(path: Path) -> bool:
    """Whether a library is there and whole: it ends with the digest of the rest."""
    try:
        content = path.read_bytes()
    except OSError:
        return False
    rest, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    return bool(rest) and hashlib.sha256(rest).digest() == digest


def _compile(
    compiler: tuple[str, ...], flags: tuple[str, ...], sources: list[Path], folder: Path
) -> Path:  # fmt: skip
    objects = []
    for source in sources:
        if source.suffix == ".c":
            objects.append(folder / f"{source.stem}.o")
            _run((*compiler, *flags, "-c", str(source), "-o", str(objects[-1])))
    library = folder / "kernels.so"
    # Linked without -fopenmp: see load_library.
    _run((*compiler, "-shared", "-o", str(library), *map(str, objects), "-lm"))
    return library


def _run(command: tuple[str, ...]) -> None:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=_COMPILE_SECONDS,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KernelsUnavailable(f"{command[0]} cannot be run: {error}") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        telling = next((line for line in lines if "error" in line), lines[0] if lines else "")
        raise KernelsUnavailable(
            f"{command[0]} failed with exit code {done.returncode}: {telling.strip()[:200]}"
        )
