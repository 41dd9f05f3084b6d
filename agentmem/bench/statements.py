"""Facts, near misses and questions in words: who owns what, which values, said and asked how.

Values are drawn so that nobody could guess them. Tokens and models are unknown here.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from agentmem.bench.attributes import (
    ACKNOWLEDGEMENTS,
    ATTRIBUTES,
    FORMER_STATEMENTS,
    ME,
    MONTHS,
    OWNERS,
    STATEMENTS,
    UPDATE_STATEMENTS,
    WORDINGS,
    WORDS,
    Attribute,
    Owner,
    ValueKind,
)
from agentmem.bench.conversation import Fact, Question, contains

PARAPHRASE_SHARE = 0.25
NEWS_SHARE = 2 / 3
"""Of the values that take another's place, those that are told as news."""
STATEMENTS_PER_FACT = 4
"""The fact, two near misses of other owners, and an older value."""


class RanOut(Exception):
    """So many facts need more of something than there is."""


def facts_and_questions(
    rng: random.Random, num_facts: int, num_turns: int
) -> tuple[list[Fact], list[Question], dict[str, str]]:
    """Facts by turn, a question about each that is not a near miss, and the replies to all."""
    values = _Values(rng)
    # Which attributes carry the paraphrases is drawn too, so no attribute is always the hard one.
    subjects = _subjects(rng, num_facts)
    paraphrased = set(rng.sample(range(num_facts), round(PARAPHRASE_SHARE * num_facts)))
    places = _places(rng, num_facts, num_turns)
    owners_taken: dict[str, set[str]] = {}
    stated: list[Fact] = []
    questions: list[Question] = []
    replies: dict[str, str] = {}
    for index, (attribute, turns) in enumerate(zip(subjects, places, strict=True)):
        taken = owners_taken.setdefault(attribute.noun, set())
        hard = index in paraphrased
        owner = _draw_owner(rng, taken, attribute, needs_paraphrase=hard)
        others = [_draw_owner(rng, taken, attribute) for _ in range(2)]
        fact_id = f"f{index + 1}"
        plan = [
            (f"{fact_id}-former", owner, True),
            (fact_id, owner, False),
            (f"{fact_id}-near1", others[0], False),
            (f"{fact_id}-near2", others[1], False),
        ]
        former, fact, *near = (
            _state(rng, name, turn, who, attribute, values, former=is_former)
            for turn, (name, who, is_former) in zip(turns, plan, strict=True)
        )
        stated += [former, fact, *near]
        replies |= {one.id: _acknowledge(rng, one, attribute) for one in (former, fact, *near)}
        questions.append(
            Question(
                text=_ask(attribute, owner, paraphrase=hard),
                answer=fact.value,
                fact=fact.id,
                paraphrase=hard,
                distractors=(former.id, *(other.id for other in near)),
            )
        )
    stated.sort(key=lambda fact: fact.turn)
    rng.shuffle(questions)
    return stated, questions, replies


def _places(rng: random.Random, num_facts: int, num_turns: int) -> list[tuple[int, int, int, int]]:
    """For every fact the turns of its older value, of itself, and of its two near misses.

    Facts are spread evenly, so that the end of a conversation holds no more of them than its share.
    The older value is stated before: it used to be true. The near misses stand anywhere.
    """
    slots = sorted(rng.sample(range(1, num_turns + 1), STATEMENTS_PER_FACT * num_facts))
    own: list[int] = []
    left: list[int] = []
    for first in range(0, len(slots), STATEMENTS_PER_FACT):
        stratum = slots[first : first + STATEMENTS_PER_FACT]
        # Never the first of four, so that every fact has an unused turn before it.
        own.append(stratum.pop(rng.choice((1, 2))))
        left += stratum
    former: list[int] = []
    for turn in own:
        earlier = rng.choice([slot for slot in left if slot < turn])
        left.remove(earlier)
        former.append(earlier)
    rng.shuffle(left)
    places = [
        (earlier, turn, left[2 * i], left[2 * i + 1])
        for i, (earlier, turn) in enumerate(zip(former, own, strict=True))
    ]
    rng.shuffle(places)
    return places


