"""Health of a deployment as shown to operators: healthy, degraded, unhealthy or failed, with the reasons.

For reports: which deployments get calls is decided by their breakers, which consider fewer signals.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from llm_guard.resilience.circuit_breaker.history import BreakerState
from llm_guard.resilience.units import OptionalSeconds, Ratio

HealthState = Literal["healthy", "degraded", "unhealthy", "failed"]
"""failed: its engine does not recover by itself any more; an operator has to look after it."""

ENOUGH = 20
"""Attempts in a minute below which a share of failures means nothing."""
NONE_OF = 5
"""Attempts in a minute without a success that count as an outage in any state of the breaker: rate limits and refused
keys do not open it."""
SOME_CALLS = 10
"""Calls in a minute below which a share of refused ones means nothing."""
_MOST, _NEARLY_ALL = 0.5, 0.9
"""Shares of calls refused by the gateway itself from which on a deployment or model is degraded, and unhealthy."""
_NAMED = 5
_MODELS_NAMED = 2
"""Models listed with a phrase each, in one line with everything else."""

_WORSE: tuple[HealthState, ...] = ("healthy", "degraded", "unhealthy", "failed")
_OUT = {"open": "its breaker is open", "forced_open": "its breaker is forced open"}
_HOST_OUT = {"open": "its upstream's breaker is open", "forced_open": "its upstream's breaker is forced open"}


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """Limits above which a deployment is degraded: p95 latencies in seconds (None: no limit), and the share of failed
    attempts within a minute."""

    p95: OptionalSeconds = None
    """p95 of the time to a whole response."""
    first_token_p95: OptionalSeconds = None
    """p95 of the time to a stream's first token."""
    failure_share: Ratio = 0.1
    """Share of the last minute's attempts that fail."""


@dataclass(frozen=True, slots=True)
class HealthSignals:
    """Health signals of one deployment."""

    state: BreakerState = "closed"
    host: BreakerState = "closed"
    """State of its upstream's own breaker."""
    attempts: int = 0
    """Attempts of the last minute; both without those that ended without evidence about it."""
    failures: int = 0
    p95_s: float | None = None
    """p95 of the time to a whole response, in seconds; infinite if that many were cut; None: too few to know."""
    first_token_p95_s: float | None = None
    held_s: float = 0.0
    """Seconds for which nothing more is let through, because the provider said so."""
    rests_s: float = 0.0
    """Seconds left of its credential's cooldown."""
    quota_s: float = 0.0
    """Seconds for which its credential's quota for this model is assumed to be spent."""
    named_wait_s: float = 0.0
    """Seconds left of this deployment's own cooldown, because its provider named a wait."""
    hold: str | None = None
    """The operator override or hold on it, as a phrase; None: there is none."""
    looks: str | None = None
    """Why probes find it down, as a phrase; None: they do not."""
    given_up: str | None = None
    """Why its engine was given up, as a phrase; None: it was not."""
    calls: int = 0
    """Attempts of the last minute, plus calls that the gateway refused instead of making one."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """Calls of the last minute that the gateway itself refused, by cause."""


@dataclass(frozen=True, slots=True)
class HealthVerdict:
    """A health state, with a phrase for each thing that makes it less than healthy, the worst first."""

    health: HealthState
    why: tuple[str, ...] = ()


def judge(signals: HealthSignals, settings: HealthSettings) -> HealthVerdict:
    """Returns one deployment's health. One that gets no calls has nothing against it."""
    refusals = evaluate_refusals(signals.calls, signals.refused)
    lost = [f"its engine was given up: {signals.given_up}"] if signals.given_up is not None else []
    ill, poor = _illnesses(signals), _weaknesses(signals, settings)
    (ill if refusals.health == "unhealthy" else poor).extend(refusals.why)
    health: HealthState = "failed" if lost else "unhealthy" if ill else "degraded" if poor else "healthy"
    return HealthVerdict(health, (*lost, *ill, *poor))


def evaluate_refusals(calls: int, refused: Mapping[str, int]) -> HealthVerdict:
    """Returns the health of a deployment or model by the share of its calls that the gateway refused in a minute."""
    count = sum(refused.values())
    if calls < SOME_CALLS or count < _MOST * calls:
        return HealthVerdict("healthy")
    most_first = sorted(refused.items(), key=lambda pair: -pair[1])
    by = ", ".join(f"{number} by {name}" for name, number in most_first)
    why = f"the gateway refused {count} of {calls} calls within a minute: {by}"
    return HealthVerdict("unhealthy" if count >= _NEARLY_ALL * calls else "degraded", (why,))


