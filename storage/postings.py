"""BM25 over arrays: which documents hold which terms how often, and what that is worth.

    score(d, q) = sum over t in q of  idf(t) * tf * (k1 + 1) / (tf + k1 * (1 - b + b * |d| / avg))
    idf(t) = ln(1 + (N - df + 1/2) / (df + 1/2))

Based on Robertson and Zaragoza, The Probabilistic Relevance Framework, 2009. Documents come and go
one by one; the numbers are those of the documents that are in now. Knows nothing of text or SQL.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

_REMOVED = -1


class Postings:
    """Documents as bags of terms.

    A document has a position, the order in which it came; a term has a number. `_docs[term]` are
    the positions that hold it, ascending, and `_counts[term]` how often each does.

    Args:
        k1: how soon more of the same term stops counting.
        b: how much a long document pays for its length, 0 to 1.
    """

    def __init__(self, k1: float = 1.2, b: float = 0.75) -> None:
        self._k1 = k1
        self._b = b
        self._terms: dict[str, int] = {}
        self._docs: list[array[int]] = []
        self._counts: list[array[int]] = []
        self._ids = array("q")
        self._lengths = array("i")
        self._bags: list[array[int] | None] = []
        self._positions: dict[int, int] = {}
        self._total_length = 0

    def __len__(self) -> int:
        return len(self._positions)

    def __contains__(self, document_id: int) -> bool:
        return document_id in self._positions

    def add(self, document_id: int, terms: Sequence[str]) -> None:
        """Put a document in; its id must not be in yet."""
        if document_id in self._positions:
            raise ValueError(f"Document {document_id} is in already: remove it first.")
        position = len(self._ids)
        bag = array("i")
        for term, count in Counter(terms).items():
            number = self._terms.setdefault(term, len(self._docs))
            if number == len(self._docs):
                self._docs.append(array("i"))
                self._counts.append(array("i"))
            self._docs[number].append(position)
            self._counts[number].append(count)
            bag.append(number)
        self._ids.append(document_id)
        self._lengths.append(len(terms))
        self._bags.append(bag)
        self._positions[document_id] = position
        self._total_length += len(terms)

    def remove(self, document_id: int) -> None:
        """Take a document out; nothing happens where it is not in."""
        position = self._positions.pop(document_id, None)
        if position is None:
            return
        for number in self._bags[position] or ():
            at = bisect_left(self._docs[number], position)
            del self._docs[number][at], self._counts[number][at]
        self._total_length -= self._lengths[position]
        self._lengths[position] = _REMOVED
        self._bags[position] = None

    def scores(self, terms: Iterable[str]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The BM25 score of every document for these terms; each term counts once.

        Returns:
            ids: (n,), int64, ascending.
            scores: (n,), float32, 0 where no term is in; higher is nearer.
        """
        lengths = np.array(self._lengths, dtype=np.float64)
        total = np.zeros(len(lengths))
        average = self._total_length / max(1, len(self)) or 1.0
        penalty = self._k1 * (1 - self._b + self._b * lengths / average)
        for term in sorted(set(terms)):  # floats are added in one order, whatever was asked
            number = self._terms.get(term)
            if number is None or not self._docs[number]:
                continue
            docs = np.frombuffer(self._docs[number], dtype=np.int32)
            counts = np.frombuffer(self._counts[number], dtype=np.int32)
            idf = self._idf(len(docs))
            total[docs] += idf * (self._k1 + 1) * counts / (counts + penalty[docs])
        there = lengths != _REMOVED
        ids = np.array(self._ids, dtype=np.int64)[there]
        scores = total[there].astype(np.float32)
        if (ids[1:] < ids[:-1]).any():
            order = np.argsort(ids)
            ids, scores = ids[order], scores[order]
        return ids, scores

    def weight(self, terms: Iterable[str]) -> float:
        """What a document of average length that holds each term once scores, seen or unseen."""
        numbers = (self._terms.get(term) for term in sorted(set(terms)))
        return sum(self._idf(0 if n is None else len(self._docs[n])) for n in numbers)

    def _idf(self, num_holding: int) -> float:
        return math.log(1 + (len(self) - num_holding + 0.5) / (num_holding + 0.5))

    def contents(self) -> dict[int, dict[str, int]]:
        """Every document's terms and how often it holds each."""
        names = {number: term for term, number in self._terms.items()}
        return {
            document_id: {
                names[number]: self._counts[number][bisect_left(self._docs[number], position)]
                for number in self._bags[position] or ()
            }
            for document_id, position in self._positions.items()
        }
