"""Traces: one span for each call and each attempt, sent to a collector that is healthy, slow or gone."""

from __future__ import annotations

import importlib.util
import re
import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from llm_guard.config import ConfigError, parse_config
from tests.chaos.forms import CHAT, MESSAGES
from tests.chaos.lag import measured
from tests.chaos.stand import Stand, config_of, config_text, facing
from tests.chaos.wire import ask
from tests.fakes.provider import END, Hold, Reset, ScriptedProvider, Step, chunk, stream_head, whole
from tests.fakes.waiting import eventually

BUSY = (whole(503, b'{"error":{"message":"The server is currently overloaded"}}'),)
TAKEN = (whole(200, b""),)
RETRY = {"max_attempts": 2}
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
SAID = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "a=b"}


class Traced:
    """A gateway in front of a provider, and what its collector had received when it stopped."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.resource: dict[str, Any] = {}
        self.stand: Stand
        self.provider: ScriptedProvider

    async def ask(self, headers: Mapping[str, str] | None = None, **more: Any) -> str:
        """Makes a call and returns its id."""
        reply = await ask(self.stand.url, CHAT.path, CHAT.body(**more), headers)
        return reply.headers["x-llm-guard-request-id"]

    def take(self, request: bytes) -> None:
        sent = ExportTraceServiceRequest.FromString(request.partition(b"\r\n\r\n")[2])
        for resource in sent.resource_spans:
            self.resource = facts(resource.resource.attributes)
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]

    @property
    def call(self) -> Span:
        (span,) = [span for span in self.spans if span.kind == Span.SpanKind.SPAN_KIND_SERVER]
        return span

    @property
    def attempts(self) -> list[Span]:
        found = [span for span in self.spans if span.kind == Span.SpanKind.SPAN_KIND_CLIENT]
        return sorted(found, key=lambda span: span.start_time_unix_nano)


def facts(attributes: Any) -> dict[str, Any]:
    return {attribute.key: value(attribute.value) for attribute in attributes}


def value(said: Any) -> Any:
    kind = said.WhichOneof("value")
    return [value(each) for each in said.array_value.values] if kind == "array_value" else getattr(said, kind)


@pytest.fixture(autouse=True)
async def exporter_threads_end_with_their_test(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """A thread that still retries would reach the sockets of later tests."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "1")
    yield
    await eventually(lambda: not exporter_threads(), within_s=20)


def exporter_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "traces" or "Otel" in thread.name]


@asynccontextmanager
async def traced(
    *scripts: tuple[Step, ...], traces: Mapping[str, Any] | None = None, **sections: Any
) -> AsyncIterator[Traced]:
    seen = Traced()
    async with ScriptedProvider(*[TAKEN] * 5) as collector:
        ops = {"traces": {"endpoint": f"{collector.url}/v1/traces", **(traces or {})}}
        async with facing(*scripts, ops=ops, **sections) as (seen.stand, seen.provider):
            yield seen
        for request in collector.requests:
            assert request.startswith(b"POST /v1/traces HTTP/1.1\r\n")
            seen.take(request)


def passed_on(provider: ScriptedProvider) -> list[str | None]:
    """Returns the `traceparent` of each request."""
    found = [re.findall(rb"(?i)\r\ntraceparent: ([^\r]*)", request) for request in provider.requests]
    assert all(len(each) <= 1 for each in found)
    return [each[0].decode() if each else None for each in found]


