"""The LLM that decides what stays in the window, and the policy that finishes its work.

A review is a ladder. The controller is asked through tools, on a fork of the session's own cache so
that what it decides about is not read again; its calls are checked one by one. If they free too
little it is asked again for the rest. Whatever is still over the target, and everything when it
fails, is late or answers nonsense, the policy decides. The controller knows candidates, budgets and
a model; applying decisions is not its business.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from agentmem.budget import Budget
from agentmem.decision import Candidate, Decision
from agentmem.errors import BudgetExceeded, ModelError
from agentmem.models.base import ChatModel, Options, Part, Tool, complete
from agentmem.policies.base import SegmentPolicy
from agentmem.prompts import prompt
from agentmem.segment import Message, ToolCall
from agentmem.tools import Refusal, ReviewTools, describe

logger = logging.getLogger(__name__)

MAX_ROWS = 12
"""Segments a review offers at most to a model that reads them anew."""
MAX_ROWS_KV = 24
"""And to one that has them in its cache."""
_MIN_ROWS = 3
_ANSWER_TOKENS = 160
"""What the answer may take: a few calls with two dozen ids."""


@dataclass(slots=True)
class Verdict:
    """What a review came to: decisions in the order they are to be applied, and its cost."""

    decisions: list[Decision] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    calls: int = 0
    seconds: float = 0.0
    raw: list[str] = field(default_factory=list)
    """What the model answered, verbatim."""


@dataclass(frozen=True, kw_only=True)
class Controller:
    """Decides by asking a model, then a policy.

    Args:
        policy: ranks the candidates, and finishes.
        model: asked through tools; None leaves everything to the policy.
        budget: ceilings of the window and of the review itself.
        monotonic: seconds, for the deadline.
    """

    policy: SegmentPolicy
    budget: Budget
    model: ChatModel | None = None
    monotonic: Callable[[], float] = time.monotonic

    def review(self, candidates: Sequence[Candidate], *, fixed_tokens: int = 0) -> Verdict:
        """Decide until `budget.target_tokens` is reached or nothing movable is left.

        Args:
            candidates: every segment of the window in order, with its evidence.
            fixed_tokens: of what is in the window besides segments.
        """
        started = self.monotonic()
        verdict = Verdict()
        target = max(0, self.budget.target_tokens - fixed_tokens)
        total = sum(candidate.num_tokens for candidate in candidates)
        if self.model is not None and total > target:
            deadline = started + self.budget.seconds
            self._ask(verdict, candidates, total - target, deadline)
        verdict.decisions += self._finish(candidates, verdict.decisions, target)
        verdict.seconds = self.monotonic() - started
        return verdict

    def _ask(
        self, verdict: Verdict, candidates: Sequence[Candidate], need: int, deadline: float
    ) -> None:
        """Ask the model, again for the rest while calls, tokens and seconds last."""
        assert self.model is not None
        left = rank(self.policy, candidates, self.budget)
        freed = 0
        while left and freed < need and verdict.calls < self.budget.controller_calls:
            if self.monotonic() > deadline:
                return
            again = verdict.calls > 0
            prompt_parts, offered = self._question(left, need - freed, again)
            if len(offered) < min(_MIN_ROWS, len(left)):
                logger.info("A budget of %d tokens has no room for a review.", need)
                return
            tools = ReviewTools(
                (candidate for candidate, _ in offered),
                alternatives={candidate.id: words for candidate, words in offered},
                maker=self.model.name,
                max_tokens_freed=need - freed,
            )
            try:
                answer = self._answer(tools, prompt_parts, again, deadline)
            except (ModelError, BudgetExceeded) as error:
                logger.warning("The controller failed, the policy finishes: %s", error)
                return
            verdict.calls += 1
            verdict.raw.append(answer)
            for call in parse_calls(answer):
                tools.call(call)
            verdict.decisions += tools.decisions
            verdict.refusals += tools.refusals
            freed += tools.tokens_freed
            decided = {one for decision in tools.decisions for one in decision.segment_ids}
            if not decided:
                return
            left = [offer for offer in left if offer[0].id not in decided]

    def _question(
        self, ranked: Sequence[tuple[Candidate, str]], need: int, again: bool
    ) -> tuple[list[Part], list[tuple[Candidate, str]]]:
        """The review's prompt with as many segments as fit, and those segments.

        A model with a cache sees them whole, in their order: they cost no forward. Another sees
        their rows only.
        """
        assert self.model is not None
        has_kv = self.model.capabilities.has_kv
        room = self.budget.max_tokens - _ANSWER_TOKENS
        text = prompt("review_again" if again else "review")
        offered = list(ranked[: MAX_ROWS_KV if has_kv else MAX_ROWS])
        # Offering much more than is needed would leave it to chance what goes.
        while len(offered) > _MIN_ROWS and _tokens(offered[:-1]) > 2 * need:
            offered.pop()
        while offered:
            in_order = sorted(offered, key=lambda offer: (offer[0].segment.place, offer[0].id))
            rows = "\n".join(row(candidate) for candidate, _ in in_order)
            message = Message("user", text.format(need=need, rows=rows))
            parts = [Part(f"review:{int(again)}", (message,))]
            if has_kv:
                parts[:0] = [Part(one.id, one.segment.messages) for one, _ in in_order]
            if sum(map(self.model.count_tokens, parts)) <= room:
                return parts, in_order
            offered.pop()
        return [], []

    def _answer(
        self, tools: ReviewTools, parts: Sequence[Part], again: bool, deadline: float
    ) -> str:
        """The model's calls as JSON text."""
        assert self.model is not None
        functions = tools.functions
        names = ["drop_segments"] if again else list(functions)
        options = Options(
            max_new_tokens=_ANSWER_TOKENS,
            max_tokens=self.budget.max_tokens,
            ephemeral=True,
            cancelled=lambda: self.monotonic() > deadline,
        )
        if self.model.capabilities.calls_tools and not self.model.capabilities.has_logits:
            described: tuple[Tool, ...] = tuple(describe(functions[name]) for name in names)
            completion = complete(self.model, parts, replace(options, tools=described))
            if completion.tool_calls:
                return json.dumps(
                    [
                        {"name": call.name, "arguments": call.arguments}
                        for call in completion.tool_calls
                    ],
                    ensure_ascii=False,
                )
            return completion.text
        options = replace(options, json_schema=tools.schema(names), grammar=tools.grammar(names))
        return complete(self.model, parts, options).text

    def _finish(
        self, candidates: Sequence[Candidate], decided: Sequence[Decision], target: int
    ) -> list[Decision]:
        """What the policy adds so that the target is reached."""
        gone = {
            one
            for decision in decided
            if decision.action in ("drop", "summarize")
            for one in decision.segment_ids
        }
        pinned = {
            one
            for decision in decided
            if decision.action in ("pin", "keep")
            for one in decision.segment_ids
        }
        left = [
            replace(candidate, protected="kept") if candidate.id in pinned else candidate
            for candidate in candidates
            if candidate.id not in gone
        ]
        if sum(candidate.num_tokens for candidate in left) <= target:
            return []
        return self.policy.decide(left, self.budget.freeing_to(target))


