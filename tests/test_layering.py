"""No layer reaches up, no bare top-level name, nothing that runs code from data.

    kernels < segment, errors, budget, decision < policies, storage < models < SDK < cli, bench

Inside the SDK

    wording < facts < recall, and decisions and importing beside them < memory < review
        < conversation < agent

Imports are read, not run, so that one inside a function counts too.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LINKED = ("kernels", "policies", "storage")
BASE = ("agentmem.segment", "agentmem.errors", "agentmem.budget", "agentmem.decision")
CACHE = (
    "agentmem.models.attached",
    "agentmem.models.kv_formats",
    "agentmem.models.loading",
    "agentmem.models.segment_cache",
    "agentmem.models.setup",
    "agentmem.storage.kv_dense",
    "agentmem.storage.kv_format",
    "agentmem.storage.kv_fp8",
    "agentmem.storage.kv_packed",
    "agentmem.storage.kv_record",
)
"""What measures the KV cache itself has to reach: no public name leads to it."""
PUBLIC = ("agentmem.config", "agentmem.errors", "agentmem.events", "agentmem.segment")


@dataclass(frozen=True)
class Layer:
    """A layer and what it may import.

    Args:
        modules: what it is made of, each with all that is inside.
        ours: modules of ours it may import besides itself; a final "_" is the start of a name.
        libraries: libraries it may import; None allows all but `never`.
        never: libraries it may not import.
    """

    name: str
    modules: tuple[str, ...]
    ours: tuple[str, ...]
    libraries: tuple[str, ...] | None = None
    never: tuple[str, ...] = ()

    def may_import(self, name: str) -> bool:
        """Whether a file of this layer may import that module."""
        root = name.partition(".")[0]
        if root == "agentmem":
            return any(within(name, module) for module in (*self.modules, *self.ours))
        if root in sys.stdlib_module_names:
            return not any(within(name, library) for library in self.never)
        if self.libraries is not None:
            return root in self.libraries
        return not any(within(name, library) for library in self.never)


HEAVY = ("torch", "transformers", "faiss", "sqlalchemy", "alembic", "langchain_core", "triton")
LAYERS = [
    Layer("kernels", ("agentmem.kernels",), (), libraries=("torch", "triton")),
    Layer("base values", BASE, (), libraries=()),
    Layer(
        "policies",
        ("agentmem.policies",),
        BASE,
        libraries=("torch",),
        never=("time", "random", "datetime", "socket", "urllib", "subprocess", "sqlite3"),
    ),
    Layer(
        "storage",
        ("agentmem.storage",),
        ("agentmem.segment", "agentmem.errors", "agentmem.decision", "agentmem.kernels"),
        never=("transformers", "langchain_core", "langchain", "llguidance", "openai"),
    ),
    Layer(
        "models",
        ("agentmem.models",),
        ("agentmem.segment", "agentmem.errors", "agentmem.kernels", "agentmem.storage.kv_"),
        never=("faiss", "sqlalchemy", "alembic", "sqlite3"),
    ),
    Layer(
        "wording",
        ("agentmem.wording",),
        ("agentmem.segment", "agentmem.errors", "agentmem.storage.terms"),
        libraries=(),
    ),
    Layer(
        "facts",
        ("agentmem.facts",),
        (
            "agentmem.segment",
            "agentmem.wording",
            "agentmem.prompts",
            "agentmem.models.base",
            "agentmem.models.json_answer",
            "agentmem.storage",
        ),
        never=HEAVY,
    ),
    Layer(
        "recall",
        ("agentmem.recall",),
        (
            "agentmem.segment",
            "agentmem.errors",
            "agentmem.outside",
            "agentmem.wording",
            "agentmem.facts",
            "agentmem.models.base",
            "agentmem.storage",
        ),
        never=HEAVY,
    ),
    Layer(
        "decisions",
        ("agentmem.decisions",),
        (
            *BASE,
            "agentmem.context",
            "agentmem.events",
            "agentmem.window",
            "agentmem.models.base",
            "agentmem.storage",
        ),
        never=HEAVY,
    ),
    Layer(
        "importing",
        ("agentmem.importing",),
        (
            "agentmem.segment",
            "agentmem.errors",
            "agentmem.block",
            "agentmem.documents",
            "agentmem.storage",
        ),
        never=HEAVY,
    ),
    Layer(
        "review",
        ("agentmem.review",),
        (
            *BASE,
            "agentmem.events",
            "agentmem.fence",
            "agentmem.memory",
            "agentmem.recollection",
            "agentmem.tools",
            "agentmem.prompts",
            "agentmem.policies",
            "agentmem.models.base",
            "agentmem.storage.rows",
        ),
        never=HEAVY,
    ),
    Layer(
        "conversation",
        ("agentmem.conversation",),
        (
            *BASE,
            "agentmem.context",
            "agentmem.documents",
            "agentmem.events",
            "agentmem.memory",
            "agentmem.memory_tools",
            "agentmem.recollection",
            "agentmem.tools",
            "agentmem.wording",
            "agentmem.facts",
            "agentmem.review",
            "agentmem.models.base",
            "agentmem.storage",
        ),
        never=HEAVY,
    ),
    Layer(
        "command line",
        ("agentmem.cli",),
        (
            "agentmem",
            *PUBLIC,
            "agentmem.folders",
            "agentmem.modes",
            "agentmem.models.setup",
            "agentmem.models.calibrate",
            "agentmem.bench",
        ),
        never=HEAVY,
    ),
    Layer(
        "benchmarks",
        ("agentmem.bench",),
        (
            "agentmem",
            *PUBLIC,
            *CACHE,
            "agentmem.kernels",
            "agentmem.models.base",
        ),
    ),
    Layer(
        "device script",
        ("agentmem.bench.device", "agentmem.bench.device_window"),
        ("agentmem.kernels",),
        libraries=("torch", "triton"),
    ),
]
BY_NAME = {layer.name: layer for layer in LAYERS}


def within(name: str, prefix: str) -> bool:
    """Whether a module is that one or inside it. The package itself is only its public names."""
    if name == prefix:
        return True
    if prefix == "agentmem":
        return False
    return name.startswith(prefix if prefix.endswith("_") else prefix + ".")


def sources(*folders: str) -> list[Path]:
    """Every Python file in these folders, those behind the links counted once."""
    return [
        path
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not (folder == "agentmem" and path.relative_to(ROOT).parts[1] in LINKED)
    ]


def module_name(path: Path) -> str:
    """The name a file is imported by."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[0] in LINKED:
        parts = ("agentmem", *parts)
    return ".".join(parts).removesuffix(".__init__")


