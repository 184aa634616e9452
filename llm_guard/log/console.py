"""Formats a log line for people: time, level, event, then the most important fields.

Converts the line's JSON, in the log's own thread, so that both formats cost the caller the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

_FIRST = (
    "outcome", "status", "model", "deployment", "upstream", "before", "after", "reason", "duration_s", "ttft_s",
    "attempts", "skipped", "request_id",
)  # fmt: skip
_IN_FRONT = ("timestamp", "level", "event", "exception")
_OF_AN_ATTEMPT = ("deployment", "outcome", "waited_s", "duration_s", "reason", "next_step")
_MOST_CHARS = 300
"""Maximum length of a value; the JSON format has all of it."""
_MOST_ITEMS = 8
_COLOURS = {"debug": "2", "warning": "33", "error": "31", "critical": "31"}
_PLAIN_WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+*./:@,;%&<>~#!?()")


def to_console(line: bytes, *, is_coloured: bool) -> bytes:
    """Formats `line`, a JSON object as written by `to_line`. Escapes control characters; indents tracebacks, so that
    none of their lines can pass for a log line."""
    fields = json.loads(line)
    level = printable(str(fields.get("level", "")))
    head = f"{_time(fields)} {level:8} {printable(str(fields.get('event', '')))}"
    if is_coloured and level in _COLOURS:
        head = f"\x1b[{_COLOURS[level]}m{head}\x1b[0m"
    said = "  ".join([head, *(f"{key}={_shown(value)}" for key, value in _in_order(fields))])
    told = "".join(f"\n    {printable(row)}" for row in str(fields.get("exception", "")).splitlines())
    return f"{said}{told}\n".encode()


def _time(fields: dict[str, Any]) -> str:
    """`2026-01-31T23:59:59.123456Z` as `23:59:59.123`."""
    return printable(str(fields.get("timestamp", "")))[11:23]


def _in_order(fields: dict[str, Any]) -> Iterator[tuple[str, object]]:
    for key in _FIRST:
        if fields.get(key) not in (None, [], ""):
            yield key, fields[key]
    for key, value in fields.items():
        if key not in _FIRST and key not in _IN_FRONT and value is not None:
            yield printable(key), value


def _shown(value: object) -> str:
    text = _text(value)
    return text if len(text) <= _MOST_CHARS else f"{text[:_MOST_CHARS]}..."


def _text(value: object) -> str:
    match value:
        case str():
            return value if value and _PLAIN_WORD.issuperset(value) else _quoted(value)
        case list():
            more = ["..."] if len(value) > _MOST_ITEMS else []
            return f"[{', '.join([*map(_text, value[:_MOST_ITEMS]), *more])}]"
        case dict() if "deployment" in value:
            return " ".join(_text(value[key]) for key in _OF_AN_ATTEMPT if value.get(key))
        case dict():
            return " ".join(f"{printable(key)}={_text(item)}" for key, item in value.items())
        case _:
            return json.dumps(value)


def _quoted(text: str) -> str:
    """Quotes text from a provider, so that it cannot look like another field."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{printable(escaped)}"'


def printable(text: str) -> str:
    """Escapes control characters and those that change the writing direction."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
