"""JSON schemas of tools and of outputs, as the other dialect accepts them. A schema of the client is never modified."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llm_guard.dialects.translation.canonical import JsonObject
from llm_guard.dialects.translation.losses import Losses

_COMPOSITIONS = ("anyOf", "oneOf", "allOf")
_COMPOSING = frozenset({*_COMPOSITIONS, "$ref"})
_LIMITS = frozenset({
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "pattern",
    "maxItems", "uniqueItems", "minProperties", "maxProperties", "patternProperties", "propertyNames", "contains",
    "not", "if", "then", "else", "default", "title", "examples",
})  # fmt: skip
"""Keywords that Anthropic's structured outputs refuse or ignore (platform.claude.com, "Structured outputs")."""
_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"})
_NESTED = ("items", "additionalProperties", "prefixItems", *_COMPOSITIONS)
_NAMED = ("properties", "$defs", "definitions")
_DEPTH = 64


def tool_schema(schema: object, losses: Losses) -> JsonObject:
    """Returns the schema of a tool's arguments with an object at its root, as both dialects require.

    Anthropic refuses a composition at the root: the members of its alternatives are merged."""
    if not isinstance(schema, dict):
        return {"type": "object", "properties": {}}
    if not _COMPOSING.isdisjoint(schema):
        losses.hint("schema_composition")
        schema = _merged(schema)
    if schema.get("type") == "object":
        return schema
    return {**schema, "type": "object", "properties": schema.get("properties") or {}}


def _merged(schema: JsonObject) -> JsonObject:
    """Returns an object schema with the members of all alternatives; required is what each of them requires."""
    merged = {key: value for key, value in schema.items() if key not in _COMPOSING}
    properties: JsonObject = dict(schema.get("properties") or {})
    required: set[str] = set(_texts(schema.get("required")))
    alternatives = [_resolved(part, schema) for key in ("anyOf", "oneOf") for part in _objects(schema.get(key))]
    parts = [_resolved(part, schema) for part in _objects(schema.get("allOf"))]
    if "$ref" in schema:
        parts.append(_resolved(schema, schema))
    for part in (*alternatives, *parts):
        for name, value in (part.get("properties") or {}).items():
            properties.setdefault(name, value)
    for part in parts:
        required.update(_texts(part.get("required")))
    if alternatives:
        required.update(set.intersection(*(set(_texts(part.get("required"))) for part in alternatives)))
    merged |= {"type": "object", "properties": properties}
    return {**merged, "required": sorted(required)} if required else merged


def _resolved(part: JsonObject, root: JsonObject) -> JsonObject:
    """Returns the schema that a reference points to, in the same document."""
    for _ in range(_DEPTH):
        reference = part.get("$ref")
        if not isinstance(reference, str):
            return part
        found: Any = root
        for step in reference.removeprefix("#/").split("/"):
            found = found.get(step) if isinstance(found, dict) else None
        if not isinstance(found, dict):
            return {}
        part = found
    return {}


def output_schema(schema: JsonObject, losses: Losses) -> JsonObject:
    """Returns the schema of an output as Anthropic accepts it: objects without further members, and without the limits
    that it refuses."""
    return _each(schema, lambda part: _closed(part, losses), 0)


def _closed(part: JsonObject, losses: Losses) -> JsonObject:
    if not _LIMITS.isdisjoint(part):
        if part.keys() & _LIMITS - {"title", "default", "examples"}:
            losses.hint("schema_limits")
        part = {key: value for key, value in part.items() if key not in _LIMITS}
    if part.get("format") not in (None, *_FORMATS):
        losses.hint("schema_limits")
        part = {key: value for key, value in part.items() if key != "format"}
    if part.get("minItems") not in (None, 0, 1):
        losses.hint("schema_limits")
        part = {key: value for key, value in part.items() if key != "minItems"}
    if "properties" in part or part.get("type") == "object":
        if part.get("additionalProperties") not in (None, False):
            losses.promise("open_schema")
        return {**part, "additionalProperties": False}
    return part


def is_strict(schema: JsonObject) -> bool:
    """Returns whether OpenAI's strict mode accepts the schema: every object is closed and requires all its members."""
    found = True

    def judge(part: JsonObject) -> JsonObject:
        nonlocal found
        if "properties" in part or part.get("type") == "object":
            is_closed = part.get("additionalProperties") is False
            found = found and is_closed and set(_texts(part.get("required"))) == set(part.get("properties") or {})
        return part

    _each(schema, judge, 0)
    return found


def _each(part: JsonObject, change: Callable[[JsonObject], JsonObject], depth: int) -> JsonObject:
    """Returns the schema with every schema in it replaced by `change`."""
    if depth > _DEPTH:
        return part
    new = dict(part)
    for key in _NESTED:
        value = new.get(key)
        if isinstance(value, dict):
            new[key] = _each(value, change, depth + 1)
        elif isinstance(value, list):
            new[key] = [_each(item, change, depth + 1) if isinstance(item, dict) else item for item in value]
    for key in _NAMED:
        value = new.get(key)
        if isinstance(value, dict):
            new[key] = {
                name: _each(item, change, depth + 1) if isinstance(item, dict) else item for name, item in value.items()
            }
    return change(new)


def _objects(value: object) -> list[JsonObject]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _texts(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
