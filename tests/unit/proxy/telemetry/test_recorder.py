from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest
import structlog
from prometheus_client.samples import Timestamp
from structlog.testing import LogCapture

from llm_guard.admin.metrics.call_metrics import CALL_METRICS
from llm_guard.admin.metrics.declaration import bound
from llm_guard.admin.metrics.exposition import Format
from llm_guard.dialects.openai import ChatReader
from llm_guard.dialects.sse import StreamObserver, Usage
from llm_guard.log import ACCESS_LOGGER, LEVELS
from llm_guard.outcome import GATEWAYS_DOING, Exhausted, Failure, FailureKind, Refusal, RefusedBy, UpstreamErrorResponse
from llm_guard.proxy.call import Attempt, Call, Skipped
from llm_guard.proxy.telemetry.access_log import Timestamps
from llm_guard.proxy.telemetry.recorder import CallCounters, Recorder, overhead_s
from llm_guard.proxy.telemetry.trace_propagation import Tracer
from llm_guard.routing.route_table import Target
from llm_guard.trace_context import TraceContext
from tests.fakes.clock import ManualClock
from tests.fakes.script import SERVER_ERROR, new_call, new_target
from tests.scrape import Scraped, scraped

TIMEOUT = Failure(FailureKind.TIMEOUT, "no complete answer within 30 s", limit="attempt")
SUPERSEDED = Failure(FailureKind.SUPERSEDED, "another attempt of the call was faster")


class RecordedTraces:
    """Records what is exported."""

    tracer: Tracer | None = None

    def __init__(self) -> None:
        self.exported: list[tuple[Call, TraceContext, float]] = []

    def export(self, call: Call, trace: TraceContext, now: float) -> None:
        self.exported.append((call, trace, now))


class Records:
    """A recorder and its output."""

    def __init__(self) -> None:
        self.log = LogCapture()
        self.clock = ManualClock()
        self.counters = CallCounters()
        self.traces = RecordedTraces()
        self.recorder = Recorder(self.counters, self.traces, self.clock)

    def __call__(self, name: str, **labels: str) -> float | None:
        return self.scraped()(name, **labels)

    def scraped(self, form: Format = "text") -> Scraped:
        return scraped(bound(CALL_METRICS, self.counters), form)

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
    monkeypatch.setattr(
        "llm_guard.proxy.telemetry.recorder._log", structlog.wrap_logger(None, processors=[records.log])
    )
    return records


def tried(
    target: Target, began: float, ended: float | None, failure: Failure | None = None, waited: float = 0.0, **facts: Any
) -> Attempt:
    is_retry = waited > 0
    return Attempt(target, began, waited_s=waited, is_retry=is_retry, ended_at=ended, failure=failure, **facts)


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
    assert records("call_duration_seconds_sum", model="gpt-4", outcome="ok") == 10.0
    assert records("time_to_first_token_seconds_sum", model="gpt-4") == 2.5
    assert records("upstream_duration_seconds_sum", deployment="a/x", outcome="ok") == 8.0
    assert records("overhead_seconds_sum", model="gpt-4") == 2.0


def test_durations_of_failed_and_refused_calls_are_counted_separately(records: Records) -> None:
    target = new_target("a/x")
    failed, refused = new_call(target, failure=SERVER_ERROR), new_call(target)
    failed.attempts = [tried(target, 1001.0, 1004.0, SERVER_ERROR)]
    refused.refusal = Refusal(503, "circuit_open", "open", by="breaker")
    records.whole_call(failed)
    records.whole_call(refused)
    for outcome, count in (("ok", None), ("failed", 1), ("refused", 1)):
        assert records("call_duration_seconds_count", model="gpt-4", outcome=outcome) == count
    assert records("upstream_duration_seconds_sum", deployment="a/x", outcome="failed") == 3.0


def test_configured_models_and_deployments_are_counted_from_zero(records: Records) -> None:
    records.recorder.adopt([], ["quiet"], ["a/quiet"])
    for name in ("wasted_tokens", "dead_letters", "deferred_calls_accepted"):
        assert records(f"{name}_total", model="quiet") == 0
    assert records("malformed_events_total", deployment="a/quiet") == 0
    assert records("calls_total", model="quiet") is None


