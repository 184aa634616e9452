"""Which requests may be answered from before, and which answers may be kept for that.

Owns both rules, by path and by what stands in a body. Does not own a route's settings (`policy.freshness`), nor the key
(`policy.cache_key`).
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
"""POST to these may be answered from before; each with what a whole answer has."""
SAME_FOR_ALL = frozenset({
    "/v1/responses/input_tokens", "/v1/embeddings", "/v1/moderations", "/v1/rerank", "/v1/messages/count_tokens",
})  # fmt: skip
"""Nothing is sampled there."""
LEAVES_SOMETHING = ("store", "background", "container")
"""Fields of a request that asks the provider to keep something, or goes on from what it keeps: an answer from before
would be without that. `previous_response_id` and `conversation` are `Call.is_bound`."""

_FILTERED = re.compile(
    rb'"(?:finish_reason|stop_reason|reason)"\s*:\s*"(?:content_filter|refusal|pause_turn|SAFETY|safety)"'
)
"""Ends that are not the model's last word: the next sample may pass. Text cannot fake these: its quotes are escaped.
`length` and `max_tokens` are kept: the request has asked for so much and no more."""


def may_be_asked_of_cache(
    path: str, fields: Mapping[str, Any], requests: Literal["all", "deterministic"]
) -> bool:  # fmt: skip
    """Whether a POST to `path`, with these among the fields of its body, may be answered from before."""
    if path not in ANSWERS or any(fields.get(name) not in (None, False) for name in LEAVES_SOMETHING):
        return False
    return requests == "all" or path in SAME_FOR_ALL or _is_deterministic(fields)


def is_filtered(body: bytes) -> bool:
    """Whether an answer, whole or as a stream, was ended by a filter, or in the middle of a turn."""
    return _FILTERED.search(body) is not None


def forbids_keeping(cache_control: str) -> bool:
    """Whether a provider says `no-store`. `private`, `no-cache` and `max-age=0`, which servers send with every answer
    to a POST, are said to caches that share it: here it is kept for its caller, for as long as the operator says."""
    return any(each.strip().lower() == "no-store" for each in cache_control.split(","))


def _is_deterministic(fields: Mapping[str, Any]) -> bool:
    temperature, seed = fields.get("temperature"), fields.get("seed")
    is_greedy = isinstance(temperature, int | float) and not isinstance(temperature, bool) and temperature == 0
    return is_greedy or (isinstance(seed, int) and not isinstance(seed, bool))
