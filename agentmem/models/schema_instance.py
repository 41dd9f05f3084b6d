"""The smallest value that fits a JSON schema, always the same one.

For models that must answer with JSON and have nothing to say. Knows the schemas that tools and
pydantic produce; refuses, by name, a keyword it cannot satisfy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from agentmem.errors import Unsupported

Schema = Mapping[str, Any]
MAX_DEPTH = 32
_FILLERS = ("", "a", "A", "0", "ok", "none", "a-a", "a_a", "a.a", "1.0", "2000-01-01")


def minimal_instance(schema: Schema | bool) -> Any:
    """The smallest value that fits the schema.

    Raises:
        Unsupported: the schema asks for what this module does not know how to satisfy.
    """
    return _instance(schema, schema if isinstance(schema, Mapping) else {}, 0)


def _instance(schema: Schema | bool, root: Schema, depth: int) -> Any:
    if schema is True or schema == {}:
        return None
    if isinstance(schema, bool):
        raise Unsupported("The JSON schema `false` fits no value.")
    if depth > MAX_DEPTH:
        raise Unsupported(f"The JSON schema requires itself: deeper than {MAX_DEPTH} levels.")
    schema = _resolved(schema, root)
    for unknown in ("not", "if", "patternProperties", "contains", "dependentRequired"):
        if unknown in schema:
            raise Unsupported(f"Cannot make a value for the JSON schema keyword `{unknown}`.")
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return _first_allowed(schema)
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            rest = {key: value for key, value in schema.items() if key != choice}
            return _first_possible([_merged([rest, one]) for one in schema[choice]], root, depth)
    return _of_type(schema, root, depth)


def _resolved(schema: Schema, root: Schema) -> Schema:
    """The schema with `$ref` and `allOf` folded in."""
    for _ in range(MAX_DEPTH):
        parts = [schema]
        if reference := schema.get("$ref"):
            parts.append(_referenced(reference, root))
        parts += schema.get("allOf", ())
        if len(parts) == 1:
            return schema
        parts[0] = {key: value for key, value in schema.items() if key not in ("$ref", "allOf")}
        schema = _merged(parts)
    raise Unsupported(f"The JSON schema refers to itself: {schema.get('$ref')!r}.")


def _referenced(reference: str, root: Schema) -> Schema:
    target: Any = root
    if not reference.startswith("#"):
        raise Unsupported(f"A `$ref` must stay inside its schema: got {reference!r}.")
    for name in reference[1:].split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")
        if not isinstance(target, Mapping) or name not in target:
            raise Unsupported(f"The JSON schema has no {reference!r}.")
        target = target[name]
    return target if isinstance(target, Mapping) else {}


def _merged(parts: list[Any]) -> Schema:
    """One schema that asks for what all the parts ask for."""
    merged: dict[str, Any] = {}
    for part in parts:
        if part is False:
            raise Unsupported("The JSON schema `false` fits no value.")
        for key, value in part.items() if isinstance(part, Mapping) else ():
            old = merged.get(key)
            if old is None or old == value:
                merged[key] = value
            elif key in ("properties", "$defs", "definitions"):
                both = {name: _merged([old[name], value[name]]) for name in old if name in value}
                merged[key] = {**old, **value, **both}
            elif key == "required":
                merged[key] = [*old, *(name for name in value if name not in old)]
            elif key == "enum":
                merged[key] = [one for one in old if one in value]
            elif key in ("minimum", "exclusiveMinimum", "minLength", "minItems"):
                merged[key] = max(old, value)
            elif key in ("maximum", "exclusiveMaximum", "maxLength", "maxItems"):
                merged[key] = min(old, value)
            elif key in ("title", "description", "default", "examples"):
                merged[key] = value
            elif key == "type":
                merged[key] = _common_types(old, value)
            else:
                raise Unsupported(f"Cannot join two JSON schemas that differ in `{key}`.")
    return merged


def _common_types(first: Any, second: Any) -> list[str]:
    names = [second] if isinstance(second, str) else list(second)
    common = [name for name in ([first] if isinstance(first, str) else first) if name in names]
    if not common:
        raise Unsupported(f"No value is both {first!r} and {second!r}.")
    return common


def _first_allowed(schema: Schema) -> Any:
    types = schema.get("type")
    names = [types] if isinstance(types, str) else types
    for value in schema["enum"]:
        if names is None or any(_is_of_type(value, name) for name in names):
            return value
    raise Unsupported(f"No value of the `enum` {schema['enum']!r} is of type {types!r}.")


def _is_of_type(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    kinds: dict[str, Any] = {
        "string": str,
        "integer": int,
        "number": (int, float),
        "array": list,
        "object": Mapping,
        "null": type(None),
    }
    return isinstance(value, kinds.get(name, ()))


def _first_possible(options: list[Schema], root: Schema, depth: int) -> Any:
    problem = Unsupported("The JSON schema offers no alternative.")
    for option in options:
        try:
            return _instance(option, root, depth + 1)
        except Unsupported as error:
            problem = error
    raise problem


def _of_type(schema: Schema, root: Schema, depth: int) -> Any:
    types = schema.get("type")
    if types is None:
        types = _implied_type(schema)
    name = types if isinstance(types, str) else types[0]
    if name == "object":
        return _object(schema, root, depth)
    if name == "array":
        return _array(schema, root, depth)
    if name == "string":
        return _string(schema)
    if name in ("integer", "number"):
        return _number(schema, whole=name == "integer")
    if name == "boolean":
        return False
    if name == "null":
        return None
    raise Unsupported(f"Cannot make a value of the JSON type {name!r}.")


def _implied_type(schema: Schema) -> str:
    if "properties" in schema or "required" in schema:
        return "object"
    if "items" in schema or "prefixItems" in schema or "minItems" in schema:
        return "array"
    if "minLength" in schema or "pattern" in schema:
        return "string"
    if "minimum" in schema or "exclusiveMinimum" in schema or "multipleOf" in schema:
        return "number"
    return "null"


def _object(schema: Schema, root: Schema, depth: int) -> dict[str, Any]:
    properties = schema.get("properties", {})
    names = list(schema.get("required", ()))
    wanted = schema.get("minProperties", 0)
    names += [name for name in properties if name not in names][: max(0, wanted - len(names))]
    extra = schema.get("additionalProperties", True)
    while len(names) < wanted:
        if extra is False:
            raise Unsupported(f"An object of {wanted} properties has only {len(names)} names.")
        names.append(f"p{len(names)}")
    return {name: _instance(properties.get(name, extra), root, depth + 1) for name in names}


def _array(schema: Schema, root: Schema, depth: int) -> list[Any]:
    prefix = schema.get("prefixItems", ())
    items = schema.get("items", True)
    count = schema.get("minItems", 0)
    values = [
        _instance(prefix[index] if index < len(prefix) else items, root, depth + 1)
        for index in range(count)
    ]
    if schema.get("uniqueItems") and count > 1:
        return _distinct(schema, values, root)
    return values


def _distinct(schema: Schema, values: list[Any], root: Schema) -> list[Any]:
    """So many different values, where the items are an enum or whole numbers."""
    items = schema.get("items", True)
    items = _resolved(items, root) if isinstance(items, Mapping) else {}
    if "prefixItems" not in schema and len(items.get("enum", ())) >= len(values):
        return list(items["enum"][: len(values)])
    if "prefixItems" not in schema and items.get("type") == "integer":
        step = items.get("multipleOf", 1)
        numbers = [values[0] + step * index for index in range(len(values))]
        if numbers[-1] <= items.get("maximum", math.inf) and numbers[-1] < items.get(
            "exclusiveMaximum", math.inf
        ):
            return numbers
    raise Unsupported("Cannot make the different values that `uniqueItems` asks for.")


def _string(schema: Schema) -> str:
    least, most = schema.get("minLength", 0), schema.get("maxLength", math.inf)
    pattern = schema.get("pattern")
    for filler in _FILLERS:
        text = filler if len(filler) >= least else (filler or "a").ljust(least, filler[-1:] or "a")
        if len(text) <= most and (pattern is None or re.search(pattern, text)):
            return text
    raise Unsupported(
        f"Cannot make a string of {least} to {most} characters for the pattern {pattern!r}."
    )


def _number(schema: Schema, *, whole: bool) -> int | float:
    """The number nearest to 0 within the bounds, an integer wherever one fits."""
    low = max(schema.get("minimum", -math.inf), schema.get("exclusiveMinimum", -math.inf))
    high = min(schema.get("maximum", math.inf), schema.get("exclusiveMaximum", math.inf))
    step = schema.get("multipleOf", 1)
    near: float = 0 if low <= 0 <= high else low if low > 0 else high
    multiple = round(near / step)
    candidates: list[int | float] = [
        step * (multiple + offset) for offset in (0, 1, -1, 2, -2) if not math.isinf(near)
    ]
    if not whole and "multipleOf" not in schema:
        candidates += [near, (low + high) / 2]
    for value in candidates:
        if whole and value != int(value):
            continue
        if (
            schema.get("minimum", value) <= value <= schema.get("maximum", value)
            and value != schema.get("exclusiveMinimum")
            and value != schema.get("exclusiveMaximum")
            and low <= value <= high
        ):
            return int(value) if value == int(value) else value
    raise Unsupported(
        f"Cannot make a number between {low} and {high} that is a multiple of {step}."
    )
