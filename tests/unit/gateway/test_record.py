from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import structlog
from prometheus_client import CollectorRegistry
from structlog.testing import LogCapture

from llm_guard.call import Attempt, Call, Leave, Skipped
from llm_guard.dialect.sse import Usage
from llm_guard.gateway.entrance import Entrance
from llm_guard.gateway.record import Recorder, overhead_s, settle, settle_host
from llm_guard.outcome import Answer, Failure, FailureKind, Refusal, Signal
from llm_guard.policy.bench import Bench
from llm_guard.policy.breaker import BreakerSettings
from llm_guard.routes import Target
from tests.fakes.clock import ManualClock
from tests.fakes.script import SERVER_ERROR, new_call, new_target

TIMEOUT = Failure(FailureKind.TIMEOUT, "no complete answer within 30 s", limit="attempt")


class Records:
    """A recorder and what it has left behind."""

    def __init__(self) -> None:
        self.log = LogCapture()
        self.registry = CollectorRegistry()
        self.clock = ManualClock()
        self.recorder = Recorder(self.registry, self.clock)

    def __call__(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"llm_guard_{name}", labels)

    def whole_call(self, call: Call, at: float = 1010.0) -> dict[str, Any]:
        """Begins and ends the call; returns its log line."""
        self.recorder.begin(call)
        self.clock.advance(at - self.clock.now())
        self.recorder.end(call)
        line = self.log.entries[-1]
        assert line["event"] == "call"
        return dict(line)


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> Records:
    records = Records()
    monkeypatch.setattr("llm_guard.gateway.record._log", structlog.wrap_logger(None, processors=[records.log]))
    return records


def tried(
    target: Target, began: float, ended: float | None, failure: Failure | None = None, waited: float = 0.0, **facts: Any
) -> Attempt:
    is_retry = waited > 0
    return Attempt(target, began, waited_s=waited, is_retry=is_retry, ended_at=ended, failure=failure, **facts)


def leave_for(target: Target) -> Leave:
    """As the entrance gives it."""
    found = Entrance(Bench(), ManualClock()).try_enter(new_call(), target, is_last=True)
    assert isinstance(found, Leave)
    return found


def test_call_that_went_well_is_counted_once_and_timed(records: Records) -> None:
    target = new_target("a/x")
    call = new_call(target)
    call.attempts = [tried(target, 1001.0, 1009.0)]
    call.usage = Usage(7, 3)
    call.first_token_at = 1002.5
    records.whole_call(call)
    assert records("calls_total", model="gpt-4", outcome="ok") == 1
    assert records("attempts_total", deployment="a/x", outcome="ok") == 1
    assert records("tokens_total", model="gpt-4", direction="input") == 7
    assert records("tokens_total", model="gpt-4", direction="output") == 3
    assert records("call_duration_seconds_sum", model="gpt-4") == 10.0
    assert records("time_to_first_token_seconds_sum", model="gpt-4") == 2.5
    assert records("upstream_duration_seconds_sum", deployment="a/x") == 8.0
    assert records("overhead_seconds_sum", model="gpt-4") == 2.0


def test_retries_and_their_waits_are_counted_by_what_failed(records: Records) -> None:
    target = new_target("a/x")
    call = new_call(target)
    call.attempts = [
        tried(target, 1000.0, 1001.0, SERVER_ERROR),
        tried(target, 1001.2, 1002.0, TIMEOUT, waited=0.2),
        tried(target, 1002.6, 1003.0, waited=0.6),
    ]
    records.whole_call(call)
    assert records("attempts_total", deployment="a/x", outcome="server_error") == 1
    assert records("attempts_total", deployment="a/x", outcome="timeout") == 1
    assert records("attempts_total", deployment="a/x", outcome="ok") == 1
    assert records("retries_total", deployment="a/x", kind="server_error") == 1
    assert records("retries_total", deployment="a/x", kind="timeout") == 1
    assert records("retry_delay_seconds_sum", deployment="a/x") == pytest.approx(0.8)
    assert records("retry_delay_seconds_count", deployment="a/x") == 2
    assert records("timeouts_total", deployment="a/x", limit="attempt") == 1
    assert records("fallbacks_total", model="gpt-4", deployment="a/x") is None


