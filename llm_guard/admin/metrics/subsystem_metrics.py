"""Metrics of the response cache, degraded modes, engines, deferred calls and dead letters, and probes.

They are read at each scrape. `admin.metrics.call_metrics` has the cache results of calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from llm_guard.admin.metrics.exposition import Family, Histogram, Row
from llm_guard.deferred.counters import DeferredCounters
from llm_guard.proxy.cache.response_cache import ResponseCache
from llm_guard.proxy.degraded_mode import DegradedMode
from llm_guard.resilience.health.engine_state import EngineState
from llm_guard.upstreams.engines.registry import Engines
from llm_guard.upstreams.probes.prober import Prober

_UP = {"up": 1, "down": 0}


def probe_metrics(prober: Prober) -> tuple[Family | Histogram, ...]:
    """Returns the metrics. Without probes there are no samples."""

    def up(of_deployments: bool) -> Iterator[Row]:
        for view in prober.views():
            label = view.deployment if of_deployments else view.upstream
            if (view.deployment is not None) == of_deployments and label is not None and view.state in _UP:
                yield (label,), _UP[view.state]

    def last_ok() -> Iterator[Row]:
        for view in prober.views():
            if view.deployment is None and view.last_ok_wall is not None:
                yield (view.upstream,), view.last_ok_wall

    return (
        Family(
            "llm_guard_probes", "counter", "Probes of an upstream.", ("upstream", "kind", "outcome"),
            lambda: list(prober.counts.items()),
        ),
        Histogram(
            "llm_guard_probe_duration_seconds", "Duration of a probe that got a response.", "upstream",
            lambda: list(prober.durations.items()),
        ),
        Family(
            "llm_guard_upstream_up", "gauge", "1 if the probes of an upstream succeed, 0 if it is down.",
            ("upstream",), lambda: up(of_deployments=False),
        ),
        Family(
            "llm_guard_deployment_up", "gauge", "1 if the probes of a deployment succeed, 0 if it is down.",
            ("deployment",), lambda: up(of_deployments=True),
        ),
        Family(
            "llm_guard_upstream_last_ok_timestamp_seconds", "gauge", "Time of the last probe that succeeded.",
            ("upstream",), last_ok,
        ),
    )  # fmt: skip


def cache_metrics(cache: ResponseCache) -> tuple[Family, ...]:
    """Returns the metrics: entries and sizes by route, the others in total."""

    def entries() -> list[Row]:
        return [((route,), held.entries) for route, held in cache.snapshot().routes.items()]

    def sizes() -> list[Row]:
        return [((route,), held.bytes) for route, held in cache.snapshot().routes.items()]

    return (
        Family("llm_guard_cache_entries", "gauge", "Cached responses.", ("model",), entries),
        Family("llm_guard_cache_bytes", "gauge", "Size of the cached responses in bytes.", ("model",), sizes),
        Family(
            "llm_guard_cache_evictions",
            "counter",
            "Cached responses that were evicted to make room.",
            (),
            lambda: [((), cache.snapshot().evictions)],
        ),
        Family(
            "llm_guard_cache_store_failures",
            "counter",
            "Failed operations on the cache file, by reason.",
            ("reason",),
            lambda: [((reason,), count) for reason, count in cache.snapshot().failures.items()],
        ),
    )


def degraded_metrics(degraded: DegradedMode) -> tuple[Family, ...]:
    """Returns the metrics of models with degraded mode in their rules, and of the gateway."""

    def routes() -> Iterator[Row]:
        return (((alias,), int(mode.is_degraded)) for alias, mode in degraded.snapshot().routes.items())

    return (
        Family("llm_guard_degraded", "gauge", "1 while the model is in degraded mode.", ("model",), routes),
        Family(
            "llm_guard_degraded_gateway",
            "gauge",
            "1 while the gateway is in degraded mode: all models that have one are in it.",
            (),
            lambda: [((), int(degraded.snapshot().is_degraded))],
        ),
    )


_STATES: tuple[EngineState, ...] = get_args(EngineState)


def engine_metrics(engines: Engines) -> tuple[Family, ...]:
    """Returns the metrics. Without engines there are no samples."""
    return (
        Family(
            "llm_guard_engine_state", "gauge", "1 for the state an engine is in.", ("engine", "state"),
            lambda: [
                ((report.name, name), int(name == report.now.state)) for report in engines.seen() for name in _STATES
            ],
        ),
        Family(
            "llm_guard_engine_restarts", "counter", "Finished restarts of an engine.",
            ("engine", "outcome"),
            lambda: [
                ((report.name, outcome), count)
                for report in engines.seen()
                for outcome, count in (("ok", report.now.restarts_ok), ("failed", report.now.restarts_failed))
            ],
        ),
    )  # fmt: skip


def stored_call_metrics(counts: DeferredCounters) -> tuple[Family, ...]:
    """Returns the metrics. The stored calls are as of some seconds ago; if there never were any, there are no
    samples."""

    def kept() -> Iterator[Row]:
        if counts.found is not None:
            for key, count in counts.found.count.items():
                purpose, _, state = key.partition("/")
                yield (purpose, state), count

    def size() -> Iterator[Row]:
        if counts.found is not None and counts.found.count:
            yield (), counts.found.size

    return (
        Family(
            "llm_guard_stored_calls", "gauge", "Stored calls: dead letters and deferred calls.",
            ("purpose", "state"), kept,
        ),
        Family("llm_guard_stored_calls_bytes", "gauge", "Size of the stored calls on the disk in bytes.", (), size),
        Family(
            "llm_guard_dead_letters_lost", "counter", "Dead letters that could not be stored.",
            ("reason",), lambda: [((reason,), count) for reason, count in counts.lost.items()],
        ),
        Family(
            "llm_guard_deferred_executions", "counter", "Executions of stored calls.", ("purpose", "outcome"),
            lambda: list(counts.rounds.items()),
        ),
        Family(
            "llm_guard_completion_webhooks", "counter", "Webhook requests that report a finished deferred call.",
            ("webhook", "outcome"), lambda: list(counts.webhook_requests.items()),
        ),
    )  # fmt: skip