def test_call_is_the_example_of_the_durations_that_it_had(records: Records) -> None:
    call = new_call(new_target())
    call.first_token_at = 1002.5
    call.trace = TraceContext(0xABC, 1, None)
    records.whole_call(call)
    examples = {
        sample.name: sample.exemplar
        for sample in records.scraped("openmetrics").samples
        if sample.exemplar is not None and sample.labels["model"] == "gpt-4"
    }
    duration = examples["llm_guard_call_duration_seconds_bucket"]
    assert (duration.labels, duration.value) == ({"request_id": call.id, "trace_id": f"{0xABC:032x}"}, 10.0)
    assert duration.timestamp is not None
    assert duration.timestamp == Timestamp(int(records.clock.wall()), 0)
    assert examples["llm_guard_time_to_first_token_seconds_bucket"].value == 2.5
    assert len(examples) == 2


def test_retries_and_their_waits_are_counted_by_failure(records: Records) -> None:
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


def test_kind_of_a_retry_is_that_of_the_attempt_before_on_the_same_deployment(records: Records) -> None:
    first, second = new_target("a/x"), new_target("b/y")
    call = new_call(first, second)
    call.attempts = [
        tried(first, 1000.0, 1001.0, SERVER_ERROR),
        tried(second, 1001.0, 1002.0, TIMEOUT, is_fallback=True),
        tried(first, 1002.2, 1003.0, waited=0.2),
    ]
    records.whole_call(call)
    assert records("retries_total", deployment="a/x", kind="server_error") == 1
    assert records("retries_total", deployment="a/x", kind="timeout") is None


def test_memory_of_an_attempt_is_released_with_its_call(records: Records) -> None:
    released = []

    class Lease:
        def release(self) -> None:
            released.append(self)

    target = new_target("a/x")
    call = new_call(target)
    call.attempts = [tried(target, 1000.0, 1001.0, SERVER_ERROR, buffer=Lease()), tried(target, 1001.0, 1002.0)]
    records.whole_call(call)
    assert len(released) == 1


def test_calls_and_tokens_of_a_client_key_are_counted_for_it(records: Records) -> None:
    records.recorder.adopt(["app"], [], [])
    call = new_call(new_target("a/x"), client_key="app")
    call.usage = Usage(7, 3)
    records.whole_call(call)
    counted = records.counters.clients["app"]
    assert counted.client_calls == {"ok": 1}
    assert (counted.client_tokens["input"], counted.client_tokens["output"]) == (7, 3)


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
    assert records.whole_call(skipping)["skipped"] == [{"deployment": "a/x", "reason": "breaker open"}]
    assert records("fallbacks_total", model="gpt-4", deployment="b/y") == 1

    failing = new_call(first, second)
    failing.skipped = [Skipped("b/y", "breaker open")]
    failing.attempts = [tried(first, 1010.0, 1011.0, SERVER_ERROR)]
    records.whole_call(failing, at=1011.0)
    assert records("fallbacks_total", model="gpt-4", deployment="a/x") is None


def test_refusal_is_counted_by_cause(records: Records) -> None:
    call = new_call(new_target())
    call.refusal = Refusal(503, "breaker_open", "all open", by="breaker")
    line = records.whole_call(call)
    assert records("calls_total", model="gpt-4", outcome="refused") == 1
    assert records("refusals_total", model="gpt-4", reason="breaker") == 1
    assert records("overhead_seconds_count", model="gpt-4") is None
    assert (line["refused_by"], line["reason"], line["attempts"]) == ("breaker", "all open", [])


