"""The KV benchmark: what is asked, how it is scored, and one run from end to end."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import Cache, QuantizedLayer

from agentmem.bench import kv as bench
from agentmem.bench import kv_plan, kv_row, needles
from agentmem.bench.kv import run_kv
from agentmem.bench.kv_contexts import PackedContext, SegmentContext, read_context
from agentmem.bench.kv_plan import Job, Plan, systems_of
from agentmem.bench.kv_quantized import PlainStates, QuantizedContext, forward_plain
from agentmem.bench.kv_row import KVOptions, KVRow, Measured, pooled
from agentmem.bench.kv_scoring import Reference, ask_dense, measure
from agentmem.bench.needles import (
    FRESH_TOKENS,
    NEWEST_TOKENS,
    ContextMaker,
    NeedleContext,
    Question,
)
from agentmem.errors import InvalidInput
from agentmem.models.attached import AttachedModel, attach
from tests.cli_run import run_cli
from tests.tiny_models import save_tiny_model, tiny_llama, tiny_tokenizer

VOCABULARY = 380


@pytest.fixture(scope="module")
def attached() -> Iterator[AttachedModel]:
    model = attach(tiny_llama(VOCABULARY))
    yield model
    model.detach()


@pytest.fixture(scope="module")
def context() -> NeedleContext:
    """A small context by hand: segments of 20, 8 and 33 tokens to be packed."""
    generator = torch.Generator().manual_seed(3)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(1, VOCABULARY, (count,), generator=generator).tolist())

    questions = (
        Question("digits", tokens(9), tokens(6), (False, True, True, True, True, True)),
        Question("word", tokens(14), tokens(2), (True, True)),
        Question("digits", tokens(12), tokens(6), (False, True, True, True, True, True)),
    )
    body = (tokens(20), tokens(8), tokens(33))
    return NeedleContext(tokens(4), body, tokens(NEWEST_TOKENS), tokens(FRESH_TOKENS), questions)


# Contexts in a cache.


def test_reading_in_steps_gives_what_one_plain_forward_gives(
    attached: AttachedModel, context: NeedleContext
) -> None:
    packed = SegmentContext(read_context(attached, context), "dense")
    ids = context.fresh
    cache = DynamicCache(config=attached.model.config)
    whole = forward_plain(attached, cache, (*context.token_ids, *ids), 0, len(ids))
    expected = whole.log_softmax(-1)
    for keep in (1, 7, 17, 33, len(ids)):
        torch.testing.assert_close(packed.read(ids, keep), expected[-keep:], rtol=1e-4, atol=1e-4)


def test_a_context_forgets_what_it_was_asked(
    attached: AttachedModel, context: NeedleContext
) -> None:
    packed = SegmentContext(read_context(attached, context), "q8")
    before = packed.read(context.fresh, 5)
    assert len(packed.decode_seconds(context.fresh[:3])) == 3
    packed.read(context.questions[0].prompt, 1)
    torch.testing.assert_close(packed.read(context.fresh, 5), before, rtol=0, atol=0)


def test_bytes_are_those_of_packed_segments_with_scales_and_padding(
    attached: AttachedModel, context: NeedleContext
) -> None:
    packed = SegmentContext(read_context(attached, context), "q8")
    # Two heads of 16 channels in two layers: a code for each channel and an fp16 scale for each
    # head, of keys and of values; four pages of 16 tokens for the 61 of three segments.
    of_slot = 2 * 2 * 2 * (16 + 2)
    assert packed.packed_bytes == of_slot * 16 * 4
    assert (packed.packed_tokens, packed.dense_tokens) == (61, 68)
    assert packed.prefill_seconds > 0


# Transformers' quantized caches; the backends are not needed: a layer rounds in their place.


class RoundingLayer(QuantizedLayer):  # type: ignore[misc]  # transformers is untyped
    """Codes of eight bits by token in hqq's form."""

    def _quantize(self, tensor: Tensor, axis: int) -> tuple[Tensor, dict[str, Tensor]]:
        low, high = tensor.amin(-1, keepdim=True), tensor.amax(-1, keepdim=True)
        scale = (high - low).clamp_min(1e-6) / 255
        return ((tensor - low) / scale).round().to(torch.uint8), {"scale": scale, "zero": low}

    def _dequantize(self, quantized: tuple[Tensor, dict[str, Tensor]]) -> Tensor:
        codes, meta = quantized
        return codes * meta["scale"] + meta["zero"]


