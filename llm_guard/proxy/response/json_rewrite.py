"""Decodes and replaces whole JSON responses, for filters that change what a client gets.

The filters are `proxy.client_keys.object_isolation` and `proxy.client_keys.model_list`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_guard.clock import Clock
from llm_guard.outcome import Exhausted, Refusal, Signal
from llm_guard.proxy import headers as header_rules
from llm_guard.proxy.attempts.admission import settle
from llm_guard.proxy.call import Delivered, Opened
from llm_guard.proxy.request_body.content_encoding import inflate
from llm_guard.proxy.request_body.fields import BadRequest

_MOST_BYTES = 16 << 20
_DESCRIBES_BODY = ("content-encoding", "content-digest", "content-md5", "digest", "etag", "repr-digest")
_UNREADABLE = Refusal(
    502, "unreadable_list", "the upstream's list cannot be filtered: it is too large or not a JSON list", by=None
)


def object_in(opened: Opened) -> dict[str, Any] | None:
    """Returns the JSON object that is the whole response; None for anything else."""
    if opened.exchange is not None:
        return None
    try:
        plain = inflate(opened.buffered, header_rules.value_of(opened.headers, "content-encoding"), _MOST_BYTES)
        value = json.loads(plain)
    except (ValueError, RecursionError, BadRequest):
        return None
    return value if isinstance(value, dict) else None


def with_object(served: Delivered, answer: Mapping[str, Any]) -> Delivered:
    """Returns the same response with another body."""
    opened = served.opened
    headers = tuple(pair for pair in opened.headers if pair[0].lower() not in _DESCRIBES_BODY)
    return replace(served, opened=replace(opened, headers=headers, buffered=json.dumps(answer).encode()))


def unreadable(served: Delivered, clock: Clock) -> Exhausted:
    """Discards a response that could not be filtered, so that the client must not see it."""
    if served.opened.exchange is not None:
        served.opened.exchange.abort()
        settle(served.attempt, served.lease, Signal.NO_EVIDENCE, clock)
    return Exhausted(None, _UNREADABLE, "the upstream's list could not be filtered")
