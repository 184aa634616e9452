"""The end that always runs: permits given back, metrics, one log line for each call.

Owns what a call leaves behind. Decides nothing, and never fails a call. No label is a caller's to choose: an unknown
model is `other`, a name under a pattern is the pattern.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from llm_guard.call import Attempt, Call, Leave
from llm_guard.clock import Clock
from llm_guard.outcome import FailureKind, Signal
from llm_guard.policy.breaker import Transition
from llm_guard.policy.gate import Gate
from llm_guard.policy.limiter import Ending

_log = structlog.get_logger("llm_guard")

_Metric = TypeVar("_Metric", Counter, Gauge, Histogram)

_CUT = frozenset({FailureKind.TIMEOUT, FailureKind.SUPERSEDED, FailureKind.CLIENT_CANCELLED})
"""Ends of exchanges that would have taken longer."""
_WORTH_HOLDING_S = 2.0
"""Shorter waits are the pace's to find: all that were told to wait a second would come back together."""
_OVERLOADS = frozenset({FailureKind.OVERLOADED, FailureKind.TIMEOUT, FailureKind.GPU_OOM})

_DURATION_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)
_FIRST_TOKEN_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_DELAY_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_OVERHEAD_S = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 1)


def settle(attempt: Attempt, leave: Leave, signal: Signal, clock: Clock) -> None:
    """Ends an attempt: gives back what it holds, and notes what it showed of its deployment. Only once."""
    if leave.is_over:
        return
    leave.is_over = True
    deployment = attempt.target.deployment
    now = attempt.ended_at = clock.now()
    if signal is Signal.HEALTHY:
        deployment.last_success_wall = clock.wall()
    settle_breaker(attempt, leave, signal, clock)
    _note_latency(attempt, signal, now)
    ending = _ending(attempt, signal)
    _note_recent(attempt, ending, now, is_begun=leave.is_begun)
    deployment.gates.in_flight -= 1
    leave.gate.exit(leave.slot, now, ending, _took_s(attempt) if ending == "ok" else None)
    if ending == "rate_limited":
        _hold(attempt, leave.gate, now)
    leave.advance(leave.gate)


def settle_begun(attempt: Attempt, leave: Leave, clock: Clock) -> None:
    """An answer that will last has begun well: its deployment serves. If it dies, `settle` takes that back."""
    settle_breaker(attempt, leave, Signal.HEALTHY, clock)
    _note_recent(attempt, "ok", clock.now(), is_begun=False)
    leave.is_begun = True


def settle_breaker(attempt: Attempt, leave: Leave, signal: Signal, clock: Clock) -> None:
    """Gives the breaker its permit back; where an answer that began well has died, the news."""
    deployment = attempt.target.deployment
    now = clock.now()
    if leave.is_begun and signal is Signal.UNHEALTHY:
        transition = deployment.breaker.take_back(leave.permit, now)
    else:
        transition = deployment.breaker.settle(leave.permit, signal, now, _took_s(attempt))
    if transition is not None and (transition.before, transition.after) == ("half_open", "closed"):
        deployment.gates.ramp(now, deployment.breaker.settings.slow_start)
    _note(transition, deployment=deployment.label)


def settle_host(attempt: Attempt, leave: Leave, signal: Signal, clock: Clock) -> None:
    """Gives the permit of an attempt's host back with what the attempt showed of it."""
    deployment = attempt.target.deployment
    _note(deployment.host.settle(leave.host, signal, clock.now()), upstream=deployment.upstream.name)


def _note_recent(attempt: Attempt, ending: Ending, now: float, *, is_begun: bool) -> None:
    for budget in attempt.budgets:
        if not is_begun and ending != "ignored":
            budget.recent.note(ending != "ok", now)
        elif is_begun and ending not in ("ok", "ignored"):
            budget.recent.take_back(now)


def _hold(attempt: Attempt, gate: Gate, now: float) -> None:
    """A wait that was asked for twice with no answer in between is not one large request's: everybody keeps it."""
    wait_s = attempt.failure.retry_after_s if attempt.failure is not None else None
    if wait_s is not None and wait_s >= _WORTH_HOLDING_S and gate.rate_limited_in_a_row >= 2:
        gate.hold(now + wait_s)


def _took_s(attempt: Attempt) -> float | None:
    """Until the first token or the whole answer was there; else to the failure, if the attempt has come to one."""
    ended_at = attempt.answered_at if attempt.answered_at is not None else attempt.ended_at
    return None if ended_at is None else ended_at - attempt.started_at


