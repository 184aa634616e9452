"""Which headers travel, and which do not (RFC 9110, section 7.6.1).

Owns both directions and the swap of credentials. Knows nothing of bodies.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from llm_guard.call import Call, Headers
from llm_guard.deployment import Upstream

_HOP_BY_HOP = frozenset({
    "connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization", "te", "trailer",
    "transfer-encoding", "upgrade",
})  # fmt: skip
_NOT_TO_UPSTREAM = _HOP_BY_HOP | {"host", "content-length", "expect"}
_CREDENTIALS = frozenset({"authorization", "x-api-key", "api-key"})
_ACCOUNT = ("openai-organization", "openai-project")
_OURS = "x-llm-guard-"
_WS_KEY = "openai-insecure-api-key."
"""A browser cannot set headers on a WebSocket: its key is one of the protocols it offers."""


def to_upstream(call: Call, upstream: Upstream, *, is_body_ours: bool = False) -> list[tuple[str, str]]:
    """What a provider sees of a client's headers; `is_body_ours`: but the body is not the client's.

    The credential is swapped where the upstream has a key. A key that opens the gateway goes no further.
    """
    headers = call.headers
    dropped = _NOT_TO_UPSTREAM | _named_in_connection(headers)
    if is_body_ours:
        dropped |= {"content-encoding"}
    if call.is_plain_wanted:
        dropped |= {"accept-encoding"}
    swaps = upstream.api_key is not None or call.client_key is not None
    kept = [
        (name, value)
        for name, value in headers
        if (lower := name.lower()) not in dropped
        and not lower.startswith(_OURS)
        and not (swaps and lower in _CREDENTIALS)
    ]
    if swaps and call.is_upgrade:
        kept = [_without_key(pair) for pair in kept]
    if upstream.api_key is not None and upstream.auth != "none":
        kept.append(_credential(upstream.auth, upstream.api_key))
    if call.is_upgrade:
        kept += [("Connection", "Upgrade"), ("Upgrade", "websocket")]
    if call.is_plain_wanted:
        kept.append(("Accept-Encoding", "identity"))
    return kept


def to_client(headers: Headers, *, is_upgraded: bool = False, is_inflated: bool = False) -> list[tuple[str, str]]:
    """What a client sees of a provider's headers; the length is the writer's to state."""
    dropped = _HOP_BY_HOP | _named_in_connection(headers) | {"content-length"}
    if is_inflated:
        dropped |= {"content-encoding"}
    kept = [
        (name, value)
        for name, value in headers
        if (lower := name.lower()) not in dropped and not lower.startswith(_OURS)
    ]
    if is_upgraded:
        kept += [("Connection", "Upgrade"), ("Upgrade", "websocket")]
    return kept


def ours(call: Call, deployment: str | None) -> list[tuple[str, str]]:
    """The headers by which the gateway says what it did."""
    said = [("x-llm-guard-request-id", call.id), ("x-llm-guard-attempts", str(len(call.attempts)))]
    if deployment is not None:
        said.append(("x-llm-guard-deployment", deployment))
    if call.closes_connection:
        said.append(("Connection", "close"))
    return said


def retry_after(seconds: float) -> list[tuple[str, str]]:
    """When to come back: whole seconds for everyone, rounded up; milliseconds for the official SDKs."""
    return [
        ("retry-after", str(max(1, math.ceil(seconds)))),
        ("retry-after-ms", str(max(1, math.ceil(seconds * 1000)))),
    ]


def value_of(headers: Headers, name: str) -> str:
    """The first value of a header, by its lower-case name; "" without one."""
    for key, value in headers:
        if key.lower() == name:
            return value
    return ""


def lower_names(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The headers by lower-case name; of repeated ones the first."""
    names: dict[str, str] = {}
    for name, value in headers:
        names.setdefault(name.lower(), value)
    return names


def caller_keys(headers: Headers) -> list[str]:
    """The credentials a caller presents, in any of the forms SDKs use."""
    keys = []
    for name, value in headers:
        lower = name.lower()
        if lower in _CREDENTIALS:
            keys.append(value[7:].strip() if lower == "authorization" and value[:7].lower() == "bearer " else value)
        elif lower == "sec-websocket-protocol":
            keys += [each.strip()[len(_WS_KEY) :] for each in value.split(",") if each.strip().startswith(_WS_KEY)]
    return keys


def account(headers: Headers) -> list[str]:
    """What a caller says of whose account a key is to be used for; by default it is the key's own."""
    return [f"{lower}: {value}" for name, value in headers if (lower := name.lower()) in _ACCOUNT]


def _named_in_connection(headers: Headers) -> set[str]:
    return {
        option.strip().lower() for name, value in headers if name.lower() == "connection" for option in value.split(",")
    }


def _without_key(pair: tuple[str, str]) -> tuple[str, str]:
    name, value = pair
    if name.lower() != "sec-websocket-protocol":
        return pair
    return name, ", ".join(each.strip() for each in value.split(",") if not each.strip().startswith(_WS_KEY))


def _credential(auth: str, key: str) -> tuple[str, str]:
    return ("Authorization", f"Bearer {key}") if auth == "bearer" else (auth, key)
