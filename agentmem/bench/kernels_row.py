"""What the kernel benchmark is asked for, and what it answers."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from agentmem.bench.needles import LAYOUTS
from agentmem.errors import InvalidInput

PARTS = ("attention", "pages", "decode", "memory")
OUR_FORMATS = ("q8", "q4", "klt", "fp8", "binary", "dense")
BASELINE = "quanto4"
_SHAPE = re.compile(r"(\d+)/(\d+)/(\d+)")


@dataclass(frozen=True, slots=True)
class Shape:
    """One layer's query heads, key/value heads and channels of a head."""

    query_heads: int
    kv_heads: int
    head_dim: int

    @classmethod
    def parse(cls, text: str) -> Shape:
        """The shape of "32/8/128".

        Raises:
            InvalidInput: it is none, or query heads do not go in equal groups.
        """
        found = _SHAPE.fullmatch(text)
        if found is None:
            raise InvalidInput(
                f"A shape is query heads/key heads/channels, as 32/8/128: got {text!r}."
            )
        shape = cls(*map(int, found.groups()))
        if not shape.kv_heads or shape.query_heads % shape.kv_heads or shape.query_heads < 1:
            raise InvalidInput(
                f"Query heads must be a multiple of the key heads of {text!r}: "
                f"got {shape.query_heads} and {shape.kv_heads}."
            )
        if shape.head_dim not in (32, 64, 128, 256):
            raise InvalidInput(f"Heads have 32, 64, 128 or 256 channels: got {shape.head_dim}.")
        return shape

    @property
    def groups(self) -> int:
        """Query heads to a key head."""
        return self.query_heads // self.kv_heads


@dataclass(frozen=True, kw_only=True)
class KernelOptions:
    """What to measure and on what.

    Args:
        parts: some of `PARTS`: one call of attention; encoding, decoding and evidence; tokens a
            second of a model; memory of one decoded token.
        shapes: of a layer, for the first two parts.
        tokens: of a window, for attention.
        layouts: how windows are cut into segments.
        formats: some of `OUR_FORMATS`, and `BASELINE`.
        contexts: tokens before the decoded ones, for decode.
        memory_tokens: of the window, for memory.
        decoded: tokens each system decodes.
        seconds: for which the calls of one row take turns.
        model: "local", or "hf:" and a folder or id, for decode and memory.
        seed: of the text.
        threads: CPU threads.
        out: JSON file; rows that are in it already are not measured again. A PNG goes beside it.
    """

    parts: tuple[str, ...] = PARTS
    shapes: tuple[str, ...] = ("9/3/64", "32/8/128")
    tokens: tuple[int, ...] = (1024, 8192, 32768)
    layouts: tuple[str, ...] = LAYOUTS
    formats: tuple[str, ...] = (*OUR_FORMATS, BASELINE)
    contexts: tuple[int, ...] = (1024, 8192)
    memory_tokens: int = 131072
    decoded: int = 40
    seconds: float = 2.0
    model: str = "local"
    seed: int = 0
    threads: int | None = None
    out: Path | None = None

    @classmethod
    def quick(cls, **changes: Any) -> KernelOptions:
        """Short windows of the smaller shape, few repetitions: two minutes on two cores."""
        few: dict[str, Any] = {
            "shapes": ("9/3/64",), "tokens": (1024, 8192), "contexts": (1024,),
            "memory_tokens": 8192, "decoded": 12, "seconds": 0.3,
        }  # fmt: skip
        return cls(**{**few, **changes})

    def __post_init__(self) -> None:
        known = {
            "parts": PARTS, "layouts": LAYOUTS, "formats": (*OUR_FORMATS, BASELINE),
        }  # fmt: skip
        for name, allowed in known.items():
            for value in getattr(self, name):
                if value not in allowed:
                    raise InvalidInput(
                        f"`{name}` must be some of {', '.join(allowed)}: got {value!r}."
                    )
        for name in (*known, "shapes", "tokens", "contexts"):
            if not getattr(self, name):
                raise InvalidInput(f"`{name}` must name at least one.")
        for text in self.shapes:
            Shape.parse(text)
        numbers = (*self.tokens, *self.contexts, self.memory_tokens, self.decoded, self.seconds)
        if min(numbers) <= 0:
            raise InvalidInput(f"Tokens and seconds must be positive: got {min(numbers)}.")

    @property
    def command(self) -> str:
        """The command that gives the same rows; it leaves out which are wanted."""
        words = ["agentmem", "bench", "kernels"]
        for option in fields(self):
            value = getattr(self, option.name)
            named = option.name in ("model", "threads", "seed", "seconds", "decoded")
            if named and value != option.default:
                words += [f"--{option.name}", str(value)]
        return shlex.join(words)


