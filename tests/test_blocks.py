"""Core memory: edits that are whole or not at all, versions, and a place in every window."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentmem import Agent, Block, ScriptedModel, Store
from agentmem.block import Writer, check_room
from agentmem.blocks import Blocks
from agentmem.errors import BudgetTooSmall, InvalidInput, SegmentNotFound
from agentmem.storage.text import normalize_text
from tests.agents import make_agent, talk


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    with make_agent(tmp_path, budget=1000) as opened:
        opened.chat("My name is Ann.")
        yield opened


@pytest.fixture
def blocks(agent: Agent) -> Blocks:
    return agent.memory.blocks


def shown(agent: Agent) -> list[str]:
    """What stands in the window before the conversation."""
    return [e.segment.text for e in agent.context.entries if e.segment.kind == "core_block"]


def test_three_blocks_are_there_from_the_start_and_take_no_room(agent: Agent) -> None:
    labels = [(one.label, one.text, one.version) for one in agent.memory.blocks.list()]
    assert labels == [("human", "", 0), ("instructions", "", 0), ("persona", "", 0)]
    assert shown(agent) == ["Be kind."]


def test_the_current_version_stands_behind_the_system_prompt_and_names_its_label(
    agent: Agent, blocks: Blocks
) -> None:
    blocks.append("human", "Name: Ann")
    blocks.append("human", "Likes tea")
    blocks.replace("human", "tea", "coffee")
    assert shown(agent) == [
        "Be kind.",
        "Core memory, human (what is known of the user):\nName: Ann\nLikes coffee",
    ]
    first, second, *rest = agent.context.prompt()
    assert [message.role for part in (first, second) for message in part.messages] == [
        "system",
        "system",
    ]
    assert all(part.messages[0].role != "system" for part in rest)
    assert blocks.get("human").text == "Name: Ann\nLikes coffee"
    agent.chat("Hello")
    assert isinstance(agent.model, ScriptedModel)
    assert agent.model.history[-1].prompt[1].messages[0].content.endswith("Likes coffee")


def test_every_version_is_a_segment_made_from_the_one_before(agent: Agent, blocks: Blocks) -> None:
    ids = [blocks.rewrite("persona", f"I am number {i}.").segment_id for i in range(3)]
    stored = [agent.memory.segment(one or 0) for one in ids]
    assert [s.segment.parents for s in stored] == [(), (ids[0],), (ids[1],)]
    assert [s.state for s in stored] == ["archived", "archived", "live"]
    assert not any(s.searchable for s in stored)
    agent.chat("Hello")
    assert agent.model.kv is not None and agent.model.kv.has(ids[2] or 0)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """An agent with a block, for what changes nothing."""
    with make_agent(tmp_path_factory.mktemp("filled"), budget=1000) as opened:
        opened.memory.blocks.rewrite("human", "Name: Ann\nLikes tea\nLikes tea late")
        yield opened


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda b: b.append("human", "  \n"), "`text` must not be empty"),
        (lambda b: b.append("human", "Likes tea"), "says that already"),
        (lambda b: b.append("human", "word " * 200), "at most 128 are allowed. Say it in"),
        (lambda b: b.append("Human", "x"), "got 'Human'"),
        (lambda b: b.append("", "x"), "got ''"),
        (lambda b: b.append("human", 5), "`text` must be a text: got 5"),
        (lambda b: b.replace("human", "Bob", "Ann"), "does not stand in block `human`. It says: N"),
        (lambda b: b.replace("human", "", "Ann"), "`old_text` must not be empty"),
        (lambda b: b.replace("human", " ", "Ann"), "`old_text` must not be empty"),
        (lambda b: b.replace("human", "Likes tea", "x"), "stands 2 times in block `human`"),
        (lambda b: b.replace("human", b.get("human").text, ""), "must not be empty"),
        (lambda b: b.replace("human", "Ann", "word " * 200), "at most 128 are allowed"),
        (lambda b: b.replace("persona", "Ann", "Bob"), "It is empty"),
        (lambda b: b.rewrite("human", ""), "`text` must not be empty"),
        (lambda b: b.rewrite("human", b.get("human").text), "says that already"),
        (lambda b: b.rewrite("human", "word " * 200), "at most 128 are allowed"),
        (lambda b: b.undo("persona"), "no edit to undo"),
        (lambda b: b.undo("pets"), "There is no block 'pets': there are human, instructions"),
        (lambda b: b.get("pets"), "There is no block 'pets'"),
        (lambda b: b.history("pets"), "There is no block 'pets'"),
        (lambda b: b.define("human", description="a\nb"), "one line of at most 80"),
        (lambda b: b.define("human", max_tokens=0), "`max_tokens` must be positive: got 0"),
    ],
)
def test_what_is_refused_says_why_and_changes_nothing(
    filled: Agent, edit: Callable[[Blocks], object], words: str
) -> None:
    agent, blocks = filled, filled.memory.blocks
    before = (blocks.list(), blocks.history("human"), shown(agent), agent.context.snapshot())
    count = len(agent.memory.archive.session_segments(agent.memory.session.id))
    with pytest.raises(InvalidInput, match=words.replace("(", r"\(")):
        edit(blocks)
    after = (blocks.list(), blocks.history("human"), shown(agent), agent.context.snapshot())
    assert after == before
    assert len(agent.memory.archive.session_segments(agent.memory.session.id)) == count


def test_all_blocks_together_take_at_most_a_fifth_of_the_budget(
    agent: Agent, blocks: Blocks
) -> None:
    blocks.rewrite("human", "tea " * 90)
    with pytest.raises(InvalidInput, match="at most 200 of the budget of 1000 are theirs"):
        blocks.rewrite("persona", "kind " * 90)
    blocks.rewrite("persona", "kind " * 50)
    # What makes a block shorter is always welcome.
    blocks.rewrite("human", "tea " * 40)


def test_a_block_that_would_leave_no_room_for_the_newest_turn_is_refused(tmp_path: Path) -> None:
    with make_agent(tmp_path, budget=400) as agent:
        agent.chat("word " * 100, reply="word " * 75)
        with pytest.raises(InvalidInput, match="no room for .* tokens of block `human`"):
            agent.memory.blocks.append("human", "tea " * 60)
        agent.memory.blocks.append("human", "Name: Ann")
        agent.chat("Hello")


def test_any_label_may_be_made_with_a_description_and_a_limit(agent: Agent, blocks: Blocks) -> None:
    blocks.define("pets", description="the animals", max_tokens=30)
    blocks.append("pets", "Rex, a dog")
    assert shown(agent)[1] == "Core memory, pets (the animals):\nRex, a dog"
    with pytest.raises(InvalidInput, match="at most 30 are allowed"):
        blocks.append("pets", "Tom, a cat, who sleeps on the chair in the kitchen all day long")
    blocks.define("pets", max_tokens=60)
    assert blocks.get("pets").description == "the animals"
    blocks.append("pets", "Tom, a cat, who sleeps on the chair in the kitchen all day long")


def test_undo_goes_back_further_each_time_and_every_step_is_kept(
    agent: Agent, blocks: Blocks
) -> None:
    for text in ("one", "two", "three"):
        blocks.rewrite("human", text)
    assert [blocks.undo("human").text for _ in range(3)] == ["two", "one", ""]
    with pytest.raises(InvalidInput, match="no edit to undo"):
        blocks.undo("human")
    assert shown(agent) == ["Be kind."]
    blocks.append("human", "four")
    assert blocks.undo("human").text == ""
    history = blocks.history("human")
    assert [v.text for v in history] == ["one", "two", "three", "two", "one", "", "four", ""]
    assert [v.edit.version for v in history] == list(range(1, 9))
    assert [v.edit.reason for v in history[3:5]] == ["Undo of version 3.", "Undo of version 2."]


def test_after_an_undo_the_next_undo_takes_back_what_came_after_it(blocks: Blocks) -> None:
    blocks.rewrite("human", "one")
    blocks.rewrite("human", "two")
    blocks.undo("human")
    blocks.rewrite("human", "three")
    assert [blocks.undo("human").text for _ in range(2)] == ["one", ""]


def test_history_says_who_when_in_which_turn_and_why(blocks: Blocks) -> None:
    blocks.append("human", "Name: Ann")
    blocks.append("human", "Likes tea", by=Writer("some-model", "It was said."))
    first, second = (version.edit for version in blocks.history("human"))
    assert (first.maker, first.operation, first.reason) == (
        "user",
        "append",
        "The user asked for it.",
    )
    assert (second.maker, second.reason, second.turn) == ("some-model", "It was said.", 1)
    assert second.created >= first.created > 1e9


def test_another_session_of_the_user_sees_it_and_another_user_does_not(tmp_path: Path) -> None:
    with make_agent(tmp_path, budget=1000) as agent:
        agent.memory.blocks.append("human", "Name: Ann")
    with make_agent(tmp_path, budget=1000, session="other") as other:
        assert shown(other)[1].endswith("Name: Ann")
    with make_agent(tmp_path, budget=1000, user="bob") as bob:
        assert shown(bob) == ["Be kind."]
        assert bob.memory.blocks.history("human") == ()
        with pytest.raises(InvalidInput, match="no edit to undo"):
            bob.memory.blocks.undo("human")


def test_a_session_that_is_open_sees_it_at_its_next_turn(tmp_path: Path) -> None:
    with (
        make_agent(tmp_path, budget=1000) as first,
        make_agent(tmp_path, budget=1000, session="other") as second,
    ):
        first.memory.blocks.append("human", "Name: Ann")
        second.chat("Hello")
        assert shown(second)[1].endswith("Name: Ann")
        second.memory.blocks.rewrite("human", "Name: Anna")
        first.chat("Hello")
        assert len(shown(first)) == 2 and shown(first)[1].endswith("Name: Anna")


def test_an_edit_that_another_session_overtakes_is_made_on_what_it_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        make_agent(tmp_path, budget=1000) as first,
        make_agent(tmp_path, budget=1000, session="other") as second,
    ):
        overtake = iter([lambda: second.memory.blocks.append("human", "Likes tea")])

        def slow(*arguments: Any) -> None:
            next(overtake, lambda: None)()
            check_room(*arguments)

        monkeypatch.setattr("agentmem.blocks.check_room", slow)
        first.memory.blocks.append("human", "Name: Ann")
        assert first.memory.blocks.get("human").text == "Likes tea\nName: Ann"
        made = first.memory.archive.session_segments(first.memory.session.id)
        assert len([s for s in made if s.segment.kind == "core_block"]) == 2  # the prompt, one


def test_a_restart_and_a_new_system_prompt_keep_it_in_its_place(tmp_path: Path) -> None:
    with make_agent(tmp_path, budget=1000) as agent:
        agent.chat("Hello")
        agent.memory.blocks.append("human", "Name: Ann")
        window = agent.memory.archive.window(agent.memory.session.id)
        assert [row.segment_id for row in window][:2] == [e.id for e in agent.context.entries][:2]
    with make_agent(tmp_path, budget=1000, system_prompt="Be brief.") as agent:
        assert shown(agent) == [
            "Be brief.",
            "Core memory, human (what is known of the user):\nName: Ann",
        ]
        assert agent.memory.blocks.undo("human").text == ""


def test_a_long_conversation_never_loses_it_and_stays_within_its_budget(tmp_path: Path) -> None:
    with make_agent(tmp_path, budget=500) as agent:
        agent.memory.blocks.append("human", "Name: Ann")
        for reply in talk(agent, 25):
            assert reply.usage.peak_tokens <= 500
        assert shown(agent)[1].endswith("Name: Ann")
        assert sum(tokens for _, tokens in agent.context.bar()) == 500


def test_no_decision_moves_a_block(agent: Agent, blocks: Blocks) -> None:
    old = blocks.rewrite("human", "Name: Ann").segment_id or 0
    new = blocks.rewrite("human", "Name: Anna").segment_id or 0
    for verb in (agent.memory.drop, agent.memory.summarize):
        with pytest.raises(InvalidInput, match="core memory: it always stays"):
            verb(new)
    for verb in (agent.memory.restore, agent.memory.pin):
        with pytest.raises(InvalidInput, match="former version of core memory"):
            verb(old)
    assert blocks.get("human").segment_id == new


def test_forgetting_a_version_scrubs_it_and_what_came_after_it(
    agent: Agent, blocks: Blocks, tmp_path: Path
) -> None:
    blocks.append("human", "Name: Ann")
    secret = blocks.append("human", "Code: ZEBRA-58291").segment_id or 0
    later = blocks.append("human", "Likes tea").segment_id or 0
    agent.chat("Hello")
    receipt = agent.memory.forget(secret)
    assert receipt["made_of_it"] == [later]
    assert blocks.get("human").text == "Name: Ann"
    assert [version.text for version in blocks.history("human")] == ["Name: Ann"]
    assert shown(agent)[1].endswith("Name: Ann") and len(shown(agent)) == 2
    with pytest.raises(SegmentNotFound):
        agent.memory.segment(secret)
    assert blocks.append("human", "Likes tea").version == 4, "a version's number is never reused"
    agent.close()
    with Store.open(tmp_path / "me.db") as store:
        assert store.purge()
    for file in tmp_path.iterdir():
        if file.is_file():
            assert b"ZEBRA-58291" not in file.read_bytes(), file.name


def test_forgetting_the_message_takes_back_what_was_learned_from_it(
    agent: Agent, blocks: Blocks
) -> None:
    blocks.append("human", "Likes tea")
    message = agent.memory.turn_segments(1)[0].segment.id
    blocks.append("human", "Name: Ann", by=Writer("m", "It was said.", (message,)))
    agent.memory.forget(message)
    assert blocks.get("human").text == "Likes tea"
    again = blocks.get("human").segment_id
    assert again is not None and agent.memory.segment(again).state == "live"


def test_removing_a_session_removes_what_was_written_in_it(tmp_path: Path) -> None:
    with make_agent(tmp_path, budget=1000) as agent:
        agent.memory.blocks.append("human", "Name: Ann")
    with make_agent(tmp_path, budget=1000, session="other") as other:
        other.memory.blocks.append("human", "Likes tea")
    with Store.open(tmp_path / "me.db") as store:
        archive = store.for_user("default")
        archive.remove_session("other")
        assert [f.name for f in store.check() if f.status == "fail"] == []
    with make_agent(tmp_path, budget=1000) as agent:
        assert agent.memory.blocks.get("human").text == "Name: Ann"
        assert shown(agent)[1].endswith("Name: Ann")


def test_a_budget_that_cannot_hold_the_blocks_is_refused(tmp_path: Path) -> None:
    with make_agent(tmp_path, budget=1000) as agent:
        agent.memory.blocks.rewrite("human", "tea " * 100)
    with pytest.raises(BudgetTooSmall, match="with core memory"):
        make_agent(tmp_path, budget=220)


EDITS = st.lists(
    st.tuples(
        st.sampled_from(["append", "replace", "rewrite", "undo"]),
        st.sampled_from(["human", "persona"]),
        st.text("ab \n", max_size=3),
        st.text("ab", max_size=40) | st.text(max_size=6),
    ),
    min_size=3,
    max_size=12,
)


@settings(
    deadline=None, max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(EDITS)
def test_any_edits_keep_the_limits_and_history_replays_to_the_current_text(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[str, str, str, str]]
) -> None:
    folder = tmp_path_factory.mktemp("edits")
    with make_agent(folder, ScriptedModel()) as agent:
        blocks = agent.memory.blocks
        for label in ("human", "persona"):
            blocks.define(label, max_tokens=30)
        # What the block says, and below it all that undoing goes back to.
        texts: dict[str, list[str]] = {"human": [""], "persona": [""]}
        told: dict[str, list[str]] = {"human": [], "persona": []}
        for operation, label, old, new in edits:
            before = blocks.get(label)
            try:
                after = _apply(blocks, operation, label, old, new)
            except InvalidInput:
                assert blocks.get(label) == before
                continue
            line = texts[label]
            line[:] = (
                line[:-1] if operation == "undo" else [*line, _made(operation, line, old, new)]
            )
            told[label].append(line[-1])
            assert after.text == line[-1] and after.num_tokens <= 30
        for label, said in told.items():
            assert [version.text for version in blocks.history(label)] == said
            assert blocks.get(label).text == texts[label][-1]
        held = [one.segment_id for one in blocks.list() if one.segment_id is not None]
        in_window = [e.id for e in agent.context if not e.segment.is_system_prompt]
        assert sorted(in_window) == sorted(held)


def _apply(blocks: Blocks, operation: str, label: str, old: str, new: str) -> Block:
    if operation == "undo":
        return blocks.undo(label)
    if operation == "replace":
        return blocks.replace(label, old, new)
    return blocks.append(label, new) if operation == "append" else blocks.rewrite(label, new)


def _made(operation: str, line: list[str], old: str, new: str) -> str:
    """What an edit makes of the last text."""
    new = normalize_text(new)
    if operation == "replace":
        return line[-1].replace(old, new).strip()
    return f"{line[-1]}\n{new.strip()}".strip() if operation == "append" else new.strip()
