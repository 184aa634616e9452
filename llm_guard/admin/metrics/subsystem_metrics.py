"""Metrics of degraded modes, probes, engines, deferred calls and dead letters, the response cache, the limits of client
keys, and the fleet.

They are read at each scrape; a subsystem that is not in use has no samples. `admin.metrics.call_metrics` has the cache
results, calls and tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from llm_guard.admin.context import AdminContext
from llm_guard.admin.metrics.declaration import DeclaredFamily, counter, gauge, histogram, single
from llm_guard.admin.metrics.exposition import Row
from llm_guard.resilience.health.engine_state import EngineState

_UP = {"up": 1, "down": 0}
_ENGINE_STATES: tuple[EngineState, ...] = get_args(EngineState)


def _degraded_routes(running: AdminContext) -> Iterator[Row]:
    return (((alias,), int(mode.is_degraded)) for alias, mode in running.gateway.degraded.snapshot().routes.items())


def _upstreams_up(running: AdminContext) -> Iterator[Row]:
    for view in running.prober.views():
        if view.deployment is None and view.state in _UP:
            yield (view.upstream,), _UP[view.state]


def _deployments_up(running: AdminContext) -> Iterator[Row]:
    for view in running.prober.views():
        if view.deployment is not None and view.state in _UP:
            yield (view.deployment,), _UP[view.state]


def _last_ok(running: AdminContext) -> Iterator[Row]:
    for view in running.prober.views():
        if view.deployment is None and view.last_ok_wall is not None:
            yield (view.upstream,), view.last_ok_wall


def _engine_states(running: AdminContext) -> list[Row]:
    reports = running.engines.seen()
    return [((report.name, name), int(name == report.now.state)) for report in reports for name in _ENGINE_STATES]


def _engine_restarts(running: AdminContext) -> Iterator[Row]:
    for report in running.engines.seen():
        yield (report.name, "ok"), report.now.restarts_ok
        yield (report.name, "failed"), report.now.restarts_failed


def _engine_seconds(running: AdminContext) -> Iterator[Row]:
    for report in running.engines.seen():
        uptime = report.now.uptime
        yield (report.name, "running"), uptime.running_s
        yield (report.name, "wanted"), uptime.wanted_s
        yield (report.name, "starting"), uptime.starting_s


def _stored_calls(running: AdminContext) -> Iterator[Row]:
    """Yields the stored calls as of some seconds ago; nothing if there never were any."""
    if (found := running.deferred.counts.found) is not None:
        for key, count in found.count.items():
            purpose, _, state = key.partition("/")
            yield (purpose, state), count


def _stored_bytes(running: AdminContext) -> list[Row]:
    found = running.deferred.counts.found
    return [((), found.size)] if found is not None and found.count else []


def _active_faults(running: AdminContext) -> list[Row]:
    """Returns nothing if there never was a fault."""
    return [((), len(running.faults.faults))] if running.faults.faults or running.faults.counts else []


def _limits_left(running: AdminContext) -> list[Row]:
    now, wall = running.clock.now(), running.clock.wall()
    return [
        ((name, limit.limit), limit.left)
        for name, limits in running.gateway.quotas.by_name.items()
        for limit in limits.left(now, wall)
    ]


def _fleet_paces(running: AdminContext) -> Iterator[Row]:
    if (fleet := running.fleet) is not None:
        yield ("shared",), fleet.paces.followed
        yield ("decided",), fleet.paces.kept


def _fleet_exchanges(running: AdminContext) -> Iterator[Row]:
    if (fleet := running.fleet) is not None:
        yield ("ok",), fleet.exchanges
        for reason, count in fleet.failures.items():
            yield (reason,), count


SUBSYSTEM_METRICS: tuple[DeclaredFamily[AdminContext], ...] = (
    gauge("degraded", "1 while the model is in degraded mode.", ("model",), _degraded_routes),
    gauge(
        "degraded_gateway", "1 while the gateway is in degraded mode: all models that have one are in it.", (),
        single(lambda running: int(running.gateway.degraded.snapshot().is_degraded)),
    ),
    counter(
        "probes", "Probes of an upstream.", ("upstream", "kind", "outcome"),
        lambda running: list(running.prober.counts.items()),
    ),
    histogram(
        "probe_duration", "Duration of a probe that got a response.", ("upstream",),
        lambda running: [((upstream,), found) for upstream, found in running.prober.durations.items()],
    ),
    gauge("upstream_up", "1 if the probes of an upstream succeed, 0 if it is down.", ("upstream",), _upstreams_up),
    gauge(
        "deployment_up", "1 if the probes of a deployment succeed, 0 if it is down.", ("deployment",), _deployments_up
    ),
    gauge("upstream_last_ok_timestamp_seconds", "Time of the last probe that succeeded.", ("upstream",), _last_ok),
    gauge("engine_state", "1 for the state an engine is in.", ("engine", "state"), _engine_states),
    counter("engine_restarts", "Finished restarts of an engine.", ("engine", "outcome"), _engine_restarts),
    counter(
        "engine_state_seconds", "Time in which an engine ran, was meant to run (wanted), or was starting.",
        ("engine", "state"), _engine_seconds,
    ),
    gauge("stored_calls", "Stored calls: dead letters and deferred calls.", ("purpose", "state"), _stored_calls),
    gauge("stored_calls_bytes", "Size of the stored calls on the disk in bytes.", (), _stored_bytes),
    counter(
        "dead_letters_lost", "Dead letters that could not be stored.", ("reason",),
        lambda running: [((reason,), count) for reason, count in running.deferred.counts.lost.items()],
    ),
    counter(
        "deferred_executions", "Executions of stored calls.", ("purpose", "outcome"),
        lambda running: list(running.deferred.counts.rounds.items()),
    ),
    counter(
        "completion_webhooks", "Webhook requests that report a finished deferred call.", ("webhook", "outcome"),
        lambda running: list(running.deferred.counts.webhook_requests.items()),
    ),
    gauge(
        "cache_entries", "Cached responses.", ("model",),
        lambda running: [((route,), held.entries) for route, held in running.cache.snapshot().routes.items()],
    ),
    gauge(
        "cache_bytes", "Size of the cached responses in bytes.", ("model",),
        lambda running: [((route,), held.bytes) for route, held in running.cache.snapshot().routes.items()],
    ),
    counter(
        "cache_evictions", "Cached responses that were evicted to make room.", (),
        single(lambda running: running.cache.snapshot().evictions),
    ),
    counter(
        "cache_store_failures", "Failed operations on the cache file, by reason.", ("reason",),
        lambda running: [((reason,), count) for reason, count in running.cache.snapshot().failures.items()],
    ),
    counter(
        "client_refusals", "Calls refused by a client key's limit.", ("client", "limit"),
        lambda running: list(running.gateway.quotas.refusals.items()),
    ),
    gauge(
        "client_limit_remaining", "Remaining amount of a client key's limit.", ("client", "limit"), _limits_left
    ),
    counter(
        "injected_faults", "Attempts that a fault of an operator has struck (/admin/chaos).", ("deployment", "fault"),
        lambda running: list(running.faults.counts.items()),
    ),
    gauge("injected_faults_active", "Faults that operators inject now (/admin/chaos).", (), _active_faults),
    gauge(
        "fleet_replicas", "Gateways of the fleet that are seen in its store, this one included.", (),
        lambda running: [] if running.fleet is None else [((), len(running.fleet.others) + 1)],
    ),
    gauge(
        "fleet_store_up", "1 while the store of the fleet answers.", (),
        lambda running: [] if running.fleet is None else [((), int(running.fleet.is_connected))],
    ),
    gauge(
        "fleet_paces", "Paces of calls that providers limit: those that are shared, and those decided here.",
        ("role",), _fleet_paces,
    ),
    counter(
        "fleet_exchanges", "Exchanges with the store of the fleet, by outcome: ok, or the kind of error.",
        ("outcome",), _fleet_exchanges,
    ),
    counter(
        "fleet_unreadable", "Contents and overrides of other gateways that could not be read.", (),
        lambda running: [] if running.fleet is None else [((), running.fleet.unreadable)],
    ),
)  # fmt: skip
"""All of them, in the order of the page."""
