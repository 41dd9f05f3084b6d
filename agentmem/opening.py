"""Opening a store, and loading the window of a session from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentmem.audit.recorder import Recorder
from agentmem.budget import DEFAULT_BUDGET_TOKENS, Budget
from agentmem.context import Context
from agentmem.errors import InvalidInput
from agentmem.folders import default_store
from agentmem.memory import Memory
from agentmem.models.base import Embedder, estimate_tokens
from agentmem.models.registry import resolve_embedder
from agentmem.outside import Outside
from agentmem.prompts import prompt
from agentmem.segment import Message, Segment, Trust
from agentmem.storage.archive import Archive, Store
from agentmem.storage.rows import SessionRow, WindowEntry
from agentmem.storage.text import normalize_text
from agentmem.window import load_window


@contextmanager
def open_memory(
    *,
    store: str | Path | None = None,
    user: str = "default",
    session: str | None = "default",
    budget: int | Budget | None = None,
    embedder: str | Embedder | None = None,
    only_look: bool = False,
    outside: Callable[[Archive, SessionRow], Outside] = Recorder,
) -> Iterator[Memory]:
    """The memory of a user without a model: search, explain, pin, drop, restore, undo.

    Token counts are estimates here, scaled by how the session's model counted; the next turn counts
    again and reviews what does not fit.

    Args:
        session: whose window it is; None is the newest, for what asks about no window.
        budget: of the window; None is what the session had last.
        only_look: whatever would change something is refused with `InvalidInput`: the session may
            be in use meanwhile.
        outside: what comes from outside comes through it; recorded unless told otherwise.

    Raises:
        InvalidInput: there is no such session.
        SessionBusy: another sender holds it.
    """
    with Store.open(store or default_store(), create=False) as opened:
        archive = opened.for_user(user)
        row = archive.session(_newest(archive) if session is None else session, create=False)
        if budget is None:
            budget = int(row.settings.get("budget", DEFAULT_BUDGET_TOKENS))
        limits = Budget(budget) if isinstance(budget, int) else budget
        with nullcontext() if only_look else archive.lease(row.id):
            ratio = float(row.settings.get("tokens_per_estimate", 1.0))
            context = Context(limits, lambda part: max(1, round(ratio * estimate_tokens(part))))
            embeds = resolve_embedder(embedder)
            seam = _OnlyLooking() if only_look else outside(archive, row)
            settings = {
                "kind": "memory",
                "budget": asdict(limits),
                "embedder": embeds.name,
                "dim": embeds.dim,
            }
            with seam.opening(settings):
                memory = Memory(archive, row, context, embeds, outside=seam)
                seam.reload = lambda: load_stored_window(memory)
                load_stored_window(memory)
            yield memory


class _OnlyLooking(Outside):
    """Lets nobody act on memory."""

    @contextmanager
    def act(self, action: str, arguments: Sequence[Any]) -> Iterator[None]:
        """Somebody wants to act on memory."""
        raise InvalidInput(
            f"This memory was opened only to be looked at: open it without `only_look` to {action}."
        )
        yield


def _newest(archive: Archive) -> str:
    found = archive.sessions()
    if not found:
        raise InvalidInput(f"{archive.user!r} has no session yet: talk first.")
    return found[-1].name


def load_stored_window(memory: Memory) -> None:
    """Make the window what the archive says it is."""
    load_window(memory.archive, memory.context, memory.archive.window(memory.session.id))
    memory.blocks.follow()


def open_window(memory: Memory, system_prompt: str | None) -> None:
    """Load the session's window; a new one, or one with another system prompt, gets its prompt."""
    load_stored_window(memory)
    context = memory.context
    core = [entry for entry in context if entry.segment.is_system_prompt]
    text = normalize_text(system_prompt if system_prompt is not None else prompt("system"))
    if core and (system_prompt is None or core[0].segment.text == text):
        context.check_budget()
        return
    segment = Segment(
        (Message("system", text),), kind="core_block", origin="system", trust=Trust.SYSTEM
    )
    context.remove(entry.id for entry in core)
    context.check_budget(segment)
    with memory.archive.write() as transaction:
        if core:
            transaction.set_state([entry.id for entry in core], "archived")
        segment = transaction.add_segment(memory.session.id, 0, segment, searchable=False)
        rows = [WindowEntry(segment.id, segment.id, "prompt", None), *context.snapshot()]
        transaction.set_window(memory.session.id, rows)
    context.put(memory.segment(segment.id))
