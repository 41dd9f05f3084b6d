"""The JSON value is found in whatever a model wrote around it, and never repaired."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmem.models.base import Completion
from agentmem.models.json_answer import as_json, find_json
from agentmem.segment import ToolCall


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ('Sure! ```json\n{"a": [1, 2]}\n``` Done.', '{"a": [1, 2]}'),
        ('I drop [3]: {"drop": [3], "why": "old"}', '{"drop": [3], "why": "old"}'),
        ("see {this} then [1, 2]", "[1, 2]"),
        ('{"a": "}"}', '{"a": "}"}'),
        ('{"a": [1', None),
        ("{'a': 1}", None),
        ("nothing", None),
        ("", None),
    ],
)
def test_the_longest_value_in_a_text_is_found(text: str, found: str | None) -> None:
    assert find_json(text) == found


@given(
    st.text("ab .`\n"),
    st.dictionaries(st.text(), st.lists(st.integers() | st.text()), min_size=1),
    st.text("ab .`\n"),
)
@settings(deadline=None, max_examples=100)
def test_a_value_is_found_whatever_stands_around_it(
    before: str, value: dict[str, list[int | str]], after: str
) -> None:
    found = find_json(before + json.dumps(value) + after)
    assert found is not None
    assert json.loads(found) == value


def test_a_million_braces_do_not_take_forever() -> None:
    began = time.monotonic()
    assert find_json("[" * 1_000_000) is None
    assert find_json('{"a":' * 200_000) is None
    assert time.monotonic() - began < 5


def test_an_answer_that_lacks_its_value_is_passed_on_for_the_reader_to_refuse() -> None:
    completion = Completion("", "tool_calls", (ToolCall("a", "answer", '{"val": 1}'),))
    assert as_json(completion, {"type": "array"}).text == '{"val": 1}'
