"""A summary of segments: bounded in tokens, naming what it left out, pointing to its originals.

The model writes it from the originals, which it may have in its cache, a few at a time where they
do not fit together; where it fails, is late, says nothing of theirs or quotes another summary,
sentences of the originals stand in. Either way the summary is shorter than they are by the model's
own count, and says for which terms to search to find the rest.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from agentmem.budget import Budget
from agentmem.errors import BudgetExceeded, InvalidInput, ModelError
from agentmem.models.base import ChatModel, Completion, Options, Part, complete
from agentmem.modes import SummaryMode
from agentmem.prompts import prompt
from agentmem.segment import Message, Segment, lowest_trust
from agentmem.wording.extract import extract, left_out_terms
from agentmem.wording.sentences import is_ended, sentences_of
from agentmem.wording.telling import COMMON, telling_terms

logger = logging.getLogger(__name__)

MARK = "[Summary of earlier messages]"
SUMMARY_TOKENS = 96
"""What a summary may take by default, all that stands around its text included."""
_MIN_TEXT_TOKENS = 8
"""A summary with less room than this says nothing."""
_MAX_TERMS = 6
_WORD = re.compile(r"[^\W_]{4,}")
_OF_REFUSALS = frozenset(
    "cannot conversation conversations happy help here like message messages need please previous"
    " provide provided share sorry summaries summarize summary sure text unable want".split()
)
"""Words a model says that has nothing to summarize: they do not show that it read anything."""

Written = tuple[Segment, str]
"""A summary, and who wrote it: the model's name or "extract"."""


