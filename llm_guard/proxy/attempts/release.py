"""Ends an attempt: releases its lease, and reports its outcome to breakers, budgets, gates and latencies."""

from __future__ import annotations

from types import TracebackType

import structlog

from llm_guard.clock import Clock
from llm_guard.log import BREAKER_LOGGER
from llm_guard.outcome import Failure, FailureKind, Signal
from llm_guard.proxy import headers as header_rules
from llm_guard.proxy.call import Attempt, Delivered
from llm_guard.resilience.capacity.concurrency_limit import Ending
from llm_guard.resilience.capacity.rate_limit_headers import rate_hint
from llm_guard.resilience.causes.provider_errors import ErrorLog, provider_error
from llm_guard.resilience.circuit_breaker.history import Transition
from llm_guard.resilience.retry.budget import RetryBudget
from llm_guard.routing.lease import Lease

_log = structlog.get_logger(BREAKER_LOGGER)

_CUT = frozenset({FailureKind.TIMEOUT, FailureKind.SUPERSEDED, FailureKind.CLIENT_CANCELLED})
"""Outcomes that cut an exchange off: it would have taken longer."""
_WORTH_HOLDING_S = 2.0
"""A Retry-After shorter than this does not hold the gate: the pacer finds the rate, whereas all calls that wait for the
same second would return together."""
_OVERLOADS = frozenset({FailureKind.OVERLOADED, FailureKind.TIMEOUT, FailureKind.GPU_OOM})
# Looking up a member of an Enum takes as long as the rest of a comparison (CPython 3.11: 50 ns).
_HEALTHY = Signal.HEALTHY
_UNHEALTHY = Signal.UNHEALTHY
_NO_EVIDENCE = Signal.NO_EVIDENCE


class ResponseScope:
    """A context manager for a response on its way to the client. At its end the exchange is closed, and the lease
    released with the outcome that the attempt has by then."""

    __slots__ = ("_clock", "_served")

    def __init__(self, served: Delivered, clock: Clock) -> None:
        self._served = served
        self._clock = clock

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        served = self._served
        if served.opened.exchange is not None:
            served.opened.exchange.abort()
        failure = served.attempt.failure
        settle(served.attempt, served.lease, _HEALTHY if failure is None else failure.signal, self._clock)


def settle(attempt: Attempt, lease: Lease, signal: Signal, clock: Clock) -> None:
    """Ends an attempt: releases its lease and records its outcome. Further calls do nothing."""
    if lease.is_over:
        return
    lease.is_over = True
    deployment, gate = attempt.target.deployment, lease.gate
    now = attempt.ended_at = clock.now()
    if signal is _HEALTHY:
        deployment.last_success_wall = clock.wall()
    elif attempt.failure is not None and not attempt.failure.is_before_sending:
        _note_error(attempt, attempt.failure, now)
    took_s = (now if attempt.answered_at is None else attempt.answered_at) - attempt.timed_from
    _settle_breaker(attempt, lease, signal, now, took_s)
    if attempt.target.model is not None:
        _note_latency(attempt, signal, now, took_s)
    ending = "ok" if signal is _HEALTHY else _ending(attempt, signal)
    _note_recent(attempt, ending, now, is_begun=lease.is_begun)
    deployment.gates.in_flight -= 1
    if lease.key is not None:
        lease.key.in_flight -= 1
    if signal is _UNHEALTHY and deployment.callers.suspect(lease.caller) is not None:
        ending = "ignored"  # failures of one caller alone say nothing about the deployment's capacity
    is_waited_for = gate.exit(lease.slot, now, ending, took_s if ending == "ok" else None)
    if ending == "rate_limited":
        _note_rate_limit(attempt, lease, clock)
    if is_waited_for:
        lease.notify_waiters(gate)


def settle_begun(attempt: Attempt, lease: Lease, clock: Clock) -> None:
    """Records a success when a long response has begun well. If it dies, `settle` revises that to a failure."""
    now = clock.now()
    took_s = None if attempt.answered_at is None else attempt.answered_at - attempt.timed_from
    _settle_breaker(attempt, lease, _HEALTHY, now, took_s)
    _note_recent(attempt, "ok", now, is_begun=False)
    lease.is_begun = True


def settle_host(attempt: Attempt, lease: Lease, signal: Signal, clock: Clock) -> None:
    """Releases the permit of the host's breaker with the attempt's outcome."""
    deployment, now = attempt.target.deployment, clock.now()
    if signal is _UNHEALTHY:
        if attempt.failure is not None:
            _note_error(attempt, attempt.failure, now)
        if _is_ignored(attempt):
            signal = _NO_EVIDENCE
    transition = deployment.host.settle(lease.host, signal, now)
    if transition is not None:
        errors = deployment.upstream_errors
        log_transition(transition, errors, upstream=deployment.upstream.name, request_id=attempt.call_id)