def test_fallback_is_counted_for_the_deployment_that_was_moved_on_to(records: Records) -> None:
    first, second = new_target("a/x"), new_target("b/y")
    call = new_call(first, second)
    call.attempts = [tried(first, 1000.0, 1001.0, SERVER_ERROR), tried(second, 1001.0, 1002.0, is_fallback=True)]
    records.whole_call(call)
    assert records("fallbacks_total", model="gpt-4", deployment="b/y") == 1
    assert records("fallbacks_total", model="gpt-4", deployment="a/x") is None
    assert records("retries_total", deployment="b/y", kind="server_error") is None


def test_open_breaker_makes_a_fallback_of_the_next_and_of_nothing_before_it(records: Records) -> None:
    first, second = new_target("a/x"), new_target("b/y")
    skipping = new_call(first, second)
    skipping.skipped = [Skipped("a/x", "breaker open")]
    skipping.attempts = [tried(second, 1000.0, 1001.0, is_fallback=True)]
    assert records.whole_call(skipping)["skipped"] == [{"deployment": "a/x", "why": "breaker open"}]
    assert records("fallbacks_total", model="gpt-4", deployment="b/y") == 1

    failing = new_call(first, second)
    failing.skipped = [Skipped("b/y", "breaker open")]
    failing.attempts = [tried(first, 1010.0, 1011.0, SERVER_ERROR)]
    records.whole_call(failing, at=1011.0)
    assert records("fallbacks_total", model="gpt-4", deployment="a/x") is None


def test_refusal_is_counted_by_who_refused(records: Records) -> None:
    call = new_call(new_target())
    call.refusal = Refusal(503, "breaker_open", "all open", by="breaker")
    line = records.whole_call(call)
    assert records("calls_total", model="gpt-4", outcome="refused") == 1
    assert records("refusals_total", model="gpt-4", by="breaker") == 1
    assert records("overhead_seconds_count", model="gpt-4") is None
    assert (line["refused_by"], line["why"], line["attempts"]) == ("breaker", "all open", [])


def test_unknown_model_is_counted_as_other(records: Records) -> None:
    call = new_call()
    call.model = "chosen-by-a-caller"
    call.refusal = Refusal(404, "model_not_found", "no route", by="route")
    records.recorder.end(call)
    assert records("calls_total", model="other", outcome="refused") == 1
    labels = {value for each in records.registry.collect() for s in each.samples for value in s.labels.values()}
    assert "chosen-by-a-caller" not in labels


def test_call_that_failed_is_counted_by_its_kind(records: Records) -> None:
    target = new_target("a/x")
    call = new_call(target)
    call.attempts = [tried(target, 1000.0, 1001.0, TIMEOUT)]
    call.failure, call.sent_status = TIMEOUT, 504
    line = records.whole_call(call)
    assert records("calls_total", model="gpt-4", outcome="timeout") == 1
    assert (line["outcome"], line["status"], line["why"]) == ("timeout", 504, TIMEOUT.detail)
    assert line["attempts"] == [
        {"deployment": "a/x", "outcome": "timeout", "waited_s": 0.0, "duration_s": 1.0, "why": TIMEOUT.detail}
    ]


def test_calls_in_flight_return_to_zero(records: Records) -> None:
    calls = [new_call(new_target()) for _ in range(3)]
    for number, call in enumerate(calls):
        call.id = f"lg-{number}"
        records.recorder.begin(call)
    assert records("in_flight_calls", model="gpt-4") == 3
    for call in calls:
        records.recorder.end(call)
    assert records("in_flight_calls", model="gpt-4") == 0


def test_call_that_never_began_is_not_taken_from_those_in_flight(records: Records) -> None:
    refused = new_call(new_target())
    refused.refusal = Refusal(400, "wrong_dialect", "ask elsewhere", by="route")
    records.recorder.end(refused)
    assert records("in_flight_calls", model="gpt-4") in (None, 0)


def test_overhead_is_what_neither_exchanges_nor_waits_took() -> None:
    target = new_target()
    call = new_call(target)
    call.attempts = [tried(target, 1001.0, 1003.0), tried(target, 1004.0, None, waited=1.0)]
    assert overhead_s(call, 1010.0) == pytest.approx(1.0)
    call.started_at = 1009.0
    assert overhead_s(call, 1010.0) == 0.0


CANARY = "sk-canary"


