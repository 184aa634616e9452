from __future__ import annotations

from typing import Any, get_args

import pytest
import structlog
from structlog.testing import LogCapture

from llm_guard.outcome import Failure, FailureKind, Signal, UpstreamErrorResponse
from llm_guard.proxy.attempts.admission import AdmissionControl, settle, settle_begun, settle_host
from llm_guard.proxy.call import Attempt
from llm_guard.resilience.capacity.gate import CapacitySettings
from llm_guard.resilience.circuit_breaker.breaker import Breaker, BreakerSettings
from llm_guard.resilience.circuit_breaker.callers import Suspect
from llm_guard.resilience.circuit_breaker.cooldown import Cooldowns
from llm_guard.resilience.circuit_breaker.settings import BreakerFailure
from llm_guard.resilience.retry.backoff import RetrySettings
from llm_guard.resilience.retry.limits import BudgetSettings, RetryBudget
from llm_guard.routing.api_keys import ApiKey
from llm_guard.routing.lease import Lease
from llm_guard.routing.route_table import Target
from tests.fakes.clock import ManualClock
from tests.fakes.script import SERVER_ERROR, new_call, new_route, new_target

TIMEOUT = Failure(FailureKind.TIMEOUT, "no complete answer within 30 s", limit="attempt")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> LogCapture:
    """Captures the log."""
    log = LogCapture()
    monkeypatch.setattr("llm_guard.proxy.attempts.admission._log", structlog.wrap_logger(None, processors=[log]))
    return log


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def begun(target: Target) -> Attempt:
    return Attempt(target, 1000.0)


def leave_for(target: Target) -> Lease:
    """Returns a lease, as admission grants it."""
    found = AdmissionControl(Cooldowns(), ManualClock()).try_enter(new_call(), target, hint_patience_s=30.0)
    assert isinstance(found, Lease)
    return found


# breaker permits


def test_settled_permit_ends_its_attempt_and_counts_once(log: LogCapture, clock: ManualClock) -> None:
    target = new_target("a/x", breaker=BreakerSettings(early_probes=False, consecutive_failures=1))
    breaker = target.deployment.breaker
    attempt, lease = begun(target), leave_for(target)
    clock.advance(2.0)
    settle(attempt, lease, Signal.UNHEALTHY, clock)
    settle(attempt, lease, Signal.HEALTHY, clock)
    assert attempt.ended_at == 1002.0
    assert breaker.snapshot(1002.0).state == "open"
    assert [(line["event"], line["deployment"], line["before"], line["after"]) for line in log.entries] == [
        ("breaker", "a/x", "closed", "open")
    ]
    assert "model" not in log.entries[0]


@pytest.mark.parametrize(("failure", "state"), [(SERVER_ERROR, "closed"), (TIMEOUT, "open")])
def test_failure_of_an_ignored_kind_is_no_evidence(clock: ManualClock, failure: Failure, state: str) -> None:
    settings = BreakerSettings(early_probes=False, consecutive_failures=1, ignore=("server_error",))
    target = new_target("a/x", breaker=settings)
    attempt, lease = begun(target), leave_for(target)
    attempt.failure = failure
    settle(attempt, lease, Signal.UNHEALTHY, clock)
    settle_host(attempt, lease, Signal.UNHEALTHY, clock)
    assert (target.deployment.breaker.state, target.deployment.host.state) == (state, state)


def test_breaker_ignores_kinds_that_it_would_count() -> None:
    counted = {kind.label for kind in FailureKind if kind.signal is Signal.UNHEALTHY}
    assert set(get_args(BreakerFailure)) == counted


def test_breaker_of_a_name_under_a_pattern_is_logged_with_the_name(log: LogCapture, clock: ManualClock) -> None:
    target = new_target("a/m-*", model="m-1", breaker=BreakerSettings(early_probes=False, consecutive_failures=1))
    settle(begun(target), leave_for(target), Signal.UNHEALTHY, clock)
    assert [(line["deployment"], line["model"]) for line in log.entries] == [("a/m-*", "m-1")]


