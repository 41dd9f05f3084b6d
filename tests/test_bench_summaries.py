"""The summaries benchmark end to end without a real model."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from agentmem import ScriptedModel
from agentmem.bench.conversation import contains, save
from agentmem.bench.generator import generate
from agentmem.bench.stretches import Stretch, cut
from agentmem.bench.summaries import (
    SYSTEMS,
    SummaryOptions,
    SummaryRow,
    against_extract,
    render,
    run_summaries,
)
from agentmem.bench.summaries_play import SummaryPlay
from agentmem.bench.summaries_row import pooled
from agentmem.bench.summary_systems import FRAME, Summary, by_chance, open_agent, summarizer
from agentmem.errors import InvalidInput
from agentmem.models.base import Options, Part
from agentmem.models.scripted import pieces

CONVERSATION = generate(5, count_tokens=lambda text: len(pieces(text)), turns=40, facts=8)
STRETCHES = cut(CONVERSATION, lambda text: len(pieces(text)))[:2]
QUICK = SummaryOptions.quick(model="scripted", stretches=2, turns=40, facts=6)
ASKED = {
    question: fact.value
    for stretch in STRETCHES
    for fact, question in zip(stretch.facts, stretch.questions, strict=True)
    if question is not None
}


def reader(summarize: Callable[[str], str]) -> ScriptedModel:
    """A model that finds every answer that stands before the question, and summarizes so."""

    def answer(prompt: Sequence[Part], options: Options) -> str:
        *known, asked = prompt
        text = "\n".join(message.content for part in known for message in part.messages)
        if asked.key == "summarize":
            return summarize(text)
        value = ASKED.get(asked.messages[-1].content)
        return value if value is not None and contains(text, value) else "I do not know."

    return ScriptedModel(default=answer)


def played(system: str, model: ScriptedModel) -> SummaryRow:
    with open_agent(model) as agent:
        return SummaryPlay(system, STRETCHES, "some", 0, lambda text: None).run(agent)


def values_in(text: str) -> str:
    """A summary that is nothing but values, of those that are asked for; one is lost."""
    found = [value for value in ASKED.values() if contains(text, value)]
    return f"Said: {', '.join(found[1:])}."


@pytest.fixture(scope="module")
def by_model() -> tuple[ScriptedModel, SummaryRow]:
    """A model that lost a value of every stretch, and what came of it."""
    model = reader(values_in)
    return model, played("llm", model)


def test_a_model_is_given_the_stretch_and_what_it_leaves_out_is_lost(
    by_model: tuple[ScriptedModel, SummaryRow],
) -> None:
    _, row = by_model
    kept = [values_in("\n".join(m.content for m in one.messages)) for one in STRETCHES]
    told = [
        contains(text, fact.value)
        for text, stretch in zip(kept, STRETCHES, strict=True)
        for fact in stretch.facts
    ]
    named = [stands and not one for stands, one in zip(row.survives_each, told, strict=True)]
    assert all(stands for stands, one in zip(row.survives_each, told, strict=True) if one)
    assert row.only_named == sum(named) / len(named)
    assert row.survives == sum(row.survives_each) / row.facts < 1
    assert row.low <= row.survives <= row.high
    assert row.written_by == 1 and row.seconds > 0
    assert row.stretches == 2 and row.facts == sum(len(one.facts) for one in STRETCHES)
    assert row.tokens < row.tokens_of_originals / 2
    # The reader finds what stands there, whether told or named, and nothing else.
    asked = [question is not None for one in STRETCHES for question in one.questions]
    answers = [stands for stands, one in zip(row.survives_each, asked, strict=True) if one]
    assert row.answered_each == answers and row.questions == sum(asked) < row.facts


def test_an_answer_sees_the_system_prompt_the_summary_and_the_question_alone(
    by_model: tuple[ScriptedModel, SummaryRow],
) -> None:
    model, _ = by_model
    questions = [one for one in model.history if one.messages[-1].content in ASKED]
    assert len(questions) == len(ASKED)
    for request in questions:
        system, summary, question = request.messages
        assert (system.role, summary.role, question.role) == ("system", "user", "user")
        assert summary.content.startswith(FRAME)
        assert request.options.max_new_tokens == 16 and request.options.temperature == 0


def test_the_whole_stretch_is_the_ceiling() -> None:
    row = played("whole", reader(values_in))
    assert (row.survives, row.answered, row.only_named) == (1, 1, 0)
    assert row.tokens == row.tokens_of_originals and row.written_by == 0


def test_a_model_that_says_nothing_leaves_what_the_extract_is() -> None:
    silent, extract = played("llm", reader(lambda text: "")), played("extract", reader(values_in))
    assert silent.written_by == extract.written_by == 0
    same = {"system": "", "seconds": 0.0}
    assert asdict(silent) | same == asdict(extract) | same
    assert 0.5 < extract.survives <= 1 and extract.tokens < extract.tokens_of_originals / 2


def test_chance_takes_sentences_in_their_order_within_the_extracts_length() -> None:
    model = reader(values_in)
    with open_agent(model) as agent, summarizer("extract", agent, 0) as extract:
        extracts = [extract(stretch) for stretch in STRETCHES]
    for stretch, longest in zip(STRETCHES, extracts, strict=True):
        originals = "\n".join(message.content for message in stretch.messages)
        limit = model.count_tokens(Part("extract", longest.messages))
        drawn = {by_chance(stretch, longest, model.count_tokens, seed).text for seed in range(5)}
        assert len(drawn) == 5
        assert by_chance(stretch, longest, model.count_tokens, 0).text in drawn
        for text in drawn:
            assert limit - 20 < len(pieces(text)) + 4 <= limit
            assert text.startswith(f"{FRAME} ")
            assert in_order(text.removeprefix(FRAME), originals)


def in_order(text: str, originals: str) -> bool:
    """Whether the text is made of the originals' sentences, none before one that it follows."""
    at = 0
    for sentence in text.replace("? ", "?|").replace("! ", "!|").replace(". ", ".|").split("|"):
        at = originals.find(sentence.strip(), at)
        if at < 0:
            return False
    return True


