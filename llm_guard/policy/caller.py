"""What a client's own headers tell of its patience, its history and its hurry, and whether it is on this machine.

Owns the reading of the official SDKs' `x-stainless-*` headers, of a priority, and of an address. Does not own what is
made of it.
Source: openai-python and anthropic-python `_base_client.py`, and their TypeScript siblings.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterable, Mapping

from llm_guard.policy.memo import Memo

PRIORITIES = {"high": 0, "normal": 1, "low": 2}

# The answer has to travel too: a client's own clock may be a round trip ahead.
_LEAST_MARGIN_S = 0.1
_MARGIN_SHARE = 0.1
_MOST_MARGIN_S = 1.0
_FORWARDED = frozenset({"forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "x-cluster-client-ip"})
_PROXY_PREFIXES = ("x-forwarded-", "x-envoy-", "x-original-", "cf-")


def patience_s(headers: Mapping[str, str]) -> float | None:
    """Seconds of silence after which the client gives up; None when it does not say. `headers` by lower-case names.

    `x-stainless-read-timeout` (Python) and `x-stainless-timeout` (TypeScript: whole seconds, cut off; anthropic-python:
    seconds) are limits on silence, not on the call. `NOT_GIVEN`, `None` and 0 (TypeScript's 900 ms) say nothing.
    """
    read, timeout = headers.get("x-stainless-read-timeout"), headers.get("x-stainless-timeout")
    read_s = None if read is None else _seconds_in[read]
    timeout_s = None if timeout is None else _seconds_in[timeout]
    if read_s is None or timeout_s is None:
        return timeout_s if read_s is None else read_s
    return min(read_s, timeout_s)


def decide_within_s(patience_s: float) -> float:
    """How long the gateway may take until its first byte, so that the client still hears it: a tenth less, by at least
    100 ms and at most a second; by half, when that is all there is."""
    # Branches, because min() and max() cost three times as much, for each call.
    margin_s = patience_s * _MARGIN_SHARE
    if margin_s > _MOST_MARGIN_S:
        return patience_s - _MOST_MARGIN_S
    if margin_s < _LEAST_MARGIN_S:
        margin_s = _LEAST_MARGIN_S
    return patience_s / 2 if margin_s > patience_s / 2 else patience_s - margin_s


def priority(said: str | None) -> int | None:
    """The number of a priority by its name: 0 high, 1 normal (also when nothing is said), 2 low; None for any other
    name. The lower goes first where calls wait for their turn."""
    return 1 if said is None else PRIORITIES.get(said.strip().lower())


def retry_count(headers: Mapping[str, str]) -> int:
    """How often the client itself has sent this call before: `x-stainless-retry-count`, 0 without it."""
    said = headers.get("x-stainless-retry-count", "0")
    return int(said) if said != "0" and said.isascii() and said.isdigit() and len(said) < 4 else 0


def is_local(peer: str | None, version: str, names: Iterable[str]) -> bool:
    """Whether a request comes from a client on this machine, not through a proxy on it. `peer` is the address of the
    connection, `version` HTTP's, `names` the request's headers in lower case."""
    # nginx forwards with HTTP/1.0 and adds no header by default.
    return is_loopback(peer) and version != "1.0" and not any(map(_is_of_proxy, names))


def is_loopback(peer: str | None) -> bool:
    """False also where the address is unknown (None)."""
    try:
        address = ipaddress.ip_address((peer or "").partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _is_of_proxy(name: str) -> bool:
    return name in _FORWARDED or name.startswith(_PROXY_PREFIXES)


def _seconds(said: str) -> float | None:
    try:
        seconds = float(said)
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds > 0 else None


_seconds_in = Memo(_seconds)