def sum_up(healths: Mapping[str, HealthState], asked: Collection[str], alone: Sequence[str] = ()) -> HealthVerdict:
    """Returns the health of the whole gateway, from that of its deployments by name. `asked`: deployments in use; a
    healthy one that gets no calls proves nothing. `alone`: models in use with deployments, fallbacks included, that are
    all unhealthy."""
    words: tuple[HealthState, ...] = ("failed", "unhealthy", "degraded")
    named = {word: [name for name, health in healths.items() if health == word] for word in words}
    why = [
        f"{len(names)} of {len(healths)} deployments {'is' if len(names) == 1 else 'are'} {word}: {_listed(names)}"
        for word, names in named.items()
        if names
    ]
    used = [healths[name] for name in asked if name in healths]
    if used and all(health in ("unhealthy", "failed") for health in used):
        return HealthVerdict("unhealthy", ("no deployment in use is healthy", *why))
    if alone:
        return HealthVerdict("unhealthy", (f"no deployment is left for {_listed(alone)}", *why))
    return HealthVerdict("degraded" if why else "healthy", tuple(why))


def with_refusals(whole: HealthVerdict, total: HealthVerdict, models: Mapping[str, HealthVerdict]) -> HealthVerdict:
    """Adds refused calls to the gateway's health: `total` is that of all calls, `models` those of the worst models."""
    why = [f"{name}: {phrase}" for name, verdict in models.items() for phrase in verdict.why]
    left = len(why) - _MODELS_NAMED
    more = [f"the same for {left} more model{'s' if left > 1 else ''}"] if left > 0 else []
    found: HealthState = "unhealthy" if total.health == "unhealthy" else "degraded" if why else "healthy"
    health = max(whole.health, found, key=_WORSE.index)
    return HealthVerdict(health, (*whole.why, *why[:_MODELS_NAMED], *more))


def with_modes(whole: HealthVerdict, words: Sequence[str]) -> HealthVerdict:
    """Adds degraded mode to the gateway's health, as described by `words`."""
    is_less = bool(words) and whole.health == "healthy"
    return HealthVerdict("degraded" if is_less else whole.health, (*whole.why, *words))


def mode_words(degraded: Sequence[str], *, is_gateway: bool) -> list[str]:
    """Returns phrases that say which models, or the whole gateway, are in degraded mode."""
    words = ["the gateway is degraded"] if is_gateway else []
    if degraded:
        words.append(f"degraded mode: {_listed(degraded)}")
    return words


def _illnesses(signals: HealthSignals) -> list[str]:
    found = [phrase for phrase in (_OUT.get(signals.state), _HOST_OUT.get(signals.host)) if phrase is not None]
    if signals.attempts >= NONE_OF and signals.failures == signals.attempts:
        found.append(f"none of {signals.attempts} attempts within a minute succeeded")
    if signals.looks is not None:
        found.append(f"its probes find it down: {signals.looks}")
    return found


def _weaknesses(signals: HealthSignals, settings: HealthSettings) -> list[str]:
    found = []
    if signals.state == "half_open":
        found.append("its breaker is half-open")
    if signals.host == "half_open":
        found.append("its upstream's breaker is half-open")
    share = signals.failures / signals.attempts if signals.attempts >= ENOUGH else 0.0
    if 0 < share < 1 and share >= settings.failure_share:
        found.append(f"{signals.failures} of {signals.attempts} attempts within a minute failed")
    if signals.held_s > 0:
        found.append(f"its provider sent a Retry-After: no calls for another {signals.held_s:.0f} s")
    if signals.rests_s > 0:
        found.append(f"its credential is in cooldown for another {signals.rests_s:.0f} s")
    if signals.quota_s > 0:
        found.append(f"its quota is exhausted, in cooldown for another {signals.quota_s:.0f} s")
    if signals.named_wait_s > 0:
        found.append(f"its provider sent a Retry-After, in cooldown for another {signals.named_wait_s:.0f} s")
    found += _over("p95", signals.p95_s, settings.p95)
    found += _over("p95 to the first token", signals.first_token_p95_s, settings.first_token_p95)
    if signals.hold is not None:
        found.append(signals.hold)
    return found


def _over(what: str, found_s: float | None, budget_s: float | None) -> list[str]:
    if found_s is None or budget_s is None or found_s <= budget_s:
        return []
    return [f"{what} is {_seconds(found_s)}, above its budget of {budget_s:g} s"]


def _seconds(seconds: float) -> str:
    return "longer than its timeouts" if seconds == float("inf") else f"{seconds:.3g} s"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
