"""Bodies, queries, headers and credentials travel unchanged in both directions."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from anthropic import DefaultAsyncHttpxClient as AnthropicHttp
from openai import AsyncOpenAI
from openai import DefaultAsyncHttpxClient as OpenAIHttp

from tests.e2e.stand import MODELS, SAID, config_text, gateway
from tests.e2e.wire import Tap, exchange, wired
from tests.fakes.provider import ScriptedProvider, whole

ODD: Any = [{"role": "user", "content": "déjà vu \U0001f600 \u2028 \\u00e9 </script> 1e400"}]
QUERY: Any = {"a[b]": "c d", "list": ["x/y", "ü&="], "plus": "1+1", "empty": ""}
HEADERS: Any = {"x-own": "1, 2", "openai-organization": "org", "x-stainless-more": "m", "accept-encoding": "gzip"}


@pytest.fixture
async def provider() -> AsyncIterator[ScriptedProvider]:
    async with ScriptedProvider([whole()]) as provider:
        yield provider


@pytest.fixture
def tap() -> Tap:
    return Tap()


async def test_openai_requests_arrive_as_they_were_sent(provider: ScriptedProvider, tap: Tap) -> None:
    async with (
        gateway(config_text(provider.url, answers="off")) as app,
        AsyncOpenAI(
            base_url=f"{app.addresses[0]}/v1", api_key="k", max_retries=0, http_client=OpenAIHttp(event_hooks=tap.hooks)
        ) as client,
    ):
        await client.chat.completions.create(model="gpt-4o", messages=ODD, extra_query=QUERY, extra_headers=HEADERS)
        await client.responses.create(model="gpt-4o", input="déjà", metadata={"model": "other"})
        await client.files.create(file=("ä.bin", bytes(range(256))), purpose="batch")
        await client.files.list(limit=3, extra_query=QUERY)
        await client.files.delete("file/with?odd#name")
        await client.audio.transcriptions.create(
            model="gpt-4o-transcribe", file=("a.wav", bytes(999)), timestamp_granularities=["word"]
        )
        await client.post("/responses/resp_1/cancel", cast_to=object)
    assert [wired(request) for request in provider.requests] == tap.sent
    assert len(tap.sent) == 7
    first = tap.sent[0]
    assert "=x%2Fy&" in first.first_line
    assert first.values("accept-encoding") == ["gzip"]
    assert first.values("user-agent")[0].startswith("AsyncOpenAI/Python")
    assert len([name for name, _ in first.headers if name.startswith("x-stainless-")]) > 5


async def test_anthropic_requests_arrive_as_they_were_sent(provider: ScriptedProvider, tap: Tap) -> None:
    async with (
        gateway(config_text(provider.url, answers="off")) as app,
        AsyncAnthropic(
            base_url=app.addresses[0], api_key="k", max_retries=0, http_client=AnthropicHttp(event_hooks=tap.hooks)
        ) as client,
    ):
        await client.messages.create(
            model="claude-3-opus", max_tokens=9, messages=ODD, extra_query=QUERY, extra_headers=HEADERS
        )
        await client.messages.count_tokens(model="claude-3-opus", messages=ODD)
        await client.messages.batches.cancel("msgbatch_1")
        await client.messages.batches.delete("msgbatch_1")
        await client.messages.batches.list(limit=3, extra_query=QUERY)
        await client.beta.messages.create(model="claude-3-opus", max_tokens=9, messages=SAID, betas=["a", "b"])
    assert [wired(request) for request in provider.requests] == tap.sent
    assert len(tap.sent) == 6
    first = tap.sent[0]
    assert first.values("anthropic-version")
    assert first.values("user-agent")[0].startswith("AsyncAnthropic/Python")
    assert len([name for name, _ in first.headers if name.startswith("x-stainless-")]) > 5


@pytest.mark.parametrize(
    "query",
    [
        "created_at[gte]=2026-01-01T00:00:00Z&types[]=a&types[]=b",
        "created_at%5Bgte%5D=2026-01-01T00%3A00%3A00Z&x=%2f%2F%7e~%20+",
        "flag&empty=&=novalue&&a=1;b=2",
        "q=%E2%9C%93&raw='()*!$,:@/?|",
    ],
)
async def test_query_arrives_byte_for_byte(provider: ScriptedProvider, query: str) -> None:
    async with gateway(config_text(provider.url, answers="off")) as app:
        await exchange(app.addresses[0], f"/v1/files?{query}", method="GET")
    assert wired(provider.requests[0]).first_line == f"GET /v1/files?{query} HTTP/1.1"


@pytest.mark.parametrize("path", ["/v1/files/a%2Fb%20c", "/v1/files/org:x~y@z,1", "/v1/files/%E2%9C%93%2e5", "/v1/x/"])
async def test_path_arrives_byte_for_byte(provider: ScriptedProvider, path: str) -> None:
    async with gateway(config_text(provider.url, answers="off")) as app:
        await exchange(app.addresses[0], path, method="GET")
    assert wired(provider.requests[0]).first_line == f"GET {path} HTTP/1.1"


async def test_hop_by_hop_headers_and_gateway_headers_are_not_forwarded(provider: ScriptedProvider) -> None:
    stopped = {
        "connection": "keep-alive, x-named",
        "x-named": "1",
        "keep-alive": "timeout=5",
        "te": "trailers",
        "proxy-authorization": "Basic x",
        "proxy-connection": "keep-alive",
        "trailer": "x-t",
        "x-llm-guard-request-id": "forged",
        "X-LLM-Guard-Anything": "1",
    }
    async with gateway(config_text(provider.url, answers="off")) as app:
        await exchange(app.addresses[0], "/v1/files", b"{}", {**stopped, "x-kept": "1"})
    names = {name for name, _ in wired(provider.requests[0]).headers}
    assert names == {"x-kept", "content-type", "content-length"}


async def test_answers_hop_by_hop_headers_and_forged_ones_do_not_travel() -> None:
    headers = {
        "connection": "x-named",
        "x-named": "1",
        "keep-alive": "timeout=5",
        "proxy-authenticate": "Basic",
        "x-llm-guard-deployment": "forged",
        "set-cookie": "a=b; Path=/",
        "x-ratelimit-remaining-requests": "7",
        "openai-processing-ms": "12",
    }
    body = '{"text":"déjà",  "x" : 1.0e2}\n'.encode()
    async with (
        ScriptedProvider([whole(201, body, headers)]) as provider,
        gateway(config_text(provider.url, answers="off")) as app,
    ):
        answer = await exchange(app.addresses[0], "/v1/files", b"{}")
    assert answer.first_line == "HTTP/1.1 201 Scripted"
    assert answer.body == body
    assert answer.values("x-llm-guard-deployment") == ["openai"]
    names = {name for name, _ in answer.headers}
    assert not names & {"x-named", "keep-alive", "proxy-authenticate"}
    for name in ("set-cookie", "x-ratelimit-remaining-requests", "openai-processing-ms"):
        assert answer.values(name) == [headers[name]]


async def test_gzip_request_passes_unchanged(provider: ScriptedProvider) -> None:
    packed = gzip.compress(b'{"model":"gpt-4o","messages":[]}')
    async with gateway(config_text(provider.url, answers="off")) as app:
        await exchange(app.addresses[0], "/v1/chat/completions", packed, {"content-encoding": "gzip"})
    seen = wired(provider.requests[0])
    assert seen.body == packed
    assert seen.values("content-encoding") == ["gzip"]
    assert seen.values("content-length") == [str(len(packed))]


async def test_gzip_answer_passes_compressed() -> None:
    packed = gzip.compress(b'{"usage":{"prompt_tokens":1,"completion_tokens":2}}')
    script = [whole(200, packed, {"content-encoding": "gzip"})]
    async with ScriptedProvider(script) as provider, gateway(config_text(provider.url, answers="off")) as app:
        answer = await exchange(app.addresses[0], "/v1/chat/completions", b'{"model":"gpt-4o"}')
    assert answer.body == packed
    assert answer.values("content-encoding") == ["gzip"]
    assert answer.values("content-length") == [str(len(packed))]


async def test_large_body_arrives_whole(provider: ScriptedProvider) -> None:
    body = b'{"messages":["' + bytes(range(97, 123)) * 100_000 + b'"],"model":"gpt-4o"}'
    async with gateway(config_text(provider.url, answers="off")) as app:
        await exchange(app.addresses[0], "/v1/chat/completions", body)
    assert wired(provider.requests[0]).body == body


# Credentials

SWAPPED = """
  swapped: {deployments: [{upstream: keyed}]}