@pytest.mark.parametrize(
    ("end", "by", "outcome"),
    [
        (Exhausted(SERVER_ERROR, None, "in cooldown", is_cooldown=True), "cooldown", "server_error"),
        (Exhausted(Failure(FailureKind.TIMEOUT, "late", limit="total"), None, "deadline"), "deadline", "timeout"),
        (Exhausted(Failure(FailureKind.TIMEOUT, "slow", limit="attempt"), None, "no retry"), None, "timeout"),
        (Exhausted(SERVER_ERROR, None, "no retry"), None, "server_error"),
    ],
)
def test_failure_that_the_gateway_has_decided_on_is_a_refusal_too(
    records: Records, end: Exhausted, by: str | None, outcome: str
) -> None:
    call = new_call(new_target())
    call.give_up(end)
    line = records.whole_call(call)
    assert records("calls_total", model="gpt-4", outcome=outcome) == 1
    assert (line.get("refused_by"), line["gave_up"]) == (by, end.why)
    assert records("refusals_total", model="gpt-4", reason=by or "") == (1 if by else None)


def test_refused_call_is_counted_on_every_deployment_that_could_have_served_it(records: Records) -> None:
    first, second = new_target("a/x"), new_target("b/y")
    refused = new_call(first, second)
    refused.skipped = [Skipped("a/x", "breaker open"), Skipped("b/y", "no room in time"), Skipped("a/x", "in cooldown")]
    refused.refusal = Refusal(429, "at_capacity", "full", by="limit")
    records.whole_call(refused, at=1000.0)
    late = new_call(first, second)
    late.attempts = [tried(first, 1000.0, 1001.0, SERVER_ERROR)]
    late.skipped = [Skipped("b/y", "deadline")]
    late.give_up(Exhausted(Failure(FailureKind.TIMEOUT, "late", limit="total"), None, "deadline"))
    records.whole_call(late, at=1001.0)
    served = new_call(first, second)
    served.skipped = [Skipped("a/x", "breaker open")]
    served.attempts = [tried(second, 1000.0, 1001.0)]
    records.whole_call(served, at=1001.0)
    a, b = (records.counters.deployments[label] for label in ("a/x", "b/y"))
    assert (a.refusals, a.turned_away) == ({"limit": 1, "deadline": 1}, 1)
    assert (b.refusals, b.turned_away) == ({"limit": 1, "deadline": 1}, 2)


@pytest.mark.parametrize("by", ["auth", "request", "route", "drain"])
def test_callers_mistakes_and_the_shutdown_are_no_deployments_refusals(records: Records, by: Any) -> None:
    call = new_call(new_target("a/x"))
    call.skipped = [Skipped("a/x", "in cooldown")]
    call.refusal = Refusal(400, "code", "message", by=by)
    records.whole_call(call)
    assert records.counters.deployments == {}


def test_gateway_error_after_failed_upstreams_is_no_refusal(records: Records) -> None:
    call = new_call(new_target())
    call.refusal = Refusal(502, "upstream_error", "no answer that could be passed on", by=None)
    records.whole_call(call)
    assert records("calls_total", model="gpt-4", outcome="refused") == 1
    assert not [sample for sample in records.scraped().samples if "by" in sample.labels]


def test_unknown_model_is_counted_as_other(records: Records) -> None:
    call = new_call()
    call.model = "chosen-by-a-caller"
    call.refusal = Refusal(404, "model_not_found", "no route", by="route")
    records.recorder.end(call)
    assert records("calls_total", model="other", outcome="refused") == 1
    labels = {value for sample in records.scraped().samples for value in sample.labels.values()}
    assert "chosen-by-a-caller" not in labels


def test_call_that_failed_is_counted_by_its_kind(records: Records) -> None:
    target = new_target("a/x")
    call = new_call(target)
    call.attempts = [tried(target, 1000.0, 1001.0, TIMEOUT)]
    call.failure, call.sent_status = TIMEOUT, 504
    line = records.whole_call(call)
    assert records("calls_total", model="gpt-4", outcome="timeout") == 1
    assert (line["outcome"], line["status"], line["reason"]) == ("timeout", 504, TIMEOUT.detail)
    assert line["attempts"] == [
        {
            "deployment": "a/x", "outcome": "timeout", "waited_s": 0.0, "started_s": 0.0, "duration_s": 1.0,
            "reason": TIMEOUT.detail,
        }
    ]  # fmt: skip


