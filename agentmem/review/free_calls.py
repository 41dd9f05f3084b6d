"""Asking a model to free the window by tool calls: what it is shown, and what it answered.

A model with a cache is asked on a fork of it and sees the segments whole; another sees one row
each. Calls are checked one by one. An answer of which nothing can be used comes back to the model
once, with what was wrong. If too little is freed it is asked again for the rest. Whatever it leaves
undone is the caller's.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from agentmem.budget import Budget
from agentmem.decision import Candidate
from agentmem.errors import BudgetExceeded, ModelError
from agentmem.models.base import ChatModel, Options, Part, complete
from agentmem.prompts import prompt
from agentmem.review.calls import read_calls
from agentmem.review.quoted_row import quoted_row
from agentmem.review.returning import Returnable
from agentmem.review.tools import BRING_BACK, REVIEW_TOOLS, ReviewTools
from agentmem.review.verdict import Verdict
from agentmem.segment import PRECISIONS, Message, Precision

logger = logging.getLogger(__name__)

MAX_ROWS = 12
"""Segments a review offers at most to a model that reads them anew."""
MAX_ROWS_KV = 24
"""And to one that has them in its cache."""
_MIN_ROWS = 3
_ROWS_FOR_ONE_OUTSIDE = 3
"""Rows of the window that stand beside each row of what is outside, at least."""
_ANSWER_TOKENS = 160
"""What the answer may take at most: a few calls with two dozen ids."""
_CALLS_TOKENS = 56
"""Of it, what two calls take without their ids."""
_MAX_COMPLAINT_CHARS = 300

Offer = tuple[Candidate, str]
"""A segment on offer, and what the policy says of it."""


@dataclass(frozen=True, kw_only=True)
class FreeCalls:
    """One model's free decisions.

    Args:
        model: asked through tools.
        budget: ceilings of the window and of the review itself.
        monotonic: seconds, for the deadline.
    """

    model: ChatModel
    budget: Budget
    monotonic: Callable[[], float] = time.monotonic

    def ask(
        self,
        verdict: Verdict,
        offers: Sequence[Offer],
        num_tokens: int,
        deadline: float,
        back: Returnable = Returnable(),  # noqa: B008, frozen
    ) -> None:
        """Add the model's decisions to the verdict, until so many tokens are freed.

        Args:
            verdict: added to.
            offers: in the order the policy would let them go.
            num_tokens: to be freed.
            deadline: on the monotonic clock.
            back: what it may bring back, in its first answer; as much more is to be freed then.
        """
        left = list(offers)
        need = num_tokens
        complaint = ""
        while left and need > 0 and verdict.calls < self.budget.controller_calls:
            if self.monotonic() > deadline:
                return
            only_drops = bool(verdict.decisions or verdict.returns)
            if only_drops:
                back = Returnable()
            parts, offered, outside = self._question(left, need, only_drops, complaint, back)
            if len(offered) < min(_MIN_ROWS, len(left)):
                logger.info(
                    "A budget of %d tokens has no room for a review.", self.budget.max_tokens
                )
                return
            tools = ReviewTools(
                (candidate for candidate, _ in offered),
                alternatives={candidate.id: words for candidate, words in offered},
                maker=self.model.name,
                max_tokens_freed=need,
                precisions=self._precisions,
                outside=outside,
                max_tokens_returned=back.max_tokens,
            )
            verdict.outside = verdict.outside or outside
            try:
                answer = self._answer(tools, parts, only_drops, deadline)
            except (ModelError, BudgetExceeded) as error:
                logger.warning("The controller failed, the policy finishes: %s", error)
                return
            results = [tools.call(call) for call in read_calls(answer)]
            verdict.take(answer, tools)
            need += tools.tokens_returned - tools.tokens_freed
            decided = {one for decision in tools.decisions for one in decision.segment_ids}
            if not decided and not tools.returns:
                if complaint:
                    return
                complaint = _complaint(results, tools)
                continue
            left = [offer for offer in left if offer[0].id not in decided]

    def _question(
        self,
        ranked: Sequence[Offer],
        need: int,
        only_drops: bool,
        complaint: str,
        back: Returnable,
    ) -> tuple[list[Part], list[Offer], tuple[Candidate, ...]]:
        """The review's prompt with as many segments as fit, those, and those outside the window."""
        has_kv = self.model.capabilities.has_kv
        text = prompt("review_again" if only_drops else "review")
        keeping = f" {prompt('review_precision')}" if self._precisions else ""
        offered = list(ranked[: MAX_ROWS_KV if has_kv else MAX_ROWS])
        # Offering much more than is needed would leave it to chance what goes.
        while len(offered) > _MIN_ROWS and _tokens(offered[:-1]) > 2 * need:
            offered.pop()
        above_line = self.budget.max_tokens - self.budget.warn_tokens
        tools_tokens = [
            self._tools_tokens(only_drops, back.candidates[:num_outside])
            for num_outside in range(len(back.candidates) + 1)
        ]
        for num_offered, num_outside in _numbers(len(offered), len(back.candidates)):
            outside = back.candidates[:num_outside]
            in_order = sorted(
                offered[:num_offered], key=lambda offer: (offer[0].segment.place, offer[0].id)
            )
            asked = complaint + text.format(
                need=need,
                rows="\n".join(quoted_row(candidate) for candidate, _ in in_order),
                keeping=keeping,
                outside=_returning(outside, back.max_tokens),
            )
            key = f"review:{int(only_drops)}{'!' if complaint else ''}"
            parts = [Part(key, (Message("user", asked),))]
            spent = tools_tokens[num_outside] + self._answer_tokens(
                [one.id for one, _ in in_order], [one.id for one in outside]
            )
            if outside and spent + self.model.count_tokens(parts[0]) > above_line:
                continue
            if has_kv:
                # They are in its cache: showing them costs no forward.
                parts[:0] = [Part(one.id, one.segment.messages) for one, _ in in_order]
            if sum(map(self.model.count_tokens, parts)) <= self.budget.max_tokens - spent:
                return parts, in_order, outside
        return [], [], ()

    @property
    def _precisions(self) -> tuple[Precision, ...]:
        """At which segments may be kept."""
        return PRECISIONS if self.model.capabilities.has_kv else ()

    @property
    def _calls_tools(self) -> bool:
        """Whether it is given tools; a model whose logits we hold gets a grammar instead."""
        can = self.model.capabilities
        return can.calls_tools and not can.has_logits

    def _answer_tokens(self, offered: Collection[int], outside: Collection[int]) -> int:
        """What an answer may take that names segments of the window and outside it.

        What is outside leaves little room, and a grammar keeps answers lean: then it is what names
        each once. A digit takes a token with most tokenizers, and so does what parts two ids.
        """
        if self._calls_tools or not outside:
            return _ANSWER_TOKENS
        named = sum(len(str(one)) + 1 for one in (*offered, *outside))
        return min(_ANSWER_TOKENS, _CALLS_TOKENS + named)

    def _tools_tokens(self, only_drops: bool, outside: Sequence[Candidate]) -> int:
        if not self._calls_tools:
            return 0
        none = ReviewTools(
            (),
            alternatives={},
            maker="",
            max_tokens_freed=0,
            precisions=self._precisions,
            outside=outside,
        )
        return self.model.count_tools(none.described(_names(only_drops, outside)))

    def _answer(
        self, tools: ReviewTools, parts: Sequence[Part], only_drops: bool, deadline: float
    ) -> str:
        """The model's calls as JSON text."""
        names = _names(only_drops, tools.outside)
        options = Options(
            max_new_tokens=self._answer_tokens(tools.offered, tools.outside),
            max_tokens=self.budget.max_tokens,
            ephemeral=True,
            cancelled=lambda: self.monotonic() > deadline,
        )
        if self._calls_tools:
            described = tools.described(names)
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