def _settle_breaker(attempt: Attempt, lease: Lease, signal: Signal, now: float, took_s: float | None) -> None:
    """Releases the breaker's permit; if a response that began well has died, revises the success to a failure."""
    deployment = attempt.target.deployment
    if signal is _UNHEALTHY and _is_ignored(attempt):
        signal = _NO_EVIDENCE
    breaker = deployment.breaker if lease.suspect is None else lease.suspect.breaker
    if lease.is_begun and signal is _UNHEALTHY:
        transition = breaker.revise_to_failure(lease.permit, now)
    else:
        transition = breaker.settle(lease.permit, signal, now, took_s)
    _note_caller(attempt, lease, signal, now)
    if transition is None:
        return
    if lease.suspect is not None:
        whose = {**deployment.breaker_of(), "caller": lease.caller}
        log_transition(transition, deployment.errors, **whose, request_id=attempt.call_id)
        return
    if (transition.before, transition.after) == ("half_open", "closed"):
        deployment.gates.ramp(now, deployment.breaker.settings.slow_start)
    log_transition(transition, deployment.errors, **deployment.breaker_of(), request_id=attempt.call_id)


def _note_caller(attempt: Attempt, lease: Lease, signal: Signal, now: float) -> None:
    """Records the outcome for the attempt's caller: failures of one caller alone must not affect the others."""
    deployment = attempt.target.deployment
    if signal is _UNHEALTHY:
        if deployment.note_failure(lease.caller, now):
            _log.warning("calls of a single caller fail", **deployment.breaker_of(), caller=lease.caller)
    elif signal is _HEALTHY and not lease.is_begun:
        deployment.callers.note_ok(lease.caller, attempt.started_at, now, lease.own_key)


def _is_ignored(attempt: Attempt) -> bool:
    """Returns True if the config's `breaker.ignore` excludes the attempt's failure."""
    ignored = attempt.target.deployment.breaker.settings.ignore
    return bool(ignored) and attempt.failure is not None and attempt.failure.kind.label in ignored


def _note_latency(attempt: Attempt, signal: Signal, now: float, took_s: float) -> None:
    """Records latency. `took_s` ends at the first token or the whole response, else at the attempt's end."""
    deployment = attempt.target.deployment
    latency = deployment.first_tokens if attempt.is_stream else deployment.latency
    if attempt.answered_at is not None:
        latency.note(took_s, now)
        deployment.cost.note(took_s, now)
    elif attempt.failure is not None and attempt.failure.kind in _CUT:
        latency.note_cut(took_s, now)
        deployment.cost.note_cut(took_s, now)
    elif signal is _UNHEALTHY:
        deployment.cost.note_failure(took_s, now)


def _ending(attempt: Attempt, signal: Signal) -> Ending:
    """Returns what an attempt without success says about its deployment's capacity."""
    kind = attempt.failure.kind if attempt.failure is not None else None
    if kind is FailureKind.RATE_LIMIT:
        return "rate_limited"
    if signal is _NO_EVIDENCE:
        return "ignored"
    return "overloaded" if kind in _OVERLOADS else "failed"


def _note_recent(attempt: Attempt, ending: Ending, now: float, *, is_begun: bool) -> None:
    if ending == "ignored":
        return
    is_failure = ending != "ok"
    budget: RetryBudget  # as a C struct in the compiled build
    for budget in attempt.budgets:
        if not is_begun:
            budget.note(is_failure, now, is_retry=attempt.is_retry)
        elif is_failure:
            budget.recent.take_back(now)


def _note_rate_limit(attempt: Attempt, lease: Lease, clock: Clock) -> None:
    """Applies a 429's rate-limit headers and Retry-After to the gate."""
    failure, now = attempt.failure, clock.now()
    if failure is None:
        return
    if failure.answer is not None:
        hint = rate_hint(header_rules.lower_names(failure.answer.headers), clock.wall())
        if hint is not None:
            lease.gate.note_hint(hint, attempt.started_at, now, lease.slot.source)
    wait_s = failure.retry_after_s
    if wait_s is not None and wait_s >= _WORTH_HOLDING_S:
        until = now + min(wait_s, attempt.target.retry.max_retry_after)
        lease.gate.note_retry_after(until, now, lease.slot.source)


def _note_error(attempt: Attempt, failure: Failure, now: float) -> None:
    """Keeps the attempt's failure as evidence, before it may open a breaker. `settle_host` does so for connections that
    fail, `settle` for all others."""
    error = provider_error(failure, attempt.status, attempt.call_id, now)
    if error is not None:
        attempt.target.deployment.note_error(error)


def log_transition(transition: Transition, errors: ErrorLog, **whose: str) -> None:
    """Logs a change of state, with the errors that opened the breaker. The provider's words are left out.

    `whose` identifies the breaker, and the request that changed it, if there was one.
    """
    said: dict[str, object] = {"before": transition.before, "after": transition.after, "reason": transition.why}
    if transition.after == "open":
        said["errors"] = [
            {
                "status": error.status,
                "kind": error.kind.label,
                "code": error.code,
                "provider_request_id": error.request_id,
            }
            for error in errors.latest()
        ]
    _log.warning("breaker", **whose, **said, refused=transition.refused)
