"""The formats a segment cache can pack into, by name: where a new format is listed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from agentmem.errors import InvalidInput
from agentmem.storage.kv_binary import BinaryFormat
from agentmem.storage.kv_dense import DenseFormat
from agentmem.storage.kv_format import Format
from agentmem.storage.kv_fp8 import FP8Format
from agentmem.storage.kv_klt import DEFAULT_BITS, KltFormat
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
    "klt": lambda attached: _klt(attached, DEFAULT_BITS),
    "binary": lambda attached: BinaryFormat([center.by_offset for center in attached.centers]),
}
_KLT_WITH_BITS = re.compile(r"klt(\d+(?:\.\d+)?)")


def make_format(name: str, attached: AttachedModel) -> Format:
    """The format of that name for a model; "klt1.6" is klt at 1.6 bits a channel.

    Raises:
        InvalidInput: there is none of that name, or klt cannot have so many bits.
        ModelNotFound: klt needs a calibration of the model; the message says what to run.
        StoreCorrupt, Unsupported: the calibration is damaged or of something else.
    """
    if name in FORMATS:
        return FORMATS[name](attached)
    bits = _KLT_WITH_BITS.fullmatch(name)
    if bits is None:
        raise InvalidInput(
            f"`format` must be one of {', '.join(FORMATS)}, or klt with its bits, as klt1.6: "
            f"got {name!r}."
        )
    return _klt(attached, float(bits[1]))


def _klt(attached: AttachedModel, average_bits: float) -> KltFormat:
    # Calibrations attach models, which name formats.
    from agentmem.models.calibrate import load_calibration

    return KltFormat(load_calibration(attached), average_bits)
