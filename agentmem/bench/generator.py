"""Makes benchmark conversations: facts stated among small talk, near misses, and questions.

The same arguments give the same conversation. It knows nothing of models: tokens are counted by a
function that is passed in.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from agentmem.bench.attributes import (
    ACKNOWLEDGEMENTS,
    ATTRIBUTES,
    FORMER_STATEMENTS,
    INSTRUCTIONS,
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
from agentmem.bench.conversation import Conversation, Fact, Instruction, Question, Turn, contains
from agentmem.bench.small_talk import SmallTalk
from agentmem.errors import InvalidInput

TOKENS_PER_TURN = 40
TOLERANCE = 0.05
"""How far from the asked number of tokens a conversation may be, as a share."""
PARAPHRASE_SHARE = 0.25
NEWS_SHARE = 2 / 3
"""Of the values that take another's place, those that are told as news."""
RETURN_TURNS = 500
"""A topic that returns was last spoken of so many turns ago, at least."""
STATEMENTS_PER_FACT = 4
"""The fact, two near misses of other owners, and an older value."""


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
        tokens: tokens of all messages together, within 5 %; 40 a turn where None.
        updates: of how many facts the older value is stated as true when it is said, and the newer
            one as news or plainly against it; of the others it "used to be".
        instructions: standing instructions in the place of small talk, spread over the first half.
        returning: of how many facts the question is not asked at the end but in the place of small
            talk, at least 500 turns after the fact was stated.

    Raises:
        InvalidInput: the facts do not fit the turns, or the turns not the tokens.
    """
    tokens = TOKENS_PER_TURN * turns if tokens is None else tokens
    num_statements = STATEMENTS_PER_FACT * facts
    if facts < 1 or num_statements > turns:
        raise InvalidInput(
            f"`facts` must lie in 1..{turns // STATEMENTS_PER_FACT} for {turns} turns, since each "
            f"takes {STATEMENTS_PER_FACT} of them: got {facts}."
        )
    if not 0 <= updates <= facts:
        raise InvalidInput(f"`updates` must lie in 0..{facts}, the facts: got {updates}.")
    rng = random.Random(seed)
    small_talk = SmallTalk(rng, count_tokens)
    stated, questions, replies = _facts_and_questions(rng, facts, turns)
    # Chance of its own: what is stated besides does not change with it.
    extra = random.Random(f"{seed} and more")
    _as_updates(extra, stated, questions, replies, updates)
    acknowledged = {
        fact.turn: Turn(fact.statement, replies[fact.id], "statement") for fact in stated
    }
    told = _instructions(extra, instructions, [n for n in range(1, turns + 1)
                                               if n not in acknowledged])  # fmt: skip
    acknowledged |= {one.turn: Turn(one.text, "Understood.", "statement") for one in told}
    questions = _returning(extra, returning, questions, stated, acknowledged, turns)
    acknowledged |= {one.turn: Turn(one.text, kind="question") for one in questions if one.turn}
    remaining = tokens - sum(
        count_tokens(turn.user) + count_tokens(turn.reply or "") for turn in acknowledged.values()
    )
    played: list[Turn] = []
    num_left = turns - len(acknowledged)
    for n in range(1, turns + 1):
        if n in acknowledged:
            played.append(acknowledged[n])
            continue
        share = remaining / num_left * (rng.uniform(0.6, 1.4) if num_left > 5 else 1)
        turn = small_talk.turn(round(share))
        remaining -= count_tokens(turn.user) + count_tokens(turn.reply or "")
        num_left -= 1
        played.append(turn)
    if abs(remaining) > TOLERANCE * tokens:
        raise InvalidInput(
            f"{turns} turns with {facts} facts cannot take {tokens} tokens within "
            f"{TOLERANCE:.0%}: they take {tokens - remaining}. Change `tokens` or `turns`."
        )
    meta = {"seed": seed, "turns": turns, "facts": facts, "tokens": tokens - remaining}
    return Conversation(tuple(played), tuple(stated), tuple(questions), tuple(told), meta)


def _as_updates(
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


def _instructions(rng: random.Random, count: int, free: Sequence[int]) -> list[Instruction]:
    """So many instructions, in turns of the first half that are free."""
    early = free[: len(free) // 2]
    if not 0 <= count <= min(len(early), len(INSTRUCTIONS)):
        raise InvalidInput(
            f"`instructions` must lie in 0..{min(len(early), len(INSTRUCTIONS))} here: got {count}."
        )
    turns = sorted(rng.sample(early, count))
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
                f"{num_turns} turns have no room for {count} `returning` questions: ask for fewer."
            )
        asked[question.fact] = rng.choice(free)
    return [replace(one, turn=asked.get(one.fact)) for one in questions]


def _facts_and_questions(
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
        raise InvalidInput(
            f"No owner is left for another {attribute.noun!r}: ask for fewer `facts`."
        )
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


@dataclass
class _Values:
    """Draws values that nobody could guess, each at most once."""

    rng: random.Random
    used: set[str] = field(default_factory=set)

    def draw(self, kind: ValueKind) -> str:
        for _ in range(1000):
            value = self._draw(kind)
            if not any(contains(value, old) or contains(old, value) for old in self.used):
                self.used.add(value)
                return value
        raise InvalidInput(f"No unused {kind} is left: ask for fewer `facts`.")

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
