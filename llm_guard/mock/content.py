"""Content of the mock model, independent of the dialect: words, JSON that fits a schema, and the pieces of a stream."""

from __future__ import annotations

from typing import Any

import msgspec

_WORDS = ("Breakers", "open", "when", "providers", "fail,", "and", "calls", "go", "on", "— déjà", "vu", "✓.")


def say(count: int, *, is_another: bool = False) -> list[str]:
    """`count` tokens of prose, all different, some of them with characters of two and three bytes.

    `is_another` spells every word backwards: no end of one text is a beginning of the other."""
    words = [_WORDS[i % len(_WORDS)] + (str(i // len(_WORDS) + 1) if i >= len(_WORDS) else "") for i in range(count)]
    return [(word[::-1] if is_another else word) + " " for word in words]


def say_json(schema: dict[str, Any], count: int, *, is_another: bool = False) -> list[str]:
    """A JSON text that fits the schema, in at most `count` (>= 1) pieces."""
    return split(msgspec.json.encode(example_of(schema, is_another=is_another)).decode(), count)


def split(text: str, count: int) -> list[str]:
    """The text in at most `count` (>= 1) pieces of about the same length."""
    size = max(1, -(-len(text) // max(1, count)))
    return [text[i : i + size] for i in range(0, len(text), size)]


def example_of(schema: dict[str, Any], root: dict[str, Any] | None = None, *, is_another: bool = False) -> Any:
    """A value that fits a JSON schema as SDKs write them: every property set, arrays of one element.

    `is_another` returns a different value wherever the schema allows several strings, numbers, booleans or enum
    members."""
    root = schema if root is None else root
    if "$ref" in schema:
        return example_of(_resolve(schema["$ref"], root), root, is_another=is_another)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][-1 if is_another else 0]
    for union in ("anyOf", "oneOf", "allOf"):
        if schema.get(union):
            return example_of(schema[union][0], root, is_another=is_another)
    kind = schema.get("type", "object")
    if isinstance(kind, list):
        kind = kind[0]
    if kind == "object":
        parts = schema.get("properties", {})
        return {name: example_of(part, root, is_another=is_another) for name, part in parts.items()}
    if kind == "array":
        return [example_of(schema["items"], root, is_another=is_another)] if "items" in schema else []
    return (_OTHER if is_another else _PLAIN).get(kind)


_PLAIN: dict[str, Any] = {"string": "mock", "integer": 7, "number": 0.5, "boolean": True}
_OTHER: dict[str, Any] = {"string": "other", "integer": 8, "number": 0.25, "boolean": False}


def _resolve(reference: str, root: dict[str, Any]) -> dict[str, Any]:
    found: Any = root
    for step in reference.removeprefix("#/").split("/"):
        found = found.get(step, {})
    return dict(found)