def test_calls_in_flight_return_to_zero(records: Records) -> None:
    calls = [new_call(new_target()) for _ in range(3)]
    for number, call in enumerate(calls):
        call.id = f"lg-{number}"
        records.recorder.begin(call)
    assert records("in_flight_calls", model="gpt-4") == 3
    for call in calls:
        records.recorder.end(call)
    assert records("in_flight_calls", model="gpt-4") == 0
    assert not any(call.is_in_flight for call in calls)


def test_call_that_never_began_is_not_taken_from_those_in_flight(records: Records) -> None:
    refused = new_call(new_target())
    refused.refusal = Refusal(400, "wrong_dialect", "ask elsewhere", by="route")
    records.recorder.end(refused)
    assert records("in_flight_calls", model="gpt-4") is None
    records.recorder.begin(new_call(new_target()))
    records.recorder.end(refused)
    assert records("in_flight_calls", model="gpt-4") == 1


def test_overhead_excludes_exchanges_and_waits() -> None:
    target = new_target()
    call = new_call(target)
    call.attempts = [tried(target, 1001.0, 1003.0), tried(target, 1004.0, None, waited=1.0)]
    assert overhead_s(call, 1010.0) == pytest.approx(1.0)
    call.started_at = 1009.0
    assert overhead_s(call, 1010.0) == 0.0


def test_overhead_excludes_concurrent_attempts_once() -> None:
    target = new_target()
    call = new_call(target)
    call.attempts = [
        tried(target, 1001.0, 1005.0),
        tried(target, 1003.0, 1007.0, is_hedge=True),
        tried(target, 1002.0, 1004.0, is_hedge=True),
    ]
    assert overhead_s(call, 1010.0) == pytest.approx(4.0)


def test_overhead_is_never_below_nothing() -> None:
    """Sums of differences may come out 1e-16 too large."""
    target = new_target()
    call = new_call(target)
    call.started_at, middle, end = 0.8, 0.9, 2.1
    call.attempts = [tried(target, call.started_at, middle), tried(target, middle, end)]
    assert overhead_s(call, end) == 0.0


CANARY = "sk-canary"


def plant_in_headers(call: Call) -> None:
    call.headers = (("Authorization", f"Bearer {CANARY}"), ("X-Custom", CANARY))


def plant_in_body(call: Call) -> None:
    call.body = f'{{"messages": "{CANARY}"}}'.encode()


def plant_in_query(call: Call) -> None:
    call.query = f"key={CANARY}"


def plant_in_answer(call: Call) -> None:
    answer = UpstreamErrorResponse(500, "", (("x", CANARY),), CANARY.encode())
    call.failure = Failure(FailureKind.SERVER_ERROR, "answered 500", answer=answer)
    call.attempts[0].failure = call.failure


def plant_in_upstream_key(call: Call) -> None:
    target = new_target(api_key=CANARY)
    call.attempts = [tried(target, 1000.0, 1001.0)]


@pytest.mark.parametrize(
    "plant", [plant_in_headers, plant_in_body, plant_in_query, plant_in_answer, plant_in_upstream_key]
)
def test_log_line_has_no_body_key_or_header(records: Records, plant: Callable[[Call], None]) -> None:
    target = new_target()
    call = new_call(target)
    call.client_key = "app-1"
    call.attempts = [tried(target, 1000.0, 1001.0)]
    plant(call)
    line = records.whole_call(call)
    assert line["client"] == "app-1"
    assert CANARY not in repr(line)


# call records and log lines


def stored_lines(records: Records) -> list[dict[str, Any]]:
    return [json.loads(line) for line in records.recorder.timelines.newest()]


def test_line_of_each_call_is_stored_with_the_time_of_its_end(records: Records) -> None:
    call = new_call(new_target("a/x"))
    line = records.whole_call(call)
    (entry,) = stored_lines(records)
    assert entry["timestamp"] == "2027-01-15T08:00:10.000000Z"
    assert {**line, "level": "info"} == {
        **{key: entry[key] for key in entry if key != "timestamp"},
        "log_level": "info",
    }


