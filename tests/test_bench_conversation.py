"""Benchmark conversations as files: what is read is what was written, and nothing wrong is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentmem.bench.conversation import (
    Conversation,
    Fact,
    Instruction,
    Question,
    Turn,
    contains,
    load,
    save,
)
from agentmem.errors import InvalidInput

TURN = {"type": "turn", "n": 1, "user": "My code is 42.", "reply": "Noted.", "kind": "statement"}
FACT = {
    "type": "fact",
    "id": "f1",
    "turn": 1,
    "owner": "my",
    "attribute": "code",
    "value": "42",
    "statement": "My code is 42.",
}
QUESTION = {"type": "question", "text": "What is my code?", "answer": "42", "fact": "f1"}


def script(path: Path, *rows: object) -> Path:
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows) + "\n")
    return path


def test_saved_conversation_is_loaded_as_it_was(tmp_path: Path) -> None:
    conversation = Conversation(
        turns=(
            Turn("Salut, ça va ? 😀", None),
            Turn("My code is 42.", "Noted.", "statement"),
            Turn("What is it?", None, "question"),
        ),
        facts=(
            Fact("f1", 2, "my", "code", "42", "My code is 42."),
            Fact("f2", 2, "my", "code", "42", "My code is 42.", former=True),
        ),
        questions=(
            Question("What opens it?", "42", "f1", True, ("f2",)),
            Question("What is it?", "42", "f1", turn=3),
        ),
        instructions=(Instruction("i1", 1, "ça va"),),
        meta={"seed": 3, "by": "hand"},
    )
    save(conversation, tmp_path / "c.jsonl")
    assert load(tmp_path / "c.jsonl") == conversation
    assert conversation.last_questions == conversation.questions[:1]


def test_optional_fields_have_defaults(tmp_path: Path) -> None:
    turn = {"type": "turn", "n": 1, "user": "My code is 42."}
    conversation = load(script(tmp_path / "c.jsonl", turn, "", FACT, QUESTION))
    assert conversation.turns == (Turn("My code is 42.", None, "small_talk"),)
    assert conversation.questions[0].distractors == ()
    assert conversation.fact("f1").former is False


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["{"], "line 1: A line must be one JSON object"),
        (["[1]"], "line 1: A line must be one JSON object"),
        (
            [{"type": "note"}],
            "line 1: `type` must be meta, turn, fact, instruction or question: got 'note'",
        ),
        ([TURN, TURN], "line 2: `n` must count up by one: expected 2, got 1"),
        ([{**TURN, "n": True}], "line 1: `n` of a turn has the wrong type: got True"),
        ([{**TURN, "user": " "}], "line 1: Turn 1 must say something"),
        (
            [{**TURN, "kind": "chat"}],
            "line 1: `kind` must be one of small_talk, statement, question: got 'chat'",
        ),
        ([{**TURN, "who": "me"}], "line 1: A turn has no field 'who'"),
        ([{"type": "turn", "n": 1}], "line 1: A turn needs the field 'user'"),
        ([TURN, {**FACT, "turn": 2}], "line 2: 'f1' must name a turn from 1 to 1: got 2"),
        ([TURN, {**FACT, "value": "4"}], "line 2: The statement of fact 'f1' must contain"),
        ([TURN, {**FACT, "statement": "It is 42."}], "line 2: Turn 1 must contain what 'f1' says"),
        ([TURN, FACT, "", FACT], "line 4: Every fact needs an id of its own: 'f1'"),
        (
            [TURN, {"type": "instruction", "id": "i1", "turn": 1, "text": "Be kind."}],
            "line 2: Turn 1 must contain what 'i1' says: 'Be kind.' is not in it",
        ),
        ([TURN, QUESTION], "line 2: Question 'What is my code\\?' points to no fact: 'f1'"),
        ([TURN, FACT, {**QUESTION, "answer": "41"}], "line 3: The answer to .* got '41'"),
        ([TURN, FACT, {**QUESTION, "distractors": ["f9"]}], "line 3: .* points to no fact: 'f9'"),
        ([TURN, FACT, {**QUESTION, "distractors": ["f1"]}], "line 3: .* its own distractor"),
        ([TURN, FACT, {**QUESTION, "turn": 1}], "line 3: Turn 1 must contain what .* says"),
        (
            [{**TURN, "user": "My code is 42. What is my code?"}, FACT, {**QUESTION, "turn": 1}],
            "line 3: .* must be asked after turn 1, which states the answer: got turn 1",
        ),
        ([TURN, FACT, {**QUESTION, "turn": True}], "`turn` of a question has the wrong type"),
        ([{"type": "meta"}], "needs at least one turn"),
    ],
)
def test_wrong_line_is_refused_by_its_number(
    tmp_path: Path, rows: list[object], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        load(script(tmp_path / "c.jsonl", *rows))


def test_missing_file_and_other_encodings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="Cannot read the conversation"):
        load(tmp_path / "none.jsonl")
    (tmp_path / "latin.jsonl").write_bytes(b'{"type": "meta", "by": "Jos\xe9"}\n')
    with pytest.raises(InvalidInput, match="must be UTF-8: byte 27"):
        load(tmp_path / "latin.jsonl")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It is 58291.", True),
        ("It is 158291.", False),
        ("It is 58291st.", False),
        ("58291", True),
        ("(58291)", True),
        ("5829", False),
    ],
)
def test_value_is_found_only_as_a_word_of_its_own(text: str, found: bool) -> None:
    assert contains(text, "58291") is found


def test_value_is_found_in_any_case_and_with_signs_in_it() -> None:
    assert contains("IT IS BISCUIT!", "Biscuit")
    assert contains("at 17:53.", "17:53")
    assert not contains("at 117:53.", "17:53")
