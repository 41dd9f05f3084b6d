"""A summary of segments: bounded in length, naming what it left out, pointing to its originals.

The model writes it from the originals, which it has in its cache; where it fails, is empty or too
long, sentences of the originals stand in, those with names, numbers and dates first. Either way the
summary says for which terms to search to find the rest.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence

from agentmem.errors import BudgetExceeded, ModelError
from agentmem.models.base import ChatModel, Options, Part, complete
from agentmem.prompts import prompt
from agentmem.segment import Message, Segment, lowest_trust
from agentmem.telling import TERM, telling, telling_terms

logger = logging.getLogger(__name__)

_SENTENCE = re.compile(r"(?<=[.!?。！？])\s*|\n+")
_MAX_TERMS = 6


def summarize(
    segments: Sequence[Segment],
    model: ChatModel,
    *,
    part: Callable[[Segment], Part],
    max_tokens: int,
    budget_tokens: int,
    created: float,
) -> tuple[Segment, str]:
    """One summary of all the segments, and who wrote it: the model's name or "extract".

    Args:
        segments: the originals, no summary among them: summaries never quote summaries.
        model: asked on a fork of its cache; the originals are not read again.
        part: how an original stands in a prompt.
        max_tokens: of the summary.
        budget_tokens: of any forward.
        created: seconds since the epoch.
    """
    text, writer = "", model.name
    parts = [part(segment) for segment in segments]
    question = Part(
        "summarize", (Message("user", prompt("summarize").format(words=max_tokens // 2)),)
    )
    room = budget_tokens - sum(map(model.count_tokens, [*parts, question]))
    if room > max_tokens:
        options = Options(
            max_new_tokens=max_tokens,
            max_tokens=budget_tokens,
            repetition_penalty=1.1,
            stop=("\n\n",),
            ephemeral=True,
        )
        try:
            completion = complete(model, [*parts, question], options)
        except (ModelError, BudgetExceeded) as error:
            logger.warning("No summary by %s, sentences stand in: %s", model.name, error)
        else:
            text = completion.text.strip()
            if completion.finish_reason == "length":
                text = _whole_sentences(text)
    originals = "\n".join(segment.text for segment in segments)
    if not text or len(text) >= len(originals):
        text, writer = extract(originals, max_chars=3 * max_tokens), "extract"
    return _segment(segments, text, originals, created), writer


def _segment(segments: Sequence[Segment], text: str, originals: str, created: float) -> Segment:
    left_out = left_out_terms(originals, text)
    look_up = f" (Left out: {', '.join(left_out)}.)" if left_out else ""
    return Segment(
        (Message("user", f"[Summary of earlier messages] {text}{look_up}"),),
        kind="summary",
        origin="summary",
        trust=lowest_trust(segments),
        created=created,
        parents=tuple(segment.id for segment in segments),
    )


def extract(text: str, *, max_chars: int) -> str:
    """Sentences of the text in their order, the telling ones first to be taken, within a length."""
    sentences = [sentence.strip() for sentence in _SENTENCE.split(text) if sentence.strip()]
    ranked = sorted(range(len(sentences)), key=lambda i: (-telling(sentences[i]), i))
    taken: list[int] = []
    length = 0
    for i in ranked:
        if length + len(sentences[i]) + 1 <= max_chars:
            taken.append(i)
            length += len(sentences[i]) + 1
    if not taken:
        return text[:max_chars].rstrip()
    return " ".join(sentences[i] for i in sorted(taken))


def left_out_terms(originals: str, summary: str) -> list[str]:
    """Names, numbers and long words of the originals that the summary lacks, most telling first."""
    said = {term.casefold() for term in TERM.findall(summary)}
    left_out = [term for term in telling_terms(originals) if term.casefold() not in said]
    return left_out[:_MAX_TERMS]


def _whole_sentences(text: str) -> str:
    """The text without its unfinished last sentence, or all of it where there is only one."""
    ends = [match.end() for match in re.finditer(r"[.!?。！？]", text)]
    return text[: ends[-1]] if ends else text
