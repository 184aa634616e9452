"""Operator overrides of breakers: forced open or forced closed.

Applies each override to every breaker that it covers, new ones included, and ends it.
`resilience.circuit_breaker.breaker` defines the states.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal

from llm_guard.admin.audit.changes import Changes
from llm_guard.admin.schemas.models import BreakerOverrideView
from llm_guard.clock import Clock, iso
from llm_guard.proxy.handler import Handler
from llm_guard.resilience.circuit_breaker.breaker import Breaker
from llm_guard.routing.deployment import Deployment

ForcedState = Literal["forced_open", "forced_closed"]

_SHUT = ("forced_open", "open", "half_open")


@dataclass(frozen=True, slots=True)
class BreakerSelector:
    """Selects breakers: those with a deployment label, one of a model name under it, or the one of an upstream's
    host."""

    deployment: str | None = None
    model: str | None = None
    upstream: str | None = None

    def breaker(self, deployment: Deployment) -> Breaker | None:
        """Returns the deployment's breaker that is selected, or None."""
        if self.upstream is not None:
            return deployment.host if deployment.upstream.name == self.upstream else None
        is_meant = deployment.label == self.deployment and self.model in (None, deployment.model)
        return deployment.breaker if is_meant else None

    def __str__(self) -> str:
        if self.upstream is not None:
            return f"upstream {self.upstream}"
        return f"{self.deployment} ({self.model})" if self.model is not None else str(self.deployment)


@dataclass(frozen=True, slots=True, eq=False)
class BreakerOverride:
    """An operator's override of breakers."""

    aim: BreakerSelector
    state: ForcedState
    reason: str
    until: float | None
    """Monotonic instant at which it ends by itself; None: an operator has to end it."""
    who: str
    since: float
    """Seconds since the epoch."""


