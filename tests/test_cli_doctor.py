"""`agentmem doctor` and `setup`: each fault is named with the one command that mends it."""

from __future__ import annotations

import http.server
import json
import re
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentmem import Store
from agentmem.cli import checks
from agentmem.errors import Unsupported
from agentmem.models import kv_proof
from agentmem.models.segment_window import SegmentWindow
from tests.cli_run import SCRIPTED, run_cli
from tests.kv_models import save_family
from tests.tiny_models import save_tiny_model


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The scripted model, and an empty current folder."""
    monkeypatch.chdir(tmp_path)
    for name, value in SCRIPTED.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def rows(*words: str, code: int = 0) -> dict[str, dict[str, Any]]:
    """What doctor says, by name."""
    ran = run_cli("doctor", *words, "--json")
    assert ran.code == code, ran
    return {row["name"]: row for row in ran.of_type("check")}


def make_store(folder: Path) -> Path:
    """A store with one turn."""
    path = folder / "me.db"
    assert run_cli("chat", "--store", path, stdin="hello\n").code == 0
    return path


def test_where_all_is_well_no_row_fails_and_it_exits_0(scripted: Path) -> None:
    found = rows("--store", str(make_store(scripted)))
    assert {"python", "torch", "faiss", "data folder", "disk", "store", "store integrity",
            "store schema", "store sqlite", "model scripted", "kv"} <= set(found)  # fmt: skip
    assert all(row["status"] != "fail" for row in found.values())
    assert all(row["fix"] for row in found.values() if row["status"] == "warn")


def test_a_store_that_does_not_exist_yet_is_fine() -> None:
    found = rows()
    assert found["store"]["status"] == "ok" and "none yet" in found["store"]["message"]


def test_rows_are_text_with_the_fix_below() -> None:
    lines = run_cli("doctor").stdout.splitlines()
    assert lines[0].startswith("ok    python: ")
    row = next(line for line in lines if "files of smollm2" in line)
    assert row.startswith("warn  files of smollm2: ")
    assert lines[lines.index(row) + 1] == "      fix: agentmem setup"


def test_models_that_are_missing_fail_only_where_they_are_needed() -> None:
    found = rows("--model", "local", code=4)
    assert found["files of smollm2"]["status"] == "fail"
    assert found["files of smollm2"]["fix"] == "agentmem setup"
    assert found["files of minilm"]["status"] == "warn"
    assert "model local" not in found


@pytest.fixture
def copied_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, smollm2_dir: Path) -> Path:
    """A copy of the embedded chat model that may be damaged; its weights are a link."""
    home = tmp_path / "models"
    target = home / "smollm2"
    target.mkdir(parents=True)
    for path in smollm2_dir.iterdir():
        if path.suffix == ".safetensors":
            (target / path.name).symlink_to(path)
        else:
            shutil.copy(path, target)
    monkeypatch.setenv("AGENTMEM_MODELS_HOME", str(home))
    return target


def test_a_truncated_model_file_is_named(copied_models: Path) -> None:
    weights = copied_models / "model.safetensors"
    weights.unlink()
    weights.write_bytes(b"\0" * 1000)
    row = rows("--model", "local", code=4)["files of smollm2"]
    assert row["status"] == "fail" and str(weights) in row["message"]
    assert row["fix"] == "agentmem setup --force"


def test_a_changed_model_file_is_named(copied_models: Path) -> None:
    config = copied_models / "config.json"
    config.write_bytes(config.read_bytes().replace(b"{", b"[", 1))
    row = rows("--model", "local", code=4)["files of smollm2"]
    assert str(config) in row["message"] and "sha256" in row["message"]


def test_a_model_that_does_not_exist_is_named() -> None:
    row = rows("--model", "hf:/no/such/folder", code=4)["model hf:/no/such/folder"]
    assert row["status"] == "fail" and "/no/such/folder" in row["message"] and row["fix"]


def test_the_embedded_model_proves_its_kv_tier(embedded_models: Path) -> None:
    found = rows("--model", "local")
    assert found["model local"]["status"] == "ok"
    assert found["kv"]["status"] == "ok" and "without prefill" in found["kv"]["message"]
    assert found["kv self-test"]["status"] == found["kv greedy"]["status"] == "ok"
    assert "32 of 32 greedy tokens" in found["kv greedy"]["message"]
    assert found["kernels"]["message"].startswith(("C for AVX-512", "eager PyTorch, which"))
    assert "B in the window, 0 B of them in host memory" in found["kv places"]["message"]


def test_a_model_folder_proves_its_kv_against_text_token_by_token(tmp_path: Path) -> None:
    found = rows("--model", f"hf:{save_tiny_model(tmp_path / 'tiny')}")
    error = re.search(r"at most (\S+) off", found["kv self-test"]["message"])
    assert error is not None and 0 < float(error[1]) < 1e-5
    assert found["kv greedy"]["message"] == "32 of 32 greedy tokens are those of text prefill"


def test_a_tier_that_says_something_else_than_text_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, reply = save_tiny_model(tmp_path / "tiny"), kv_proof._reply

    def wrong_from_kv(forward: Any, window: Any, entries: Any) -> tuple[int, ...]:
        tokens = reply(forward, window, entries)
        return (*tokens[:5], 7, *tokens[6:]) if isinstance(window, SegmentWindow) else tokens

    monkeypatch.setattr(kv_proof, "_reply", wrong_from_kv)
    row = rows("--model", f"hf:{folder}", code=4)["kv greedy"]
    assert row["status"] == "fail" and row["fix"] == "agentmem chat --recall text"
    assert row["message"].startswith(
        "5 of 32 greedy tokens are those of text prefill, then 7 where"
    )


def test_a_tier_that_fails_its_self_test_when_it_is_asked_again_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(attached: object) -> float:
        raise Unsupported("Llama failed the self-test of the segment cache.")

    monkeypatch.setattr(kv_proof, "self_test", fail)
    found = rows("--model", f"hf:{save_tiny_model(tmp_path / 'tiny')}", code=4)
    assert "failed the self-test" in found["kv self-test"]["message"] and "kv greedy" not in found


@pytest.mark.parametrize(
    ("family", "reason"),
    [("dynamic", "dynamic RoPE"), ("bamba", "layers of type linear_attention")],
)
def test_a_refused_model_is_named_with_the_reason_and_what_happens_instead(
    family: str, reason: str, tmp_path: Path
) -> None:
    spec = f"hf:{save_family(tmp_path / family, family)}"
    found = rows("--model", spec)
    assert found[f"model {spec}"]["status"] == "ok", "it answers all the same"
    assert found["kv"]["status"] == "warn" and reason in found["kv"]["message"]
    assert found["kv"]["message"].startswith("none, the window is read as text: ")
    assert "kv greedy" not in found


def test_a_template_that_is_not_supported_is_named_with_what_to_do() -> None:
    model = SimpleNamespace(
        template_problem="The chat template frames a message by more than its role.",
        kv_problem="its template cannot be taken apart",
        capabilities=SimpleNamespace(has_kv=False),
    )
    template, kv = checks.check_kv(model)  # type: ignore[arg-type]
    assert (template.name, template.status) == ("template", "warn")
    assert "more than its role" in template.message
    assert (kv.status, kv.fix) == ("warn", "agentmem chat --recall text")


def test_a_locked_store_is_named(scripted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "LOCK_SECONDS", 0.1)
    path = make_store(scripted)
    with Store.open(path) as store, store.for_user("default").write():
        row = rows("--store", str(path), code=5)["store"]
    assert row["status"] == "fail" and str(path) in row["message"]
    assert row["fix"] == f"fuser -v {path}.lock"


def test_a_newer_schema_is_named(scripted: Path) -> None:
    path = make_store(scripted)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    row = rows("--store", str(path), code=5)["store"]
    assert "schema 99" in row["message"] and row["fix"]


def test_a_store_that_is_no_database_is_named(scripted: Path) -> None:
    (scripted / "me.db").write_bytes(b"not a database, not at all" * 100)
    row = rows("--store", "me.db", code=5)["store"]
    assert row["status"] == "fail" and row["fix"]


def test_a_store_others_can_read_is_named(scripted: Path) -> None:
    path = make_store(scripted)
    path.chmod(0o644)
    row = rows("--store", str(path), code=5)["store permissions"]
    assert row["status"] == "fail" and row["fix"].startswith("chmod 600")


def test_a_folder_that_cannot_be_written_is_named(
    scripted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (scripted / "file").write_text("in the way")
    monkeypatch.setenv("XDG_DATA_HOME", str(scripted / "file"))
    row = rows("--store", str(make_store(scripted)), code=5)["data folder"]
    assert row["status"] == "fail" and str(scripted / "file") in row["message"]
    assert row["fix"] == f"mv {scripted / 'file'} {scripted / 'file'}.old"


def test_a_disk_that_is_nearly_full_warns_and_a_full_one_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for free, status in [(2**40, "ok"), (2**29, "warn"), (2**20, "fail")]:
        usage = SimpleNamespace(free=free)
        monkeypatch.setattr("agentmem.cli.checks.shutil.disk_usage", lambda _, usage=usage: usage)
        (check,) = checks.check_disk(tmp_path / "not" / "there" / "yet")
        assert check.status == status


def test_both_faiss_wheels_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = [SimpleNamespace(name=name, version="1.0") for name in ("faiss-cpu", "faiss_gpu_cu12")]
    monkeypatch.setattr(metadata, "distributions", lambda: wheels)
    (check,) = checks.check_faiss()
    assert check.status == "warn" and "overwrite each other" in check.message
    assert check.fix.startswith("pip uninstall")


def test_a_library_that_cannot_be_imported_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise ImportError(f"lib{name}.so: cannot open shared object file")

    monkeypatch.setattr("agentmem.cli.checks.importlib.import_module", broken)
    for check in (*checks.check_torch(), *checks.check_faiss()):
        assert check.status == "fail" and check.fix.startswith("pip install")


@pytest.fixture
def endpoint() -> Iterator[tuple[str, list[int]]]:
    """A server on this machine, and the statuses it answers next."""
    statuses: list[int] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(statuses.pop(0))
            self.end_headers()
            self.wfile.write(json.dumps({"data": []}).encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", statuses
        server.shutdown()
        thread.join()


def test_an_endpoint_is_asked_where_there_is_one(endpoint: tuple[str, list[int]]) -> None:
    url, statuses = endpoint
    for status, expected in [(200, "ok"), (401, "warn"), (500, "warn")]:
        statuses.append(status)
        row = rows("--base-url", url)["endpoint"]
        assert row["status"] == expected and str(status) in row["message"]
    assert "endpoint" not in rows()


def test_an_endpoint_that_does_not_answer_is_named() -> None:
    row = rows("--base-url", "http://127.0.0.1:9/v1", code=4)["endpoint"]
    assert row["status"] == "fail" and row["fix"] == "curl -i http://127.0.0.1:9/v1/models"


def test_setup_where_all_is_there_says_so(embedded_models: Path) -> None:
    ran = run_cli("setup", "--json")
    assert [row["name"] for row in ran.events] == ["smollm2", "minilm"]
    assert all(row["is_new"] is False for row in ran.events)
    assert ran.stderr.count("already in") == 2
