"""One conversation of one user: the order in which a turn happens.

    commit the user's message -> recall -> review -> generate -> commit the reply

Nothing is lost from the first commit on: a turn cut short is answered when it is sent again.
The session owns the order and the commits; what is recalled, decided and generated is others'.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from typing import Any

from agentmem.budget import Budget
from agentmem.context import Context
from agentmem.conversation.pinning import StandingPins
from agentmem.conversation.tool_loop import ToolLoop
from agentmem.conversation.turn import Generation, Turn
from agentmem.conversation.usage import measure
from agentmem.documents import split_document
from agentmem.errors import InvalidInput
from agentmem.events import Decided, Event, Recalled, Reply, Token, TurnKey, Usage
from agentmem.facts.extraction import PatternExtractor
from agentmem.memory import Memory
from agentmem.memory_tools import MemoryTools
from agentmem.models.base import ChatModel, Completion, Options, complete
from agentmem.recollection import Recollection
from agentmem.review.controller import Controller
from agentmem.review.pressure import Pressure
from agentmem.review.review import Review
from agentmem.segment import Message, Segment
from agentmem.storage.rows import WindowEntry
from agentmem.storage.text import normalize_text
from agentmem.tools import describe

MAX_MESSAGE_CHARS = 16 * 2**20
_SEGMENTS_READ = 4
"""Segments read for facts after a turn: its own, and what a turn cut short left unread."""
_PATTERNS = PatternExtractor()


class Session:
    """Send messages, get replies; one sender at a time.

    Args:
        memory: of the user, with this session's window.
        model: answers.
        controller: decides in reviews.
        generation: sampling and length of replies.
        recollection: brings segments back.
        tools: functions the model may call in a reply, where it can.
        memory_tools: those with which it acts on its memory; None where it shall not.
        pin_instructions: pin standing instructions when they are said.
    """

    def __init__(
        self,
        memory: Memory,
        model: ChatModel,
        *,
        controller: Controller,
        generation: Generation,
        recollection: Recollection,
        tools: Sequence[Callable[..., Any]] = (),
        memory_tools: MemoryTools | None = None,
        pin_instructions: bool = True,
    ) -> None:
        self.memory = memory
        self.model = model
        self.generation = generation
        self.usage = Usage(budget=memory.context.budget.max_tokens)
        self._recollection = recollection
        pressure = Pressure(memory) if memory_tools is not None else None
        self._review = Review(memory, controller, recollection, pressure)
        functions = [*tools, *(memory_tools.functions if memory_tools is not None else ())]
        by_name = {function.__name__: function for function in functions}
        if len(by_name) < len(functions):
            names = sorted(function.__name__ for function in functions)
            twice = next(one for one, next_one in pairwise(names) if one == next_one)
            raise InvalidInput(f"Two tools are called `{twice}`: rename one of them.")
        self._tools = tuple(map(describe, functions)) if model.capabilities.calls_tools else ()
        self._loop = ToolLoop(
            memory,
            model,
            self._review,
            by_name,
            memory_tools=memory_tools,
            monotonic=memory.outside.monotonic,
        )
        self._pins = StandingPins(memory) if pin_instructions else None
        if self._tools:
            memory.context.fixed_tokens = model.count_tools(self._tools)
            memory.context.check_budget()
        self._cancelled = threading.Event()

    @property
    def context(self) -> Context:
        """The window."""
        return self.memory.context

    @property
    def budget(self) -> Budget:
        """The ceilings."""
        return self.memory.context.budget

    def cancel(self) -> None:
        """End the reply that is being generated; what there is of it is kept. Safe in a signal."""
        self._cancelled.set()

    def events(
        self,
        text: str,
        *,
        turn: TurnKey | None = None,
        reply: str | None = None,
        cancelled: threading.Event | None = None,
    ) -> Generator[Event, None, None]:
        """One turn: recalls, decisions and tokens as they happen, the reply after its commit.

        Args:
            text: what the user says.
            turn: the caller's name for the turn. The same name again returns the stored reply; a
                turn that was never answered is answered and not stored twice.
            reply: a reply that is known already: stored and read as the model's, not generated.
            cancelled: set, it ends this reply and no other.

        Raises:
            InvalidInput: the text is empty or longer than 16 MiB, or the turn had another text.
            SessionBusy: another turn is being answered, or somebody is acting on memory.
        """
        if cancelled is None:
            cancelled = threading.Event()
        if not self.memory.outside.turnstile.is_others:
            # It is the next to be answered: from here on it may be cancelled.
            self._cancelled = cancelled
        return self._turn(text, turn, reply, cancelled)

    def _turn(
        self, text: str, turn: TurnKey | None, reply: str | None, cancelled: threading.Event
    ) -> Generator[Event, None, None]:
        text, key = _checked(text), None if turn is None else str(turn)
        num_events = 0
        with (
            self.memory.outside.turn(key, given=reply is not None),
            closing(self._events(text, turn, reply)) as events,
        ):
            self._cancelled = cancelled
            for event in events:
                num_events += not isinstance(event, Token)
                try:
                    with self.memory.outside.turnstile.apart():
                        yield event
                except GeneratorExit:
                    self.memory.outside.left(num_events, at_word=isinstance(event, Token))
                    raise

    def _events(
        self, text: str, turn: TurnKey | None, reply: str | None
    ) -> Generator[Event, None, None]:
        # What was forgotten elsewhere meanwhile is neither in the window nor in the cache any more.
        self.memory.forgetting.follow()
        current = self._begin(text, turn)
        if current.row.reply is not None:
            yield Reply(
                current.key,
                current.row.reply["text"],
                current.row.reply["finish_reason"],
                replace(self.usage, completion_tokens=0),
                repeated=True,
            )
            return
        ledger = self.memory.ledger
        ledger.turn = max(ledger.turn, current.row.number)
        ledger.turn_key = current.key
        current.given = reply is not None
        try:
            yield from self._prepare(current)
            if reply is not None:
                completion = self._observe(current, normalize_text(reply))
            else:
                completion = yield from self._loop.answer(current, self._options())
        except (GeneratorExit, KeyboardInterrupt):
            # The caller walked away in the middle of the reply: what there is of it is kept.
            partial = "".join(current.pieces)
            if partial:
                self._commit(current, Completion(partial, "interrupted"))
                self._pin(current)
            raise
        finally:
            self.context.notice = None
        answered = self._commit(current, completion)
        yield from self._pin(current)
        yield answered

    def _pin(self, current: Turn) -> list[Decided]:
        """Pin what the message wants to hold from now on."""
        if self._pins is None:
            return []
        return self._pins.notice(current.user, current.row.text, current.vector)

    def _begin(self, text: str, turn: TurnKey | None) -> Turn:
        """Commit the user's message, or find it where it was committed before."""
        archive, session = self.memory.archive, self.memory.session
        row = None if turn is None else archive.turn(session.id, str(turn))
        if turn is None:
            last = archive.last_turn(session.id)
            if last is not None and last.status == "unanswered" and last.text == text:
                row = last
        if row is not None:
            if row.text != text:
                raise InvalidInput(
                    f"Turn {turn!r} was sent before with another text: use a new name for it."
                )
            said = self.memory.turn_segments(row.number)
            self.memory.outside.turn_is(row.number, text, stored=said[0].segment.text == text)
            return Turn(row, row.number if turn is None else turn, said[0])
        segment = Segment((Message("user", text),))
        parts: tuple[Segment, ...] = ()
        tokens = self.context.count(segment)
        if tokens > self.context.longest_message:
            segment, parts = self._as_document(segment, self.context.longest_message)
        with archive.write() as transaction:
            row = transaction.add_turn(session.id, None if turn is None else str(turn), text)
            self.memory.outside.turn_is(row.number, text, stored=not parts)
            segment = transaction.add_segment(session.id, row.number, segment)
            for part in parts:
                child = replace(part, parents=(segment.id,))
                transaction.add_segment(session.id, row.number, child, state="archived")
            window = [*self.context.snapshot(), WindowEntry(segment.id, segment.id, "prompt", None)]
            transaction.set_window(session.id, window)
        self.memory.said_tokens += tokens
        key = row.number if turn is None else turn
        return Turn(row, key, self.memory.segment(segment.id))

    def _as_document(self, segment: Segment, room: int) -> tuple[Segment, tuple[Segment, ...]]:
        """What stands in the window for a long message, and the parts it is stored in.

        Args:
            segment: the message, whole.
            room: tokens the window has for it.
        """
        document = split_document(
            segment,
            stub_tokens=min(self.budget.stub_tokens, room),
            part_tokens=self.budget.part_tokens,
            count=self.context.count,
        )
        return document.stub, document.parts

    def _prepare(self, current: Turn) -> Iterator[Event]:
        """Recall and review, so that the window is what the model should see."""
        context = self.context
        before = context.snapshot()
        context.remove([current.user.segment.id])
        try:
            yield from self._recall_and_review(current)
        finally:
            # The message stays in the window whatever happens.
            context.put(current.user)
            if context.snapshot() != before:
                with self.memory.archive.write() as transaction:
                    transaction.set_window(self.memory.session.id, context.snapshot())

    def _recall_and_review(self, current: Turn) -> Iterator[Event]:
        """The window without the newest message: what leaves, and what comes back for it."""
        user, context = current.user, self.context
        self.memory.blocks.follow()
        self._recollection.leave(current.row.number)
        started = time.monotonic()
        current.vector = self.memory.finder.embed(current.row.text)
        whole = user.segment.text == current.row.text
        self.memory.finder.embed_pending(known={user.segment.id: current.vector} if whole else None)
        current.seconds["recall"] += time.monotonic() - started
        started = time.monotonic()
        yield from self._review.run(
            context.count(user.segment),
            current.vector,
            text=current.row.text,
            may_wait=not current.given,
        )
        current.seconds["controller"] += time.monotonic() - started
        started = time.monotonic()
        back = self._recollection.bring_back(user, current.row.text, current.vector)
        current.seconds["recall"] += time.monotonic() - started
        if back:
            yield Recalled(current.key, current.row.text[:200], back)

    def _options(self) -> Options:
        return self.generation.options(
            max_tokens=self.budget.max_tokens,
            tools=self._tools,
            cancelled=self._cancelled.is_set,
        )

    def _observe(self, current: Turn, reply: str) -> Completion:
        """Take a reply as given: the window up to it is read, nothing is generated."""
        options = replace(self._options(), max_new_tokens=0)
        completion = complete(self.model, self.context.prompt(), options)
        current.spent(completion)
        return replace(completion, text=reply, finish_reason="stop")

    def _commit(self, current: Turn, completion: Completion) -> Reply:
        """Commit the reply with everything the turn changed, then tell of it."""
        memory, session = self.memory, self.memory.session
        memory.forgetting.follow()
        text = normalize_text(completion.text)
        segment = Segment((Message("assistant", text),), origin="assistant")
        window = list(self.context.snapshot())
        parts: tuple[Segment, ...] = ()
        if text:
            tokens = self.context.count(segment)
            memory.said_tokens += tokens
            room = self.budget.max_tokens - self.context.num_tokens
            if tokens > room:
                segment, parts = self._as_document(segment, room)
        with memory.archive.write() as transaction:
            if completion.thought:
                # What a model thought explains its reply; it is neither read again nor recalled.
                thought = Segment(
                    (Message("assistant", normalize_text(completion.thought)),),
                    kind="thought",
                    origin="assistant",
                )
                transaction.add_segment(
                    session.id, current.row.number, thought, searchable=False, state="archived"
                )
            if text:
                segment = transaction.add_segment(session.id, current.row.number, segment)
                window.append(WindowEntry(segment.id, segment.id, "prompt", None))
                for part in parts:
                    child = replace(part, parents=(segment.id,))
                    transaction.add_segment(session.id, current.row.number, child, state="archived")
            transaction.set_window(session.id, window)
            transaction.set_session_settings(session.id, memory.settings())
            transaction.answer_turn(
                current.row.id, {"text": text, "finish_reason": completion.finish_reason}
            )
        if text:
            self.context.put(memory.segment(segment.id))
        memory.fact_keeper.extract_pending(_PATTERNS, limit=_SEGMENTS_READ)
        self.usage = measure(
            memory,
            completion,
            peak_tokens=max(current.peak_tokens, self.model.peak_tokens),
            seconds=current.seconds,
        )
        self.model.peak_tokens = 0
        return Reply(current.key, text, completion.finish_reason, self.usage)


def _checked(text: str) -> str:
    """The text as it may be stored.

    Raises:
        InvalidInput: it is empty or too long.
    """
    text = normalize_text(text)
    if not text.strip():
        raise InvalidInput("The message is empty: say something.")
    if len(text) > MAX_MESSAGE_CHARS:
        raise InvalidInput(
            f"The message has {len(text):,} characters; at most {MAX_MESSAGE_CHARS:,} are taken."
        )
    return text
