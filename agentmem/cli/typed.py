"""What was typed at the prompt of `agentmem chat`: a file, from which forgetting takes lines too.

The file is the prompt's, one for all stores and users. It knows nothing of segments.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import groupby
from pathlib import Path


def history_file() -> Path:
    """Where it is kept."""
    from agentmem.folders import state_dir

    return state_dir() / "history"


def forget_typed(texts: Collection[str] | None = None) -> int:
    """Delete what was typed and is one of these texts, or all of it for None; how many times."""
    file = history_file()
    if texts is not None and not texts or not file.exists():
        return 0
    kept: list[bytes] = []
    num_deleted = 0
    header: list[bytes] = []
    # An entry is a blank line and one with the time, then its lines, each behind a plus sign.
    for is_typed, group in groupby(file.read_bytes().split(b"\n"), lambda line: line[:1] == b"+"):
        lines = list(group)
        if not is_typed:
            header = lines
            continue
        text = b"\n".join(line[1:] for line in lines).decode("utf-8", "replace").strip()
        if texts is None or text.removeprefix("/") in {one.strip() for one in texts}:
            num_deleted += 1
        else:
            kept += [*header, *lines]
    if texts is None:
        file.unlink()
    elif num_deleted:
        file.write_bytes(b"\n".join([*kept, b""]))
    return num_deleted
