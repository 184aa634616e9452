"""The composition root: builds every object once; starts, reloads, drains and stops the process."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
from functools import partial
from pathlib import Path
from random import Random

import structlog

from llm_guard.admin.audit.changes import Changes
from llm_guard.admin.audit.writer import AuditWriter
from llm_guard.admin.context import AdminContext
from llm_guard.admin.control_plane import ControlPlane
from llm_guard.admin.events.event_log import EventLog
from llm_guard.admin.events.state_changes import StateChanges
from llm_guard.admin.http.operator_token import OperatorToken
from llm_guard.admin.tracing.exporter import Traces
from llm_guard.assembly import (
    WorkerRole,
    addresses_of,
    breaker_type,
    callers_type,
    fleet_names,
    gate_type,
    new_cache_store,
    new_call_store,
    new_member,
    new_owners_store,
    refuse_evicting_store,
    sealing_of,
)
from llm_guard.clock import Clock, SystemClock
from llm_guard.config import Config, KeyPath
from llm_guard.config_files import SERVER, ConfigFiles
from llm_guard.config_reloader import AdaptConfig, Adopted, ConfigReloader
from llm_guard.deferred.intake import CallIntake
from llm_guard.deferred.service import DeferredService
from llm_guard.deferred.state import DeferredState
from llm_guard.proxy.attempts.fault_injection import FaultInjector
from llm_guard.proxy.attempts.upstream_attempt import Upstreams
from llm_guard.proxy.cache.response_cache import ResponseCache
from llm_guard.proxy.client_keys.object_ownership import OwnedObjects
from llm_guard.proxy.client_keys.screening import Screening
from llm_guard.proxy.degraded_mode import DegradedMode
from llm_guard.proxy.handler import Handler
from llm_guard.proxy.http_client.connection_pool import ConnectionPool
from llm_guard.proxy.http_server.binding import TcpAddress, address_of, bound, listen, listener_settings
from llm_guard.proxy.http_server.connection import Listener, Mounts, Serve
from llm_guard.proxy.http_server.tls_handshake import TlsHandshake
from llm_guard.proxy.settings import ProxySettings
from llm_guard.proxy.telemetry.recorder import CallCounters, Recorder
from llm_guard.routing.route_table import RouteTable, compile_routes
from llm_guard.storage.audit_log import AuditFile
from llm_guard.storage.calls.bodies import Bodies
from llm_guard.storage.state_dir import state_folder
from llm_guard.upstreams.credentials.registry import UpstreamCredentials
from llm_guard.upstreams.engines.registry import Engines
from llm_guard.upstreams.probes.probe import new_probe
from llm_guard.upstreams.probes.prober import Prober
from llm_guard.webhooks.client import WebhookClient
from llm_guard.worker_thread import WorkerThread

_log = structlog.get_logger("llm_guard.app")

_LAST_WORDS_S = 2.0
"""Seconds for calls that are ended by force to send their error event."""
_CLOSING_S = 2.0
_TOKEN_S = 5.0
"""The longest that the start waits for the file with the operator's token."""