def plant_in_headers(call: Call) -> None:
    call.headers = (("Authorization", f"Bearer {CANARY}"), ("X-Custom", CANARY))


def plant_in_body(call: Call) -> None:
    call.body = f'{{"messages": "{CANARY}"}}'.encode()


def plant_in_query(call: Call) -> None:
    call.query = f"key={CANARY}"


def plant_in_answer(call: Call) -> None:
    answer = Answer(500, "", (("x", CANARY),), CANARY.encode())
    call.failure = Failure(FailureKind.SERVER_ERROR, "answered 500", answer=answer)
    call.attempts[0].failure = call.failure


def plant_in_upstream_key(call: Call) -> None:
    target = new_target(api_key=CANARY)
    call.attempts = [tried(target, 1000.0, 1001.0)]


@pytest.mark.parametrize(
    "plant", [plant_in_headers, plant_in_body, plant_in_query, plant_in_answer, plant_in_upstream_key]
)
def test_log_line_holds_no_body_key_or_header(records: Records, plant: Callable[[Call], None]) -> None:
    target = new_target()
    call = new_call(target)
    call.client_key = "app-1"
    call.attempts = [tried(target, 1000.0, 1001.0)]
    plant(call)
    line = records.whole_call(call)
    assert line["client"] == "app-1"
    assert CANARY not in repr(line)


# permits


def test_settled_permit_ends_its_attempt_and_counts_once(records: Records) -> None:
    target = new_target("a/x", breaker=BreakerSettings(early_probes=False, consecutive_failures=1))
    breaker = target.deployment.breaker
    attempt, leave = tried(target, 1000.0, None), leave_for(target)
    records.clock.advance(2.0)
    settle(attempt, leave, Signal.UNHEALTHY, records.clock)
    settle(attempt, leave, Signal.HEALTHY, records.clock)
    assert attempt.ended_at == 1002.0
    assert breaker.snapshot(1002.0).state == "open"
    assert [(line["event"], line["deployment"], line["before"], line["after"]) for line in records.log.entries] == [
        ("breaker", "a/x", "closed", "open")
    ]


def test_settled_permit_of_a_host_is_logged_by_the_upstreams_name_and_ends_no_attempt(records: Records) -> None:
    target = new_target("a/x", breaker=BreakerSettings(early_probes=False, consecutive_failures=1))
    host = target.deployment.host
    attempt = tried(target, 1000.0, None)
    settle_host(attempt, leave_for(target), Signal.UNHEALTHY, records.clock)
    assert (attempt.ended_at, host.snapshot(1000.0).state) == (None, "open")
    assert target.deployment.breaker.snapshot(1000.0).state == "closed"
    assert [(line["upstream"], line["before"], line["after"]) for line in records.log.entries] == [
        ("a", "closed", "open")
    ]


@pytest.mark.parametrize("signal", [Signal.UNHEALTHY, Signal.NO_EVIDENCE])
def test_only_a_healthy_end_is_a_last_success(records: Records, signal: Signal) -> None:
    target = new_target()
    for each, seen in ((signal, None), (Signal.HEALTHY, records.clock.wall())):
        settle(tried(target, 1000.0, None), leave_for(target), each, records.clock)
        assert target.deployment.last_success_wall == seen


# slots, and what an end tells of capacity and pace


def settled(
    target: Target,
    failure: Failure | None = None,
    signal: Signal | None = None,
    clock: ManualClock | None = None,
    **facts: Any,
) -> Attempt:
    """An attempt that took two seconds; by default its failure's kind is its signal."""
    leave, clock = leave_for(target), clock or ManualClock()
    attempt = Attempt(target, clock.now(), budgets=(target.deployment.budget,), failure=failure, **facts)
    clock.advance(2.0)
    if failure is None and attempt.answered_at is None:
        attempt.answered_at = clock.now()
    settle(attempt, leave, signal or (failure.kind.signal if failure else Signal.HEALTHY), clock)
    return attempt


def in_flight(target: Target) -> tuple[int, int]:
    gates = target.deployment.gates
    return gates.in_flight, sum(gate.snapshot(1000.0).in_flight for gate in gates.all())


