"""Whatever the model wants to say, what it says fits the grammar."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmem.errors import InvalidInput
from agentmem.models.grammar import Constraint, GrammarCompiler, bounded
from tests.tiny_models import tiny_tokenizer

TOKENIZER = tiny_tokenizer()
END = TOKENIZER.eos_token_id
VOCAB_SIZE = len(TOKENIZER)
COMPILER = GrammarCompiler(TOKENIZER, VOCAB_SIZE, [END])

CALL = {
    "type": "object",
    "properties": {
        "name": {"enum": ["keep", "summarize", "drop"]},
        "segment": {"enum": [7, 12]},
        "reason": {"type": "string", "maxLength": 20},
    },
    "required": ["name", "segment", "reason"],
}


def babble(constraint: Constraint, seed: int, vocab_size: int = VOCAB_SIZE) -> tuple[str, int]:
    """What a model with random logits says, and how many of its tokens were forced."""
    random = np.random.default_rng(seed)
    spoken: list[int] = []
    num_forced = 0
    while len(spoken) < 4000:
        forced = constraint.forced()
        num_forced += len(forced)
        spoken += forced
        if constraint.is_finished:
            break
        allowed = constraint.allowed(vocab_size)
        assert allowed.shape == (vocab_size,)
        token_id = int(random.choice(np.flatnonzero(allowed)))
        if token_id == END:
            break
        constraint.accept(token_id)
        spoken.append(token_id)
    return str(TOKENIZER.decode(spoken)), num_forced


def leaves() -> st.SearchStrategy[dict[str, Any]]:
    return st.one_of(
        st.just({"type": "boolean"}),
        st.just({"type": "null"}),
        st.just({"type": "string"}),
        st.just({"type": "integer"}),
        st.just({"type": "number"}),
        st.builds(lambda n: {"type": "string", "maxLength": n}, st.integers(0, 8)),
        st.builds(
            lambda low, more: {"type": "integer", "minimum": low, "maximum": low + more},
            st.integers(-50, 50), st.integers(0, 90),
        ),
        st.lists(st.sampled_from(["a", "ü", "x y", 7, None, True]), min_size=1, max_size=3).map(
            lambda values: {"enum": values}
        ),
    )  # fmt: skip


def schemas() -> st.SearchStrategy[dict[str, Any]]:
    def objects(children: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
        names = st.sampled_from(["name", "segment", "type", "enum", "größe"])
        return st.one_of(
            st.dictionaries(names, children, min_size=1, max_size=3).map(
                lambda fields: {
                    "type": "object", "properties": fields, "required": sorted(fields)[:2]
                }
            ),
            children.map(lambda child: {"type": "array", "items": child, "maxItems": 3}),
            st.lists(children, min_size=1, max_size=2).map(lambda some: {"anyOf": some}),
        )  # fmt: skip

    return st.recursive(leaves(), objects, max_leaves=5)


@settings(deadline=None, max_examples=80)
@given(schemas(), st.integers(0, 5))
def test_random_words_under_a_random_schema_are_json_that_fits_it(
    schema: dict[str, Any], seed: int
) -> None:
    text, _ = babble(COMPILER.json_schema(schema), seed)
    jsonschema.validate(json.loads(text), schema)
    assert text == text.strip()


@pytest.mark.parametrize("seed", range(5))
def test_a_call_is_compact_and_much_of_it_is_forced(seed: int) -> None:
    text, num_forced = babble(COMPILER.json_schema(CALL), seed)
    value = json.loads(text)
    assert value["name"] in ("keep", "summarize", "drop") and value["segment"] in (7, 12)
    spaceless = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    assert text.startswith('{"name":"') and spaceless.startswith('{"name":"')
    assert num_forced >= 4


def test_a_finished_value_allows_nothing_more() -> None:
    constraint = COMPILER.json_schema({"const": "yes"})
    assert TOKENIZER.decode(constraint.forced()) == '"yes"'
    assert constraint.is_finished and constraint.forced() == []


def test_a_value_that_may_go_on_may_also_end() -> None:
    constraint = COMPILER.json_schema({"type": "integer"})
    constraint.accept(TOKENIZER.encode("4")[0])
    allowed = constraint.allowed(VOCAB_SIZE)
    assert allowed[END] and allowed[TOKENIZER.encode("2")[0]]
    assert not constraint.is_finished


@pytest.mark.parametrize("vocab_size", [VOCAB_SIZE + 37, VOCAB_SIZE - 2])
def test_the_models_vocabulary_may_be_of_another_size(vocab_size: int) -> None:
    constraint = GrammarCompiler(TOKENIZER, vocab_size, [END]).json_schema(CALL)
    text, _ = babble(constraint, 0, vocab_size)
    assert json.loads(text)["segment"] in (7, 12)


def test_json_or_text_is_free_until_a_brace_opens() -> None:
    for seed in range(12):
        constraint = COMPILER.json_or_text(CALL)
        first = "{" if seed % 2 else "the"
        constraint.accept(TOKENIZER.encode(first)[0])
        allowed = constraint.allowed(VOCAB_SIZE)
        if first == "the":
            assert allowed.sum() > VOCAB_SIZE / 2 and allowed[END]
        else:
            text, _ = babble(constraint, seed)
            assert json.loads(first + text)["segment"] in (7, 12)


def test_a_regular_expression_is_obeyed() -> None:
    text, _ = babble(COMPILER.regex(r"[0-9]{5}-(keep|drop)"), 1)
    assert text[5] == "-" and text[:5].isdigit() and text[6:] in ("keep", "drop")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nope"},
        {"type": "string", "pattern": "(("},
        {"$ref": "#/nowhere"},
        {"type": "integer", "minimum": 3, "maximum": 1},
    ],
)
def test_a_schema_that_cannot_be_enforced_is_refused_with_the_reason(schema: Any) -> None:
    with pytest.raises(InvalidInput, match="json_schema"):
        COMPILER.json_schema(schema)


def test_everything_a_schema_leaves_open_gets_an_end() -> None:
    schema = {
        "type": "object",
        "properties": {
            "type": {"type": "string"},
            "many": {"type": "array", "items": {"type": "integer", "minimum": 2 * 10**9}},
            "long": {"type": "string", "minLength": 400},
            "code": {"type": "string", "pattern": "^[a-z]+$"},
            "one": {"enum": [{"type": "string"}]},
        },
    }
    result = bounded(schema)
    fields = result["properties"]
    assert result["additionalProperties"] is False
    assert fields["type"]["maxLength"] == 256
    assert fields["many"]["maxItems"] == 32
    assert fields["many"]["items"]["maximum"] >= 2 * 10**9
    assert fields["long"]["maxLength"] == 400
    assert "maxLength" not in fields["code"]
    assert fields["one"] == {"enum": [{"type": "string"}]}
    assert bounded(result) == result