def test_settled_permit_of_a_host_is_logged_by_the_upstreams_name_and_ends_no_attempt(
    log: LogCapture, clock: ManualClock
) -> None:
    target = new_target("a/x", breaker=BreakerSettings(early_probes=False, consecutive_failures=1))
    host = target.deployment.host
    attempt = begun(target)
    settle_host(attempt, leave_for(target), Signal.UNHEALTHY, clock)
    assert (attempt.ended_at, host.snapshot(1000.0).state) == (None, "open")
    assert target.deployment.breaker.snapshot(1000.0).state == "closed"
    assert [(line["upstream"], line["before"], line["after"]) for line in log.entries] == [("a", "closed", "open")]


@pytest.mark.parametrize("signal", [Signal.UNHEALTHY, Signal.NO_EVIDENCE])
def test_only_a_healthy_end_is_a_last_success(clock: ManualClock, signal: Signal) -> None:
    target = new_target()
    for each, seen in ((signal, None), (Signal.HEALTHY, clock.wall())):
        settle(begun(target), leave_for(target), each, clock)
        assert target.deployment.last_success_wall == seen


# slots, and the effect of an end on capacity and pace


def settled(
    target: Target,
    failure: Failure | None = None,
    signal: Signal | None = None,
    clock: ManualClock | None = None,
    **facts: Any,
) -> Attempt:
    """Settles an attempt that took two seconds; the signal defaults to that of its failure's kind."""
    lease, clock = leave_for(target), clock or ManualClock()
    attempt = Attempt(target, clock.now(), budgets=(target.deployment.budget,), failure=failure, **facts)
    clock.advance(2.0)
    if failure is None and attempt.answered_at is None:
        attempt.answered_at = clock.now()
    settle(attempt, lease, signal or (failure.kind.signal if failure else Signal.HEALTHY), clock)
    return attempt


def in_flight(target: Target) -> tuple[int, int]:
    gates = target.deployment.gates
    return gates.in_flight, sum(gate.snapshot(1000.0).in_flight for gate in gates.all())


def test_slot_is_released_once() -> None:
    target, clock = new_target("a/x"), ManualClock()
    first, second = leave_for(target), leave_for(target)
    assert in_flight(target) == (2, 2)
    attempt = begun(target)
    for _ in range(3):
        settle(attempt, first, Signal.HEALTHY, clock)
    assert in_flight(target) == (1, 1)
    settle(begun(target), second, Signal.NO_EVIDENCE, clock)
    assert in_flight(target) == (0, 0)


def test_probe_that_closes_a_breaker_lets_calls_return_gradually() -> None:
    once, clock = BreakerSettings(consecutive_failures=1, early_probes=False), ManualClock()
    target = new_target("a/x", breaker=once)
    settled(target, SERVER_ERROR, clock=clock)
    clock.advance(40.0)
    probe = AdmissionControl(Cooldowns(), clock).try_enter(new_call(), target, hint_patience_s=30.0)
    assert isinstance(probe, Lease)
    gate = probe.gate
    assert gate.snapshot(clock.now()).limit is None
    attempt = Attempt(target, clock.now())
    clock.advance(1.0)
    settle(attempt, probe, Signal.HEALTHY, clock)
    assert gate.snapshot(clock.now()).limit == 4
    assert gate.snapshot(clock.now() + 10.0).limit is None


def test_success_of_a_healthy_deployment_does_not_slow_it_down() -> None:
    target = new_target("a/x")
    settled(target)
    assert [gate.snapshot(1002.0).limit for gate in target.deployment.gates.all()] == [None]


RATE_LIMIT = Failure(FailureKind.RATE_LIMIT, "answered 429", retry_after_s=20.0)


def held_until(target: Target) -> list[float | None]:
    return [gate.snapshot(1000.0).held_until for gate in target.deployment.gates.all()]


def test_second_rate_limit_in_a_row_holds_the_gate() -> None:
    target, clock = new_target("a/x"), ManualClock()
    settled(target, RATE_LIMIT, clock=clock)
    assert held_until(target) == [None]
    settled(target, RATE_LIMIT, clock=clock)
    assert held_until(target) == [1024.0]


