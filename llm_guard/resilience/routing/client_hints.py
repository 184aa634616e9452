"""Reads a client's timeout, retry count, priority and address from its request.

Source: openai-python and anthropic-python `_base_client.py` and their TypeScript counterparts, for the `x-stainless-*`
headers of the official SDKs.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterable, Mapping

from llm_guard.resilience.memo import Memo

PRIORITIES = {"high": 0, "normal": 1, "low": 2}

# The response has to travel too: a client's own clock may be a round trip ahead.
_LEAST_MARGIN_S = 0.1
_MARGIN_SHARE = 0.1
_MOST_MARGIN_S = 1.0
_FORWARDED = frozenset({"forwarded", "via", "cdn-loop", "x-real-ip"})
_PROXY_PREFIXES = ("x-forwarded-", "x-envoy-", "x-original-", "cf-")
_PROXY_SUFFIX = "-client-ip"
"""Matches x-client-ip, true-client-ip, x-cluster-client-ip, fastly-client-ip, fly-client-ip."""


def patience_s(headers: Mapping[str, str]) -> float | None:
    """Returns the seconds of silence after which the client gives up; None if it does not say. `headers` by lower-case
    names.

    `x-stainless-read-timeout` (Python) and `x-stainless-timeout` (TypeScript: whole seconds, rounded down;
    anthropic-python: seconds) limit silence, not the call. `NOT_GIVEN`, `None` and 0 (TypeScript's 900 ms) are ignored.
    """
    read, timeout = headers.get("x-stainless-read-timeout"), headers.get("x-stainless-timeout")
    read_s = None if read is None else _seconds_in[read]
    timeout_s = None if timeout is None else _seconds_in[timeout]
    if read_s is None or timeout_s is None:
        return timeout_s if read_s is None else read_s
    return min(read_s, timeout_s)


def decide_within_s(patience_s: float) -> float:
    """Returns how long the gateway may take until its first byte, so that it still reaches the client: a tenth less, by
    at least 100 ms and at most a second; half if there is not more."""
    # Branches, because min() and max() cost three times as much, for each call.
    margin_s = patience_s * _MARGIN_SHARE
    if margin_s > _MOST_MARGIN_S:
        return patience_s - _MOST_MARGIN_S
    if margin_s < _LEAST_MARGIN_S:
        margin_s = _LEAST_MARGIN_S
    return patience_s / 2 if margin_s > patience_s / 2 else patience_s - margin_s


def priority(said: str | None) -> int | None:
    """Returns the number of a priority by its name: 0 high, 1 normal (also without a name), 2 low; None for any other
    name. Waiting calls with a lower number go first."""
    return 1 if said is None else PRIORITIES.get(said.strip().lower())


def retry_count(headers: Mapping[str, str]) -> int:
    """Returns how often the client itself has sent this call before: `x-stainless-retry-count`, 0 without it."""
    said = headers.get("x-stainless-retry-count", "0")
    return int(said) if said != "0" and said.isascii() and said.isdigit() and len(said) < 4 else 0


def is_local(peer: str | None, version: str, names: Iterable[str]) -> bool:
    """Returns whether a request comes from a client on this machine, not through a proxy on it. `peer` is the address
    of the connection, `version` the HTTP version, `names` the request's header names in lower case."""
    # nginx forwards with HTTP/1.0 and adds no header by default.
    return is_loopback(peer) and version != "1.0" and not any(map(_is_of_proxy, names))


def is_loopback(peer: str | None) -> bool:
    """Returns whether the address is a loopback address; False if it is unknown (None)."""
    try:
        address = ipaddress.ip_address((peer or "").partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _is_of_proxy(name: str) -> bool:
    return name in _FORWARDED or name.startswith(_PROXY_PREFIXES) or name.endswith(_PROXY_SUFFIX)


def _seconds(said: str) -> float | None:
    try:
        seconds = float(said)
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds > 0 else None


_seconds_in = Memo(_seconds)
