"""Header rules: which headers are forwarded, and which are not (RFC 9110, section 7.6.1), and which identify a caller.

Owns both directions, the swap of credentials, and the digests by which callers are distinguished without storing their
keys. Every header of every call passes here, so the rule for a name is cached by the name as it was written.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from llm_guard.dialects import DIALECTS
from llm_guard.outcome import Disposition
from llm_guard.proxy.call import Call, Headers
from llm_guard.proxy.http_client.http1 import RequestHeaders
from llm_guard.resilience.memo import Memo
from llm_guard.routing.api_keys import ApiKey
from llm_guard.routing.authorization import key_header
from llm_guard.routing.deployment import Upstream


def digest(key: str) -> bytes:
    """Returns a digest by which keys can be compared without being stored."""
    return hashlib.sha256(key.encode()).digest()


# Facts about a name, as bits: a direction selects those that it drops by one number.
_NEVER = 1
_CONNECTION = 2
_KEY = 4
_COOKIE = 8
_WS_PROTOCOL = 16
_CONTENT_ENCODING = 32
_ACCEPT_ENCODING = 64
_ACCOUNT = 128
# Of requests that are translated.
_TRANSLATED = 256
_STREAM = 512
_STAYS = _NEVER | _CONNECTION
_CALLERS = _KEY | _COOKIE

_HOP_BY_HOP = (
    "http2-settings", "keep-alive", "proxy", "te", "trailer", "transfer-encoding", "upgrade",
)  # fmt: skip
_OURS = "x-llm-guard-"
_CACHE_WORDS = {"hit": "hit", "stale": "stale", "stale_if_error": "stale", "miss": "miss", "coalesced": "miss"}
# Headers in which proxies describe a client. A client must not set them towards a provider, and the client's address
# and proxies are no concern of the provider.
_PROXIES_WORDS = (
    "cf-connecting-ip", "client-ip", "forwarded", "true-client-ip", "via", "x-client-ip", "x-cluster-client-ip",
    "x-original-host", "x-original-url", "x-real-ip", "x-rewrite-url",
)  # fmt: skip
# Frameworks that honour one of these treat a GET that a client may make as a DELETE that it may not make.
_OTHER_METHODS = ("x-http-method", "x-http-method-override", "x-method-override")
_NEVER_TO_UPSTREAM = frozenset({"host", "content-length", "expect", *_HOP_BY_HOP, *_PROXIES_WORDS, *_OTHER_METHODS})
_NEVER_TO_CLIENT = frozenset({"content-length", *_HOP_BY_HOP})
_WS_PROTOCOL_NAME = "sec-websocket-protocol"
_SPECIAL = {
    "connection": _CONNECTION, "authorization": _KEY, "x-api-key": _KEY, "api-key": _KEY, "cookie": _COOKIE,
    _WS_PROTOCOL_NAME: _WS_PROTOCOL, "content-encoding": _CONTENT_ENCODING, "accept-encoding": _ACCEPT_ENCODING,
    "openai-organization": _ACCOUNT, "openai-project": _ACCOUNT,
}  # fmt: skip
_KEY_NAMES = tuple(name for name, fact in _SPECIAL.items() if fact & _KEY)
_ACCOUNT_NAMES = frozenset(name for name, fact in _SPECIAL.items() if fact & _ACCOUNT)
_MOST_SHARED = 4
"""Upstreams whose headers a connection keeps, idle or not: with a head of 11 kB those for one upstream take as much."""
_WS_KEY = "openai-insecure-api-key."
"""Prefix of a key among the protocols offered for a WebSocket, on which a browser cannot set headers."""
_CODING = re.compile(r"(?:gzip|x-gzip|deflate|identity)(?:\s*;|$)")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.\[\]-]")
_MOST_NAME, _MOST_NAMES = 64, 512
_CONNECTION_OPTIONS = frozenset({"", "close", "keep-alive", "upgrade", "te"})


def to_upstream(
    call: Call, upstream: Upstream, key: ApiKey | None = None, *, is_body_ours: bool = False
) -> RequestHeaders:
    """Returns the headers that a provider gets for a client's. `key` is the one of the upstream's pool, if it has one.
    `is_body_ours`: the gateway has replaced the body. Requests of one connection that differ only in their bodies share
    the result.

    The credential is replaced where the upstream has a key, and removed where it has a cloud's credentials. A client
    key of the gateway is never forwarded. Headers of the gateway are added last, so that no client can have them
    removed by naming them in `Connection` (CVE-2022-31813).
    """
    swaps = upstream.has_own_key or call.client_key is not None
    dropped = _STAYS
    if swaps:
        dropped |= _CALLERS
    if is_body_ours:
        dropped |= _CONTENT_ENCODING
    if call.is_plain_wanted:
        dropped |= _ACCEPT_ENCODING
    if call.is_upgrade:
        return RequestHeaders(_for_upstream(call, upstream, key, dropped))
    return _shared(call, upstream, key, dropped, _for_upstream)


def _shared(
    call: Call,
    upstream: Upstream,
    key: ApiKey | None,
    kind: int,
    pairs_for: Callable[[Call, Upstream, ApiKey | None, int], list[tuple[str, str]]],
) -> RequestHeaders:
    """Returns the headers that an earlier request of the connection had; without one, what `pairs_for` returns. `kind`
    is all that they depend on beside the upstream, its key and the client's headers."""
    shared = call.sent_headers
    if shared is None:
        return RequestHeaders(pairs_for(call, upstream, key, kind))
    known = shared.get(upstream.name)
    if known is not None and known[0] is upstream and known[1] is key and known[2] == kind:
        return known[3]
    headers = RequestHeaders(pairs_for(call, upstream, key, kind))
    if len(shared) >= _MOST_SHARED:
        shared.clear()
    shared[upstream.name] = (upstream, key, kind, headers)
    return headers