class BreakerOverrides:
    """All overrides; the latest on a breaker applies.

    An override survives a reload, unless the new config sets another `state` for the breaker or drops the deployment.
    """

    def __init__(self, gateway: Handler, changes: Changes, clock: Clock) -> None:
        self._gateway = gateway
        self._changes = changes
        self._clock = clock
        self._forces: dict[BreakerSelector, BreakerOverride] = {}
        self._taken: dict[Breaker, BreakerOverride] = {}
        """The override in effect on each breaker."""

    def put(self, force: BreakerOverride) -> None:
        """Adds an override, in place of the one with the same aim."""
        self._forces[force.aim] = force
        for _, breaker in self._meant(force.aim):
            self._take(breaker, force)

    def reset(self, aim: BreakerSelector) -> list[BreakerOverride]:
        """Ends the overrides of an aim, including those on single names under a label, and returns them. The breakers
        start closed with no failures, or in the state that the config sets."""
        ended = [force for force in self._forces.values() if force.aim == aim or _covers(aim, force.aim)]
        for force in ended:
            del self._forces[force.aim]
        self._release(self._meant(aim), "reset by an operator")
        return ended

    def end(self, aim: BreakerSelector, why: str) -> None:
        """Ends the override of exactly this aim, if there is one."""
        if (force := self._forces.get(aim)) is not None:
            self._drop(force, why)

    def all(self) -> tuple[BreakerOverride, ...]:
        return tuple(self._forces.values())

    def has_taken(self, breaker: Breaker) -> bool:
        """Returns whether an operator's override is in effect on the breaker."""
        return breaker in self._taken

    def covering(self, aim: BreakerSelector) -> BreakerOverride | None:
        """Returns the override of a whole label that would force a single name's breaker again after a reset of that
        name."""
        return next((force for force in self._forces.values() if _covers(force.aim, aim)), None)

    def closed_labels(self) -> AbstractSet[str]:
        """Returns labels that are forced open as a whole."""
        return {
            force.aim.deployment
            for force in self._forces.values()
            if force.state == "forced_open" and force.aim.deployment is not None and force.aim.model is None
        }

    def closed_upstreams(self) -> AbstractSet[str]:
        """Returns upstreams with a host that is forced open."""
        forced = (force.aim.upstream for force in self._forces.values() if force.state == "forced_open")
        return {name for name in forced if name is not None}

    def forced(self, label: str) -> BreakerOverrideView | None:
        """Returns the override of a label, or else of a name under it."""
        meant = [force for force in self._forces.values() if force.aim.deployment == label]
        force = min(meant, key=lambda force: force.aim.model is not None, default=None)
        if force is None:
            return None
        until = None if force.until is None else iso(self._clock.wall() + force.until - self._clock.now())
        return BreakerOverrideView(force.reason, iso(force.since), until, force.who)

    def look(self, now: float) -> None:
        """Ends overrides that have expired, or that a reload has overruled."""
        if not self._forces:
            return
        for force in [force for force in self._forces.values() if force.until is not None and now >= force.until]:
            self._end(force, "expiry", "the override expired")
        for force in {force for breaker, force in self._taken.items() if breaker.state != force.state}:
            self._end(force, "reload", "the new config sets another state")
        self._forget_lost()

    def apply_overrides(self, deployment: Deployment) -> None:
        """Applies overrides to a deployment that is new or has just been released: others may cover it too."""
        for force in sorted(self._forces.values(), key=lambda force: force.aim.model is None):
            breaker = force.aim.breaker(deployment)
            if breaker is not None and breaker not in self._taken:
                self._take(breaker, force)

    def adopt(self, labels: AbstractSet[str], upstreams: AbstractSet[str]) -> None:
        """Ends overrides of labels and upstreams that the new config no longer has."""
        for force in list(self._forces.values()):
            if force.aim.deployment not in labels and force.aim.upstream not in upstreams:
                self._end(force, "reload", "the new config no longer has it")

    def _meant(self, aim: BreakerSelector) -> list[tuple[Deployment, Breaker]]:
        """Returns the selected deployments and breakers; deployments of one upstream share its breaker."""
        found = ((deployment, aim.breaker(deployment)) for deployment in self._gateway.deployments())
        return [(deployment, breaker) for deployment, breaker in found if breaker is not None]

    def _take(self, breaker: Breaker, force: BreakerOverride) -> None:
        breaker.force(force.state, self._clock.now())
        self._taken[breaker] = force

    def _release(self, meant: list[tuple[Deployment, Breaker]], why: str) -> None:
        """Ends the overrides of these breakers. Where calls were blocked, they return gradually (slow start)."""
        now = self._clock.now()
        for deployment, breaker in meant:
            if breaker.state in _SHUT:
                deployment.gates.ramp(now, deployment.breaker.settings.slow_start)
        for breaker in {breaker for _, breaker in meant}:
            self._taken.pop(breaker, None)
            breaker.reset(now, why)
        for deployment, _ in meant:
            self.apply_overrides(deployment)
        self._gateway.wake_waiters()

    def _end(self, force: BreakerOverride, actor: str, reason: str) -> None:
        """Ends an override and notes it."""
        self._drop(force, f"no longer forced: {reason}")
        details = {"was": force.state, "reason": force.reason}
        self._changes.note(actor, "breakers.reset", str(force.aim), reason, details)

    def _drop(self, force: BreakerOverride, why: str) -> None:
        """Ends an override as a whole, even if a reload has overruled it for one of its breakers only."""
        if self._forces.get(force.aim) is force:
            del self._forces[force.aim]
        self._release([pair for pair in self._meant(force.aim) if self._taken.get(pair[1]) is force], why)
        self._taken = {breaker: taken for breaker, taken in self._taken.items() if taken is not force}

    def _forget_lost(self) -> None:
        """Forgets breakers that no longer exist: patterns drop names, reloads drop deployments."""
        deployments = self._gateway.deployments()
        live = {breaker for deployment in deployments for breaker in (deployment.breaker, deployment.host)}
        self._taken = {breaker: force for breaker, force in self._taken.items() if breaker in live}


def _covers(wide: BreakerSelector, narrow: BreakerSelector) -> bool:
    """Returns whether `wide` is a label, and `narrow` a single name under it."""
    return wide.deployment is not None and wide == BreakerSelector(narrow.deployment) and narrow.model is not None
