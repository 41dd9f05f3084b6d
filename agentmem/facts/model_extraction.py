"""Reading statements with a chat model: better than patterns where the model is large, and slow.

For a background worker, never in a turn. A model is believed only as far as the text bears it out:
a sentence that is not in the message is dropped, and so is a value. What cannot be read stores
nothing; the message and what patterns found in it stay as they are.
"""

from __future__ import annotations

import json
import logging
import re
from typing import Any

from agentmem.facts.extraction import MAX_STATEMENTS, FactExtractor, Statement
from agentmem.models.base import ChatModel, Options, Part, complete
from agentmem.models.json_answer import find_json
from agentmem.prompts import prompt
from agentmem.segment import Message, Segment

logger = logging.getLogger(__name__)

_ANSWER_TOKENS = 512
_TRIES = 2
_MAX_CHARS = 8_000
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "statements": {
            "type": "array",
            "maxItems": MAX_STATEMENTS,
            "items": {
                "type": "object",
                "properties": {
                    "subject": {"type": "string"},
                    "value": {"type": "string"},
                    "sentence": {"type": "string"},
                    "ended": {"type": "boolean"},
                },
                "required": ["subject", "value", "sentence", "ended"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["statements"],
    "additionalProperties": False,
}


class ModelExtractor(FactExtractor):
    """Asks a model what a message states.

    Args:
        model: answers; `extract` raises what it raises, and the segment stays unread.
    """

    def __init__(self, model: ChatModel) -> None:
        self.name = model.name
        self._model = model

    def extract(self, segment: Segment) -> list[Statement]:
        """What a segment states, in order; nothing where the answer cannot be read."""
        text = segment.text[:_MAX_CHARS]
        question = prompt("facts").replace("{message}", text)
        part = Part(f"facts:{segment.id}", (Message("user", question),))
        options = Options(max_new_tokens=_ANSWER_TOKENS, json_schema=_SCHEMA, ephemeral=True)
        for _ in range(_TRIES):
            items = _items(complete(self._model, [part], options).text)
            if items is not None:
                read = [one for item in items if (one := _statement(item, text)) is not None]
                return read[:MAX_STATEMENTS]
        logger.warning("%s: no statements of segment %d could be read.", self.name, segment.id)
        return []


def _items(answer: str) -> list[Any] | None:
    """The statements of an answer as they stand there; None where it is not one."""
    found = find_json(answer)
    if found is None:
        return None
    value = json.loads(found)
    items = value.get("statements") if isinstance(value, dict) else value
    return items if isinstance(items, list) else None


def _statement(item: object, text: str) -> Statement | None:
    if not isinstance(item, dict):
        return None
    subject, value, sentence = (item.get(key) for key in ("subject", "value", "sentence"))
    if not (isinstance(subject, str) and isinstance(sentence, str) and subject and sentence):
        return None
    where = _find(sentence, text)
    if where is None:
        return None
    said = _find(value, where) if isinstance(value, str) and value.strip() else None
    return Statement(subject.strip()[:120], said, where, item.get("ended") is True)


def _find(words: str, text: str) -> str | None:
    """Words as they stand in a text, whatever white space is between them."""
    pattern = r"\s+".join(map(re.escape, words.split()))
    match = re.search(pattern, text, re.IGNORECASE) if pattern else None
    return None if match is None else match.group()