@dataclass(frozen=True, kw_only=True)
class AttentionRow:
    """One decode step's attention in one layer, against what PyTorch does on dense copies.

    Times are medians in milliseconds, CPU time with one thread and wall time else; `wall_ms` is
    always wall time.

    Args:
        shape, tokens, layout, format: what was measured.
        segments: in the window.
        ms, wall_ms: of one call on the packed pages.
        sdpa_ms: of the fastest SDPA, and which: dtype, and how the heads of a group are given.
        sdpa: its name.
        dequantized_ms: the pages decoded, then SDPA, every step.
        speedup: `sdpa_ms` over `ms`.
        packed_nbytes, dense_nbytes: keys and values as they are packed, and in bf16.
        of_byte_ratio: the speedup over how many times fewer bytes are read.
        error: of the attended values over their size, against float64 on the same codes.
        sdpa_error: the same of SDPA in float32 on a dequantized copy.
        note: why nothing was measured.
    """

    part: str = "attention"
    shape: str
    tokens: int
    layout: str
    format: str
    segments: int = 0
    ms: float | None = None
    wall_ms: float | None = None
    sdpa_ms: float | None = None
    sdpa: str = ""
    dequantized_ms: float | None = None
    speedup: float | None = None
    packed_nbytes: int | None = None
    dense_nbytes: int | None = None
    of_byte_ratio: float | None = None
    error: float | None = None
    sdpa_error: float | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class PagesRow:
    """Microseconds a token in one layer, of what happens beside attention.

    Args:
        shape, tokens, format: what was measured.
        encode_us, decode_us: keys and values to pages and back.
        mass_us: the probability each token received, which is the evidence.
        note: why nothing was measured.
    """

    part: str = "pages"
    shape: str
    tokens: int
    format: str
    encode_us: float | None = None
    decode_us: float | None = None
    mass_us: float | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class DecodeRow:
    """A model decoding after a context, all systems in turn, all given the same tokens.

    Args:
        context, layout, system: tokens before; "DynamicCache", or a format of agentmem's.
        ms, wall_ms: of one decoded token.
        tokens_a_second: from `ms`.
        speedup: over DynamicCache.
        same: share of greedy tokens that are DynamicCache's.
        nbytes: keys and values before the first decoded token.
        note: why nothing was measured.
    """

    part: str = "decode"
    context: int
    layout: str
    system: str
    ms: float | None = None
    wall_ms: float | None = None
    tokens_a_second: float | None = None
    speedup: float | None = None
    same: float | None = None
    nbytes: int | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class MemoryRow:
    """Memory one decoded token takes beyond the cache: the peak of the process, all layers.

    Args:
        tokens, format: of the window.
        packed_nbytes: of the window.
        layers: of the model.
        step_nbytes: most that was resident during the step beyond what was before it.
        nbytes_a_layer: that over the layers.
        note: why nothing was measured.
    """

    part: str = "memory"
    tokens: int
    format: str
    packed_nbytes: int | None = None
    layers: int | None = None
    step_nbytes: int | None = None
    nbytes_a_layer: float | None = None
    note: str = ""


KernelRow = AttentionRow | PagesRow | DecodeRow | MemoryRow
_ROWS: Mapping[str, type[KernelRow]] = {
    "attention": AttentionRow, "pages": PagesRow, "decode": DecodeRow, "memory": MemoryRow,
}  # fmt: skip
_IDENTITY = ("part", "shape", "tokens", "context", "layout", "format", "system")


def identity_of(row: Mapping[str, Any]) -> tuple[object, ...]:
    """What tells a row, as a dict, from every other row of a file."""
    return tuple(row.get(name) for name in _IDENTITY)


def row_from(data: Mapping[str, Any]) -> KernelRow:
    """The row of a JSON form."""
    return _ROWS[data["part"]](**data)


def to_dict(row: KernelRow) -> dict[str, Any]:
    """The JSON form of a row."""
    return asdict(row)
