"""Hedging: when a second attempt runs beside the first, and how many such attempts there may be.

Computes the delay and counts the tokens. `resilience.routing.candidates` picks the deployment,
`resilience.retry.limits` decides what may be sent twice, `proxy.attempts.upstream_attempt` runs the attempts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from llm_guard.resilience.routing.candidates import Latency, known
from llm_guard.resilience.units import DURATION, Ratio, Unit, parse_duration

RESERVE = 20.0
"""Most hedges that can be saved up. At p95 and 5 % the bucket is exactly as large as the need, which comes in waves:
with ten, one wanted hedge in ten of a heavy tail was refused, with twenty one in twenty-five."""

# Highest ratio of a learned delay to an inner quantile (p90 for p95).
_ABOVE_INNER = 1.5
_SHORTEST_S = 0.002
"""Shortest learned delay: libuv's timers tick once a millisecond, and one shorter than a tick fires at once."""
_KEPT_S = 0.05
_MOST_KEPT = 256
"""At this size all are dropped, among them those of removed deployments."""
_ONE = 1.0 - 1e-9


def parse_after(value: object) -> float | str:
    """Parses a learned quantile, `p50` to `p99`, or a duration into seconds; raises ValueError."""
    if isinstance(value, str) and re.fullmatch("p[5-9][0-9]", value):
        return value
    try:
        return parse_duration(value)
    except ValueError as error:
        raise ValueError(f"{error}, or p50 to p99") from None


HedgeAfter = Annotated[
    float | str, Unit(parse_after, {"anyOf": [DURATION, {"type": "string", "pattern": "^p[5-9][0-9]$"}]})
]


@dataclass(frozen=True, slots=True)
class HedgeSettings:
    after: HedgeAfter = "p95"
    """A quantile of the deployment's recent latencies, or seconds."""
    max_extra: Ratio = 0.05
    """Hedges per call."""


@dataclass(frozen=True, slots=True)
class HedgeBudgetSnapshot:
    tokens: float
    calls: int
    spent: int
    """Both counted since the start."""


class HedgeBudget:
    """A token bucket without time: a call adds `max_extra` tokens, a hedge takes one, at most twenty are kept.

    So n calls cost at most n * max_extra + 20 hedges, however slow everything becomes. Finagle's `BackupRequestFilter`
    uses its retry budget here, with tokens that decay within ten seconds: that is right for retries, which a quiet
    caller gets from the floor, but at one call a second 5 % would never save up to one hedge. `settings` may be
    replaced at any moment.
    """

    __slots__ = ("_calls", "_spent", "_tokens", "settings")

    def __init__(self, settings: HedgeSettings) -> None:
        self.settings = settings
        self._tokens = RESERVE
        self._calls = 0
        self._spent = 0

    def deposit(self) -> None:
        """Adds a call's tokens, when it begins."""
        self._tokens = min(RESERVE, self._tokens + self.settings.max_extra)
        self._calls += 1

    def try_spend(self) -> bool:
        """Takes the token of one hedge, if there is one; never with `max_extra` 0."""
        if self._tokens < _ONE or self.settings.max_extra == 0:
            return False
        self._tokens = max(0.0, self._tokens - 1.0)
        self._spent += 1
        return True

    def snapshot(self) -> HedgeBudgetSnapshot:
        return HedgeBudgetSnapshot(self._tokens, self._calls, self._spent)


class HedgeDelays:
    """Cache of hedge delays, each computed once in a twentieth of a second: computing one costs as much as the rest of
    hedging for a call that is not hedged. A delay that is not known yet is computed each time."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: dict[Latency, tuple[HedgeSettings, float, float]] = {}
        """The settings that the delay was computed with, the delay, and its expiry, by latency."""

    def delay_s(self, settings: HedgeSettings, latency: Latency, now: float) -> float | None:
        """Returns the cached result of `hedge_delay_s`."""
        if not isinstance(settings.after, str):
            return settings.after
        kept = self._kept.get(latency)
        if kept is not None and now < kept[2] and kept[0] is settings:
            return kept[1]
        delay_s = hedge_delay_s(settings, latency, now)
        if delay_s is not None:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            self._kept[latency] = settings, delay_s, now + _KEPT_S
        return delay_s


def hedge_delay_s(settings: HedgeSettings, latency: Latency, now: float) -> float | None:
    """Returns the seconds after which a hedge may start, counted from the start of the attempt; None: not known yet.

    Where 5 % of the responses take 2 s and the others 0.1 s, p95 falls now into one mode and now into the other.
    p90 does not, so the delay is capped at 1.5 times the quantile twice as far from the end as the requested one; the
    budget, not the delay, bounds the extra load.
    Dean and Barroso, "The Tail at Scale" (CACM 2013): hedging after p95 costs about 5 % more requests.
    """
    after = settings.after
    if not isinstance(after, str):
        return after
    q = int(after[1:]) / 100
    quantile_s, inner_s = latency.quantile(q, now), latency.quantile(max(0.9, 2 * q - 1), now)
    if quantile_s is None or inner_s is None:
        return None
    return known(max(_SHORTEST_S, min(quantile_s, _ABOVE_INNER * inner_s)))