def test_rate_limit_between_successes_does_not_hold_the_gate() -> None:
    target, clock = new_target("a/x"), ManualClock()
    for failure in (RATE_LIMIT, None, RATE_LIMIT, None, RATE_LIMIT):
        settled(target, failure, clock=clock)
    assert held_until(target) == [None]


def test_wait_of_a_moment_is_left_to_the_pace() -> None:
    target, clock = new_target("a/x"), ManualClock()
    for _ in range(4):
        settled(target, Failure(FailureKind.RATE_LIMIT, "answered 429", retry_after_s=1.9), clock=clock)
    assert held_until(target) == [None]


CANCELLED = Failure(FailureKind.CLIENT_CANCELLED, "the client disconnected")
SUPERSEDED = Failure(FailureKind.SUPERSEDED, "another attempt of the call was faster")


@pytest.mark.parametrize(("failure", "share"), [(None, 0.0), (SERVER_ERROR, 0.1), (RATE_LIMIT, 0.1), (CANCELLED, 0.0)])
def test_budgets_count_failures_and_rate_limits_but_not_disconnected_clients(
    failure: Failure | None, share: float
) -> None:
    target = new_target("a/x")
    settled(target, failure)
    recent = target.deployment.budget.recent.snapshot(1002.0)
    assert recent.failure_share == pytest.approx(share)
    assert recent.attempts == (0.0 if failure is CANCELLED else 1.0)


def test_stream_that_dies_is_a_failure_of_the_retry_budgets() -> None:
    target, clock = new_target("a/x"), ManualClock()
    budgets = (target.deployment.budget, new_route(target).budget)
    attempt = Attempt(target, clock.now(), budgets=budgets, is_stream=True)
    lease = leave_for(target)
    settle_begun(attempt, lease, clock)
    assert [budget.recent.snapshot(clock.now()).failure_share for budget in budgets] == [0.0, 0.0]
    attempt.failure = Failure(FailureKind.NETWORK, "the connection was reset")
    settle(attempt, lease, Signal.UNHEALTHY, clock)
    for budget in budgets:
        recent = budget.recent.snapshot(clock.now())
        assert recent.attempts == 1.0
        assert recent.failure_share == pytest.approx(0.1)


def test_key_of_a_pool_is_free_again() -> None:
    target, key = new_target("a/x"), ApiKey("first", "sk-1")
    lease = leave_for(target)
    lease.key = key
    key.in_flight = 1
    settle(begun(target), lease, Signal.HEALTHY, ManualClock())
    assert key.in_flight == 0


def test_rate_limit_headers_of_a_429_set_the_pace() -> None:
    headers = (
        ("x-ratelimit-limit-requests", "120"),
        ("x-ratelimit-remaining-requests", "0"),
        ("x-ratelimit-reset-requests", "60s"),
    )
    target = new_target("a/x", capacity=CapacitySettings())
    settled(
        target, Failure(FailureKind.RATE_LIMIT, "answered 429", answer=UpstreamErrorResponse(429, "", headers, b""))
    )
    (gate,) = target.deployment.gates.all()
    seen = gate.snapshot(1002.0)
    assert seen.rate_cause == "headers"
    assert seen.rate == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize(("fails_alone", "limit"), [(True, 20), (False, 19)])
def test_failures_of_one_caller_alone_do_not_lower_the_limit_of_all(fails_alone: bool, limit: int) -> None:
    target, clock = new_target("a/x", capacity=CapacitySettings(concurrency="adaptive")), ManualClock()
    lease = leave_for(target)
    if fails_alone:  # since the lease was granted
        target.deployment.callers.note_failure(lease.caller, clock.now())
        suspect = Suspect(Breaker(BreakerSettings()), RetryBudget(BudgetSettings(), clock.now()))
        target.deployment.callers.begin(lease.caller, suspect)
    settle(Attempt(target, clock.now(), failure=TIMEOUT), lease, Signal.UNHEALTHY, clock)
    assert lease.gate.snapshot(clock.now()).limit == limit