def _note_latency(attempt: Attempt, signal: Signal, now: float) -> None:
    deployment, took_s = attempt.target.deployment, _took_s(attempt)
    if attempt.target.model is None or took_s is None:
        return
    latency = deployment.latency_of(attempt.is_stream)
    if attempt.answered_at is not None:
        latency.note(took_s, now)
        deployment.cost.note(took_s, now)
    elif attempt.failure is not None and attempt.failure.kind in _CUT:
        latency.note_cut(took_s, now)
        deployment.cost.note_cut(took_s, now)
    elif signal is Signal.UNHEALTHY:
        deployment.cost.note_failure(took_s, now)


def _ending(attempt: Attempt, signal: Signal) -> Ending:
    """What an attempt's end tells of its deployment's capacity."""
    kind = attempt.failure.kind if attempt.failure is not None else None
    if signal is Signal.HEALTHY:
        return "ok"
    if kind is FailureKind.RATE_LIMIT:
        return "rate_limited"
    if signal is Signal.NO_EVIDENCE:
        return "ignored"
    return "overloaded" if kind in _OVERLOADS else "failed"


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
        self._hedges = _counter(
            registry, "hedges", "Attempts beside a slow one: won when they answered first.", "model", "outcome"
        )
        self._recoveries = _counter(
            registry,
            "recoveries",
            "Attempts that went on with a stream that had died: how they were asked, and ok or the failure kind.",
            "model",
            "manner",
            "outcome",
        )
        self._thrown_away = _counter(
            registry, "tokens_thrown_away", "Tokens of output that no client got, one per event.", "model"
        )
        self._malformed = _counter(
            registry, "malformed_events", "Events of streams that could not be read, and were passed on.", "deployment"
        )
        self._queued = _histogram(registry, "queue_wait", "Waits for a turn at a deployment.", "deployment", _DELAY_S)
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
        if thrown_away := call.thrown_away + sum(map(_never_passed_on, call.attempts)):
            self._thrown_away(model).inc(thrown_away)
        self._duration(model).observe(duration_s)
        if call.first_token_at is not None:
            self._first_token(model).observe(call.first_token_at - call.started_at)
        if call.attempts:
            self._overhead(model).observe(overhead_s(call, now))

    def _count_attempts(self, call: Call, model: str, now: float) -> None:
        for attempt in call.attempts:
            deployment = attempt.target.deployment.label
            self._attempts(deployment, attempt.outcome).inc()
            self._upstream(deployment).observe((attempt.ended_at or now) - attempt.started_at)
            if attempt.failure is not None and attempt.failure.limit is not None:
                self._timeouts(deployment, attempt.failure.limit).inc()
            if attempt.is_hedge:
                self._hedges(model, "lost" if attempt.failure is not None else "won").inc()
            elif attempt.is_retry:
                self._retries(deployment, _reason(call, attempt)).inc()
                if attempt.waited_for != "queue":
                    self._delay(deployment).observe(attempt.waited_s)
            elif attempt.is_fallback:
                self._fallbacks(model, deployment).inc()
            if attempt.waited_for == "queue":
                self._queued(deployment).observe(attempt.waited_s)
            if attempt.manner is not None:
                self._recoveries(model, attempt.manner, attempt.outcome).inc()
            if attempt.watch is not None and attempt.watch.garbled:
                self._malformed(deployment).inc(attempt.watch.garbled)


def _reason(call: Call, retry: Attempt) -> str:
    """How the attempt before on the same deployment ended."""
    before = call.attempts[: call.attempts.index(retry)]
    return next(each.outcome for each in reversed(before) if each.target is retry.target)


def _never_passed_on(attempt: Attempt) -> int:
    """Tokens of a stream that died while it was held back."""
    is_lost = attempt.failure is not None and attempt.answered_at is None and attempt.watch is not None
    return attempt.watch.tokens if is_lost and attempt.watch is not None else 0


def overhead_s(call: Call, now: float) -> float:
    """The call's time less its exchanges and its waits: what the gateway itself, and the client's reading, took."""
    elsewhere_s, until = 0.0, call.started_at
    for attempt in call.attempts:  # a hedge runs beside another: what both took counts once
        ended_at = attempt.ended_at or now
        elsewhere_s += max(0.0, ended_at - max(until, attempt.started_at - attempt.waited_s))
        until = max(until, ended_at)
    return max(0.0, now - call.started_at - elsewhere_s)


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
        line["skipped"] = [{"deployment": each.deployment, "why": each.why} for each in call.skipped]
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
    if attempt.waited_for:
        line["waited_for"] = attempt.waited_for
    if attempt.breaker != "closed":
        line["breaker"] = attempt.breaker
    if attempt.is_hedge:
        line["hedge"] = True
    if attempt.manner is not None:
        line["resumed_by"] = attempt.manner
    if attempt.failure is not None:
        line["why"] = attempt.failure.detail
    if attempt.next_step:
        line["then"] = attempt.next_step
        line["budget_left"] = attempt.budget_left
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
