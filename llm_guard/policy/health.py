"""Whether a deployment is well, as an operator would put it: healthy, degraded, unhealthy or failed, and why.

Owns these words. Does not own who is asked: that is the breaker's, which looks at less and acts on it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from llm_guard.policy.transition import BreakerState
from llm_guard.policy.units import OptionalSeconds, Ratio

HealthState = Literal["healthy", "degraded", "unhealthy", "failed"]
"""failed: its engine does not come back by itself any more; somebody has to look after it."""

ENOUGH = 20
"""Attempts in a minute below which a share of failures would be an anecdote."""
NONE_OF = 5
"""So many attempts in a minute without one success are an outage, whatever the breaker makes of them: rate limits and
refused keys do not open it."""
SOME_CALLS = 10
"""Calls in a minute below which a share of refused ones would be an anecdote."""
_MOST, _NEARLY_ALL = 0.5, 0.9
"""Shares of calls that the gateway itself refuses, from which on a deployment or model is degraded, and unhealthy."""
_NAMED = 5
_MODELS_NAMED = 2
"""With a phrase each, in one line with all else."""

_WORSE: tuple[HealthState, ...] = ("healthy", "degraded", "unhealthy", "failed")
_OUT = {"open": "its breaker is open", "forced_open": "its breaker is forced open"}
_HOST_OUT = {"open": "its upstream's breaker is open", "forced_open": "its upstream's breaker is forced open"}


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """Above either p95, in seconds, a deployment is degraded; None: no budget. From this share of failed attempts on,
    within a minute, it is as well."""

    p95: OptionalSeconds = None
    """Of whole answers."""
    first_token_p95: OptionalSeconds = None
    """Of streams."""
    failure_share: Ratio = 0.1


@dataclass(frozen=True, slots=True)
class Signs:
    """What is seen of one deployment."""

    state: BreakerState = "closed"
    host: BreakerState = "closed"
    """Of its upstream's own breaker."""
    attempts: int = 0
    """Of the last minute; both without those whose end says nothing of a deployment."""
    failures: int = 0
    p95_s: float | None = None
    """Seconds, of whole answers; infinite where so many were cut; None: too few to know."""
    first_token_p95_s: float | None = None
    held_s: float = 0.0
    """So long nothing more will be let through: the provider has said so."""
    rests_s: float = 0.0
    """So long its credential is benched."""
    quota_s: float = 0.0
    """So long its credential's quota for this model is taken for spent."""
    named_wait_s: float = 0.0
    """So long it rests alone, because its provider has named a wait."""
    hold: str | None = None
    """What an operator has said of it, as a phrase."""
    looks: str | None = None
    """Why looks beside the calls find it down, as a phrase; None: they do not."""
    given_up: str | None = None
    """Why its engine was given up, as a phrase; None: it was not."""
    calls: int = 0
    """Attempts of the last minute, and calls that the gateway refused instead of making one."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """Calls of the last minute that the gateway itself refused, by what."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How it is, with a phrase for each thing that makes it less than healthy, the worst first."""

    health: HealthState
    why: tuple[str, ...] = ()


def judge(signs: Signs, settings: HealthSettings) -> Verdict:
    """One deployment's health. Of one that nobody asks nothing bad is known."""
    refusals = judge_refusals(signs.calls, signs.refused)
    lost = [f"its engine was given up: {signs.given_up}"] if signs.given_up is not None else []
    ill, poor = _illnesses(signs), _weaknesses(signs, settings)
    (ill if refusals.health == "unhealthy" else poor).extend(refusals.why)
    health: HealthState = "failed" if lost else "unhealthy" if ill else "degraded" if poor else "healthy"
    return Verdict(health, (*lost, *ill, *poor))


def judge_refusals(calls: int, refused: Mapping[str, int]) -> Verdict:
    """The health of what gets these calls, by the share of them that the gateway itself refused within a minute."""
    count = sum(refused.values())
    if calls < SOME_CALLS or count < _MOST * calls:
        return Verdict("healthy")
    most_first = sorted(refused.items(), key=lambda pair: -pair[1])
    by = ", ".join(f"{number} by {name}" for name, number in most_first)
    why = f"the gateway refused {count} of {calls} calls within a minute: {by}"
    return Verdict("unhealthy" if count >= _NEARLY_ALL * calls else "degraded", (why,))


