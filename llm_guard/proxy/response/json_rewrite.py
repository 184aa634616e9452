"""Decodes and replaces whole JSON responses, for filters that change what a client gets.

The filters are `gateway.isolation` and `gateway.model_list`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_guard.call import Call, Opened, Served
from llm_guard.clock import Clock
from llm_guard.gateway import headers as header_rules
from llm_guard.gateway.asked import BadRequest
from llm_guard.gateway.coding import inflate
from llm_guard.gateway.settle import settle
from llm_guard.outcome import GaveUp, Refusal, Signal

_MOST_BYTES = 16 << 20
_DESCRIBES_BODY = ("content-encoding", "content-digest", "content-md5", "digest", "etag", "repr-digest")
_UNREADABLE = Refusal(
    502, "unreadable_list", "the upstream's list is too large or no JSON list, so it cannot be filtered", by=None
)


def ask_for_plain(call: Call) -> None:
    """Makes the upstream send the response uncompressed: the client may accept encodings that the gateway cannot
    read."""
    kept = tuple(pair for pair in call.headers if pair[0].lower() != "accept-encoding")
    call.headers = (*kept, ("Accept-Encoding", "identity"))


def object_in(opened: Opened) -> dict[str, Any] | None:
    """Returns the JSON object that is the whole response; None for anything else."""
    if opened.exchange is not None:
        return None
    try:
        plain = inflate(opened.held, header_rules.value_of(opened.headers, "content-encoding"), _MOST_BYTES)
        value = json.loads(plain)
    except (ValueError, RecursionError, BadRequest):
        return None
    return value if isinstance(value, dict) else None


def with_object(served: Served, answer: Mapping[str, Any]) -> Served:
    """Returns the same response with another body."""
    opened = served.opened
    headers = tuple(pair for pair in opened.headers if pair[0].lower() not in _DESCRIBES_BODY)
    return replace(served, opened=replace(opened, headers=headers, held=json.dumps(answer).encode()))


def unreadable(served: Served, clock: Clock) -> GaveUp:
    """Discards a response that could not be filtered, so that the client must not see it."""
    if served.opened.exchange is not None:
        served.opened.exchange.abort()
        settle(served.attempt, served.leave, Signal.NO_EVIDENCE, clock)
    return GaveUp(None, _UNREADABLE, "the list could not be filtered")
