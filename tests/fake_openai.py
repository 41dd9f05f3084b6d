"""A chat-completions server on loopback that does what it is told: reply, fail, drip, break off."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Chunk = dict[str, Any]
Behaviour = Callable[["Handler"], None]


class FakeOpenAI(ThreadingHTTPServer):
    """Plays one behaviour a request, in order; the last one for ever."""

    daemon_threads = True

    def __init__(self, *behaviours: Behaviour) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.behaviours = list(behaviours)
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.watch: Callable[[dict[str, Any]], None] = lambda body: None
        """Sees every request before it is answered."""
        self.num_open = 0
        self.is_closing = threading.Event()

    @property
    def url(self) -> str:
        """The base URL for a client."""
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def next_behaviour(self) -> Behaviour:
        return self.behaviours.pop(0) if len(self.behaviours) > 1 else self.behaviours[0]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is what some tests want."""


class Handler(BaseHTTPRequestHandler):
    """Answers `POST /v1/chat/completions`."""

    protocol_version = "HTTP/1.1"
    server: FakeOpenAI
    asked: dict[str, Any]
    """The request that is being answered."""

    def do_POST(self) -> None:
        self.asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(self.asked)
        self.server.headers.append(dict(self.headers))
        self.server.watch(self.asked)
        self.close_connection = True
        self.server.num_open += 1
        try:
            self.server.next_behaviour()(self)
        finally:
            self.server.num_open -= 1

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()

    def send(self, data: bytes) -> None:
        self.wfile.write(data)
        self.wfile.flush()

    def send_chunk(self, chunk: Chunk) -> None:
        self.send(b"data: " + json.dumps(chunk).encode() + b"\n\n")


@contextmanager
def serving(*behaviours: Behaviour) -> Iterator[FakeOpenAI]:
    """A running server."""
    server = FakeOpenAI(*behaviours)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.is_closing.set()
        server.shutdown()
        thread.join()
        server.server_close()


def chunk(delta: Mapping[str, Any], finish: str | None = None) -> Chunk:
    choice = {"index": 0, "delta": dict(delta), "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m",
            "choices": [choice]}  # fmt: skip


def usage_chunk(prompt: int, completion: int, cached: int = 0) -> Chunk:
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    return {**chunk({}), "choices": [], "usage": usage}


def stream(*chunks: Chunk, is_whole: bool = True) -> Behaviour:
    """Send these chunks and, if it is whole, the mark of the end."""

    def behave(handler: Handler) -> None:
        handler.begin_stream()
        for one in chunks:
            handler.send_chunk(one)
        if is_whole:
            handler.send(b"data: [DONE]\n\n")

    return behave


def reply(*pieces: str, finish: str = "stop", usage: Chunk | None = None) -> Behaviour:
    """A reply in these pieces."""
    chunks = [chunk({"role": "assistant", "content": ""}), *(chunk({"content": p}) for p in pieces)]
    return stream(*chunks, chunk({}, finish), *([usage] if usage else []))


def tool_call(
    name: str, *arguments: str, id: str = "call_1", finish: str | None = "tool_calls"
) -> Behaviour:
    """A call whose arguments come in pieces."""
    chunks = _call_chunks(0, id, name, arguments)
    return stream(*chunks, *([chunk({}, finish)] if finish else []))


def tool_calls(*calls: tuple[str, str, str], finish: str = "tool_calls") -> Behaviour:
    """Calls in one reply, each an id, a name and arguments."""
    chunks = [
        one
        for index, (id, name, arguments) in enumerate(calls)
        for one in _call_chunks(index, id, name, (arguments,))
    ]
    return stream(*chunks, chunk({}, finish))


def _call_chunks(index: int, id: str, name: str, arguments: Iterable[str]) -> list[Chunk]:
    function = {"name": name, "arguments": ""}
    first = {"index": index, "id": id, "type": "function", "function": function}
    rest = [{"index": index, "function": {"arguments": piece}} for piece in arguments]
    return [
        chunk({"role": "assistant", "tool_calls": [first]}),
        *(chunk({"tool_calls": [one]}) for one in rest),
    ]


def status(code: int, message: str, headers: Mapping[str, str] | None = None) -> Behaviour:
    """An error, as OpenAI words it."""

    def behave(handler: Handler) -> None:
        error = {"message": message, "type": "error", "code": None}
        body = json.dumps({"error": error}).encode()
        handler.send_response(code)
        for key, value in (headers or {}).items():
            handler.send_header(key, value)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(body)))
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.send(body)

    return behave


def drip(*first: str, every_seconds: float = 0.05) -> Behaviour:
    """Some pieces, then a byte at a time that never makes a whole event."""

    def behave(handler: Handler) -> None:
        handler.begin_stream()
        for piece in first:
            handler.send_chunk(chunk({"content": piece}))
        while not handler.server.is_closing.wait(every_seconds):
            handler.send(b":")

    return behave


def stall(handler: Handler) -> None:
    """Take the request and say nothing."""
    handler.server.is_closing.wait()


def broken(*first: Chunk) -> Behaviour:
    """Some chunks, then a connection that is lost: the client sees an error, not an end."""

    def behave(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Content-Length", "1000000000")
        handler.end_headers()
        for one in first:
            handler.send_chunk(one)

    return behave


def after(seconds: float, behaviour: Behaviour) -> Behaviour:
    """The same, later."""

    def behave(handler: Handler) -> None:
        if not handler.server.is_closing.wait(seconds):
            behaviour(handler)

    return behave


def hang_up(handler: Handler) -> None:
    """Close the connection without an answer."""


def garbage(handler: Handler) -> None:
    """A stream that is no JSON."""
    handler.begin_stream()
    handler.send(b"data: {not json\n\n")
