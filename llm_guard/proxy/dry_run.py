"""A dry run: what would happen to a call now. Nothing is sent, reserved or recorded.

Makes the same checks as `proxy.attempts.candidate_selection` and `proxy.attempts.admission` on snapshots; a test
compares the two. The texts are in `admin.api.explain`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Literal

from llm_guard.clock import Clock
from llm_guard.proxy.attempts.admission import (
    OUR_OWN,
    AtCapacity,
    Unavailable,
    account_of,
    cooldown_of,
    key_for,
    refusal_by_hold,
)
from llm_guard.proxy.attempts.candidate_selection import hint_patience_s, order_of
from llm_guard.proxy.call import Call
from llm_guard.proxy.caller_identity import breaker_of, share_of, source_of
from llm_guard.resilience.capacity.gate_snapshot import Forecast
from llm_guard.resilience.circuit_breaker.cooldown import Cooldowns, as_of
from llm_guard.routing.route_table import Route, Target

PredictedUse = Literal["selected", "queued", "backup", "skipped"]
"""`selected`: the first deployment that would admit the call. `queued`: if none would, the one with the shortest queue.
`backup`: would be tried later. `skipped`: would not be tried."""

_FREE = Forecast(is_free=True, wait_s=0.0, has_place=True)


@dataclass(frozen=True, slots=True)
class PredictedCandidate:
    """One deployment, as the call would find it."""

    target: Target
    decision: PredictedUse
    obstacle: Unavailable | AtCapacity | None
    """Why the call would not be admitted; None: it would be."""


def predict(
    call: Call, route: Route, cooldowns: Cooldowns, clock: Clock, draw: Callable[[], float]
) -> list[PredictedCandidate]:
    """Returns the route's targets in the order in which this call would try them. A random balance takes one draw."""
    now = clock.now()
    left = list(order_of(route.targets, route, now, draw))
    found: dict[int, Unavailable | AtCapacity | None] = {}
    waits: dict[int, float] = {}
    for place in tuple(left):
        target = route.targets[place]
        others = [route.targets[other] for other in left if other != place]
        obstacle = found[place] = obstacle_of(call, target, cooldowns, now, _hint_patience_s(call, target, others, now))
        if isinstance(obstacle, AtCapacity) and _may_wait(obstacle, call, target, now):
            waits[place] = obstacle.wait_s
        elif obstacle is not None:
            left.remove(place)
    free = [place for place in left if found[place] is None]
    chosen = free[0] if free else min(waits, key=waits.__getitem__, default=None)
    first: PredictedUse = "selected" if free else "queued"

    def decision(place: int) -> PredictedUse:
        return first if place == chosen else "backup" if place in left else "skipped"

    return [PredictedCandidate(route.targets[place], decision(place), obstacle) for place, obstacle in found.items()]


def obstacle_of(
    call: Call, target: Target, cooldowns: Cooldowns, now: float, hint_patience_s: float
) -> Unavailable | AtCapacity | None:
    """Returns the refusal of `AdmissionControl.try_enter`; None: it would give a lease. A deployment that cannot serve
    calls of this dialect is refused for ever."""
    if call.translation is not None and (why := call.translation.obstacle(target)) is not None:
        return Unavailable(why, inf)
    deployment = target.deployment
    if deployment.hold is not None:
        return refusal_by_hold(deployment.hold, deployment.breaker.settings.open_for, now)
    breaker = breaker_of(call, deployment, now)
    host_s, breaker_s = deployment.host.retry_after_s(now), breaker.retry_after_s(now)
    key = key_for(cooldowns, call, target, now)
    rest = cooldown_of(cooldowns, call, target, key, hint_patience_s, now)
    if rest is not None and rest.until - now >= max(host_s, breaker_s):
        return Unavailable("in cooldown", rest.until - now, as_of(rest, now))
    if rest is not None:
        return Unavailable("in cooldown", max(host_s, breaker_s))
    if host_s > 0:
        return Unavailable("host breaker open", host_s)
    if breaker_s > 0:
        return Unavailable(f"breaker {breaker.state}", breaker.come_back_s(now))
    forecast = forecast_of(target, now, call)
    return None if forecast.is_free else AtCapacity(forecast.wait_s, has_place=forecast.has_place)


def forecast_of(target: Target, now: float, call: Call) -> Forecast:
    """Returns the forecast of the gate for the upstream's own key, or for the key in its pool that admits a call first.
    Gates of callers with keys of their own are assumed to be free."""
    gates, pool = target.deployment.gates, target.deployment.upstream.keys
    accounts = [OUR_OWN] if pool is None else [account_of(key, "") for key in pool.keys]
    found = [gates.find(account) for account in accounts]
    share, source = share_of(call), source_of(call, target.deployment)
    forecasts = [_FREE if gate is None else gate.forecast(now, call.priority, share, source) for gate in found]
    return min(forecasts, key=lambda forecast: (not forecast.is_free, not forecast.has_place, forecast.wait_s))


def _hint_patience_s(call: Call, target: Target, others: list[Target], now: float) -> float:
    """Returns the longest Retry-After that a call without attempts waits out (`CandidateSelector`), in seconds."""
    if not others:
        return target.retry.max_delay
    fallback_after_s = min(target.retry.fallback_after, (call.commit_by - now) / 2)
    has_preferred = not target.retry.fallback_after or any(other.alias == target.alias for other in others)
    return hint_patience_s(target.retry, has_preferred, fallback_after_s)


def _may_wait(obstacle: AtCapacity, call: Call, target: Target, now: float) -> bool:
    return obstacle.has_place and obstacle.wait_s <= min(target.queue_wait_s, call.commit_by - now)
