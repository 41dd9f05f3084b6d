"""A server that means no good costs an error or a plain answer: never a message or a hang."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adversarial_scripts import SCRIPTS
from tests.adversary import Script, converse, play


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with half a dozen turns, shared by copies."""
    folder = tmp_path_factory.mktemp("before")
    converse(folder)
    return folder


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_a_bad_server_costs_neither_memory_nor_budget(
    script: Script, tmp_path: Path, before: Path
) -> None:
    outcome = play(script, tmp_path, before=before)
    assert len(outcome.replies) + len(outcome.errors) == script.turns
