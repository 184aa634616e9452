"""Parses the JSON of one event, with numbers of any length."""

from __future__ import annotations

import json
from typing import Any

from llm_guard.dialects.sse import SseEvent

_MOST_DIGITS = 4000
"""Python refuses to convert integers of more than 4,300 digits, because that takes quadratic time."""


def object_in(event: SseEvent) -> dict[str, Any] | None:
    """The event's data as an object; {} for an event without data; None if it is not a JSON object."""
    if not event.data:
        return {}
    try:
        value = json.loads(event.data)
    except RecursionError:
        return None
    except ValueError:
        value = _with_long_numbers(event.data)
    return value if isinstance(value, dict) else None


def dict_of(value: object) -> dict[str, Any]:
    """The value if it is an object, else {}."""
    return value if isinstance(value, dict) else {}


def list_of(value: object) -> list[Any]:
    """The value if it is a list, else []."""
    return value if isinstance(value, list) else []


def count_of(value: object) -> int | None:
    """The value if it is a token count, else None, for example for a number of thousands of digits."""
    return value if type(value) is int and 0 <= value < 1 << 53 else None


def _with_long_numbers(data: bytes) -> object:
    """Parses JSON with 0 in place of integers that are too long; None if it is not JSON."""
    try:
        return json.loads(data, parse_int=_bounded)
    except (ValueError, RecursionError):
        return None


def _bounded(digits: str) -> int:
    return int(digits) if len(digits) < _MOST_DIGITS else 0
