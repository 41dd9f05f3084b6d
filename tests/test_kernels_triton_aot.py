"""Every Triton kernel compiled for NVIDIA GPUs, without one: nothing may spill.

The kernels' own functions are called with a launcher that notes what it would have started, so that
what is compiled here is what a GPU would compile, constants and all. `make slow` compiles every
format at every head size for both targets; the tests that always run, a cover of them.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import __file__ as nvidia_backend
from triton.compiler import ASTSource

from agentmem.kernels import (
    triton_attention,
    triton_binary,
    triton_bounds,
    triton_decode,
    triton_encode,
    triton_launch,
    triton_mass,
    triton_rows,
)
from agentmem.kernels.packed import PackedLayer
from agentmem.kernels.page_table import PageTable
from tests.packed_windows import ALL_WIDTHS, PackedWindow, packed_window, random_layer

FORMATS: dict[str, dict[str, Any]] = {
    "q8": {"widths": (8,), "centered": True},
    "q4": {"widths": (5,), "value_widths": (3,), "centered": True, "transformed": True},
    "binary": {"widths": (1,), "centered": True, "transformed": True},
    "klt": {
        "widths": ALL_WIDTHS, "token_scales": False, "centered": True, "transformed": True,
        "trellis": True,
    },
}  # fmt: skip
pytestmark = pytest.mark.slow
"""A minute or two of compiling."""

TARGETS = (80, 90)
COVER = [
    ("q8", 64, 80), ("klt", 64, 90), ("q4", 128, 80), ("klt", 128, 90), ("binary", 256, 80),
    ("q4", 256, 90),
]  # fmt: skip
EVERYTHING = [
    (name, dim, target) for name in FORMATS for dim in (64, 128, 256) for target in TARGETS
]
DECODED_ROWS, PREFILLED_ROWS = 4, 256

MAX_SHARED_NBYTES = 48 * 1024
"""What every program may have without asking."""
MIN_PROGRAMS_PER_PROCESSOR = 2
SHARED_NBYTES_OF_A_PROCESSOR = {80: 164 * 1024, 90: 228 * 1024}
REGISTERS_OF_A_PROCESSOR = 64 * 1024
WARPS_OF_A_PROCESSOR = 64
POINTERS = {
    torch.float32: "*fp32", torch.float16: "*fp16", torch.uint8: "*u8", torch.int8: "*i8",
    torch.int32: "*i32", torch.int64: "*i64",
}  # fmt: skip


@dataclass(frozen=True)
class Launch:
    """A launch that was noted instead of done."""

    kernel: Any
    arguments: Mapping[str, Any]
    constants: Mapping[str, Any]
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Resources:
    """What a compiled kernel takes of a GPU."""

    registers: int
    stack_nbytes: int
    shared_nbytes: int
    num_warps: int
    target: int

    @property
    def programs_per_processor(self) -> int:
        """Programs that fit a processor at once."""
        # Registers are handed out to a warp 256 at a time.
        of_a_warp = -(-self.registers * 32 // 256) * 256
        by_registers = REGISTERS_OF_A_PROCESSOR // of_a_warp // self.num_warps
        shared = self.shared_nbytes + 1024
        by_shared = SHARED_NBYTES_OF_A_PROCESSOR[self.target] // shared
        return min(by_registers, by_shared, WARPS_OF_A_PROCESSOR // self.num_warps, 32)

    @property
    def occupancy(self) -> float:
        """Warps that fit a processor, of those it can hold."""
        return self.programs_per_processor * self.num_warps / WARPS_OF_A_PROCESSOR


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Launch]]:
    """What kernels are started with while the test runs; none is."""
    noted: list[Launch] = []

    def note(
        kernel: Callable[..., None], grid: tuple[int, ...], arguments: Mapping[str, Any],
        constants: Mapping[str, Any], *, num_warps: int, num_stages: int = 1, fused: bool = True,
        max_registers: int = triton_launch.MAX_REGISTERS,
    ) -> None:  # fmt: skip
        options = triton_launch.compile_options(num_warps, num_stages, fused, max_registers)
        noted.append(Launch(kernel, arguments, constants, options))

    monkeypatch.setattr(triton_launch, "launch", note)
    yield noted


def compiled(launch: Launch, target: int, folder: Path) -> Resources:
    """Compile one launch as it would be compiled on a GPU of this target."""
    signature: dict[str, str] = {}
    constants = dict(launch.constants)
    attributes: dict[tuple[int], list[list[Any]]] = {}
    for index, name in enumerate(launch.kernel.arg_names):
        value = launch.arguments.get(name, launch.constants.get(name))
        aligned = False
        if name in launch.constants or (isinstance(value, int) and value == 1):
            signature[name], constants[name] = "constexpr", value
        elif isinstance(value, Tensor):
            signature[name], aligned = POINTERS[value.dtype], value.data_ptr() % 16 == 0
        elif isinstance(value, float):
            signature[name] = "fp32"
        else:
            signature[name], aligned = "i32", value % 16 == 0
        if aligned:
            attributes[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(launch.kernel, signature, constants, attributes)
    binary = triton.compile(
        source, target=GPUTarget("cuda", target, 32), options=dict(launch.options)
    )
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(binary.asm["cubin"])
    tool = Path(nvidia_backend).parent / "bin" / "cuobjdump"
    usage = subprocess.run(
        [tool, "-res-usage", cubin], capture_output=True, text=True, check=True
    ).stdout
    found = {name: int(number) for name, number in re.findall(r"(REG|STACK):(\d+)", usage)}
    return Resources(
        found["REG"], found["STACK"], binary.metadata.shared, binary.metadata.num_warps, target
    )


def check(launch: Launch, target: int, folder: Path, what: str) -> None:
    """Compile, report, and hold to the limits."""
    took = compiled(launch, target, folder)
    print(
        f"{launch.kernel.fn.__name__.strip('_'):24} {what:12} sm_{target} warps {took.num_warps} "
        f"registers {took.registers:3} spilled {took.stack_nbytes} shared {took.shared_nbytes:5} "
        f"programs {took.programs_per_processor:2} occupancy {took.occupancy:.2f}"
    )
    assert took.stack_nbytes == 0, "it spills"
    assert took.shared_nbytes <= MAX_SHARED_NBYTES
    assert took.programs_per_processor >= MIN_PROGRAMS_PER_PROCESSOR


def layer_of(name: str, head_dim: int) -> PackedLayer:
    return random_layer(2, head_dim, **FORMATS[name])


def ask(
    window: PackedWindow, num_rows: int
) -> tuple[Tensor, Tensor, PageTable, Tensor, PackedLayer, Tensor, None]:
    """Arguments of attention, as far as the softcap."""
    return (
        window.queries(num_rows), window.rotations, window.table, window.pages, window.layer,
        window.limits(num_rows), None,
    )  # fmt: skip


def attend(window: PackedWindow, num_rows: int) -> None:
    triton_attention.attend(*ask(window, num_rows))


@pytest.mark.parametrize(("name", "head_dim", "target"), COVER)
def test_decode_attention_spills_nothing(
    name: str, head_dim: int, target: int, launches: list[Launch], tmp_path: Path
) -> None:
    attend(packed_window(layer_of(name, head_dim), [300]), DECODED_ROWS)
    check(launches[0], target, tmp_path, f"{name} {head_dim}")


@pytest.mark.parametrize(("name", "head_dim", "target"), [("klt", 128, 80), ("q4", 64, 90)])
def test_prefill_attention_spills_nothing(
    name: str, head_dim: int, target: int, launches: list[Launch], tmp_path: Path
) -> None:
    attend(packed_window(layer_of(name, head_dim), [300]), PREFILLED_ROWS)
    check(launches[0], target, tmp_path, f"{name} {head_dim}")


@pytest.mark.parametrize(("name", "head_dim", "target"), [("klt", 128, 80), ("q4", 256, 90)])
def test_column_mass_spills_nothing(
    name: str, head_dim: int, target: int, launches: list[Launch], tmp_path: Path
) -> None:
    window = packed_window(layer_of(name, head_dim), [300])
    triton_mass.column_mass(*(*ask(window, DECODED_ROWS), torch.zeros(2, DECODED_ROWS)))
    check(launches[0], target, tmp_path, f"{name} {head_dim}")


@pytest.mark.parametrize("target", TARGETS)
def test_the_other_kernels_spill_nothing(
    target: int, launches: list[Launch], tmp_path: Path
) -> None:
    head_dim = {80: 128, 90: 256}[target]
    layer = layer_of("klt", head_dim)
    window = packed_window(layer, [300])
    states = torch.zeros(2, 2, 16, head_dim)
    phases = torch.arange(2)
    triton_attention.merge_parts(torch.zeros(9, 2, 4, head_dim), torch.zeros(9, 2, 4))
    triton_encode.encode(states, states, phases, layer)
    triton_encode.encode(states, states, phases, layer_of("binary", head_dim))
    triton_decode.decode(window.pages, torch.zeros(window.pages.shape[0]), layer)
    triton_rows.gather_rows(window.pages, window.table.rows)
    counts = torch.full((window.pages.shape[0],), 16, dtype=torch.int32)
    bounds = triton_bounds.page_bounds(window.pages, counts, layer)
    queries, rotations, table, _, _, limits, _ = ask(window, DECODED_ROWS)
    triton_bounds.logit_bounds(queries, rotations, table, bounds, layer, limits)
    binary = packed_window(layer_of("binary", head_dim), [300])
    triton_binary.binary_scores(
        binary.queries(DECODED_ROWS), binary.rotations, binary.table, binary.pages, binary.layer
    )
    for launch in launches:
        check(launch, target, tmp_path, f"{head_dim}")
    started = {launch.kernel.fn.__name__ for launch in launches}
    assert started == set(kernel_names()) - {"_attend_kernel", "_mass_kernel"}


def kernel_names() -> list[str]:
    """Every kernel that the sources define."""
    folder = Path(triton_launch.__file__).parent
    sources = "".join(path.read_text("utf-8") for path in folder.glob("triton_*.py"))
    return re.findall(r"^def (_\w+_kernel)\(", sources, re.MULTILINE)


@pytest.mark.parametrize(("name", "head_dim", "target"), EVERYTHING)
def test_nothing_spills_in_any_format_at_any_size(
    name: str, head_dim: int, target: int, launches: list[Launch], tmp_path: Path
) -> None:
    window = packed_window(layer_of(name, head_dim), [300])
    for num_rows in (DECODED_ROWS, PREFILLED_ROWS):
        triton_attention.attend(*ask(window, num_rows))
        triton_mass.column_mass(*(*ask(window, num_rows), torch.zeros(2, num_rows)))
    kept = {
        (launch.kernel.fn.__name__, launch.constants["LANES"]): launch
        for launch in launches
        if "LANES" in launch.constants
    }
    for launch in kept.values():
        check(launch, target, tmp_path, f"{name} {head_dim}")
