"""What a generated conversation is to state and to ask, and in which turns: everything but talk.

The same arguments give the same plan. It knows nothing of tokens or models, so that what cannot be
planned is refused before anything is loaded.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from agentmem.bench.attributes import INSTRUCTIONS
from agentmem.bench.conversation import Fact, Instruction, Question, Turn
from agentmem.bench.statements import (
    STATEMENTS_PER_FACT,
    RanOut,
    as_updates,
    facts_and_questions,
)
from agentmem.errors import InvalidInput

RETURN_TURNS = 500
"""A topic that returns was last spoken of so many turns ago, at least."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is stated and asked, and the turns that do it.

    Args:
        facts: all that is stated, near misses included, by turn.
        questions: one about each fact that is asked for.
        instructions: standing ones.
        turns: by number, those that state or ask something.
    """

    facts: tuple[Fact, ...]
    questions: tuple[Question, ...]
    instructions: tuple[Instruction, ...]
    turns: Mapping[int, Turn]


def most_instructions(turns: int, facts: int) -> int:
    """How many instructions find room in the first half of the turns that state no fact."""
    return max(0, min((turns - STATEMENTS_PER_FACT * facts) // 2, len(INSTRUCTIONS)))


def make_plan(
    rng: random.Random,
    seed: int,
    *,
    turns: int,
    facts: int,
    updates: int = 0,
    instructions: int = 0,
    returning: int = 0,
) -> Plan:
    """Plan a conversation; the arguments are `generate`'s.

    Args:
        rng: seeded with `seed`; whoever goes on with it draws what comes next.

    Raises:
        InvalidInput: the turns have no room for it; the message says for how much they have.
    """
    if turns < STATEMENTS_PER_FACT:
        raise InvalidInput(
            f"`turns` must be at least {STATEMENTS_PER_FACT}, since a fact and what is easily "
            f"taken for it are stated in so many: got {turns}."
        )
    if not 1 <= facts <= turns // STATEMENTS_PER_FACT:
        raise InvalidInput(
            f"`facts` must lie in 1..{turns // STATEMENTS_PER_FACT} for {turns} turns, since each "
            f"takes {STATEMENTS_PER_FACT} of them: got {facts}."
        )
    if not 0 <= updates <= facts:
        raise InvalidInput(f"`updates` must lie in 0..{facts}, the facts: got {updates}.")
    try:
        stated, questions, replies = facts_and_questions(rng, facts, turns)
    except RanOut as what:
        raise InvalidInput(
            f"`facts` must be at most {_most_facts(seed, facts, turns)} for seed {seed}, since no "
            f"unused {what} is left for more: got {facts}."
        ) from None
    # Chance of its own: what is stated besides does not change with it.
    extra = random.Random(f"{seed} and more")
    as_updates(extra, stated, questions, replies, updates)
    planned = {fact.turn: Turn(fact.statement, replies[fact.id], "statement") for fact in stated}
    told = _instructions(extra, instructions, facts, turns, planned)
    planned |= {one.turn: Turn(one.text, "Understood.", "statement") for one in told}
    questions = _returning(extra, returning, questions, stated, planned, turns)
    planned |= {one.turn: Turn(one.text, kind="question") for one in questions if one.turn}
    return Plan(tuple(stated), tuple(questions), tuple(told), planned)


def _most_facts(seed: int, too_many: int, turns: int) -> int:
    """A number of facts that can be stated where one more, or a little more, cannot."""
    most = 1
    while too_many - most > 1:
        tried = (most + too_many) // 2
        try:
            facts_and_questions(random.Random(seed), tried, turns)
        except RanOut:
            too_many = tried
        else:
            most = tried
    return most


def _instructions(
    rng: random.Random, count: int, facts: int, num_turns: int, taken: Collection[int]
) -> list[Instruction]:
    """So many instructions, in turns of the first half that are free."""
    most = most_instructions(num_turns, facts)
    if not 0 <= count <= most:
        raise InvalidInput(
            f"`instructions` must lie in 0..{most} for {num_turns} turns with {facts} facts: "
            f"got {count}."
        )
    free = [turn for turn in range(1, num_turns + 1) if turn not in taken]
    turns = sorted(rng.sample(free[: len(free) // 2], count))
    texts = rng.sample(INSTRUCTIONS, count)
    return [
        Instruction(f"i{index + 1}", turn, text)
        for index, (turn, text) in enumerate(zip(turns, texts, strict=True))
    ]


def _returning(
    rng: random.Random,
    count: int,
    questions: Sequence[Question],
    stated: Sequence[Fact],
    taken: Collection[int],
    num_turns: int,
) -> list[Question]:
    """The questions, so many of them asked in turns that are free."""
    turn_of = {fact.id: fact.turn for fact in stated}
    early = [one for one in questions if turn_of[one.fact] + RETURN_TURNS <= num_turns]
    if not 0 <= count <= len(early):
        raise InvalidInput(
            f"`returning` must lie in 0..{len(early)}, the facts that are stated {RETURN_TURNS} "
            f"turns before the end: got {count}."
        )
    asked: dict[str, int] = {}
    for question in sorted(rng.sample(early, count), key=lambda one: -turn_of[one.fact]):
        first = turn_of[question.fact] + RETURN_TURNS
        used = {*taken, *asked.values()}
        free = [turn for turn in range(first, num_turns + 1) if turn not in used]
        if not free:
            raise InvalidInput(
                f"`returning` must be at most {len(asked)} for {num_turns} turns with so many "
                f"statements: got {count}."
            )
        asked[question.fact] = rng.choice(free)
    return [replace(one, turn=asked.get(one.fact)) for one in questions]
