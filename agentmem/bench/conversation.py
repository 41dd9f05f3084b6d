"""A benchmark conversation as a file: turns, the facts stated in them, and questions.

JSON Lines, UTF-8, one object a line (broken here to fit), in this order of types:

    {"type": "meta", ...}                    how it was made; optional, first
    {"type": "turn", "n": 1, "user": "...", "reply": "..." or null,
     "kind": "small_talk", "statement" or "question"}
    {"type": "fact", "id": "f1", "turn": 7, "owner": "my sister's", "attribute": "locker code",
     "value": "58291", "statement": "My sister's locker code is 58291.", "former": false}
    {"type": "instruction", "id": "i1", "turn": 9, "text": "Always answer in short sentences."}
    {"type": "question", "text": "...", "answer": "58291", "fact": "f1", "paraphrase": false,
     "distractors": ["f2", "f3"], "turn": null}

`n` counts from 1 without gaps. A turn without a reply is answered by the model. A fact's value
stands in its statement, and the statement in what the user says in that turn. `former` marks a
value that is no longer true, whether it was stated so or another took its place later. An
instruction is to hold from its turn on. A question is about one fact; its distractors are facts
that are easily taken for it; it is asked after the last turn, or is what the user says in `turn`.
Models and tokens are unknown here.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from agentmem.errors import InvalidInput

TurnKind = Literal["small_talk", "statement", "question"]


@dataclass(frozen=True, slots=True)
class Turn:
    """What the user says and, where it is given, what the model is taken to have answered."""

    user: str
    reply: str | None = None
    kind: TurnKind = "small_talk"


@dataclass(frozen=True, slots=True)
class Fact:
    """Something the user stated in turn number `turn`."""

    id: str
    turn: int
    owner: str
    attribute: str
    value: str
    statement: str
    former: bool = False


@dataclass(frozen=True, slots=True)
class Instruction:
    """Something the user said in turn number `turn` that is to hold from then on."""

    id: str
    turn: int
    text: str


@dataclass(frozen=True, slots=True)
class Question:
    """A question whose answer is the value of the fact with id `fact`.

    Args:
        paraphrase: it shares no content word with the fact's statement.
        distractors: ids of facts that are easily taken for the right one.
        turn: the turn that asks it; None where it is asked after the last.
    """

    text: str
    answer: str
    fact: str
    paraphrase: bool = False
    distractors: tuple[str, ...] = ()
    turn: int | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns to be played, then questions to be asked.

    Raises:
        InvalidInput: a fact, an instruction or a question points to what is not there.
    """

    turns: tuple[Turn, ...]
    facts: tuple[Fact, ...] = ()
    questions: tuple[Question, ...] = ()
    instructions: tuple[Instruction, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        facts: dict[str, Fact] = {}
        for fact in self.facts:
            _check_fact(fact, facts, self.turns)
            facts[fact.id] = fact
        for instruction in self.instructions:
            _check_said(instruction.id, instruction.turn, instruction.text, self.turns)
        for question in self.questions:
            _check_question(question, facts, self.turns)

    @property
    def last_questions(self) -> tuple[Question, ...]:
        """Those that are asked after the last turn."""
        return tuple(question for question in self.questions if question.turn is None)

    def fact(self, fact_id: str) -> Fact:
        """The fact with this id."""
        return next(fact for fact in self.facts if fact.id == fact_id)

    def replaced(self, question: Question) -> Fact | None:
        """The latest value that the answer took the place of; None where it was the first."""
        right = self.fact(question.fact)
        former = [
            fact
            for fact in self.facts
            if fact.former
            and (fact.owner, fact.attribute) == (right.owner, right.attribute)
            and fact.turn < right.turn
        ]
        return max(former, key=lambda fact: fact.turn, default=None)


def _check_fact(fact: Fact, earlier: Mapping[str, Fact], turns: Sequence[Turn]) -> None:
    if fact.id in earlier:
        raise InvalidInput(f"Every fact needs an id of its own: {fact.id!r} is used twice.")
    _check_said(fact.id, fact.turn, fact.statement, turns)
    if not contains(fact.statement, fact.value):
        raise InvalidInput(
            f"The statement of fact {fact.id!r} must contain its value {fact.value!r}: "
            f"got {fact.statement!r}."
        )


def _check_said(name: str, turn: int, text: str, turns: Sequence[Turn]) -> None:
    if not 1 <= turn <= len(turns):
        raise InvalidInput(f"{name!r} must name a turn from 1 to {len(turns)}: got {turn}.")
    if text not in turns[turn - 1].user:
        raise InvalidInput(f"Turn {turn} must contain what {name!r} says: {text!r} is not in it.")


def _check_question(question: Question, facts: Mapping[str, Fact], turns: Sequence[Turn]) -> None:
    for fact_id in (question.fact, *question.distractors):
        if fact_id not in facts:
            raise InvalidInput(f"Question {question.text!r} points to no fact: {fact_id!r}.")
    if question.fact in question.distractors:
        raise InvalidInput(
            f"The fact of question {question.text!r} must not be its own distractor."
        )
    if question.answer != facts[question.fact].value:
        raise InvalidInput(
            f"The answer to {question.text!r} must be the value of fact {question.fact!r}, "
            f"{facts[question.fact].value!r}: got {question.answer!r}."
        )
    if question.turn is not None:
        _check_said(question.text, question.turn, question.text, turns)
        if question.turn <= facts[question.fact].turn:
            raise InvalidInput(
                f"{question.text!r} must be asked after turn {facts[question.fact].turn}, which "
                f"states the answer: got turn {question.turn}."
            )


def contains(text: str, value: str) -> bool:
    """Whether the value stands in the text as words of its own, case folded."""
    text, value = text.casefold(), value.casefold()
    # Most texts do not hold it at all, which needs no pattern to see.
    return value in text and re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text) is not None