def refused(by: Any) -> Callable[[Call], None]:
    def refuse(call: Call) -> None:
        call.refusal = Refusal(400, "code", "message", by=by)

    return refuse


def failed(kind: FailureKind) -> Callable[[Call], None]:
    def fail(call: Call) -> None:
        call.failure = Failure(kind, "detail")
        call.attempts = [tried(new_target("a/x"), 1000.0, 1001.0, call.failure)]

    return fail


@pytest.mark.parametrize(
    ("end", "is_failed"),
    [
        (lambda _call: None, False),
        (refused("auth"), False),
        (refused("route"), False),
        (refused("request"), False),
        (refused("drain"), False),
        (refused("breaker"), True),
        (refused("hold"), True),
        (refused("limit"), True),
        (refused("deadline"), True),
        (failed(FailureKind.CLIENT_CANCELLED), False),
        (failed(FailureKind.INVALID_REQUEST), False),
        (failed(FailureKind.AUTH), False),
        (failed(FailureKind.TIMEOUT), True),
        (failed(FailureKind.RATE_LIMIT), True),
        (failed(FailureKind.INTERNAL), True),
    ],
)
def test_failed_calls_are_those_that_could_have_succeeded(
    records: Records, end: Callable[[Call], None], is_failed: bool
) -> None:
    call = new_call(new_target("a/x"))
    end(call)
    records.recorder.end(call)
    assert len(stored_lines(records)) == 1
    assert (records.recorder.timelines.snapshot().failed == 1) == is_failed


def test_call_that_no_deployment_received_displaces_no_failed_call(records: Records) -> None:
    records.recorder.timelines.limit(1, 1 << 20)
    for end in (failed(FailureKind.TIMEOUT), refused("breaker"), refused("limit")):
        call = new_call(new_target("a/x"))
        end(call)
        records.clock.advance(1.0)
        records.recorder.end(call)
    assert [each["outcome"] for each in stored_lines(records)] == ["refused", "timeout"]


def test_quiet_log_has_no_calls_and_the_timelines_have(records: Records) -> None:
    LEVELS.override(ACCESS_LOGGER, "warning")
    try:
        records.recorder.end(new_call(new_target("a/x")))
        assert records.log.entries == []
    finally:
        LEVELS.override(ACCESS_LOGGER, None)
    assert len(stored_lines(records)) == 1
    records.recorder.end(new_call(new_target("a/x")))
    assert len(records.log.entries) == 1


def test_traced_call_is_exported_at_its_end(records: Records) -> None:
    call = new_call(new_target("a/x"))
    call.trace = TraceContext(1, 2, None)
    records.whole_call(call)
    assert records.traces.exported == [(call, call.trace, 1010.0)]


def test_call_without_a_trace_is_not_exported(records: Records) -> None:
    records.whole_call(new_call(new_target("a/x")))
    assert records.traces.exported == []


def test_line_of_a_stream_has_the_response_time_of_each_attempt(records: Records) -> None:
    call = new_call(new_target("a/x"))
    target = new_target("a/x")
    call.attempts = [
        tried(target, 1001.0, 1003.0, SERVER_ERROR, is_stream=True),
        tried(target, 1004.0, 1009.0, waited=1.0, is_stream=True, answered_at=1005.5),
    ]
    first, second = records.whole_call(call)["attempts"]
    assert (first["started_s"], first["duration_s"], "answered_s" in first) == (1.0, 2.0, False)
    assert (second["started_s"], second["duration_s"], second["answered_s"]) == (4.0, 5.0, 1.5)


# wasted tokens and malformed events


def watched(tokens: int = 0, garbled: int = 0) -> StreamObserver:
    watch = StreamObserver(ChatReader(1))
    watch.tokens, watch.garbled = tokens, garbled
    return watch


