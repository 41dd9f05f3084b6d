"""The public surface is `agentmem.__all__`: sorted, resolvable, and cheap to import."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import agentmem

ROOT = Path(__file__).parent.parent
HEAVY = ("torch", "transformers", "faiss", "sqlalchemy", "alembic", "langchain_core", "numpy")


def modules_after(code: str) -> set[str]:
    """The top-level modules a fresh interpreter has loaded once it ran the code."""
    script = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return {name.partition(".")[0] for name in json.loads(done.stdout)}


def test_names_are_sorted_and_said_once() -> None:
    assert list(agentmem.__all__) == sorted(set(agentmem.__all__))


def test_every_name_resolves_and_belongs_to_agentmem() -> None:
    for name in agentmem.__all__:
        value = getattr(agentmem, name)
        home = getattr(value, "__module__", "agentmem")
        assert home.partition(".")[0] in ("agentmem", "typing", "builtins"), (name, home)


def test_every_name_is_listed_by_dir() -> None:
    assert set(agentmem.__all__) <= set(dir(agentmem))


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(agentmem, "no_such_name")


def test_importing_agentmem_loads_nothing_heavy() -> None:
    assert modules_after("import agentmem") & set(HEAVY) == set()


def test_importing_the_base_values_loads_nothing_heavy() -> None:
    code = "import agentmem.segment, agentmem.errors, agentmem.budget, agentmem.decision"
    assert modules_after(f"{code}, agentmem.events, agentmem.policies.base") & set(HEAVY) == set()
