"""Builds the parts of the admin API and their endpoints, and runs their life cycle: start, reload, stop."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_guard.admin.alerting.alerts import Alerts
from llm_guard.admin.alerting.engine_signals import EngineSignals
from llm_guard.admin.alerting.signals import AlertSignals
from llm_guard.admin.api.admission import AdmissionApi
from llm_guard.admin.api.alerts import AlertApi
from llm_guard.admin.api.cache import CacheApi
from llm_guard.admin.api.calls import CallApi
from llm_guard.admin.api.chaos import ChaosApi
from llm_guard.admin.api.clients import ClientApi
from llm_guard.admin.api.config import ConfigApi, detail_of
from llm_guard.admin.api.dead_letters import DeadLetterApi
from llm_guard.admin.api.degraded import DegradedApi
from llm_guard.admin.api.deployments import DeploymentApi
from llm_guard.admin.api.engines import EngineApi
from llm_guard.admin.api.explain import ExplainApi
from llm_guard.admin.api.health import HealthApi
from llm_guard.admin.api.history import HistoryApi, SavedHistory
from llm_guard.admin.api.incidents import IncidentApi
from llm_guard.admin.api.limits import LimitApi
from llm_guard.admin.api.log_levels import LogLevels
from llm_guard.admin.api.login import LoginApi
from llm_guard.admin.api.overview import Others, Overview
from llm_guard.admin.api.probes import ProbeApi
from llm_guard.admin.api.replicas import ReplicaApi
from llm_guard.admin.api.restrictions import RestrictionApi
from llm_guard.admin.api.routes import RouteApi
from llm_guard.admin.context import AdminContext
from llm_guard.admin.dashboard import Dashboard
from llm_guard.admin.events.breaker_transitions import Transitions
from llm_guard.admin.events.stream import EventStream
from llm_guard.admin.http.auth import Authenticator
from llm_guard.admin.http.credentials import credentials_of
from llm_guard.admin.http.endpoint import EndpointGroup
from llm_guard.admin.http.operator_token import OperatorToken
from llm_guard.admin.http.router import Router
from llm_guard.admin.incidents.alert_causes import AlertCauses
from llm_guard.admin.metrics.declaration import bound
from llm_guard.admin.metrics.endpoint import Metrics
from llm_guard.admin.metrics.otlp_export import MetricsExport
from llm_guard.admin.metrics.subsystem_metrics import SUBSYSTEM_METRICS
from llm_guard.admin.monitor.monitor import LoopLag, Monitor
from llm_guard.admin.persistence.operator_state import OperatorState, SavedState
from llm_guard.admin.persistence.state_saver import StateSaver
from llm_guard.admin.restrictions.restrictions import Restrictions
from llm_guard.admin.schemas.models import DeploymentView
from llm_guard.config import Config
from llm_guard.config_reloader import BY_ITSELF, Adopted
from llm_guard.proxy.http_server.request import Request
from llm_guard.proxy.http_server.response_writer import ResponseWriter
from llm_guard.storage.snapshot_file import SnapshotFile, file_name
from llm_guard.storage.state_dir import state_folder
from llm_guard.storage.used_login_codes import UsedCodes
from llm_guard.webhooks.notice_sharing import NotShared
from llm_guard.webhooks.queue import Webhooks

if TYPE_CHECKING:
    from llm_guard.admin.persistence.shared_overrides import SharedOverrides
    from llm_guard.fleet.member import FleetMember

_HISTORY_SAVED_EACH_S = 300.0


class ControlPlane:
    """Life cycle: `await start()` before the listeners accept; `adopt` at a reload; `await stop()`."""

    def __init__(self, config: Config, running: AdminContext, token: OperatorToken) -> None:
        """`token` must be prepared for the config, here and before each `adopt`."""
        self._running = running
        self._token = token
        self.journal, self.changes, self._traces = running.journal, running.changes, running.traces
        folder = partial(state_folder, config.ops.store, os.environ)
        self._lag = LoopLag()
        self._log_levels = LogLevels(config, self.changes, running.clock)
        self._events = EventStream(self.journal, running.clock.now())
        self._history = HistoryApi(running.counters, running.clock)
        self._webhooks = Webhooks(config.ops.webhooks, _source(config), running.clock)
        self._alerts = self._new_alerts(config)
        self._controls = DeploymentApi(config, running.gateway, self.changes, running.clock, self._view)
        self._limits = LimitApi(config, running.gateway, self.changes, running.clock)
        self._degraded = DegradedApi(config, running, self.changes)
        self._chaos = ChaosApi(config, running, self.changes)
        self._restrictions = Restrictions(
            config, running, self._history, self._controls, self._limits, self._degraded, self._chaos
        )
        for overrides in (self._controls, self._limits):
            running.gateway.table.pool.observers.subscribe(overrides.apply_overrides)
        self._health = HealthApi(config, running, self._history, self._controls.holds.view)
        self._letters = DeadLetterApi(config, running.deferred, self.changes, running.clock)
        self._cache = CacheApi(
            config, running.cache, running.counters.models, lambda: running.gateway.cache_stage.flights, self.changes
        )
        self._probes = ProbeApi(running.prober, self.changes)
        self._engines = EngineApi(running.engines, self.changes, running.clock)
        self._clients = ClientApi(config, running, self.changes)
        self._replicas = ReplicaApi(running.fleet)
        lasting = Others(
            self._degraded.view, self._engines.views, self._probes.views, self._cache.view_if_used,
            self._letters.view_if_used, self._clients.views, self._replicas.view,
        )  # fmt: skip
        self.overview = Overview(
            config, running, self._history, self._health, self._controls.forces.forced, lambda: self._lag.max_s,
            lasting, self._restrictions,
        )  # fmt: skip
        self.metrics = Metrics(
            running, self._lag, self._health.states, self._alerts.counts, bound(SUBSYSTEM_METRICS, running)
        )
        self._metrics_export = MetricsExport(config.ops.metrics, self.metrics.all, running.clock)
        self._site = Router(self._groups(config, folder), self._guard(config), running.clock)
        self.roots = self._site.roots
        """First segments of the paths that belong to the admin API rather than to the proxy."""
        self._operator_state = OperatorState(
            self._alerts, self._controls, self._limits, self._degraded, running.engines, running.reloads, self.changes,
            running.gateway, running.clock,
        )  # fmt: skip
        self._shared_overrides = self._join(running.fleet)
        self._savers = self._new_savers(folder, config)
        self._watch = Monitor(
            [
                Transitions(running.gateway.deployments, self.journal).look,
                *self._site.looks,
                running.cache.look,
                *(saver.look for saver in self._savers),
            ],
            self._lag,
            running.clock,
        )

    async def serve(self, request: Request, reply: ResponseWriter) -> None:
        """Serves one request for an admin path."""
        await self._site.serve(request, reply)

    async def start(self) -> None:
        """Restores the operator state of an earlier process, so that it applies to the first call, and starts the
        tasks."""
        for saver in self._savers:
            await saver.recall()
        self._webhooks.start()
        self._watch.start()
        self._traces.start()
        self._metrics_export.start()

    def adopt(self, config: Config) -> None:
        """Applies the settings of a new config. If one of them cannot be applied, raises before it applies any."""
        guard = self._guard(config)
        self._traces.adopt(config.ops.traces)
        if guard.credentials != self._site.guard.credentials:
            self._events.drop_readers()  # readers with a valid token reconnect
        self._site.adopt(config, guard)
        self._metrics_export.adopt(config.ops.metrics)

    def follow(self, adopted: Adopted) -> None:
        """Publishes that the gateway runs with a new config."""
        config = adopted.config
        if (why := BY_ITSELF.get(adopted.by)) is not None:
            source = str(self._running.reloads.path)
            self.changes.note(adopted.by, "config.reload", source, why, detail_of(adopted))
        self.journal.note(
            "reload", outcome="ok", how=adopted.how, by=adopted.by, changes=len(adopted.changes),
            models=len(config.models), upstreams=len(config.upstreams),
        )  # fmt: skip
        if self._shared_overrides is not None and self._running.fleet is not None:
            self._controls.end_overruled()
            self._running.fleet.overrides.look_again(self._shared_overrides.follow())

    def end_readers(self) -> None:
        """Ends the event streams, so that a drain need not wait for their readers."""
        self._events.end()

    async def stop(self) -> None:
        self._watch.stop()
        await self._webhooks.stop()
        for saver in self._savers:
            await saver.close()
        self._site.close()
        await self._traces.stop()
        await self._metrics_export.stop()
        await self.changes.stop()

    def _new_alerts(self, config: Config) -> Alerts:
        running, rules = self._running, config.ops.alerts
        lag, reload = lambda: self._lag.latest_s, lambda: not running.reloads.problems
        engines = EngineSignals(
            self.journal, lambda: {report.name: report.now.problem for report in running.engines.seen()}
        )
        signals = AlertSignals(
            rules, running.gateway, running.counters, engines, lag, reload, running.file_problems,
            running.credential_problems,
        )  # fmt: skip
        self._causes = AlertCauses(config, running.gateway, running.clock, engines.concerned)
        sharing = NotShared() if running.fleet is None else running.fleet.notices
        return Alerts(rules, signals, self._causes, self._webhooks, sharing, self.journal, running.clock)

    def _join(self, fleet: FleetMember | None) -> SharedOverrides | None:
        """Connects the overrides and the alerts to those of the other gateways."""
        if fleet is None:
            return None
        from llm_guard.admin.persistence.shared_overrides import SharedOverrides  # noqa: PLC0415  # only with a fleet

        shared = SharedOverrides(
            self._operator_state, fleet.overrides.note_changed, self.changes, self._running.clock
        )  # fmt: skip
        fleet.overrides.connect(shared)
        fleet.notices.connect(self._alerts.notice_states)
        self.changes.subscribe(shared.note_change)
        return shared

    def _new_savers(self, folder: Callable[[], Path], config: Config) -> tuple[StateSaver[Any], ...]:
        """Returns none if `server.port` is 0: the port changes with each start, and names the files."""
        server, running = config.server, self._running
        if server.port == 0:
            return ()
        name = file_name(server.host, server.port, running.worker)
        history, clock = self._history, running.clock
        return (
            StateSaver(
                "operator state", SavedState, SnapshotFile(folder, name), self._operator_state.snapshot,
                self._operator_state.restore, clock,
            ),
            StateSaver(
                "history", SavedHistory, SnapshotFile(folder, f"history-{name}"), history.snapshot,
                history.restore, clock, interval_s=_HISTORY_SAVED_EACH_S, loss="the last minutes of the history",
            ),
        )  # fmt: skip

    def _view(self, label: str) -> DeploymentView | None:
        return self.overview.deployment(label)

    def _guard(self, config: Config) -> Authenticator:
        generated = self._token.generated
        credentials = credentials_of(config.ops, None if generated is None else generated.token)
        return Authenticator(config.ops, credentials, (config.server.host, config.ops.host))

    def _groups(self, config: Config, folder: Callable[[], Path]) -> tuple[EndpointGroup, ...]:
        """Returns all endpoints except those that describe them, in the order of the description. A new endpoint needs
        its class and a line here."""
        running, changes, clock = self._running, self.changes, self._running.clock
        return (
            self._health,
            self.metrics,
            self.overview,
            self._history,
            self._events,
            CallApi(config, running.gateway, clock),
            ExplainApi(running.gateway, self._restrictions, clock),
            RouteApi(running.gateway, running.reloads, clock),
            self._log_levels,
            AlertApi(self._alerts, self._webhooks, changes, clock),
            self._controls,
            self._limits,
            IncidentApi(config, running.gateway, self._restrictions, self._alerts, self._causes, self._history, clock),
            RestrictionApi(self._restrictions, self._controls, running.gateway, changes, clock),
            self._degraded,
            self._chaos,
            self._probes,
            self._engines,
            AdmissionApi(running.gateway, running.engines, changes, clock),
            self._letters,
            self._cache,
            self._clients,
            self._replicas,
            ConfigApi(running.reloads, changes),
            changes,
            Dashboard(),
            LoginApi(lambda: self._site.guard, UsedCodes(folder), clock),
        )


def _source(config: Config) -> str:
    """Returns the sender of notices: a receiver must not see another one when another gateway of a fleet sends."""
    return socket.gethostname() if config.fleet is None else f"fleet {config.fleet.name}"
