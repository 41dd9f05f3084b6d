"""OpenAI's chat completions, and the many servers that speak them.

Knows langchain-openai; imported only when such a model is asked for.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_openai.chat_models.base import BaseChatOpenAI
from openai import DefaultHttpxClient

from agentmem.models.langchain import LangChainModel

NO_KEY = "none"
"""Servers on one's own machine ask for a key and do not look at it."""


class HttpConnections:
    """An HTTP client whose running responses can be closed from another thread.

    Args:
        seconds: a read that waits longer than this fails.
    """

    def __init__(self, seconds: float) -> None:
        self._responses: weakref.WeakSet[Any] = weakref.WeakSet()
        self._lock = threading.Lock()
        self.client = DefaultHttpxClient(timeout=seconds, event_hooks={"response": [self._note]})

    def interrupt(self) -> None:
        """Close the responses that are being read: their readers get an error."""
        with self._lock:
            responses = list(self._responses)
            self._responses.clear()
        for response in responses:
            response.close()

    def close(self) -> None:
        """Close all connections for good."""
        self.interrupt()
        self.client.close()

    def _note(self, response: Any) -> None:
        with self._lock:
            self._responses.add(response)


def openai_model(
    model: str,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    context_tokens: int | None = None,
    seconds: float = 120.0,
    first_wait_seconds: float = 1.0,
) -> LangChainModel:
    """A model of OpenAI, or of a server with the same chat completions at `base_url`.

    Args:
        model: the server's name for it.
        base_url: of the server, with its `/v1`.
        api_key: by default what OPENAI_API_KEY says; with a `base_url`, none is needed.
        context_tokens: what the model can attend to.
        seconds: of a whole call, tries and waits included.
        first_wait_seconds: before the second try.
    """
    connections = HttpConnections(seconds)
    settings: dict[str, Any] = {
        "model": model,
        "http_client": connections.client,
        "max_retries": 0,
        "timeout": seconds,
        "use_responses_api": False,
    }
    if api_key or base_url is not None:
        settings["api_key"] = api_key or NO_KEY
    # The base class says `max_tokens`, which every server of others understands.
    chat_model: BaseChatModel = (
        ChatOpenAI(**settings)
        if base_url is None
        else BaseChatOpenAI(**settings, base_url=base_url)
    )
    return LangChainModel(
        chat_model,
        name=f"openai-compatible:{model}" if base_url else f"openai:{model}",
        seconds=seconds,
        first_wait_seconds=first_wait_seconds,
        context_tokens=context_tokens,
        alternates_roles=base_url is not None,
        reports_finish=True,
        arguments={"stream_usage": True},
        connections=connections,
    )
