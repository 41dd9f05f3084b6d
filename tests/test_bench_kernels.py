"""The kernel benchmark: rivals compute the same, errors show, and one run from end to end."""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from agentmem.bench import kernels as bench
from agentmem.bench import kernels_attention, kernels_decode, kernels_memory, needles
from agentmem.bench.kernels_attention import attention_rows, measure_attention, size_of_error
from agentmem.bench.kernels_rivals import (
    QuantizedStep,
    best_sdpa,
    on_dequantized_copy,
    sdpa_ways,
)
from agentmem.bench.kernels_row import (
    OUR_FORMATS,
    AttentionRow,
    KernelOptions,
    KernelRow,
    MemoryRow,
    PagesRow,
    Shape,
    row_from,
    to_dict,
)
from agentmem.bench.kernels_window import format_window, segment_lengths
from agentmem.bench.timing import take_turns
from agentmem.errors import InvalidInput
from agentmem.storage.kv_packed import PackedCodec
from tests.cli_run import run_cli
from tests.test_bench_kv import RoundingLayer
from tests.tiny_models import save_tiny_model

SHAPE = Shape(6, 2, 32)
LENGTHS = [40, 9, 64]


# What is compared computes the same.


@pytest.mark.parametrize("name", OUR_FORMATS)
def test_every_rival_attends_to_the_same_keys_and_values(name: str) -> None:
    window = format_window(name, SHAPE, LENGTHS)
    queries, limits = window.queries(SHAPE.groups), window.sees_all(SHAPE.groups)
    expected = window.plain_attention(queries, limits)[0]
    assert size_of_error(window.attend(queries, limits)[0], expected) < 0.02
    assert size_of_error(on_dequantized_copy(window, queries)(), expected) < 1e-5
    keys, values = window.dense()
    assert keys.shape == (2, sum(LENGTHS), 32)
    for dtype, bound in ((torch.float32, 1e-5), (torch.bfloat16, 0.02)):
        for way, call in sdpa_ways(queries, keys, values, dtype).items():
            assert size_of_error(call(), expected) < bound, way
    assert [found.split()[0] for found in best_sdpa(queries, keys, values)] == [
        "float32", "bfloat16",
    ]  # fmt: skip


def test_transformers_quantized_cache_is_asked_for_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from transformers.cache_utils import Cache

    made: list[Any] = []

    class Step(QuantizedStep):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.given = given
            made.append(self)

    monkeypatch.setattr(
        "agentmem.bench.kernels_rivals.quantized_cache",
        lambda *args: Cache(layers=[RoundingLayer(residual_length=args[-1])]),
    )
    monkeypatch.setattr("agentmem.bench.kernels_rivals.quantized_nbytes", lambda *args: 100)
    monkeypatch.setattr(kernels_attention, "refusal_of", lambda *args: "")
    monkeypatch.setattr(kernels_attention, "QuantizedStep", Step)
    row = AttentionRow(shape="6/2/32", tokens=200, layout="document", format="quanto4")
    measured = measure_attention(row, 0.01)
    assert measured.ms and measured.speedup and measured.packed_nbytes == 200
    _, queries, keys, values, num_bits = made[0].given
    assert num_bits == 4
    # It appends a token of zeros; a call leaves the cache as it found it.
    keys, values = (torch.cat((one, torch.zeros(2, 1, 32)), 1) for one in (keys, values))
    expected = torch.softmax(queries.double() @ keys.double().mT, -1) @ values.double()
    for _ in range(2):
        assert size_of_error(made[0](), expected) < 0.02


def test_a_codec_that_computes_something_else_is_seen_in_the_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = AttentionRow(shape="6/2/32", tokens=80, layout="chat", format="q8")
    right = measure_attention(row, 0.01)
    assert right.error is not None and right.error < 1e-3
    attend: Callable[..., tuple[Tensor, Tensor]] = PackedCodec.attend

    def late(self: PackedCodec, queries: Tensor, rotations: Tensor, *rest: Any) -> Any:
        return attend(self, queries, rotations.conj(), *rest)

    monkeypatch.setattr(PackedCodec, "attend", late)
    wrong = measure_attention(row, 0.01)
    assert wrong.error is not None and wrong.error > 0.05
    assert wrong.sdpa_error is not None and wrong.sdpa_error < 1e-5