def test_tokens_of_a_stream_that_died_in_the_prebuffer_are_wasted(records: Records) -> None:
    target = new_target("a/x")
    call = new_call(target)
    call.wasted_tokens = 3
    call.attempts = [
        tried(target, 1000.0, 1001.0, SERVER_ERROR, watch=watched(tokens=4)),
        tried(target, 1001.0, 1002.0, SERVER_ERROR, watch=watched(tokens=20), answered_at=1001.5),
        tried(target, 1002.0, 1003.0, watch=watched(tokens=100)),
    ]
    records.whole_call(call)
    assert records("wasted_tokens_total", model="gpt-4") == 7


def test_call_whose_tokens_all_arrived_wastes_none(records: Records) -> None:
    target = new_target("a/x")
    call = new_call(target)
    call.attempts = [tried(target, 1000.0, 1001.0, watch=watched(tokens=100))]
    records.whole_call(call)
    assert records("wasted_tokens_total", model="gpt-4") == 0
    assert records("malformed_events_total", deployment="a/x") == 0


def test_events_that_could_not_be_read_are_counted_for_their_deployment(records: Records) -> None:
    first, second = new_target("a/x"), new_target("b/y")
    call = new_call(first, second)
    call.attempts = [
        tried(first, 1000.0, 1001.0, SERVER_ERROR, watch=watched(garbled=2)),
        tried(second, 1001.0, 1002.0, watch=watched(garbled=5)),
    ]
    records.whole_call(call)
    assert records("malformed_events_total", deployment="a/x") == 2
    assert records("malformed_events_total", deployment="b/y") == 5


def test_stream_resumes_are_counted_by_mode_and_outcome(records: Records) -> None:
    first, second = new_target("a/x"), new_target("b/y")
    call = new_call(first, second)
    call.attempts = [
        tried(first, 1000.0, 1001.0, SERVER_ERROR),
        tried(second, 1001.0, 1002.0, TIMEOUT, resume_mode="instruction"),
        tried(first, 1002.0, 1003.0, resume_mode="prefill"),
    ]
    line = records.whole_call(call)
    assert records("stream_resumes_total", model="gpt-4", mode="instruction", outcome="timeout") == 1
    assert records("stream_resumes_total", model="gpt-4", mode="prefill", outcome="ok") == 1
    assert [each.get("resume_mode") for each in line["attempts"]] == [None, "instruction", "prefill"]


# hedges, waits, and the fields of the log line


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
    call.attempts.append(tried(target, 1010.0, 1011.0, waited=6.0, waited_for="queue"))
    records.whole_call(call, at=1011.0)
    assert records("queue_wait_seconds_sum", deployment="a/x") == 12.0
    assert records("retries_total", deployment="a/x", kind="ok") == 1
    assert records("retry_delay_seconds_count", deployment="a/x") is None
    assert (line["attempts"][0]["waited_s"], line["attempts"][0]["waited_for"]) == (3.0, "queue")
    assert line["overhead_s"] == 6.0


def test_log_line_has_facts_and_decision_of_each_attempt(records: Records) -> None:
    target = new_target("a/x")
    call = new_call(target)
    failed = tried(target, 1000.0, 1001.0, TIMEOUT, breaker="half_open", next_step="retry after 0.2 s", budget_left=3.5)
    again = tried(target, 1001.2, 1002.0, waited=0.2, waited_for="backoff")
    call.attempts = [failed, again]
    line = records.whole_call(call)
    assert line["attempts"] == [
        {
            "deployment": "a/x", "outcome": "timeout", "waited_s": 0.0, "started_s": 0.0, "duration_s": 1.0,
            "breaker": "half_open", "reason": TIMEOUT.detail, "next_step": "retry after 0.2 s", "budget_left": 3.5,
        },
        {
            "deployment": "a/x", "outcome": "ok", "waited_s": 0.2, "started_s": 1.2, "duration_s": 0.8,
            "waited_for": "backoff",
        },
    ]  # fmt: skip