def test_a_summary_of_a_session_begins_as_that_of_chance() -> None:
    with open_agent(reader(lambda text: " ".join(text.split()[:6]) + ".")) as agent:
        with summarizer("llm", agent, 0) as summarize:
            said = " ".join(STRETCHES[0].messages[0].content.split()[:4])
            assert summarize(STRETCHES[0]).text.startswith(f"{FRAME} {said}")
        # The next stretch is summarized in an empty window.
        assert [entry.segment.kind for entry in agent.context] == ["core_block"]


def test_a_value_that_a_summary_only_names_to_search_for_counts_apart() -> None:
    stretch = STRETCHES[0]
    first, second = stretch.facts[0].value, stretch.facts[1].value
    play = SummaryPlay("llm", [stretch], "some", 0, lambda text: None)
    (message,) = by_chance(stretch, Summary(stretch.messages[:1]), lambda part: 0, 0).messages
    text = f"{FRAME} Something about {first}. (Left out: {second}, then.)"
    play._see(stretch, Summary((replace(message, content=text),)))
    assert play.survives == [True, True] + [False] * (len(stretch.facts) - 2)
    assert play.only_named == [False, True] + [False] * (len(stretch.facts) - 2)


def test_every_system_is_measured_once_and_a_run_is_taken_up_again(tmp_path: Path) -> None:
    options = replace(QUICK, out=tmp_path / "s.json", systems=("extract", "whole"))
    first = run_summaries(options)
    assert [row.system for row in first] == ["extract", "whole"]
    assert len(json.loads((tmp_path / "s.json").read_text())["rows"]) == 2
    told: list[str] = []
    rows = run_summaries(replace(options, systems=SYSTEMS), progress=told.append)
    assert [row.system for row in rows] == list(SYSTEMS)
    assert [row for row in rows if row in first] == first
    assert {text.split(", ")[1].split(":")[0] for text in told} == {"llm", "random"}
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")
    llm, extract, chance, whole = rows
    assert whole.survives == 1 > extract.survives > chance.survives
    assert chance.tokens <= extract.tokens and {row.facts for row in rows} == {whole.facts}
    differences = against_extract(rows)
    assert differences is not None and differences[1] is not None
    assert differences[0].mean == pytest.approx(llm.survives - extract.survives)
    assert (differences[0].pairs, differences[1].pairs) == (llm.facts, llm.questions)
    drawn = render(rows)
    assert drawn.row_count == 4
    assert str(drawn.caption).startswith("llm less extract, facts survive: ")
    assert render(first).caption is None and against_extract(first) is None


def test_a_script_is_cut_into_stretches_and_one_without_facts_refused(tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    save(CONVERSATION, path)
    options = SummaryOptions(model="scripted", script=path, stretches=2, systems=("whole",))
    (row,) = run_summaries(options)
    assert row.stretches == 2 and row.survives == 1
    save(replace(CONVERSATION, facts=(), questions=()), path)
    with pytest.raises(InvalidInput, match="no stretch of about 300 tokens that states a fact"):
        run_summaries(options)


def row_of(stretches: Sequence[Stretch], survives: list[bool], **fields: object) -> SummaryRow:
    asked = {"answered_each": [], "questions": 0, "answered": None}
    return SummaryRow(
        **{
            **{name: 0.0 for name in SummaryRow.__dataclass_fields__},
            **asked,
            "system": "llm",
            "conversation": "one",
            "stretches": len(stretches),
            "facts": len(survives),
            "survives_each": survives,
            **fields,
        }  # type: ignore[arg-type]
    )


def test_conversations_are_pooled_so_that_every_fact_and_stretch_counts_the_same() -> None:
    few = row_of(STRETCHES[:1], [True], tokens=10.0, written_by=1.0, only_named=1.0)
    many = row_of(
        [*STRETCHES, STRETCHES[0]], [False, True, False], tokens=50.0, answered_each=[True, False]
    )
    (both,) = pooled([few, many])
    assert (both.stretches, both.facts, both.questions) == (4, 4, 2)
    assert both.survives_each == [True, False, True, False]
    assert (both.survives, both.answered) == (0.5, 0.5)
    assert (both.tokens, both.written_by, both.only_named) == (40, 0.25, 0.25)
    assert both.low < 0.5 < both.high and both.answered_low == 0
    (alone,) = pooled([few])
    assert alone.answered is None


def test_stretches_are_shared_among_conversations() -> None:
    assert SummaryOptions().shares == [12] * 5
    assert SummaryOptions(stretches=8, conversations=3).shares == [3, 3, 2]
    assert SummaryOptions(script=Path("x"), stretches=8).shares == [8]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"systems": ("magic",)}, "No system 'magic': use some of llm, extract"),
        ({"systems": ()}, "at least one system"),
        ({"conversations": 0}, "1..2, the stretches: got 0"),
        ({"conversations": 3}, "1..2, the stretches: got 3"),
    ],
)
def test_wrong_options_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        SummaryOptions(**{**asdict(QUICK), **wrong})


def test_the_command_leaves_out_what_only_chooses_rows() -> None:
    options = SummaryOptions(stretches=12, conversations=3, systems=("llm",), out=Path("x.json"))
    assert options.command == "agentmem bench summaries --conversations 3 --stretches 12"
