"""Let through only tokens that keep a reply inside a grammar.

`Constraint` is the protocol; llguidance stands behind it. JSON is written without whitespace, and
whatever a schema leaves without an end is given one, so that a small model cannot run on for ever.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import llguidance
import llguidance.hf
import llguidance.numpy
import numpy as np
from numpy.typing import NDArray

from agentmem.errors import InvalidInput

_MAX_LENGTH = 256
_MAX_ITEMS = 32
_MAX_NUMBER = 10**9
_NAMED_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions")
_DATA = ("enum", "const", "default", "examples", "x-guidance")
"""Keywords whose values are no schemas."""


class Constraint(Protocol):
    """One reply's walk through a grammar."""

    @property
    def is_finished(self) -> bool:
        """The reply is complete: nothing may follow."""
        ...

    def forced(self) -> list[int]:
        """Ids that must come next, already taken."""
        ...

    def allowed(self, vocab_size: int) -> NDArray[np.bool_]:
        """Which ids may come next: (vocab_size,), the end token included where it may end."""
        ...

    def accept(self, token_id: int) -> None:
        """Take a sampled id."""
        ...


class GrammarCompiler:
    """Makes constraints for one tokenizer. Setting it up takes a second: keep it.

    Args:
        tokenizer: a fast transformers tokenizer.
        vocab_size: logits of the model; may be more or fewer than the tokenizer's ids.
        end_ids: ids that end a reply, the usual one first.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, end_ids: Sequence[int]) -> None:
        known = max(vocab_size, len(tokenizer))
        self._tokenizer = llguidance.hf.from_tokenizer(
            tokenizer, n_vocab=known, eos_token=list(end_ids) or None
        )

    def json_schema(self, schema: Mapping[str, Any]) -> Constraint:
        """The reply is one JSON value that fits the schema.

        Raises:
            InvalidInput: the schema is not one, or cannot be enforced.
        """
        text = json.dumps(bounded(schema), ensure_ascii=False)
        try:
            grammar = llguidance.LLMatcher.grammar_from_json_schema(
                text, defaults={"whitespace_flexible": False}
            )
        except ValueError as error:
            raise InvalidInput(f"`json_schema` is not a JSON schema: {error}.") from error
        return self._constraint(grammar, "json_schema")

    def json_or_text(self, schema: Mapping[str, Any]) -> Constraint:
        """Free text; or, from a first `{` on, one JSON value that fits the schema."""
        body = {"x-guidance": {"whitespace_flexible": False}, **bounded(schema)}
        return self.lark(
            "start: json | text\n"
            f"json: %json {json.dumps(body, ensure_ascii=False)}\n"
            r"text: /[^{](.|\n)*/"
        )

    def lark(self, grammar: str) -> Constraint:
        """The reply fits a Lark grammar (llguidance's dialect: `%json {...}` is a rule's body)."""
        return self._constraint(llguidance.LLMatcher.grammar_from_lark(grammar), "grammar")

    def regex(self, pattern: str) -> Constraint:
        """The whole reply fits a regular expression."""
        return self._constraint(llguidance.LLMatcher.grammar_from_regex(pattern), "pattern")

    def _constraint(self, grammar: str, name: str) -> Constraint:
        matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise InvalidInput(f"`{name}` cannot be enforced: {matcher.get_error()}")
        return _LLGuidanceConstraint(matcher, self._tokenizer.vocab_size)


class _LLGuidanceConstraint:
    def __init__(self, matcher: llguidance.LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._bitmask = llguidance.numpy.allocate_token_bitmask(1, vocab_size)

    @property
    def is_finished(self) -> bool:
        self._check()
        return bool(self._matcher.is_stopped())

    def forced(self) -> list[int]:
        if self._matcher.is_stopped():
            return []
        token_ids = [int(token_id) for token_id in self._matcher.compute_ff_tokens()]
        if token_ids:
            self._matcher.consume_tokens(token_ids)
            self._check()
        return token_ids

    def allowed(self, vocab_size: int) -> NDArray[np.bool_]:
        # The torch helper of llguidance compiles for ten seconds on its first use.
        llguidance.numpy.fill_next_token_bitmask(self._matcher, self._bitmask)
        bits = np.unpackbits(self._bitmask.view(np.uint8), bitorder="little")
        return bits[:vocab_size].astype(np.bool_)

    def accept(self, token_id: int) -> None:
        self._matcher.consume_token(token_id)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise InvalidInput(f"The grammar cannot go on: {self._matcher.get_error()}")


def bounded(schema: Any) -> Any:
    """The schema with an end to everything it leaves open: strings, arrays, numbers, objects.

    An object that names its properties takes no others unless it says so.
    """
    if isinstance(schema, list):
        return [bounded(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    result: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _NAMED_SCHEMAS and isinstance(value, Mapping):
            result[key] = {name: bounded(child) for name, child in value.items()}
        else:
            result[key] = value if key in _DATA else bounded(value)
    kinds = result.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if "enum" in result or "const" in result:
        return result
    if "string" in kinds and not {"pattern", "format"} & result.keys():
        result.setdefault("maxLength", max(_MAX_LENGTH, result.get("minLength", 0)))
    if "array" in kinds:
        result.setdefault("maxItems", max(_MAX_ITEMS, result.get("minItems", 0)))
    if {"integer", "number"} & set(kinds):
        if "exclusiveMaximum" not in result:
            result.setdefault("maximum", max(_MAX_NUMBER, result.get("minimum", 0)))
        if "exclusiveMinimum" not in result:
            result.setdefault("minimum", min(-_MAX_NUMBER, result.get("maximum", 0)))
    if "object" in kinds and "properties" in result:
        result.setdefault("additionalProperties", False)
    return result