def test_a_row_says_how_much_of_the_byte_ratio_is_reached() -> None:
    row = AttentionRow(shape="6/2/32", tokens=96, layout="document", format="q4")
    found = measure_attention(row, 0.01)
    assert found.packed_nbytes == 96 * 2 * 2 * (16 + 2)
    assert found.dense_nbytes == 96 * 2 * 2 * 32 * 2
    assert found.ms and found.sdpa_ms and found.speedup and found.of_byte_ratio
    assert found.speedup == pytest.approx(found.sdpa_ms / found.ms)
    assert found.of_byte_ratio == pytest.approx(found.speedup * 18 / 64)
    assert found.segments == 1 and found.sdpa.split()[0] in ("float32", "bfloat16")


def test_a_chat_is_cut_into_short_segments() -> None:
    lengths = segment_lengths("chat", 1000)
    assert sum(lengths) == 1000 and lengths == segment_lengths("chat", 1000)
    assert all(8 <= length <= 60 for length in lengths[:-1])
    assert segment_lengths("document", 1000) == [1000]


# How times are taken.


def test_calls_take_turns_and_the_first_round_does_not_count() -> None:
    called: list[str] = []
    calls = {name: lambda name=name: called.append(name) for name in ("one", "two")}
    times = take_turns(calls, seconds=60, most=5)
    assert called == ["one", "two"] * 6
    assert times["one"].wall_ms >= 0 and times["two"].ms == times["two"].cpu_ms


def test_a_call_that_is_slow_takes_few_turns() -> None:
    called: list[str] = []

    def slow() -> None:
        time.sleep(0.01)
        called.append("slow")

    take_turns({"slow": slow, "quick": lambda: called.append("quick")}, seconds=0.05, least=4)
    assert called[:6] == ["slow", "quick"] * 3
    assert called.count("slow") == 3 and called.count("quick") >= 5


