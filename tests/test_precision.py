"""Keeping segments at a chosen precision: who may, what is recorded, and what comes back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentmem import Agent, Budget, Decided, ScriptedModel, Store, open_memory, replay
from agentmem.errors import InvalidInput
from agentmem.models.base import Capabilities, Options, complete
from agentmem.models.embed import HashEmbedder
from agentmem.models.local import LocalModel
from agentmem.review.tools import ReviewTools
from tests.agents import make_agent, talk
from tests.cli_run import run_cli
from tests.local_models import conversation, part
from tests.tiny_models import save_tiny_model

LOGITS = Capabilities(has_logits=True)


def told(agent: Agent) -> dict[Any, Any]:
    """What the tier was told."""
    assert isinstance(agent.model, ScriptedModel) and agent.model.kv is not None
    return agent.model.kv.precisions


def test_the_tier_is_told_what_the_user_chose_and_so_is_why(tmp_path: Path) -> None:
    with make_agent(tmp_path) as agent:
        talk(agent, 2)
        agent.memory.keep(2, 3, precision="q4")
        assert told(agent) == {2: "q4", 3: "q4"}
        made = agent.memory.archive.decisions(segment_id=2)[0]
        assert made.decision.precision == made.effect["precision"] == "q4"
        agent.memory.keep(2, precision="binary")
        assert told(agent) == {2: "binary", 3: "q4"}
        why = str(agent.memory.why(2))
        assert "stored as q4, before as in the whole session." in why
        assert "stored as binary, before q4." in why


def test_keeping_without_a_precision_changes_none(tmp_path: Path) -> None:
    with make_agent(tmp_path) as agent:
        talk(agent, 1)
        agent.memory.keep(2, precision="q4")
        agent.memory.keep(2)
        assert told(agent) == {2: "q4"}


def test_undo_brings_the_former_choice_back(tmp_path: Path) -> None:
    with make_agent(tmp_path) as agent:
        talk(agent, 2)
        agent.memory.keep(2, precision="q4")
        agent.memory.keep(2, 3, precision="binary")
        agent.memory.undo()
        assert told(agent) == {2: "q4"}
        agent.memory.undo()
        assert told(agent) == {}


def test_a_choice_holds_in_the_next_process_also_where_it_was_made_without_a_model(
    tmp_path: Path,
) -> None:
    with make_agent(tmp_path) as agent:
        talk(agent, 2)
        agent.memory.keep(2, precision="dense")
    with open_memory(store=tmp_path / "me.db", embedder=HashEmbedder()) as memory:
        memory.keep(3, precision="q4")
    with make_agent(tmp_path) as agent:
        assert told(agent) == {2: "dense", 3: "q4"}
        talk(agent, 1)
    with make_agent(tmp_path) as agent:
        assert told(agent) == {2: "dense", 3: "q4"}


def test_a_choice_that_was_not_committed_is_none(tmp_path: Path) -> None:
    with make_agent(tmp_path) as agent:
        talk(agent, 1)
        with pytest.raises(RuntimeError), agent.memory._precisions.committed():
            with agent.memory.archive.write() as transaction:
                agent.memory._precisions.choose(transaction, {2: "q4"})
                raise RuntimeError
        agent.memory.keep(3, precision="q8")
        assert told(agent) == {3: "q8"}


@pytest.mark.parametrize("precision", ["q3", "klt", "", "Q4"])
def test_there_are_only_so_many_precisions(tmp_path: Path, precision: Any) -> None:
    with make_agent(tmp_path) as agent:
        talk(agent, 1)
        with pytest.raises(InvalidInput, match=r"must be one of dense, q8, fp8, q4, binary: got"):
            agent.memory.keep(2, precision=precision)
        assert told(agent) == {}


def test_a_model_without_kv_of_segments_has_no_precision_to_choose(tmp_path: Path) -> None:
    with make_agent(tmp_path, ScriptedModel()) as agent:
        talk(agent, 1)
        with pytest.raises(InvalidInput, match="keeps no KV of segments"):
            agent.memory.keep(2, precision="q4")


def test_such_a_session_replays_to_the_same_state(tmp_path: Path) -> None:
    with make_agent(tmp_path) as agent:
        talk(agent, 2)
        agent.memory.keep(2, precision="q4")
        agent.memory.keep(3, precision="binary")
        agent.memory.undo()
        talk(agent, 6)
    with Store.open(tmp_path / "me.db") as store:
        came_to = replay(store.for_user("default"))
    assert came_to.same, came_to.difference


def test_the_command_takes_a_precision(tmp_path: Path) -> None:
    with make_agent(tmp_path) as agent:
        talk(agent, 1)
    store = str(tmp_path / "me.db")
    kept = run_cli("keep", "2", "--precision", "q4", "--store", store)
    assert kept.code == 0, kept.stderr
    assert run_cli("keep", "2", "--precision", "q5", "--store", store).code == 2
    with make_agent(tmp_path) as agent:
        assert told(agent) == {2: "q4"}


# The controller


def reviewed(folder: Path, capabilities: Capabilities, call: str) -> tuple[Agent, list[Decided]]:
    """An agent whose model answers a review with one call about the oldest message."""
    model = ScriptedModel(has_kv=capabilities.has_kv, capabilities=capabilities, asides=[call] * 9)
    budget = Budget(900, warn_at=0.3, free_to=0.2)
    agent = make_agent(folder, model, controller="tools", budget=budget, recall="off")
    made: list[Decided] = []
    for turn in range(9):
        events = agent.events(f"{turn}. " + "We walked to the market and bought apples. " * 4)
        made += [event for event in events if isinstance(event, Decided)]
    return agent, made


def call_to_keep(**arguments: Any) -> str:
    return json.dumps([{"name": "keep_segments", "arguments": {"segment_ids": [2], **arguments}}])


def test_the_controller_keeps_at_a_precision_where_there_is_kv(tmp_path: Path) -> None:
    with_kv = Capabilities(has_logits=True, has_kv=True)
    agent, made = reviewed(tmp_path, with_kv, call_to_keep(precision="q4"))
    with agent:
        kept = next(one for one in made if one.action == "keep")
        assert kept.valid and kept.source == "controller"
        assert kept.tool_call is not None and kept.tool_call["arguments"]["precision"] == "q4"
        assert told(agent) == {2: "q4"}
        assert isinstance(agent.model, ScriptedModel)
        asked = next(one for one in agent.model.history if one.options.json_schema is not None)
        assert "smaller, blurred" in asked.messages[-1].content
        assert '"precision"' in json.dumps(asked.options.json_schema)
    with Store.open(tmp_path / "me.db") as store:
        assert replay(store.for_user("default")).same


def test_the_controller_is_told_of_none_where_there_is_no_kv(tmp_path: Path) -> None:
    agent, made = reviewed(tmp_path, LOGITS, call_to_keep(precision="q4"))
    with agent:
        assert not [one for one in made if one.action == "keep"]
        assert isinstance(agent.model, ScriptedModel)
        asked = [one for one in agent.model.history if one.options.json_schema is not None]
        assert "precision" not in asked[0].messages[-1].content
        assert "precision" not in json.dumps(asked[0].options.json_schema)
        assert "`precision` must be left out: got 'q4'" in asked[1].messages[-1].content


def test_what_calls_tools_sees_the_precision_only_where_there_is_one() -> None:
    def shown(*precisions: Any) -> str:
        tools = ReviewTools(
            (), alternatives={}, maker="", max_tokens_freed=0, precisions=precisions
        )
        return json.dumps(tools.described(["keep_segments"])[0].parameters)

    assert "precision" in shown("q4") and "precision" not in shown()


# A model with tensors


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def model(model_folder: Path) -> Iterator[LocalModel]:
    loaded = LocalModel.load(model_folder, kv_format="q8")
    yield loaded
    loaded.close()


LONG = part(20, "assistant", "The quick brown fox jumps over a lazy dog and then another one. " * 6)
PROMPT = [LONG if one.key == LONG.key else one for one in conversation(3)]


def read(model: LocalModel) -> None:
    complete(model, PROMPT, Options(max_new_tokens=0, max_tokens=2000))


def test_fewer_bits_are_made_without_reading_and_more_by_reading_that_segment_alone(
    model: LocalModel,
) -> None:
    kv = model.kv
    assert kv is not None
    for _ in range(2):
        read(model)
    before, nbytes = model.num_computed_tokens, kv.usage().window_bytes
    kv.keep_as(20, "q4")
    read(model)
    assert model.num_computed_tokens == before and kv.usage().window_bytes < nbytes
    kv.keep_as(20, "dense")
    read(model)
    assert model.num_computed_tokens - before == model.count_tokens(LONG)
    assert kv.usage().states[20] == "live" and kv.usage().states[10] == "compressed"
    assert kv.usage().window_bytes > nbytes


def test_what_left_the_window_comes_back_as_it_was_kept(model: LocalModel) -> None:
    kv = model.kv
    assert kv is not None
    read(model)
    kv.keep_as(20, "q4")
    read(model)
    nbytes = kv.usage().window_bytes
    without = [one for one in PROMPT if one.key != LONG.key]
    complete(model, without, Options(max_new_tokens=0, max_tokens=2000))
    before = model.num_computed_tokens
    read(model)
    assert (model.num_computed_tokens, kv.usage().window_bytes) == (before, nbytes)


def test_the_newest_turn_is_dense_whatever_it_is_kept_at(model: LocalModel) -> None:
    kv = model.kv
    assert kv is not None
    kv.keep_as(99, "binary")
    prompt = [*conversation(2), part(99, "assistant", "Another fox."), part(98, "user", "Yes?")]
    complete(model, prompt, Options(max_new_tokens=0, max_tokens=2000))
    assert kv.usage().states[98] == "live"


def test_a_segment_kept_dense_is_in_the_next_process_what_it_was(
    tmp_path: Path, model_folder: Path
) -> None:
    def opened() -> Agent:
        return Agent(
            LocalModel.load(model_folder, kv_format="q8"),
            store=tmp_path / "me.db",
            embedder=HashEmbedder(),
            controller="policy",
            budget=1200,
            max_new_tokens=8,
            recall="off",
        )

    with opened() as agent:
        talk(agent, 1)
        agent.memory.keep(2, precision="dense")
        agent.memory.keep(3, precision="binary")
        talk(agent, 2)
        states = agent.memory.held_states()
        assert states[2] == "live" and states[3] == "compressed"
        nbytes = agent.usage.kv_bytes
    with opened() as agent:
        talk(agent, 1)
        assert isinstance(agent.model, LocalModel)
        assert agent.memory.held_states()[2] == "live"
        assert agent.usage.kv_bytes > nbytes
        agent.memory.undo()
        talk(agent, 2)
        assert agent.memory.held_states()[3] == "compressed"
