"""Faults that operators inject into calls: each with an author and an end.

`proxy.attempts.fault_injection` applies them. They are neither saved nor shared with other gateways: a restart ends
them all.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from llm_guard.admin.audit.changes import Changes
from llm_guard.proxy.attempts.fault_injection import FaultInjector, InjectedFault


@dataclass(frozen=True, slots=True)
class FaultOverride:
    """A fault, and the operator who has injected it."""

    fault: InjectedFault
    reason: str
    who: str
    since: float
    """Seconds since the epoch."""

    @property
    def target(self) -> str:
        """The model or deployment, for the audit trail."""
        return str(self.fault.model if self.fault.model is not None else self.fault.deployment)


class FaultOverrides:
    """Faults in effect, by id. `look` must be called periodically."""

    def __init__(self, injector: FaultInjector, changes: Changes) -> None:
        self._injector = injector
        self._changes = changes
        self._overrides: dict[str, FaultOverride] = {}

    def put(self, override: FaultOverride) -> None:
        """Puts a fault into effect."""
        self._overrides[override.fault.id] = override
        self._injector.add(override.fault)

    def end(self, fault_id: str) -> FaultOverride | None:
        """Ends a fault and returns it, None if there is none with this id."""
        override = self._overrides.pop(fault_id, None)
        if override is not None:
            self._injector.remove(override.fault)
        return override

    def all(self) -> tuple[FaultOverride, ...]:
        """Returns the faults, the oldest first."""
        return tuple(self._overrides.values())

    def look(self, now: float) -> None:
        """Ends faults that have expired."""
        for override in self.all():
            if now >= override.fault.until:
                self._end(override, "expiry", "the fault expired")

    def adopt(self, models: AbstractSet[str], labels: AbstractSet[str], *, is_allowed: bool) -> None:
        """Ends faults of models and labels that the new config no longer has, and all if it does not allow any."""
        for override in self.all():
            fault = override.fault
            if not is_allowed:
                self._end(override, "reload", "the new config has not ops.chaos: true")
            elif fault.model not in models and fault.deployment not in labels:
                self._end(override, "reload", "the new config no longer has it")

    def close(self) -> None:
        """Ends all faults, because the gateway stops."""
        for override in self.all():
            self._end(override, "stop", "the gateway stops")

    def _end(self, override: FaultOverride, actor: str, reason: str) -> None:
        self.end(override.fault.id)
        detail = {"id": override.fault.id, "struck": override.fault.struck, "reason": override.reason}
        self._changes.note(actor, "chaos.end", override.target, reason, detail)