def _for_upstream(call: Call, upstream: Upstream, key: ApiKey | None, dropped: int) -> list[tuple[str, str]]:
    kept, facts = _travelling(call.headers, _up, dropped)
    if dropped & _KEY and call.is_upgrade:
        kept = [_without_key(pair) for pair in kept]
    header = upstream.key_header if key is None else key_header(upstream.auth, key.secret)
    if header is not None:
        kept.append(header)
    if call.is_upgrade:
        kept += [("Connection", "Upgrade"), ("Upgrade", "websocket")]
    if dropped & _ACCEPT_ENCODING:
        kept.append(("Accept-Encoding", "identity"))
    elif facts & _ACCEPT_ENCODING:
        for at, (name, value) in enumerate(kept):
            if _up[name] & _ACCEPT_ENCODING:
                kept[at] = (name, _inspectable_in[value])
    return kept


def translated(call: Call, upstream: Upstream, key: ApiKey | None = None) -> RequestHeaders:
    """Returns the headers of a call that was translated: of the caller's only its user agent, and its credential where
    calls of its own dialect are sent with it."""
    kind = _TRANSLATED | _STREAM if call.is_stream else _TRANSLATED
    if upstream.dialect == call.dialect and not upstream.has_own_key and call.client_key is None:
        kind |= _KEY
    return _shared(call, upstream, key, kind, _for_translation)


def _for_translation(call: Call, upstream: Upstream, key: ApiKey | None, kind: int) -> list[tuple[str, str]]:
    header = upstream.key_header if key is None else key_header(upstream.auth, key.secret)
    credential = [pair for pair in call.headers if kind & _KEY and pair[0].lower() in _KEY_NAMES]
    agent = value_of(call.headers, "user-agent")
    return [
        ("Content-Type", "application/json"),
        ("Accept", "text/event-stream" if kind & _STREAM else "application/json"),
        ("Accept-Encoding", "identity"),
        *([("User-Agent", agent)] if agent else []),
        *DIALECTS[upstream.dialect].REQUIRED_HEADERS,
        *([header] if header is not None else credential),
    ]


def ask_for_plain(call: Call) -> None:
    """Makes the upstream send the response uncompressed: the client may accept encodings that the gateway cannot
    read."""
    kept = tuple(pair for pair in call.headers if pair[0].lower() != "accept-encoding")
    call.headers, call.sent_headers = (*kept, ("Accept-Encoding", "identity")), None


