"""Keeps the credentials of callers in memory while their calls are stored. They are never written to disk."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote

from llm_guard.proxy.call import Call, Headers
from llm_guard.resilience.bounded_map import BoundedMap

MOST = 1000
"""Calls that credentials are kept for. Callers choose how many calls they defer; the oldest are evicted."""

_ALLOWED = frozenset({
    "accept", "anthropic-beta", "anthropic-version", "content-encoding", "content-type", "idempotency-key",
    "openai-beta", "user-agent",
})  # fmt: skip
"""Request headers that are stored: those that change how a provider reads the request."""
_IN_MEMORY = frozenset({"authorization", "x-api-key", "api-key", "openai-organization", "openai-project"})
_SUSPICIOUS = ("auth", "cred", "key", "pass", "secret", "sig", "token")
"""Substrings of parameter names that suggest a credential: Google's `key`, Azure's `sig`."""


@dataclass(frozen=True, slots=True)
class Presented:
    """Credentials that a caller presented."""

    headers: Headers = ()
    parameters: tuple[str, ...] = ()
    """Query parameters, as `name=value`."""


class Credentials:
    """Callers' credentials, by the id of the stored call."""

    def __init__(self) -> None:
        self._kept = BoundedMap[str, Presented](MOST)

    def keep(self, kept_id: str, call: Call) -> None:
        """Keeps the call's credentials if its execution will need them."""
        if (presented := presented_by(call)) != Presented():
            self._kept[kept_id] = presented

    def of(self, kept_id: str) -> Presented:
        return self._kept.get(kept_id, Presented())

    def forget(self, kept_id: str) -> None:
        self._kept.pop(kept_id, None)


def presented_by(call: Call) -> Presented:
    """Returns the credentials that are forwarded with a call; a client key of the gateway never is."""
    if call.client_key is not None:
        return Presented()
    headers = tuple(pair for pair in call.headers if pair[0].lower() in _IN_MEMORY)
    return Presented(headers, tuple(parameter for parameter in call.query.split("&") if _is_suspicious(parameter)))


def plain_headers(headers: Headers) -> Headers:
    """Returns the headers that may be stored."""
    return tuple((name.lower(), value) for name, value in headers if name.lower() in _ALLOWED)


def plain_query(query: str) -> str:
    """Returns the query without the parameters that may be credentials."""
    return "&".join(parameter for parameter in query.split("&") if parameter and not _is_suspicious(parameter))


def _is_suspicious(parameter: str) -> bool:
    name = unquote(parameter.partition("=")[0]).lower()
    return any(word in name for word in _SUSPICIOUS)