def _numbers(num_offered: int, num_outside: int) -> Iterator[tuple[int, int]]:
    """How many rows of the window and of what is outside to try, the most telling first.

    Rows of the window make room for those outside, but never all of them; where not one of those
    outside fits, the window has all the room.
    """
    for outside in range(num_outside, 0, -1):
        least = min(num_offered, _ROWS_FOR_ONE_OUTSIDE * outside)
        yield from ((offered, outside) for offered in range(num_offered, least - 1, -1) if offered)
    yield from ((offered, 0) for offered in range(num_offered, 0, -1))


def _names(only_drops: bool, outside: Collection[object]) -> list[str]:
    if only_drops:
        return ["drop_segments"]
    return [*REVIEW_TOOLS, BRING_BACK] if outside else list(REVIEW_TOOLS)


def _returning(outside: Sequence[Candidate], room: int) -> str:
    """The rows of what may be brought back; empty where there is nothing."""
    if not outside:
        return ""
    rows = "\n".join(map(quoted_row, outside))
    return "\n" + prompt("review_outside").format(room=room, rows=rows)


def _complaint(results: Sequence[str], tools: ReviewTools) -> str:
    """What was wrong with an answer of which nothing could be used, for the model to read."""
    wrong = [result for result in results if result != "ok"]
    wrong += [f"{refusal.action}: {refusal.reason}" for refusal in tools.refusals]
    problem = " ".join(dict.fromkeys(wrong)) or "it held no tool call"
    return prompt("review_wrong").format(problem=problem[:_MAX_COMPLAINT_CHARS]) + "\n"


def _tokens(offered: Sequence[Offer]) -> int:
    return sum(candidate.num_tokens for candidate, _ in offered)