async def test_call_and_each_attempt_have_a_span_below_the_callers() -> None:
    async with traced(BUSY, CHAT.ok, retry=RETRY) as seen:
        name = await seen.ask(SAID)
        sent = passed_on(seen.provider)
    assert seen.call.trace_id.hex() == TRACE
    assert seen.call.parent_span_id.hex() == SPAN
    assert len(seen.attempts) == 2
    for attempt, header in zip(seen.attempts, sent, strict=True):
        assert attempt.trace_id.hex() == TRACE
        assert attempt.parent_span_id == seen.call.span_id
        assert header == f"00-{TRACE}-{attempt.span_id.hex()}-01"
    assert all(b"\r\ntracestate: a=b\r\n" in request for request in seen.provider.requests)
    assert len({span.span_id for span in seen.spans}) == 3
    said = facts(seen.call.attributes)
    assert (said["llm_guard.request_id"], said["llm_guard.attempts"], said["llm_guard.outcome"]) == (name, 2, "ok")
    assert seen.resource["service.name"] == "llm-guard"


async def test_span_has_the_attributes_of_the_conventions() -> None:
    async with traced(CHAT.good_stream) as seen:
        await seen.ask(stream=True)
    (attempt,) = seen.attempts
    assert (seen.call.name, attempt.name) == ("chat gpt", "chat gpt")
    call, asked = facts(seen.call.attributes), facts(attempt.attributes)
    assert {key: call[key] for key in call if not key.startswith("llm_guard.")} == {
        "http.request.method": "POST", "url.path": "/v1/chat/completions", "http.response.status_code": 200,
        "gen_ai.operation.name": "chat", "gen_ai.request.model": "gpt", "gen_ai.request.stream": True,
    }  # fmt: skip
    port = int(seen.provider.url.rsplit(":", 1)[1])
    assert asked.pop("gen_ai.response.time_to_first_chunk") > 0
    assert {key: asked[key] for key in asked if not key.startswith(("llm_guard.", "gen_ai.usage"))} == {
        "http.request.method": "POST", "http.response.status_code": 200, "server.address": "127.0.0.1",
        "server.port": port, "gen_ai.operation.name": "chat", "gen_ai.provider.name": "local",
        "gen_ai.request.model": "gpt", "gen_ai.request.stream": True,
    }  # fmt: skip


async def test_tokens_are_recorded_once_at_the_attempt_that_answered() -> None:
    usage = b'{"prompt_tokens":7,"completion_tokens":3}'
    answer = b'{"choices":[{"message":{"role":"assistant","content":"a"}}],"usage":' + usage + b"}"
    async with traced(BUSY, (whole(200, answer),), retry=RETRY) as seen:
        await seen.ask()
    told = [facts(span.attributes) for span in (seen.call, *seen.attempts)]
    assert ["gen_ai.usage.input_tokens" in each for each in told] == [False, False, True]
    assert (told[2]["gen_ai.usage.input_tokens"], told[2]["gen_ai.usage.output_tokens"]) == (7, 3)


async def test_times_are_those_of_the_call() -> None:
    before = time.time_ns()
    async with traced(BUSY, CHAT.ok, retry=RETRY) as seen:
        await seen.ask()
    call, (first, second) = seen.call, seen.attempts
    instants = [
        call.start_time_unix_nano, first.start_time_unix_nano, first.end_time_unix_nano, second.start_time_unix_nano,
        second.end_time_unix_nano, call.end_time_unix_nano,
    ]  # fmt: skip
    assert instants == sorted(instants)
    assert instants[3] - instants[2] > 3_000_000  # the wait between them
    slack = 50_000_000
    assert before - slack <= instants[0]
    assert instants[-1] <= time.time_ns() + slack


async def test_failure_is_an_error_with_its_kind() -> None:
    async with traced(BUSY) as seen:
        await seen.ask()
    for span in (seen.call, *seen.attempts):
        assert span.status.code == 2
        assert facts(span.attributes)["error.type"] == "overloaded"
    assert "answered 503" in facts(seen.call.attributes)["llm_guard.reason"]
    assert facts(seen.attempts[0].attributes)["http.response.status_code"] == 503


async def test_client_error_is_no_error_of_the_gateway() -> None:
    async with traced() as seen:
        await ask(seen.stand.url, CHAT.path, b'{"model":"nobody"}')
    said = facts(seen.call.attributes)
    assert (seen.call.status.code, seen.call.name, "error.type" in said) == (0, "POST", False)
    assert (said["llm_guard.refused_by"], said["http.response.status_code"]) == ("route", 404)


