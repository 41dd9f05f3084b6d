"""How a benchmark conversation is scored, and how hard it is, without any model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentmem.bench.conversation import Conversation, contains
from agentmem.errors import InvalidInput

MAX_WINDOW_SHARE = 0.30
"""Above this share of answers in the last tokens a plain window would do."""


def exact(answer: str, reply: str) -> bool:
    """Whether the answer stands in the reply as words of its own, case folded."""
    return contains(reply, answer)


def window_share(
    conversation: Conversation, budget: int, count_tokens: Callable[[str], int]
) -> float:
    """The share of questions at the end whose fact lies in the last `budget` tokens before them.

    What a window that holds nothing but the newest turns would find at the end, at best.
    """
    first, tokens = len(conversation.turns) + 1, 0
    for turn in reversed(conversation.turns):
        tokens += count_tokens(turn.user) + count_tokens(turn.reply or "")
        if tokens > budget:
            break
        first -= 1
    facts = {fact.id: fact for fact in conversation.facts}
    in_window = [facts[question.fact].turn >= first for question in conversation.last_questions]
    return sum(in_window) / len(in_window) if in_window else 0.0


def most_budget(asked: Sequence[int], tokens: Sequence[float]) -> int:
    """The largest budget whose last tokens hold no more than `MAX_WINDOW_SHARE` of the answers.

    Args:
        asked: the turns that state what is asked for at the end; at least one.
        tokens: of every turn, in order.
    """
    latest_first = sorted(asked, reverse=True)
    first_outside = latest_first[int(MAX_WINDOW_SHARE * len(asked) + 1e-9)]
    return int(sum(tokens[first_outside - 1 :])) - 1


def check_difficulty(
    conversation: Conversation, budget: int, count_tokens: Callable[[str], int]
) -> float:
    """The window share, refused where the conversation is too easy to tell anything.

    Raises:
        InvalidInput: there are no questions, or too many answers are still in a plain window.
    """
    if not conversation.last_questions:
        raise InvalidInput(
            "The conversation has no questions after its last turn: there is nothing to measure."
        )
    share = window_share(conversation, budget, count_tokens)
    if share > MAX_WINDOW_SHARE:
        most = most_budget(
            [conversation.fact(question.fact).turn for question in conversation.last_questions],
            [count_tokens(turn.user) + count_tokens(turn.reply or "")
             for turn in conversation.turns],
        )  # fmt: skip
        raise InvalidInput(
            f"`budget` must be at most {most} for this conversation: got {budget}. {share:.0%} of "
            f"the answers lie in the last {budget} tokens, so a plain window finds them (at most "
            f"{MAX_WINDOW_SHARE:.0%} may). More turns allow for more."
        )
    return share
