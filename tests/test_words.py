"""Finding segments by their words: in any language, incremental, and one user's alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentmem.errors import InvalidInput
from agentmem.segment import Message, Segment, ToolCall
from agentmem.storage.archive import Archive, Store
from agentmem.storage.postings import Postings
from agentmem.storage.terms import analyze
from agentmem.storage.text import normalize_text
from agentmem.storage.words import WordIndex


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    path = tmp_path_factory.mktemp("words") / "me.db"
    with Store.open(path, durability="relaxed") as opened:
        yield opened


_count = iter(range(10**6))


@pytest.fixture
def archive(store: Store) -> Archive:
    return store.for_user(f"user-{next(_count)}")


def say(archive: Archive, *texts: str) -> list[int]:
    session_id = archive.session("main").id
    with archive.write() as transaction:
        return [
            transaction.add_segment(session_id, 1, Segment((Message("user", text),))).id
            for text in texts
        ]


def found(archive: Archive, query: str, texts: list[str]) -> list[str]:
    """The texts a query finds, best first."""
    ids = say(archive, *texts)
    hits, _ = WordIndex(archive).search(query, 100)
    return [texts[ids.index(hit)] for hit in hits.tolist()]


# Terms.


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("", []),
        ("The cat and the dog", ["cat", "dog"]),
        ("running runs Runner", ["run", "run", "runner"]),
        ("my code is 58291", ["code", "58291"]),
        ("order AB-1234-X.", ["order", "ab", "1234", "x", "ab-1234-x"]),
        ("on 2024-05-01 at 10:30", ["2024", "05", "01", "2024-05-01", "10", "30", "10:30"]),
        ("pi is 3.14, v1.2.3", ["pi", "3", "14", "3.14", "v1", "2", "3", "v1.2.3"]),
        ("paid 1,234,567.50 or 12,5", ["paid", "1234567.50", "12", "5", "12,5"]),
        ("user-id foo_bar", ["user", "id", "foo", "bar"]),
        ("C++ and C# code", ["c++", "c#", "code"]),
        ("Ann's dog, don’t", ["ann", "dog"]),
        ("STRASSE Straße", ["strass", "strass"]),
        ("ﬁle ｆｕｌｌ ①", ["file", "full", "1"]),
        ("cafe\u0301 café", ["café", "café"]),
        ("ro\u00adck ro\u200bck", ["rock", "rock"]),
        ("日本語", ["日", "本", "語", "日本", "本語"]),
        ("私はcatが好き", ["私", "は", "私は", "cat", "が", "好", "き", "が好", "好き"]),
        ("สวัสดี", [*"สวัสดี", "สว", "วั", "ัส", "สด", "ดี"]),
        ("학교에서", [*"학교에서", "학교", "교에", "에서"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("кошка и собака", ["кошка", "и", "собака"]),
        ("שלום עולם", ["שלום", "עולם"]),
        ("مَرحبا", ["مَرحبا"]),
        ("party 🎉!", ["parti", "🎉"]),
        ('"AND" OR NEAR( * ^ :', ["near"]),
        ("... --- !!!", []),
        ("x" * 200, ["x" * 64]),
    ],
)
def test_text_becomes_terms(text: str, terms: list[str]) -> None:
    assert sorted(analyze(text)) == sorted(terms)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=200))
def test_any_text_has_terms_without_white_space(text: str) -> None:
    for term in analyze(text):
        assert term and term.split() == [term] and len(term) <= 64
    assert analyze(text) == analyze(text)


# BM25.


def test_scores_are_those_of_the_formula() -> None:
    bags = [["a", "b", "a"], ["b"], ["c", "c", "c", "d"], []]
    postings = Postings(k1=1.2, b=0.75)
    for number, bag in enumerate(bags, start=1):
        postings.add(number, bag)
    average = sum(map(len, bags)) / len(bags)
    ids, scores = postings.scores(["a", "b", "zebra", "a"])
    assert ids.tolist() == [1, 2, 3, 4]
    for bag, score in zip(bags, scores.tolist(), strict=True):
        expected = 0.0
        for term in ("a", "b"):
            holding = sum(term in other for other in bags)
            idf = math.log(1 + (len(bags) - holding + 0.5) / (holding + 0.5))
            count = Counter(bag)[term]
            length = 1.2 * (0.25 + 0.75 * len(bag) / average)
            expected += idf * count * 2.2 / (count + length)
        assert score == pytest.approx(expected, rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(1, 8), st.lists(st.sampled_from("abcd"))), max_size=30
    )
)
def test_postings_after_any_history_are_those_of_what_is_in(steps: list[Any]) -> None:
    postings = Postings()
    bags: dict[int, list[str]] = {}
    for is_add, number, bag in steps:
        postings.remove(number)
        bags.pop(number, None)
        if is_add:
            postings.add(number, bag)
            bags[number] = bag
    fresh = Postings()
    for number in sorted(bags):
        fresh.add(number, bags[number])
    assert postings.contents() == fresh.contents() == {n: Counter(b) for n, b in bags.items()}
    assert len(postings) == len(bags)
    for wanted, got in zip(fresh.scores("abcd"), postings.scores("abcd"), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_a_document_is_put_in_once() -> None:
    postings = Postings()
    postings.add(1, ["a"])
    with pytest.raises(ValueError, match="Document 1"):
        postings.add(1, ["b"])
    assert 1 in postings and 2 not in postings


# Search.


@pytest.mark.parametrize(
    ("query", "wanted", "others"),
    [
        ("What is my locker code?", "My locker code is 58291.", ["I like tea.", "Nice weather."]),
        ("58291", "My locker code is 58291.", ["My locker code is 58292."]),
        ("ab-1234-x", "Order AB-1234-X arrived", ["Order AB-1235-X arrived"]),
        ("駅はどこ", "駅は右にあります", ["猫が好き", "今日は晴れ"]),
        ("图书馆在哪里", "我在图书馆工作", ["我喜欢喝茶"]),
        ("동물원", "동물원에서 코끼리를 봤다", ["커피를 마셨다"]),
        ("โรงเรียน", "ฉันไปโรงเรียนทุกวัน", ["แมวนอน"]),
        ("собака", "Моя собака спит", ["Кошка ест"]),
        ("كلب", "عندي كلب كبير", ["القطة نائمة"]),
        ("CAFÉ", "we met at the cafe\u0301", ["we met at the bar"]),
        ("c++", "I write C++ all day", ["I write C all day"]),
    ],
)
def test_what_was_asked_for_comes_first(
    archive: Archive, query: str, wanted: str, others: list[str]
) -> None:
    assert found(archive, query, [*others, wanted])[0] == wanted


@pytest.mark.parametrize(
    "query",
    ['"', "'", "hello AND", "*", "a:b", "NEAR(", "foo OR", "^", "\0", "(hello", "\ud83d", "%", "",
     "   ", "'; DROP TABLE words; --", "hello" * 10_000],
)  # fmt: skip
def test_no_query_has_a_syntax(archive: Archive, query: str) -> None:
    say(archive, "hello world")
    ids, scores = WordIndex(archive).scores(query)
    assert ids.size == 1 and np.isfinite(scores).all()


def test_a_query_must_be_text(archive: Archive) -> None:
    with pytest.raises(InvalidInput, match="NoneType"):
        WordIndex(archive).search(None, 3)  # type: ignore[arg-type]


def test_small_talk_finds_nothing(archive: Archive) -> None:
    say(archive, "My locker code is 58291.", "thanks!")
    hits, scores = WordIndex(archive).search("and what is it that you would do?", 10)
    assert hits.size == scores.size == 0


def test_all_segments_are_scored_by_id_and_hits_are_ranked(archive: Archive) -> None:
    one, two, three, four = say(archive, "tea tea tea", "coffee", "tea and milk", "tea and milk")
    index = WordIndex(archive)
    ids, scores = index.scores("tea")
    assert ids.tolist() == [one, two, three, four]
    assert ids.dtype == np.int64 and scores.dtype == np.float32
    assert scores[0] > scores[2] == scores[3] > scores[1] == 0
    assert index.search("tea", 10)[0].tolist() == [one, three, four]
    assert index.search("tea", 2)[0].tolist() == [one, three]
    assert index.search("tea", 2, exclude=[one, two])[0].tolist() == [three, four]
    assert index.search("tea", 0)[0].tolist() == []


def test_tool_calls_are_found_by_name_and_arguments(archive: Archive) -> None:
    session_id = archive.session("main").id
    call = ToolCall("1", "get_weather", '{"city": "Reykjavik"}')
    with archive.write() as transaction:
        segment = Segment((Message("assistant", "", (call,)), Message("tool", "windy", (), "1")))
        stored = transaction.add_segment(session_id, 1, segment)
    index = WordIndex(archive)
    for query in ("weather", "reykjavik", "windy"):
        assert index.search(query, 1)[0].tolist() == [stored.id]


def test_a_segment_that_is_not_searchable_is_not_found(archive: Archive) -> None:
    session_id = archive.session("main").id
    with archive.write() as transaction:
        segment = Segment((Message("system", "secret prompt"),))
        transaction.add_segment(session_id, 0, segment, searchable=False)
    assert WordIndex(archive).scores("secret")[0].size == 0


def test_one_users_words_do_not_weigh_in_anothers_scores(store: Store, archive: Archive) -> None:
    say(archive, "rare word", "common thing", "common place")
    before = WordIndex(archive).scores("rare common")[1]
    say(store.for_user("a chatterbox"), *["rare rare rare"] * 50)
    np.testing.assert_array_equal(WordIndex(archive).scores("rare common")[1], before)


def test_words_of_an_older_analyzer_are_made_again(archive: Archive) -> None:
    from agentmem.storage import schema

    (one, two) = say(archive, "running", "swimming")
    with archive._database.write() as connection:
        connection.execute(
            schema.words.update()
            .where(schema.words.c.segment_id == one)
            .values(analyzer=0, terms="obsolete")
        )
        connection.execute(schema.words.delete().where(schema.words.c.segment_id == two))
    assert dict(archive.words()) == {one: ["run"], two: ["swim"]}
    assert WordIndex(archive).search("runs", 1)[0].tolist() == [one]


def test_a_forgotten_segment_is_not_found_by_the_next_search(archive: Archive) -> None:
    one, two = say(archive, "an apple a day", "an apple tree")
    index = WordIndex(archive)
    assert index.search("apple", 5)[0].tolist() == [one, two]
    with archive.write() as transaction:
        transaction.forget(one)
    assert index.search("apple", 5)[0].tolist() == [two]
    archive.remove_session("main")
    assert index.search("apple", 5)[0].size == 0
    assert len(index) == 0


def test_the_check_finds_an_index_that_differs(archive: Archive) -> None:
    ids = say(archive, "one apple", "two pears")
    index = WordIndex(archive)
    index.apply()
    assert index.check().status == "ok"
    index._remove(ids[:1])
    assert index.check().status == "fail"
    index.rebuild()
    assert index.check().status == "ok"


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(("say", "say", "forget", "search")),
            st.text(alphabet="ab cé1-日本", max_size=12),
            st.integers(0, 100),
        ),
        max_size=25,
    )
)
def test_an_index_that_followed_equals_one_made_anew(store: Store, steps: list[Any]) -> None:
    archive = store.for_user(f"user-{next(_count)}")
    session_id = archive.session("main").id
    index = WordIndex(archive)
    ids: list[int] = []
    for action, text, number in steps:
        if action == "search":
            index.search(text, 3)
            continue
        with archive.write() as transaction:
            if action == "say":
                segment = Segment((Message("user", normalize_text(text)),))
                ids.append(transaction.add_segment(session_id, 1, segment).id)
            elif ids:
                transaction.forget(ids.pop(number % len(ids)))
    fresh = WordIndex(archive)
    for wanted, got in zip(fresh.scores("a b 日本"), index.scores("a b 日本"), strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert index.scores("a")[0].tolist() == sorted(ids)
    assert index.check().status == "ok"