def rank(
    policy: SegmentPolicy, candidates: Sequence[Candidate], budget: Budget
) -> list[tuple[Candidate, str]]:
    """Movable candidates in the order the policy would let them go, and what it says of each."""
    everything = budget.freeing_to(0)
    by_id = {candidate.id: candidate for candidate in candidates}
    return [
        (by_id[one], f"{policy.name} would drop it: {decision.reason}")
        for decision in policy.decide(candidates, everything)
        for one in decision.segment_ids
    ]


def _tokens(offered: Sequence[tuple[Candidate, str]]) -> int:
    return sum(candidate.num_tokens for candidate, _ in offered)


def row(candidate: Candidate) -> str:
    """One line of a review: id, tokens, age, attention in thousandths, first words."""
    attention = "?" if candidate.attention is None else f"{candidate.attention * 1000:.1f}"
    words = " ".join(candidate.segment.text.split())
    first = words if len(words) <= 28 else words[:27].rstrip() + "…"
    role = candidate.segment.role if candidate.segment.kind != "summary" else "summary"
    return (
        f"{candidate.id} | {candidate.num_tokens} | {candidate.age_turns} | {attention} | "
        f"{role}: {first}"
    )


def parse_calls(text: str) -> list[ToolCall]:
    """Tool calls out of a model's JSON: a list, one object, objects in a row, prose around them.

    What cannot be read is left out: the policy finishes what is missing.
    """
    decoder = json.JSONDecoder()
    calls: list[ToolCall] = []
    at = 0
    while at < len(text):
        at = min((i for i in (text.find("{", at), text.find("[", at)) if i >= 0), default=-1)
        if at < 0:
            break
        try:
            value, at = decoder.raw_decode(text, at)
        except (json.JSONDecodeError, RecursionError):
            at += 1
            continue
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, dict) and isinstance(item.get("name"), str):
                arguments = item.get("arguments", {})
                as_text = arguments if isinstance(arguments, str) else json.dumps(arguments)
                calls.append(ToolCall(f"call{len(calls)}", item["name"], as_text))
    return calls
