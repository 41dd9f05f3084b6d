"""Work on memory that no turn waits for: vectors, facts, summaries that forgetting took away.

Each chore does a little at a time and keeps no notes: what is left to do stands in the archive, so
it may be broken off anywhere and gone on with in any process. Knows nothing of threads.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from agentmem.decisions.ledger import Summarize
from agentmem.errors import AgentmemError
from agentmem.facts.extraction import FactExtractor, PatternExtractor
from agentmem.facts.keeping import FactKeeper
from agentmem.facts.model_extraction import ModelExtractor
from agentmem.memory import Memory
from agentmem.models.base import ChatModel
from agentmem.models.registry import resolve_model
from agentmem.models.scripted import ScriptedModel
from agentmem.recall.finder import Finder
from agentmem.storage.archive import Archive
from agentmem.summary import Summarizer

logger = logging.getLogger(__name__)


class Chore(ABC):
    """One kind of work."""

    name: str

    @abstractmethod
    def run(self) -> int:
        """Do a little of it; how much that was, 0 where nothing is left."""


@dataclass(frozen=True)
class Embedding(Chore):
    """Gives segments without a vector theirs: imports, and what another model embedded."""

    finder: Finder
    limit: int = 16

    name = "embedded"

    def run(self) -> int:
        """Embed a few segments."""
        return self.finder.embed_pending(self.limit)


@dataclass(frozen=True)
class FactReading(Chore):
    """Reads what an extractor of this name has not read yet. Saying something again is no new fact:
    it adds evidence to the one there is."""

    keeper: FactKeeper
    extractor: FactExtractor
    limit: int = 4

    name = "read for facts"

    def run(self) -> int:
        """Read a few segments."""
        return self.keeper.extract_pending(self.extractor, self.limit)


@dataclass(frozen=True)
class Resummarizing(Chore):
    """Summarizes what is left of segments whose summary went with one that was forgotten.

    The new summary is archived and searchable; it enters no window by itself.
    """

    archive: Archive
    summarizer: Summarize

    name = "summarized again"

    def run(self) -> int:
        """Make one summary."""
        group = self.archive.unsummarized()
        if not group:
            return 0
        [written] = self.summarizer([[stored.segment for stored in group]])
        ids = [stored.segment.id for stored in group]
        last = group[-1]
        with self.archive.write() as transaction:
            if isinstance(written, tuple):
                transaction.add_segment(last.session_id, last.turn, written[0], state="archived")
            else:
                # Too little for a summary: they are found by themselves.
                transaction.set_state(ids, "archived")
        return len(ids)


def consolidate(
    chores: Sequence[Chore],
    *,
    step: Callable[[], AbstractContextManager[bool]] = lambda: nullcontext(True),
) -> dict[str, int]:
    """Run every chore until nothing is left; how much each did, by its name.

    One that fails is left for the next time, with a line in the log.

    Args:
        chores: in the order in which they are begun.
        step: every step is taken inside; where it is False, it is not taken.
    """
    done = {chore.name: 0 for chore in chores}
    for chore in chores:
        try:
            count = 1
            while count:
                with step() as is_taken:
                    count = chore.run() if is_taken else 0
                done[chore.name] += count
        except AgentmemError as error:
            logger.warning("%s: left for the next time: %s", chore.name, error)
    return done


def chores_for(memory: Memory, model: ChatModel | None) -> list[Chore]:
    """What there may be to do on a user's memory.

    Args:
        memory: of any session of the user.
        model: reads facts and writes summaries, where it says that it can manage memory; patterns
            and the originals' own sentences do otherwise.
    """
    if model is not None and not model.capabilities.manages_memory:
        model = None
    # Of a model that says nothing: sentences stand in.
    writes = model or ScriptedModel(default="")
    summarizer = Summarizer.for_budget(writes, memory.context.part, memory.context.budget)
    extractor = PatternExtractor() if model is None else ModelExtractor(model)
    return [
        Embedding(memory.finder),
        FactReading(memory.fact_keeper, extractor),
        Resummarizing(memory.archive, summarizer),
    ]


def consolidate_memory(
    memory: Memory,
    *,
    model: str | ChatModel | None = None,
    base_url: str | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, int]:
    """Do all that waits on a user's memory; how much of each kind that was.

    Args:
        memory: of any session of the user; another process may be talking in it.
        model: as `chores_for`; a name as `Agent` takes it.
        base_url: of an OpenAI-compatible endpoint.
        progress: told in a few words how far it is.
    """
    answers = None if model is None else resolve_model(model, base_url=base_url)
    steps = 0

    @contextmanager
    def step() -> Iterator[bool]:
        nonlocal steps
        steps += 1
        if steps % 50 == 0:
            progress(f"consolidating: step {steps}")
        yield True

    return consolidate(chores_for(memory, answers), step=step)
