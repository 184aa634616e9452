"""Restrictions that a deployment or an upstream sets by itself: breakers, paces, limits.

Describes each of them; `admin.restrictions.restrictions` selects the deployments, `admin.restrictions.cooldowns` has
cooldowns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

from llm_guard.admin.api.caller_names import for_callers
from llm_guard.admin.schemas.restrictions import Lift, LiftBody, Resettable, Restriction, RestrictionKind
from llm_guard.clock import iso
from llm_guard.resilience.capacity.gate_snapshot import GateSnapshot
from llm_guard.resilience.circuit_breaker.breaker import Breaker, BreakerSnapshot
from llm_guard.resilience.throttling.adaptive_throttle import Phase
from llm_guard.routing.deployment import Deployment

RESET = "/admin/deployments/reset"


@dataclass(frozen=True, slots=True)
class Moment:
    """One instant on both clocks."""

    now: float
    wall: float

    def iso(self, at: float | None) -> str | None:
        """Converts a monotonic instant to ISO 8601; None if it is not known."""
        return None if at is None or abs(at) == inf else iso(self.wall + at - self.now)


def of_breaker(deployment: Deployment, moment: Moment) -> Iterator[Restriction]:
    """Yields its open breaker, and open breakers of single callers."""
    lift = reset(deployment, "breaker", "Closes its breaker and clears the failure statistics; calls return gradually.")
    found: list[tuple[RestrictionKind, str, Breaker]] = [("breaker", "its breaker", deployment.breaker)]
    for caller, suspect in deployment.callers.suspects():
        who = caller or "unknown callers"
        found.append(("caller_breaker", f"its breaker for {who}, the only caller with failures,", suspect.breaker))
    for kind, whose, breaker in found:
        if (seen := breaker.snapshot(moment.now)).state in ("open", "half_open"):
            yield _shut(seen, breaker.refused, kind, whose, deployment, lift, moment)


def of_host(deployment: Deployment, moment: Moment) -> Iterator[Restriction]:
    """Yields the breaker of its upstream's host if failures have opened it."""
    seen = deployment.host.snapshot(moment.now)
    if seen.state in ("open", "half_open"):
        name = deployment.upstream.name
        effect = f"Closes the breaker of the host, for all deployments of {name}; calls return gradually."
        lift = Lift("POST", RESET, {"upstream": name, "kinds": ["host_breaker"]}, effect)
        yield _shut(
            seen,
            deployment.host.refused,
            "host_breaker",
            f"the breaker of the host of {name}",
            deployment,
            lift,
            moment,
        )


def of_gates(
    deployment: Deployment, moment: Moment, *, full_since: float | None, is_limit_changed: bool
) -> Iterator[Restriction]:
    """Yields its pace, throttle, concurrency limit, and the wait that its provider requested. `full_since`: when its
    latest attempt began, which took the last slot if it is full. `is_limit_changed`: an operator has changed the
    limit."""
    seen = [gate.snapshot(moment.now) for gate in deployment.gates.all()]
    paced = [gate for gate in seen if gate.rate is not None]
    held = [gate for gate in seen if gate.held_until is not None]
    full = [gate for gate in seen if gate.limit is not None and (gate.in_flight >= gate.limit or gate.waiting)]
    if paced:
        yield _paced(deployment, paced, len(seen), moment)
    if throttled := [gate for gate in seen if gate.throttle.rate is not None]:
        yield _throttled(deployment, throttled, len(seen), moment)
    if held:
        yield _held(deployment, held, len(seen), moment)
    if full and all(is_ramping(deployment, gate) for gate in full):
        yield _ramping(deployment, full, moment)
    elif full:
        refused = deployment.full.count(moment.now)
        yield _full(deployment, full, moment.iso(full_since), refused, is_limit_changed=is_limit_changed)


