"""Memory that one decoded token takes beyond the cache, measured in a process of its own.

    python -m agentmem.bench.kernels_memory local q8 131072

What is measured is the peak of resident memory during the step (VmHWM, set back before it) less
what was resident before it (VmRSS), after free memory was returned to the system: everything
counts, PyTorch's tensors, the working space of the C kernels, the model's own activations. The
window is one segment of 512 random tokens after another, with keys and values of one of them.
"""

from __future__ import annotations

import ctypes
import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from agentmem.bench.kernels_row import BASELINE, KernelOptions, MemoryRow
from agentmem.bench.local_model import local_model
from agentmem.errors import AgentmemError

_SEGMENT_TOKENS = 512
_MEASURED_STEPS = 4
"""Of which the hungriest counts: not every one is observed as evidence."""
_STATUS = Path("/proc/self/status")
_CLEAR_PEAK = Path("/proc/self/clear_refs")


def memory_rows(options: KernelOptions) -> Iterator[MemoryRow]:
    """Every format that packs and is asked for, with nothing measured yet."""
    for name in options.formats:
        if name not in (BASELINE, "dense"):
            yield MemoryRow(tokens=options.memory_tokens, format=name)


def measure_memory(row: MemoryRow, model: str) -> MemoryRow:
    """Measure one decoded token in another process.

    Raises:
        subprocess.CalledProcessError: it failed; its messages went to stderr.
    """
    words = [sys.executable, "-m", __name__, model, row.format, str(row.tokens)]
    ran = subprocess.run(words, stdout=subprocess.PIPE, check=True, text=True)
    return MemoryRow(**json.loads(ran.stdout))


def measure_here(row: MemoryRow, model: str) -> MemoryRow:
    """Measure one decoded token in this process."""
    if not _CLEAR_PEAK.exists():
        return replace(row, note="the peak of a step is known on Linux alone")
    import torch

    from agentmem.models.segment_cache import SegmentCache

    with local_model(model, threads=1) as (attached, _), torch.inference_mode():
        try:
            cache = SegmentCache(attached, row.format)
        except AgentmemError as error:
            return replace(row, note=str(error))
        draw = random.Random(0)
        vocabulary = int(attached.model.config.get_text_config().vocab_size)
        segment = [draw.randrange(vocabulary) for _ in range(_SEGMENT_TOKENS)]
        attached.forward(segment, cache)
        cache.seal("first")
        record = cache.park("first")
        for start in range(0, row.tokens, _SEGMENT_TOKENS):
            cache.restore(start, start, record)
            cache.compress(start)
        packed_nbytes = cache.nbytes
        # The first steps lay out the window and the kernels' constants.
        for token in segment[:2]:
            attached.forward([token], cache)
        step_nbytes = 0
        for token in segment[2 : 2 + _MEASURED_STEPS]:
            before = _rest()
            attached.forward([token], cache)
            step_nbytes = max(step_nbytes, _status("VmHWM") - before)
    layers = len(attached.layers)
    return replace(
        row, packed_nbytes=packed_nbytes, layers=layers, step_nbytes=step_nbytes,
        nbytes_a_layer=step_nbytes / layers,
    )  # fmt: skip


def _rest() -> int:
    """Return free memory to the system and set the peak back; bytes resident now."""
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)
    _CLEAR_PEAK.write_text("5", encoding="ascii")
    return _status("VmRSS")


def _status(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB$", _STATUS.read_text("ascii"), re.MULTILINE)
    assert found is not None
    return 1024 * int(found[1])


def main(arguments: list[str]) -> None:
    """Print the row as JSON."""
    model, name, tokens = arguments
    row = measure_here(MemoryRow(tokens=int(tokens), format=name), model)
    sys.stdout.write(json.dumps(asdict(row)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
