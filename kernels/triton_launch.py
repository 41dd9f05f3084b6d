"""How every Triton kernel is made and started: one place, so that a test can see each launch.

Knows nothing of what kernels compute.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import torch
import triton
from torch import Tensor

Function = TypeVar("Function", bound=Callable[..., Any])

INTERPRETED = bool(triton.knobs.runtime.interpret)
"""Whether kernels run in Triton's interpreter, on CPU tensors: it is chosen when Triton is first
imported, by TRITON_INTERPRET=1."""

MAX_REGISTERS = 255


def jit(function: Function) -> Function:
    """Make a Triton kernel, or a function that kernels call."""
    return cast(Function, triton.jit(function))


def can_run_on(device: torch.device) -> bool:
    """Whether Triton's kernels run on tensors of this device."""
    return device.type == "cuda" or (INTERPRETED and device.type == "cpu")


def launch(
    kernel: Callable[..., None],
    grid: tuple[int, ...],
    arguments: Mapping[str, Any],
    constants: Mapping[str, Any],
    *,
    num_warps: int,
    num_stages: int = 1,
    fused: bool = True,
    max_registers: int = MAX_REGISTERS,
) -> None:
    """Start one kernel on the device of its tensors.

    Args:
        kernel: what `jit` made.
        grid: programs in each dimension; nothing is started if one is 0.
        arguments: tensors and numbers by parameter.
        constants: the parameters it is compiled for.
        num_warps: threads of a program, in 32s.
        num_stages: iterations of a loop whose loads are in flight at once.
        fused: whether a product and a sum may be rounded once.
        max_registers: of a thread; left to itself, the assembler would rather spill a few.
    """
    if 0 in grid:
        return
    on_cuda = [one for one in arguments.values() if isinstance(one, Tensor) and one.is_cuda]
    options = compile_options(num_warps, num_stages, fused, max_registers)
    with torch.cuda.device(on_cuda[0].device) if on_cuda else contextlib.nullcontext():
        cast(Any, kernel)[grid](**arguments, **constants, **options)


def compile_options(
    num_warps: int, num_stages: int, fused: bool, max_registers: int
) -> dict[str, Any]:  # fmt: skip
    """How a kernel is compiled: arguments as `launch` takes them."""
    return {
        "num_warps": num_warps,
        "num_stages": num_stages,
        "enable_fp_fusion": fused,
        "maxnreg": max_registers,
    }


def num_processors(device: torch.device) -> int:
    """Streaming multiprocessors of a device; 2 in the interpreter, so that tests split too."""
    if device.type != "cuda":
        return 2
    return torch.cuda.get_device_properties(device).multi_processor_count


def next_power_of_2(number: int) -> int:
    """The smallest power of two that is not below a positive number."""
    return 1 << (number - 1).bit_length()