_WHY: dict[Phase, str] = {
    "trying": "many calls fail; a lower rate is tried to see whether fewer fail",
    "throttling": "at higher rates more calls fail",
    "releasing": "calls that waited during the trial are sent",
}


_TRIALS = {
    "open": "Then a trial call passes; the breaker closes if it succeeds.",
    "due": "The next call that needs this deployment is the trial; the breaker closes if it succeeds.",
    "half_open": "A trial call passes now; the breaker closes if it succeeds.",
}


def is_ramping(deployment: Deployment, gate: GateSnapshot) -> bool:
    """Returns whether a gate's limit is set by a slow start rather than by its own `concurrency`."""
    own, limit = deployment.gates.settings.concurrency, gate.limit
    if limit is None or own is None:
        return limit is not None
    return own != "adaptive" and limit < (own if gate.share is None else min(own, gate.share))


def _shut(
    seen: BreakerSnapshot,
    refused: int,
    kind: RestrictionKind,
    whose: str,
    deployment: Deployment,
    lift: Lift,
    moment: Moment,
) -> Restriction:
    opened = next((transition for transition in reversed(seen.latest) if transition.after == "open"), None)
    is_host = kind == "host_breaker"
    is_open = seen.state == "open"
    return Restriction(
        kind,
        None if is_host else deployment.label,
        None if is_host else model_of(deployment),
        deployment.upstream.name,
        f"{whose} is {'open' if is_open else 'half-open'}: {opened.why if opened is not None else 'calls failed'}",
        moment.iso(seen.outage_at),
        moment.iso(max(moment.now, seen.probe_at)) if is_open and seen.probe_at is not None else None,
        _TRIALS["due" if is_open and (seen.probe_at or 0.0) <= moment.now else seen.state],
        0,
        False,
        lift,
        None,
        rule=seen.why or "calls failed",
        refused=refused,
    )


def _paced(deployment: Deployment, paced: Sequence[GateSnapshot], of: int, moment: Moment) -> Restriction:
    slowest = min(paced, key=lambda gate: gate.rate or inf)
    cause = (
        "its rate limit is nearly used up, by the headers of its responses"
        if slowest.rate_cause == "headers"
        else "its provider responded 429 to a higher rate"
    )
    probing = "; one call tests a higher rate now" if slowest.is_probing else ""
    since = min((gate.rate_since for gate in paced if gate.rate_since is not None), default=None)
    return Restriction(
        "pace",
        deployment.label,
        model_of(deployment),
        deployment.upstream.name,
        f"limited to {slowest.rate:.3g} calls per second{_on_some(len(paced), of)}"
        f"{for_callers(slowest.limited_callers)}: {cause}{probing}",
        moment.iso(since),
        None,
        "The limit rises while calls wait and are accepted, and ends when it delays no more calls.",
        _waiting(paced),
        False,
        reset(deployment, "pace", "Clears the learned rate and the provider's Retry-After."),
        None,
        rule=f"{cause}: {slowest.rate:.3g} calls per second",
        refused=deployment.full.count(moment.now),
    )


def _throttled(deployment: Deployment, throttled: Sequence[GateSnapshot], of: int, moment: Moment) -> Restriction:
    slowest = min((gate.throttle for gate in throttled), key=lambda throttle: throttle.rate or inf)
    return Restriction(
        "throttle",
        deployment.label,
        model_of(deployment),
        deployment.upstream.name,
        f"limited to {slowest.rate:.3g} calls per second{_on_some(len(throttled), of)}: {_WHY[slowest.phase]}",
        moment.iso(min((gate.throttle.since for gate in throttled if gate.throttle.since is not None), default=None)),
        None,
        "The limit rises while calls wait and do not fail, and ends if a lower rate does not reduce failures.",
        _waiting(throttled),
        False,
        reset(deployment, "throttle", "Ends the limit, until failures cause another trial."),
        None,
        rule=f"{_WHY[slowest.phase]}: {slowest.rate:.3g} calls per second",
        refused=deployment.full.count(moment.now),
    )