def sum_up(healths: Mapping[str, HealthState], asked: Collection[str], alone: Sequence[str] = ()) -> Verdict:
    """The health of all together, by their names. `asked`: those that are in use; that another one, which nobody asks,
    is healthy says nothing. `alone`: models in use of which every deployment, fallbacks included, is unhealthy."""
    words: tuple[HealthState, ...] = ("failed", "unhealthy", "degraded")
    named = {word: [name for name, health in healths.items() if health == word] for word in words}
    why = [
        f"{len(names)} of {len(healths)} deployments {'is' if len(names) == 1 else 'are'} {word}: {_listed(names)}"
        for word, names in named.items()
        if names
    ]
    used = [healths[name] for name in asked if name in healths]
    if used and all(health in ("unhealthy", "failed") for health in used):
        return Verdict("unhealthy", ("no deployment that is in use is well", *why))
    if alone:
        return Verdict("unhealthy", (f"nobody is left who could answer for {_listed(alone)}", *why))
    return Verdict("degraded" if why else "healthy", tuple(why))


def with_refusals(whole: Verdict, total: Verdict, models: Mapping[str, Verdict]) -> Verdict:
    """The health of all together, where the gateway refuses calls: `total` of all, `models` those it is worst for."""
    why = [f"{name}: {phrase}" for name, verdict in models.items() for phrase in verdict.why]
    left = len(why) - _MODELS_NAMED
    more = [f"so it did for {left} more model{'s' if left > 1 else ''}"] if left > 0 else []
    found: HealthState = "unhealthy" if total.health == "unhealthy" else "degraded" if why else "healthy"
    health = max(whole.health, found, key=_WORSE.index)
    return Verdict(health, (*whole.why, *why[:_MODELS_NAMED], *more))


def with_modes(whole: Verdict, words: Sequence[str]) -> Verdict:
    """The health of all together, where models give lesser answers soon, as `words` say."""
    is_less = bool(words) and whole.health == "healthy"
    return Verdict("degraded" if is_less else whole.health, (*whole.why, *words))


def mode_words(degraded: Sequence[str], *, is_gateway: bool) -> list[str]:
    """That these models, or all that can, give lesser answers soon."""
    words = ["the gateway is degraded"] if is_gateway else []
    if degraded:
        words.append(f"lesser answers are given soon for {_listed(degraded)}")
    return words


def _illnesses(signs: Signs) -> list[str]:
    found = [phrase for phrase in (_OUT.get(signs.state), _HOST_OUT.get(signs.host)) if phrase is not None]
    if signs.attempts >= NONE_OF and signs.failures == signs.attempts:
        found.append(f"none of {signs.attempts} attempts within a minute succeeded")
    if signs.looks is not None:
        found.append(f"its probes find it down: {signs.looks}")
    return found


def _weaknesses(signs: Signs, settings: HealthSettings) -> list[str]:
    found = []
    if signs.state == "half_open":
        found.append("its breaker is half-open")
    if signs.host == "half_open":
        found.append("its upstream's breaker is half-open")
    share = signs.failures / signs.attempts if signs.attempts >= ENOUGH else 0.0
    if 0 < share < 1 and share >= settings.failure_share:
        found.append(f"{signs.failures} of {signs.attempts} attempts within a minute failed")
    if signs.held_s > 0:
        found.append(f"its provider takes nothing for another {signs.held_s:.0f} s")
    if signs.rests_s > 0:
        found.append(f"its credential is benched for another {signs.rests_s:.0f} s")
    if signs.quota_s > 0:
        found.append(f"its quota is spent, and it rests for another {signs.quota_s:.0f} s")
    if signs.named_wait_s > 0:
        found.append(f"its provider has named a wait: it rests for another {signs.named_wait_s:.0f} s")
    found += _over("p95", signs.p95_s, settings.p95)
    found += _over("p95 to the first token", signs.first_token_p95_s, settings.first_token_p95)
    if signs.hold is not None:
        found.append(signs.hold)
    return found


def _over(what: str, found_s: float | None, budget_s: float | None) -> list[str]:
    if found_s is None or budget_s is None or found_s <= budget_s:
        return []
    return [f"{what} is {_seconds(found_s)}, above its budget of {budget_s:g} s"]


def _seconds(seconds: float) -> str:
    return "longer than its limits" if seconds == float("inf") else f"{seconds:.3g} s"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
