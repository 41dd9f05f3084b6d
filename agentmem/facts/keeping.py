"""From what segments state to facts: reading what is unread, and finding what each is about.

Resumable at any segment: what was read by whom is on record, in the transaction that stores what
was found there. Nothing is held open while an extractor reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from agentmem.facts.extraction import FactExtractor, Statement
from agentmem.facts.subject import likeness, read
from agentmem.segment import Trust
from agentmem.storage.archive import Archive
from agentmem.storage.fact_index import FactIndex
from agentmem.storage.rows import Fact, Source, StoredSegment
from agentmem.storage.timeline import same_value
from agentmem.storage.transaction import Transaction

_NEAREST = 32
"""Segments near in meaning whose facts a statement is compared with, whatever their words."""
_UNSURE, _LEAD = -0.8, 1.5
"""How unlike a change may be to what it changes, and by how much it must lead all others then."""

Nearness = Callable[[int], Mapping[int, float]]
"""Cosine similarities of segments to one segment, by id; those without a vector are left out."""


def no_nearness(segment_id: int) -> Mapping[int, float]:
    """Where there are no vectors."""
    return {}


@dataclass(frozen=True)
class FactKeeper:
    """Keeps the facts of one user.

    Args:
        archive: where they are.
        index: the same in memory.
        nearness: how near segments are in meaning.
    """

    archive: Archive
    index: FactIndex
    nearness: Nearness = no_nearness

    def extract_pending(self, extractor: FactExtractor, limit: int = 64) -> int:
        """Read what was said and not read yet, the oldest first; how many segments that was.

        Args:
            extractor: reads; it may take its time.
            limit: segments at most.
        """
        pending = self.archive.unread(extractor.name, limit)
        for stored in pending:
            statements = extractor.extract(stored.segment)
            near = self.nearness(stored.segment.id) if statements else {}
            with self.archive.write() as transaction:
                transaction.mark_read(stored.segment.id, extractor.name)
                self._keep(transaction, stored, extractor.name, statements, near)
        return len(pending)

    def _keep(
        self,
        transaction: Transaction,
        stored: StoredSegment,
        extractor: str,
        statements: list[Statement],
        near: Mapping[int, float],
    ) -> None:
        segment = stored.segment
        nearest = sorted(near, key=near.__getitem__, reverse=True)[:_NEAREST]
        before: list[Fact] = []
        for ordinal, statement in enumerate(statements):
            source = Source(
                statement.subject,
                statement.value,
                statement.text,
                segment.id,
                extractor,
                ordinal,
                statement.ended,
                stored.turn,
                segment.created,
                segment.trust,
            )
            known = [*self.index.candidates(statement.text, nearest), *before]
            about = transaction.add_statement(source, best_match(source, known, near))
            # The next statement of the same segment may be about the same thing.
            before.append(Fact(0, about, (source,), segment.created))


def best_match(source: Source, known: Iterable[Fact], near: Mapping[int, float]) -> int | None:
    """The number of the thing a statement is about, among those that facts are about.

    A statement that is not the user's own is compared with others of its kind only. One that says
    something changed may be a little less like what it changed, if nothing else is as like.
    """
    newer = read(source.text, source.value)
    scores: dict[int, float] = {}
    for fact in known:
        if (fact.trust < Trust.USER) is not (source.trust < Trust.USER):
            continue
        older = fact.sources[-1]
        same = same_value(older, source)
        if same and older.subject.casefold() == source.subject.casefold():
            return fact.about
        cosine = max((near[one] for one in fact.segment_ids if one in near), default=None)
        # Saying again what holds needs no word of change; what held before, does.
        again = same and fact.valid_to is None
        score = likeness(read(older.text, older.value), newer, cosine, same=again)
        # What holds no longer is meant only where nothing that holds is as like.
        score -= 0.5 * (fact.valid_to is not None)
        scores[fact.about] = max(score, scores.get(fact.about, score))
    ranked = sorted(scores.items(), key=lambda one: (-one[1], one[0]))
    if not ranked:
        return None
    (about, best), *others = ranked
    lead = best - others[0][1] if others else math.inf
    changes = newer.updates or newer.ends
    return about if best > 0 or (changes and best > _UNSURE and lead > _LEAD) else None
