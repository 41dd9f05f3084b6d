"""What another policy, or another budget, would have kept of a recorded session.

The same messages and replies are played with the policy alone: no review asks a model. Recall is
computed anew from the stored vectors, as text wherever the session recalled at all. Attention is
what was observed by then, and unknown (None) for segments nobody observed; counts of tokens are the
recorded ones, and estimates scaled to them for parts that were never counted (a document cut
otherwise). Acts on memory are repeated where their segments are there; undoing is repeated where it
took back what somebody had decided, not where it took back a review's decision, which is not there.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from agentmem.audit.player import Player
from agentmem.audit.whatif_player import Kept, WhatIfPlayer, Window, tokens_freed, window_of
from agentmem.errors import InvalidInput
from agentmem.memory import Memory
from agentmem.policies import make_policy
from agentmem.storage.archive import Archive, RecordingRow, SessionRow


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A session beside what it would have been.

    Args:
        turn: after which turn the windows are compared.
        recall: how the other play recalled: "text" or "off".
        tokens_freed: by the recorded session's decisions up to then, and by the policy's.
        window_tokens: of the recorded window, and of the other.
        skipped: acts on memory that could not be repeated.
        segments: in one window and not in the other, in time order.
    """

    session: str
    policy: str
    budget: int
    turn: int
    recall: str
    tokens_freed: tuple[int, int]
    window_tokens: tuple[int, int]
    skipped: int
    segments: tuple[Kept, ...]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        pairs = ("tokens_freed", "window_tokens")
        return {
            "type": "whatif",
            **{name: value for name, value in asdict(self).items() if name not in pairs},
            **{
                name: dict(zip(("recorded", "other"), getattr(self, name), strict=True))
                for name in pairs
            },
            "segments": [asdict(one) for one in self.segments],
        }


def what_if(
    archive: Archive,
    session: str = "default",
    *,
    policy: str,
    budget: int | None = None,
    turn: int | None = None,
) -> WhatIf:
    """Play a session's inputs and replies with another policy, and compare the windows.

    Args:
        archive: whose session it is; nothing of it is changed.
        session: which.
        policy: the name of the policy that decides.
        budget: tokens of the window; None leaves what the session had.
        turn: compare after this turn and the acts that followed it; None is the last.

    Raises:
        InvalidInput: there is no such session, policy or turn, or the log does not reach it.
        ReplayDiverged: an earlier turn's recorded window cannot be computed again.
    """
    make_policy(policy)
    row = archive.session(session, create=False)
    rows = archive.recordings(row.id)
    numbers = [one[3] for each in rows for one in each.records if one[0] == "turn" and len(one) > 3]
    if not numbers:
        raise InvalidInput(f"The log of session {session!r} has no turn: there is nothing to play.")
    chosen = max(numbers) if turn is None else turn
    if chosen not in numbers:
        raise InvalidInput(
            f"`turn` must be one that the log has: got {chosen}, it has {min(numbers)} to "
            f"{max(numbers)}."
        )
    with tempfile.TemporaryDirectory(prefix="agentmem-whatif-") as folder:
        other = WhatIfPlayer(archive, row, rows, Path(folder) / "other.db", policy, budget, chosen)
        other.play()
        mine, my_tokens, my_freed = _recorded(archive, row, rows, other, chosen, Path(folder))
    return WhatIf(
        session=session,
        policy=policy,
        budget=other.budget_tokens,
        turn=chosen,
        recall=other.recall,
        tokens_freed=(my_freed, other.freed),
        window_tokens=(my_tokens, other.tokens),
        skipped=other.skipped,
        segments=tuple(
            sorted(
                [kept for key, kept in mine.items() if key not in other.window]
                + [
                    replace(kept, recorded=False)
                    for key, kept in other.window.items()
                    if key not in mine
                ],
                key=lambda kept: (kept.turn, kept.id),
            )
        ),
    )


def _recorded(
    archive: Archive,
    session: SessionRow,
    rows: list[RecordingRow],
    other: WhatIfPlayer,
    turn: int,
    folder: Path,
) -> tuple[Window, int, int]:
    """The recorded window after a turn, its tokens, and the tokens its decisions freed."""
    freed = tokens_freed(archive.decisions(session_id=session.id, limit=2**31), turn)
    seen: list[tuple[Window, int]] = []

    def watch(number: int, memory: Memory) -> None:
        if number == turn:
            seen[:] = [(window_of(memory), other.count(memory.context))]

    Player(archive, session, rows, folder / "recorded.db", watch=watch).play()
    assert seen, "every turn of the log is played"
    return (*seen[0], freed)
