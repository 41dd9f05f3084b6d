"""The tools with which a controller acts on the window.

A call is checked, turned into a `Decision` and answered in words that the model can use. Nothing is
carried out here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentmem.decision import Action, Candidate, Decision
from agentmem.errors import InvalidInput
from agentmem.models.base import Tool
from agentmem.segment import Precision, ToolCall, Trust
from agentmem.tools import describe, run

REVIEW_TOOLS = ("drop_segments", "summarize_segments", "keep_segments", "pin_segment")
"""What a controller may call in a review."""
BRING_BACK = "bring_back_segments"
"""And where something outside the window is on offer too."""
MIN_SUMMARY_TOKENS = 64
"""Segments that take less together are not worth a summary of their own."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A call that did not become a decision, and why."""

    action: Action
    segment_ids: tuple[int, ...]
    reason: str
    tool_call: Mapping[str, Any]


class ReviewTools:
    """The controller's tools over the segments on offer.

    Args:
        offered: the segments it may decide on, by id.
        alternatives: per segment, what the policy would have done, in words.
        maker: name of the model that calls.
        max_tokens_freed: once so many tokens are freed, the rest may only be kept or pinned.
        precisions: at which segments may be kept; none where the model keeps no KV of them.
        outside: segments outside the window that may be brought back.
        max_tokens_returned: of what is brought back, so that the review still reaches its target.
    """

    def __init__(
        self,
        offered: Iterable[Candidate],
        *,
        alternatives: Mapping[int, str],
        maker: str,
        max_tokens_freed: int,
        precisions: Sequence[Precision] = (),
        outside: Iterable[Candidate] = (),
        max_tokens_returned: int = 0,
    ) -> None:
        self.offered = {candidate.id: candidate for candidate in offered}
        self.decisions: list[Decision] = []
        self.refusals: list[Refusal] = []
        self.tokens_freed = 0
        self.outside = {candidate.id: candidate for candidate in outside}
        self._may_return = bool(self.outside)
        self.returns: list[Decision] = []
        self.tokens_returned = 0
        self._max_tokens_returned = max_tokens_returned
        self._alternatives = alternatives
        self._maker = maker
        self._max_tokens_freed = max_tokens_freed
        self._precisions = precisions
        self._call: Mapping[str, Any] = {}

    def keep_segments(self, segment_ids: list[int], precision: Precision | None = None) -> str:
        """Keep segments that are needed in the next turns.

        Args:
            segment_ids: Ids of the segments to keep.
            precision: How they are stored from now on, where not as before.
        """
        if precision is not None and precision not in self._precisions:
            allowed = f"one of {', '.join(self._precisions)}" if self._precisions else "left out"
            raise InvalidInput(f"`precision` must be {allowed}: got {precision!r:.40}.")
        reason = "The controller expects to need it soon."
        return self._decide("keep", segment_ids, reason, precision)

    def summarize_segments(self, segment_ids: list[int]) -> str:
        """Replace segments by one short summary.

        Args:
            segment_ids: Ids of the segments to summarize together.
        """
        return self._decide("summarize", segment_ids, "The controller wants its gist only.")

    def drop_segments(self, segment_ids: list[int]) -> str:
        """Take segments out of the window; they stay searchable.

        Args:
            segment_ids: Ids of the segments to drop.
        """
        return self._decide("drop", segment_ids, "The controller does not need it in view.")

    def pin_segment(self, segment_id: int) -> str:
        """Pin a rule or preference that must always stay in the window.

        Args:
            segment_id: Id of the segment to pin.
        """
        return self._decide("pin", [segment_id], "The controller wants it always in view.")

    def bring_back_segments(self, segment_ids: list[int]) -> str:
        """Bring segments that are needed again back into view; others must leave for them.

        Args:
            segment_ids: Ids of segments that are out of view.
        """
        unknown = []
        for one in _ids(segment_ids):
            candidate = self.outside.get(one)
            room = self._max_tokens_returned - self.tokens_returned
            if candidate is None:
                unknown.append(one)
            elif candidate.num_tokens > room:
                self._refuse(
                    "bring_back",
                    [one],
                    f"its {candidate.num_tokens} tokens do not fit: {room} may still come back",
                )
            else:
                self.tokens_returned += candidate.num_tokens
                del self.outside[one]
                self.returns.append(self._return(candidate))
        if unknown:
            self._refuse("bring_back", unknown, "not on offer")
            return f"Error: not on offer: {unknown}; out of view are {list(self.outside)}."
        return "ok"

    def _return(self, candidate: Candidate) -> Decision:
        return Decision(
            "bring_back",
            (candidate.id,),
            "controller",
            reason="The controller expects to need it again.",
            maker=self._maker,
            evidence={candidate.id: candidate.evidence()},
            alternative="without it, recall alone would have brought it back for a few turns",
            tool_call=self._call,
        )

    @property
    def functions(self) -> dict[str, Callable[..., str]]:
        """The tools by name."""
        names = (*REVIEW_TOOLS, BRING_BACK) if self._may_return else REVIEW_TOOLS
        return {name: getattr(self, name) for name in names}

    def described(self, names: Sequence[str]) -> tuple[Tool, ...]:
        """The named tools as a model sees them."""
        tools = [describe(self.functions[name]) for name in names]
        return tuple(tools if self._precisions else map(_without_precision, tools))

    def schema(self, names: Sequence[str]) -> dict[str, Any]:
        """JSON Schema of a list of calls to the named tools, over the segments still undecided."""
        calls = []
        for name in names:
            ids = list(self.outside if name == BRING_BACK else self.offered)
            if name == "pin_segment":
                arguments: dict[str, Any] = {"segment_id": {"enum": ids}}
            else:
                listed = {"type": "array", "items": {"enum": ids}, "maxItems": len(ids)}
                arguments = {"segment_ids": {**listed, "minItems": 1}}
            required = list(arguments)
            if name == "keep_segments" and self._precisions:
                arguments["precision"] = {"enum": list(self._precisions)}
            calls.append(
                {
                    "type": "object",
                    "properties": {
                        "name": {"const": name},
                        "arguments": {
                            "type": "object",
                            "properties": arguments,
                            "required": required,
                            "additionalProperties": False,
                        },
                    },
                    "required": ["name", "arguments"],
                    "additionalProperties": False,
                }
            )
        return {"type": "array", "items": {"anyOf": calls}, "minItems": 1, "maxItems": 4}

    def grammar(self, names: Sequence[str]) -> str:
        """Lark grammar of the same, in which no tool and no segment of a list comes twice.

        A list's ids ascend: a small model would else repeat itself until its tokens are spent.
        """
        ids, outside = sorted(self.offered), sorted(self.outside)
        calls = [f"c{i}: {_call_rule(name, self._precisions)}" for i, name in enumerate(names)]
        starts = [
            f"c{i}" + "".join(f' ("," c{j})?' for j in range(i + 1, len(names)))
            for i in range(len(names))
        ]
        return "\n".join(
            [
                f'start: "[" ({" | ".join(starts)}) "]"',
                *calls,
                *_list_rules("list", "s", ids),
                *(_list_rules("back", "b", outside) if BRING_BACK in names else ()),
                f"one: {' | '.join(json.dumps(str(one)) for one in ids)}",
            ]
        )

    def call(self, call: ToolCall) -> str:
        """Run one call of the model and remember it as the decisions' origin."""
        try:
            arguments = call.parsed()
        except ValueError as error:
            return f"Error: {error}"
        self._call = {"name": call.name, "arguments": arguments}
        return run(call, self.functions).text

    def _decide(
        self,
        action: Action,
        segment_ids: object,
        reason: str,
        precision: Precision | None = None,
    ) -> str:
        ids = _ids(segment_ids)
        unknown = [one for one in ids if one not in self.offered]
        chosen = [self.offered[one] for one in ids if one in self.offered]
        if action == "summarize":
            again = [candidate for candidate in chosen if candidate.segment.kind == "summary"]
            self._refuse(action, [candidate.id for candidate in again], "already a summary")
            chosen = [candidate for candidate in chosen if candidate not in again]
            tokens = sum(candidate.num_tokens for candidate in chosen)
            if tokens < MIN_SUMMARY_TOKENS:
                short = [candidate.id for candidate in chosen]
                self._refuse(action, short, f"{tokens} tokens are too few to summarize")
                chosen = []
        if action == "pin":
            external = [one for one in chosen if one.segment.trust < Trust.USER]
            ids_of_them = [candidate.id for candidate in external]
            self._refuse(action, ids_of_them, "below user trust: only the user may pin it")
            chosen = [candidate for candidate in chosen if candidate not in external]
        if unknown:
            self._refuse(action, unknown, "not on offer")
        if action in ("drop", "summarize"):
            allowed: list[Candidate] = []
            for candidate in chosen:
                if self.tokens_freed >= self._max_tokens_freed:
                    self._refuse(action, [candidate.id], "enough tokens are freed already")
                else:
                    self.tokens_freed += candidate.num_tokens
                    allowed.append(candidate)
            chosen = allowed
        groups = [chosen] if action == "summarize" else [[candidate] for candidate in chosen]
        for group in filter(None, groups):
            self.decisions.append(
                Decision(
                    action,
                    tuple(candidate.id for candidate in group),
                    "controller",
                    reason=reason,
                    maker=self._maker,
                    evidence={candidate.id: candidate.evidence() for candidate in group},
                    alternative="; ".join(
                        self._alternatives.get(candidate.id, "the policy would have kept it")
                        for candidate in group
                    ),
                    tool_call=self._call,
                    precision=precision,
                )
            )
        for candidate in chosen:
            del self.offered[candidate.id]
        if unknown:
            return f"Error: not on offer: {unknown}; on offer: {list(self.offered)}."
        return "ok"

    def _refuse(self, action: Action, ids: Sequence[int], reason: str) -> None:
        if ids:
            self.refusals.append(Refusal(action, tuple(ids), reason, self._call))


