"""What the KV benchmark is asked for, and what it answers for each format."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from agentmem.bench.needles import LAYOUTS, num_needles
from agentmem.bench.paired import Difference, paired_difference
from agentmem.bench.texts import DOMAINS
from agentmem.errors import InvalidInput

BASELINES = ("quanto4", "quanto2", "hqq4", "hqq2")
GROUP_SIZES = (32, 64, 128)


@dataclass(frozen=True, kw_only=True)
class KVOptions:
    """What to measure and on what.

    Args:
        model: "local", or "hf:" and a folder or id.
        formats: of agentmem's cache, and `BASELINES` for transformers'; none means all.
        layouts: how contexts are cut into segments.
        contexts: tokens of a context.
        text_domains: what contexts are filled with.
        answers: codes asked for in each layout and domain, over all contexts.
        baseline_answers: the same for transformers' caches, each at the group size that comes
            nearest to dense in the first contexts.
        group_sizes: tried for transformers' caches.
        seed: of the first context of each kind; the others follow it.
        threads: CPU threads.
        out: JSON file; rows that are in it already are not measured again. A PNG goes beside it.
    """

    model: str = "local"
    formats: tuple[str, ...] = ()
    layouts: tuple[str, ...] = LAYOUTS
    contexts: tuple[int, ...] = (1024, 2048, 4096)
    text_domains: tuple[str, ...] = ("prose",)
    answers: int = 2000
    baseline_answers: int = 400
    group_sizes: tuple[int, ...] = GROUP_SIZES
    seed: int = 0
    threads: int | None = None
    out: Path | None = None

    @classmethod
    def quick(cls, **changes: Any) -> KVOptions:
        """One short context a layout, one group size: minutes on two cores."""
        few: dict[str, Any] = {"contexts": (512,), "answers": 8, "baseline_answers": 8}
        return cls(**{**few, "group_sizes": (64,), **changes})

    def __post_init__(self) -> None:
        for name, known in (("layouts", LAYOUTS), ("text_domains", DOMAINS)):
            for value in getattr(self, name):
                if value not in known:
                    raise InvalidInput(
                        f"`{name}` must be some of {', '.join(known)}: got {value!r}."
                    )
        for name in ("layouts", "text_domains", "contexts", "group_sizes"):
            if not getattr(self, name):
                raise InvalidInput(f"`{name}` must name at least one.")
        for name in ("answers", "baseline_answers"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"`{name}` must be positive: got {getattr(self, name)}.")

    def num_contexts(self, num_tokens: int, answers: int) -> int:
        """How many contexts of a size it takes for that size's share of the answers."""
        return -(-answers // (len(self.contexts) * num_needles(num_tokens)[0]))

    @property
    def command(self) -> str:
        """The command that gives the same rows; it leaves out how many and which are wanted."""
        words = ["agentmem", "bench", "kv"]
        for option in fields(self):
            value = getattr(self, option.name)
            if option.name in ("model", "threads") and value != option.default:
                words += [f"--{option.name}", str(value)]
        return shlex.join(words)


@dataclass
class Measured:
    """Everything measured, answer by answer and context by context, so that rows can be pooled.

    Args:
        digits, digits_dense: for each code the share of its digits that were right.
        words, words_dense: for each animal whether it was right.
        log_prob, log_prob_dense: of the dense model's own answer, for each question, in nats.
        agrees: whether greedy decoding gives the dense model's own answer.
        agrees_first: the same of the first token that counts.
        kl: from the dense model along its own answer, mean over tokens, in nats.
        fresh_nll, fresh_nll_dense, fresh_kl: of the text that goes on, for each context, nats a
            token.
        packed_bytes, packed_tokens: what the packed part of each context takes.
        dense_tokens: of each context, beside it.
        prefill_ms: reading each context and packing it.
        decode_ms: one token after it.
    """

    digits: list[float] = field(default_factory=list)
    digits_dense: list[float] = field(default_factory=list)
    words: list[bool] = field(default_factory=list)
    words_dense: list[bool] = field(default_factory=list)
    log_prob: list[float] = field(default_factory=list)
    log_prob_dense: list[float] = field(default_factory=list)
    agrees: list[bool] = field(default_factory=list)
    agrees_first: list[bool] = field(default_factory=list)
    kl: list[float] = field(default_factory=list)
    fresh_nll: list[float] = field(default_factory=list)
    fresh_nll_dense: list[float] = field(default_factory=list)
    fresh_kl: list[float] = field(default_factory=list)
    packed_bytes: list[int] = field(default_factory=list)
    packed_tokens: list[int] = field(default_factory=list)
    dense_tokens: list[int] = field(default_factory=list)
    prefill_ms: list[float] = field(default_factory=list)
    decode_ms: list[float] = field(default_factory=list)

    def extend(self, other: Measured) -> None:
        """Append what was measured elsewhere."""
        for one in fields(self):
            getattr(self, one.name).extend(getattr(other, one.name))


@dataclass(frozen=True, kw_only=True)
class KVRow:
    """What one format did in one layout, text and context size.

    Bits are of one element of the packed keys and values, 16 in bf16: codes, scales, padding and
    all. The first tokens and the newest, which stay dense, are not in `bits`; they are in
    `window_bits`, at 16, as is what transformers' caches keep beside what they quantize.

    Args:
        system: "agentmem", "quanto" or "hqq".
        format: its name there.
        layout, text, context: what it was measured on; `context` is None for all sizes.
        seed: of its one context; None where several are pooled.
        digest: of model, text and format; rows of different ones do not compare.
        dense_bytes_per_token: of a bf16 cache.
        note: why nothing was measured.
        each: what was measured.
    """

    system: str
    format: str
    layout: str
    text: str
    context: int | None = None
    seed: int | None = None
    digest: str = ""
    dense_bytes_per_token: int = 1
    note: str = ""
    each: Measured = field(default_factory=Measured, repr=False)

    @property
    def identity(self) -> tuple[object, ...]:
        """What tells it from every other row of a file."""
        kind = (self.layout, self.text, self.context, self.seed)
        return (self.system, self.format, self.digest, *kind)

    def scalars(self) -> dict[str, Any]:
        """The row's numbers; those of an accuracy are 0..1, `low` and `high` 95 % intervals."""
        shown: dict[str, Any] = {
            one.name: getattr(self, one.name)
            for one in fields(self)
            if one.name not in ("each", "note", "digest", "dense_bytes_per_token")
        }
        each = self.each
        if self.note or not each.packed_tokens:
            return shown | {"note": self.note}
        digits, low, high = _against(each.digits, each.digits_dense)
        words, words_low, _ = _against(each.words, each.words_dense)
        fresh = paired_difference(each.fresh_nll, each.fresh_nll_dense)
        packed, tokens = sum(each.packed_bytes), sum(each.packed_tokens)
        dense = sum(each.dense_tokens)
        window = packed + dense * self.dense_bytes_per_token
        return shown | {
            "bits": 16 * packed / (tokens * self.dense_bytes_per_token),
            "window_bits": 16 * window / ((tokens + dense) * self.dense_bytes_per_token),
            "bytes_per_token": packed / tokens,
            "answers": len(each.digits),
            "exact": fmean(share == 1 for share in each.digits),
            "exact_dense": fmean(share == 1 for share in each.digits_dense),
            "digits": fmean(each.digits),
            "digits_vs_dense": digits,
            "low": low,
            "high": high,
            "words": fmean(each.words) if each.words else None,
            "words_vs_dense": words,
            "words_low": words_low,
            "log_prob_vs_dense": fmean(each.log_prob) - fmean(each.log_prob_dense),
            "agreement": fmean(each.agrees),
            "agreement_first": fmean(each.agrees_first),
            "kl": fmean(each.kl),
            "fresh_nll_vs_dense": fresh.mean,
            "fresh_nll_high": fresh.high,
            "fresh_kl": fmean(each.fresh_kl),
            "prefill_ms": fmean(each.prefill_ms),
            "decode_ms": median(each.decode_ms),
        }

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: numbers first, then what they are computed from."""
        kept = {"digest": self.digest, "dense_bytes_per_token": self.dense_bytes_per_token}
        return self.scalars() | kept | {"note": self.note, "each": asdict(self.each)}

    @staticmethod
    def from_dict(data: dict[str, Any]) -> KVRow:
        """The row of a JSON form."""
        names = {one.name for one in fields(KVRow)} - {"each"}
        given = {name: value for name, value in data.items() if name in names}
        return KVRow(**given, each=Measured(**data["each"]))


def _against(mine: Sequence[float], dense: Sequence[float]) -> tuple[float | None, ...]:
    """The ratio of two means with its 95 % interval, pairs drawn again.

    The denominator is taken as it is: where the ratio is near 1 its own error cancels.
    """
    if not dense or not sum(dense):
        return None, None, None
    difference: Difference = paired_difference(mine, dense)
    base = fmean(dense)
    return tuple(1 + x / base for x in (difference.mean, difference.low, difference.high))


def pooled(rows: Sequence[KVRow]) -> list[KVRow]:
    """One row for each context size, and over all sizes where there are several."""
    sizes = _pool(rows, lambda row: replace(row, seed=None, each=Measured()))
    every = _pool(rows, lambda row: replace(row, seed=None, context=None, each=Measured()))
    contexts = {row.context for row in rows}
    return sizes + (every if len(contexts) > 1 else [])


def _pool(rows: Sequence[KVRow], without: Any) -> list[KVRow]:
    groups: dict[tuple[object, ...], KVRow] = {}
    for row in rows:
        empty = without(row)
        groups.setdefault(empty.identity, empty).each.extend(row.each)
    return list(groups.values())
