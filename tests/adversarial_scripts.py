"""What a server may do to an agent: one row a script."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

from tests import fake_openai
from tests.adversary import SUMMARY_TEXT, Script, answered, decide, dropped, listed, say
from tests.fake_openai import (
    Behaviour,
    Handler,
    after,
    broken,
    chunk,
    drip,
    reply,
    status,
    stream,
    tool_call,
    tool_calls,
)

MEGABYTE = "0123456789abcdef" * 2**16
TEN_MEGABYTES = "x" * 10 * 2**20
DEEP = "[" * 100_000


def _looks(arguments: str) -> Behaviour:
    """One call with these arguments, then a reply."""
    return once(tool_call("look_up", arguments))


def once(first: Behaviour, then: Behaviour = answered) -> Behaviour:
    """Something where no tool has answered yet in this turn, then something else."""

    def behave(handler: Handler) -> None:
        has_result = handler.asked["messages"][-1]["role"] == "tool"
        may_call = "tools" in handler.asked
        (first if may_call and not has_result else then)(handler)

    return behave


def _review(*calls: tuple[str, Callable[[list[int]], Any]], **settings: Any) -> dict[str, Any]:
    return {"review": decide(*calls), **settings}


def _echo_schema(handler: Handler) -> None:
    """Whatever it was given to fill in, as it is."""
    tools = handler.asked.get("tools", [])
    reply(json.dumps([one["function"]["parameters"] for one in tools]) or "{}")(handler)


def looking_for(query: str) -> str:
    """The arguments of the agent's tool."""
    return json.dumps({"query": query})


def numbered(make: Callable[[int], str]) -> Behaviour:
    """A call that is another one each time."""
    numbers = itertools.count()
    return lambda handler: tool_call("look_up", make(next(numbers)))(handler)


def _all_kinds(behaviour: Behaviour) -> dict[str, Any]:
    return {"turn": behaviour, "review": behaviour, "summary": behaviour}


def _summary(behaviour: Behaviour) -> dict[str, Any]:
    return _review(("summarize_segments", listed), summary=behaviour)


CALLS = '{"name": "drop_segments", "arguments": {"segment_ids": %s}}'
HTML = b"<html><body>502 Bad Gateway</body></html>"


