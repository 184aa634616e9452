"""Operator state that survives a restart: alerts already sent, and operators' overrides.

Defines its form, takes a snapshot and restores it; `admin.persistence.state_saver` decides when. Log levels and a
rolled-back config are not kept: a process starts by its config file, and the audit trail notes that.
"""

from __future__ import annotations

from typing import Any, Literal

import structlog
from msgspec import Struct

from llm_guard.admin.alerting.alerts import Alerts
from llm_guard.admin.alerting.raised_alert import SavedAlert
from llm_guard.admin.api.degraded import DegradedApi, ModeOverride
from llm_guard.admin.api.deployments import DeploymentApi
from llm_guard.admin.api.limits import LimitApi
from llm_guard.admin.audit.changes import Changes
from llm_guard.admin.overrides.breaker_overrides import BreakerOverride, BreakerSelector, ForcedState
from llm_guard.clock import Clock
from llm_guard.config_reloader import ConfigReloader
from llm_guard.log import LEVELS
from llm_guard.proxy.handler import Handler
from llm_guard.resilience.alerts.silences import Silence
from llm_guard.routing.deployment import MaintenanceHold
from llm_guard.upstreams.engines.registry import Engines

_log = structlog.get_logger("llm_guard.admin.persistence.operator_state")

_STEP_S = 1.0
_CLIENTS_EVERY_S = 5.0


class SavedBreakerOverride(Struct, frozen=True):
    """An override of breakers. Here and below, instants are in seconds since the epoch, and `until` null means no
    end."""

    deployment: str | None
    model: str | None
    upstream: str | None
    state: ForcedState
    reason: str
    who: str
    since: float
    until: float | None


class SavedHold(Struct, frozen=True):
    label: str
    kind: Literal["drained", "cordoned"]
    reason: str
    who: str
    since: float
    until: float | None


class SavedSilence(Struct, frozen=True):
    alert: str
    subject: str | None
    until: float
    reason: str
    who: str


class SavedMode(Struct, frozen=True):
    model: str | None
    """Model in degraded mode; None: the whole gateway."""
    is_degraded: bool
    reason: str
    who: str
    since: float
    until: float | None


SavedOverride = SavedSilence | SavedBreakerOverride | SavedHold | SavedMode
"""An override that can be shared by the gateways of a fleet."""


class SavedLimits(Struct, frozen=True):
    label: str
    said: dict[str, Any]


class SavedClient(Struct, frozen=True):
    name: str
    day: int
    """Day in UTC, counted from the epoch."""
    tokens: int
    """Tokens used on that day."""


class SavedState(Struct, frozen=True):
    """The whole state. One that equals a default instance need not be written."""

    alerts: list[SavedAlert] = []
    silences: list[SavedSilence] = []
    forces: list[SavedBreakerOverride] = []
    holds: list[SavedHold] = []
    limits: list[SavedLimits] = []
    modes: list[SavedMode] = []
    stopped: list[str] = []
    """Engines that an operator has stopped."""
    log_levels: list[str] = []
    """Loggers with a level that an operator has set."""
    config: str | None = None
    """Digest of the running config, set only where something depends on it."""
    is_rolled_back: bool = False
    clients: list[SavedClient] = []


