"""Writes JSON objects as server-sent events.

Escapes to ASCII, because half of a surrogate pair, which models do send, could not be encoded otherwise.
"""

from __future__ import annotations

import json

from llm_guard.dialects.resume.base import Body, text_in


def named_event(fields: Body) -> bytes:
    """An event named by its `type`."""
    return b"event: " + text_in(fields, "type").encode() + b"\n" + data_event(fields)


def data_event(fields: Body) -> bytes:
    """An event without a name."""
    return b"data: " + encoded(fields) + b"\n\n"


def encoded(fields: Body) -> bytes:
    """The object as JSON. Raises ValueError for a number that JSON does not have."""
    return json.dumps(fields, separators=(",", ":"), allow_nan=False).encode()