def test_slot_is_given_back_once() -> None:
    target, clock = new_target("a/x"), ManualClock()
    first, second = leave_for(target), leave_for(target)
    assert in_flight(target) == (2, 2)
    attempt = tried(target, 1000.0, None)
    for _ in range(3):
        settle(attempt, first, Signal.HEALTHY, clock)
    assert in_flight(target) == (1, 1)
    settle(tried(target, 1000.0, None), second, Signal.NO_EVIDENCE, clock)
    assert in_flight(target) == (0, 0)


def test_probe_that_closes_a_breaker_lets_calls_return_by_and_by() -> None:
    once, clock = BreakerSettings(consecutive_failures=1, early_probes=False), ManualClock()
    target = new_target("a/x", breaker=once)
    settled(target, SERVER_ERROR, clock=clock)
    clock.advance(40.0)
    probe = Entrance(Bench(), clock).try_enter(new_call(), target, is_last=True)
    assert isinstance(probe, Leave)
    gate = probe.gate
    assert gate.snapshot(clock.now()).limit is None
    attempt = tried(target, clock.now(), None)
    clock.advance(1.0)
    settle(attempt, probe, Signal.HEALTHY, clock)
    assert gate.snapshot(clock.now()).limit == 2
    assert gate.snapshot(clock.now() + 10.0).limit is None


def test_success_of_a_healthy_deployment_does_not_slow_it_down() -> None:
    target = new_target("a/x")
    settled(target)
    assert [gate.snapshot(1002.0).limit for gate in target.deployment.gates.all()] == [None]


RATE_LIMIT = Failure(FailureKind.RATE_LIMIT, "answered 429", retry_after_s=20.0)


def held_until(target: Target) -> list[float | None]:
    return [gate.snapshot(1000.0).held_until for gate in target.deployment.gates.all()]


def test_wait_that_is_asked_for_twice_in_a_row_is_kept_by_everybody() -> None:
    target, clock = new_target("a/x"), ManualClock()
    settled(target, RATE_LIMIT, clock=clock)
    assert held_until(target) == [None]
    settled(target, RATE_LIMIT, clock=clock)
    assert held_until(target) == [1024.0]


def test_wait_that_is_asked_for_between_answers_is_its_calls_own() -> None:
    target, clock = new_target("a/x"), ManualClock()
    for failure in (RATE_LIMIT, None, RATE_LIMIT, None, RATE_LIMIT):
        settled(target, failure, clock=clock)
    assert held_until(target) == [None]


def test_wait_of_a_moment_is_left_to_the_pace() -> None:
    target, clock = new_target("a/x"), ManualClock()
    for _ in range(4):
        settled(target, Failure(FailureKind.RATE_LIMIT, "answered 429", retry_after_s=1.9), clock=clock)
    assert held_until(target) == [None]


CANCELLED = Failure(FailureKind.CLIENT_CANCELLED, "the client left")
SUPERSEDED = Failure(FailureKind.SUPERSEDED, "another attempt of the call was quicker")


@pytest.mark.parametrize(("failure", "share"), [(None, 0.0), (SERVER_ERROR, 0.1), (RATE_LIMIT, 0.1), (CANCELLED, 0.0)])
def test_budgets_hear_of_failures_and_rate_limits_but_not_of_clients_that_leave(
    failure: Failure | None, share: float
) -> None:
    target = new_target("a/x")
    settled(target, failure)
    recent = target.deployment.budget.recent.snapshot(1002.0)
    assert recent.failure_share == pytest.approx(share)
    assert recent.attempts == (0.0 if failure is CANCELLED else 1.0)


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


# hedges, turns, and the words of the log line


def test_hedges_are_counted_by_whether_they_won_and_not_as_retries_or_fallbacks(records: Records) -> None:
    first, second = new_target("a/x"), new_target("b/y")
    for loser in (0, 1):
        call = new_call(first, second)
        call.attempts = [
            tried(first, 1000.0, 1001.0, SUPERSEDED if loser == 0 else None),
            tried(second, 1000.5, 1001.0, SUPERSEDED if loser == 1 else None, is_fallback=True, is_hedge=True),
        ]
        records.whole_call(call)
    assert records("hedges_total", model="gpt-4", outcome="won") == 1
    assert records("hedges_total", model="gpt-4", outcome="lost") == 1
    assert records("fallbacks_total", model="gpt-4", deployment="b/y") is None
    assert records("attempts_total", deployment="a/x", outcome="superseded") == 1
    assert records("retries_total", deployment="b/y", kind="superseded") is None