_FIELDS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "turn": {"n": int, "user": str, "reply": (str, type(None)), "kind": str},
    "fact": {
        "id": str,
        "turn": int,
        "owner": str,
        "attribute": str,
        "value": str,
        "statement": str,
        "former": bool,
    },
    "instruction": {"id": str, "turn": int, "text": str},
    "question": {
        "text": str,
        "answer": str,
        "fact": str,
        "paraphrase": bool,
        "distractors": list,
        "turn": (int, type(None)),
    },
}
_OPTIONAL = {
    "turn": {"reply", "kind"},
    "fact": {"former"},
    "instruction": set[str](),
    "question": {"paraphrase", "distractors", "turn"},
}


def save(conversation: Conversation, path: str | Path) -> None:
    """Write the conversation; `load` reads an equal one."""
    Path(path).write_text(_lines(conversation), encoding="utf-8", newline="\n")


def digest(conversation: Conversation) -> str:
    """Sixteen hex digits that differ where conversations do."""
    return hashlib.sha256(_lines(conversation).encode()).hexdigest()[:16]


def _lines(conversation: Conversation) -> str:
    rows: list[dict[str, Any]] = [{"type": "meta", **conversation.meta}]
    for n, turn in enumerate(conversation.turns, start=1):
        rows.append({"type": "turn", "n": n, **asdict(turn)})
    rows += [{"type": "fact", **asdict(fact)} for fact in conversation.facts]
    rows += [{"type": "instruction", **asdict(one)} for one in conversation.instructions]
    rows += [{"type": "question", **asdict(question)} for question in conversation.questions]
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def load(path: str | Path) -> Conversation:
    """Read a conversation.

    Raises:
        InvalidInput: the file is missing, or a line is not as described above; the message names
            the line.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInput(
            f"Cannot read the conversation {str(path)!r}: {error.strerror}."
        ) from None
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} must be UTF-8: byte {error.start} is not.") from None
    meta: dict[str, Any] = {}
    turns: list[Turn] = []
    facts: dict[str, Fact] = {}
    questions: list[Question] = []
    instructions: list[Instruction] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            kind, row = _parse(line)
            if kind == "meta":
                meta.update(row)
            elif kind == "turn":
                turns.append(_turn(row, len(turns) + 1))
            elif kind == "fact":
                fact = Fact(**row)
                _check_fact(fact, facts, turns)
                facts[fact.id] = fact
            elif kind == "instruction":
                instruction = Instruction(**row)
                _check_said(instruction.id, instruction.turn, instruction.text, turns)
                instructions.append(instruction)
            else:
                row["distractors"] = tuple(row.get("distractors", ()))
                question = Question(**row)
                _check_question(question, facts, turns)
                questions.append(question)
        except InvalidInput as error:
            raise InvalidInput(f"{path}, line {number}: {error}") from None
    if not turns:
        raise InvalidInput(f"{path}: a conversation needs at least one turn: got none.")
    return Conversation(
        tuple(turns), tuple(facts.values()), tuple(questions), tuple(instructions), meta
    )


def _parse(line: str) -> tuple[str, dict[str, Any]]:
    """The type of a line and its other fields, checked."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise InvalidInput(f"A line must be one JSON object: {error}.") from None
    if not isinstance(row, dict):
        raise InvalidInput(f"A line must be one JSON object: got {line[:80]!r}.")
    kind = row.pop("type", None)
    if kind == "meta":
        return "meta", row
    if kind not in _FIELDS:
        raise InvalidInput(
            f"`type` must be meta, turn, fact, instruction or question: got {kind!r}."
        )
    fields = _FIELDS[kind]
    for name, value in row.items():
        if name not in fields:
            raise InvalidInput(f"A {kind} has no field {name!r}: it has {', '.join(fields)}.")
        expected = fields[name]
        # JSON's true is an int to Python.
        if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
            raise InvalidInput(f"`{name}` of a {kind} has the wrong type: got {value!r}.")
    for name in fields:
        if name not in row and name not in _OPTIONAL[kind]:
            raise InvalidInput(f"A {kind} needs the field {name!r}: it is missing.")
    return kind, row


def _turn(row: dict[str, Any], expected: int) -> Turn:
    n = row.pop("n")
    if n != expected:
        raise InvalidInput(f"`n` must count up by one: expected {expected}, got {n}.")
    turn = Turn(**row)
    if turn.kind not in get_args(TurnKind):
        kinds = ", ".join(get_args(TurnKind))
        raise InvalidInput(f"`kind` must be one of {kinds}: got {turn.kind!r}.")
    if not turn.user.strip():
        raise InvalidInput(f"Turn {n} must say something: got {turn.user!r}.")
    return turn
