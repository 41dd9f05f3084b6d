"""Stretches of a conversation: consecutive turns that state facts, as a summary would replace them.

It knows nothing of summaries or models: tokens are counted by a function that is passed in.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentmem.bench.attributes import ATTRIBUTES, WORDINGS
from agentmem.bench.conversation import Conversation, Fact, Turn
from agentmem.segment import Message

STRETCH_TOKENS = 300
"""About what a stretch takes: within half of it."""

_KINDS = {attribute.noun: attribute.kind for attribute in ATTRIBUTES}


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive turns and the facts that are stated in them.

    Args:
        first: the number of its first turn.
        turns: at least one.
        facts: at least one.
        questions: one a fact, None for a fact that nobody asks for.
    """

    first: int
    turns: tuple[Turn, ...]
    facts: tuple[Fact, ...]
    questions: tuple[str | None, ...]

    @property
    def messages(self) -> tuple[Message, ...]:
        """All that was said, in order."""
        said = [
            message
            for turn in self.turns
            for message in (Message("user", turn.user), Message("assistant", turn.reply or ""))
        ]
        return tuple(message for message in said if message.content)


def cut(conversation: Conversation, count_tokens: Callable[[str], int]) -> list[Stretch]:
    """All stretches of a conversation, one after another, each as near to its tokens as turns go.

    What is far from that long is left out, as is what states no fact.
    """
    found: list[Stretch] = []
    first, tokens = 1, 0
    for n, turn in enumerate(conversation.turns, start=1):
        more = count_tokens(turn.user) + count_tokens(turn.reply or "")
        if tokens and tokens + more - STRETCH_TOKENS > STRETCH_TOKENS - tokens:
            found += _stretch(conversation, first, n, tokens)
            first, tokens = n, 0
        tokens += more
    return found + _stretch(conversation, first, len(conversation.turns) + 1, tokens)


def draw(found: Sequence[Stretch], count: int, seed: int) -> list[Stretch]:
    """So many of the stretches in their order, or all where there are no more."""
    places = random.Random(f"{seed} stretches").sample(range(len(found)), min(count, len(found)))
    return [found[place] for place in sorted(places)]


def _stretch(conversation: Conversation, first: int, after: int, tokens: int) -> list[Stretch]:
    """The turns from `first` up to `after` as a stretch, if they are one."""
    facts = tuple(fact for fact in conversation.facts if first <= fact.turn < after)
    if not facts or abs(tokens - STRETCH_TOKENS) > STRETCH_TOKENS / 2:
        return []
    questions = tuple(_question(conversation, fact) for fact in facts)
    return [Stretch(first, conversation.turns[first - 1 : after - 1], facts, questions)]


def _question(conversation: Conversation, fact: Fact) -> str | None:
    """The conversation's own question, else a plain one: none about what is no longer true."""
    for question in conversation.questions:
        if question.fact == fact.id:
            return question.text
    kind = _KINDS.get(fact.attribute)
    if kind is None or fact.former:
        return None
    return WORDINGS[kind].question.format(whose=fact.owner, noun=fact.attribute)
