"""One conversation of one user: the order in which a turn happens.

    commit the user's message -> recall -> review -> generate -> commit the reply

Nothing is lost from the first commit on: a turn cut short is answered when it is sent again.
The session owns the order and the commits; what is recalled, decided and generated is others'.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentmem.budget import Budget
from agentmem.context import Context
from agentmem.controller import Controller
from agentmem.documents import split_document
from agentmem.errors import InvalidInput
from agentmem.events import Event, Recalled, Reply, Token, TurnKey, Usage
from agentmem.memory import Memory
from agentmem.models.base import ChatModel, Completion, FinishReason, Options, Part, complete
from agentmem.recollection import Recollection
from agentmem.review import Review
from agentmem.segment import Message, Segment, ToolCall, Trust
from agentmem.storage.rows import StoredSegment, TurnRow, WindowEntry
from agentmem.storage.text import normalize_text
from agentmem.tools import describe, run
from agentmem.usage import measure

MAX_MESSAGE_CHARS = 16 * 2**20
_TOOL_ROUNDS = 8
_TOOL_CALLS = 32
_SHORTEST_RESULT_CHARS = 32


@dataclass(frozen=True, kw_only=True)
class Generation:
    """How replies are generated: sampling and length."""

    max_new_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()


@dataclass(slots=True)
class _Turn:
    """What is known of the turn being answered."""

    row: TurnRow
    key: TurnKey
    user: StoredSegment
    vector: NDArray[np.float32] | None = None
    pieces: list[str] = field(default_factory=list)
    peak_tokens: int = 0
    seconds: dict[str, float] = field(
        default_factory=lambda: {"recall": 0.0, "controller": 0.0, "prefill": 0.0, "decode": 0.0}
    )

    def spent(self, completion: Completion) -> None:
        """Count one generation."""
        self.seconds["prefill"] += completion.prefill_seconds
        self.seconds["decode"] += completion.decode_seconds
        self.peak_tokens = max(
            self.peak_tokens, completion.prompt_tokens + completion.completion_tokens
        )


class Session:
    """Send messages, get replies; one sender at a time.

    Args:
        memory: of the user, with this session's window.
        model: answers.
        controller: decides in reviews.
        generation: sampling and length of replies.
        recollection: brings segments back.
        tools: functions the model may call in a reply, where it can.
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
    ) -> None:
        self.memory = memory
        self.model = model
        self.generation = generation
        self.usage = Usage(budget=memory.context.budget.max_tokens)
        self._recollection = recollection
        self._review = Review(memory, controller, recollection)
        self._functions = {tool.__name__: tool for tool in tools}
        self._tools = tuple(map(describe, tools)) if model.capabilities.calls_tools else ()
        if self._tools:
            schemas = json.dumps([asdict(tool) for tool in self._tools], ensure_ascii=False)
            part = Part("tools", (Message("system", schemas),))
            memory.context.fixed_tokens = model.count_tokens(part)
            core = [entry for entry in memory.context if entry.segment.kind == "core_block"]
            memory.context.budget.check(
                system_tokens=sum(entry.num_tokens for entry in core),
                tools_tokens=memory.context.fixed_tokens,
            )
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
        self, text: str, *, turn: TurnKey | None = None, reply: str | None = None
    ) -> Iterator[Event]:
        """One turn: recalls, decisions and tokens as they happen, the reply after its commit.

        Args:
            text: what the user says.
            turn: the caller's name for the turn. The same name again returns the stored reply; a
                turn that was never answered is answered and not stored twice.
            reply: a reply that is known already: stored and read as the model's, not generated.

        Raises:
            InvalidInput: the text is empty or longer than 16 MiB, or the turn had another text.
        """
        self._cancelled.clear()
        current = self._begin(_checked(text), turn)
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
        yield from self._prepare(current)
        try:
            if reply is not None:
                completion = self._observe(current, normalize_text(reply))
            else:
                completion = yield from self._generate(current)
        except (GeneratorExit, KeyboardInterrupt):
            # The caller walked away in the middle of the reply: what there is of it is kept.
            partial = "".join(current.pieces)
            if partial:
                self._commit(current, Completion(partial, "interrupted"))
            raise
        yield self._commit(current, completion)

    def _begin(self, text: str, turn: TurnKey | None) -> _Turn:
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
            return _Turn(row, row.number if turn is None else turn, said[0])
        segment = Segment((Message("user", text),), created=time.time())
        parts: tuple[Segment, ...] = ()
        tokens = self.context.count(segment)
        if tokens > self._longest_message:
            segment, parts = self._as_document(segment)
        with archive.write() as transaction:
            row = transaction.add_turn(session.id, None if turn is None else str(turn), text)
            segment = transaction.add_segment(session.id, row.number, segment)
            for part in parts:
                child = replace(part, parents=(segment.id,))
                transaction.add_segment(session.id, row.number, child, state="archived")
            window = [*self.context.snapshot(), WindowEntry(segment.id, segment.id, "prompt", None)]
            transaction.set_window(session.id, window)
        self.memory.said_tokens += tokens
        key = row.number if turn is None else turn
        return _Turn(row, key, self.memory.segment(segment.id))

    @property
    def _longest_message(self) -> int:
        """Tokens of a message that still fits beside what must always be in the window."""
        core = sum(e.num_tokens for e in self.context if e.segment.kind == "core_block")
        fits = self.budget.max_tokens - self.budget.reserve - core - self.context.fixed_tokens
        return min(self.budget.message_tokens, fits)

    def _as_document(self, segment: Segment) -> tuple[Segment, tuple[Segment, ...]]:
        """What stands in the window for a long message, and the parts it is stored in."""
        document = split_document(
            segment,
            stub_tokens=min(self.budget.stub_tokens, self._longest_message),
            part_tokens=max(16, self.budget.recall_tokens // 2),
            count=self.context.count,
        )
        return document.stub, document.parts

    def _prepare(self, current: _Turn) -> Iterator[Event]:
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

    def _recall_and_review(self, current: _Turn) -> Iterator[Event]:
        """The window without the newest message: what leaves, and what comes back for it."""
        user, context = current.user, self.context
        self._recollection.leave(current.row.number)
        started = time.monotonic()
        current.vector = self.memory.finder.embed(current.row.text)
        whole = user.segment.text == current.row.text
        self.memory.finder.embed_pending(known={user.segment.id: current.vector} if whole else None)
        current.seconds["recall"] += time.monotonic() - started
        started = time.monotonic()
        yield from self._review.run(context.count(user.segment), current.vector)
        current.seconds["controller"] += time.monotonic() - started
        started = time.monotonic()
        back = self._recollection.bring_back(user, current.row.text, current.vector)
        current.seconds["recall"] += time.monotonic() - started
        if back:
            yield Recalled(current.key, current.row.text[:200], back)

    def _options(self) -> Options:
        generation = self.generation
        return Options(
            max_new_tokens=generation.max_new_tokens,
            max_tokens=self.budget.max_tokens,
            temperature=generation.temperature,
            top_p=generation.top_p,
            top_k=generation.top_k,
            repetition_penalty=generation.repetition_penalty,
            seed=generation.seed,
            stop=generation.stop,
            tools=self._tools,
            cancelled=self._cancelled.is_set,
        )

    def _observe(self, current: _Turn, reply: str) -> Completion:
        """Take a reply as given: the window up to it is read, nothing is generated."""
        options = replace(self._options(), max_new_tokens=0)
        completion = complete(self.model, self.context.prompt(), options)
        current.spent(completion)
        return replace(completion, text=reply, finish_reason="stop")

    def _generate(self, current: _Turn) -> Generator[Event, None, Completion]:
        """Generate the reply, running tools the model calls; returns the completion."""
        options = self._options()
        calls = 0
        for num_round in range(1, _TOOL_ROUNDS + 1):
            if num_round == _TOOL_ROUNDS or calls >= _TOOL_CALLS:
                options = replace(options, tools=())
            completion = yield from self._stream(current, options)
            current.spent(completion)
            if not completion.tool_calls or not options.tools:
                break
            calls += len(completion.tool_calls)
            if not (yield from self._exchange(current, completion)):
                options = replace(options, tools=())
                calls = _TOOL_CALLS
        return replace(completion, tool_calls=(), finish_reason=_ended(completion))

    def _stream(self, current: _Turn, options: Options) -> Generator[Event, None, Completion]:
        """One generation: its text streams out as tokens; returns the completion."""
        for delta in self.model.generate(self.context.prompt(), options):
            if delta.text:
                current.pieces.append(delta.text)
                yield Token(delta.text)
            if delta.completion is not None:
                return delta.completion
        raise RuntimeError(f"{self.model.name}: `generate` ended without a completion.")

    def _exchange(self, current: _Turn, completion: Completion) -> Generator[Event, None, bool]:
        """Run the model's calls; call and results are one segment.

        The window is reviewed and results are cut so that it fits; False where it cannot fit.
        """
        calls = tuple(
            replace(call, arguments=normalize_text(call.arguments))
            for call in completion.tool_calls[:_TOOL_CALLS]
        )
        results = [normalize_text(run(call, self._functions)) for call in calls]
        longest = 4 * self.budget.message_tokens
        while True:
            segment = _tool_exchange(normalize_text(completion.text), calls, results, longest)
            tokens = self.context.count(segment)
            if longest == 4 * self.budget.message_tokens:
                yield from self._review.run(min(tokens, self._longest_message), current.vector)
            if self._review.must_free(tokens) <= 0:
                break
            if longest < _SHORTEST_RESULT_CHARS:
                return False
            longest //= 2
        with self.memory.archive.write() as transaction:
            segment = transaction.add_segment(self.memory.session.id, current.row.number, segment)
            window = [*self.context.snapshot(), WindowEntry(segment.id, segment.id, "prompt", None)]
            transaction.set_window(self.memory.session.id, window)
        self.context.put(self.memory.segment(segment.id))
        current.pieces.clear()
        return True

    def _commit(self, current: _Turn, completion: Completion) -> Reply:
        """Commit the reply with everything the turn changed, then tell of it."""
        memory, session = self.memory, self.memory.session
        text = normalize_text(completion.text)
        segment = Segment((Message("assistant", text),), origin="assistant", created=time.time())
        window = list(self.context.snapshot())
        parts: tuple[Segment, ...] = ()
        if text:
            tokens = self.context.count(segment)
            memory.said_tokens += tokens
            if self.context.num_tokens + tokens > self.budget.max_tokens:
                segment, parts = self._as_document(segment)
        with memory.archive.write() as transaction:
            if completion.thought:
                # What a model thought explains its reply; it is neither read again nor recalled.
                thought = Segment(
                    (Message("assistant", normalize_text(completion.thought)),),
                    kind="thought",
                    origin="assistant",
                    created=time.time(),
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
            settings = {
                **session.settings,
                "said_tokens": memory.said_tokens,
                "budget": self.budget.max_tokens,
                "tokens_per_estimate": self.context.tokens_per_estimate,
            }
            transaction.set_session_settings(session.id, settings)
            transaction.answer_turn(
                current.row.id, {"text": text, "finish_reason": completion.finish_reason}
            )
        if text:
            self.context.put(memory.segment(segment.id))
        self.usage = measure(
            memory,
            completion,
            peak_tokens=max(current.peak_tokens, self.model.peak_tokens),
            seconds=current.seconds,
        )
        self.model.peak_tokens = 0
        return Reply(current.key, text, completion.finish_reason, self.usage)


def _tool_exchange(
    text: str, calls: Sequence[ToolCall], results: Sequence[str], longest: int
) -> Segment:
    """Calls and results as one segment; results are cut to so many characters."""
    messages = [Message("assistant", text, tuple(calls))]
    for call, result in zip(calls, results, strict=True):
        if len(result) > longest:
            result = f"{result[:longest]}\n[… cut, {len(result):,} characters in all]"
        messages.append(Message("tool", result, tool_call_id=call.id))
    return Segment(
        tuple(messages),
        kind="tool_exchange",
        origin="tool",
        trust=Trust.EXTERNAL,
        created=time.time(),
    )


def _ended(completion: Completion) -> FinishReason:
    """Why a reply ended, where its last calls were not run."""
    return "stop" if completion.finish_reason == "tool_calls" else completion.finish_reason


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