@pytest.fixture
def rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend that is always installed."""

    def rounded(config: Any, *args: int | str) -> Cache:
        layers = [RoundingLayer(residual_length=args[-1]) for _ in range(config.num_hidden_layers)]
        return Cache(layers=layers)

    monkeypatch.setattr("agentmem.bench.kv_quantized.quantized_cache", rounded)


@pytest.mark.usefixtures("rounding")
def test_a_quantized_context_answers_from_codes_and_forgets(
    attached: AttachedModel, context: NeedleContext
) -> None:
    states = PlainStates(attached, context)
    packed = QuantizedContext(states, "hqq", 4, 64)
    dense = SegmentContext(read_context(attached, context), "dense").read(context.fresh, 64)
    before = packed.read(context.fresh, 64)
    assert 1e-5 < float((before - dense).abs().mean()) < 0.1
    packed.decode_seconds(context.fresh[:3])
    torch.testing.assert_close(packed.read(context.fresh, 64), before, rtol=0, atol=0)


@pytest.mark.usefixtures("rounding")
def test_a_quantized_context_counts_codes_and_two_bytes_a_scale_and_a_zero(
    attached: AttachedModel, context: NeedleContext
) -> None:
    packed = QuantizedContext(PlainStates(attached, context), "hqq", 4, 64)
    # Of 65 tokens before the newest 64, one does not fill a group.
    assert (packed.packed_tokens, packed.dense_tokens) == (64, 1 + 64)
    assert packed.packed_bytes == 64 * 2 * 2 * 2 * (16 + 2 + 2)


# Scores.


class Oracle(PackedContext):
    """Holds one token for likeliest after every token: the next of what it was told to say.

    Args:
        sayings: what it says, and to what.
        sure: the probability it gives that token; the other 29 share the rest.
    """

    packed_bytes, packed_tokens, dense_tokens, prefill_seconds = 100, 10, 68, 0.5

    def __init__(self, sayings: Sequence[Sequence[int]], sure: float = 0.9) -> None:
        self.sure, self.rest = math.log(sure), math.log((1 - sure) / 29)
        self._next = {
            tuple(said[:end]): said[end] for said in sayings for end in range(1, len(said))
        }

    def read(self, token_ids: Sequence[int], keep: int) -> Tensor:
        rows = torch.full((keep, 30), self.rest)
        for row in range(keep):
            seen = tuple(token_ids[: len(token_ids) - keep + row + 1])
            rows[row, self._next.get(seen, 0)] = self.sure
        return rows

    def _forward(self, token_ids: Sequence[int], keep: int) -> Tensor:
        return torch.zeros(keep, 30)

    def _forget(self) -> None:
        pass


CODE = Question("digits", (1, 2), (9, 11, 12, 13, 14, 15), (False, True, True, True, True, True))
WORD = Question("word", (3, 4), (20, 21), (True, True))
ASKED = NeedleContext((), (), (), (5, 6, 7), (CODE, WORD))


def test_digits_are_counted_without_the_space_and_words_whole() -> None:
    dense = Oracle([(1, 2, 9, 11, 12, 13, 14, 15), (3, 4, 20, 21)])
    reference = ask_dense(dense, ASKED)
    assert reference.right == [1, 1]
    assert reference.answers == [CODE.answer, WORD.answer]
    # Wrong from the fourth digit on, and without the space at all; half of the word.
    poor = Oracle([(1, 2), (1, 2, 9, 11, 12, 13), (3, 4, 20, 22)])
    poor._next[1, 2] = 8
    measured = measure(poor, ASKED, reference)
    assert (measured.digits, measured.digits_dense) == ([0.6], [1])
    assert (measured.words, measured.words_dense) == ([False], [True])
    assert (measured.agrees, measured.agrees_first) == ([False, False], [True, True])
    assert (measured.packed_bytes, measured.packed_tokens) == ([100], [10])
    assert measured.prefill_ms == [500] and len(measured.decode_ms) == 1


def test_agreement_is_with_what_the_dense_model_says_not_with_what_is_true() -> None:
    said = [(1, 2, 9, 11, 12, 17, 18, 19), (3, 4, 23, 24)]
    dense = Oracle(said)
    reference = ask_dense(dense, ASKED)
    assert reference.answers == [(9, 11, 12, 17, 18, 19), (23, 24)]
    assert reference.right == [0.4, 0]
    same = measure(Oracle(said), ASKED, reference)
    assert same.agrees == [True, True] and same.kl == [0, 0] and same.fresh_kl == [0]
    assert same.log_prob == pytest.approx([6 * math.log(0.9), 2 * math.log(0.9)], abs=1e-5)
    true = Oracle([(1, 2, 9, 11, 12, 13, 14, 15), (3, 4, 20, 21)], sure=0.6)
    other = measure(true, ASKED, reference)
    assert other.digits == [1] and other.words == [True]
    assert other.agrees == [False, False] and other.agrees_first == [True, False]
    # Along 9, 11, 12 it says the same, but is less sure; along all else it says something else.
    less = 0.1 / 29
    alike = 0.9 * (dense.sure - true.sure) + 0.1 * (dense.rest - true.rest)
    unlike = (
        0.9 * (dense.sure - true.rest)
        + less * (dense.rest - true.sure)
        + 28 * less * (dense.rest - true.rest)
    )
    assert other.kl == pytest.approx([(alike + unlike) / 2, unlike], rel=1e-4)


def test_the_dense_model_says_what_it_decodes_greedily(
    attached: AttachedModel, context: NeedleContext
) -> None:
    reference = ask_dense(SegmentContext(read_context(attached, context), "dense"), context)
    for question, answer in zip(context.questions, reference.answers, strict=True):
        ids = torch.tensor([[*context.token_ids, *question.prompt]])
        decoded = attached.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=len(answer),
            min_new_tokens=len(answer), do_sample=False, pad_token_id=0, eos_token_id=None,
        )  # fmt: skip
        assert answer == tuple(decoded[0, ids.shape[1] :].tolist())


def test_a_format_is_compared_with_dense_and_dense_with_itself_differs_in_nothing(
    attached: AttachedModel, context: NeedleContext
) -> None:
    read = read_context(attached, context)
    reference: Reference = ask_dense(SegmentContext(read, "dense"), context)
    dense = measure(SegmentContext(read, "dense"), context, reference)
    assert dense.digits == dense.digits_dense and dense.words == dense.words_dense
    # Read together with other answers: equal to rounding.
    assert all(dense.agrees) and dense.log_prob == pytest.approx(dense.log_prob_dense, abs=1e-4)
    assert max(dense.kl) == 0 and dense.fresh_kl == [0] and dense.fresh_nll == dense.fresh_nll_dense
    q8 = measure(SegmentContext(read, "q8"), context, reference)
    assert 0 < max(q8.kl) < 0.05 and 0 < q8.fresh_kl[0] < 0.05
    assert len(q8.kl) == 3 and len(q8.digits) == 2 and len(q8.words) == 1


# Rows.


def measured(digits: Sequence[float], dense: Sequence[float], **changes: Any) -> Measured:
    """What one context gave."""
    values: dict[str, Any] = {
        "digits": list(digits), "digits_dense": list(dense), "words": [True], "words_dense": [True],
        "log_prob": [-1.0], "log_prob_dense": [-0.5], "agrees": [True], "agrees_first": [True],
        "kl": [0.1], "fresh_nll": [2.5], "fresh_nll_dense": [2.25], "fresh_kl": [0.01],
        "packed_bytes": [1000], "packed_tokens": [100], "dense_tokens": [68],
        "prefill_ms": [10.0], "decode_ms": [1.0],
    }  # fmt: skip
    return Measured(**values | changes)


def row(each: Measured, **changes: Any) -> KVRow:
    values: dict[str, Any] = {
        "system": "agentmem", "format": "q8", "layout": "chat", "text": "prose", "context": 1024,
        "seed": 0, "dense_bytes_per_token": 40, "each": each,
    }  # fmt: skip
    return KVRow(**values | changes)


def test_bits_are_of_what_is_packed_and_of_the_whole_window() -> None:
    scalars = row(measured([1], [1])).scalars()
    # 10 bytes a token where bf16 takes 40, and 68 dense tokens beside 100 packed ones.
    assert scalars["bits"] == 4 and scalars["bytes_per_token"] == 10
    assert scalars["window_bits"] == pytest.approx((100 * 4 + 68 * 16) / 168)


def test_rows_are_pooled_by_what_was_measured_not_by_their_means() -> None:
    first = row(measured([1, 0.4], [1, 1]), seed=0)
    second = row(measured([0.8], [0.8], packed_bytes=[4000], packed_tokens=[200]), seed=1)
    larger = row(measured([1], [0.8]), context=2048, seed=0)
    small, large, every = (one.scalars() for one in pooled([first, second, larger]))
    assert (small["context"], small["seed"], small["answers"]) == (1024, None, 3)
    assert small["digits"] == pytest.approx(2.2 / 3)
    assert small["digits_vs_dense"] == pytest.approx(2.2 / 2.8)
    assert small["bytes_per_token"] == pytest.approx(5000 / 300)
    assert small["exact"] == pytest.approx(1 / 3) and small["exact_dense"] == pytest.approx(2 / 3)
    assert large["digits_vs_dense"] == pytest.approx(1.25)
    assert (every["context"], every["answers"]) == (None, 4)
    assert every["digits_vs_dense"] == pytest.approx(3.2 / 3.6)
    assert every["fresh_nll_vs_dense"] == pytest.approx(0.25)
    assert every["log_prob_vs_dense"] == pytest.approx(-0.5)


def test_the_lower_end_says_how_little_few_answers_tell() -> None:
    few = row(measured([1, 1, 1, 0.4], [1, 1, 1, 1])).scalars()
    many = row(measured([1, 1, 1, 0.4] * 100, [1, 1, 1, 1] * 100)).scalars()
    for scalars in (few, many):
        assert scalars["low"] < scalars["digits_vs_dense"] == pytest.approx(0.85)
    assert few["low"] < 0.6 < 0.8 < many["low"] < 0.85 < many["high"] < 0.9
    same = row(measured([0.8] * 9, [0.8] * 9)).scalars()
    assert same["low"] == same["digits_vs_dense"] == same["high"] == 1


def test_where_dense_knows_nothing_there_is_no_ratio() -> None:
    scalars = row(measured([0.2], [0.0], words=[], words_dense=[])).scalars()
    assert scalars["digits_vs_dense"] is scalars["low"] is None
    assert scalars["words"] is scalars["words_vs_dense"] is None


def test_a_row_comes_back_from_json() -> None:
    first = row(measured([1, 0.4], [1, 1]), digest="abc", format="4-bit, groups of 64")
    data = json.loads(json.dumps(first.to_dict()))
    assert KVRow.from_dict(data) == first
    absent = row(Measured(), note="not installed")
    assert KVRow.from_dict(json.loads(json.dumps(absent.to_dict()))) == absent
    assert "digits" not in absent.scalars() and absent.scalars()["note"] == "not installed"


# The plan.


def options(**changes: Any) -> KVOptions:
    values: dict[str, Any] = {"contexts": (1024, 2048), "answers": 48, "baseline_answers": 24}
    return KVOptions(**values | changes)


def test_every_size_of_context_gets_its_share_of_the_answers() -> None:
    wanted = KVOptions(answers=2000)
    counts = [wanted.num_contexts(size, 2000) for size in wanted.contexts]
    assert counts == [56, 40, 28]
    assert sum(n * codes for n, codes in zip(counts, (12, 17, 24), strict=True)) >= 2000


def test_contexts_of_all_kinds_come_in_turn() -> None:
    jobs = list(Plan(options(), systems_of("q8", (64,)), []).jobs())
    assert jobs[:4] == [
        Job("prose", layout, size, 0) for layout in ("document", "chat") for size in (1024, 2048)
    ]
    assert [(job.layout, job.context, job.number) for job in jobs[4:]] == [
        ("document", 1024, 1), ("document", 2048, 1), ("chat", 1024, 1), ("chat", 2048, 1),
    ]  # fmt: skip


def test_a_group_size_is_chosen_by_the_first_contexts_and_the_others_end_there() -> None:
    wanted = options(layouts=("chat",), contexts=(1024,), answers=48, baseline_answers=24)
    systems = [*systems_of("q8", (32, 64, 128)), *systems_of("hqq2", (32, 64, 128))]
    plan = Plan(wanted, systems, [])
    jobs = list(plan.jobs())
    assert len(jobs) == 4
    first = plan.of(jobs[0])
    assert [one.format for one in first] == [
        "q8",
        *(f"2-bit, groups of {n}" for n in (32, 64, 128)),
    ]
    for one, kl in zip(first, (0.0, 0.3, 0.1, 0.2), strict=True):
        plan.add(replace(plan.row_of(one, jobs[0]), each=measured([1], [1], kl=[kl])))
    assert plan.missing(jobs[0]) == []
    assert [one.format for one in plan.missing(jobs[1])] == ["q8", "2-bit, groups of 64"]
    # Transformers' caches answer fewer questions.
    assert [one.format for one in plan.missing(jobs[2])] == ["q8"]
    assert [one.format for one in plan.rows()] == ["q8", "2-bit, groups of 64"]
    assert plan.tokens(jobs[0]) > plan.tokens(jobs[1]) > plan.tokens(jobs[2]) > 1024


def test_a_row_of_another_calibration_is_measured_again() -> None:
    (before,) = (replace(one, digest="model klt2:aaa") for one in systems_of("klt", ()))
    after = replace(before, digest="model klt2:bbb")
    wanted = options(layouts=("chat",))
    job = next(Plan(wanted, [before], []).jobs())
    rows = [replace(Plan(wanted, [before], []).row_of(before, job), each=measured([1], [1]))]
    assert Plan(wanted, [before], rows).missing(job) == []
    assert Plan(wanted, [after], rows).missing(job) == [after]
    assert Plan(wanted, [after], rows).rows() == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layouts": ("book",)}, "`layouts` must be some of document, chat: got 'book'"),
        ({"text_domains": ("poems",)}, "got 'poems'"),
        ({"contexts": ()}, "`contexts` must name at least one"),
        ({"answers": 0}, "`answers` must be positive: got 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        KVOptions(**changes)


# A run.

WORDS = "the quick brown fox jumps over a lazy dog and then another one while it rains in Oslo "


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder with a tiny model in it, and texts that are made in no time."""
    save_tiny_model(tmp_path / "tiny")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "domain_text", lambda domain: WORDS * 200)
    for module in (needles, kv_row, kv_plan):
        monkeypatch.setattr(module, "num_needles", lambda num_tokens: (3, 1))
    monkeypatch.setattr(
        "agentmem.bench.kv_quantized.quantized_cache", _raise(ImportError("no such backend"))
    )
    return tmp_path