async def test_new_trace_begins_without_a_valid_traceparent() -> None:
    async with traced(CHAT.ok, CHAT.ok) as seen:
        await seen.ask()
        await seen.ask({"traceparent": "nonsense", "tracestate": "others=1"})
        first, second = passed_on(seen.provider)
    assert len({span.trace_id for span in seen.spans}) == 2
    assert all(not span.parent_span_id for span in seen.spans if span.kind == Span.SpanKind.SPAN_KIND_SERVER)
    assert first is not None
    assert second is not None
    assert second != "nonsense"
    assert b"others=1" not in seen.provider.requests[1]


async def test_untraced_caller_is_left_untraced() -> None:
    unsampled = f"00-{TRACE}-{SPAN}-00"
    async with traced(CHAT.ok, CHAT.ok, traces={"sample": 0}) as seen:
        await seen.ask({"traceparent": unsampled})
        await seen.ask()
        assert passed_on(seen.provider) == [unsampled, None]
    assert seen.spans == []


async def test_sampling_flag_of_the_caller_holds_when_no_others_are_traced() -> None:
    async with traced(CHAT.ok, traces={"sample": 0}) as seen:
        await seen.ask(SAID)
    assert seen.call.trace_id.hex() == TRACE


async def test_log_line_of_a_call_has_the_id_of_its_trace() -> None:
    async with traced(CHAT.ok, CHAT.ok) as seen:
        await seen.ask(SAID)
        await seen.ask()
        lines = [line for line in seen.stand.log if line["event"] == "call"]
    assert lines[0]["trace_id"] == TRACE
    assert lines[1]["trace_id"] in {span.trace_id.hex() for span in seen.spans} - {TRACE}


@pytest.mark.parametrize("flags", ["00", "01"])
async def test_log_line_has_the_callers_trace_also_where_the_gateway_exports_none(flags: str) -> None:
    async with facing(CHAT.ok, CHAT.ok, CHAT.ok) as (stand, _):
        await ask(stand.url, CHAT.path, CHAT.body(), {"traceparent": f"00-{TRACE}-{SPAN}-{flags}"})
        await ask(stand.url, CHAT.path, CHAT.body(), {"traceparent": "nonsense"})
        await ask(stand.url, CHAT.path, CHAT.body())
        lines = [line for line in stand.log if line["event"] == "call"]
    assert [line.get("trace_id") for line in lines] == [TRACE, None, None]


async def test_error_of_the_gateway_is_logged_with_the_trace_of_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    async with facing(CHAT.ok) as (stand, _):
        monkeypatch.setattr("llm_guard.proxy.handler.identify", lambda *_: 1 / 0)
        await ask(stand.url, CHAT.path, CHAT.body(), SAID)
        [line] = [line for line in stand.log if line["event"] == "unexpected error in a call"]
    assert line["trace_id"] == TRACE


async def test_without_traces_the_callers_headers_pass_as_they_are() -> None:
    async with facing(CHAT.ok) as (stand, provider):
        await ask(stand.url, CHAT.path, CHAT.body(), SAID)
        assert passed_on(provider) == [SAID["traceparent"]]
        assert stand.app.ops._traces.tracer is None


@pytest.mark.parametrize("script", [(Reset(),), (Hold(),)], ids=["resets", "never answers"])
async def test_failing_collector_affects_no_call_and_no_shutdown(script: tuple[Step, ...]) -> None:
    async with ScriptedProvider(*[script] * 50) as collector:
        ops = {"traces": {"endpoint": f"{collector.url}/v1/traces"}}
        with measured() as lag:
            async with facing(*[CHAT.ok] * 20, ops=ops) as (stand, _):
                for _ in range(20):
                    assert (await CHAT.ask(stand.url)).status == 200
                began_at = time.monotonic()
            assert time.monotonic() - began_at < 5 + lag.total_s