def _subjects(rng: random.Random, num_facts: int) -> list[Attribute]:
    """One attribute a fact; each is used once before any is used twice."""
    subjects: list[Attribute] = []
    while len(subjects) < num_facts:
        subjects += rng.sample(ATTRIBUTES, min(len(ATTRIBUTES), num_facts - len(subjects)))
    return subjects


def _draw_owner(
    rng: random.Random, taken: set[str], attribute: Attribute, *, needs_paraphrase: bool = False
) -> Owner:
    pool = [ME] * 6 + list(OWNERS)
    free = [o for o in pool if o.possessive not in taken and (o.paraphrase or not needs_paraphrase)]
    if not free:
        raise RanOut(f"owner of a {attribute.noun}")
    owner = rng.choice(free)
    taken.add(owner.possessive)
    return owner


def _state(
    rng: random.Random,
    fact_id: str,
    turn: int,
    owner: Owner,
    attribute: Attribute,
    values: _Values,
    *,
    former: bool,
) -> Fact:
    value = values.draw(attribute.kind)
    unsaid = Fact(fact_id, turn, owner.possessive, attribute.noun, value, "", former)
    wordings = FORMER_STATEMENTS if former else STATEMENTS
    return replace(unsaid, statement=_said(rng, wordings, unsaid, attribute))


def _said(rng: random.Random, wordings: Sequence[str], fact: Fact, attribute: Attribute) -> str:
    wording = WORDINGS[attribute.kind]
    return rng.choice(wordings).format(
        Whose=fact.owner[0].upper() + fact.owner[1:],
        whose=fact.owner,
        noun=attribute.noun,
        verb=wording.infinitive if wordings is FORMER_STATEMENTS else wording.verb,
        value=fact.value,
    )


def _acknowledge(rng: random.Random, fact: Fact, attribute: Attribute) -> str:
    """What the assistant is taken to have answered: it says the fact again, as assistants do."""
    wording = WORDINGS[attribute.kind]
    verb = wording.infinitive if fact.former else wording.verb
    used_to = "used to " if fact.former else ""
    whose = re.sub(r"^my\b", "your", fact.owner)
    said = f"{whose} {attribute.noun} {used_to}{verb} {fact.value}."
    return f"{rng.choice(ACKNOWLEDGEMENTS)} {said}"


def _ask(attribute: Attribute, owner: Owner, *, paraphrase: bool) -> str:
    if paraphrase:
        return attribute.paraphrase.format(whose=owner.paraphrase)
    question = WORDINGS[attribute.kind].question
    return question.format(whose=owner.possessive, noun=attribute.noun)


def as_updates(
    rng: random.Random,
    stated: list[Fact],
    questions: list[Question],
    replies: dict[str, str],
    count: int,
) -> None:
    """State the older values of so many facts as true, and the newer ones as taking their place."""
    at = {fact.id: index for index, fact in enumerate(stated)}
    nouns = {attribute.noun: attribute for attribute in ATTRIBUTES}
    for question in rng.sample(questions, count):
        for fact_id in (f"{question.fact}-former", question.fact):
            fact = stated[at[fact_id]]
            attribute = nouns[fact.attribute]
            is_news = not fact.former and rng.random() < NEWS_SHARE
            text = _said(rng, UPDATE_STATEMENTS if is_news else STATEMENTS, fact, attribute)
            stated[at[fact_id]] = replace(fact, statement=text)
            replies[fact_id] = _acknowledge(rng, replace(fact, former=False), attribute)


@dataclass
class _Values:
    """Draws values that nobody could guess, each at most once."""

    rng: random.Random
    used: set[str] = field(default_factory=set)

    def draw(self, kind: ValueKind) -> str:
        for _ in range(1000):
            value = self._draw(kind)
            if value in self.used:
                continue
            if not any(contains(value, old) or contains(old, value) for old in self.used):
                self.used.add(value)
                return value
        raise RanOut(kind)

    def _draw(self, kind: ValueKind) -> str:
        rng = self.rng
        if kind == "digits4":
            return str(rng.randint(1000, 9999))
        if kind == "digits5":
            return str(rng.randint(10_000, 99_999))
        if kind == "date":
            return f"{rng.choice(MONTHS)} {rng.randint(4, 20)}th"
        if kind == "time":
            return f"{rng.randint(13, 23)}:{rng.randint(1, 59):02d}"
        return rng.choice(WORDS[kind])
