"""How fast a segment returns from disk, against reading it again. `make slow` runs this."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from agentmem.models.attached import attach
from agentmem.models.segment_cache import SegmentCache
from agentmem.storage.kv_disk import KVDisk
from agentmem.storage.kv_folder import session_folder
from agentmem.storage.kv_parking import Parking

pytestmark = pytest.mark.slow

NUM_TOKENS = 2048


def drop_from_page_cache(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


@pytest.mark.parametrize("cache_format", ["dense", "q8"])
def test_a_segment_returns_from_disk_ten_times_faster_than_it_is_read(
    smollm2_dir: Path, tmp_path: Path, cache_format: str
) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(smollm2_dir, dtype=torch.float32).eval()
    attached = attach(model)
    segment = torch.randint(10, 40_000, (1, NUM_TOKENS))
    disk = KVDisk(session_folder(tmp_path / "me.db", "ann", 1, 0.0), model="m", max_bytes=2**30)
    cache = SegmentCache(attached, cache_format, parking=Parking(0, disk))
    returned, read = [], []
    with torch.inference_mode():
        attached.forward(segment[0].tolist(), cache)
        cache.seal("segment")
        cache.compress("segment")
        for _ in range(3):
            cache.park("segment")
            (file,) = disk.folder.path.iterdir()
            drop_from_page_cache(file)
            started = time.perf_counter()
            cache.restore("segment", 0)
            attached.forward([5], cache)
            returned.append(time.perf_counter() - started)
            cache.discard_tail()
            dynamic = DynamicCache(config=model.config)
            started = time.perf_counter()
            model(segment, **{attached.cache_argument: dynamic}, logits_to_keep=1)
            model(segment[:, :1], **{attached.cache_argument: dynamic})
            read.append(time.perf_counter() - started)
    ratio = statistics.median(read) / statistics.median(returned)
    print(f"{cache_format}: returned {ratio:.1f}x faster than read, checksums included")
    assert ratio >= 10
