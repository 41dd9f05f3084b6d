"""The formats a segment cache can pack into, by name: where a new format is listed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from agentmem.errors import InvalidInput
from agentmem.storage.kv_binary import BinaryFormat
from agentmem.storage.kv_dense import DenseFormat
from agentmem.storage.kv_format import Format
from agentmem.storage.kv_fp8 import FP8Format
from agentmem.storage.kv_q4 import Q4Format
from agentmem.storage.kv_q8 import Q8Format

if TYPE_CHECKING:
    from agentmem.models.attached import AttachedModel

FORMATS: dict[str, Callable[[AttachedModel], Format]] = {
    "dense": lambda attached: DenseFormat(attached.dtype),
    "q8": lambda attached: Q8Format(
        [center.by_offset if center.is_large else None for center in attached.centers]
    ),
    "fp8": lambda attached: FP8Format(),
    "q4": lambda attached: Q4Format([center.by_offset for center in attached.centers]),
    "binary": lambda attached: BinaryFormat([center.by_offset for center in attached.centers]),
}


def make_format(name: str, attached: AttachedModel) -> Format:
    """The format of that name for a model.

    Raises:
        InvalidInput: there is none of that name.
    """
    if name not in FORMATS:
        raise InvalidInput(f"`format` must be one of {', '.join(FORMATS)}: got {name!r}.")
    return FORMATS[name](attached)