def test_log_line_states_why_no_further_attempt_was_made(records: Records) -> None:
    target = new_target("a/x")
    call = new_call(target)
    call.attempts = [tried(target, 1000.0, 1001.0, SERVER_ERROR)]
    call.failure, call.gave_up = SERVER_ERROR, "retry budget empty"
    assert records.whole_call(call)["gave_up"] == "retry budget empty"


# lines that bypass structlog


class Lines:
    """A stand-in for `LogWriter`."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, line: bytes) -> None:
        self.written.append(line)


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Lines:
    """Collects the lines of recorders that are created from now on."""
    lines = Lines()
    monkeypatch.setattr("llm_guard.proxy.telemetry.recorder.direct_writer", lambda: lines)
    return lines


def call_with_everything() -> Call:
    target = new_target("a/x")
    call = new_call(target)
    failed = tried(target, 1000.0, 1001.0, TIMEOUT, breaker="half_open", next_step="retry", resume_mode="instruction")
    call.attempts = [failed, tried(target, 1001.2, None, waited=0.2, waited_for="backoff", is_hedge=True)]
    call.skipped = [Skipped("b/y", "breaker open")]
    call.client_key, call.first_token_at = "app-1", 1001.23456
    call.failure, call.gave_up = TIMEOUT, None
    return call


def call_that_was_refused() -> Call:
    call = new_call()
    call.refusal = Refusal(401, "invalid_api_key", "not known", by="auth")
    return call


@pytest.mark.parametrize("by", get_args(RefusedBy))
def test_refusal_counts_against_the_service_only_where_another_request_would_not_have_avoided_it(
    records: Records, by: RefusedBy
) -> None:
    """A tenant that requests what its key does not allow must not cause an alert or make the model look broken."""
    call = new_call(new_target("a/x"))
    call.refusal = Refusal(503, "refused", "not now", by=by)
    records.whole_call(call)
    (model,) = records.recorder.models.values()
    assert model.judged == (by in GATEWAYS_DOING)
    assert len(model.recent) == model.judged


@pytest.mark.parametrize("make", [call_with_everything, call_that_was_refused])
def test_line_written_directly_equals_that_of_structlog(
    records: Records, lines: Lines, make: Callable[[], Call]
) -> None:
    through_structlog = records.whole_call(make())
    straight = Records()
    straight.recorder.begin(call := make())
    straight.clock.advance(10.0)
    straight.recorder.end(call)
    (written,) = lines.written
    line = json.loads(written)
    assert list(line)[-3:] == ["event", "level", "timestamp"]
    assert (line.pop("level"), line.pop("timestamp")) == ("info", "2027-01-15T08:00:10.000000Z")
    del through_structlog["log_level"]
    assert list(line.items()) == list(through_structlog.items())


def test_text_of_a_client_stays_within_its_line(lines: Lines) -> None:
    recorder = Records().recorder
    call = new_call()
    call.model, call.path = 'gpt"\n{"event": "call"}', "/v1/\x1b[2J\x9b31m\u202e\u2028\udc80\x00"
    recorder.end(call)
    (written,) = lines.written
    assert written.isascii()
    assert written.decode().removesuffix("\n").isprintable()
    line = json.loads(written)
    assert (line["model"], line["path"]) == (call.model, call.path)


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.00004, 0.0), (0.00006, 0.0001), (1.23456, 1.2346), (599.99996, 600.0)]
)
def test_durations_are_rounded_to_a_tenth_of_a_millisecond(records: Records, seconds: float, shown: float) -> None:
    assert records.whole_call(new_call(), at=1000.0 + seconds)["duration_s"] == shown


def test_timestamps_equal_isoformat_for_any_clock_change() -> None:
    stamps = Timestamps()
    for wall in (0.0, 1_800_000_000.0, 1_800_000_000.25, 1_800_000_001.9999990, 1_799_999_999.5, 1_800_000_001.000005):
        told = stamps.of(wall)
        exact = datetime.fromtimestamp(wall, UTC)
        assert told.endswith("Z")
        assert abs(datetime.fromisoformat(told) - exact) <= timedelta(microseconds=1)
        assert len(told) == len("2026-01-31T23:59:59.123456Z")