class OperatorState:
    """Takes and restores snapshots of the state."""

    def __init__(
        self,
        alerts: Alerts,
        controls: DeploymentApi,
        limits: LimitApi,
        degraded: DegradedApi,
        engines: Engines,
        reloads: ConfigReloader,
        changes: Changes,
        gateway: Handler,
        clock: Clock,
    ) -> None:
        self._alerts = alerts
        self._controls = controls
        self._limits = limits
        self._degraded = degraded
        self._engines = engines
        self._reloads = reloads
        self._changes = changes
        self._gateway = gateway
        self._clock = clock
        self._clients: list[SavedClient] = []
        self._clients_at = float("-inf")
        self._offset_s = clock.wall() - clock.now()

    def snapshot(self) -> SavedState:
        """Takes a snapshot. It equals the previous one unless something was set, sent, or has ended."""
        offset_s, limits, current = self._offset(), self._limits.overrides(), self._reloads.current
        is_rolled_back = self._reloads.is_rolled_back
        return SavedState(
            alerts=self._alerts.kept(),
            silences=[_kept_silence(silence, offset_s) for silence in self._alerts.silences()],
            forces=[_kept_force(force, offset_s) for force in self._controls.forces.all()],
            holds=[_kept_hold(label, hold, offset_s) for label, hold in self._controls.holds.all()],
            limits=[SavedLimits(label, said) for label, said in limits.items()],
            modes=[_kept_mode(model, override, offset_s) for model, override in self._degraded.overrides()],
            stopped=self._engines.stopped(),
            log_levels=sorted(LEVELS.overrides()),
            config=current.digest if limits or is_rolled_back else None,
            is_rolled_back=is_rolled_back,
            clients=self._clients_lately(),
        )

    def overrides(self) -> list[SavedOverride]:
        """Returns the overrides in effect, without changed limits and stopped engines, which are each gateway's own."""
        state = self.snapshot()
        return [*state.silences, *state.forces, *state.holds, *state.modes]

    def knows(self, kept: SavedOverride) -> bool:
        """Returns whether the config has the target of an override."""
        match kept:
            case SavedSilence():
                return True
            case SavedBreakerOverride():
                return self._controls.knows(BreakerSelector(kept.deployment, kept.model, kept.upstream))
            case SavedHold():
                return self._controls.knows(BreakerSelector(kept.label))
            case SavedMode():
                return self._degraded.knows(kept.model)

    def try_put(self, kept: SavedOverride) -> bool:
        """Puts an override into effect, in place of the one of the same kind and target. Returns False if there are too
        many silences."""
        offset_s = self._offset()
        match kept:
            case SavedSilence():
                return self._alerts.try_silence(_silence(kept, offset_s))
            case SavedBreakerOverride():
                self._controls.forces.put(_force(kept, offset_s))
            case SavedHold():
                self._controls.holds.put(*_hold(kept, offset_s))
            case SavedMode():
                self._degraded.put(*_mode(kept, offset_s))
        return True

    def end(self, kept: SavedOverride, why: str) -> None:
        """Ends an override."""
        match kept:
            case SavedSilence():
                self._alerts.try_unsilence(kept.alert, kept.subject)
            case SavedBreakerOverride():
                self._controls.forces.end(BreakerSelector(kept.deployment, kept.model, kept.upstream), why)
            case SavedHold():
                self._controls.holds.end(kept.label)
            case SavedMode():
                self._degraded.end(kept.model, why)

    def restore(self, kept: SavedState) -> None:
        """Restores a snapshot, before the first call. Overrides that have ended meanwhile are noted in the audit
        trail."""
        offset_s = self._offset()
        for silence in kept.silences:
            self._alerts.try_silence(_silence(silence, offset_s))
        self._alerts.recall(kept.alerts)
        self._controls.recall(
            [_force(force, offset_s) for force in kept.forces], [_hold(hold, offset_s) for hold in kept.holds]
        )
        self._degraded.recall([_mode(mode, offset_s) for mode in kept.modes])
        self._engines.recall(kept.stopped)
        self._gateway.quotas.restore_days((client.name, client.day, client.tokens) for client in kept.clients)
        self._recall_config(kept)
        for name in kept.log_levels:
            self._changes.note("start", "log-levels.reset", name or "all", "the gateway was restarted", {})
        _log.info("operator state restored", **_counts(kept))

    def _clients_lately(self) -> list[SavedClient]:
        """Returns the usage of client keys as of a few seconds ago, so that not every call causes a write; up to date
        at the end."""
        now = self._clock.now()
        if now - self._clients_at >= _CLIENTS_EVERY_S or self._gateway.is_closed:
            self._clients_at = now
            self._clients = [SavedClient(*day) for day in self._gateway.quotas.days()]
        return self._clients

    def _recall_config(self, kept: SavedState) -> None:
        """Restores changed limits, if the config is the same: a restart with another config ends them, as a reload
        does."""
        digest = self._reloads.current.digest
        is_same = kept.config == digest
        if kept.is_rolled_back and not is_same:
            why, detail = "the gateway was restarted with the config file", {"was": kept.config, "digest": digest}
            self._changes.note("start", "config.reload", str(self._reloads.path), why, detail)
        for limit in kept.limits:
            if is_same:
                self._limits.put(limit.label, limit.said)
            else:
                self._changes.note(
                    "start",
                    "limits.reset",
                    limit.label,
                    "the gateway was restarted with another config",
                    {"was": limit.said},
                )

    def _offset(self) -> float:
        """Returns the seconds from monotonic instants to the epoch. It changes only if the wall clock is set: otherwise
        no snapshot would ever equal the previous one."""
        offset_s = self._clock.wall() - self._clock.now()
        if abs(offset_s - self._offset_s) >= _STEP_S:
            self._offset_s = offset_s
        return self._offset_s


def _kept_silence(silence: Silence, offset_s: float) -> SavedSilence:
    return SavedSilence(silence.alert, silence.subject, offset_s + silence.until, silence.reason, silence.who)


def _silence(kept: SavedSilence, offset_s: float) -> Silence:
    return Silence(kept.alert, kept.subject, kept.until - offset_s, kept.reason, kept.who)


def _kept_force(force: BreakerOverride, offset_s: float) -> SavedBreakerOverride:
    aim, until = force.aim, _moved(force.until, offset_s)
    return SavedBreakerOverride(
        aim.deployment, aim.model, aim.upstream, force.state, force.reason, force.who, force.since, until
    )  # fmt: skip


def _force(kept: SavedBreakerOverride, offset_s: float) -> BreakerOverride:
    aim, until = BreakerSelector(kept.deployment, kept.model, kept.upstream), _moved(kept.until, -offset_s)
    return BreakerOverride(aim, kept.state, kept.reason, until, kept.who, kept.since)


def _kept_hold(label: str, hold: MaintenanceHold, offset_s: float) -> SavedHold:
    return SavedHold(label, hold.kind, hold.reason, hold.who, hold.since, _moved(hold.until, offset_s))


def _hold(kept: SavedHold, offset_s: float) -> tuple[str, MaintenanceHold]:
    return kept.label, MaintenanceHold(kept.kind, kept.reason, kept.who, kept.since, _moved(kept.until, -offset_s))


def _kept_mode(model: str | None, override: ModeOverride, offset_s: float) -> SavedMode:
    return SavedMode(
        model, override.is_degraded, override.reason, override.who, override.since, _moved(override.until, offset_s)
    )


def _mode(kept: SavedMode, offset_s: float) -> tuple[str | None, ModeOverride]:
    return kept.model, ModeOverride(kept.is_degraded, kept.reason, kept.who, kept.since, _moved(kept.until, -offset_s))


def _moved(until: float | None, by_s: float) -> float | None:
    return None if until is None else until + by_s


def _counts(kept: SavedState) -> dict[str, int]:
    return {
        "alerts": len(kept.alerts),
        "silences": len(kept.silences),
        "forces": len(kept.forces),
        "holds": len(kept.holds),
        "limits": len(kept.limits),
        "modes": len(kept.modes),
        "stopped": len(kept.stopped),
        "clients": len(kept.clients),
    }
