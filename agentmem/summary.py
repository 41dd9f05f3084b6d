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

logger = logging.getLogger(__name__)

_SENTENCE = re.compile(r"(?<=[.!?。！？])\s*|\n+")
_TERM = re.compile(r"[^\W_][\w'’-]*", re.UNICODE)
_MAX_TERMS = 6
_COMMON = frozenset(
    "a an and are as at be but by can could did do does for from had has have he her his how i i'm"
    " if in is it it's its like me my no not of on or our she so some that that's the their them"
    " then there they this to too up very was we were what when where which who will with would yes"
    " you your".split()
)


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
    ranked = sorted(range(len(sentences)), key=lambda i: (-_telling(sentences[i]), i))
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
    said = {term.casefold() for term in _TERM.findall(summary)}
    terms: dict[str, tuple[int, int]] = {}
    for position, match in enumerate(_TERM.finditer(originals)):
        term = match.group()
        folded = term.casefold()
        number = any(c.isdigit() for c in term)
        if folded in said or folded in _COMMON or len(term) < (2 if number else 3):
            continue
        inside = match.start() > 0 and originals[match.start() - 1] == " "
        weight = 3 * number + 2 * (term[0].isupper() and inside)
        if weight or len(term) > 6:
            terms.setdefault(folded, (-weight, position))
    originals_by_fold = {term.casefold(): term for term in reversed(_TERM.findall(originals))}
    return [originals_by_fold[term] for term in sorted(terms, key=terms.__getitem__)[:_MAX_TERMS]]


def _telling(sentence: str) -> float:
    """How much a sentence says that cannot be guessed: numbers, names, few common words."""
    terms = _TERM.findall(sentence)
    if not terms:
        return 0.0
    numbers = sum(any(c.isdigit() for c in term) for term in terms)
    names = sum(term[0].isupper() for term in terms[1:])
    rare = sum(term.casefold() not in _COMMON for term in terms)
    return float(5 * numbers + 2 * names + rare / len(terms))


def _whole_sentences(text: str) -> str:
    """The text without its unfinished last sentence, or all of it where there is only one."""
    ends = [match.end() for match in re.finditer(r"[.!?。！？]", text)]
    return text[: ends[-1]] if ends else text
