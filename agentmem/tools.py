"""Functions a model may call. Signature and docstring are the schema; what is described runs."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agentmem.errors import AgentmemError, InvalidInput
from agentmem.models.base import Tool
from agentmem.segment import ToolCall


@dataclass(frozen=True)
class DescribedTool:
    """A function that brings its own description."""

    tool: Tool
    function: Callable[..., Any]

    @property
    def __name__(self) -> str:
        """What the model calls it."""
        return self.tool.name

    def __call__(self, **arguments: Any) -> Any:
        """Run it."""
        return self.function(**arguments)


def describe(function: Callable[..., Any]) -> Tool:
    """The function as a model sees it: its docstring must describe every argument.

    Raises:
        InvalidInput: it has no docstring or an argument without type.
    """
    if isinstance(function, DescribedTool):
        return function.tool
    from langchain_core.utils.function_calling import convert_to_openai_function

    if not function.__doc__:
        raise InvalidInput(
            f"`{getattr(function, '__name__', function)}` cannot be a tool without a docstring: "
            "it is what the model reads."
        )
    try:
        schema = convert_to_openai_function(function)
    except (ValueError, TypeError, NameError) as error:
        raise InvalidInput(
            f"`{getattr(function, '__name__', function)}` cannot be a tool: {error} "
            "Give it typed arguments and a docstring with an Args section."
        ) from error
    return Tool(schema["name"], schema["description"], schema["parameters"])


@dataclass(frozen=True, slots=True)
class Result:
    """What a call came to.

    Args:
        text: the result, or what was wrong, in words that the model can use.
        valid: whether the call was one that could be run; False where the model must change it.
    """

    text: str
    valid: bool = True


def run(call: ToolCall, functions: Mapping[str, Callable[..., Any]]) -> Result:
    """Run one call; what the model can fix is the result."""
    function = functions.get(call.name)
    if function is None:
        known = ", ".join(sorted(functions))
        return Result(f"Error: there is no tool {call.name!r}; there are {known}.", valid=False)
    try:
        arguments = call.parsed()
    except ValueError as error:
        return Result(f"Error: {error}", valid=False)
    try:
        return Result(invoke(function, arguments))
    except InvalidInput as error:
        return Result(f"Error: {error}", valid=False)
    except AgentmemError:
        # Our own are for people to mend: no model can free a disk.
        raise
    except Exception as error:
        # The one boundary to code that is not ours, which may raise anything: a turn that ended
        # here would run all its calls again when it is sent again.
        return Result(f"Error: {in_words(error)}")


def invoke(function: Callable[..., Any], arguments: Mapping[str, Any]) -> str:
    """Call a function with a model's arguments; its result as text.

    Raises:
        InvalidInput: it does not take these arguments.
    """
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise InvalidInput(str(error)) from error
    result = function(**arguments)
    if isinstance(result, str):
        return result
    return json.dumps(result, ensure_ascii=False, default=str)


def in_words(error: Exception) -> str:
    """What an error says, or its name where it says nothing."""
    return str(error) or type(error).__name__
