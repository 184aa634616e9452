"""Which headers travel, and which do not (RFC 9110, section 7.6.1).

Owns both directions and the swap of credentials. Knows nothing of bodies. Every header of every call comes by here, so
that what is to become of a name is looked up, as it was written, in a table of the names that have been seen.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import TypeVar

from llm_guard.api_keys import ApiKey
from llm_guard.call import Call, Headers
from llm_guard.deployment import Upstream
from llm_guard.outcome import Beyond

_Fact = TypeVar("_Fact")

# What is known of a name: bits, so that a direction says in one number what it drops.
_NEVER = 1
_CONNECTION = 2
_KEY = 4
_COOKIE = 8
_WS_PROTOCOL = 16
_CONTENT_ENCODING = 32
_ACCEPT_ENCODING = 64
_ACCOUNT = 128
_STAYS = _NEVER | _CONNECTION
_CALLERS = _KEY | _COOKIE
_PRESENTED = _KEY | _WS_PROTOCOL

_HOP_BY_HOP = (
    "http2-settings", "keep-alive", "proxy", "te", "trailer", "transfer-encoding", "upgrade",
)  # fmt: skip
_OURS = "x-llm-guard-"
_CACHE_WORDS = {"hit": "hit", "stale": "stale", "stale_if_error": "stale", "miss": "miss", "coalesced": "miss"}
# What proxies say of a client, to whoever trusts them: no client of ours says it of itself to a provider, and where a
# client lives and by which proxies it comes is no provider's concern.
_PROXIES_WORDS = (
    "cf-connecting-ip", "client-ip", "forwarded", "true-client-ip", "via", "x-client-ip", "x-cluster-client-ip",
    "x-original-host", "x-original-url", "x-real-ip", "x-rewrite-url",
)  # fmt: skip
# Frameworks that heed one take a GET that a client may make for a DELETE that it may not make.
_OTHER_METHODS = ("x-http-method", "x-http-method-override", "x-method-override")
_NEVER_TO_UPSTREAM = frozenset({"host", "content-length", "expect", *_HOP_BY_HOP, *_PROXIES_WORDS, *_OTHER_METHODS})
_NEVER_TO_CLIENT = frozenset({"content-length", *_HOP_BY_HOP})
_SPECIAL = {
    "connection": _CONNECTION, "authorization": _KEY, "x-api-key": _KEY, "api-key": _KEY, "cookie": _COOKIE,
    "sec-websocket-protocol": _WS_PROTOCOL, "content-encoding": _CONTENT_ENCODING, "accept-encoding": _ACCEPT_ENCODING,
    "openai-organization": _ACCOUNT, "openai-project": _ACCOUNT,
}  # fmt: skip
_WS_KEY = "openai-insecure-api-key."
"""A browser cannot set headers on a WebSocket: its key is one of the protocols it offers."""
_CODING = re.compile(r"(?:gzip|x-gzip|deflate|identity)(?:\s*;|$)")
_CONNECTION_OPTIONS = frozenset({"", "close", "keep-alive", "upgrade", "te"})


def to_upstream(
    call: Call, upstream: Upstream, key: ApiKey | None = None, *, is_body_ours: bool = False
) -> list[tuple[str, str]]:
    """What a provider sees of a client's headers; `key` is the one of the upstream's pool, if it has one.
    `is_body_ours`: the body is not the client's.

    The credential is swapped where the upstream has a key. A key that opens the gateway goes no further. What the
    gateway adds, it adds last: no client can have it taken away by naming it in `Connection` (CVE-2022-31813).
    """
    secret = upstream.api_key if key is None else key.secret
    swaps = secret is not None or call.client_key is not None
    is_plain_wanted = call.is_plain_wanted
    dropped = _STAYS
    if swaps:
        dropped |= _CALLERS
    if is_body_ours:
        dropped |= _CONTENT_ENCODING
    if is_plain_wanted:
        dropped |= _ACCEPT_ENCODING
    kept = _travelling(call.headers, _up, dropped)
    if swaps and call.is_upgrade:
        kept = [_without_key(pair) for pair in kept]
    if secret is not None and upstream.auth != "none":
        kept.append(_credential(upstream.auth, secret))
    if call.is_upgrade:
        kept += [("Connection", "Upgrade"), ("Upgrade", "websocket")]
    if is_plain_wanted:
        kept.append(("Accept-Encoding", "identity"))
    else:
        for at, (name, value) in enumerate(kept):
            if _up[name] & _ACCEPT_ENCODING:
                kept[at] = (name, _inspectable_in[value])
    return kept


def of_request(headers: Headers) -> list[tuple[str, str]]:
    """What any provider sees of a client's headers, by lower-case names: without credentials, cookies and accounts."""
    return [(_lower[name], value) for name, value in _travelling(headers, _up, _STAYS | _CALLERS | _ACCOUNT)]


def to_client(headers: Headers, *, is_upgraded: bool = False, is_inflated: bool = False) -> list[tuple[str, str]]:
    """What a client sees of a provider's headers; the length is the writer's to state."""
    kept = _travelling(headers, _down, _STAYS | _CONTENT_ENCODING if is_inflated else _STAYS)
    if is_upgraded:
        kept += [("Connection", "Upgrade"), ("Upgrade", "websocket")]
    return kept