def is_module(name: str) -> bool:
    """Whether a file or folder of ours is imported by this name."""
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or path.is_dir()


def imports(source: str, package: str) -> Iterator[tuple[int, str]]:
    """Line and full name of every module a source imports; `package` is what it is inside."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: -(node.level - 1) or None] if node.level else []
            name = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                full = f"{name}.{alias.name}"
                yield node.lineno, full if is_module(full) else name


def package_of(path: Path) -> str:
    """The package a file is inside."""
    name = module_name(path)
    return name if path.name == "__init__.py" else name.rpartition(".")[0]


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.name)
def test_a_layer_imports_only_what_is_below_it(layer: Layer) -> None:
    files = [
        path
        for path in sources("agentmem", *LINKED)
        if any(within(module_name(path), module) for module in layer.modules)
    ]
    assert files, f"no files of layer {layer.name}"
    faults = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in files
        for line, name in imports(path.read_text("utf-8"), package_of(path))
        if not layer.may_import(name)
    ]
    assert faults == []


@pytest.mark.parametrize(
    ("layer", "package", "line"),
    [
        ("kernels", "agentmem.kernels", "from agentmem.segment import Segment"),
        ("kernels", "agentmem.kernels", "import numpy"),
        ("base values", "agentmem", "import torch"),
        ("base values", "agentmem", "from agentmem import Segment"),
        ("policies", "agentmem.policies", "import time"),
        ("policies", "agentmem.policies", "from agentmem.storage.archive import Archive"),
        ("storage", "agentmem.storage", "from agentmem.policies.base import SegmentPolicy"),
        ("storage", "agentmem.storage", "from agentmem.models import base"),
        ("storage", "agentmem.storage", "from ..policies import lru"),
        ("storage", "agentmem.storage", "def f():\n    import transformers.cache_utils"),
        ("models", "agentmem.models", "from agentmem.storage.archive import Archive"),
        ("models", "agentmem.models", "from agentmem.storage import archive"),
        ("wording", "agentmem.wording", "from agentmem.facts import cues"),
        ("wording", "agentmem.wording", "import numpy"),
        ("facts", "agentmem.facts", "from agentmem.recall.finder import Finder"),
        ("recall", "agentmem.recall", "from agentmem.memory import Memory"),
        ("decisions", "agentmem.decisions", "from agentmem.review.verdict import Verdict"),
        ("importing", "agentmem.importing", "from agentmem.conversation.turn import Turn"),
        ("review", "agentmem.review", "from agentmem.decisions.ledger import Ledger"),
        ("conversation", "agentmem.conversation", "from agentmem.agent import Agent"),
        ("command line", "agentmem.cli", "from agentmem.memory import Memory"),
        ("command line", "agentmem.cli", "import torch"),
        ("benchmarks", "agentmem.bench", "from agentmem.review.controller import Controller"),
    ],
)
def test_the_rule_bites(layer: str, package: str, line: str) -> None:
    assert not all(BY_NAME[layer].may_import(name) for _, name in imports(line, package))


def room_of(name: str) -> str:
    """The package a module of ours is in, or the module itself where it is in `agentmem` alone."""
    return ".".join(name.split(".")[:2])


def test_packages_and_modules_beside_them_never_import_each_other_in_a_circle() -> None:
    # An agent is recorded and a recording is played by an agent: both are in `audit`.
    apart = ("agentmem", "agentmem.__main__", "agentmem.audit")
    below: dict[str, set[str]] = {}
    for path in sources("agentmem", *LINKED):
        room = room_of(module_name(path))
        if room not in apart:
            found = {
                room_of(name) for _, name in imports(path.read_text("utf-8"), package_of(path))
            }
            ours = {name for name in found if name.startswith("agentmem.")}
            below.setdefault(room, set()).update(ours - {room, *apart})
    assert list(TopologicalSorter(below).static_order())


def test_nothing_below_the_command_line_imports_it_or_a_benchmark() -> None:
    faults = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sources("agentmem", *LINKED)
        for line, name in imports(path.read_text("utf-8"), package_of(path))
        if any(within(name, top) for top in ("agentmem.cli", "agentmem.bench"))
        and not any(
            within(module_name(path), top)
            for top in ("agentmem.cli", "agentmem.bench", "agentmem.__main__")
        )
    ]
    assert faults == []


def test_no_file_imports_the_bare_top_level_names() -> None:
    faults = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sources("agentmem", *LINKED, "tests", "examples")
        for line, name in imports(path.read_text("utf-8"), package_of(path))
        if name.partition(".")[0] in LINKED
    ]
    assert faults == []


def dangers(source: str) -> Iterator[tuple[int, str]]:
    """Line and name of everything that would run code from data."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in ("eval", "exec", "compile", "__import__", "torch.load", "os.system"):
                yield node.lineno, called
            for keyword in node.keywords:
                if keyword.arg in ("allow_pickle", "trust_remote_code", "shell"):
                    if not (isinstance(keyword.value, ast.Constant) and not keyword.value.value):
                        yield node.lineno, keyword.arg
    for line, name in imports(source, "agentmem"):
        if name.partition(".")[0] in ("pickle", "marshal", "shelve", "dill", "joblib"):
            yield line, name


def test_no_file_runs_code_from_data() -> None:
    faults = [
        f"{path.relative_to(ROOT)}:{line} uses {name}"
        for path in sources("agentmem", *LINKED)
        for line, name in dangers(path.read_text("utf-8"))
    ]
    assert faults == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from marshal import loads",
        "eval('1')",
        "torch.load('x.pt')",
        "np.load('x.npy', allow_pickle=True)",
        "AutoModel.from_pretrained('x', trust_remote_code=True)",
        "subprocess.run('x', shell=True)",
    ],
)
def test_the_ban_bites(source: str) -> None:
    assert list(dangers(source))


def test_kernels_is_no_package_of_its_own_and_the_others_are() -> None:
    # transformers imports whatever package is called `kernels` and reads its version.
    assert not (ROOT / "kernels" / "__init__.py").exists()
    assert (ROOT / "policies" / "__init__.py").is_file()
    assert (ROOT / "storage" / "__init__.py").is_file()


@pytest.mark.parametrize("name", LINKED)
def test_a_folder_is_reached_through_its_link(name: str) -> None:
    link = ROOT / "agentmem" / name
    assert link.is_symlink()
    assert link.readlink() == Path("..") / name
    assert link.resolve() == ROOT / name
