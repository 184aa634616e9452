"""When a second attempt runs beside the first, and how many such attempts there may be.

Owns the delay and the tokens. Does not own who is asked (`policy.balance`), what may be sent twice
(`policy.repeat`), nor the race itself (`gateway.race`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from llm_guard.policy.latency import Latency, known
from llm_guard.policy.units import Ratio, Unit, parse_duration

RESERVE = 20.0
"""Hedges that may be saved up. At p95 and 5 % the bucket is exactly as large as the need, which comes in waves: ten
refused one wanted hedge in ten of a heavy tail, twenty one in twenty-five."""

# How far above an inner quantile (p90 for p95) a learned delay may lie.
_ABOVE_INNER = 1.5
_SHORTEST_S = 0.002
"""Of learned delays: libuv's timers tick once a millisecond, and one that is shorter than a tick rings at once."""
_KEPT_S = 0.05
_MOST_KEPT = 256
"""Then all are forgotten: among them those of deployments that are no more."""
_ONE = 1.0 - 1e-9


def parse_after(value: object) -> float | str:
    """A learned quantile, `p50` to `p99`, or seconds from a duration; raises ValueError."""
    if isinstance(value, str) and re.fullmatch("p[5-9][0-9]", value):
        return value
    try:
        return parse_duration(value)
    except ValueError as error:
        raise ValueError(f"{error}, or p50 to p99") from None


After = Annotated[float | str, Unit(parse_after)]


@dataclass(frozen=True, slots=True)
class HedgeSettings:
    after: After = "p95"
    """A quantile of the deployment's recent latencies; or seconds."""
    max_extra: Ratio = 0.05
    """Hedges per call."""


@dataclass(frozen=True, slots=True)
class HedgeBudgetSnapshot:
    tokens: float
    calls: int
    spent: int
    """Counts since the start."""


class HedgeBudget:
    """A token bucket without time: a call brings `max_extra` tokens, a hedge takes one, twenty are kept at most.

    So n calls cost n * max_extra + 20 hedges at most, however slow everything becomes. Finagle's
    `BackupRequestFilter` uses its retry budget here, whose tokens fade within ten seconds: that is right for
    retries, which a quiet caller gets from the floor, but at one call a second 5 % would never save up to one
    hedge. `settings` may be replaced at any moment.
    """

    __slots__ = ("_calls", "_spent", "_tokens", "settings")

    def __init__(self, settings: HedgeSettings) -> None:
        self.settings = settings
        self._tokens = RESERVE
        self._calls = 0
        self._spent = 0

    def deposit(self) -> None:
        """A call began."""
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
    """Delays, each looked up once in a twentieth of a second: that costs as much as all else that hedging costs a call
    that is not hedged. One that is not known yet is looked up each time."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: dict[Latency, tuple[HedgeSettings, float, float]] = {}
        """By which settings it was learned, the delay, and until when it is good."""

    def delay_s(self, settings: HedgeSettings, latency: Latency, now: float) -> float | None:
        """As `hedge_delay_s`."""
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
    """Seconds after which a hedge may start, counted from the start of the attempt; None: not known yet.

    Where 5 % of the answers take 2 s and the others 0.1 s, p95 lies now in the one mode and now in the other.
    p90 does not, so the delay is held to 1.5 times the quantile twice as far from the end as the one asked for; the
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