def names_of(dropped: Iterable[str]) -> str:
    """Returns names for a header: printable ASCII, and no more than `_MOST_NAMES` characters together."""
    said = ""
    for name in dropped:
        plain = _NOT_IN_NAMES.sub("_", name)[:_MOST_NAME]
        if len(said) + len(plain) + 2 > _MOST_NAMES:
            break
        said += f", {plain}" if said else plain
    return said


def of_request(headers: Headers) -> list[tuple[str, str]]:
    """Returns the client's headers that any provider would get, by lower-case names: without credentials, cookies and
    accounts."""
    return [(_lower[name], value) for name, value in _travelling(headers, _up, _STAYS | _CALLERS | _ACCOUNT)[0]]


def to_client(headers: Headers, *, is_upgraded: bool = False, is_inflated: bool = False) -> list[tuple[str, str]]:
    """Returns the headers that a client gets for a provider's. The reply adds the length."""
    kept, _ = _travelling(headers, _down, _STAYS | _CONTENT_ENCODING if is_inflated else _STAYS)
    if is_upgraded:
        kept += [("Connection", "Upgrade"), ("Upgrade", "websocket")]
    return kept


def ours(call: Call, deployment: str | None) -> list[tuple[str, str]]:
    """Returns the gateway's own response headers."""
    said = [("x-llm-guard-request-id", call.id), ("x-llm-guard-attempts", str(len(call.attempts)))]
    if deployment is not None:
        said.append(("x-llm-guard-deployment", deployment))
    if call.disposition is not None:
        said += _said_of(call.disposition)
    return said


def _said_of(disposition: Disposition) -> list[tuple[str, str]]:
    said = []
    if disposition.cache:
        said.append(("x-llm-guard-cache", _CACHE_WORDS[disposition.cache]))
    if disposition.age_s is not None:
        said.append(("age", str(int(disposition.age_s))))
    if disposition.dead_letter_id:
        said.append(("x-llm-guard-dead-letter", disposition.dead_letter_id))
    if disposition.fallback:
        said.append(("x-llm-guard-degraded", disposition.fallback))
    if disposition.injected_faults:
        said.append(("x-llm-guard-injected-faults", ", ".join(disposition.injected_faults)))
    return said


def retry_after(seconds: float) -> list[tuple[str, str]]:
    """Returns the Retry-After headers: whole seconds, rounded up, for all clients; milliseconds for the official
    SDKs."""
    return [
        ("retry-after", str(max(1, math.ceil(seconds)))),
        ("retry-after-ms", str(max(1, math.ceil(seconds * 1000)))),
    ]


def value_of(headers: Headers, name: str) -> str:
    """Returns the first value of a header, by its lower-case name; "" without one."""
    for key, value in headers:
        if _lower[key] == name:
            return value
    return ""


def lower_names(headers: Headers) -> dict[str, str]:
    """Returns the headers by lower-case name; of repeated ones the first."""
    names = {_lower[name]: value for name, value in headers}
    if len(names) < len(headers):
        for name, value in reversed(headers):
            names[_lower[name]] = value
    return names


def caller_keys(headers: Headers, names: Mapping[str, str]) -> list[str]:
    """Returns the credentials that a caller presents, in any of the forms that SDKs use. Their order does not depend on
    the order of the headers. `names`: the headers by lower-case name, of repeated ones the first."""
    if len(names) == len(headers) and _WS_PROTOCOL_NAME not in names:
        return [_bare_key(name, names[name]) for name in _KEY_NAMES if name in names]
    keys: dict[str, list[str]] = {name: [] for name in (*_KEY_NAMES, _WS_PROTOCOL_NAME)}
    for written, value in headers:
        name = _lower[written]
        if name == _WS_PROTOCOL_NAME:
            protocols = [protocol.strip() for protocol in value.split(",")]
            keys[name] += [protocol[len(_WS_KEY) :] for protocol in protocols if protocol.startswith(_WS_KEY)]
        elif name in keys:
            keys[name].append(_bare_key(name, value))
    return [key for of_name in keys.values() for key in of_name]


