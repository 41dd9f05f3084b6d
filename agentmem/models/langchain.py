"""Any LangChain chat model as a `ChatModel`.

Adds what providers leave open: one deadline for a whole call, tries that end, replies that are
whole or an error, JSON by a forced tool call. Knows no provider by name.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage

from agentmem.errors import InvalidInput, ModelUnavailable
from agentmem.models.base import Capabilities, ChatModel, Completion, Delta, Options, Part
from agentmem.models.endpoint import (
    CallFailed,
    Cancelled,
    DeadlinePassed,
    Failure,
    explain,
    read_until,
    sleep_until,
    wait_before,
)
from agentmem.models.json_answer import as_json
from agentmem.models.langchain_messages import to_langchain
from agentmem.models.langchain_reply import StreamedReply
from agentmem.models.langchain_request import Counter, Request, make_request
from agentmem.segment import Message

logger = logging.getLogger(__name__)

MAX_TRIES = 4
_REFUSALS = ("unsupported", "not support", "unknown", "unrecognized", "unexpected", "not allowed")


class Connections(Protocol):
    """The network side of a chat model."""

    def interrupt(self) -> None:
        """Break off the calls that are running; later ones work."""

    def close(self) -> None:
        """Break off everything for good."""


class LangChainModel(ChatModel):
    """Asks a LangChain chat model, streaming.

    A parameter the provider refuses (`temperature`, tools, ...) is left out from then on.

    Args:
        chat_model: the model; its own retries should be off.
        name: shown in errors and logs; by default the model's.
        seconds: of a whole call, tries and waits included.
        first_wait_seconds: before the second try; doubled each time, unless the server says.
        bytes_per_token: of UTF-8 text, to count tokens with: low counts high.
        context_tokens: what the model can attend to; by default what its profile says.
        alternates_roles: join neighbours of one role (see `to_langchain`).
        caches_prefix: the provider is cheaper for an unchanged beginning.
        reports_finish: every whole stream tells why it ended, so one that does not was cut.
        arguments: passed with every call.
        connections: the connections it uses, so that a call can be broken off; without them the
            thread of an abandoned call lives until its next chunk.
    """

    def __init__(
        self,
        chat_model: BaseChatModel,
        *,
        name: str | None = None,
        seconds: float = 120.0,
        first_wait_seconds: float = 1.0,
        bytes_per_token: float = 3.0,
        context_tokens: int | None = None,
        alternates_roles: bool = True,
        caches_prefix: bool = True,
        reports_finish: bool = False,
        arguments: Mapping[str, Any] | None = None,
        connections: Connections | None = None,
    ) -> None:
        if seconds <= 0 or bytes_per_token <= 0:
            raise InvalidInput(
                "`seconds` and `bytes_per_token` must be above 0: "
                f"got {seconds} and {bytes_per_token}."
            )
        self.chat_model = chat_model
        self.name = name or _name_of(chat_model)
        self.seconds = seconds
        profile: Mapping[str, Any] = chat_model.profile or {}
        calls_tools = type(chat_model).bind_tools is not BaseChatModel.bind_tools
        self.capabilities = Capabilities(
            calls_tools=calls_tools,
            manages_memory=calls_tools,
            alternates_roles=alternates_roles,
            caches_prefix=caches_prefix,
            context_tokens=context_tokens or int(profile.get("max_input_tokens") or 0),
        )
        self._first_wait_seconds = first_wait_seconds
        self._counter = Counter(bytes_per_token)
        self._reports_finish = reports_finish
        self._arguments = dict(arguments or {})
        self._connections = connections
        self._refused: set[str] = set()

    def count_tokens(self, part: Part) -> int:
        """Tokens of the part as it is sent, by its bytes."""
        return self._counter.count(to_langchain(part.messages, alternates_roles=False))

    def generate(self, prompt: Sequence[Part], options: Options) -> Iterator[Delta]:
        """Stream the reply; a request with a JSON schema yields its value at the end.

        Raises:
            BudgetExceeded: prompt and tools leave no token of `options.max_tokens` for the reply.
            ModelUnavailable: the endpoint failed for good, was too slow, broke off or said nothing.
        """
        messages = [message for part in prompt for message in part.messages]
        reply = StreamedReply(options)
        if options.max_new_tokens == 0:
            num_tokens = self._request(messages, options).num_tokens
            yield Delta(completion=Completion("", "length", prompt_tokens=num_tokens))
            return
        try:
            deadline = time.monotonic() + self.seconds
            for chunk in self._chunks(reply, messages, options, deadline):
                if (text := reply.take(chunk)) and options.json_schema is None:
                    yield Delta(text)
                if reply.is_over:
                    break
        except Cancelled:
            reply.finish_reason = "interrupted"
        except DeadlinePassed as error:
            raise ModelUnavailable(
                f"{self.name} did not finish its reply within {self.seconds:g} s."
            ) from error
        completion = reply.completion()
        if reply.is_empty(completion):
            raise ModelUnavailable(f"{self.name} gave an empty answer.")
        if options.json_schema is not None:
            completion = as_json(completion, options.json_schema)
            rest = completion.text
        else:
            rest = completion.text[reply.num_shown :]
        if rest:
            yield Delta(rest)
        yield Delta(completion=completion)

    def close(self) -> None:
        """Close the connections."""
        if self._connections is not None:
            self._connections.close()

    def _interrupt(self) -> None:
        if self._connections is not None:
            self._connections.interrupt()

    def _chunks(
        self, reply: StreamedReply, messages: list[Message], options: Options, deadline: float
    ) -> Iterator[AIMessage]:
        """The reply's messages as they arrive, after as many tries as it takes."""
        attempt = 1
        while True:
            request = self._request(messages, options)
            reply.begin(request.options, request.num_tokens)
            cause: BaseException | None = None
            try:
                yield from read_until(
                    deadline,
                    partial(request.open, self.chat_model),
                    cancelled=options.cancelled,
                    interrupt=self._interrupt,
                )
                if not (self._reports_finish and reply.is_cut):
                    return
                failure = Failure("the stream ended before the reply", may_pass=True)
            except CallFailed as failed:
                cause = failed.error
                failure = explain(cause)
                if isinstance(cause, KeyboardInterrupt | SystemExit):
                    raise cause from None
            if not reply.has_begun and self._leave_out(failure):
                continue
            if reply.has_begun or not failure.may_pass or attempt == MAX_TRIES:
                raise self._unavailable(failure, reply.has_begun) from cause
            wait = wait_before(attempt, failure, self._first_wait_seconds)
            logger.info("%s: try %d failed, waiting %.1f s", self.name, attempt, wait)
            try:
                sleep_until(deadline, wait, options.cancelled)
            except DeadlinePassed:
                raise self._unavailable(failure, reply.has_begun) from cause
            attempt += 1

    def _unavailable(self, failure: Failure, has_begun: bool) -> ModelUnavailable:
        status = f" (status {failure.status})" if failure.status else ""
        happened = "broke off" if has_begun else "failed"
        return ModelUnavailable(f"{self.name} {happened}{status}: {failure.text}")

    def _request(self, messages: Sequence[Message], options: Options) -> Request:
        return make_request(
            messages,
            options,
            capabilities=self.capabilities,
            counter=self._counter,
            arguments=self._arguments,
            refused=self._refused,
        )

    def _leave_out(self, failure: Failure) -> bool:
        """Whether the server refused a parameter, which is now left out."""
        text = failure.text.lower()
        if failure.status not in (None, 400, 404, 422) or not any(one in text for one in _REFUSALS):
            return False
        names = [*self._arguments, "max_tokens", "temperature", "top_p", "seed", "stop"]
        for name in ["tool_choice", *names]:
            spelled = "stream_options" if name == "stream_usage" else name
            if name not in self._refused and spelled in text.replace("max_completion_", "max_"):
                logger.info("%s refuses %s: left out from now on", self.name, name)
                self._refused.add(name)
                return True
        if "tool" in text and self.capabilities.calls_tools:
            logger.info("%s refuses tools: left out from now on", self.name)
            self.capabilities = replace(self.capabilities, calls_tools=False)
            return True
        return False


def _name_of(chat_model: BaseChatModel) -> str:
    for attribute in ("model_name", "model"):
        if isinstance(name := getattr(chat_model, attribute, None), str) and name:
            return name
    return chat_model._llm_type