async def test_unreachable_collector_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    ops = {"traces": {"endpoint": "http://127.0.0.1:1/v1/traces"}}
    async with facing(*[CHAT.ok] * 3, ops=ops) as (stand, _):
        for _ in range(3):
            await CHAT.ask(stand.url)
        await eventually(lambda: any(line["event"] == "spans lost" for line in stand.log), within_s=10)
    assert len([line for line in stand.log if line["event"] == "spans lost"]) == 1


async def test_reload_switches_traces_on_and_off() -> None:
    async with ScriptedProvider(TAKEN) as collector, facing(*[CHAT.ok] * 3) as (stand, provider):
        on = config_of(provider.url, ops={"traces": {"endpoint": f"{collector.url}/v1/traces"}})
        await CHAT.ask(stand.url)
        stand.app.ops.adopt(on)
        await CHAT.ask(stand.url)
        await stand.idle()
        stand.app.ops.adopt(config_of(provider.url))
        await CHAT.ask(stand.url)
        assert [each is not None for each in passed_on(provider)] == [False, True, False]
        await eventually(lambda: len(collector.requests) == 1, within_s=5)
        await eventually(lambda: not exporter_threads())


PROMPT, ANSWER, KEY = "CANARY-prompt-51c2", "CANARY-answer-77aa", "sk-CANARY-key-30b1"


async def test_no_prompt_answer_or_key_is_in_a_span() -> None:
    whole_answer = (whole(200, b'{"choices":[{"message":{"content":"%b"}}]}' % ANSWER.encode()),)
    failing = (whole(500, b'{"error":{"message":"%b %b"}}' % (PROMPT.encode(), KEY.encode()), {"x-echo": KEY}),)
    script = (
        stream_head(),
        chunk(CHAT.token.replace(b'"content": "', b'"content": "' + ANSWER.encode())),
        chunk(CHAT.end),
        END,
    )
    headers = {"Authorization": f"Bearer {KEY}", "x-more": PROMPT}
    async with traced(whole_answer, failing, script) as seen:
        for more in ({}, {}, {"stream": True}):
            body = CHAT.body(messages=[{"role": "user", "content": PROMPT}], **more)
            await ask(seen.stand.url, f"{CHAT.path}?key={KEY}&q={PROMPT}", body, headers)
    assert len(seen.spans) == 6
    for secret in (PROMPT, ANSWER, KEY):
        assert secret not in str(seen.spans)


# the config


def problem(url: str) -> str:
    with pytest.raises(ConfigError) as found:
        parse_config(config_text("http://127.0.0.1:1", ops={"traces": {"endpoint": url}}), "test.yaml", {})
    return str(found.value)


@pytest.mark.parametrize(
    "url", ["collector:4318", "http://collector", "ftp://a/b", "http://u:p@a/v1/traces", "http:///x"]
)
def test_endpoint_is_a_whole_url(url: str) -> None:
    assert "ops.traces.endpoint: must be the full URL" in problem(url)


def test_traces_without_the_packages_are_an_error_that_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("opentelemetry", "opentelemetry.exporter.otlp.proto.http.trace_exporter"):
        real = importlib.util.find_spec
        with monkeypatch.context() as patched:
            patched.setattr(
                "llm_guard.config.operator.find_spec",
                lambda wanted, missing=name, real=real: None if wanted.startswith(missing) else real(wanted),
            )
            assert "pip install 'llm-guard-proxy[otel]'" in problem("http://127.0.0.1:4318/v1/traces")


async def test_anthropic_calls_are_labelled_as_anthropic() -> None:
    async with traced(MESSAGES.ok) as seen:
        await MESSAGES.ask(seen.stand.url)
    assert facts(seen.attempts[0].attributes)["gen_ai.operation.name"] == "chat"
    assert seen.attempts[0].name == "chat claude"