def _list_rules(name: str, prefix: str, ids: Sequence[int]) -> list[str]:
    """A rule for ids that ascend."""
    return [
        f"{name}: {' | '.join(f'{prefix}{i}' for i in range(len(ids)))}",
        *(
            f"{prefix}{i}: {json.dumps(str(one))}" + (f' ("," ({after}))?' if after else "")
            for i, one in enumerate(ids)
            for after in [" | ".join(f"{prefix}{j}" for j in range(i + 1, len(ids)))]
        ),
    ]


def _without_precision(tool: Tool) -> Tool:
    shown = {
        name: schema
        for name, schema in tool.parameters.get("properties", {}).items()
        if name != "precision"
    }
    return replace(tool, parameters={**tool.parameters, "properties": shown})


def _call_rule(name: str, precisions: Sequence[Precision]) -> str:
    if name == "pin_segment":
        before, ids, after = f'{{"name":"{name}","arguments":{{"segment_id":', "one", "}}"
    else:
        before, ids, after = f'{{"name":"{name}","arguments":{{"segment_ids":[', "list", "]}}"
        ids = "back" if name == BRING_BACK else ids
    if name == "keep_segments" and precisions:
        comma, end = json.dumps(',"precision":'), json.dumps("}}")
        choice = " | ".join(json.dumps(json.dumps(one)) for one in precisions)
        return f'{json.dumps(before)} {ids} "]" ({comma} ({choice}))? {end}'
    return f"{json.dumps(before)} {ids} {json.dumps(after)}"


def _ids(value: object) -> list[int]:
    """Distinct integers in the order given.

    Raises:
        InvalidInput: it is not a list of integers.
    """
    if not isinstance(value, list) or not all(type(one) is int for one in value):
        raise InvalidInput(f"`segment_ids` must be a list of integers: got {value!r:.80}.")
    return list(dict.fromkeys(value))
