"""The value made for a JSON schema fits it, as an independent validator says."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmem.errors import Unsupported
from agentmem.models.schema_instance import minimal_instance

CASES: list[tuple[dict[str, Any], Any]] = [
    ({"type": "object"}, {}),
    ({"type": "object", "properties": {"a": {"type": "string"}}}, {}),
    ({"properties": {"a": {"type": "string"}}, "required": ["a"]}, {"a": ""}),
    ({"type": "object", "required": ["unnamed"]}, {"unnamed": None}),
    ({"type": "object", "minProperties": 2}, {"p0": None, "p1": None}),
    ({"enum": ["keep", "drop"]}, "keep"),
    ({"type": "integer", "enum": ["keep", 3]}, 3),
    ({"const": {"a": [1]}}, {"a": [1]}),
    ({"type": "array"}, []),
    ({"type": "array", "items": {"type": "integer", "minimum": 4}, "minItems": 2}, [4, 4]),
    ({"type": "array", "items": {"enum": [5, 7, 9]}, "minItems": 2, "uniqueItems": True}, [5, 7]),
    ({"type": "array", "prefixItems": [{"const": 1}], "minItems": 2}, [1, None]),
    ({"type": "string", "minLength": 3}, "aaa"),
    ({"type": "string", "pattern": "^[0-9]+$"}, "0"),
    ({"type": "string", "pattern": r"^\d{4}-\d\d-\d\d$"}, "2000-01-01"),
    ({"type": "integer", "exclusiveMinimum": 0}, 1),
    ({"type": "integer", "maximum": -3}, -3),
    ({"type": "integer", "minimum": 10, "multipleOf": 4}, 12),
    ({"type": "integer", "minimum": 0.5, "maximum": 1.5}, 1),
    ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.5}, 0.25),
    ({"type": ["null", "string"]}, None),
    ({"anyOf": [{"type": "string", "pattern": "^xyzzy$"}, {"type": "null"}]}, None),
    ({"oneOf": [{"type": "boolean"}, {"type": "integer"}]}, False),
    ({"$ref": "#/$defs/A", "$defs": {"A": {"type": "integer", "minimum": 2}}}, 2),
    ({"allOf": [{"type": "integer", "minimum": 2}, {"minimum": 5}]}, 5),
    ({"type": "object", "required": ["a"], "additionalProperties": {"const": 8}}, {"a": 8}),
    ({}, None),
]


@pytest.mark.parametrize(("schema", "expected"), CASES, ids=lambda value: str(value)[:60])
def test_the_smallest_value_fits_its_schema(schema: dict[str, Any], expected: Any) -> None:
    value = minimal_instance(schema)
    assert value == expected
    jsonschema.Draft202012Validator(schema).validate(value)


def test_a_schema_as_pydantic_writes_them() -> None:
    schema = {
        "$defs": {
            "Drop": {
                "type": "object",
                "properties": {"action": {"const": "drop"}, "segment": {"enum": [7, 8]}},
                "required": ["action", "segment"],
                "additionalProperties": False,
            }
        },
        "type": "object",
        "properties": {
            "calls": {"type": "array", "items": {"$ref": "#/$defs/Drop"}, "minItems": 1}
        },
        "required": ["calls"],
    }
    assert minimal_instance(schema) == {"calls": [{"action": "drop", "segment": 7}]}


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "string", "pattern": "^xyzzy$"}, "xyzzy"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "between 3 and 2"),
        ({"not": {}}, "`not`"),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}, "refers to itself"),
        (
            {
                "$ref": "#/$defs/A",
                "$defs": {
                    "A": {"required": ["a"], "properties": {"a": {"$ref": "#/$defs/A"}}},
                },
            },
            "requires itself",
        ),
        ({"$ref": "#/$defs/B"}, "#/\\$defs/B"),
        ({"$ref": "other.json"}, "other.json"),
        ({"type": "integer", "enum": ["a"]}, "enum"),
        ({"type": "object", "minProperties": 1, "additionalProperties": False}, "1 properties"),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "both 'string' and 'integer'"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "3 to 2"),
        ({"type": "array", "minItems": 2, "uniqueItems": True}, "uniqueItems"),
        ({"anyOf": []}, "no alternative"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_satisfied_is_refused_by_name(schema: dict[str, Any], named: str) -> None:
    with pytest.raises(Unsupported, match=named):
        minimal_instance(schema)


bounds = st.integers(-20, 20)
leaves = st.one_of(
    st.builds(
        lambda low, size, kind: {"type": kind, "minimum": low, "maximum": low + size},
        bounds,
        st.integers(0, 9),
        st.sampled_from(["integer", "number"]),
    ),
    st.builds(
        lambda step: {"type": "integer", "minimum": 1, "multipleOf": step}, st.integers(1, 9)
    ),
    st.builds(
        lambda least, more: {"type": "string", "minLength": least, "maxLength": least + more},
        st.integers(0, 5),
        st.integers(0, 5),
    ),
    st.builds(lambda values: {"enum": values}, st.lists(st.integers(), min_size=1)),
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": ["string", "null"]}]),
)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    objects = st.dictionaries(st.text("abc", min_size=1, max_size=2), inner, max_size=3).flatmap(
        lambda properties: st.builds(
            lambda required: {
                "type": "object",
                "properties": properties,
                "required": sorted(required),
                "additionalProperties": False,
            },
            st.sets(st.sampled_from(sorted(properties))) if properties else st.just(set()),
        )
    )
    arrays = st.builds(
        lambda items, count: {"type": "array", "items": items, "minItems": count},
        inner,
        st.integers(0, 3),
    )
    either = st.builds(lambda options: {"anyOf": options}, st.lists(inner, min_size=1, max_size=3))
    return st.one_of(objects, arrays, either)


@given(st.recursive(leaves, containers, max_leaves=6))
@settings(deadline=None, max_examples=150)
def test_whatever_the_schema_the_value_fits_and_is_the_same_twice(schema: dict[str, Any]) -> None:
    value = minimal_instance(schema)
    jsonschema.Draft202012Validator(schema).validate(value)
    assert minimal_instance(schema) == value