def test_hedge_on_the_same_deployment_is_no_retry(records: Records) -> None:
    target = new_target("a/x")
    call = new_call(target)
    hedge = Attempt(target, 1000.5, is_retry=True, is_hedge=True, ended_at=1001.0)
    call.attempts = [tried(target, 1000.0, 1001.0, SUPERSEDED), hedge]
    line = records.whole_call(call)
    assert records("retries_total", deployment="a/x", kind="superseded") is None
    assert [each.get("hedge") for each in line["attempts"]] == [None, True]


def test_waits_for_a_turn_are_counted_apart_from_waits_for_a_retry(records: Records) -> None:
    target = new_target("a/x")
    call = new_call(target)
    queued = Attempt(target, 1003.0, waited_s=3.0, waited_for="queue", ended_at=1004.0)
    call.attempts = [queued]
    line = records.whole_call(call)
    assert records("queue_wait_seconds_sum", deployment="a/x") == 3.0
    assert records("retry_delay_seconds_count", deployment="a/x") is None
    assert (line["attempts"][0]["waited_s"], line["attempts"][0]["waited_for"]) == (3.0, "queue")
    assert line["overhead_s"] == 6.0


def test_log_line_says_of_each_attempt_what_was_known_and_decided(records: Records) -> None:
    target = new_target("a/x")
    call = new_call(target)
    failed = tried(target, 1000.0, 1001.0, TIMEOUT, breaker="half_open", next_step="retry after 0.2 s", budget_left=3.5)
    again = tried(target, 1001.2, 1002.0, waited=0.2, waited_for="backoff")
    call.attempts = [failed, again]
    line = records.whole_call(call)
    assert line["attempts"] == [
        {
            "deployment": "a/x", "outcome": "timeout", "waited_s": 0.0, "duration_s": 1.0, "breaker": "half_open",
            "why": TIMEOUT.detail, "then": "retry after 0.2 s", "budget_left": 3.5,
        },
        {"deployment": "a/x", "outcome": "ok", "waited_s": 0.2, "duration_s": 0.8, "waited_for": "backoff"},
    ]  # fmt: skip


def test_log_line_says_why_no_further_attempt_was_made(records: Records) -> None:
    target = new_target("a/x")
    call = new_call(target)
    call.attempts = [tried(target, 1000.0, 1001.0, SERVER_ERROR)]
    call.failure, call.gave_up = SERVER_ERROR, "retry budget empty"
    assert records.whole_call(call)["gave_up"] == "retry budget empty"


# a wait that everybody keeps


@pytest.mark.parametrize(
    ("kinds", "held"),
    [
        ([FailureKind.RATE_LIMIT, FailureKind.RATE_LIMIT], True),
        ([FailureKind.RATE_LIMIT], False),
        ([FailureKind.RATE_LIMIT, None, FailureKind.RATE_LIMIT], False),
        ([FailureKind.WINDOW_EXHAUSTED, FailureKind.WINDOW_EXHAUSTED], False),
    ],
)
def test_wait_that_rate_limits_ask_for_twice_in_a_row_holds_the_gate(
    records: Records, kinds: list[FailureKind | None], held: bool
) -> None:
    target = new_target()
    for kind in kinds:
        attempt, leave = tried(target, 1000.0, None), leave_for(target)
        attempt.failure = Failure(kind, "answered 429", 20.0) if kind else None
        settle(attempt, leave, Signal.NO_EVIDENCE if kind else Signal.HEALTHY, records.clock)
    (gate,) = target.deployment.gates.all()
    assert gate.snapshot(1000.0).held_until == (1020.0 if held else None)


def test_day_that_is_used_up_holds_nobody_after_two_rate_limits(records: Records) -> None:
    """What it asks for may be a day: its deployment rests, and the others' turn comes."""
    target = new_target()
    for kind, wait_s in ((FailureKind.RATE_LIMIT, 1.0), (FailureKind.RATE_LIMIT, 1.0), (FailureKind.SERVER_ERROR, 9e4)):
        attempt, leave = tried(target, 1000.0, None), leave_for(target)
        attempt.failure = Failure(kind, "answered", wait_s)
        settle(attempt, leave, kind.signal, records.clock)
    (gate,) = target.deployment.gates.all()
    assert gate.snapshot(1000.0).held_until is None
