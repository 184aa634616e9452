"""The requests of a probe, and how it judges the responses: over real connections to a scripted provider."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from llm_guard.config import Auth
from llm_guard.outcome import FailureKind
from llm_guard.proxy.http_client.connection_pool import ConnectionPool, UpstreamError
from llm_guard.resilience.health.probe_policy import CompletionProbeSettings, ProbeResult, ProbeSettings
from llm_guard.routing.deployment import Upstream
from llm_guard.upstreams.probes.probe import new_probe, result_of_error
from llm_guard.upstreams.probes.targets import ProbeTarget
from tests.fakes.provider import END, Close, Hold, Respond, ScriptedProvider, Step, chunk, stream_head, whole
from tests.fakes.waiting import eventually

HEALTH, MODELS, COMPLETION = ProbeSettings(), ProbeSettings(kind="models"), CompletionProbeSettings()
NO_BODY = [Respond(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")]
HAS_JSON = [Respond(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n")]
NO_HEAD = [Respond(b"HTTP/1.1 405 Method Not Allowed\r\nAllow: GET\r\nContent-Length: 31\r\n\r\n")]
NOT_THERE_AT_HEAD = [Respond(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")]


def listing(*names: str) -> list[Step]:
    listed = {"object": "list", "data": [{"id": name, "object": "model"} for name in names]}
    return [whole(200, json.dumps(listed).encode())]


def said(status: object, code: int = 200) -> list[Step]:
    return [whole(code, json.dumps({"status": status}).encode())]


async def looks(
    count: int,
    *scripts: Sequence[Step],
    settings: ProbeSettings | CompletionProbeSettings = HEALTH,
    wanted: tuple[str, ...] = (),
    dialect: Any = "openai",
    base_path: str = "/v1",
    api_key: str | None = None,
    family: str = "",
) -> tuple[list[ProbeResult], list[bytes]]:
    """Returns the results of `count` probes, and the requests that they sent."""
    connections = ConnectionPool()
    async with ScriptedProvider(*scripts) as provider:
        auth: Auth = "x-api-key" if dialect == "anthropic" else "bearer"
        upstream = Upstream("a", dialect, provider.url + base_path, api_key, auth, family)
        model = "m" if settings is COMPLETION else None
        look = new_probe(ProbeTarget(upstream, settings, model, wanted=wanted), connections)
        try:
            return [await _seen(look.look()) for _ in range(count)], provider.requests
        finally:
            await connections.close()


async def _seen(looking: Any) -> ProbeResult:
    async with asyncio.timeout(5):
        try:
            result: ProbeResult = await looking
        except UpstreamError as error:
            result = result_of_error(error)
        return result


def lines(requests: list[bytes]) -> list[str]:
    return [request.split(b"\r\n", 1)[0].decode().removesuffix(" HTTP/1.1") for request in requests]


# health page


async def test_head_is_enough_where_there_is_nothing_to_read() -> None:
    sights, requests = await looks(2, NO_BODY)
    assert sights == [ProbeResult("ok"), ProbeResult("ok")]
    assert lines(requests) == ["HEAD /health", "HEAD /health"]


async def test_page_is_read_where_there_is_json_and_from_then_on_at_once() -> None:
    sights, requests = await looks(2, HAS_JSON, said("ok"), said("loading model"))
    assert sights == [ProbeResult("ok"), ProbeResult("failed", "its health page reports 'loading model'")]
    assert lines(requests) == ["HEAD /health", "GET /health", "GET /health"]


@pytest.mark.parametrize("refusal", [NO_HEAD, NOT_THERE_AT_HEAD])
async def test_refused_head_request_is_not_repeated(refusal: Sequence[Step]) -> None:
    sights, requests = await looks(2, refusal, NO_BODY, NO_BODY)
    assert sights == [ProbeResult("ok"), ProbeResult("ok")]
    assert lines(requests) == ["HEAD /health", "GET /health", "GET /health"]


async def test_missing_health_page_does_no_harm_by_either_method() -> None:
    sights, requests = await looks(1, NOT_THERE_AT_HEAD, [whole(404, b'{"detail":"Not Found"}')])
    assert sights == [ProbeResult("answered", "it answered 404 to the health page")]
    assert len(requests) == 2


async def test_unhealthy_page_is_no_reason_to_stop_using_head() -> None:
    unwell: list[Step] = [Respond(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n")]
    sights, requests = await looks(2, unwell, [whole(503, b"{}")], NO_BODY)
    assert [sight.finding for sight in sights] == ["failed", "ok"]
    assert lines(requests) == ["HEAD /health", "GET /health", "HEAD /health"]


@pytest.mark.parametrize(
    "body", [b"", b"Ollama is running", b"{", b"[]", b'"ok"', b"\xff", b'{"a":"\xff"}', b'{"a":' * 10_000, b"{}"]
)
async def test_page_that_is_no_json_object_is_judged_by_its_status(body: bytes) -> None:
    sights, _ = await looks(1, NO_HEAD, [whole(200, body)])
    assert sights == [ProbeResult("ok")]


async def test_page_without_an_end_is_not_read_on() -> None:
    endless: list[Step] = [stream_head(200, {"content-type": "application/json"}), *[chunk(b"x" * 30_000)] * 4, Hold()]
    sights, _ = await looks(1, NO_HEAD, endless)
    assert sights == [ProbeResult("ok")]


async def test_page_that_is_cut_is_a_failure() -> None:
    cut: list[Step] = [stream_head(200), chunk(b"{"), Close()]
    sights, _ = await looks(1, NO_HEAD, cut)
    assert sights == [ProbeResult("failed", "the response was cut off")]


async def test_path_is_from_the_root_of_the_host() -> None:
    _, requests = await looks(1, NO_BODY, settings=ProbeSettings(path="/up?x=1"), base_path="/deep/v1")
    assert lines(requests) == ["HEAD /up?x=1"]


async def test_connection_that_had_been_closed_is_no_failure() -> None:
    sights, requests = await looks(2, NO_HEAD, NO_BODY, [Close()], NO_BODY)
    assert sights == [ProbeResult("ok"), ProbeResult("ok")]
    assert lines(requests) == ["HEAD /health", "GET /health", "GET /health", "GET /health"]


async def test_connection_that_is_refused_is_a_failure() -> None:
    connections = ConnectionPool()
    upstream = Upstream("a", "openai", "http://127.0.0.1:1/v1", None, "bearer")
    result = await _seen(new_probe(ProbeTarget(upstream, HEALTH), connections).look())
    assert result.finding == "failed"
    assert result.why.startswith("connecting failed: ")
    await connections.close()


# models


async def test_list_of_models_is_requested_with_the_key_of_the_upstream() -> None:
    sights, requests = await looks(1, listing("m"), settings=MODELS, wanted=("m",), api_key="sk-1")
    assert sights == [ProbeResult("ok")]
    assert lines(requests) == ["GET /v1/models"]
    assert b"\r\nAuthorization: Bearer sk-1\r\n" in requests[0]


async def test_anthropic_list_of_models_is_requested_in_its_dialect() -> None:
    facts: dict[str, Any] = {"dialect": "anthropic", "base_path": "", "api_key": "sk-1"}
    sights, requests = await looks(1, listing("m"), settings=MODELS, wanted=("m",), **facts)
    assert sights == [ProbeResult("ok")]
    assert lines(requests) == ["GET /v1/models"]
    assert b"\r\nx-api-key: sk-1\r\n" in requests[0]
    assert b"\r\nanthropic-version: 2023-06-01\r\n" in requests[0]


@pytest.mark.parametrize(
    ("script", "finding"),
    [
        (listing("other"), "answered"),
        (listing(), "answered"),
        ([whole(200, b'{"models": []}')], "answered"),
        ([whole(200, b"<html>")], "answered"),
        ([whole(401, b"{}")], "answered"),
        ([whole(500, b"{}")], "failed"),
    ],
)
async def test_list_of_models_without_the_wanted_one(script: Sequence[Step], finding: str) -> None:
    sights, _ = await looks(1, script, settings=MODELS, wanted=("m",))
    assert [sight.finding for sight in sights] == [finding]


async def test_list_may_be_longer_than_a_page() -> None:
    many = listing(*(f"model-{number}" for number in range(5000)), "m")
    sights, _ = await looks(1, many, settings=MODELS, wanted=("m",))
    assert sights == [ProbeResult("ok")]


# a call for one token


async def test_call_for_one_token_is_a_call_of_the_dialect() -> None:
    sights, requests = await looks(1, [whole(200, b'{"choices":[{}]}')], settings=COMPLETION, api_key="sk-1")
    assert sights == [ProbeResult("ok")]
    assert lines(requests) == ["POST /v1/chat/completions"]
    body = json.loads(requests[0].partition(b"\r\n\r\n")[2])
    assert body == {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}
    assert b"\r\nContent-Type: application/json\r\n" in requests[0]


async def test_anthropics_call_for_one_token() -> None:
    facts: dict[str, Any] = {"dialect": "anthropic", "base_path": "", "api_key": "sk-1"}
    sights, requests = await looks(1, [whole(200, b'{"type":"message"}')], settings=COMPLETION, **facts)
    assert sights == [ProbeResult("ok")]
    assert lines(requests) == ["POST /v1/messages"]
    assert json.loads(requests[0].partition(b"\r\n\r\n")[2])["max_tokens"] == 1


async def test_openai_models_get_max_completion_tokens() -> None:
    _, requests = await looks(1, [whole(200, b"{}")], settings=COMPLETION, family="openai")
    assert json.loads(requests[0].partition(b"\r\n\r\n")[2])["max_completion_tokens"] == 1


@pytest.mark.parametrize(
    ("script", "finding"),
    [
        ([whole(200, b'{"error":{"message":"no"}}')], "failed"),
        ([whole(200, b'{"type":"error"}')], "failed"),
        ([whole(200, b'{"error":null,"choices":[]}')], "ok"),
        ([whole(200, b"{}")], "failed"),
        ([whole(200, b"<html>")], "failed"),
        ([whole(400, b'{"error":{}}')], "answered"),
        ([whole(429, b'{"error":{}}')], "answered"),
        ([whole(503, b'{"error":{}}')], "failed"),
        ([stream_head(), END], "failed"),
    ],
)
async def test_call_for_one_token_must_be_answered_with_a_completion(script: Sequence[Step], finding: str) -> None:
    sights, _ = await looks(1, script, settings=COMPLETION)
    assert [sight.finding for sight in sights] == [finding]


async def test_call_for_one_token_is_never_sent_twice() -> None:
    sights, requests = await looks(2, [whole(200, b'{"choices":[]}')], [Close()], settings=COMPLETION)
    assert [sight.finding for sight in sights] == ["ok", "failed"]
    assert len(requests) == 2


# cancellation and local errors


def _has_more_than(provider: ScriptedProvider, count: int) -> bool:
    return len(provider.requests) > count


async def test_cancelled_probe_leaves_no_connection() -> None:
    connections = ConnectionPool()
    async with ScriptedProvider([Hold()], [stream_head(), chunk(b"{"), Hold()]) as provider:
        upstream = Upstream("a", "openai", f"{provider.url}/v1", None, "bearer")
        for settings in (HEALTH, MODELS):
            count = len(provider.requests)
            looking = asyncio.ensure_future(new_probe(ProbeTarget(upstream, settings), connections).look())
            await eventually(partial(_has_more_than, provider, count))
            looking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await looking
            assert await provider.closed_within(1)
        assert len(provider.requests) == 2
        await connections.close()


def test_local_faults_prove_nothing() -> None:
    assert result_of_error(UpstreamError(FailureKind.OWN_RESOURCES, "no descriptors")) == ProbeResult(
        "unclear", "no descriptors"
    )
    assert result_of_error(UpstreamError(FailureKind.NETWORK, "reset")) == ProbeResult("failed", "reset")
