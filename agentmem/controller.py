"""The LLM that decides what stays in the window, and the policy that finishes its work.

A review is a ladder. The controller is asked through tools, on a fork of the session's own cache so
that the window is not read again; its calls are checked one by one. If they free too little it is
asked once more for the rest. Whatever is still over the target, and everything when it fails, is
late or answers nonsense, the policy decides. The controller knows candidates, budgets and a model;
applying decisions is not its business.
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
"""Segments a review offers at most."""
_MIN_ROWS = 3
_ANSWER_TOKENS = 96
"""What the answer may take: a few calls with a dozen ids."""


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

    def review(
        self, candidates: Sequence[Candidate], window: Sequence[Part], *, window_tokens: int
    ) -> Verdict:
        """Decide until `budget.target_tokens` is reached or nothing movable is left.

        Args:
            candidates: every segment of the window in order, with its evidence.
            window: the prompt those segments stand in, without the newest message.
            window_tokens: tokens of that prompt.
        """
        started = self.monotonic()
        review = Verdict()
        total = sum(candidate.num_tokens for candidate in candidates)
        need = total - self.budget.target_tokens
        ranked = rank(self.policy, candidates, self.budget)
        if self.model is not None and need > 0:
            deadline = started + self.budget.seconds
            self._ask(review, ranked, window, window_tokens, need, deadline)
        review.decisions += self._finish(candidates, review.decisions)
        review.seconds = self.monotonic() - started
        return review

    def _ask(
        self,
        review: Verdict,
        ranked: Sequence[tuple[Candidate, str]],
        window: Sequence[Part],
        window_tokens: int,
        need: int,
        deadline: float,
    ) -> None:
        """Ask the model, again for the rest while calls, tokens and seconds last."""
        assert self.model is not None
        rounds = max(1, self.budget.controller_calls // 2)
        left = list(ranked)
        freed = 0
        while left and freed < need and review.calls < rounds and self.monotonic() < deadline:
            again = review.calls > 0
            question, offered = self._question(left, need - freed, window_tokens, again)
            if len(offered) < min(_MIN_ROWS, len(left)):
                logger.info("No room for a review: %d tokens in the window.", window_tokens)
                return
            tools = ReviewTools(
                (candidate for candidate, _ in offered),
                alternatives={candidate.id: words for candidate, words in offered},
                maker=self.model.name,
                max_tokens_freed=need - freed,
            )
            try:
                answer = self._answer(tools, [*window, question], again, deadline)
            except (ModelError, BudgetExceeded) as error:
                logger.warning("The controller failed, the policy finishes: %s", error)
                return
            review.calls += 1
            review.raw.append(answer)
            for call in parse_calls(answer):
                tools.call(call)
            review.decisions += tools.decisions
            review.refusals += tools.refusals
            freed += tools.tokens_freed
            decided = {one for decision in tools.decisions for one in decision.segment_ids}
            if not decided:
                return
            left = [row for row in left if row[0].id not in decided]

    def _question(
        self,
        ranked: Sequence[tuple[Candidate, str]],
        need: int,
        window_tokens: int,
        again: bool,
    ) -> tuple[Part, list[tuple[Candidate, str]]]:
        """The review's question with as many rows as fit, and the segments in them."""
        assert self.model is not None
        room = min(self.budget.review_tokens, self.budget.max_tokens - window_tokens)
        text = prompt("review_again" if again else "review")
        offered = list(ranked[:MAX_ROWS])
        while offered:
            rows = "\n".join(row(candidate) for candidate, _ in offered)
            message = Message("user", text.format(need=need, rows=rows))
            question = Part(f"review:{int(again)}", (message,))
            # The assistant's header and a little play beside the question itself.
            if self.model.count_tokens(question) + _ANSWER_TOKENS + 8 <= room:
                break
            offered.pop()
        return question if offered else Part("review", (Message("user", ""),)), offered

    def _answer(
        self, tools: ReviewTools, window: Sequence[Part], again: bool, deadline: float
    ) -> str:
        """The model's calls as JSON text."""
        assert self.model is not None
        functions = tools.functions
        names = [
            name
            for name in functions
            if not again or name in ("drop_segments", "summarize_segments")
        ]
        options = Options(
            max_new_tokens=_ANSWER_TOKENS,
            max_tokens=self.budget.max_tokens,
            ephemeral=True,
            cancelled=lambda: self.monotonic() > deadline,
        )
        if self.model.capabilities.calls_tools and not self.model.capabilities.has_logits:
            described: tuple[Tool, ...] = tuple(describe(functions[name]) for name in names)
            completion = complete(self.model, window, replace(options, tools=described))
            if completion.tool_calls:
                return json.dumps(
                    [
                        {"name": call.name, "arguments": call.arguments}
                        for call in completion.tool_calls
                    ],
                    ensure_ascii=False,
                )
            return completion.text
        schema = tools.schema(names)
        return complete(self.model, window, replace(options, json_schema=schema)).text

    def _finish(
        self, candidates: Sequence[Candidate], decided: Sequence[Decision]
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
        if sum(candidate.num_tokens for candidate in left) <= self.budget.target_tokens:
            return []
        return self.policy.decide(left, self.budget)


def rank(
    policy: SegmentPolicy, candidates: Sequence[Candidate], budget: Budget
) -> list[tuple[Candidate, str]]:
    """Movable candidates in the order the policy would let them go, and what it says of each."""
    everything = replace(budget, free_to=1e-9)
    by_id = {candidate.id: candidate for candidate in candidates}
    return [
        (by_id[one], f"{policy.name} would drop it: {decision.reason}")
        for decision in policy.decide(candidates, everything)
        for one in decision.segment_ids
    ]


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
