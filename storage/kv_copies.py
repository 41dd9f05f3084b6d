"""Copies of pages from a device to host memory that run beside the computation.

A CUDA device copies on a stream of its own into pinned memory; whoever reads such a copy waits for
it first, and nobody else does. From any other device a copy has arrived when it is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Protocol, overload

import torch
from torch import Tensor


class Event(Protocol):
    """Something that happens on a stream; a `torch.cuda.Event` is one."""

    def synchronize(self) -> None:
        """Wait until it has happened."""
        ...


class HostCopy(Sequence[Tensor]):
    """Tensors in host memory that may still be on their way: reading them waits for them.

    Args:
        tensors: where they arrive.
        arrival: of the last of them.
    """

    def __init__(self, tensors: Sequence[Tensor], arrival: Event) -> None:
        self._tensors = tuple(tensors)
        self._arrival: Event | None = arrival

    def __len__(self) -> int:
        return len(self._tensors)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self._arrived())

    @overload
    def __getitem__(self, index: int) -> Tensor: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Tensor, ...]: ...

    def __getitem__(self, index: int | slice) -> Tensor | tuple[Tensor, ...]:
        return self._arrived()[index]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors; known before they are here."""
        return sum(tensor.nbytes for tensor in self._tensors)

    def _arrived(self) -> tuple[Tensor, ...]:
        arrival = self._arrival
        if arrival is not None:
            arrival.synchronize()
            self._arrival = None
        return self._tensors


def to_host(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Tensors of one device in host memory; those that are there already are not copied.

    Args:
        tensors: uint8. Nobody writes them afterwards.
    """
    if not tensors or not tensors[0].is_cuda:
        return tuple(tensor.cpu() for tensor in tensors)
    sizes = [tensor.numel() for tensor in tensors]
    # One allocation: the pool of pinned memory rounds each one up.
    flat = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=True)
    copies = [
        part.view(tensor.shape)
        for part, tensor in zip(torch.split(flat, sizes), tensors, strict=True)
    ]
    stream = copy_stream(tensors[0].device)
    stream.wait_stream(torch.cuda.current_stream(stream.device))
    with torch.cuda.stream(stream):
        for copy, tensor in zip(copies, tensors, strict=True):
            copy.copy_(tensor, non_blocking=True)
            # Its memory is not given to anybody else before it was read.
            tensor.record_stream(stream)
    return HostCopy(copies, stream.record_event())


@cache
def copy_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream on which a CUDA device copies to and from host memory."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch types its C half
