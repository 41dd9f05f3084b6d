"""Which contexts the KV benchmark reads, with which formats, and which of them it has read.

Contexts of all kinds come in turn, so that a part of a run tells something already. On the first of
each kind transformers' caches are measured at every group size, from then on at the best alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from agentmem.bench.kv_row import BASELINES, KVOptions, KVRow
from agentmem.bench.needles import num_needles

_TOKENS_A_QUESTION = 20
"""Read for each, the dense model's own answer included; to tell how long a run takes."""


@dataclass(frozen=True, slots=True)
class System:
    """A format to measure.

    Args:
        system: "agentmem", "quanto" or "hqq".
        format: its name in a row.
        name: what it was asked for by.
        num_bits, group_size: of transformers' caches.
        digest: of everything its rows rest on; rows of different ones do not compare.
    """

    system: str
    format: str
    name: str
    num_bits: int = 0
    group_size: int = 0
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """One context: what it is made of, and its number among those of its kind."""

    text: str
    layout: str
    context: int
    number: int


def systems_of(name: str, group_sizes: Sequence[int]) -> list[System]:
    """What is measured for a format: one system, or one a group size for transformers' caches."""
    if name not in BASELINES:
        return [System("agentmem", name, name)]
    backend, num_bits = name[:-1], int(name[-1])
    return [
        System(backend, f"{num_bits}-bit, groups of {size}", name, num_bits, size)
        for size in group_sizes
    ]


class Plan:
    """What to measure, less what was measured.

    Args:
        options: how much of what.
        systems: the formats.
        rows: measured before.
    """

    def __init__(
        self, options: KVOptions, systems: Sequence[System], rows: Iterable[KVRow]
    ) -> None:
        self.options = options
        self.systems = tuple(systems)
        self._rows = {row.identity: row for row in rows}

    def add(self, row: KVRow) -> None:
        """Take a row that was measured now."""
        self._rows[row.identity] = row

    def jobs(self) -> Iterator[Job]:
        """Every context."""
        options = self.options
        most = max(options.answers, options.baseline_answers)
        counts = {size: options.num_contexts(size, most) for size in options.contexts}
        for number in range(max(counts.values())):
            for text, layout, size in self._kinds():
                if number < counts[size]:
                    yield Job(text, layout, size, number)

    def missing(self, job: Job) -> list[System]:
        """Formats that have no row of this context yet."""
        return [one for one in self.of(job) if self.row_of(one, job).identity not in self._rows]

    def of(self, job: Job) -> list[System]:
        """Formats that are measured on a context."""
        options = self.options
        wanted = []
        for one in self.systems:
            is_ours = one.name not in BASELINES
            answers = options.answers if is_ours else options.baseline_answers
            if job.number >= options.num_contexts(job.context, answers):
                continue
            if is_ours or not job.number or one.group_size == self._best_group_size(one):
                wanted.append(one)
        return wanted

    def tokens(self, job: Job) -> int:
        """About how many tokens a context makes the model read."""
        asked = _TOKENS_A_QUESTION * sum(num_needles(job.context))
        return job.context + len(self.of(job)) * asked

    def row_of(self, one: System, job: Job) -> KVRow:
        """The row of a format in a context, with nothing in it."""
        return KVRow(
            system=one.system,
            format=one.format,
            layout=job.layout,
            text=job.text,
            context=job.context,
            seed=self.options.seed + job.number,
            digest=one.digest,
        )

    def rows(self) -> list[KVRow]:
        """What was measured of all this, of transformers' caches at the best group size."""
        found = []
        for one in self.systems:
            if one.name in BASELINES and one.group_size != self._best_group_size(one):
                continue
            identities = (self.row_of(one, job).identity for job in self.jobs())
            found += [self._rows[identity] for identity in identities if identity in self._rows]
        return found

    def _kinds(self) -> Iterator[tuple[str, str, int]]:
        for text in self.options.text_domains:
            for layout in self.options.layouts:
                for size in self.options.contexts:
                    yield text, layout, size

    def _best_group_size(self, system: System) -> int:
        """The group size that comes nearest to dense in the first contexts of every kind."""
        known: dict[int, float] = {}
        for one in self.systems:
            if one.name == system.name:
                firsts = (self.row_of(one, Job(*kind, 0)).identity for kind in self._kinds())
                kl = [value for i in firsts if i in self._rows for value in self._rows[i].each.kl]
                if kl:
                    known[one.group_size] = fmean(kl)
        return min(known, key=known.__getitem__, default=system.group_size)
