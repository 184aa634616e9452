"""How long an answer may stand in for a new one.

Owns a cached answer's ages, and what each allows, also by the words of a request. Does not own the store, nor what is
the same request (`policy.cache_key`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from llm_guard.policy.units import Pause, Seconds, Size

Age = Literal["hit", "stale", "miss"]
"""stale: it is given, and a new one is asked for. miss: it is not given."""


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """Durations in seconds, from when the answer was stored."""

    ttl: Seconds = 300.0
    """So long it is given as it is."""
    stale_while_revalidate: Pause = 0.0
    """So long after that it is given all the same, at once, while one request behind it brings a new one."""
    stale_if_error: Pause = 0.0
    """So long after its `ttl` it is given where nobody else has answered."""
    shared: bool = False
    """Callers get each other's answers. Not where an answer depends on who asks."""
    requests: Literal["all", "deterministic"] = "all"
    """deterministic: only those that would be answered the same anyway (temperature 0, a seed, embeddings)."""
    max_answer: Size = 1024**2
    """Larger ones are not kept, in bytes."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a request says of caches (RFC 9111, section 5.2.1). Durations in seconds."""

    is_stored: bool = True
    """False, no-store: neither looked up nor kept."""
    is_new: bool = False
    """no-cache: a new answer is asked for, and kept."""
    is_old: bool = False
    """only-if-cached: nobody is asked."""
    max_age: float | None = None
    min_fresh: float = 0.0


USUAL = Wishes()


def wishes_of(cache_control: str) -> Wishes:
    """`max-stale` is not heeded: how stale an answer may be is the route's to say. A duration that cannot be read asks
    for a new answer."""
    said = {}
    for each in cache_control.lower().split(","):
        name, _, value = each.strip().partition("=")
        said[name] = value.strip('"')
    max_age = _seconds(said["max-age"], 0.0) if "max-age" in said else None
    return Wishes(
        is_stored="no-store" not in said,
        is_new="no-cache" in said or max_age == 0,
        is_old="only-if-cached" in said,
        max_age=max_age,
        min_fresh=_seconds(said["min-fresh"], float("inf")) if "min-fresh" in said else 0.0,
    )


def judge(age_s: float, rules: CacheSettings, wishes: Wishes = USUAL) -> Age:
    """What an answer of this age is, for a request with these wishes: who names an age wants no stale one."""
    if wishes.is_new or (wishes.max_age is not None and age_s > wishes.max_age):
        return "miss"
    if age_s + wishes.min_fresh <= rules.ttl:
        return "hit"
    is_choosy = wishes.max_age is not None or wishes.min_fresh > 0
    return "stale" if age_s <= rules.ttl + rules.stale_while_revalidate and not is_choosy else "miss"


def may_stand_in(age_s: float, rules: CacheSettings) -> bool:
    """Whether an answer of this age is given where nobody else has answered."""
    return rules.stale_if_error > 0 and age_s <= rules.ttl + rules.stale_if_error


def lasts_s(rules: CacheSettings) -> float:
    """For how long an answer is of any use."""
    return rules.ttl + max(rules.stale_while_revalidate, rules.stale_if_error)


def _seconds(text: str, otherwise: float) -> float:
    """RFC 9111, section 1.2.2: whole ones, of any length."""
    return float(text[:15]) if text.isascii() and text.isdigit() else otherwise
