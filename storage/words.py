"""Finding segments by their words: BM25 over one user's own segments and nobody else's.

Statistics are per user: counting all users' words together would let one user's talk change what
another finds. There is no query syntax.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from agentmem.errors import InvalidInput
from agentmem.storage.derived import DerivedIndex, Ids, Scores, nearest
from agentmem.storage.postings import Postings
from agentmem.storage.rows import ChangeOp
from agentmem.storage.terms import analyze
from agentmem.storage.user_archive import Archive


class WordIndex(DerivedIndex):
    """One user's words.

    Args:
        archive: whose segments.
    """

    name = "words"
    follows: ChangeOp = "add"

    def __init__(self, archive: Archive) -> None:
        super().__init__(archive)
        self._postings = Postings()

    def __len__(self) -> int:
        """Segments in the index, as of the last search."""
        return len(self._postings)

    def scores(self, query: str) -> tuple[Ids, Scores]:
        """The BM25 score of every searchable segment for a text.

        Returns:
            ids: (n,), int64, ascending.
            scores: (n,), float32; 0 where no word of the query is in, higher is nearer.

        Raises:
            InvalidInput: the query is not a str.
        """
        if not isinstance(query, str):
            raise InvalidInput(f"A query must be a str: got {type(query).__name__}.")
        terms = analyze(query)
        with self._lock:
            self.apply()
            return self._postings.scores(terms)

    def weight(self, query: str) -> float:
        """The score of a segment of average length that holds every word of the query once.

        Words that no segment holds weigh most: a score far below this says that the query is about
        something else.
        """
        terms = analyze(query)
        with self._lock:
            self.apply()
            return self._postings.weight(terms)

    def search(self, query: str, k: int, exclude: Collection[int] = ()) -> tuple[Ids, Scores]:
        """The k best segments that hold a word of the query, but those in `exclude`; best first."""
        ids, scores = self.scores(query)
        hits = scores > 0
        return nearest(ids[hits], scores[hits], k, exclude)

    def _clear(self) -> None:
        self._postings = Postings()

    def _load(self, ids: Sequence[int] | None) -> None:
        for segment_id, terms in self._archive.words(ids):
            self._postings.add(segment_id, terms)

    def _remove(self, ids: Collection[int]) -> None:
        for segment_id in ids:
            self._postings.remove(segment_id)

    def _contents(self) -> dict[int, dict[str, int]]:
        return self._postings.contents()

    def _blank(self) -> WordIndex:
        return WordIndex(self._archive)