def ours(call: Call, deployment: str | None) -> list[tuple[str, str]]:
    """The headers by which the gateway says what it did."""
    said = [("x-llm-guard-request-id", call.id), ("x-llm-guard-attempts", str(len(call.attempts)))]
    if deployment is not None:
        said.append(("x-llm-guard-deployment", deployment))
    if call.beyond is not None:
        said += _said_of(call.beyond)
    return said


def _said_of(beyond: Beyond) -> list[tuple[str, str]]:
    said = []
    if beyond.cache:
        said.append(("x-llm-guard-cache", _CACHE_WORDS[beyond.cache]))
    if beyond.age_s is not None:
        said.append(("age", str(int(beyond.age_s))))
    if beyond.letter:
        said.append(("x-llm-guard-dead-letter", beyond.letter))
    if beyond.lesser:
        said.append(("x-llm-guard-degraded", beyond.lesser))
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
        if _lower[key] == name:
            return value
    return ""


def lower_names(headers: Headers) -> dict[str, str]:
    """The headers by lower-case name; of repeated ones the first."""
    names = {_lower[name]: value for name, value in headers}
    if len(names) < len(headers):
        for name, value in reversed(headers):
            names[_lower[name]] = value
    return names


def caller_keys(headers: Headers) -> list[str]:
    """The credentials a caller presents, in any of the forms SDKs use."""
    keys = []
    for name, value in headers:
        fact = _up[name]
        if not fact & _PRESENTED:
            continue
        if fact & _KEY:
            is_bearer = value[:7].lower() == "bearer " and _lower[name] == "authorization"
            keys.append(value[7:].strip() if is_bearer else value)
        else:
            keys += [each.strip()[len(_WS_KEY) :] for each in value.split(",") if each.strip().startswith(_WS_KEY)]
    return keys


def has_rival_keys(headers: Headers) -> bool:
    """Whether a credential's header is there twice and says two things: two readers would see two callers."""
    said: dict[str, str] = {}
    return any(said.setdefault(_lower[name], value) != value for name, value in headers if _up[name] & _KEY)


def account(headers: Headers) -> list[str]:
    """What a caller says of whose account a key is to be used for; by default it is the key's own."""
    return [f"{_lower[name]}: {value}" for name, value in headers if _up[name] & _ACCOUNT]


class _Seen(dict[str, _Fact]):
    """A function of short texts that remembers its answers. Bounded: whoever connects can choose the texts."""

    __slots__ = ("_find",)

    _MOST = 1024
    _LONGEST = 64

    def __init__(self, find: Callable[[str], _Fact]) -> None:
        super().__init__()
        self._find = find

    def __missing__(self, text: str) -> _Fact:
        fact = self._find(text)
        if len(text) <= self._LONGEST:
            if len(self) >= self._MOST:
                self.clear()
            self[text] = fact
        return fact


def _is_ours_or_proxys(lower: str) -> bool:
    return lower.startswith((_OURS, "proxy-"))


def _fact_to_upstream(name: str) -> int:
    lower = name.lower()
    # To a CGI or WSGI server `X_Api_Key` is `X-Api-Key`: an underscore would be a way around what is dropped here.
    if lower in _NEVER_TO_UPSTREAM or "_" in lower or lower.startswith(("x-forwarded-", "x-envoy-")):
        return _NEVER
    return _NEVER if _is_ours_or_proxys(lower) else _SPECIAL.get(lower, 0)


def _fact_to_client(name: str) -> int:
    lower = name.lower()
    is_dropped = lower in _NEVER_TO_CLIENT or _is_ours_or_proxys(lower)
    return _NEVER if is_dropped else _SPECIAL.get(lower, 0)


def _named(options: str) -> frozenset[str]:
    """The headers that a `Connection` names, in lower case."""
    return frozenset(option.strip().lower() for option in options.split(",")) - _CONNECTION_OPTIONS


def _inspectable(codings: str) -> str:
    """Of an Accept-Encoding, the codings that the gateway can decode: an answer in another could not be judged."""
    kept = [coding.strip() for coding in codings.split(",") if _CODING.match(coding.strip().lower())]
    return ", ".join(kept) or "identity"


_lower = _Seen(str.lower)
_up = _Seen(_fact_to_upstream)
_down = _Seen(_fact_to_client)
_named_in = _Seen(_named)
_inspectable_in = _Seen(_inspectable)


def _travelling(headers: Headers, facts: _Seen[int], dropped: int) -> list[tuple[str, str]]:
    """The headers without those of the kinds in `dropped`, and without those that `Connection` names."""
    kept = []
    named: frozenset[str] = frozenset()
    for pair in headers:
        fact = facts[pair[0]]
        if not fact & dropped:
            kept.append(pair)
        elif fact & _CONNECTION:
            named |= _named_in[pair[1]]
    return [pair for pair in kept if _lower[pair[0]] not in named] if named else kept


def _without_key(pair: tuple[str, str]) -> tuple[str, str]:
    name, value = pair
    if name.lower() != "sec-websocket-protocol":
        return pair
    return name, ", ".join(each.strip() for each in value.split(",") if not each.strip().startswith(_WS_KEY))


def _credential(auth: str, key: str) -> tuple[str, str]:
    return ("Authorization", f"Bearer {key}") if auth == "bearer" else (auth, key)
