"""A user's facts in memory: by segment, and which segments say what holds instead of others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from agentmem.storage.derived import DerivedIndex
from agentmem.storage.rows import ChangeOp, Fact
from agentmem.storage.terms import analyze
from agentmem.storage.user_archive import Archive

_MOST_CANDIDATES = 200
"""Facts a statement is compared with at most, those that share its rarest terms first."""


class FactIndex(DerivedIndex):
    """One user's facts.

    Args:
        archive: whose.
    """

    name = "facts"
    follows: ChangeOp = "fact"

    def __init__(self, archive: Archive) -> None:
        super().__init__(archive)
        self._facts: dict[int, Fact] = {}
        self._by_segment: dict[int, set[int]] = defaultdict(set)
        self._by_about: dict[int, set[int]] = defaultdict(set)
        self._by_term: dict[str, set[int]] = defaultdict(set)
        self._echoes: dict[int, int] = {}

    def facts(self) -> list[Fact]:
        """All facts, by id."""
        with self._lock:
            self.apply()
            return sorted(self._facts.values(), key=lambda fact: fact.id)

    def of(self, segment_id: int) -> list[Fact]:
        """The facts that a segment states, by id."""
        with self._lock:
            self.apply()
            return [self._facts[one] for one in sorted(self._by_segment.get(segment_id, ()))]

    def candidates(self, text: str, segment_ids: Iterable[int]) -> list[Fact]:
        """Facts that share a rare enough term with a text, or are stated in segments; by id."""
        with self._lock:
            self.apply()
            found = {one for each in segment_ids for one in self._by_segment.get(each, ())}
            by_rarity = sorted((self._by_term.get(t, set()) for t in set(analyze(text))), key=len)
            for ids in by_rarity:
                if len(found) + len(ids) > _MOST_CANDIDATES:
                    break
                found |= ids
            return [self._facts[one] for one in sorted(found)]

    def successors(self, query: str, among: Iterable[int]) -> Mapping[int, tuple[int, ...]]:
        """For each of these segments whose words hold no longer: those that say what does instead.

        A reply given in the turn of such a segment says its words again. A segment that also says
        something that still holds counts only where the query shares a word with what does not.
        """
        with self._lock:
            self.apply()
            asked = frozenset(analyze(query))
            found: dict[int, tuple[int, ...]] = {}
            for segment_id in among:
                if instead := self._instead(self._echoes.get(segment_id, segment_id), asked):
                    found[segment_id] = instead
            return found

    def _instead(self, segment_id: int, asked: frozenset[str]) -> tuple[int, ...]:
        """The segments that say what holds instead of what one says; empty where it holds."""
        found: tuple[int, ...] = ()
        for fact in (self._facts[one] for one in sorted(self._by_segment.get(segment_id, ()))):
            if fact.valid_to is None:
                continue
            group = (self._facts[one] for one in sorted(self._by_about[fact.about]))
            holding = [other for other in group if other.valid_to is None]
            now = tuple(one for other in holding for one in reversed(other.segment_ids))
            if segment_id in now or (
                self._says_more(segment_id, fact.about) and not asked & set(analyze(fact.subject))
            ):
                continue
            found += now
        return found

    def _says_more(self, segment_id: int, about: int) -> bool:
        facts = (self._facts[one] for one in self._by_segment[segment_id])
        return any(fact.about != about and fact.valid_to is None for fact in facts)

    def _clear(self) -> None:
        self._facts.clear()
        self._by_segment.clear()
        self._by_about.clear()
        self._by_term.clear()
        self._echoes.clear()

    def _load(self, ids: Sequence[int] | None) -> None:
        loaded = self._archive.facts(ids)
        for fact in loaded:
            self._drop(fact.id)
            self._facts[fact.id] = fact
            self._by_about[fact.about].add(fact.id)
            for term in _terms(fact):
                self._by_term[term].add(fact.id)
            for segment_id in fact.segment_ids:
                self._by_segment[segment_id].add(fact.id)
        ended = [one for fact in loaded if fact.valid_to is not None for one in fact.segment_ids]
        self._echoes.update(self._archive.echoes(ended))

    def _remove(self, ids: Collection[int]) -> None:
        for segment_id in ids:
            for fact_id in list(self._by_segment.get(segment_id, ())):
                self._drop(fact_id)

    def _drop(self, fact_id: int) -> None:
        fact = self._facts.pop(fact_id, None)
        if fact is None:
            return
        self._by_about[fact.about].discard(fact_id)
        for term in _terms(fact):
            self._by_term[term].discard(fact_id)
        for segment_id in fact.segment_ids:
            self._by_segment[segment_id].discard(fact_id)

    def _contents(self) -> dict[int, Fact]:
        return dict(self._facts)

    def _blank(self) -> FactIndex:
        return FactIndex(self._archive)


def _terms(fact: Fact) -> set[str]:
    return {term for source in fact.sources for term in analyze(source.text)}
