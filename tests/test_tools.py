"""Tools: what is described is what runs, and what goes wrong is told."""

import pytest

from agentmem.errors import InvalidInput, StoreFull
from agentmem.segment import ToolCall
from agentmem.tools import Result, describe, run


def test_a_function_is_described_by_signature_and_docstring() -> None:
    def drop_segments(segment_ids: list[int]) -> str:
        """Take segments out of the window.

        Args:
            segment_ids: Ids of the segments to drop.
        """
        return "ok"

    tool = describe(drop_segments)
    assert tool.name == "drop_segments"
    assert tool.description.startswith("Take segments out of the window")
    assert tool.parameters["properties"]["segment_ids"]["items"] == {"type": "integer"}
    assert tool.parameters["required"] == ["segment_ids"]


def test_a_function_without_docstring_cannot_be_a_tool() -> None:
    def mute(x: int) -> int:
        return x

    with pytest.raises(InvalidInput, match="mute"):
        describe(mute)


def test_what_the_model_can_fix_is_the_tools_result() -> None:
    def half(number: int) -> float:
        """Half of a number."""
        return number / 2

    functions = {"half": half}
    assert run(ToolCall("1", "half", '{"number": 3}'), functions) == Result("1.5")
    unknown = run(ToolCall("1", "third"), functions)
    assert "there is no tool 'third'" in unknown.text and not unknown.valid
    for arguments in ('{"count": 3}', "not json", "[3]"):
        wrong = run(ToolCall("1", "half", arguments), functions)
        assert wrong.text.startswith("Error:") and not wrong.valid


def test_a_tool_that_fails_was_called_rightly() -> None:
    def broken() -> str:
        """Break."""
        raise OSError("no such device")

    result = run(ToolCall("1", "broken"), {"broken": broken})
    assert result == Result("Error: no such device", valid=True)


class HTTPError(Exception):
    """As libraries have them: none of Python's own kinds of error."""


@pytest.mark.parametrize("error", [HTTPError("502"), ValueError("502"), TypeError("502")])
def test_whatever_a_foreign_function_raises_is_told_and_counts_as_a_valid_call(
    error: Exception,
) -> None:
    def fetch() -> str:
        """Fetch."""
        raise error

    assert run(ToolCall("1", "fetch"), {"fetch": fetch}) == Result("Error: 502")


def test_an_error_without_words_is_told_by_its_name() -> None:
    def fetch() -> str:
        """Fetch."""
        raise HTTPError

    assert run(ToolCall("1", "fetch"), {"fetch": fetch}).text == "Error: HTTPError"


@pytest.mark.parametrize("error", [KeyboardInterrupt, StoreFull])
def test_what_only_people_can_mend_is_raised(error: type[BaseException]) -> None:
    def fetch() -> str:
        """Fetch."""
        raise error("now")

    with pytest.raises(error):
        run(ToolCall("1", "fetch"), {"fetch": fetch})