class App:
    """One gateway process. Call `start`, then `stop`; or `handle_signals` and `run`."""

    def __init__(
        self,
        config: Config,
        *,
        path: Path | None = None,
        adapt: AdaptConfig = lambda config: config,
        clock: Clock | None = None,
        worker: WorkerRole | None = None,
    ) -> None:
        """`path` is the config's file, watched for changes, or None. `adapt` applies the command line's overrides each
        time the file is read. `worker`: this process is one of several, whose parent watches the file."""
        self.config = adapt(config)
        self._adapt = adapt
        self._path = path
        self._clock = clock or SystemClock()
        self._worker = worker
        self._listeners: list[tuple[asyncio.Server, Listener]] = []
        self._watch: asyncio.Task[None] | None = None
        self.operator_token = OperatorToken()
        self._is_told_to_stop = asyncio.Event()
        self._is_told_to_hurry = asyncio.Event()

    async def start(self) -> None:
        """Starts the gateway; it accepts connections when this returns. Raises OSError if an address is not available,
        and ConfigError if a file or a store that the config names cannot be used."""
        await self.operator_token.prepare_within(_TOKEN_S, self.config.ops, self._clock)
        self._connections = ConnectionPool()
        self.files = ConfigFiles(self._clock, self._use_tls)
        await WorkerThread("files").run(self.files.prepare, self.config, self._path)
        random = Random()  # noqa: S311  # jitter and request ids, no secrets
        self._draw = random.random
        self.credentials = UpstreamCredentials(self._connections, self._clock, self._draw)
        self._new_breaker = breaker_type(self.config, self._worker)
        self._new_gate = gate_type(self.config, self._worker)
        generated = self.operator_token.generated
        names = fleet_names(self.config, self._worker, None if generated is None else generated.token)
        self._new_callers = callers_type(names)
        table = self._compiled(self.config, None)
        counters = CallCounters()
        faults = FaultInjector(self._clock, Random().random)  # noqa: S311  # draws of its own: calls' stay as they are
        self.upstreams = Upstreams(self._connections, faults, self._clock)
        self.upstreams.memory.limit_bytes = self.config.server.max_buffered
        folder = partial(state_folder, self.config.ops.store, os.environ)
        self._sealing = sealing_of(self.config)
        self.journal = EventLog(self._clock)
        changes = Changes(AuditWriter(AuditFile(folder), self._clock), self.journal, self._clock)
        events = StateChanges(changes, self.journal)
        traces = Traces(self.config.ops.traces, self._clock)
        self.cache = ResponseCache(
            new_cache_store(folder, self.config, lambda: self._sealing, self._clock), self._clock
        )
        owners = OwnedObjects(new_owners_store(folder, self.config, self._clock), self._clock)
        self.screening = Screening(owners, self._clock)
        self._kept = new_call_store(folder, self.config, self._worker, self._sealing, self._clock)
        deferred_state = DeferredState(self._kept, self.journal.note, self._clock)
        intake = CallIntake(self.config, deferred_state, self._clock, self._draw)
        self.gateway = Handler(
            self.config,
            table,
            self.upstreams,
            Recorder(counters, traces, self._clock),
            DegradedMode(counters.models, self._clock, events.note_mode),
            self.cache,
            intake,
            self.screening,
            traces,
            self._clock,
            random,
        )
        self._webhook_client = WebhookClient()
        self.deferred = DeferredService(
            self.config, deferred_state, intake, self.gateway, self._webhook_client.post, self._clock, self._draw
        )
        self.prober = Prober(
            lambda subject: new_probe(subject, self._connections),
            self.gateway.deployments,
            table.pool.down,
            self.gateway.end_hints,
            events.note_probe,
            self._clock,
            self._draw,
        )
        self.engines = Engines(self.prober, self._clock, self._draw, events.note_engine)
        self.reloads = ConfigReloader(
            self.config, self._path, self._prepared, self._adopt, self._refuse, self._clock,
            None if self._worker is None else self._worker.agreement,
        )  # fmt: skip
        self.fleet = new_member(
            self.config, self._worker, names, self.gateway, counters, lambda: self.reloads.current.digest, self._clock
        )
        running = AdminContext(
            self.gateway, self.reloads, counters, lambda: [listener for _, listener in self._listeners], self._clock,
            self._connections.dials, self.prober, self.deferred, self.engines, self.cache, self.journal, changes,
            traces, faults, self.files.problems, self.fleet, self.credentials.problems,
            0 if self._worker is None else self._worker.number,
        )  # fmt: skip
        self.ops = ControlPlane(self.config, running, self.operator_token)

        calls_at, ops_at = addresses_of(self.config, self._worker)
        try:
            await refuse_evicting_store(self.config, self._path)
            serve = self.gateway.serve
            shared = Mounts(serve, self.ops.serve, self.ops.roots).serve
            await self._listen(shared if ops_at is None else serve, calls_at)
            if ops_at is not None:
                await self._listen(self.ops.serve, ops_at)
            self.files.adopt(self.config)
            self.credentials.adopt(table.upstreams)
            await self.ops.start()
            await self.screening.start(self.config)
            self.prober.adopt(self.config, table.upstreams)
            self.engines.adopt(self.config.engines)
            if self.fleet is not None:
                await self.fleet.start()
            for server, _ in self._listeners:
                await listen(server)
            self.deferred.start()
        except BaseException:
            await self._close()
            raise
        if self._path is not None and self._worker is None:
            self._watch = asyncio.get_running_loop().create_task(self.reloads.watch())

    @property
    def addresses(self) -> list[str]:
        """`http://HOST:PORT` or `https://HOST:PORT` of every listener, the one for calls first."""
        return [address_of(server, "https" if listener.has_tls else "http") for server, listener in self._listeners]

    def handle_signals(self) -> None:
        """Installs signal handlers: SIGTERM and SIGINT end `run`, a second one ends running calls, SIGHUP reloads."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.tell_to_stop)
        if self._path is not None:
            loop.add_signal_handler(signal.SIGHUP, self.reloads.ask)

    def tell_to_stop(self) -> None:
        """Ends `run`; called a second time, it ends the running calls."""
        if self._is_told_to_stop.is_set():
            self._is_told_to_hurry.set()
        self._is_told_to_stop.set()

    async def run(self) -> None:
        """Serves until a signal stops it, then drains."""
        await self._is_told_to_stop.wait()
        await self.stop()

    async def stop(self) -> None:
        """Drains and stops: reports not ready, closes the listener, waits for running calls, then ends those left."""
        self.gateway.is_leaving = True
        self.deferred.leave()
        self.gateway.own.status.end_streams()
        _log.info("draining", running=self.gateway.running)
        self.journal.note("drain", running=self.gateway.running)
        await self._sleep_or_hurry(self.config.server.drain_delay)
        for server, _ in self._listeners[:1]:
            server.close()
        self.gateway.is_closed = True
        drained = asyncio.ensure_future(self.gateway.wait_idle(self.config.server.drain))
        hurry = asyncio.ensure_future(self._is_told_to_hurry.wait())
        await asyncio.wait((drained, hurry), return_when=asyncio.FIRST_COMPLETED)
        drained.cancel()
        hurry.cancel()
        if self.gateway.running:
            _log.warning("drain timeout: ending the calls still running", running=self.gateway.running)
            self.gateway.end_running()
            await self.gateway.wait_idle(_LAST_WORDS_S)
        await self._close()
        _log.info("stopped")

    async def _close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self.ops.end_readers()
        for server, listener in self._listeners:
            server.close()
            await listener.close(_CLOSING_S)
        await self.engines.stop(self._is_told_to_hurry)
        await self.prober.stop()
        if self.fleet is not None:
            await self.fleet.stop()
        await self.deferred.stop()
        await self.files.stop()
        await self.credentials.stop()
        await self.cache.store.close()
        await self.screening.close()
        await self._webhook_client.close()
        await self.ops.stop()
        await self._connections.close()

    def _adopt(self, adopted: Adopted) -> None:
        """Switches to another config, or raises and changes nothing: all steps that may raise come first."""
        config = adopted.config
        settings = listener_settings(config)
        self.files.prepare(config, self._path)  # already done for a reload; a rollback may need other files
        sealing = sealing_of(config)
        serving = ProxySettings(config, self._compiled(config, self.gateway.table))
        self.ops.adopt(config)
        self.config = config
        for _, listener in self._listeners:
            listener.adopt(settings)
        self.upstreams.memory.limit_bytes = config.server.max_buffered
        self.files.adopt(config)
        self.credentials.adopt(serving.table.upstreams)
        self.gateway.adopt(serving)
        self.screening.adopt(config)
        self.prober.adopt(config, serving.table.upstreams)
        self.engines.adopt(config.engines)
        self.deferred.adopt(config)
        self.cache.store.limit(config.store.cache.size)
        self._sealing = sealing
        self._kept.adopt(Bodies(config.store.dead_letters.bodies, sealing))
        self.ops.follow(adopted)

    def _prepared(self, config: Config) -> Config:
        """Prepares a config that was read; called in the thread that reads it."""
        config = self._adapt(config)
        self.files.prepare(config, self._path)
        self.operator_token.prepare(config.ops)
        return config

    def _compiled(self, config: Config, previous: RouteTable | None) -> RouteTable:
        now, key_files = self._clock.now(), self.files.keys.pools
        return compile_routes(
            config, now, previous, self._draw, key_files, self._new_breaker, self._new_gate, self._new_callers
        )

    def _use_tls(self, key: KeyPath, context: ssl.SSLContext | None) -> None:
        """Uses a TLS context for all new connections."""
        if key == SERVER:
            self._listeners[0][1].use_tls(None if context is None else partial(TlsHandshake, context=context))
        elif context is not None:
            self._connections.trust(str(key[1]), context)

    def _refuse(self, problems: tuple[str, ...]) -> None:
        self.journal.note("reload", outcome="refused", reason=problems[0], problems=len(problems))

    async def _listen(self, serve: Serve, address: TcpAddress | Path) -> None:
        listener = Listener(serve, listener_settings(self.config), self._clock)
        self._listeners.append((await bound(listener, address), listener))

    async def _sleep_or_hurry(self, seconds: float) -> None:
        hurry = asyncio.ensure_future(self._is_told_to_hurry.wait())
        await asyncio.wait((hurry,), timeout=seconds)
        hurry.cancel()


def create_app(config: Config, *, path: Path | None = None, adapt: AdaptConfig = lambda config: config) -> App:
    """Returns a gateway for this config; `path` is watched for changes, and `adapt` applied to each config read."""
    return App(config, path=path, adapt=adapt)