def test_hint_of_rate_limits_holds_the_gate_no_longer_than_max_retry_after() -> None:
    target, clock = new_target("a/x", retry=RetrySettings(max_retry_after=60.0)), ManualClock()
    for _ in range(2):
        settled(target, Failure(FailureKind.RATE_LIMIT, "answered 429", retry_after_s=500.0), clock=clock)
    assert held_until(target) == [clock.now() + 60.0]


@pytest.mark.parametrize(
    ("failure", "noted"),
    [(None, (1, 0)), (SERVER_ERROR, (0, 0)), (TIMEOUT, (1, 1)), (SUPERSEDED, (1, 1)), (CANCELLED, (1, 1))],
)
def test_answers_and_exchanges_that_were_cut_are_measured(failure: Failure | None, noted: tuple[int, int]) -> None:
    target = new_target("a/x")
    settled(target, failure)
    seen = target.deployment.latency.snapshot(1002.0)
    assert (seen.count, seen.cut) == noted
    assert target.deployment.first_tokens.snapshot(1002.0).count == 0


def test_stream_is_measured_to_its_first_token_though_its_client_leaves_later() -> None:
    target = new_target("a/x")
    settled(target, CANCELLED, is_stream=True, answered_at=1000.5)
    assert (target.deployment.first_tokens.snapshot(1002.0).cut, target.deployment.latency.snapshot(1002.0).count) == (
        0,
        0,
    )
    assert target.deployment.cost.snapshot(1002.0).usual_s == 0.5


def test_failure_costs_more_than_the_answer_that_it_is_not() -> None:
    target, clock = new_target("a/x"), ManualClock()
    settled(target, clock=clock)
    settled(target, SERVER_ERROR, clock=clock)
    assert target.deployment.cost.cost_s(clock.now()) == pytest.approx(20.0)


def test_calls_that_name_no_model_are_measured_nowhere() -> None:
    target = new_target("a")
    settled(target)
    settled(target, TIMEOUT)
    assert target.deployment.latency.snapshot(1002.0).count == 0
    assert target.deployment.cost.cost_s(1002.0) is None


# Retry-After for all calls


@pytest.mark.parametrize(
    ("kinds", "held"),
    [
        ([FailureKind.RATE_LIMIT, FailureKind.RATE_LIMIT], True),
        ([FailureKind.RATE_LIMIT], False),
        ([FailureKind.RATE_LIMIT, None, FailureKind.RATE_LIMIT], False),
        ([FailureKind.WINDOW_EXHAUSTED, FailureKind.WINDOW_EXHAUSTED], False),
    ],
)
def test_retry_after_of_two_rate_limits_in_a_row_holds_the_gate(
    clock: ManualClock, kinds: list[FailureKind | None], held: bool
) -> None:
    target = new_target()
    for kind in kinds:
        attempt, lease = begun(target), leave_for(target)
        attempt.failure = Failure(kind, "answered 429", 20.0) if kind else None
        settle(attempt, lease, Signal.NO_EVIDENCE if kind else Signal.HEALTHY, clock)
    (gate,) = target.deployment.gates.all()
    assert gate.snapshot(1000.0).held_until == (1020.0 if held else None)


def test_spent_daily_quota_does_not_hold_the_gate_after_two_rate_limits(clock: ManualClock) -> None:
    """The wait may be a day: the deployment gets a cooldown, and calls go to the other ones."""
    target = new_target()
    for kind, wait_s in ((FailureKind.RATE_LIMIT, 1.0), (FailureKind.RATE_LIMIT, 1.0), (FailureKind.SERVER_ERROR, 9e4)):
        attempt, lease = begun(target), leave_for(target)
        attempt.failure = Failure(kind, "answered", wait_s)
        settle(attempt, lease, kind.signal, clock)
    (gate,) = target.deployment.gates.all()
    assert gate.snapshot(1000.0).held_until is None