def has_rival_keys(headers: Headers) -> bool:
    """Returns whether a credential's header is repeated with different values: two readers would see two callers."""
    said: dict[str, str] = {}
    return any(said.setdefault(_lower[name], value) != value for name, value in headers if _up[name] & _KEY)


def account(headers: Headers, names: Mapping[str, str]) -> list[str]:
    """Returns the headers by which a caller chooses an account for its key, if any; `names` as in `caller_keys`."""
    if _ACCOUNT_NAMES.isdisjoint(names):
        return []
    return [f"{_lower[name]}: {value}" for name, value in headers if _up[name] & _ACCOUNT]


def _is_ours_or_proxys(lower: str) -> bool:
    return lower.startswith((_OURS, "proxy-"))


def _fact_to_upstream(name: str) -> int:
    lower = name.lower()
    # To a CGI or WSGI server `X_Api_Key` is `X-Api-Key`: an underscore would be a way around the rules here.
    if lower in _NEVER_TO_UPSTREAM or "_" in lower or lower.startswith(("x-forwarded-", "x-envoy-")):
        return _NEVER
    return _NEVER if _is_ours_or_proxys(lower) else _SPECIAL.get(lower, 0)


def _fact_to_client(name: str) -> int:
    lower = name.lower()
    is_dropped = lower in _NEVER_TO_CLIENT or _is_ours_or_proxys(lower)
    return _NEVER if is_dropped else _SPECIAL.get(lower, 0)


def _named(options: str) -> frozenset[str]:
    """Returns the headers that a `Connection` names, in lower case."""
    return frozenset(option.strip().lower() for option in options.split(",")) - _CONNECTION_OPTIONS


def _inspectable(codings: str) -> str:
    """Returns the codings of an Accept-Encoding that the gateway can decode: it could not check a response in another
    one."""
    kept = [coding.strip() for coding in codings.split(",") if _CODING.match(coding.strip().lower())]
    return ", ".join(kept) or "identity"


_lower = Memo(str.lower)
_up = Memo(_fact_to_upstream)
_down = Memo(_fact_to_client)
_named_in = Memo(_named)
_inspectable_in = Memo(_inspectable)


def _travelling(headers: Headers, facts: Memo[str, int], dropped: int) -> tuple[list[tuple[str, str]], int]:
    """Returns the headers without the kinds in `dropped` and without those that `Connection` names, and the kinds of
    all headers together."""
    kept, found = [], 0
    named: frozenset[str] = frozenset()
    for pair in headers:
        fact = facts[pair[0]]
        if not fact:  # most names have no rule
            kept.append(pair)
            continue
        found |= fact
        if not fact & dropped:
            kept.append(pair)
        elif fact & _CONNECTION:
            named |= _named_in[pair[1]]
    return ([pair for pair in kept if _lower[pair[0]] not in named] if named else kept), found


def _without_key(pair: tuple[str, str]) -> tuple[str, str]:
    name, value = pair
    if name.lower() != _WS_PROTOCOL_NAME:
        return pair
    return name, ", ".join(part.strip() for part in value.split(",") if not part.strip().startswith(_WS_KEY))


def _bare_key(name: str, value: str) -> str:
    return value[7:].strip() if name == "authorization" and value[:7].lower() == "bearer " else value


@dataclass(frozen=True, slots=True)
class CallerDigests:
    """Digests of the keys and of the account that a request presents."""

    keys: tuple[bytes, ...]
    """Digest of each key."""
    key_digest: str
    """Digest of all keys together, in hexadecimal digits; not empty even without a key."""
    account_digest: str
    """Digest of the headers that choose an account for the key; "" without them."""
    are_rival: bool
    """True if the header of a key is repeated with different values: two readers would see two callers."""


def digests_of(headers: Headers, names: Mapping[str, str]) -> CallerDigests:
    """Returns the digests of a request's credentials. `names`: the headers by lower-case name, of repeated ones the
    first."""
    keys = caller_keys(headers, names)
    digests = tuple([digest(key) for key in keys])
    chosen = account(headers, names)
    return CallerDigests(
        digests,
        (digests[0] if len(keys) == 1 else digest("\n".join(keys))).hex(),
        digest("\n".join(chosen)).hex() if chosen else "",
        len(keys) > 1 and has_rival_keys(headers),
    )
