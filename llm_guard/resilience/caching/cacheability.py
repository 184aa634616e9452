"""Which requests may be served from the response cache, and which responses may be stored in it.

Decides by path and by the contents of a body. A route's settings are in `resilience.caching.freshness`, the key in
`resilience.caching.key`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

ANSWERS = {
    "/v1/chat/completions": "choices",
    "/v1/completions": "choices",
    "/v1/responses": "output",
    "/v1/responses/input_tokens": "input_tokens",
    "/v1/embeddings": "data",
    "/v1/moderations": "results",
    "/v1/rerank": "results",
    "/v1/messages": "content",
    "/v1/messages/count_tokens": "input_tokens",
    "/v1/complete": "completion",
}
"""POST paths that may be served from the cache, each with the field that a complete response has."""
SAME_FOR_ALL = frozenset({
    "/v1/responses/input_tokens", "/v1/embeddings", "/v1/moderations", "/v1/rerank", "/v1/messages/count_tokens",
})  # fmt: skip
"""Paths of endpoints that do not sample."""
LEAVES_SOMETHING = ("store", "background", "container")
"""Fields of a request that makes the provider store something, or continues from what it has stored: a cached response
would have no such effect. `previous_response_id` and `conversation` are covered by `Call.is_sticky`."""

_FILTERED = re.compile(
    rb'"(?:finish_reason|stop_reason|reason)"\s*:\s*"(?:content_filter|refusal|pause_turn|SAFETY|safety)"'
)
"""Ends that are not final: the next sample may pass. Text cannot imitate them: its quotes are escaped. `length` and
`max_tokens` are cached: the request has set that limit itself."""


def may_be_asked_of_cache(
    path: str, fields: Mapping[str, Any], requests: Literal["all", "deterministic"]
) -> bool:  # fmt: skip
    """Returns whether a POST to `path`, with these among the fields of its body, may be served from the cache."""
    if path not in ANSWERS or any(fields.get(name) not in (None, False) for name in LEAVES_SOMETHING):
        return False
    return requests == "all" or path in SAME_FOR_ALL or _is_deterministic(fields)


def is_filtered(body: bytes) -> bool:
    """Returns whether a response, whole or as a stream, was ended by a filter or in the middle of a turn."""
    return _FILTERED.search(body) is not None


def forbids_keeping(cache_control: str) -> bool:
    """Returns whether a provider sends `no-store`. `private`, `no-cache` and `max-age=0`, which servers send with every
    response to a POST, address shared caches: this one keeps it for its caller, as long as the operator allows."""
    return any(directive.strip().lower() == "no-store" for directive in cache_control.split(","))


def _is_deterministic(fields: Mapping[str, Any]) -> bool:
    temperature, seed = fields.get("temperature"), fields.get("seed")
    is_greedy = isinstance(temperature, int | float) and not isinstance(temperature, bool) and temperature == 0
    return is_greedy or (isinstance(seed, int) and not isinstance(seed, bool))
