"""Metrics of calls and attempts: names, help texts and labels for what `proxy.telemetry.counters` counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from llm_guard.admin.metrics.exposition import Family, Histogram, Row
from llm_guard.proxy.telemetry.counters import CallCounters


def call_metrics(counters: CallCounters) -> tuple[Family | Histogram, ...]:
    """Returns the metrics, in the order of a call's life. Values never counted have no sample."""
    models, deployments, clients = counters.models, counters.deployments, counters.clients
    return (
        _counter(models, "calls", "Client calls by how they ended.", "model", "outcome"),
        Family(
            "llm_guard_in_flight_calls", "gauge", "Calls running now.", ("model",), lambda: list(_in_flight(counters))
        ),
        _histogram(models, "call_duration", "A call, to its last byte.", "model"),
        _histogram(models, "time_to_first_token", "Streams: from receipt to the first useful event.", "model"),
        _histogram(models, "overhead", "A call's time that was neither upstream nor backoff.", "model"),
        _counter(models, "refusals", "Calls that the gateway refused.", "model", "reason"),
        _counter(models, "cache", "Calls to models with a response cache, by cache result.", "model", "result"),
        _counter(models, "deferred_calls_accepted", "Calls answered with 202 and executed later.", "model"),
        _counter(models, "fallback_responses", "Failed calls that got a fallback response.", "model", "kind"),
        _counter(models, "dead_letters", "Failed calls that were stored as dead letters.", "model"),
        _histogram(deployments, "queue_wait", "Waits for a turn at a deployment.", "deployment"),
        _counter(deployments, "attempts", "Upstream exchanges: ok or the failure kind.", "deployment", "outcome"),
        _histogram(deployments, "upstream_duration", "One exchange.", "deployment"),
        _counter(deployments, "timeouts", "Limits exceeded.", "deployment", "limit"),
        _counter(deployments, "retries", "Repeats on the same deployment, by what failed.", "deployment", "kind"),
        _histogram(deployments, "retry_delay", "Waits before retries.", "deployment"),
        _counter(models, "fallbacks", "Calls moved on to this deployment.", "model", "deployment"),
        _counter(models, "hedges", "Hedged attempts; won: the hedge responded first.", "model", "outcome"),
        _counter(
            models,
            "stream_resumes",
            "Attempts to resume an interrupted stream, by resume mode and result (ok or the failure kind).",
            "model",
            "mode",
            "outcome",
        ),
        _counter(models, "tokens", "Tokens as counted by the provider.", "model", "direction"),
        _counter(models, "wasted_tokens", "Output tokens that no client received, one per event.", "model"),
        _counter(clients, "client_calls", "Calls with a client key by how they ended.", "client", "outcome"),
        _counter(
            clients,
            "client_tokens",
            "Tokens by client key: input, output, cached (of the input), wasted (output that the client did not get).",
            "client",
            "direction",
        ),
        _counter(
            deployments,
            "malformed_events",
            "Events of streams that could not be read, and were passed on.",
            "deployment",
        ),
    )


CountsByLabel = Mapping[str, object]


def _counter(owners: CountsByLabel, name: str, text: str, *labels: str) -> Family:
    """Returns a counter; `name` is also the attribute's."""

    def read() -> list[Row]:
        return [
            ((label, key) if isinstance(key, str) else (label, *key), count)
            for label, counts in _of(owners, name)
            for key, count in counts.items()
        ]

    return Family(f"llm_guard_{name}", "counter", text, labels, read)


def _histogram(owners: CountsByLabel, name: str, text: str, label: str) -> Histogram:
    return Histogram(f"llm_guard_{name}_seconds", text, label, partial(_of, owners, name))


def _of(owners: CountsByLabel, name: str) -> Iterator[tuple[str, Any]]:
    return ((label, getattr(owner, name)) for label, owner in owners.items())


def _in_flight(counters: CallCounters) -> Iterator[Row]:
    for label, counts in counters.models.items():
        if counts.in_flight_calls is not None:
            yield (label,), counts.in_flight_calls
