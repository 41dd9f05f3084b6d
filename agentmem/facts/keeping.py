"""From what segments state to facts: reading what is unread, and finding what each is about.

Resumable at any segment: what was read by whom is on record, in the transaction that stores what
was found there. Nothing is held open while an extractor reads.
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from agentmem.facts.extraction import FactExtractor, Statement
from agentmem.facts.literals import kind_of
from agentmem.facts.reading import read
from agentmem.facts.subject import likeness
from agentmem.facts.values import value_of
from agentmem.segment import Trust
from agentmem.storage.archive import Archive
from agentmem.storage.fact_index import FactIndex
from agentmem.storage.rows import Fact, Source, StoredSegment
from agentmem.storage.terms import analyze
from agentmem.storage.timeline import same_value
from agentmem.storage.transaction import Transaction

_NEAREST = 32
"""Segments near in meaning whose facts a statement is compared with, whatever their words."""
_UNSURE, _LEAD = -0.8, 1.5
"""How unlike a change may be to what it changes, and by how much it must lead all others then."""
_STILL = re.compile(
    r"\b(?:still|again|remains?|as before|unchanged|immer noch|toujours|todavía)\b|还是|仍",
    re.IGNORECASE,
)

Nearness = Callable[[int], Mapping[int, float]]
"""Cosine similarities of segments to one segment, by id; those without a vector are left out."""


def no_nearness(segment_id: int) -> Mapping[int, float]:
    """Where there are no vectors."""
    return {}


Unread = Callable[[Callable[[], list[StoredSegment]]], list[StoredSegment]]
"""What is unread, given how it is found."""


def computed(find: Callable[[], list[StoredSegment]]) -> list[StoredSegment]:
    """Where nobody else knows."""
    return find()


@dataclass(frozen=True)
class FactKeeper:
    """Keeps the facts of one user.

    Args:
        archive: where they are.
        index: the same in memory.
        nearness: how near segments are in meaning.
        unread: what an extractor has not read, where it is not computed here.
    """

    archive: Archive
    index: FactIndex
    nearness: Nearness = no_nearness
    unread: Unread = computed

    def extract_pending(self, extractor: FactExtractor, limit: int = 64) -> int:
        """Read what was said and not read yet, the oldest first; how many segments that was.

        Args:
            extractor: reads; it may take its time.
            limit: segments at most.
        """
        pending = self.unread(lambda: self.archive.unread(extractor.name, limit))
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
        nearest = heapq.nlargest(_NEAREST, near, key=near.__getitem__)
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
            match = best_match(source, known, near)
            if match is not None:
                source = in_place_of(match.sources[-1], source)
            about = transaction.add_statement(source, None if match is None else match.about)
            # The next statement of the same segment may be about the same thing.
            before.append(Fact(0, about, (source,), segment.created))


def best_match(source: Source, known: Iterable[Fact], near: Mapping[int, float]) -> Fact | None:
    """The fact that is about the same thing as a statement, the likest of those there are.

    A statement that is not the user's own is compared with others of its kind only. One that says
    something changed may be a little less like what it changed, if nothing else is as like.
    """
    newer = read(source.text, source.value)
    scores: dict[int, tuple[float, int, Fact]] = {}
    for fact in known:
        if (fact.trust < Trust.USER) is not (source.trust < Trust.USER):
            continue
        older = fact.sources[-1]
        same = same_value(older, source)
        if same and older.subject.casefold() == source.subject.casefold():
            return fact
        cosine = max((near[one] for one in fact.segment_ids if one in near), default=None)
        # Saying again what holds needs no word of change; what held before, does.
        again = same and fact.valid_to is None
        score = likeness(read(older.text, older.value), newer, cosine, same=again)
        # What holds no longer is meant only where nothing that holds is as like.
        score -= 0.5 * (fact.valid_to is not None)
        scored = (score, fact.id, fact)
        scores[fact.about] = max(scored, scores.get(fact.about, scored), key=lambda one: one[:2])
    ranked = sorted(scores.values(), key=lambda one: (-one[0], one[1]))
    if not ranked:
        return None
    (best, _, fact), *others = ranked
    lead = best - others[0][0] if others else math.inf
    changes = newer.updates or newer.ends
    return fact if best > 0 or (changes and best > _UNSURE and lead > _LEAD) else None


def in_place_of(older: Source, source: Source) -> Source:
    """A statement of change, read once more now that it is known what changed.

    A sentence that names both values gives the one that was not there before.
    """
    newer = read(source.text, source.value)
    if source.value is None or older.value is None or not (newer.updates or newer.ends):
        return source
    if not same_value(older, source):
        named = set(analyze(older.value)) & newer.terms
        return replace(source, ended=source.ended and not named)
    other = value_of(source.text.replace(source.value, " "))
    if other is None or other.kind != kind_of(older.value) or _STILL.search(source.text):
        return source
    return replace(source, value=other.text, ended=False)
