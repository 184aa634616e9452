"""Breakers that an operator has forced open or closed.

Owns whose breakers are forced, and that each force reaches every breaker that it is meant for and ends when it should.
Does not own what a state means (`policy.breaker`), nor how it is asked for (`ops.controls`).
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal

from llm_guard.clock import Clock
from llm_guard.deployment import Deployment
from llm_guard.gateway.server import Gateway
from llm_guard.ops.changes import Changes, iso
from llm_guard.ops.views import ForceView
from llm_guard.policy.breaker import Breaker

ForcedState = Literal["forced_open", "forced_closed"]

_SHUT = ("forced_open", "open", "half_open")


@dataclass(frozen=True, slots=True)
class Aim:
    """Whose breakers: those with a label, or the one of a name under it; or the host's of an upstream."""

    deployment: str | None = None
    model: str | None = None
    upstream: str | None = None

    def breaker(self, deployment: Deployment) -> Breaker | None:
        """The one that is meant of a deployment; None: it is not meant."""
        if self.upstream is not None:
            return deployment.host if deployment.upstream.name == self.upstream else None
        is_meant = deployment.label == self.deployment and self.model in (None, deployment.model)
        return deployment.breaker if is_meant else None

    def __str__(self) -> str:
        if self.upstream is not None:
            return f"upstream {self.upstream}"
        return f"{self.deployment} ({self.model})" if self.model is not None else str(self.deployment)


@dataclass(frozen=True, slots=True, eq=False)
class Force:
    """An operator's word on them."""

    aim: Aim
    state: ForcedState
    reason: str
    until: float | None
    """The monotonic instant at which it ends by itself; None: somebody has to end it."""
    who: str
    since: float
    """Seconds since the epoch."""


class Forces:
    """The latest on a breaker holds.

    A force lasts over a reload, unless that says another `state` for the breaker, or has the deployment no longer.
    """

    def __init__(self, gateway: Gateway, changes: Changes, clock: Clock) -> None:
        self._gateway = gateway
        self._changes = changes
        self._clock = clock
        self._forces: dict[Aim, Force] = {}
        self._taken: dict[Breaker, Force] = {}
        """What has reached a breaker."""

    def put(self, force: Force) -> None:
        """Instead of the one before with the same aim."""
        self._forces[force.aim] = force
        for _, breaker in self._meant(force.aim):
            self._take(breaker, force)

    def reset(self, aim: Aim) -> list[Force]:
        """Its breakers follow the evidence again, from closed and with none, or what the config says. Returns what was
        ended: with a label's force also those on names under it."""
        ended = [each for each in self._forces.values() if each.aim == aim or _covers(aim, each.aim)]
        for each in ended:
            del self._forces[each.aim]
        self._release(self._meant(aim), "reset by an operator")
        return ended

    def all(self) -> tuple[Force, ...]:
        return tuple(self._forces.values())

    def has_taken(self, breaker: Breaker) -> bool:
        """Whether an operator's word has forced it."""
        return breaker in self._taken

    def covering(self, aim: Aim) -> Force | None:
        """That would force a single name's breaker again, were only the name reset."""
        return next((each for each in self._forces.values() if _covers(each.aim, aim)), None)

    def closed_labels(self) -> AbstractSet[str]:
        """Forced open as a whole."""
        return {
            each.aim.deployment
            for each in self._forces.values()
            if each.state == "forced_open" and each.aim.deployment is not None and each.aim.model is None
        }

    def closed_upstreams(self) -> AbstractSet[str]:
        """Whose hosts are forced open."""
        forced = (each.aim.upstream for each in self._forces.values() if each.state == "forced_open")
        return {name for name in forced if name is not None}

    def forced(self, label: str) -> ForceView | None:
        """The force on a label, or else on a name under it."""
        meant = [each for each in self._forces.values() if each.aim.deployment == label]
        force = min(meant, key=lambda each: each.aim.model is not None, default=None)
        if force is None:
            return None
        until = None if force.until is None else iso(self._clock.wall() + force.until - self._clock.now())
        return ForceView(force.reason, iso(force.since), until, force.who)

    def look(self, now: float) -> None:
        """Ends what is over."""
        if not self._forces:
            return
        for force in [each for each in self._forces.values() if each.until is not None and now >= each.until]:
            self._end(force, "expiry", "its time was over")
        for force in {force for breaker, force in self._taken.items() if breaker.state != force.state}:
            self._end(force, "reload", "the config says another state")
        self._forget_lost()

    def dress(self, deployment: Deployment) -> None:
        """It is new, or has been let go by a force that was its own: others may mean it too."""
        for force in sorted(self._forces.values(), key=lambda each: each.aim.model is None):
            breaker = force.aim.breaker(deployment)
            if breaker is not None and breaker not in self._taken:
                self._take(breaker, force)

    def adopt(self, labels: AbstractSet[str], upstreams: AbstractSet[str]) -> None:
        """The config has these now; what it has no longer cannot be forced."""
        for force in list(self._forces.values()):
            if force.aim.deployment not in labels and force.aim.upstream not in upstreams:
                self._end(force, "reload", "the config has it no longer")

    def _meant(self, aim: Aim) -> list[tuple[Deployment, Breaker]]:
        """Deployments of one upstream have its breaker in common."""
        found = ((each, aim.breaker(each)) for each in self._gateway.deployments())
        return [(each, breaker) for each, breaker in found if breaker is not None]

    def _take(self, breaker: Breaker, force: Force) -> None:
        breaker.force(force.state, self._clock.now())
        self._taken[breaker] = force

    def _release(self, meant: list[tuple[Deployment, Breaker]], why: str) -> None:
        """What nobody was let through to is asked again by and by."""
        now = self._clock.now()
        for deployment, breaker in meant:
            if breaker.state in _SHUT:
                deployment.gates.ramp(now, deployment.breaker.settings.slow_start)
        for breaker in {breaker for _, breaker in meant}:
            self._taken.pop(breaker, None)
            breaker.reset(now, why)
        for deployment, _ in meant:
            self.dress(deployment)
        self._gateway.let_in()

    def _end(self, force: Force, who: str, why: str) -> None:
        """Also what a reload has overruled for one of its breakers: no half of it stays."""
        if self._forces.get(force.aim) is force:
            del self._forces[force.aim]
        meant = [pair for pair in self._meant(force.aim) if self._taken.get(pair[1]) is force]
        self._release(meant, f"no longer forced: {why}")
        self._taken = {breaker: taken for breaker, taken in self._taken.items() if taken is not force}
        details = {"was": force.state, "reason": force.reason}
        self._changes.note(who, "breakers.reset", str(force.aim), why, details)

    def _forget_lost(self) -> None:
        """A pattern lets go of names, and a reload of deployments."""
        deployments = self._gateway.deployments()
        live = {breaker for each in deployments for breaker in (each.breaker, each.host)}
        self._taken = {breaker: force for breaker, force in self._taken.items() if breaker in live}


def _covers(wide: Aim, narrow: Aim) -> bool:
    """Whether one is a label's, and the other a single name's under it."""
    return wide.deployment is not None and wide == Aim(narrow.deployment) and narrow.model is not None
