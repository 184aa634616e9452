"""Finds the state of each model of the config, as it is for a new call of one client key.

Uses the checks of a dry run (`proxy.dry_run`); `resilience.health.model_status` decides the state. The limits of client
keys, and what concerns only callers with provider keys of their own, are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from llm_guard.clock import Clock
from llm_guard.dialects import DIALECTS
from llm_guard.proxy.attempts.admission import AtCapacity, key_for
from llm_guard.proxy.attempts.admission import cooldown_of as find_cooldown
from llm_guard.proxy.call import Call
from llm_guard.proxy.caller_identity import breaker_of, may_use
from llm_guard.proxy.degraded_mode import DegradedMode
from llm_guard.proxy.dry_run import obstacle_of
from llm_guard.resilience.circuit_breaker.breaker import Breaker
from llm_guard.resilience.circuit_breaker.cooldown import Cooldowns
from llm_guard.resilience.health.model_status import ModelStatus, Obstacle, status_of
from llm_guard.routing.deployment import MaintenanceHold
from llm_guard.routing.route_table import Route, RouteTable, Target


class TableSource(Protocol):
    """Has the current route table, which a reload replaces; implemented by `proxy.handler`."""

    table: RouteTable


class ModelStatuses:
    """Reads the states of all models that the config names. Patterns have no state: their names are the clients'."""

    def __init__(self, cooldowns: Cooldowns, degraded: DegradedMode, tables: TableSource, clock: Clock) -> None:
        self._cooldowns = cooldowns
        self._degraded = degraded
        self._clock = clock
        self._tables = tables

    @property
    def table(self) -> RouteTable:
        """The current route table."""
        return self._tables.table

    def names_for(self, call: Call) -> tuple[str, ...]:
        """Returns the models of the config that the call's key may use."""
        table = self.table
        return tuple(name for name in _names(table) if may_use(call, table, name))

    @property
    def are_common(self) -> bool:
        """True if no cooldown and no breaker is one client's, so that the states are the same for all."""
        if self._clock.now() < self._cooldowns.quiet_from:
            return False
        return not any(deployment.callers.has_failures for deployment in self.table.deployments())

    def all(self, client: str | None) -> dict[str, ModelStatus]:
        """Returns the state of each model now, for calls of this client key; None: without client keys."""
        table, now = self.table, self._clock.now()
        modes = self._degraded.snapshot()
        found: dict[str, ModelStatus] = {}
        for name in _names(table):
            if (route := table.preview(name)) is not None:
                mode = modes.routes.get(route.alias)
                found[name] = self._of(route, client, now, is_degraded=mode is not None and mode.is_degraded)
        return found

    def _of(self, route: Route, client: str | None, now: float, *, is_degraded: bool) -> ModelStatus:
        own: list[Obstacle | None] = []
        fallbacks: list[Obstacle | None] = []
        for target in route.targets:
            obstacle = self._obstacle(target, client, now)
            if obstacle is None and route.down.has(target.deployment):
                obstacle = Obstacle("failures", refuses=False)  # tried last, as probes can be wrong
            (own if target.alias == route.alias else fallbacks).append(obstacle)
        return status_of(own, fallbacks, is_degraded=is_degraded)

    def _obstacle(self, target: Target, client: str | None, now: float) -> Obstacle | None:
        deployment, dialect = target.deployment, target.deployment.upstream.dialect
        if deployment.hold is not None:
            return _by_hold(deployment.hold, now, self._clock.wall())
        call = Call("", dialect, "POST", DIALECTS[dialect].DEFAULT_PATH, "", (), now, model=target.model)
        call.client_key = client
        patience_s = target.retry.max_delay
        found = obstacle_of(call, target, self._cooldowns, now, patience_s)
        for breaker in (deployment.host, breaker_of(call, deployment, now)):
            if breaker.state in ("open", "half_open", "forced_open"):
                return _by_breaker(breaker, now)
        if isinstance(found, AtCapacity):
            is_waited_for = found.has_place and found.wait_s <= target.queue_wait_s
            return None if is_waited_for else Obstacle("capacity", until=now + found.wait_s)
        if found is None:
            return None
        key = key_for(self._cooldowns, call, target, now)
        cooldown = find_cooldown(self._cooldowns, call, target, key, patience_s, now)
        return Obstacle("paused", since=None if cooldown is None else cooldown.since, until=now + found.wait_s)


def _by_hold(hold: MaintenanceHold, now: float, wall: float) -> Obstacle:
    return Obstacle("maintenance", since=now - (wall - hold.since), until=hold.until)


def _by_breaker(breaker: Breaker, now: float) -> Obstacle:
    """Returns the obstacle of a breaker that is not closed. Between trial calls it takes one, so that clients which
    wait for its end may not wait for ever."""
    if breaker.state == "forced_open":
        return Obstacle("maintenance")
    since, wait_s = breaker.snapshot(now).outage_at, breaker.come_back_s(now)
    if wait_s <= 0:
        return Obstacle("recovering", refuses=False, since=since)
    return Obstacle("failures", since=since, until=now + wait_s)


def _names(table: RouteTable) -> Iterator[str]:
    for dialect in DIALECTS:
        yield from table.exact_names(dialect)
