"""When an engine that is down is started again, and for how long it is tried.

Owns the waits between attempts, how many there may be, in a row and within an hour, and what that comes to in time.
Does not own what became of an attempt (`policy.engine`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from llm_guard.policy import backoff
from llm_guard.policy.units import Count, Ratio, Seconds

HOUR_S = 3600.0

Preset = Literal["demo", "production", "outage-tolerant"]


@dataclass(frozen=True, slots=True)
class RestartSettings:
    """Durations in seconds."""

    base_delay: Seconds = 5.0
    """Before the first attempt; before each further one twice as long."""
    max_delay: Seconds = 300.0
    jitter: Ratio = 0.2
    """Spreads each wait by this share either way."""
    max_attempts: Count = 6
    """In a row, then it is given up."""
    max_per_hour: Count = 12
    steady: Seconds = 120.0
    """So long it must be well for its attempts to be forgotten."""


PRESETS: Mapping[Preset, RestartSettings] = MappingProxyType({
    "demo": RestartSettings(1.0, 5.0, 0.1, max_attempts=4, max_per_hour=60, steady=10.0),
    "production": RestartSettings(),
    "outage-tolerant": RestartSettings(10.0, 900.0, 0.3, max_attempts=30, max_per_hour=12, steady=600.0),
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class GivingUp:
    """Seconds from when it is found down to when it is given up, by how the jitter falls."""

    soonest_s: float
    expected_s: float
    latest_s: float


def delay_s(settings: RestartSettings, attempt: int, u: float) -> float:
    """Seconds to wait before this attempt (1 is the first), from a uniform draw `u` in [0, 1)."""
    waits = backoff.RetrySettings(
        base_delay=settings.base_delay,
        max_delay=settings.max_delay,
        jitter=settings.jitter,
        adaptive=False,
        immediate_first=False,
    )
    return backoff.delay_s(waits, retry=attempt, kind=None, retry_after_s=None, previous_s=None, u=u)


def opens_at(settings: RestartSettings, begun: Sequence[float], now: float) -> float:
    """The instant, `now` or later, from which the hourly limit allows one more; `begun`: the instants of those before,
    the latest last."""
    if len(begun) < settings.max_per_hour:
        return now
    return max(now, begun[-settings.max_per_hour] + HOUR_S)


def giving_up(settings: RestartSettings, attempt_s: float) -> GivingUp:
    """How long an engine is tried that never comes up, where each attempt takes so many seconds to fail: 0 for one that
    dies at once, the boot deadline for one that hangs."""
    return GivingUp(*(_given_up_after_s(settings, attempt_s, u) for u in (0.0, 0.5, 1.0)))


def _given_up_after_s(settings: RestartSettings, attempt_s: float, u: float) -> float:
    now = 0.0
    begun: list[float] = []
    for attempt in range(1, settings.max_attempts + 1):
        begun.append(opens_at(settings, begun, now + delay_s(settings, attempt, u)))
        now = begun[-1] + attempt_s
    return now
