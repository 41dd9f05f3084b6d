"""What a user remembers, and every way to act on it.

Memory composes archive, indexes, window and KV tier: `Finder` finds, `Ledger` carries decisions
out, `Undoing` takes them back, `Forgetting` deletes, and here are the verbs people and sessions
use. It decides nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentmem.blocks import Blocks
from agentmem.context import Context
from agentmem.decision import Action, Candidate, Decision
from agentmem.decisions.absence import Surroundings
from agentmem.decisions.explain import Explanation, explain, explain_forgotten
from agentmem.decisions.forgetting import Forgetting
from agentmem.decisions.ledger import Ledger, Summarize
from agentmem.decisions.precision import Precisions, check_precision
from agentmem.decisions.undoing import Undoing
from agentmem.errors import InvalidInput
from agentmem.events import Decided
from agentmem.facts.keeping import FactKeeper
from agentmem.importing.file import Imported, import_file
from agentmem.models.base import Embedder, KVTier, PartKey
from agentmem.origin import from_origin
from agentmem.outside import Outside
from agentmem.passages import Passages
from agentmem.recall.finder import Finder
from agentmem.recall.scoring import Recall, Scored
from agentmem.segment import Precision, Segment, State, refined
from agentmem.storage.archive import Archive
from agentmem.storage.rows import Fact, SessionRow, StoredSegment


@dataclass(frozen=True, slots=True)
class Hit:
    """A segment a search found.

    Args:
        segment: the segment.
        score: higher is nearer.
        state: where it lives.
        turn: the turn in which it was said.
        scores: the two scores it is made of, "vector" (cosine) and "words" (share of the
            query's words it covers).
        facts: what it states, each with the time in which it held.
        instead: the segment told later that probably answers the query instead, though neither
            says so; it stands above. None where there is none.
        until: when that was told, in seconds since the epoch.
    """

    segment: Segment
    score: float
    state: State
    turn: int
    scores: Mapping[str, float]
    facts: tuple[Fact, ...] = ()
    instead: int | None = None
    until: float | None = None


class Memory:
    """Everything of one user, and the window of one session.

    While a turn is answered or its stream is not at its end, acts are `SessionBusy`; looks are not.

    Args:
        archive: the truth.
        session: whose window this is.
        context: that window.
        embedder: for meaning; its name is the space the vectors live in.
        recall: how queries are scored.
        kv: the model's KV tier, where it has one.
        let_go: without one, drops what the model keeps of what it read.
        summarizer: makes the segment that replaces others; None refuses to summarize.
        outside: what is not computed here comes through it, to be recorded.
    """

    def __init__(
        self,
        archive: Archive,
        session: SessionRow,
        context: Context,
        embedder: Embedder,
        *,
        recall: Recall | None = None,
        kv: KVTier | None = None,
        let_go: Callable[[], None] = lambda: None,
        summarizer: Summarize | None = None,
        outside: Outside | None = None,
    ) -> None:
        self.outside = outside or Outside()
        self.archive = archive
        self.session = session
        self.context = context
        self.recall = recall or Recall()
        self.kv = kv
        self.said_tokens = int(session.settings.get("said_tokens", 0))
        """Tokens of all messages and replies so far: what a dense cache would hold."""
        self.warned_turn = int(session.settings.get("warned_turn", 0))
        """The turn in which the model was told that its window is nearly full; 0 for none."""
        self.finder = Finder(archive, embedder, self.recall, self.outside)
        self.fact_keeper = FactKeeper(
            archive, self.finder.facts, self.finder.near, unread=self.outside.unread
        )
        self._precisions = Precisions(session, kv, self.settings)
        self.ledger = Ledger(
            archive,
            session,
            context,
            kv=kv,
            summarizer=summarizer,
            precisions=self._precisions,
        )
        self.forgetting = Forgetting(archive, session, context, kv=kv, let_go=let_go)
        self.outside.follow = self.forgetting.follow
        self._undoing = Undoing(archive, session, context, kv=kv, precisions=self._precisions)

        self.blocks = Blocks(archive, session, context, lambda: self.turn, self.outside)
        """Core memory: what is always in the window."""
        self.passages = Passages(archive, session, self.finder, lambda: self.turn, self.outside)
        """Notes outside the conversation."""

    @property
    def turn(self) -> int:
        """Number of the turn that is being answered, or was last."""
        return self.ledger.turn

    def search(self, query: str, k: int = 10) -> list[Hit]:
        """The k segments nearest to a query, best first, wherever they live.

        Raises:
            InvalidInput: the query is empty or `k` is not in 1..1000.
        """
        if not 1 <= k <= 1000:
            raise InvalidInput(f"`k` must lie in 1..1000: got {k}.")
        with self.outside.turnstile.apart():
            ranked = self.finder.search(query)[:k]
        there = self.archive.present(scored.segment_id for scored in ranked)
        found = [
            (scored, there[scored.segment_id]) for scored in ranked if scored.segment_id in there
        ]
        return [
            Hit(
                one.segment,
                scored.score,
                self.state(one),
                one.turn,
                {"vector": scored.cosine or 0.0, "words": scored.words},
                tuple(self.finder.facts.of(scored.segment_id)),
                *_instead(scored, there),
            )
            for scored, one in found
        ]

    def facts(self, query: str | None = None, at: float | None = None) -> list[Fact]:
        """What was stated, the newest first, each with the time in which it held.

        Args:
            query: only what the nearest segments state, and what took its place or had it before.
            at: only what held at this moment, in seconds since the epoch.
        """
        facts = self.finder.facts.facts()
        if query is not None:
            near = {hit.segment.id for hit in self.search(query)}
            about = {fact.about for fact in facts if near & set(fact.segment_ids)}
            facts = [fact for fact in facts if fact.about in about]
        if at is not None:
            facts = [fact for fact in facts if fact.held_at(at)]
        return sorted(facts, key=lambda fact: (-fact.said_at, -fact.id))

    def segment(self, segment_id: int) -> StoredSegment:
        """One segment with what the archive knows of it.

        Raises:
            SegmentNotFound: this user has no such segment.
        """
        return self.archive.segment(segment_id)

    def turn_segments(self, turn: int) -> list[StoredSegment]:
        """What was said in a turn of this session, in order: messages and tool exchanges."""
        return self.archive.turn_segments(self.session.id, turn, ("turn", "tool_exchange"))

    def state(self, stored: StoredSegment) -> State:
        """Where a segment lives, the KV tier counted in."""
        return refined(stored.state, self.held_states().get(stored.segment.id))

    def held_states(self) -> Mapping[PartKey, State]:
        """Where the KV tier holds each part it knows; empty without one."""
        return self.kv.usage().states if self.kv is not None else {}

    def states(self) -> dict[str, int]:
        """Segments of this session per state, the KV tier counted in."""
        counts: dict[str, int] = {
            state: count for state, count in self.archive.states(self.session.id).items() if count
        }
        held = self.held_states()
        for key in (key for key in held if isinstance(key, int)):
            base: State = "live" if key in self.context else "archived"
            state = refined(base, held[key])
            if state != base and counts.get(base, 0) > 0:
                counts[base] -= 1
                counts[state] = counts.get(state, 0) + 1
        return {"live": 0, "compressed": 0, "parked": 0, "archived": 0, **counts}

    def candidates(self, vector: NDArray[np.float32] | None = None) -> list[Candidate]:
        """Every segment of the window with its evidence, in order."""
        attention = self.kv.attention() if self.kv is not None else {}
        ids = [entry.id for entry in self.context.entries]
        similarity = {} if vector is None else self.finder.similarity(vector, ids)
        states = self.held_states()
        echoes = self._echoes()
        return [
            Candidate(
                # A review quotes it: under the same key it must say what the window says.
                segment=self.context.shown(entry.segment),
                num_tokens=entry.num_tokens,
                age_turns=max(0, self.turn - entry.stored.turn),
                idle_turns=max(0, self.turn - max(entry.stored.turn, entry.stored.used_turn)),
                attention=attention.get(entry.id),
                recalls=entry.stored.recalls,
                similarity=similarity.get(entry.id),
                echo=echoes.get(entry.id),
                state=refined(entry.state, states.get(entry.id)),
                pinned=entry.pinned,
                protected=self._protection(entry.stored, entry.recalled),
            )
            for entry in self.context.entries
        ]

    def _echoes(self) -> dict[int, float]:
        """How near each answer in the window is to the message it answers, where that is too."""
        pairs: list[tuple[int, int]] = []
        asked: dict[int, int] = {}
        for entry in self.context.entries:
            if entry.segment.kind == "turn":
                if entry.segment.role == "user":
                    asked[entry.stored.turn] = entry.id
                elif entry.stored.turn in asked:
                    pairs.append((entry.id, asked[entry.stored.turn]))
        nearness = self.finder.between(pairs)
        return {
            one: near for (one, _), near in zip(pairs, nearness, strict=True) if near is not None
        }

    def _protection(self, stored: StoredSegment, recalled: bool) -> str:
        if stored.segment.kind == "core_block":
            return "core"
        if stored.turn >= self.turn:
            return "newest turn"
        if stored.kept_until >= self.turn:
            return "kept"
        return "recalled" if recalled else ""

    def keep(self, *segment_ids: int, precision: Precision | None = None) -> Decided:
        """Do not offer these segments to a review for a while.

        Args:
            precision: store their keys and values so from the next turn on, whatever the format of
                the session. Fewer bits are made of those there are; for more the text is read
                again in that turn. It saves bytes where segments fill pages of 16 tokens of their
                own: formats share none. None leaves them as they are.

        Raises:
            InvalidInput: there is no such precision, or the model keeps no KV of segments.
        """
        return self._by_user("keep", segment_ids, check_precision(precision))

    def pin(self, *segment_ids: int) -> Decided:
        """Hold these segments in the window whatever happens."""
        return self._by_user("pin", segment_ids)

    def unpin(self, *segment_ids: int) -> Decided:
        """Let pinned segments go again when a review wants to."""
        return self._by_user("unpin", segment_ids)

    def drop(self, *segment_ids: int) -> Decided:
        """Take these segments out of the window; they stay in the archive."""
        return self._by_user("drop", segment_ids)

    def summarize(self, *segment_ids: int) -> Decided:
        """Replace these segments in the window by one summary."""
        return self._by_user("summarize", segment_ids)

    def restore(self, *segment_ids: int) -> Decided:
        """Bring these segments back to their place in the window."""
        return self._by_user("bring_back", segment_ids)

    def _by_user(
        self, action: Action, segment_ids: Sequence[int], precision: Precision | None = None
    ) -> Decided:
        if not segment_ids:
            raise InvalidInput(f"Name at least one segment to {action.replace('_', ' ')}.")
        self.archive.segments(segment_ids)
        given = [*segment_ids, {"precision": precision}] if precision else segment_ids
        with self.outside.act(action, given):
            known = {candidate.id: candidate for candidate in self.candidates()}
            return self.ledger.apply(
                Decision(
                    action,
                    tuple(dict.fromkeys(segment_ids)),
                    "user",
                    reason="The user asked for it.",
                    maker="user",
                    evidence={one: known[one].evidence() for one in segment_ids if one in known},
                    precision=precision,
                )
            )

    def undo(self, decision_id: int | None = None) -> Decided:
        """Take back the last decision of this session, or the one named.

        At once it brings back the identical window. Later it brings back the segments' former
        state, if the budget holds it.

        Raises:
            InvalidInput: there is nothing to undo, or it was undone already.
            UndoBlocked: the former window no longer fits.
        """
        with self.outside.act("undo", [decision_id]):
            return self._undoing.undo(decision_id, self.turn, self.ledger.turn_key)

    def forget(self, segment_id: int) -> dict[str, Any]:
        """Delete a segment from every tier, with what could quote it; returns a receipt.

        Summaries and versions of blocks made of it go with it; a block then says what it said
        before. The KV of every later segment may have seen it and goes too: it is computed again
        from text at its next use.
        """
        with self.outside.act("forget", [segment_id]):
            receipt = self.forgetting.forget(segment_id)
            self.blocks.follow()
        return receipt

    def forget_origin(self, origin: str) -> dict[str, Any]:
        """Delete all that came from somewhere, and all that was made of it; returns a receipt.

        Args:
            origin: user, assistant, tool, import or summary; `tool:NAME` for one tool's results,
                `import:NAME` or `import:HASH` for one file.

        Raises:
            InvalidInput: it is none of these.
        """
        with self.outside.act("forget_origin", [origin]):
            found = {stored.segment.id for stored in self.from_origin(origin)}
            receipt = self.forgetting.forget_all(found)
            self.blocks.follow()
        return {"origin": origin, **receipt}

    def from_origin(self, origin: str) -> Iterator[StoredSegment]:
        """Segments that came from somewhere, of all sessions, by id."""
        return from_origin(self.archive, origin)

    def import_file(self, path: str | Path, *, trusted: bool = False) -> Imported:
        """Archive a file; see `agentmem.import_file`."""
        with self.outside.turnstile.apart():
            return import_file(self.archive, path, trusted=trusted)

    def why(self, segment_id: int) -> Explanation:
        """Why a segment is where it is, in words: decisions with their evidence, or what it is.

        Raises:
            SegmentNotFound: this user never had it.
        """
        rows = self.archive.decisions(segment_id=segment_id)
        forgotten_in = self.archive.forgotten(segment_id)
        if forgotten_in is not None:
            return explain_forgotten(segment_id, forgotten_in, rows)
        stored = self.segment(segment_id)
        inside = segment_id in self.context
        return explain(
            stored,
            self.state(stored),
            inside,
            rows,
            around=self._surroundings(stored),
            reviews={row.id: self.archive.review(row) for row in rows},
        )

    def _surroundings(self, stored: StoredSegment) -> Surroundings:
        part = stored.segment.kind == "document_part" and stored.segment.parents
        stub = stored.segment.parents[0] if part else 0
        elsewhere = stored.session_id != self.session.id
        names = {row.id: row.name for row in self.archive.sessions()} if elsewhere else {}
        return Surroundings(
            session=names.get(stored.session_id, ""),
            stub=stub,
            stub_in_window=stub in self.context,
            turn=self.turn,
            lifetime_turns=self.recall.lifetime_turns,
        )

    def settings(self) -> dict[str, Any]:
        """What the session's row says of it now."""
        return {
            **self.session.settings,
            "said_tokens": self.said_tokens,
            "warned_turn": self.warned_turn,
            "precisions": self._precisions.to_json(),
            "budget": self.context.budget.max_tokens,
            "tokens_per_estimate": self.context.tokens_per_estimate,
        }

    def stats(self) -> dict[str, Any]:
        """Counts, tokens and bytes of this session; `store_bytes` are the whole database's."""
        usage = self.kv.usage() if self.kv is not None else None
        left_bytes = self.archive.kv_folder(self.session).nbytes
        return {
            "session": self.session.name,
            "turns": self.turn,
            "window_tokens": self.context.num_tokens,
            "budget": self.context.budget.max_tokens,
            "segments": self.states(),
            "store_bytes": self.archive.store_bytes(),
            "kv_bytes": usage.window_bytes if usage else 0,
            "kv_bytes_host": usage.window_host_bytes if usage else 0,
            "kv_bytes_parked_ram": usage.parked_ram_bytes if usage else 0,
            "kv_bytes_parked_disk": usage.parked_disk_bytes if usage else left_bytes,
        }


def _instead(
    scored: Scored, there: Mapping[int, StoredSegment]
) -> tuple[int, float] | tuple[None, None]:
    """What answers a query instead of a segment, and since when."""
    if scored.instead is None or scored.instead not in there:
        return None, None
    return scored.instead, there[scored.instead].segment.created
