"""Records: one thing that came from outside, as a list of plain JSON whose first item is its kind.

    ["from", {...}]                    where the log begins, if that is not an empty session
    ["open", {...}]                    the settings of an opening
    ["turn", key, given, number]       a turn; its text is the turn's own in the archive
    ["do", action, arguments]          an act on memory
    ["left", num_events, at_word]      the reader of a turn walked away
    ["blocks", change, [[label, description, max_tokens, version], ...]]  core memory as it was
                                       at a change, where it is another
    ["facts", change, [[segment, written_by], ...]]    statements that others read meanwhile
    ["unread", [segment, ...]]         what is read for facts now
    ["say", request, text, why, more]  a completion; text null: the turn's reply in the archive
    ["aside", request, text, why, more]  the same for a review or a summary
    ["weigh", request]                 the model judges; ["weight", part, logs] for each part
    ["error", request, type, message, text]  the model failed after so much text
    ["away", request, text]            the reply was cut off by its reader
    ["count", part, num_tokens]        a count of tokens, where it is new or changed
    ["has", key, bool]  ["attention", changed, gone]  ["states", changed, gone]    of the KV tier
    ["tool", outcome, text]            outcome: returned, invalid, failed, or an error of ours
    ["vector", base64]  ["clock", milliseconds]
    ["standing", [sentence, ...]]      what is to hold by its meaning, where anything is
    ["failed", type]                   a commit failed

Requests and parts are hashes: what they say follows from what is stored. It knows no SQL.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentmem.models.base import Completion, Options, Part
from agentmem.segment import Message, ToolCall
from agentmem.storage.rows import BlockRow, Elsewhere, WindowEntry

Record = list[Any]
INPUTS = ("open", "turn", "do")
"""Kinds that people cause; what follows one, up to the next, is its consequence."""
ELSEWHERE = ("blocks", "facts")
"""Kinds that follow an input at once: what others did before it."""


def part_hash(part: Part) -> str:
    """What a count of tokens is filed under: 48 bits of the messages' SHA-256."""
    digest = hashlib.sha256()
    for message in part.messages:
        _update(digest, message)
    return digest.hexdigest()[:12]


def request_hash(prompt: Sequence[Part], options: Options) -> str:
    """What a completion is filed under: 64 bits of the SHA-256 of all that was asked."""
    digest = hashlib.sha256()
    for part in prompt:
        digest.update(f"\x1e{part.key!r}".encode())
        for message in part.messages:
            _update(digest, message)
    asked = (
        options.max_new_tokens,
        options.max_tokens,
        options.temperature,
        options.top_p,
        options.top_k,
        options.repetition_penalty,
        options.seed,
        options.stop,
        options.grammar,
        options.ephemeral,
    )
    digest.update(repr(asked).encode("utf-8", "surrogatepass"))
    if options.json_schema is not None or options.tools:
        tools = [[tool.name, tool.description, tool.parameters] for tool in options.tools]
        digest.update(json.dumps([options.json_schema, tools], default=dict).encode())
    return digest.hexdigest()[:16]


def weigh_hash(
    examples: Sequence[Part], parts: Sequence[Part], answers: Sequence[str], options: Options
) -> str:
    """What judgements are filed under."""
    named = Part("answers", tuple(Message("assistant", answer) for answer in answers))
    return request_hash([*examples, named, *parts], options)


def _update(digest: hashlib._Hash, message: Message) -> None:
    calls = "".join(f"\x1f{c.id}\x1f{c.name}\x1f{c.arguments}" for c in message.tool_calls)
    line = f"\x1d{message.role}\x1f{message.content}\x1f{message.tool_call_id}{calls}"
    digest.update(line.encode("utf-8", "surrogatepass"))


def said(request: str, completion: Completion, *, ephemeral: bool) -> Record:
    """The record of a completion; its seconds are of no consequence."""
    more: dict[str, Any] = {}
    if completion.tool_calls:
        more["tokens"] = completion.completion_tokens
        more["calls"] = [[call.id, call.name, call.arguments] for call in completion.tool_calls]
    if completion.thought:
        more["thought"] = completion.thought
    record: Record = [
        "aside" if ephemeral else "say",
        request,
        completion.text,
        completion.finish_reason,
    ]
    return [*record, more] if more else record


def completion_of(record: Record, reply: str) -> Completion:
    """Read what `said` wrote; `reply` is the text of one that refers to its turn."""
    more: Mapping[str, Any] = record[4] if len(record) > 4 else {}
    return Completion(
        reply if record[2] is None else record[2],
        record[3],
        tuple(ToolCall(*call) for call in more.get("calls", ())),
        more.get("thought", ""),
        completion_tokens=more.get("tokens", 0),
    )


def block_items(blocks: Sequence[BlockRow]) -> list[list[Any]]:
    """Blocks as a log has them: `BlockRow(*item)` each, without what its version says."""
    return [[one.label, one.description, one.max_tokens, one.version] for one in blocks]


def window_items(window: Sequence[WindowEntry]) -> list[list[Any]]:
    """A window as a log has it: `WindowEntry(*item)` each."""
    return [list(astuple(entry)) for entry in window]


def elsewhere_records(others: Elsewhere) -> tuple[Record, Record]:
    """What others made of core memory, and what they stated, as records."""
    blocks: Record = ["blocks", others.newest, block_items(others.blocks)]
    return blocks, ["facts", others.newest, [list(one) for one in others.stated]]


def pack_vector(vector: NDArray[np.float32]) -> str:
    """A vector of shape (dim,) as text."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")


def unpack_vector(text: str) -> NDArray[np.float32]:
    """Read what `pack_vector` wrote."""
    return np.frombuffer(base64.b64decode(text), "<f4").astype(np.float32)


def mapping_changes(old: Mapping[Any, Any], new: Mapping[Any, Any]) -> tuple[list[Any], list[Any]]:
    """What is new or other, as keys and values in turn, and the keys that are gone."""
    other = [[key, value] for key, value in new.items() if old.get(key) != value]
    return [item for pair in other for item in pair], [key for key in old if key not in new]


def change_mapping(old: dict[Any, Any], new: Sequence[Any], gone: Sequence[Any]) -> None:
    """Make the mapping what `mapping_changes` told."""
    for key in gone:
        old.pop(key, None)
    old.update(zip(new[::2], new[1::2], strict=True))
