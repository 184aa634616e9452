"""Metrics of calls and attempts: names, help texts and labels for what `proxy.telemetry.recorder` counts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from llm_guard.admin.metrics import declaration
from llm_guard.admin.metrics.declaration import DeclaredFamily
from llm_guard.admin.metrics.exposition import Row
from llm_guard.proxy.telemetry.recorder import CallCounters, Distribution

_Owners = Literal["models", "deployments", "clients"]
"""Attribute of the counters: counts by the first label."""


def _counter(owners: _Owners, name: str, text: str, *labels: str) -> DeclaredFamily[CallCounters]:
    """Declares a counter; `name` is also the attribute's."""

    def read(counters: CallCounters) -> list[Row]:
        return [
            ((label, key) if isinstance(key, str) else (label, *key), count)
            for label, counts in _of(counters, owners, name)
            for key, count in counts.items()
        ]

    return declaration.counter(name, text, labels, read)


def _histogram(owners: _Owners, name: str, text: str, *labels: str) -> DeclaredFamily[CallCounters]:
    """Declares a histogram; `name` is also the attribute's: a distribution, or one for each value of a second label."""

    def read(counters: CallCounters) -> Iterator[tuple[tuple[str, ...], Distribution]]:
        for label, found in _of(counters, owners, name):
            if isinstance(found, Distribution):
                yield (label,), found
            else:
                yield from (((label, key), distribution) for key, distribution in found.items())

    return declaration.histogram(name, text, labels, read)


def _of(counters: CallCounters, owners: _Owners, name: str) -> Iterator[tuple[str, Any]]:
    return ((label, getattr(owner, name)) for label, owner in getattr(counters, owners).items())


def _translations(counters: CallCounters) -> list[Row]:
    return [*counters.translations.items()]


def _translation_losses(counters: CallCounters) -> list[Row]:
    return [((name,), count) for name, count in counters.translation_losses.items()]


def _in_flight(counters: CallCounters) -> list[Row]:
    counts = counters.models.items()
    return [((label,), model.in_flight_calls) for label, model in counts if model.in_flight_calls is not None]


CALL_METRICS: tuple[DeclaredFamily[CallCounters], ...] = (
    _counter("models", "calls", "Calls by outcome.", "model", "outcome"),
    declaration.gauge("in_flight_calls", "Calls running now.", ("model",), _in_flight),
    _histogram(
        "models",
        "call_duration",
        "Duration of a call, to its last byte. Outcome: ok, failed, or refused by the gateway.",
        "model",
        "outcome",
    ),
    _histogram(
        "models",
        "time_to_first_token",
        "Time from the receipt of a call to the first useful event of its stream.",
        "model",
    ),
    _histogram(
        "models", "overhead", "Time of a call that was spent in the gateway: neither upstream nor in a wait.", "model"
    ),
    _counter("models", "refusals", "Calls that the gateway refused.", "model", "reason"),
    _counter("models", "cache", "Calls to models with a response cache, by cache result.", "model", "result"),
    _counter("models", "deferred_calls_accepted", "Calls answered with 202 and executed later.", "model"),
    _counter("models", "fallback_responses", "Failed calls that got a fallback response.", "model", "kind"),
    _counter("models", "dead_letters", "Failed calls that were stored as dead letters.", "model"),
    _histogram("deployments", "queue_wait", "Time that calls waited in the queue of a deployment.", "deployment"),
    _counter("deployments", "attempts", "Attempts by outcome: ok or the failure kind.", "deployment", "outcome"),
    _histogram(
        "deployments", "upstream_duration", "Duration of one attempt. Outcome: ok or failed.", "deployment", "outcome"
    ),
    _counter("deployments", "timeouts", "Attempts and calls that a timeout ended, by limit.", "deployment", "limit"),
    _counter("deployments", "retries", "Retries on the same deployment, by failure kind.", "deployment", "kind"),
    _histogram("deployments", "retry_delay", "Time that calls waited before a retry.", "deployment"),
    _counter("models", "fallbacks", "Fallbacks to this deployment.", "model", "deployment"),
    _counter(
        "models", "hedges", "Attempts in parallel with a slow one: won if they responded first.", "model", "outcome"
    ),
    _counter(
        "models",
        "stream_resumes",
        "Attempts to resume an interrupted stream, by resume mode and result (ok or the failure kind).",
        "model",
        "mode",
        "outcome",
    ),
    declaration.counter(
        "translations",
        "Attempts whose request and response were translated, by the client's dialect, the upstream's, and outcome.",
        ("from", "to", "outcome"),
        _translations,
    ),
    declaration.counter(
        "translation_losses",
        "Translated attempts that lost a field of the request, by its name.",
        ("field",),
        _translation_losses,
    ),
    _counter("models", "tokens", "Tokens as counted by the provider.", "model", "direction"),
    _counter("models", "wasted_tokens", "Output tokens that no client received, one per event.", "model"),
    _counter("clients", "client_calls", "Calls with a client key, by outcome.", "client", "outcome"),
    _counter(
        "clients",
        "client_tokens",
        "Tokens by client key: input, output, cached (of the input), wasted (output that the client did not get).",
        "client",
        "direction",
    ),
    _counter(
        "deployments",
        "malformed_events",
        "Events of streams that could not be read, and were passed on.",
        "deployment",
    ),
)
"""All of them, in the order of a call's life. Configured models, deployments and client keys have samples from the
start; those with a label such as outcome or kind have none for values that were never counted."""
