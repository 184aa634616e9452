"""Requests in the form of a cloud: which calls have one, what is sent, and how much memory they take."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import pytest

from llm_guard.config import parse_config
from llm_guard.proxy.call import Call
from llm_guard.proxy.identification import identify
from llm_guard.proxy.request_body.fields import BadRequest
from llm_guard.proxy.translation.attempt import LARGE_BYTES
from llm_guard.proxy.translation.call import TranslatedCall
from llm_guard.proxy.translation.formed_attempt import FormedAttempt
from llm_guard.proxy.translation.interfaces import WrittenRequest
from llm_guard.resilience.capacity.response_memory import ResponseMemory
from llm_guard.resilience.translation.settings import TranslateSettings
from llm_guard.routing.api_keys import ApiKey
from llm_guard.routing.route_table import RouteTable, Target, compile_routes
from tests.unit.proxy.translation.test_call import BodyInFile, NotingExecutor, call_with

CONFIG = """
upstreams:
  vertex: {dialect: anthropic, form: vertex, base_url: "https://a.test/v1/projects/p/locations/l", api_key: k}
  bedrock: {dialect: anthropic, form: bedrock-invoke, base_url: "https://b.test", api_key: k}
  whole: {dialect: anthropic, base_url: "https://anthropic.test", api_key: k}
  openai: {dialect: openai, base_url: "https://openai.test/v1", api_key: k}
models:
  m: {deployments: [{upstream: vertex, model: claude@1}, {upstream: bedrock, model: "a.claude:0"}, {upstream: whole}]}
  plain: {deployments: [{upstream: whole}]}
  "claude-*": {deployments: [{upstream: vertex}]}
  gpt: {deployments: [{upstream: openai}], fallbacks: [m]}
