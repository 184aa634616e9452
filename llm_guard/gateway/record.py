"""The end that always runs: permits given back, metrics, one log line for each call.

Owns what a call leaves behind. Decides nothing, and never fails a call. No label is a caller's to choose: an unknown
model is `other`, a name under a pattern is the pattern.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from llm_guard.call import Attempt, Call
from llm_guard.clock import Clock
from llm_guard.outcome import Signal
from llm_guard.policy.breaker import Permit, Transition

_log = structlog.get_logger("llm_guard")

_Metric = TypeVar("_Metric", Counter, Gauge, Histogram)

_DURATION_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)
_FIRST_TOKEN_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_DELAY_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_OVERHEAD_S = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 1)


def settle(attempt: Attempt, permit: Permit, signal: Signal, clock: Clock) -> None:
    """Ends an attempt: gives its permit back with what it showed. For each permit the first call counts."""
    deployment = attempt.target.deployment
    now = clock.now()
    attempt.ended_at = now
    if signal is Signal.HEALTHY:
        deployment.last_success_wall = clock.wall()
    _note(deployment.breaker.settle(permit, signal, now), deployment=deployment.label)


def settle_host(attempt: Attempt, permit: Permit, signal: Signal, clock: Clock) -> None:
    """Gives the permit of an attempt's host back with what the attempt showed of it."""
    deployment = attempt.target.deployment
    _note(deployment.host.settle(permit, signal, clock.now()), upstream=deployment.upstream.name)


def _note(transition: Transition | None, **whose: str) -> None:
    if transition is not None:
        _log.warning("breaker", **whose, before=transition.before, after=transition.after, why=transition.why)


class Recorder:
    """The gateway's metrics (names: the product's public surface) and its log line."""

    def __init__(self, registry: CollectorRegistry, clock: Clock) -> None:
        self._clock = clock
        self._calls = _counter(registry, "calls", "Client calls by how they ended.", "model", "outcome")
        self._attempts = _counter(
            registry, "attempts", "Upstream exchanges: ok or the failure kind.", "deployment", "outcome"
        )
        self._retries = _counter(
            registry, "retries", "Repeats on the same deployment, by what failed.", "deployment", "kind"
        )
        self._fallbacks = _counter(registry, "fallbacks", "Calls moved on to this deployment.", "model", "deployment")
        self._refusals = _counter(registry, "refusals", "Calls answered by the gateway itself.", "model", "by")
        self._timeouts = _counter(registry, "timeouts", "Limits exceeded.", "deployment", "limit")
        self._tokens = _counter(registry, "tokens", "Tokens as counted by the provider.", "model", "direction")
        self._duration = _histogram(registry, "call_duration", "A call, to its last byte.", "model", _DURATION_S)
        self._first_token = _histogram(
            registry, "time_to_first_token", "Streams: from receipt to the first useful event.", "model", _FIRST_TOKEN_S
        )
        self._upstream = _histogram(registry, "upstream_duration", "One exchange.", "deployment", _DURATION_S)
        self._overhead = _histogram(
            registry, "overhead", "A call's time that was neither upstream nor backoff.", "model", _OVERHEAD_S
        )
        self._delay = _histogram(registry, "retry_delay", "Waits before retries.", "deployment", _DELAY_S)
        self._in_flight = _memoised(
            Gauge("llm_guard_in_flight_calls", "Calls running now.", ["model"], registry=registry)
        )

    def begin(self, call: Call) -> None:
        """The call has a route."""
        call.is_in_flight = True
        self._in_flight(_model(call)).inc()

    def end(self, call: Call) -> None:
        """The call is over, however it ended."""
        now = self._clock.now()
        if call.is_in_flight:  # a refused call may have a route, and never began
            call.is_in_flight = False
            self._in_flight(_model(call)).dec()
        self._count(call, now)
        _log.info("call", **_line(call, now))

    def _count(self, call: Call, now: float) -> None:
        model = _model(call)
        duration_s = now - call.started_at
        self._calls(model, call.outcome).inc()
        if call.refusal is not None and call.refusal.by is not None:
            self._refusals(model, call.refusal.by).inc()
        self._count_attempts(call, model, now)
        if call.usage.input:
            self._tokens(model, "input").inc(call.usage.input)
        if call.usage.output:
            self._tokens(model, "output").inc(call.usage.output)
        self._duration(model).observe(duration_s)
        if call.first_token_at is not None:
            self._first_token(model).observe(call.first_token_at - call.started_at)
        if call.attempts:
            self._overhead(model).observe(overhead_s(call, now))

    def _count_attempts(self, call: Call, model: str, now: float) -> None:
        before: Attempt | None = None
        for attempt in call.attempts:
            deployment = attempt.target.deployment.label
            self._attempts(deployment, attempt.outcome).inc()
            self._upstream(deployment).observe((attempt.ended_at or now) - attempt.started_at)
            if attempt.failure is not None and attempt.failure.limit is not None:
                self._timeouts(deployment, attempt.failure.limit).inc()
            if before is not None and before.target is attempt.target:
                self._retries(deployment, before.outcome).inc()
                self._delay(deployment).observe(attempt.waited_s)
            elif call.route is not None and attempt.target is not call.route.targets[0]:
                self._fallbacks(model, deployment).inc()
            before = attempt