def _html(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Type", "text/html")
    handler.send_header("Content-Length", str(len(HTML)))
    handler.end_headers()
    handler.send(HTML)


SCRIPTS = [
    Script(name="nothing wrong"),
    Script(name="nothing wrong in 400 tokens", max_tokens=400),
    # Answers that are none.
    Script(name="10 MB of an error", **_all_kinds(status(400, TEN_MEGABYTES)), turns=1, fails=True),
    Script(name="empty answer", **_all_kinds(reply("")), fails=True, says="empty"),
    Script(name="white space", **_all_kinds(reply(" \n")), fails=True, says="empty"),
    Script(
        name="prose only", **_all_kinds(reply("I would rather talk about soup.")), max_tokens=400
    ),
    Script(
        name="two JSON objects",
        review=say(lambda ids: f"{CALLS % ids[:1]} {CALLS % ids[1:]}"),
        turn=_looks('{"query": "a"}{"query": "b"}'),
    ),
    Script(name="schema echoed", review=_echo_schema, turn=_looks('{"type": "object"}')),
    Script(
        name="list for an object",
        **_review(("drop_segments", lambda ids: ids), turn=_looks('["box"]')),
    ),
    Script(
        name="wrong field names",
        **_review(("drop_segments", lambda ids: {"ids": ids}), turn=_looks('{"q": "box"}')),
    ),
    Script(
        name="truncated JSON",
        review=tool_call("drop_segments", '{"segment_ids": [2, ', finish="length"),
        turn=once(tool_call("look_up", '{"query": "bo', finish="length")),
        max_tokens=400,
    ),
    Script(
        name="JSON in a code fence",
        review=say(lambda ids: f"Sure!\n```json\n[{CALLS % ids}]\n```\n"),
        turn=reply('```json\n{"name": "look_up", "arguments": {"query": "a"}}\n```'),
    ),
    # Sizes and depths.
    Script(
        name="10 MB of text",
        **_all_kinds(stream(*[chunk({"content": MEGABYTE})] * 10)),
        turns=1,
        max_tokens=512,
    ),
    Script(name="10 MB in one piece", **_all_kinds(reply(TEN_MEGABYTES)), turns=1),
    Script(
        name="10 MB of arguments",
        **_review(
            ("drop_segments", lambda ids: {"segment_ids": ids, "why": TEN_MEGABYTES}),
            turn=_looks(json.dumps({"query": TEN_MEGABYTES})),
            turns=1,
        ),
    ),
    Script(
        name="10 MB of a name",
        review=tool_call(TEN_MEGABYTES, "{}"),
        turn=once(tool_call(TEN_MEGABYTES, "{}")),
        turns=1,
        fails=True,
        says="empty",
    ),
    Script(
        name="deeply nested JSON",
        review=tool_call("drop_segments", DEEP),
        turn=_looks('{"query": ' + "[" * 1900),
    ),
    Script(name="deeply nested text", turn=reply(DEEP)),
    # Tools and ids.
    Script(
        name="unknown tool",
        **_review(
            ("delete_everything", listed),
            turn=once(tool_call("rm -rf /\ud800\0" + "x" * 90, '{"path": "/"}')),
        ),
    ),
    Script(
        name="a tool without a name",
        review=tool_call("", "{}"),
        turn=once(tool_call("", "{}", id="")),
    ),
    Script(name="made-up ids", **_review(("drop_segments", lambda ids: listed([98765, -1, 0])))),
    Script(name="ids as strings", **_review(("drop_segments", lambda ids: listed(map(str, ids))))),
    Script(name="ids as floats", **_review(("drop_segments", lambda ids: listed(map(float, ids))))),
    Script(
        name="huge ids",
        **_review(
            ("drop_segments", lambda ids: f'{{"segment_ids": [{"9" * 5000}, {2**63}]}}'),
            ("pin_segment", lambda ids: {"segment_id": 10**30}),
        ),
        turn=_looks('{"query": ' + "9" * 2000 + "}"),
    ),
    Script(
        name="ids that are no numbers",
        **_review(
            ("drop_segments", lambda ids: '{"segment_ids": [NaN, Infinity, null, true]}'),
            turn=_looks('{"query": NaN}'),
        ),
    ),
    Script(
        name="duplicate call ids",
        review=decide(("drop_segments", listed), ("drop_segments", listed)),
        turn=once(
            tool_calls(
                ("a", "look_up", '{"query": "x"}'),
                ("a", "look_up", '{"query": "y"}'),
                ("", "look_up", '{"query": "z"}'),
            )
        ),
    ),
    Script(
        name="lone surrogates",
        **_review(
            ("drop_segments", lambda ids: '{"segment_ids": ["\\ud83d"]}'),
            summary=reply("half \ud83d"),
        ),
        turn=once(tool_call("look_up", '{"query": "\\ud83d \\udc00"}'), reply("a \ud83d b")),
    ),
    Script(
        name="NUL bytes",
        review=say(lambda ids: f"\0{CALLS % ids}\0"),
        turn=once(tool_call("look_up", '{"query": "a\\u0000b"}', id="i\0d"), reply("a\0b")),
    ),
    Script(
        name="a hundred calls at once",
        review=decide(*[("drop_segments", lambda ids: listed(ids[:1]))] * 100),
        turn=once(tool_calls(*[(f"c{n}", "look_up", looking_for(f"x{n}")) for n in range(100)])),
    ),
    # The tool loop.
    Script(name="the same call for ever", turn=numbered(lambda n: looking_for("box")), fails=True),
    Script(
        name="another call each time", turn=numbered(lambda n: looking_for(f"box {n}")), fails=True
    ),
    Script(name="invalid calls for ever", turn=numbered(lambda n: '{"query": '), fails=True),
    # The connection.
    Script(
        name="429 with Retry-After",
        **_all_kinds(status(429, "Slow down.", {"Retry-After": "0"})),
        fails=True,
        says="429",
    ),
    Script(
        name="429 that asks for an hour",
        **_all_kinds(status(429, "Slow down.", {"Retry-After": "3600"})),
        fails=True,
        says="429",
        most_seconds=10.0,
    ),
    Script(name="429", **_all_kinds(status(429, "Slow down.")), fails=True, says="429"),
    Script(name="500 for ever", **_all_kinds(status(500, "Oh.")), fails=True, says="500"),
    Script(
        name="context length exceeded",
        **_all_kinds(status(400, "This model's maximum context length is 10 tokens.")),
        fails=True,
        says="400",
    ),
    Script(name="connection refused", listens=False, fails=True, most_requests=0),
    Script(name="hangs up", **_all_kinds(fake_openai.hang_up), fails=True),
    Script(name="garbage", **_all_kinds(fake_openai.garbage), fails=True),
    Script(name="a web page", **_all_kinds(_html), fails=True),
    Script(
        name="drip",
        **_all_kinds(drip("Yes, ", every_seconds=0.02)),
        fails=True,
        says="within 0.2 s",
        seconds=0.2,
        most_seconds=10.0,
    ),
    Script(
        name="cut in the middle of a tool call",
        turn=stream(
            chunk(
                {
                    "tool_calls": [
                        {
                            "index": 0,
                            "id": "c",
                            "type": "function",
                            "function": {"name": "look_up", "arguments": '{"que'},
                        }
                    ]
                }
            ),
            is_whole=False,
        ),
        review=tool_call("drop_segments", '{"segment_ids": [', finish=None),
        fails=True,
        says="ended before the reply",
    ),  # fmt: skip
    Script(
        name="lost in the middle of a tool call",
        turn=broken(
            chunk(
                {
                    "tool_calls": [
                        {
                            "index": 0,
                            "id": "c",
                            "type": "function",
                            "function": {"name": "look_up", "arguments": '{"que'},
                        }
                    ]
                }
            )
        ),
        fails=True,
    ),  # fmt: skip
    Script(
        name="cut after text",
        **_all_kinds(stream(chunk({"content": "Well, it "}), is_whole=False)),
        fails=True,
        says="broke off",
    ),
    Script(
        name="counts that are lies",
        turn=reply("Yes.", usage=fake_openai.usage_chunk(-5, 10**15)),
    ),
    # Decisions.
    Script(name="keeps everything", **_review(("keep_segments", listed)), max_tokens=640),
    Script(name="drops everything", **_review(("drop_segments", lambda ids: listed(range(200))))),
    Script(
        name="pins everything",
        review=lambda handler: decide(
            *[
                (
                    "pin_segment",
                    lambda ids, at=at: {"segment_id": (ids or [0])[at % max(1, len(ids))]},
                )
                for at in range(12)
            ]
        )(handler),
    ),
    Script(
        name="drops the newest turn",
        **_review(("drop_segments", lambda ids: listed(range(12, 99)))),
    ),
    Script(
        name="drops the system prompt",
        **_review(
            ("drop_segments", lambda ids: listed([1])),
            ("summarize_segments", lambda ids: listed([1, 2])),
        ),
    ),
    Script(
        name="answers after the deadline",
        review=after(0.5, dropped),
        review_seconds=0.1,
        most_seconds=10.0,
    ),
    # Summaries.
    Script(name="a good summary", **_summary(reply(SUMMARY_TEXT))),
    Script(
        name="a summary longer than its sources", **_summary(reply("Ingrid went to Oslo. " * 400))
    ),
    Script(name="an empty summary", **_summary(reply(""))),
    Script(
        name="please provide the conversation",
        **_summary(reply("Please provide the conversation that you would like me to summarize.")),
    ),
    Script(
        name="a summary that quotes summaries",
        **_summary(
            reply("[Summary of earlier messages] Ingrid [Summary of earlier messages] Oslo.")
        ),
    ),
    Script(name="a summary of one endless word", **_summary(reply("Ingrid" * 4000))),
    Script(name="a summarizer that fails after the decision", **_summary(status(500, "Oh."))),
    Script(
        name="a summarizer that drips",
        **_summary(drip("Ingrid ", every_seconds=0.02)),
        seconds=60.0,
        review_seconds=0.3,
        most_seconds=10.0,
    ),
]