"""
CALLER = {"authorization": "Bearer sk-caller", "x-api-key": "sk-caller", "api-key": "sk-caller"}


@pytest.mark.parametrize(
    ("auth", "name", "value"),
    [
        ("", "authorization", "Bearer sk-own"),
        (", auth: bearer", "authorization", "Bearer sk-own"),
        (", auth: x-api-key", "x-api-key", "sk-own"),
        (", auth: api-key", "api-key", "sk-own"),
        (", auth: none", "", ""),
    ],
)
async def test_upstreams_own_key_takes_the_place_of_the_callers(
    provider: ScriptedProvider, auth: str, name: str, value: str
) -> None:
    upstream = "keyed: {dialect: openai, BASE, answers: off, api_key: sk-own" + auth + "}"
    async with gateway(config_text(provider.url, models=SWAPPED, upstreams=[upstream], answers="off")) as app:
        await exchange(app.addresses[0], "/v1/chat/completions", b'{"model":"swapped"}', CALLER)
    assert _credentials(provider) == ([(name, value)] if name else [])


async def test_anthropic_upstreams_own_key_is_sent_as_x_api_key(provider: ScriptedProvider) -> None:
    upstream = "keyed: {dialect: anthropic, BASE, answers: off, api_key: sk-own}"
    async with gateway(config_text(provider.url, models=SWAPPED, upstreams=[upstream], answers="off")) as app:
        await exchange(app.addresses[0], "/v1/messages", b'{"model":"swapped"}', CALLER)
    assert _credentials(provider) == [("x-api-key", "sk-own")]


async def test_callers_key_is_passed_on_where_the_upstream_has_none(provider: ScriptedProvider) -> None:
    async with gateway(config_text(provider.url, answers="off")) as app:
        await exchange(app.addresses[0], "/v1/chat/completions", b'{"model":"gpt-4o"}', CALLER)
    assert _credentials(provider) == sorted(CALLER.items())


@pytest.mark.parametrize(
    "credentials",
    [
        {"authorization": "Bearer sk-gateway"},
        {"x-api-key": "sk-gateway"},
        {"api-key": "sk-gateway"},
        {"authorization": "Bearer sk-other", "x-api-key": "sk-gateway"},
    ],
)
async def test_client_key_is_not_forwarded(provider: ScriptedProvider, credentials: dict[str, str]) -> None:
    upstream = "keyed: {dialect: openai, BASE, answers: off, api_key: sk-own}"
    text = config_text(provider.url, models=MODELS + SWAPPED, upstreams=[upstream], keys=["sk-gateway"], answers="off")
    async with gateway(text) as app:
        for model in (b"gpt-4o", b"swapped"):
            body = b'{"model":"' + model + b'"}'
            answer = await exchange(app.addresses[0], "/v1/chat/completions", body, credentials)
            assert answer.first_line.startswith("HTTP/1.1 200")
    assert b"sk-gateway" not in b"".join(provider.requests)
    assert wired(provider.requests[1]).values("authorization") == ["Bearer sk-own"]


def _credentials(provider: ScriptedProvider) -> list[tuple[str, str]]:
    return [pair for pair in wired(provider.requests[0]).headers if pair[0] in CALLER]
