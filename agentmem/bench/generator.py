"""Makes benchmark conversations: facts stated among small talk, near misses, and questions.

The same arguments give the same conversation. It knows nothing of models: tokens are counted by a
function that is passed in.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from agentmem.bench.conversation import Conversation, Turn
from agentmem.bench.plan import make_plan
from agentmem.bench.small_talk import SmallTalk
from agentmem.errors import InvalidInput

TOKENS_PER_TURN = 40
TOLERANCE = 0.05
"""How far from the asked number of tokens a conversation may be, as a share."""


def generate(
    seed: int,
    *,
    count_tokens: Callable[[str], int],
    turns: int = 300,
    facts: int = 40,
    tokens: int | None = None,
    updates: int = 0,
    instructions: int = 0,
    returning: int = 0,
) -> Conversation:
    """A conversation in which `facts` facts are stated, and one question about each.

    Args:
        seed: the same seed gives the same conversation.
        count_tokens: tokens of one message; include what its header takes if that is to count.
        turns: turns before the questions.
        facts: facts that are asked for. Each has three near misses, stated in other turns: two of
            other owners, and an older value of its own stated earlier.
        tokens: tokens of all messages together, within 5 %; about 40 a turn where None.
        updates: of how many facts the older value is stated as true when it is said, and the newer
            one as news or plainly against it; of the others it "used to be".
        instructions: standing instructions in the place of small talk, spread over the first half.
        returning: of how many facts the question is not asked at the end but in the place of small
            talk, at least 500 turns after the fact was stated.

    Raises:
        InvalidInput: the facts do not fit the turns, or the turns not the tokens; the message says
            what would.
    """
    asked_for = TOKENS_PER_TURN * turns if tokens is None else tokens
    rng = random.Random(seed)
    plan = make_plan(
        rng,
        seed,
        turns=turns,
        facts=facts,
        updates=updates,
        instructions=instructions,
        returning=returning,
    )
    small_talk = SmallTalk(rng, count_tokens)
    remaining = asked_for - sum(
        count_tokens(turn.user) + count_tokens(turn.reply or "") for turn in plan.turns.values()
    )
    played: list[Turn] = []
    num_left = turns - len(plan.turns)
    for n in range(1, turns + 1):
        if n in plan.turns:
            played.append(plan.turns[n])
            continue
        share = remaining / num_left * (rng.uniform(0.6, 1.4) if num_left > 5 else 1)
        turn = small_talk.turn(round(share))
        remaining -= count_tokens(turn.user) + count_tokens(turn.reply or "")
        num_left -= 1
        played.append(turn)
    if tokens is not None and abs(remaining) > TOLERANCE * tokens:
        raise InvalidInput(
            f"`tokens` must lie within {TOLERANCE:.0%} of {tokens - remaining} for {turns} turns "
            f"with {facts} facts: got {tokens}."
        )
    meta = {"seed": seed, "turns": turns, "facts": facts, "tokens": asked_for - remaining}
    return Conversation(tuple(played), plan.facts, plan.questions, plan.instructions, meta)