@dataclass(frozen=True, kw_only=True)
class Summarizer:
    """Makes summaries, as many as are asked for together, within one deadline.

    Args:
        model: asked on a fork of its cache.
        part: how an original stands in a prompt.
        max_tokens: of a summary, all that stands around its text included.
        budget_tokens: of any forward.
        seconds: that the model may take for all of them; then sentences stand in.
        asks_model: whether the model writes; else sentences of the originals do.
        monotonic: seconds, for the deadline.
    """

    model: ChatModel
    part: Callable[[Segment], Part]
    max_tokens: int
    budget_tokens: int
    seconds: float
    asks_model: bool = True
    monotonic: Callable[[], float] = time.monotonic

    @classmethod
    def for_budget(
        cls,
        model: ChatModel,
        part: Callable[[Segment], Part],
        budget: Budget,
        *,
        mode: SummaryMode = "auto",
        monotonic: Callable[[], float] = time.monotonic,
    ) -> Summarizer:
        """One whose summaries take at most an eighth of a budget, and no longer than its reviews.

        Args:
            model: as the class has it.
            part: how an original stands in a prompt.
            budget: of the window.
            mode: "model" or "extract" says who writes; "auto" lets the model where it can.
            monotonic: seconds, for the deadline.
        """
        return cls(
            model=model,
            part=part,
            max_tokens=min(SUMMARY_TOKENS, budget.max_tokens // 8),
            budget_tokens=budget.max_tokens,
            seconds=budget.seconds,
            asks_model=mode == "model" or (mode == "auto" and model.capabilities.writes_summaries),
            monotonic=monotonic,
        )

    def __call__(self, groups: Sequence[Sequence[Segment]]) -> list[Written | InvalidInput]:
        """One summary of each group of originals, or why there can be none.

        Args:
            groups: originals, no summary among them: summaries never quote summaries.
        """
        deadline = self.monotonic() + self.seconds
        asking = _Asking(self.model, self.part, self.budget_tokens, deadline, self.monotonic)
        written: list[Written | InvalidInput] = []
        for group in groups:
            try:
                written.append(self._summary(group, asking))
            except InvalidInput as refusal:
                written.append(refusal)
        return written

    def _summary(self, segments: Sequence[Segment], asking: _Asking) -> Written:
        if quoted := [segment.id for segment in segments if segment.kind == "summary"]:
            raise InvalidInput(f"Segments {quoted} are summaries: originals are summarized.")
        num_tokens = sum(map(self._tokens, segments))
        # Half of theirs; of short ones as few as say anything.
        least = self._count("") + _MIN_TEXT_TOKENS
        limit = min(self.max_tokens, max(num_tokens // 2, least))
        if least > self.max_tokens or least >= num_tokens:
            raise InvalidInput(
                f"{num_tokens} tokens are too few to summarize: a summary takes at least {least} "
                f"and at most {self.max_tokens}."
            )
        room = limit - self._count("")
        texts: list[str] = []
        writer = "extract"
        for chunk in asking.chunks(segments, room):
            share = room * sum(map(self._tokens, chunk)) // num_tokens
            text = self._by_model(chunk, share, asking)
            if text:
                writer = self.model.name
            texts.append(text or self._by_extract(_text_of(chunk), share))
        originals = _text_of(segments)
        text = " ".join(filter(None, texts))
        while self._count(text) > limit:
            # Texts together may take more than their shares, by what joins them.
            room -= 1
            text = self._by_extract(text, room)
        return self._segment(segments, self._with_terms(text, originals, limit)), writer

    def _tokens(self, segment: Segment) -> int:
        return self.model.count_tokens(self.part(segment))

    def _count(self, text: str) -> int:
        """Tokens of a summary with this text."""
        return self.model.count_tokens(Part("summary", (_message(text),)))

    def _by_model(self, chunk: Sequence[Segment], share: int, asking: _Asking) -> str:
        """What the model says of the originals, whole sentences within its share; "" if nothing."""
        if not self.asks_model or share < _MIN_TEXT_TOKENS:
            return ""
        completion = asking.ask(chunk, share)
        if completion is None or MARK in completion.text:
            return ""
        text = " ".join(completion.text.split())
        if completion.finish_reason == "length":
            text = _whole_sentences(text)
        frame = self._count("")
        while self._count(text) - frame > share:
            text = _without_last(text)
            if not text:
                return ""
        return text if tells_of(text, _text_of(chunk)) else ""

    def _by_extract(self, text: str, max_tokens: int) -> str:
        frame = self._count("")
        text = text.replace(MARK, "")
        return extract(text, max_tokens=max_tokens, count=lambda one: self._count(one) - frame)

    def _with_terms(self, text: str, originals: str, limit: int) -> str:
        """The text with as many look-up terms as there is room for."""
        left_out = left_out_terms(originals, text)[:_MAX_TERMS]
        for length in range(len(left_out), 0, -1):
            terms = left_out[:length]
            longer = f"{text} (Left out: {', '.join(terms)}.)"
            if self._count(longer) <= limit:
                return longer
        return text

    def _segment(self, segments: Sequence[Segment], text: str) -> Segment:
        return Segment(
            (_message(text),),
            kind="summary",
            origin="summary",
            trust=lowest_trust(segments),
            parents=tuple(segment.id for segment in segments),
        )


@dataclass
class _Asking:
    """The model, for as long as it answers in time.

    Args:
        model: the model.
        part: how an original stands in a prompt.
        budget_tokens: of any forward.
        deadline: on the monotonic clock.
    """

    model: ChatModel
    part: Callable[[Segment], Part]
    budget_tokens: int
    deadline: float
    monotonic: Callable[[], float]
    has_failed: bool = False

    def chunks(self, segments: Sequence[Segment], share: int) -> Iterator[list[Segment]]:
        """The originals in order, as many at a time as fit with the question; at least one."""
        room = self.budget_tokens - self.model.count_tokens(_question(share)) - share
        chunk: list[Segment] = []
        taken = 0
        for segment in segments:
            tokens = self.model.count_tokens(self.part(segment))
            if chunk and taken + tokens > room:
                yield chunk
                chunk, taken = [], 0
            chunk.append(segment)
            taken += tokens
        yield chunk

    def ask(self, segments: Sequence[Segment], max_tokens: int) -> Completion | None:
        """What the model says; None where it fails, is late or the question does not fit."""
        parts = [self.part(segment) for segment in segments]
        parts.append(_question(max_tokens))
        needed = sum(map(self.model.count_tokens, parts)) + max_tokens
        if self.has_failed or needed > self.budget_tokens or self.monotonic() > self.deadline:
            return None
        options = Options(
            max_new_tokens=max_tokens,
            max_tokens=self.budget_tokens,
            repetition_penalty=1.1,
            stop=("\n\n",),
            ephemeral=True,
            cancelled=lambda: self.monotonic() > self.deadline,
        )
        try:
            completion = complete(self.model, parts, options)
        except (ModelError, BudgetExceeded) as error:
            logger.warning("No summary by %s, sentences stand in: %s", self.model.name, error)
            self.has_failed = True
            return None
        return None if completion.finish_reason == "interrupted" else completion


def _question(max_tokens: int) -> Part:
    text = prompt("summarize").format(words=max(6, max_tokens // 2))
    return Part("summarize", (Message("user", text),))


def _message(text: str) -> Message:
    return Message("user", f"{MARK} {text}")


def _text_of(segments: Sequence[Segment]) -> str:
    return "\n".join(segment.text for segment in segments)


def tells_of(text: str, originals: str) -> bool:
    """Whether a text says anything that the originals say.

    A model that was given nothing it understands asks for the conversation, or apologizes.
    """
    return bool(_content(text) & _content(originals))


def _content(text: str) -> set[str]:
    """The words of a text that show what it is about."""
    words = {word.casefold() for word in _WORD.findall(text)} - COMMON - _OF_REFUSALS
    return words | (telling_terms(text).keys() - _OF_REFUSALS)


def _whole_sentences(text: str) -> str:
    """The text without its unfinished last sentence, or all of it where there is only one."""
    return text if is_ended(text) else _without_last(text) or text


def _without_last(text: str) -> str:
    """The text without its last sentence; "" where there is only one."""
    *_, last = sentences_of(text)
    return text[: text.rindex(last)].rstrip()
