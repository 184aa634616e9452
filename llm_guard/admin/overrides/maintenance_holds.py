"""Maintenance holds: deployments that an operator has drained, or cordoned for a time.

Applies each hold to every deployment with its label, new ones included, and ends it. `proxy.attempts.admission`
enforces it.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from llm_guard.admin.audit.changes import Changes
from llm_guard.admin.schemas.models import HoldView
from llm_guard.clock import Clock, iso
from llm_guard.proxy.handler import Handler
from llm_guard.routing.deployment import Deployment, MaintenanceHold


class MaintenanceHolds:
    """Holds by label. A reload keeps them, unless the label is gone."""

    def __init__(self, gateway: Handler, changes: Changes, clock: Clock) -> None:
        self._gateway = gateway
        self._changes = changes
        self._clock = clock
        self._holds: dict[str, MaintenanceHold] = {}

    def put(self, label: str, hold: MaintenanceHold) -> None:
        """Adds a hold, in place of the previous one."""
        self._holds[label] = hold
        for deployment in self._gateway.deployments():
            if deployment.label == label:
                deployment.hold, deployment.held = hold, 0

    def end(self, label: str) -> MaintenanceHold | None:
        """Ends a hold and returns it, None if there was none. Calls return gradually (slow start)."""
        hold = self._holds.pop(label, None)
        now = self._clock.now()
        for deployment in self._gateway.deployments():
            if deployment.label == label and deployment.hold is not None:
                deployment.hold = None
                deployment.gates.ramp(now, deployment.breaker.settings.slow_start)
        self._gateway.wake_waiters()
        return hold

    def all(self) -> tuple[tuple[str, MaintenanceHold], ...]:
        """Returns each hold with its label."""
        return tuple(self._holds.items())

    def labels(self) -> AbstractSet[str]:
        return self._holds.keys()

    def view(self, label: str) -> HoldView | None:
        hold = self._holds.get(label)
        if hold is None:
            return None
        until = None if hold.until is None else self._clock.wall() + hold.until - self._clock.now()
        return HoldView(hold.kind, hold.reason, iso(hold.since), None if until is None else iso(until), hold.who)

    def look(self, now: float) -> None:
        """Ends holds that have expired."""
        for label, hold in list(self._holds.items()):
            if hold.until is not None and now >= hold.until:
                self.end(label)
                self._note("expiry", label, hold, "the hold expired")

    def apply_overrides(self, deployment: Deployment) -> None:
        """Applies the hold to a deployment that is new, or has another label."""
        deployment.hold = self._holds.get(deployment.label)

    def adopt(self, labels: AbstractSet[str]) -> None:
        """Ends holds of labels that the new config no longer has."""
        for label in self._holds.keys() - labels:
            if (hold := self.end(label)) is not None:
                self._note("reload", label, hold, "the new config no longer has the deployment")

    def _note(self, actor: str, label: str, hold: MaintenanceHold, reason: str) -> None:
        self._changes.note(actor, "deployments.uncordon", label, reason, {"was": hold.kind, "reason": hold.reason})
