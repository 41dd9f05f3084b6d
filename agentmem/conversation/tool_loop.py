"""A reply in which the model may call tools: generate, run the calls, generate again.

It ends: rounds, calls, generated tokens and seconds are limited, a call repeated with the same
result or a row of invalid ones breaks it off, and then the model is asked for its answer without
tools. Call and results are one segment, cut to fit the window and stored whole. What the tools do
is theirs.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentmem.conversation.exchange import Exchange
from agentmem.conversation.turn import Turn
from agentmem.events import Event, Token
from agentmem.memory import Memory
from agentmem.memory_tools import MemoryTools
from agentmem.models.base import ChatModel, Completion, FinishReason, Options
from agentmem.review.review import Review
from agentmem.segment import ToolCall
from agentmem.storage.rows import WindowEntry
from agentmem.storage.text import normalize_text
from agentmem.tools import Result, run

_SHORTEST_RESULT_CHARS = 32


@dataclass(frozen=True, kw_only=True)
class ToolLimits:
    """When the tools of a turn are taken away, so that it ends with an answer.

    Args:
        rounds: generations of a turn, the answer included.
        calls: calls that are run.
        tokens: tokens generated before the answer.
        seconds: since the reply was begun; a tool that runs is not broken off.
        repeats: the same call with the same result so often.
        invalid: so many invalid calls in a row.
    """

    rounds: int = 8
    calls: int = 32
    tokens: int = 4096
    seconds: float = 300.0
    repeats: int = 3
    invalid: int = 3


@dataclass(slots=True)
class _Spent:
    """What the calls of a turn have used up."""

    deadline: float
    rounds: int = 0
    calls: int = 0
    tokens: int = 0
    invalid: int = 0
    same: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    def count(self, calls: Sequence[ToolCall], results: Sequence[Result]) -> None:
        """Count calls that were run."""
        for call, result in zip(calls, results, strict=True):
            self.calls += 1
            self.invalid = 0 if result.valid else self.invalid + 1
            self.same[call.name, _canonical(call.arguments), result.text] += 1

    def why_over(self, limits: ToolLimits, now: float) -> str:
        """Why there are no more tools, in words; empty while there are."""
        if self.same and max(self.same.values()) >= limits.repeats:
            return f"the same call gave the same result {limits.repeats} times"
        if self.invalid >= limits.invalid:
            return f"{limits.invalid} calls in a row were invalid"
        if self.rounds >= limits.rounds - 1:
            return f"{self.rounds} rounds of calls are enough"
        if self.calls >= limits.calls:
            return f"{limits.calls} calls are enough"
        if self.tokens >= limits.tokens:
            return f"{self.tokens} tokens were generated"
        if now >= self.deadline:
            return f"{limits.seconds:g} seconds have passed"
        return ""


class ToolLoop:
    """Answers turns, running the tools that the model calls.

    Args:
        memory: with the window.
        model: answers.
        review: keeps the window within its budget as results enter it.
        functions: the tools by name.
        memory_tools: those among them that act on memory; what they quote is noted.
        limits: when it ends.
        monotonic: seconds, for the deadline.
    """

    def __init__(
        self,
        memory: Memory,
        model: ChatModel,
        review: Review,
        functions: Mapping[str, Callable[..., Any]],
        *,
        memory_tools: MemoryTools | None = None,
        limits: ToolLimits = ToolLimits(),  # noqa: B008, frozen
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._memory = memory
        self._model = model
        self._review = review
        self._functions = functions
        self._memory_tools = memory_tools
        self._limits = limits
        self._monotonic = monotonic

    def answer(self, turn: Turn, options: Options) -> Generator[Event, None, Completion]:
        """Generate until the model answers in words; returns the completion, without calls."""
        # Nothing is looked at in vain: each look at the clock is on record.
        spent = _Spent(self._monotonic() + self._limits.seconds if options.tools else 0.0)
        over = ""
        while True:
            if over:
                options = replace(options, tools=())
            completion = yield from self._generate(turn, options)
            spent.tokens += completion.completion_tokens
            if not completion.tool_calls or not options.tools:
                break
            calls = tuple(map(_normal, completion.tool_calls[: self._limits.calls - spent.calls]))
            results = [self._run(call) for call in calls]
            spent.rounds += 1
            spent.count(calls, results)
            over = spent.why_over(self._limits, self._monotonic())
            note = f"\n[No more tools: {over}. Answer in words now.]" if over else ""
            own = self._memory_tools
            said = Exchange(
                text=normalize_text(completion.text),
                calls=calls,
                results=results,
                note=note,
                quoted=own.take_quoted() if own is not None else (),
                part_tokens=self._memory.context.budget.part_tokens,
                count=self._memory.context.count,
            )
            if not (yield from self._enter(turn, said, may_wait=not over)):
                over = over or "the window has no room for the results"
        if over and not completion.text.strip() and completion.finish_reason != "interrupted":
            text = f"I found no answer: {over}."
            yield Token(text)
            completion = replace(completion, text=text)
        return replace(completion, tool_calls=(), finish_reason=_ended(completion))

    def _generate(self, turn: Turn, options: Options) -> Generator[Event, None, Completion]:
        """One generation: its text streams out as tokens; returns the completion."""
        for delta in self._model.generate(self._memory.context.prompt(), options):
            if delta.text:
                turn.pieces.append(delta.text)
                yield Token(delta.text)
            if delta.completion is not None:
                turn.spent(delta.completion)
                return delta.completion
        raise RuntimeError(f"{self._model.name}: `generate` ended without a completion.")

    def _run(self, call: ToolCall) -> Result:
        result = run(call, self._functions)
        return replace(result, text=normalize_text(result.text))

    def _enter(self, turn: Turn, said: Exchange, *, may_wait: bool) -> Generator[Event, None, bool]:
        """Store calls and results whole, and put them into the window where they fit.

        The window is reviewed and results are cut there so that they fit; False where they cannot.

        Args:
            may_wait: the model may call tools once more: a review may wait for that.
        """
        context, memory = self._memory.context, self._memory
        memory.forgetting.follow()
        own = self._memory_tools
        # What recalls what was said before is not what was said: it is never found again.
        searchable = own is None or not own.names.issuperset(call.name for call in said.calls)
        longest = most = 4 * context.budget.message_tokens
        document = said.cut_to(longest)
        tokens = context.count(document.stub)
        yield from self._review.run(
            min(tokens, context.longest_message),
            turn.vector,
            text=turn.row.text,
            may_wait=may_wait and tokens <= context.longest_message,
        )
        while not (fits := self._review.must_free(context.count(document.stub)) <= 0):
            if longest < _SHORTEST_RESULT_CHARS:
                document = said.cut_to(most)
                break
            longest //= 2
            document = said.cut_to(longest)
        session_id, number = memory.session.id, turn.row.number
        with memory.archive.write() as transaction:
            segment = transaction.add_segment(
                session_id,
                number,
                document.stub,
                searchable=searchable,
                state="live" if fits else "archived",
            )
            for part in document.parts:
                transaction.add_segment(
                    session_id,
                    number,
                    replace(part, parents=(segment.id,)),
                    searchable=searchable,
                    state="archived",
                )
            if fits:
                entry = WindowEntry(segment.id, segment.id, "prompt", None)
                transaction.set_window(session_id, [*context.snapshot(), entry])
        if fits:
            context.put(memory.segment(segment.id))
        turn.pieces.clear()
        return fits


def _normal(call: ToolCall) -> ToolCall:
    """The call as the store keeps it."""
    return ToolCall(*map(normalize_text, (call.id, call.name, call.arguments)))


def _canonical(arguments: str) -> str:
    """Arguments so that two spellings of the same are the same."""
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments


def _ended(completion: Completion) -> FinishReason:
    """Why a reply ended, where its last calls were not run."""
    return "stop" if completion.finish_reason == "tool_calls" else completion.finish_reason
