"""Builds the parts of the admin API and their endpoints, and runs their life cycle: start, reload, stop."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from llm_guard.config import Config
from llm_guard.deployment import Deployment
from llm_guard.gateway.reply import Reply
from llm_guard.gateway.request import Request
from llm_guard.ops.admission import Admissions
from llm_guard.ops.alert_pages import AlertPages
from llm_guard.ops.alert_signals import Signals
from llm_guard.ops.alerts import Alerts
from llm_guard.ops.cache_metrics import cache_metrics
from llm_guard.ops.cache_pages import CachePages
from llm_guard.ops.calls import CallPages
from llm_guard.ops.changes import Changes
from llm_guard.ops.client_pages import ClientPages
from llm_guard.ops.config_pages import ConfigPages, detail_of
from llm_guard.ops.controls import Controls
from llm_guard.ops.credentials import credentials_of
from llm_guard.ops.dashboard import Dashboard
from llm_guard.ops.degraded_metrics import degraded_metrics
from llm_guard.ops.degraded_pages import DegradedPages
from llm_guard.ops.engine_metrics import engine_metrics
from llm_guard.ops.engine_pages import EnginePages
from llm_guard.ops.events import Events
from llm_guard.ops.foresight import Foresight
from llm_guard.ops.guard import Guard
from llm_guard.ops.health import Health
from llm_guard.ops.history import History
from llm_guard.ops.journal import Journal
from llm_guard.ops.keeping import Keeping
from llm_guard.ops.kept import Known
from llm_guard.ops.kept_metrics import kept_metrics
from llm_guard.ops.letter_pages import LetterPages
from llm_guard.ops.limits import LimitPages
from llm_guard.ops.log_levels import LogLevels
from llm_guard.ops.login_pages import LoginPages
from llm_guard.ops.metrics import Metrics
from llm_guard.ops.openapi import with_description
from llm_guard.ops.operator_token import OperatorToken
from llm_guard.ops.overview import Others, Overview
from llm_guard.ops.pages import TEXT, Answer, Asked, Page
from llm_guard.ops.probe_metrics import probe_metrics
from llm_guard.ops.probe_pages import ProbePages
from llm_guard.ops.restriction_pages import RestrictionPages
from llm_guard.ops.restrictions import Restrictions
from llm_guard.ops.running import Running
from llm_guard.ops.site import Site
from llm_guard.ops.traces import Traces
from llm_guard.ops.trail import Trail
from llm_guard.ops.transitions import Transitions
from llm_guard.ops.views import DeploymentView
from llm_guard.ops.watch import Watch
from llm_guard.ops.webhooks import Webhooks
from llm_guard.reloads import BY_ITSELF, Adopted
from llm_guard.store.audit import AuditFile
from llm_guard.store.folder import state_folder
from llm_guard.store.kept_file import KeptFile, file_name
from llm_guard.store.used_codes import UsedCodes


class OperatorSide:
    """Life cycle: `await start()` before the listeners accept; `adopt` at a reload; `await stop()`."""

    def __init__(self, config: Config, running: Running, token: OperatorToken) -> None:
        """`token` must be prepared for the config, here and before each `adopt`."""
        self._running = running
        self._token = token
        self.journal = Journal(running.clock)
        folder = partial(state_folder, config.ops.store, os.environ)
        self._trail = Trail(AuditFile(folder), running.clock)
        self.changes = Changes(self._trail, self.journal, running.clock)
        self._traces = Traces(config.ops.traces, running.gateway, running.clock)
        self._log_levels = LogLevels(config.ops.log, self.changes, running.clock)
        self._events = Events(self.journal, running.clock.now())
        self._transitions = Transitions(running.gateway.deployments, self.journal)
        self._history = History(running.counters, running.clock)
        self._webhooks = Webhooks(config.ops.webhooks, running.clock)
        self._alerts = self._new_alerts(config)
        looks = [
            self._transitions.look,
            self._history.look,
            self._events.look,
            self._log_levels.look,
            self._alerts.look,
            running.cache.look,
        ]
        self._controls = Controls(config, running.gateway, self.changes, running.clock, self._view)
        self._limits = LimitPages(config, running.gateway, self.changes, running.clock)
        self._degraded = DegradedPages(config, running, self.changes, self.journal)
        self._restrictions = Restrictions(config, running, self._history, self._controls, self._limits, self._degraded)
        running.gateway.table.pool.dress = self._dress
        self._keeping = self._new_keeping(folder, config)
        looks += [self._controls.look, self._limits.look, self._degraded.look, self._restrictions.look]
        looks += [self._keeping.look] if self._keeping else []
        self._watch = Watch(looks, running.clock)
        self._health = Health(config, running, self._history, self._controls.holds.view)
        self._letters = LetterPages(config, running.errands, self.changes, running.clock)
        self._cache = CachePages(
            config, running.cache, running.counters.models, lambda: running.gateway.first_resort.flights, self.changes
        )
        self._probes = ProbePages(running.prober, self.changes, self.journal)
        self._engines = EnginePages(running.engines, self.changes, self.journal, running.clock)
        self._clients = ClientPages(config, running, self.changes)
        lasting = Others(
            self._degraded.view, self._engines.views, self._probes.views, self._cache.view_if_used,
            self._letters.view_if_used, self._clients.views,
        )  # fmt: skip
        self.overview = Overview(
            config, running, self._history, self._health, self._controls.forces.forced, lambda: self._watch.max_lag_s,
            lasting,
        )  # fmt: skip
        others = (
            *degraded_metrics(running.gateway.degraded),
            *probe_metrics(running.prober),
            *engine_metrics(running.engines),
            *kept_metrics(running.errands.counts),
            *cache_metrics(running.cache),
            *self._clients.metrics(),
        )
        self._metrics = Metrics(running, self._watch, self._health.states, self._alerts.counts, others)
        self.state = self._metrics.state
        self._calls = CallPages(running.gateway, running.clock, config.ops.timelines)
        self._logins = LoginPages(lambda: self._site.guard, UsedCodes(folder), running.clock)
        self._site = Site(with_description(self._pages()), self._guard(config), running.clock)

    async def serve(self, request: Request, reply: Reply) -> None:
        """Serves one request for an admin path."""
        await self._site.serve(request, reply)

    async def start(self) -> None:
        """Restores the operator state of an earlier process, so that it applies to the first call, and starts the
        tasks."""
        if self._keeping is not None:
            await self._keeping.recall()
        self._webhooks.start()
        self._watch.start()
        self._traces.start()

    def adopt(self, config: Config) -> None:
        """Applies the settings of a new config. If one of them cannot be applied, raises before it applies any."""
        guard = self._guard(config)
        self._traces.adopt(config.ops.traces)
        if guard.credentials != self._site.guard.credentials:
            self._events.drop_readers()  # readers with a valid token reconnect
        self._site.guard = guard
        self._controls.adopt(config)
        self._limits.adopt(config)
        self._degraded.adopt(config)
        self._restrictions.adopt(config)
        self._calls.adopt(config.ops.timelines)
        self._letters.adopt(config)
        self._cache.adopt(config)
        self._clients.adopt(config)
        self._log_levels.adopt(config.ops.log)
        self._health.adopt(config)
        self.overview.adopt(config)
        self._alerts.adopt(config.ops.alerts)
        self._webhooks.adopt(config.ops.webhooks, self._alerts.told())

    def follow(self, adopted: Adopted) -> None:
        """Publishes that the gateway runs with a new config."""
        if adopted.how == "reload":
            self.state.is_last_reload_good = True
        config = adopted.config
        if (why := BY_ITSELF.get(adopted.by)) is not None:
            source = str(self._running.reloads.path)
            self.changes.note(adopted.by, "config.reload", source, why, detail_of(adopted))
        self.journal.note(
            "reload", outcome="ok", how=adopted.how, by=adopted.by, changes=len(adopted.changes),
            models=len(config.models), upstreams=len(config.upstreams),
        )  # fmt: skip

    def end_readers(self) -> None:
        """Ends the event streams, so that a drain need not wait for their readers."""
        self._events.end()

    async def stop(self) -> None:
        self._watch.stop()
        await self._webhooks.stop()
        if self._keeping is not None:
            await self._keeping.close()
        self._log_levels.close()
        self._logins.close()
        await self._traces.stop()
        await self._trail.close()

    def _new_alerts(self, config: Config) -> Alerts:
        running, rules = self._running, config.ops.alerts
        lag, reload = lambda: self._watch.lag_s, lambda: self.state.is_last_reload_good
        signals = Signals(rules, running.gateway, running.counters, self.journal, lag, reload, running.file_problems)
        return Alerts(rules, signals, self._webhooks, self.journal, running.clock)

    def _new_keeping(self, folder: Callable[[], Path], config: Config) -> Keeping | None:
        """Returns None if `server.port` is 0: the port changes with each start, and names the file of the state."""
        server, running = config.server, self._running
        if server.port == 0:
            return None
        known = Known(
            self._alerts, self._controls, self._limits, self._degraded, running.engines, running.reloads, self.changes,
            running.gateway, running.clock,
        )  # fmt: skip
        file = KeptFile(folder, file_name(server.host, server.port))
        return Keeping(file, known.gather, known.recall, running.clock)

    def _dress(self, deployment: Deployment) -> None:
        self._controls.dress(deployment)
        self._limits.dress(deployment)

    def _view(self, label: str) -> DeploymentView | None:
        return self.overview.deployment(label)

    def _guard(self, config: Config) -> Guard:
        generated = self._token.generated
        credentials = credentials_of(config.ops, None if generated is None else generated.token)
        return Guard(config.ops, credentials, (config.server.host, config.ops.host))

    def _pages(self) -> list[Page]:
        return [
            Page("GET", "/healthz", "Liveness: the event loop turns.", _alive, media=TEXT, is_open=True),
            *self._health.pages(),
            *self._metrics.pages(),
            *self.overview.pages(),
            *self._history.pages(),
            *self._events.pages(),
            *self._calls.pages(),
            *Foresight(self._running.gateway, self._running.clock).pages(),
            *self._log_levels.pages(),
            *AlertPages(self._alerts, self._webhooks, self.changes, self._running.clock).pages(),
            *self._controls.pages(),
            *self._limits.pages(),
            *RestrictionPages(
                self._restrictions, self._controls, self._running.gateway, self.changes, self._running.clock
            ).pages(),
            *self._degraded.pages(),
            *self._probes.pages(),
            *self._engines.pages(),
            *Admissions(self._running.gateway, self._running.engines, self.changes, self._running.clock).pages(),
            *self._letters.pages(),
            *self._cache.pages(),
            *self._clients.pages(),
            *ConfigPages(self._running.reloads, self.changes).pages(),
            *self.changes.pages(),
            *Dashboard().pages(),
            *self._logins.pages(),
        ]


async def _alive(_asked: Asked) -> Answer:
    return Answer(b"ok\n", TEXT)
