"""JSON of translated calls: msgspec where it can, the standard library for what msgspec refuses.

Models send half of a surrogate pair, and Python servers write NaN: neither may lose a call.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

_MOST_DIGITS = 4000
"""Python refuses to convert integers of more than 4,300 digits, because that takes quadratic time."""

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def decode(data: bytes | str) -> Any:
    """Returns the value. Raises ValueError for anything that is not JSON, also if it is nested too deeply."""
    try:
        return _decode(data)
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None
    except ValueError:
        try:
            return json.loads(data, parse_int=_bounded)
        except RecursionError:
            raise ValueError("JSON is nested too deeply") from None


def encode(value: object) -> bytes:
    """Returns the value as JSON. Raises ValueError if it is nested too deeply."""
    try:
        return _encode(value)
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None
    except UnicodeEncodeError:  # half of a surrogate pair
        return json.dumps(value, separators=(",", ":")).encode()


def value_of(data: bytes | str) -> Any:
    """Returns the value; None for anything that is not JSON."""
    try:
        return decode(data)
    except ValueError:
        return None


def object_of(data: bytes | str) -> dict[str, Any] | None:
    """Returns the JSON object; None for anything else."""
    value = value_of(data)
    return value if isinstance(value, dict) else None


def _bounded(digits: str) -> int:
    return int(digits) if len(digits) < _MOST_DIGITS else 0
