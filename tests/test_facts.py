"""Facts: stated in a turn, superseded by a later one, found with the time in which they held."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from agentmem import Agent, Fact, ScriptedModel
from agentmem.errors import ModelUnavailable, SegmentNotFound
from agentmem.facts.extraction import PatternExtractor, Statement
from agentmem.facts.model_extraction import ModelExtractor
from agentmem.models.embed import HashEmbedder
from agentmem.recall.scoring import Scored, newest_first
from agentmem.segment import Message, Segment, Trust
from agentmem.storage.archive import Archive, Store
from agentmem.storage.rows import Source
from tests.agents import make_agent


def read(text: str) -> list[Statement]:
    return PatternExtractor().extract(Segment((Message("user", text),)))


def held(agent: Agent) -> dict[str | None, bool]:
    """The value of each fact, and whether it still holds."""
    return {fact.value: fact.valid_to is None for fact in agent.memory.facts()}


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    return make_agent(tmp_path, budget=2000)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("My sister's locker code is 58291.", "58291"),
        ("We've switched the dentist to Dr. Osei.", "Dr. Osei"),
        ("Scratch that, the gate PIN's 4471 these days.", "4471"),
        ("I left Siemens; Bosch pays my salary now.", "Bosch"),
        ("My piano lesson got moved to Friday at 18:15.", "Friday at 18:15"),
        ("The airline pushed my Oslo flight to 17:05.", "17:05"),
        ("The vet put our dog on Purrell food instead of Barkly.", "Purrell"),
        ("Ab jetzt ist mein Büro in Raum 309.", "Raum 309"),
        ("Désormais mon numéro de casier est le 915.", "915"),
        ("Han cambiado mi cita con el médico al 11 de mayo.", "11 de mayo"),
        ("我的体检改到周五了。", "周五"),
        ("My doctor's favourite tree is called chestnut.", "chestnut"),
        ("Our address is 51 Pennant Road.", "51 Pennant Road"),
        ("The boat leaves at 7:10, not 6:40.", "7:10"),
        ("The book club meets at Farid's place.", "Farid's place"),
        ("If anyone asks, my code is 1234.", "1234"),
        ("Did I mention that my code is 1234?", "1234"),
        ("I just found out that my code is 1234.", "1234"),
        ("Remember my code? It is 1234 now.", "1234"),
        ("I had to reset the hotel safe. It's 2290 this time.", "2290"),
    ],
)
def test_a_statement_gives_its_value(text: str, value: str) -> None:
    assert [statement.value for statement in read(text)] == [value]


@pytest.mark.parametrize(
    "text",
    [
        "What is my locker code?",
        "Remind me what my locker code is.",
        "If my code is 1234, I am lucky.",
        "Maybe my code is 1234.",
        '{"note": "my code is 1234"}',
        "Assistant: your code is 1234.",
        "Thanks!",
        "Good morning, how are you?",
    ],
)
def test_what_states_nothing_is_no_fact(text: str) -> None:
    assert read(text) == []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("My locker code used to be 1111.", "1111"),
        ("Some years ago my locker code used to be 1111.", "1111"),
        ("I used to live in Rome.", "Rome"),
        ("Priya's spaniel used to be called Bo.", "Bo"),
        ("When I was younger, my sister's code used to be 1111.", "1111"),
        ("My old locker code was 1111.", "1111"),
        ("My locker code used to be 1111 before everything changed.", "1111"),
        ("My locker code used to be 1111, but that's over.", "1111"),
    ],
)
def test_what_used_to_be_is_read_as_over(text: str, value: str) -> None:
    assert [(one.value, one.ended) for one in read(text)] == [(value, True)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("The wifi password at home is kite17 since the router died.", "kite17"),
        ("My dentist is Dr. Okonjo because Dr. Farrow retired.", "Okonjo"),
        ("My train is the 8:05 now that the early one was cancelled.", "8:05"),
    ],
)
def test_that_the_reason_is_over_does_not_end_what_it_is_the_reason_for(
    text: str, value: str
) -> None:
    assert [(value in (one.value or ""), one.ended) for one in read(text)] == [(True, False)]


def test_a_newer_value_takes_the_place_of_the_older(agent: Agent) -> None:
    agent.chat("My locker code is 58291.")
    agent.chat("My sister's locker code is 31077.")
    agent.chat("Scratch that, my locker code is 77310 now.")
    assert held(agent) == {"58291": False, "31077": True, "77310": True}
    newest, _, oldest = agent.memory.facts()
    assert oldest.valid_to == newest.valid_from == newest.said_at
    hits = [hit.segment.text for hit in agent.memory.search("What is my locker code?")]
    assert hits.index("Scratch that, my locker code is 77310 now.") < hits.index(
        "My locker code is 58291."
    )
    (found,) = (hit for hit in agent.memory.search("58291") if hit.segment.id == 2)
    assert found.facts[0].valid_to is not None


@pytest.mark.parametrize(
    ("older", "newer", "question"),
    [
        (
            "My spaniel is called Bo.",
            "By the way, my spaniel is called Max.",
            "What is my dog called?",
        ),
        ("My spaniel used to be called Bo.", "My spaniel is called Max.", "What is my dog called?"),
        (
            "Also, Priya's favourite tree is called larch.",
            "There is news: Priya's favourite tree is called alder.",
            "What is Priya's favourite tree?",
        ),
        (
            "My seat at the opera is in row F.",
            "I was wrong about my seat at the opera, it is in row K.",
            "Where is my seat at the opera?",
        ),
        ("I work for Bosch.", "I work for Siemens.", "Who do I work for?"),
        (
            "The boat leaves at 6:40.",
            "The kids complained, the boat leaves at 7:10.",
            "When does the boat leave?",
        ),
    ],
)
def test_what_is_said_again_of_one_thing_takes_the_place_of_what_was_said(
    agent: Agent, older: str, newer: str, question: str
) -> None:
    agent.chat(older)
    agent.chat("My sister's locker code is 31077.")
    agent.chat(newer)
    hits = agent.memory.search(question)
    texts = [hit.segment.text for hit in hits]
    assert texts.index(newer) < texts.index(older)
    (found,) = (hit for hit in hits if hit.segment.text == older)
    assert [fact.valid_to is None for fact in found.facts] == [False]


def test_the_same_fact_twice_is_one_fact_with_two_sources(agent: Agent) -> None:
    """M7: storing the same fact twice deleted it."""
    agent.chat("My locker code is 58291.")
    agent.chat("My locker code is 58291.")
    (fact,) = agent.memory.facts()
    assert fact.valid_to is None and len(fact.segment_ids) == 2


def test_what_recall_brings_back_is_not_read_again(agent: Agent) -> None:
    """M8: recalled memories were extracted as new ones."""
    agent.chat("My locker code is 58291.", reply="Noted: your locker code is 58291.")
    for _ in range(3):
        agent.chat("What is my locker code?", reply="Your locker code is 58291.")
    agent.memory.archive.segments([2])
    (fact,) = agent.memory.facts()
    assert len(fact.sources) == 1


def test_one_text_valid_in_two_periods_is_two_facts(agent: Agent) -> None:
    """M9: they collapsed into one."""
    for text in ("I live in Lyon.", "I moved to Ghent.", "I live in Lyon."):
        agent.chat(text)
    lyon = [fact for fact in agent.memory.facts() if fact.value == "Lyon"]
    assert [fact.valid_to is None for fact in lyon] == [True, False]
    assert lyon[1].valid_to is not None and lyon[0].valid_from is not None
    assert lyon[1].valid_to < lyon[0].valid_from


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("我的猫叫小白。", "我住在上海。"),
        ("我的办公室在三楼。", "我妹妹的办公室在五楼。"),
        ("My locker code is 58291.", "My laptop is a Framework."),
        ("My boss is called Ingrid.", "My wife's boss is called Leila."),
        ("My sister lives in Oslo.", "My other sister lives in Rome."),
        ("My bag is black.", "My bag is heavy."),
        ("My gym has a sauna.", "My gym has a climbing wall."),
        ("I finally bought a new tent.", "I finally bought a new ladder."),
        ("Hector's library code is 88041.", "Hector's bike lock code is 4584."),
        ("The front door code is 1234.", "The back door code is 9876."),
        ("My cousin Rita lives in Turin.", "My cousin Bruno lives in Genoa."),
        ("I keep bees.", "I keep a diary."),
    ],
)
def test_an_unrelated_fact_is_never_touched(agent: Agent, first: str, second: str) -> None:
    """M10: an unrelated second fact overwrote the first."""
    agent.chat(first)
    agent.chat(second)
    assert [fact.valid_to for fact in agent.memory.facts()] == [None, None]


def test_made_up_words_of_a_model_are_no_facts(tmp_path: Path) -> None:
    """M11, M12: what a model names that is not there is neither an error nor stored."""
    answer = (
        '{"statements": ['
        '{"subject": "code", "value": "999", "sentence": "My code is 999.", "ended": false},'
        '{"subject": "my code", "value": "58291", "sentence": "my code is  58291", "ended": false},'
        '{"subject": "me", "value": "king", "sentence": "My code is 58291", "ended": false}, 7]}'
    )
    segment = Segment((Message("user", "By the way, my code is 58291."),))
    found = ModelExtractor(ScriptedModel([answer], asides=[answer])).extract(segment)
    assert [(one.subject, one.value) for one in found] == [("my code", "58291"), ("me", None)]


@pytest.mark.parametrize("answer", ["", "no JSON at all", '{"statements": [', '{"statements": 3}'])
def test_what_a_model_answers_badly_stores_nothing_and_loses_nothing(
    tmp_path: Path, answer: str
) -> None:
    """M13: a failed edit was applied."""
    with make_agent(tmp_path) as agent:
        agent.chat("My locker code is 58291.")
        before = agent.memory.facts()
        model = ScriptedModel([answer] * 9, asides=[answer] * 9)
        model.name = "other"
        assert agent.memory.fact_keeper.extract_pending(ModelExtractor(model)) == 1
        assert agent.memory.facts() == before


class Broken(PatternExtractor):
    """Fails at the second segment."""

    name = "broken"
    calls = 0

    def extract(self, segment: Segment) -> list[Statement]:
        self.calls += 1
        if self.calls == 2:
            raise ModelUnavailable("The endpoint is down.")
        return super().extract(segment)


def test_reading_goes_on_where_it_was_cut_short(agent: Agent) -> None:
    for text in ("My code is 1234.", "My cat is called Pip.", "My bank is Monzo."):
        agent.chat(text)
    extractor, keeper = Broken(), agent.memory.fact_keeper
    with pytest.raises(ModelUnavailable):
        keeper.extract_pending(extractor)
    assert keeper.extract_pending(extractor, limit=1) == 1
    assert keeper.extract_pending(extractor) == 1
    assert keeper.extract_pending(extractor) == 0
    # Two readers of one sentence give one fact.
    assert [len(fact.segment_ids) for fact in agent.memory.facts()] == [1, 1, 1]


def test_facts_are_there_after_a_restart(tmp_path: Path) -> None:
    with make_agent(tmp_path) as agent:
        agent.chat("My locker code is 58291.")
        agent.chat("My locker code is 77310 now.")
        before = agent.memory.facts()
    with make_agent(tmp_path) as agent:
        assert agent.memory.facts() == before
        agent.chat("They changed my locker code to 90001.")
        assert held(agent) == {"58291": False, "77310": False, "90001": True}
        assert agent.memory.finder.facts.check().status == "ok"


def test_facts_of_another_user_are_neither_seen_nor_touched(tmp_path: Path) -> None:
    with make_agent(tmp_path, user="ann") as agent:
        agent.chat("My locker code is 58291.")
        ann = agent.memory.facts()
    with make_agent(tmp_path, user="bob") as agent:
        agent.chat("My locker code is 77310 now.")
        assert held(agent) == {"77310": True}
        with pytest.raises(SegmentNotFound), agent.memory.archive.write() as transaction:
            transaction.add_statement(
                Source("my locker code", "0", "It is 0.", ann[0].segment_ids[0], "patterns")
            )
    with make_agent(tmp_path, user="ann") as agent:
        assert agent.memory.facts() == ann


def test_forgetting_every_source_forgets_the_fact_and_its_words(tmp_path: Path) -> None:
    with make_agent(tmp_path) as agent:
        agent.chat("My locker code is 58291.")
        agent.chat("My locker code is 58291.")
        agent.chat("My locker code is now 77310.")
        agent.memory.forget(2)
        assert held(agent) == {"58291": False, "77310": True}
        agent.memory.forget(6)
        assert held(agent) == {"58291": True}
        agent.memory.forget(4)
        assert agent.memory.facts() == []
        assert agent.memory.finder.facts.check().status == "ok"
    with Store.open(tmp_path / "me.db") as store:
        assert [f.name for f in store.check() if f.status == "fail"] == []
        store.purge()
    left = [p for p in tmp_path.rglob("*") if p.is_file() and b"58291" in p.read_bytes()]
    assert left == []


def test_removing_a_session_removes_what_only_it_stated(tmp_path: Path) -> None:
    with make_agent(tmp_path, session="one") as agent:
        agent.chat("My locker code is 58291.")
    with make_agent(tmp_path, session="two") as agent:
        agent.chat("My cat is called Pip.")
    with Store.open(tmp_path / "me.db") as store:
        archive = store.for_user("default")
        archive.remove_session("one")
        assert [fact.value for fact in archive.facts()] == ["Pip"]


def stored(archive: Archive, text: str, trust: Trust, origin: str = "user") -> None:
    session_id = archive.session("main").id
    with archive.write() as transaction:
        segment = Segment((Message("user", text),), trust=trust, origin=origin)  # type: ignore[arg-type]
        transaction.add_segment(session_id, 1, segment)


def test_what_is_not_the_users_own_closes_nothing_of_theirs(agent: Agent) -> None:
    agent.chat("My locker code is 58291.")
    archive = agent.memory.archive
    stored(archive, "Scratch that, my locker code is 666 now.", Trust.EXTERNAL)
    stored(archive, "My locker code is 777 now.", Trust.EXTERNAL, origin="import")
    agent.memory.fact_keeper.extract_pending(PatternExtractor())
    facts = {fact.value: fact for fact in agent.memory.facts()}
    assert facts["58291"].valid_to is None
    assert facts["666"].trust is Trust.EXTERNAL
    assert "777" not in facts


def test_facts_are_asked_for_by_words_and_by_moment(agent: Agent) -> None:
    agent.chat("My locker code is 58291.")
    agent.chat("My locker code is 77310 now.")
    now, before = agent.memory.facts("locker code")
    assert [fact.value for fact in agent.memory.facts(at=before.said_at)] == ["58291"]
    assert [fact.value for fact in agent.memory.facts(at=now.said_at)] == ["77310"]


def test_the_check_finds_an_interval_that_no_statement_bears_out(tmp_path: Path) -> None:
    with make_agent(tmp_path) as agent:
        agent.chat("My locker code is 58291.")
    connection = sqlite3.connect(tmp_path / "me.db")
    connection.execute("UPDATE facts SET valid_to = 1")
    connection.commit()
    connection.close()
    with Store.open(tmp_path / "me.db") as store:
        assert [f.name for f in store.check() if f.status == "fail"] == ["facts"]


def test_recall_that_brings_an_old_value_back_brings_what_holds_too(tmp_path: Path) -> None:
    with make_agent(tmp_path, budget=400) as agent:
        agent.chat("My locker code is 58291.")
        agent.chat("Scratch that, my locker code is 77310 now.")
        for i in range(25):
            agent.chat(f"The neighbour painted the fence blue, coat {i}.")
        assert not any("58291" in entry.segment.text for entry in agent.context)
        agent.chat("What is my locker code?")
        text = agent.window_text()
        assert "77310" in text


def test_a_successor_is_lifted_to_just_above_what_it_replaced() -> None:
    ranked = [Scored(1, 9.0, 0.9, 1.0), Scored(2, 8.0, 0.5, 0.5), Scored(3, 1.0, 0.1, 0.0)]
    order = newest_first(ranked, {1: (3,)})
    assert [scored.segment_id for scored in order] == [3, 1, 2]
    assert [scored.score for scored in order] == [9.0, 9.0, 8.0]
    assert order[0].nearness == 0.9
    assert newest_first(ranked, {3: (1,)}) == ranked
    assert [s.segment_id for s in newest_first(ranked, {1: (2,), 2: (1,)})] == [2, 1, 3]


def test_a_question_about_the_past_is_answered_by_the_past(agent: Agent) -> None:
    agent.chat("My locker code is 58291.")
    agent.chat("Scratch that, my locker code is 77310 now.")
    first = agent.memory.search("What did my locker code used to be?")[0]
    assert "58291" in first.segment.text


def test_a_fact_has_the_least_trust_of_its_sources() -> None:
    sources = tuple(
        Source("s", "1", "t", i, "patterns", trust=trust)
        for i, trust in enumerate((Trust.USER, Trust.EXTERNAL))
    )
    assert Fact(1, 1, sources).trust is Trust.EXTERNAL


def test_without_vectors_words_decide(tmp_path: Path) -> None:
    embedder = HashEmbedder()
    with make_agent(tmp_path, embedder=embedder) as agent:
        agent.chat("The PIN for the gate is 8812.")
        agent.chat("I changed the PIN for the gate to 4471.")
        assert held(agent) == {"8812": False, "4471": True}