def _raise(error: Exception) -> Any:
    def raising(*args: object) -> None:
        raise error

    return raising


RUN = ("bench", "kv", "--model", "hf:tiny", "--context", "512", "--answers", "3", "--layout",
       "chat", "--out", "rows.json")  # fmt: skip


def test_a_run_writes_rows_and_is_taken_up_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run_cli(*RUN, "--format", "q8", "--format", "quanto4", "--json")
    assert first.code == 0, first
    packed, absent = first.events
    assert (packed["type"], packed["bench"], packed["format"]) == ("row", "kv", "q8")
    assert packed["answers"] == 3 and packed["context"] == 512
    assert 9 < packed["bits"] < 14 and packed["bits"] < packed["window_bits"] < 16
    assert packed["kl"] < 0.05 and packed["agreement"] > 0.7
    assert (absent["system"], absent["format"]) == ("quanto", "quanto4")
    assert absent["note"].startswith("not installed")
    assert "hours to go" in first.stderr and "context 1 of 1" in first.stderr
    data = json.loads((folder / "rows.json").read_text())
    assert set(data) == {"bench", "command", "machine", "versions", "rows"}
    assert data["command"] == "agentmem bench kv --model hf:tiny"
    assert [one["seed"] for one in data["rows"]] == [0, None]
    assert data["rows"][0]["digest"].endswith(" q8")

    # More answers and another format: what is there is not measured again.
    again = run_cli(*RUN, "--answers", "6", "--format", "q8", "--format", "dense", "--json")
    q8, dense = again.events
    assert q8["answers"] == dense["answers"] == 6
    assert dense["digits_vs_dense"] in (1, None) and dense["kl"] == 0 and dense["agreement"] == 1
    rows = json.loads((folder / "rows.json").read_text())["rows"]
    assert [(one["format"], one["seed"]) for one in rows] == [
        ("q8", 0), ("dense", 0), ("q8", 1), ("dense", 1),
    ]  # fmt: skip
    assert rows[0] == data["rows"][0]

    monkeypatch.setattr(bench, "_measure", _raise(AssertionError("measured again")))
    third = run_cli(*RUN, "--answers", "6", "--format", "q8", "--format", "dense")
    assert third.code == 0 and "q8" in third.stdout and "dense" in third.stdout