def _held(deployment: Deployment, held: Sequence[GateSnapshot], of: int, moment: Moment) -> Restriction:
    since = min((gate.held_since for gate in held if gate.held_since is not None), default=None)
    until = max(gate.held_until or 0.0 for gate in held)
    probing = "; one call tests now whether it has ended" if any(gate.is_probing for gate in held) else ""
    return Restriction(
        "provider_pause",
        deployment.label,
        model_of(deployment),
        deployment.upstream.name,
        f"its provider sent a Retry-After{_on_some(len(held), of)}{for_callers(held[0].limited_callers)}{probing}",
        moment.iso(since),
        moment.iso(until),
        "Calls are sent again at that time.",
        _waiting(held),
        False,
        reset(deployment, "pace", "Clears the provider's Retry-After and the learned rate."),
        None,
        rule=f"a Retry-After with {until - moment.now:.0f} s left",
        refused=deployment.full.count(moment.now),
    )


def _ramping(deployment: Deployment, full: Sequence[GateSnapshot], moment: Moment) -> Restriction:
    latest = deployment.breaker.snapshot(moment.now).latest
    since = latest[-1].at if latest and latest[-1].after == "closed" else None
    longest_s = deployment.breaker.settings.slow_start
    return Restriction(
        "slow_start",
        deployment.label,
        model_of(deployment),
        deployment.upstream.name,
        f"slow start after an outage: {full[0].limit} concurrent calls for now (breaker.slow_start)",
        moment.iso(since),
        moment.iso(None if since is None else since + longest_s),
        f"Each success admits one more; the limit ends after {longest_s:g} s.",
        _waiting(full),
        False,
        reset(deployment, "slow_start", "Ends the slow start: all calls are admitted."),
        None,
        rule=f"breaker.slow_start: {longest_s:g} s",
        refused=deployment.full.count(moment.now),
    )


def _full(
    deployment: Deployment, full: Sequence[GateSnapshot], since: str | None, refused: int, *, is_limit_changed: bool
) -> Restriction:
    in_flight, limit = sum(gate.in_flight for gate in full), sum(gate.limit or 0 for gate in full)
    settings = deployment.gates.settings
    is_shared = any(gate.share is not None for gate in full)
    whose = f" (this gateway's share of {settings.concurrency})" if is_shared else ""
    body: LiftBody = {"deployment": deployment.label}
    if is_limit_changed:
        lift = Lift("POST", "/admin/limits/reset", body, "Resets the limit to the config's (capacity.concurrency).")
    else:
        effect = "Removes the limit until the next reload. To raise it instead, send a number in place of null."
        lift = Lift("POST", "/admin/limits", {**body, "concurrency": None}, effect)
    return Restriction(
        "concurrency",
        deployment.label,
        model_of(deployment),
        deployment.upstream.name,
        f"{in_flight} of {limit} concurrent calls in flight{whose}, {_waiting(full)} waiting"
        f" (at most {settings.max_queue})",
        since,
        None,
        "A waiting call is admitted whenever one in flight ends.",
        _waiting(full),
        False,
        lift,
        None,
        rule=f"at most {limit} concurrent calls{whose}",
        refused=refused,
    )


def model_of(deployment: Deployment) -> str | None:
    """Returns the name under the deployment's pattern; None: it has none."""
    return deployment.breaker_of().get("model")


def _waiting(gates: Iterable[GateSnapshot]) -> int:
    return sum(sum(gate.waiting.values()) for gate in gates)


def _on_some(count: int, of: int) -> str:
    return "" if count == of == 1 else f" on {count} of {of} accounts"


def reset(deployment: Deployment, kind: Resettable, effect: str) -> Lift:
    """Returns the request that ends one kind of restriction of a deployment."""
    return Lift("POST", RESET, {**deployment.breaker_of(), "kinds": [kind]}, effect)
