"""What callers have sent that must never lie on a disk, for as long as this process lives.

Owns what is a secret of a request, and that it stays in memory. Does not own what is kept of the rest (`errands.form`).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from urllib.parse import unquote

from llm_guard.call import Call, Headers

MOST = 1000
"""Callers choose how much they have kept: those of the longest ago go first."""

_ALLOWED = frozenset({
    "accept", "anthropic-beta", "anthropic-version", "content-encoding", "content-type", "idempotency-key",
    "openai-beta", "user-agent",
})  # fmt: skip
"""All that is kept of a request's headers: what changes how a provider reads it."""
_IN_MEMORY = frozenset({"authorization", "x-api-key", "api-key", "openai-organization", "openai-project"})
_SUSPICIOUS = ("auth", "cred", "key", "pass", "secret", "sig", "token")
"""A parameter with such a name may be one: Google's `key`, Azure's `sig`."""


@dataclass(frozen=True, slots=True)
class Presented:
    """By a caller."""

    headers: Headers = ()
    parameters: tuple[str, ...] = ()
    """Of the query."""


class Credentials:
    """By the ids of kept calls."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Presented] = OrderedDict()

    def keep(self, kept_id: str, call: Call) -> None:
        """If its caller's are needed to ask for it."""
        if call.client_key is not None:
            return  # a key of ours, which goes no further
        headers = tuple(pair for pair in call.headers if pair[0].lower() in _IN_MEMORY)
        parameters = tuple(each for each in call.query.split("&") if _is_suspicious(each))
        if headers or parameters:
            self._kept[kept_id] = Presented(headers, parameters)
            if len(self._kept) > MOST:
                self._kept.popitem(last=False)

    def of(self, kept_id: str) -> Presented:
        return self._kept.get(kept_id, Presented())

    def forget(self, kept_id: str) -> None:
        self._kept.pop(kept_id, None)


def plain_headers(headers: Headers) -> Headers:
    """Those that may be kept."""
    return tuple((name.lower(), value) for name, value in headers if name.lower() in _ALLOWED)


def plain_query(query: str) -> str:
    """What of it may be kept."""
    return "&".join(each for each in query.split("&") if each and not _is_suspicious(each))


def _is_suspicious(parameter: str) -> bool:
    name = unquote(parameter.partition("=")[0]).lower()
    return any(word in name for word in _SUSPICIOUS)
