from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import structlog
from prometheus_client import CollectorRegistry
from structlog.testing import LogCapture

from llm_guard.call import Attempt, Call
from llm_guard.dialect.sse import Usage
from llm_guard.gateway.record import Recorder, overhead_s, settle, settle_host
from llm_guard.outcome import Answer, Failure, FailureKind, Refusal, Signal
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
    target: Target, began: float, ended: float | None, failure: Failure | None = None, waited: float = 0.0
) -> Attempt:
    return Attempt(target, began, waited, ended, failure)


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
    call.attempts = [tried(first, 1000.0, 1001.0, SERVER_ERROR), tried(second, 1001.0, 1002.0)]
    records.whole_call(call)
    assert records("fallbacks_total", model="gpt-4", deployment="b/y") == 1
    assert records("fallbacks_total", model="gpt-4", deployment="a/x") is None
    assert records("retries_total", deployment="b/y", kind="server_error") is None


def test_open_breaker_makes_a_fallback_of_the_next_and_of_nothing_before_it(records: Records) -> None:
    first, second = new_target("a/x"), new_target("b/y")
    skipping = new_call(first, second)
    skipping.skipped = ["a/x"]
    skipping.attempts = [tried(second, 1000.0, 1001.0)]
    assert records.whole_call(skipping)["skipped"] == ["a/x"]
    assert records("fallbacks_total", model="gpt-4", deployment="b/y") == 1

    failing = new_call(first, second)
    failing.skipped = ["b/y"]
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
    target = new_target("a/x", breaker=BreakerSettings(consecutive_failures=1))
    breaker = target.deployment.breaker
    attempt, permit = tried(target, 1000.0, None), breaker.try_acquire(1000.0)
    assert permit is not None
    records.clock.advance(2.0)
    settle(attempt, permit, Signal.UNHEALTHY, records.clock)
    settle(attempt, permit, Signal.HEALTHY, records.clock)
    assert attempt.ended_at == 1002.0
    assert breaker.snapshot(1002.0).state == "open"
    assert [(line["event"], line["deployment"], line["before"], line["after"]) for line in records.log.entries] == [
        ("breaker", "a/x", "closed", "open")
    ]


def test_settled_permit_of_a_host_is_logged_by_the_upstreams_name_and_ends_no_attempt(records: Records) -> None:
    target = new_target("a/x", breaker=BreakerSettings(consecutive_failures=1))
    host = target.deployment.host
    attempt, permit = tried(target, 1000.0, None), host.try_acquire(1000.0)
    assert permit is not None
    settle_host(attempt, permit, Signal.UNHEALTHY, records.clock)
    assert (attempt.ended_at, host.snapshot(1000.0).state) == (None, "open")
    assert target.deployment.breaker.snapshot(1000.0).state == "closed"
    assert [(line["upstream"], line["before"], line["after"]) for line in records.log.entries] == [
        ("a", "closed", "open")
    ]


@pytest.mark.parametrize("signal", [Signal.UNHEALTHY, Signal.NO_EVIDENCE])
def test_only_a_healthy_end_is_a_last_success(records: Records, signal: Signal) -> None:
    target = new_target()
    for each, seen in ((signal, None), (Signal.HEALTHY, records.clock.wall())):
        permit = target.deployment.breaker.try_acquire(1000.0)
        assert permit is not None
        settle(tried(target, 1000.0, None), permit, each, records.clock)
        assert target.deployment.last_success_wall == seen