# Options.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parts": ("sorting",)}, "`parts` must be some of attention, pages, decode, memory"),
        ({"formats": ("zip",)}, "got 'zip'"),
        ({"shapes": ("9x3",)}, "as 32/8/128: got '9x3'"),
        ({"shapes": ("9/2/64",)}, "must be a multiple"),
        ({"shapes": ("4/2/48",)}, "got 48"),
        ({"tokens": ()}, "`tokens` must name at least one"),
        ({"decoded": 0}, "must be positive: got 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        KernelOptions(**changes)


def test_what_knows_no_segments_is_measured_once() -> None:
    options = KernelOptions(shapes=("9/3/64",), tokens=(1024,), formats=("q8", "quanto4"))
    found = [(row.layout, row.format) for row in attention_rows(options)]
    assert found == [("document", "q8"), ("document", "quanto4"), ("chat", "q8")]


def test_a_row_is_the_same_after_json() -> None:
    rows: list[KernelRow] = [
        AttentionRow(shape="6/2/32", tokens=9, layout="chat", format="q8", error=0.5),
        PagesRow(shape="6/2/32", tokens=9, format="q8", mass_us=1.5),
    ]
    assert [row_from(json.loads(json.dumps(to_dict(row)))) for row in rows] == rows


# A run.

WORDS = "the quick brown fox jumps over a lazy dog and then another one while it rains in Oslo "
RUN = (
    "bench", "kernels", "--model", "hf:tiny", "--threads", "1", "--shape", "6/2/32", "--tokens",
    "90", "--seconds", "0.01", "--context", "600", "--decoded", "4", "--memory-tokens", "1024",
    "--format", "q8", "--format", "dense", "--format", "klt", "--format", "quanto4", "--layout",
    "chat", "--out", "rows.json",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder with a tiny model in it, and a text that is made in no time."""
    save_tiny_model(tmp_path / "tiny")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kernels_decode, "domain_text", lambda domain: WORDS * 60)
    monkeypatch.setattr(needles, "num_needles", lambda num_tokens: (3, 1))
    monkeypatch.setattr(kernels_attention, "refusal_of", lambda *args: "no such backend")
    return tmp_path


def test_a_run_measures_every_part_and_is_taken_up_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels_memory, "measure_memory", kernels_memory.measure_here)
    first = run_cli(*RUN, "--json")
    assert first.code == 0, first
    rows = {
        (row["part"], row.get("format") or row.get("system")): row for row in first.events
    }  # fmt: skip
    assert all((row["type"], row["bench"]) == ("row", "kernels") for row in first.events)
    assert list(rows) == [
        ("attention", "q8"), ("attention", "dense"), ("attention", "klt"), ("attention", "quanto4"),
        ("pages", "q8"), ("pages", "dense"), ("pages", "klt"),
        ("decode", "DynamicCache"), ("decode", "q8"), ("decode", "dense"), ("decode", "klt"),
        ("memory", "q8"), ("memory", "klt"),
    ]  # fmt: skip
    assert rows["attention", "quanto4"]["note"] == "no such backend"
    assert "agentmem calibrate" in rows["decode", "klt"]["note"]
    assert "agentmem calibrate" in rows["memory", "klt"]["note"]
    for kind, row in rows.items():
        assert row["note"] or None not in row.values(), kind
    assert rows["decode", "DynamicCache"]["speedup"] == 1
    assert rows["decode", "dense"]["same"] == rows["decode", "DynamicCache"]["same"] == 1
    assert rows["decode", "q8"]["nbytes"] < rows["decode", "dense"]["nbytes"]
    assert rows["memory", "q8"]["packed_nbytes"] == 1024 * 144
    data = json.loads((folder / "rows.json").read_text())
    assert data["command"] == (
        "agentmem bench kernels --decoded 4 --seconds 0.01 --model hf:tiny --threads 1"
    )
    assert len(data["rows"]) == len(rows)

    # Only what could not be measured is tried again.
    for name in ("measure_attention", "measure_pages"):
        measure = getattr(kernels_attention, name)
        monkeypatch.setattr(kernels_attention, name, _only(("klt", "quanto4"), measure))
    parts = ("--part", "attention", "--part", "pages")
    again = run_cli(*RUN, *parts)
    assert again.code == 0, again
    assert "attention 6/2/32 90 chat quanto4" in again.stderr
    assert "chat q8" not in again.stderr
    for word in ("kernels: attention", "kernels: pages", "of_byte_ratio", "no such backend"):
        assert word in again.stdout


def _only(allowed: tuple[str, ...], measure: Callable[..., Any]) -> Callable[..., Any]:
    def measured(row: AttentionRow | PagesRow, seconds: float) -> Any:
        assert row.format in allowed, "measured again"
        return measure(row, seconds)

    return measured


def test_memory_is_measured_in_a_process_of_its_own(folder: Path) -> None:
    # Two heads of 16 channels in two layers, an fp16 scale with each: 144 bytes a token.
    row = kernels_memory.measure_memory(MemoryRow(tokens=1024, format="q8"), "hf:tiny")
    assert (row.packed_nbytes, row.layers) == (1024 * 144, 2)
    assert row.step_nbytes is not None and 0 <= row.step_nbytes < 32 << 20


def test_a_picture_is_drawn_where_matplotlib_is(tmp_path: Path) -> None:
    row = AttentionRow(shape="6/2/32", tokens=9, layout="chat", format="q8", speedup=2.5)
    is_installed = importlib.util.find_spec("matplotlib") is not None
    assert bench.draw([row], tmp_path / "bars.png") is is_installed
    assert (tmp_path / "bars.png").exists() is is_installed