def test_rows_of_another_text_are_measured_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = KVOptions(
        model="hf:tiny", formats=("dense",), layouts=("document",), contexts=(512,), answers=1,
        out=folder / "rows.json",
    )  # fmt: skip
    run_kv(wanted)
    monkeypatch.setattr(bench, "domain_text", lambda domain: "and then " + WORDS * 200)
    told: list[str] = []
    run_kv(wanted, progress=told.append)
    assert len(told) == 1 and told[0].startswith("context 1 of 1")
    assert len(json.loads((folder / "rows.json").read_text())["rows"]) == 1


def test_a_format_nobody_knows_is_a_usage_error(folder: Path) -> None:
    ran = run_cli(*RUN, "--format", "zip", "--json")
    assert (ran.code, ran.events[0]["code"]) == (2, "InvalidInput")
    assert "'zip'" in ran.events[0]["message"] and "hqq2" in ran.events[0]["message"]


def test_contexts_are_the_same_for_every_run(folder: Path) -> None:
    tokenizer = tiny_tokenizer()
    ids = tokenizer(WORDS * 200).input_ids
    makers = [
        ContextMaker(ids, (), lambda text: list(tokenizer(text).input_ids), tokenizer.decode,
                     "chat", 512)
        for _ in range(2)
    ]  # fmt: skip
    assert makers[0].make(7) == makers[1].make(7)
