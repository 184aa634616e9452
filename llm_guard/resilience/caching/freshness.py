"""Freshness of cached responses: how long one may be served in place of a new one.

Considers the route's settings and the request's Cache-Control. Which requests are the same is decided in
`resilience.caching.key`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from llm_guard.resilience.units import Pause, Seconds, Size

Freshness = Literal["hit", "stale", "miss"]
"""stale: it is served, and a new one is requested. miss: it is not served."""


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """Durations in seconds, from when the response was stored."""

    ttl: Seconds = 300.0
    """How long a cached response stays fresh."""
    stale_while_revalidate: Pause = 0.0
    """How long after that it is still served, at once, while a request in the background fetches a new one."""
    stale_if_error: Pause = 0.0
    """How long after its `ttl` it is served if the call has failed otherwise."""
    shared: bool = False
    """True if callers get each other's responses. Not suitable if a response depends on the caller."""
    requests: Literal["all", "deterministic"] = "all"
    """deterministic: only requests that would get the same response anyway (temperature 0, a seed, embeddings)."""
    max_answer: Size = 1024**2
    """Largest response that is cached, in bytes."""


@dataclass(frozen=True, slots=True)
class CacheControl:
    """Cache-Control of a request (RFC 9111, section 5.2.1). Durations in seconds."""

    is_stored: bool = True
    """False (no-store): neither looked up nor stored."""
    no_cache: bool = False
    """no-cache: a new response is requested, and stored."""
    only_if_cached: bool = False
    """only-if-cached: no provider is tried."""
    max_age: float | None = None
    min_fresh: float = 0.0


USUAL = CacheControl()


def parse_cache_control(cache_control: str) -> CacheControl:
    """Parses Cache-Control. `max-stale` is ignored: how stale a response may be is set by the route. A duration that
    cannot be parsed requests a new response."""
    said = {}
    for directive in cache_control.lower().split(","):
        name, _, value = directive.strip().partition("=")
        said[name] = value.strip('"')
    max_age = _seconds(said["max-age"], 0.0) if "max-age" in said else None
    return CacheControl(
        is_stored="no-store" not in said,
        no_cache="no-cache" in said or max_age == 0,
        only_if_cached="only-if-cached" in said,
        max_age=max_age,
        min_fresh=_seconds(said["min-fresh"], float("inf")) if "min-fresh" in said else 0.0,
    )


def judge(age_s: float, rules: CacheSettings, cache_control: CacheControl = USUAL) -> Freshness:
    """Returns the state of a response of this age for a request. One that limits the age never gets a stale one."""
    if cache_control.no_cache or (cache_control.max_age is not None and age_s > cache_control.max_age):
        return "miss"
    if age_s + cache_control.min_fresh <= rules.ttl:
        return "hit"
    is_choosy = cache_control.max_age is not None or cache_control.min_fresh > 0
    return "stale" if age_s <= rules.ttl + rules.stale_while_revalidate and not is_choosy else "miss"


def may_serve_stale(age_s: float, rules: CacheSettings) -> bool:
    """Returns whether a response of this age is served when the call has failed otherwise."""
    return rules.stale_if_error > 0 and age_s <= rules.ttl + rules.stale_if_error


def lasts_s(rules: CacheSettings) -> float:
    """Returns how long a cached response may be used at all."""
    return rules.ttl + max(rules.stale_while_revalidate, rules.stale_if_error)


def _seconds(text: str, otherwise: float) -> float:
    """Parses delta-seconds (RFC 9111, section 1.2.2): an integer of any length."""
    return float(text[:15]) if text.isascii() and text.isdigit() else otherwise
