"""Restart policy: when an engine that is down is started again, and for how long it is tried.

Sets the waits between attempts, the most attempts in a row and within an hour, and computes the total time.
`resilience.health.engine_state` tracks the attempts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from llm_guard.resilience.retry import backoff
from llm_guard.resilience.units import Count, Ratio, Seconds

HOUR_S = 3600.0

Preset = Literal["demo", "production", "outage-tolerant"]


@dataclass(frozen=True, slots=True)
class RestartSettings:
    """Durations in seconds."""

    base_delay: Seconds = 5.0
    """Before the first attempt; doubled before each further one."""
    max_delay: Seconds = 300.0
    jitter: Ratio = 0.2
    """Each wait varies by this share either way."""
    max_attempts: Count = 6
    """Attempts in a row after which it is given up."""
    max_per_hour: Count = 12
    reset_after: Seconds = 120.0
    """How long it must be well for its attempts to be forgotten."""


PRESETS: Mapping[Preset, RestartSettings] = MappingProxyType({
    "demo": RestartSettings(1.0, 5.0, 0.1, max_attempts=4, max_per_hour=60, reset_after=10.0),
    "production": RestartSettings(),
    "outage-tolerant": RestartSettings(10.0, 900.0, 0.3, max_attempts=30, max_per_hour=12, reset_after=600.0),
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class GiveUpWindow:
    """Seconds from when an engine is found down to when it is given up, depending on the jitter."""

    soonest_s: float
    expected_s: float
    latest_s: float


def delay_s(settings: RestartSettings, attempt: int, u: float) -> float:
    """Returns the seconds to wait before this attempt (1 is the first), from a uniform draw `u` in [0, 1)."""
    waits = backoff.RetrySettings(
        base_delay=settings.base_delay,
        max_delay=settings.max_delay,
        jitter=settings.jitter,
        adaptive=False,
        immediate_first=False,
    )
    return backoff.delay_s(waits, retry=attempt, kind=None, retry_after_s=None, previous_s=None, u=u)


def opens_at(settings: RestartSettings, begun: Sequence[float], now: float) -> float:
    """Returns the instant, `now` or later, from which the hourly limit allows one more attempt; `begun`: the instants
    of earlier attempts, the latest last."""
    if len(begun) < settings.max_per_hour:
        return now
    return max(now, begun[-settings.max_per_hour] + HOUR_S)


def giving_up(settings: RestartSettings, attempt_s: float) -> GiveUpWindow:
    """Returns how long an engine that never comes up is tried, if each attempt takes `attempt_s` to fail: 0 for one
    that dies at once, the start timeout for one that hangs."""
    return GiveUpWindow(*(_given_up_after_s(settings, attempt_s, u) for u in (0.0, 0.5, 1.0)))


def _given_up_after_s(settings: RestartSettings, attempt_s: float, u: float) -> float:
    now = 0.0
    begun: list[float] = []
    for attempt in range(1, settings.max_attempts + 1):
        begun.append(opens_at(settings, begun, now + delay_s(settings, attempt, u)))
        now = begun[-1] + attempt_s
    return now