"""
RESUMED = json.dumps({"model": "x", "messages": [], "stream": True}).encode()


def table(config: str = CONFIG) -> RouteTable:
    return compile_routes(parse_config(config, "f.yaml", {}), 0.0)


def targets(name: str = "m") -> tuple[Target, ...]:
    route = table().find(name)
    assert route is not None
    return route.targets


def message_call(body: Any = None, **facts: Any) -> Call:
    return call_with(body, **{"dialect": "anthropic", "path": "/v1/messages", **facts})


async def sent(call: Call, target: Target, key: ApiKey | None = None, resumed: bytes | None = None) -> WrittenRequest:
    translation = TranslatedCall(call, TranslateSettings(), ResponseMemory())
    assert translation.is_ready(target)
    assert await translation.prepare(target) is None
    attempt = translation.begin(target, 0.0)
    assert isinstance(attempt, FormedAttempt)
    return await attempt.request(target, key, resumed)


async def test_request_of_the_dialect_takes_the_form_of_each_target() -> None:
    vertex, bedrock, whole = targets()
    request = await sent(message_call({"stream": True}), vertex)
    assert request.target == "/v1/projects/p/locations/l/publishers/anthropic/models/claude@1:streamRawPredict"
    assert ("Authorization", "Bearer k") in request.headers.pairs
    assert (await sent(message_call(), bedrock)).target == "/model/a.claude:0/invoke"
    translation = TranslatedCall(message_call(b"this is never read"), None, ResponseMemory())
    assert translation.is_ready(whole)
    assert await translation.prepare(whole) is None
    assert translation.begin(whole, 0.0) is None


async def test_key_of_a_pool_is_a_bearer_token() -> None:
    request = await sent(message_call(), targets()[0], ApiKey("second", "k2"))
    assert dict(request.headers.pairs)["Authorization"] == "Bearer k2"


async def test_compressed_request_is_sent_plain() -> None:
    body = gzip.compress(json.dumps({"model": "m", "messages": []}).encode())
    headers = (("Content-Encoding", "gzip"), ("Content-Type", "application/json"), ("anthropic-beta", "b"))
    request = await sent(message_call(body, content_encoding="gzip", headers=headers), targets()[1])
    assert json.loads(request.body)["messages"] == []
    assert [name for name, _ in request.headers.pairs] == [
        "Content-Type", "Authorization", "Accept", "Accept-Encoding",
    ]  # fmt: skip


async def test_request_for_the_rest_of_a_stream_has_the_form_too() -> None:
    request = await sent(message_call(), targets()[1], resumed=RESUMED)
    assert request.target.endswith("/invoke-with-response-stream")
    assert json.loads(request.body) == {"messages": [], "anthropic_version": "bedrock-2023-05-31"}


async def test_translated_request_takes_the_form() -> None:
    _, vertex, bedrock, _ = targets("gpt")
    translation = TranslatedCall(call_with({"seed": 5}), TranslateSettings(max_tokens=77), ResponseMemory())
    for target, path in ((vertex, "/models/claude@1:rawPredict"), (bedrock, "/model/a.claude:0/invoke")):
        assert await translation.prepare(target) is None
        attempt = translation.begin(target, 0.0)
        assert isinstance(attempt, FormedAttempt)
        assert (attempt.dialect, attempt.path, attempt.dropped) == ("anthropic", "/v1/messages", ("seed",))
        request = await attempt.request(target, None, None)
        assert request.target.endswith(path)
        assert json.loads(request.body)["max_tokens"] == 77
        assert "anthropic-version" not in {name.lower() for name, _ in request.headers.pairs}


@pytest.mark.parametrize("body", [b"[]", b"{"])
async def test_request_without_a_form_is_the_clients_error(body: bytes) -> None:
    with pytest.raises(BadRequest, match="not a JSON object") as caught:
        await sent(message_call(body), targets()[0])
    assert (caught.value.status, caught.value.code) == (400, "invalid_request")


async def test_large_requests_share_a_bound_of_memory() -> None:
    vertex, bedrock, _ = targets()
    body = BodyInFile(json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 5000}]}).encode())
    memory = ResponseMemory(4 * body.size)
    one, two = (TranslatedCall(message_call(body=body), None, memory) for _ in range(2))
    assert not one.is_ready(vertex)
    assert await one.prepare(vertex) is None
    assert await one.prepare(bedrock) is None  # has its memory already
    attempt = one.begin(vertex, 0.0)
    assert attempt is not None
    assert len((await attempt.request(vertex, None, None)).body) > 5000
    assert "too many large requests" in str(await two.prepare(vertex))
    assert two.refusal().code == "translation_busy"
    one.close()
    assert memory.taken_bytes == 0
    assert await two.prepare(vertex) is None


async def test_compressed_request_counts_with_its_size_once_it_is_inflated() -> None:
    vertex, *_ = targets()
    plain = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * LARGE_BYTES}]}).encode()
    memory, threads = ResponseMemory(4 * len(plain)), list[str]()
    asyncio.get_running_loop().set_default_executor(NotingExecutor(threads))
    facts: Any = {"body": BodyInFile(gzip.compress(plain)), "content_encoding": "gzip", "inflated_bytes": len(plain)}
    translation = TranslatedCall(message_call(**facts), None, memory)
    assert await translation.prepare(vertex) is None
    assert memory.taken_bytes == 3 * len(plain)
    attempt = translation.begin(vertex, 0.0)
    assert attempt is not None
    assert len((await attempt.request(vertex, None, None)).body) > LARGE_BYTES
    assert threads == ["_written"]  # not in the event loop


@pytest.mark.parametrize("facts", [
    {"body": BodyInFile(b"{}", 33 << 20)},
    {"body": BodyInFile(b"{}"), "content_encoding": "gzip", "inflated_bytes": 33 << 20},
])  # fmt: skip
async def test_request_beyond_the_bound_of_one_call_is_not_sent_there(facts: Any) -> None:
    translation = TranslatedCall(message_call(**facts), None, ResponseMemory())
    assert "no request of more than 32 MiB" in str(await translation.prepare(targets()[0]))
    assert translation.refusal().status == 400


def refused(method: str, path: str, **facts: Any) -> str | None:
    call = message_call(b"", method=method, path=path, **facts)
    refusal = identify(call, table(), 0.0)
    assert refusal is None or (refusal.status, refusal.code, refusal.by) == (404, "unserved_path", "route")
    return None if refusal is None else refusal.message


def test_call_that_no_deployment_has_a_place_for_is_refused_with_the_reason() -> None:
    assert refused("POST", "/v1/messages/count_tokens", model="claude-x") is None
    message = refused("GET", "/v1/files", upstream_name="vertex")
    assert message == (
        "no deployment serves GET /v1/files: vertex takes requests in the form vertex, which has no GET /v1/files, "
        "only POST /v1/messages, /v1/messages/count_tokens"
    )


def test_calls_without_a_model_go_to_an_upstream_that_has_all_paths() -> None:
    call = message_call(b"", method="GET", path="/v1/files")
    assert identify(call, table(), 0.0) is None
    assert call.route is not None
    assert call.route.targets[0].deployment.upstream.name == "whole"
    assert call.translation is None


def test_calls_that_no_form_concerns_are_not_translated() -> None:
    call = message_call(model="plain")
    assert identify(call, table(), 0.0) is None
    assert call.translation is None
    assert table().upstreams_of("claude-*", "anthropic") == ()  # lists no models


def test_upstreams_with_a_form_have_the_words_and_the_models_of_their_provider() -> None:
    upstreams = table().upstreams
    facts = [(upstream.form, upstream.auth, upstream.family, upstream.prefill) for upstream in upstreams.values()]
    assert facts == [
        ("vertex", "bearer", "vertex", "plain"), ("bedrock-invoke", "bearer", "bedrock", "plain"),
        (None, "x-api-key", "", "none"), (None, "bearer", "", "none"),
    ]  # fmt: skip