def overhead_s(call: Call, now: float) -> float:
    """The call's time less its exchanges and its waits: what the gateway itself, and the client's reading, took."""
    elsewhere = sum((attempt.ended_at or now) - attempt.started_at + attempt.waited_s for attempt in call.attempts)
    return max(0.0, now - call.started_at - elsewhere)


def _model(call: Call) -> str:
    return call.route.alias if call.route is not None else "other"


def _line(call: Call, now: float) -> dict[str, Any]:
    """The log line: facts, never a prompt, never a key."""
    line: dict[str, Any] = {
        "request_id": call.id,
        "method": call.method,
        "path": call.path,
        "model": call.model,
        "route": call.route.alias if call.route else None,
        "outcome": call.outcome,
        "status": call.sent_status,
        "stream": call.is_stream,
        "duration_s": round(now - call.started_at, 4),
        "overhead_s": round(overhead_s(call, now), 6),
        "attempts": [_attempt_line(attempt, now) for attempt in call.attempts],
    }
    if call.first_token_at is not None:
        line["ttft_s"] = round(call.first_token_at - call.started_at, 4)
    if call.skipped:
        line["skipped"] = call.skipped
    if call.client_key is not None:
        line["client"] = call.client_key
    if call.refusal is not None:
        line["refused_by"] = call.refusal.by
        line["why"] = call.refusal.message
    elif call.failure is not None:
        line["why"] = call.failure.detail
        line["gave_up"] = call.gave_up
    return line


def _attempt_line(attempt: Attempt, now: float) -> dict[str, Any]:
    line: dict[str, Any] = {
        "deployment": attempt.target.deployment.label,
        "outcome": attempt.outcome,
        "waited_s": round(attempt.waited_s, 4),
        "duration_s": round((attempt.ended_at or now) - attempt.started_at, 4),
    }
    if attempt.failure is not None:
        line["why"] = attempt.failure.detail
    return line


def _counter(registry: CollectorRegistry, name: str, text: str, *labels: str) -> Callable[..., Counter]:
    return _memoised(Counter(f"llm_guard_{name}", text, labels, registry=registry))


def _histogram(
    registry: CollectorRegistry, name: str, text: str, label: str, buckets: tuple[float, ...]
) -> Callable[..., Histogram]:
    return _memoised(Histogram(f"llm_guard_{name}_seconds", text, [label], registry=registry, buckets=buckets))


def _memoised(metric: _Metric) -> Callable[..., _Metric]:
    """The metric's children by their label values: `labels()` takes a lock and builds a key at every use."""
    children: dict[tuple[str, ...], _Metric] = {}

    def child(*values: str) -> _Metric:
        found = children.get(values)
        if found is None:
            found = children[values] = metric.labels(*values)
        return found

    return child
