"""The number of requests that one SDK call, with its two retries, costs a provider that always fails, and the time
until the SDK raises."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anthropic as anthropic_sdk
import openai as openai_sdk
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from llm_guard.resilience.routing.client_hints import patience_s
from tests.chaos.forms import CHAT, RESPONSES
from tests.chaos.sinks import refusing
from tests.chaos.stand import config_of, standing
from tests.chaos.wire import Connection, Reply, ask
from tests.e2e.stand import MAX_ATTEMPTS, SAID, config_text, gateway
from tests.e2e.wire import Wired, wired
from tests.fakes.provider import Close, Hold, Reset, ScriptedProvider, Step, whole

ERROR = b'{"error":{"message":"busy","type":"server_error","code":null,"param":null}}'
ALWAYS: dict[str, list[Step]] = {
    "503": [whole(503, ERROR)],
    "429": [whole(429, ERROR)],
    "429 with Retry-After": [whole(429, ERROR, {"retry-after": "1"})],
    "429 with a short Retry-After": [whole(429, ERROR, {"retry-after-ms": "20"})],
    "429 with a long Retry-After": [whole(429, ERROR, {"retry-after": "90"})],
    "529 that wants to be retried": [whole(529, ERROR, {"x-should-retry": "true"})],
    "reset": [Reset()],
    "closed": [Close()],
    "silence": [Hold()],
}
TIMEOUT_S = 1.0
always = pytest.mark.parametrize("script", ALWAYS.values(), ids=ALWAYS)
streams = pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])

Ask = Callable[..., Awaitable[Any]]


@asynccontextmanager
async def calling_openai(url: str, **options: Any) -> AsyncIterator[Ask]:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="k", **options) as client:
        yield lambda **more: client.chat.completions.create(model="gpt-4o", messages=SAID, **more)


@asynccontextmanager
async def calling_responses(url: str, **options: Any) -> AsyncIterator[Ask]:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="k", **options) as client:
        yield lambda **more: client.responses.create(model="gpt-4o", input="hi", **more)


@asynccontextmanager
async def calling_anthropic(url: str, **options: Any) -> AsyncIterator[Ask]:
    async with AsyncAnthropic(base_url=url, api_key="k", **options) as client:
        yield lambda **more: client.messages.create(model="claude-3-opus", max_tokens=9, messages=SAID, **more)


SDKS = [calling_openai, calling_responses, calling_anthropic]
sdks = pytest.mark.parametrize("sdk", SDKS, ids=["openai chat", "openai responses", "anthropic"])


async def status_error_of(call: Awaitable[Any]) -> Any:
    """Awaits the status exception of either SDK and returns it."""
    with pytest.raises((openai_sdk.APIStatusError, anthropic_sdk.APIStatusError)) as caught:
        await call
    return caught.value


@sdks
@streams
@always
async def test_call_of_an_sdk_costs_no_more_than_the_gateways_attempts_and_ends_in_time(
    sdk: Callable[..., Any], stream: bool, script: Sequence[Step]
) -> None:
    async with (
        ScriptedProvider(script) as provider,
        gateway(config_text(provider.url)) as app,
        sdk(app.addresses[0], timeout=TIMEOUT_S) as ask_it,
    ):
        # The status must arrive within the SDK's own read timeout: otherwise it raises a timeout, after three calls to
        # the gateway.
        error = await status_error_of(ask_it(stream=stream))
        assert sum(counts.begun for counts in app.gateway.recorder.models.values()) == 1
        assert 1 <= len(provider.requests) <= MAX_ATTEMPTS
        assert error.response.headers["x-should-retry"] == "false"


@sdks
@pytest.mark.parametrize("name", ["503", "429", "429 with a short Retry-After", "reset"])
async def test_sdk_with_a_long_timeout_gets_all_attempts_of_the_gateway_and_no_more(
    sdk: Callable[..., Any], name: str
) -> None:
    async with (
        ScriptedProvider(ALWAYS[name]) as provider,
        gateway(config_text(provider.url)) as app,
        sdk(app.addresses[0]) as ask_it,
    ):
        await status_error_of(ask_it())
        assert len(provider.requests) == MAX_ATTEMPTS


@sdks
async def test_provider_that_refuses_connections_costs_the_sdk_one_answer(sdk: Callable[..., Any]) -> None:
    with refusing() as (url, _):
        async with gateway(config_text(url)) as app, sdk(app.addresses[0], timeout=TIMEOUT_S) as ask_it:
            error = await status_error_of(ask_it())
    assert error.status_code == 502
    assert error.response.headers["x-llm-guard-attempts"] == str(MAX_ATTEMPTS)


@sdks
@streams
async def test_silence_is_a_504_by_deadline_at_the_sdk_and_one_request_at_the_provider(
    sdk: Callable[..., Any], stream: bool
) -> None:
    async with (
        ScriptedProvider([Hold()]) as provider,
        gateway(config_text(provider.url)) as app,
        sdk(app.addresses[0], timeout=0.4) as ask_it,
    ):
        error = await status_error_of(ask_it(stream=stream))
        assert error.status_code == 504
        assert error.response.headers["x-llm-guard-refused-by"] == "deadline"
        assert len(provider.requests) == 1
        assert await provider.closed_within(1)


async def test_timeout_headers_of_the_sdks_are_what_the_gateway_reads() -> None:
    async with ScriptedProvider([whole(400)]) as provider, gateway(config_text(provider.url)) as app:
        for sdk in (calling_openai, calling_anthropic):
            for options in ({}, {"timeout": 7}, {"timeout": None}):
                async with sdk(app.addresses[0], **options) as ask_it:
                    await status_error_of(ask_it())
        said = [wired(request) for request in provider.requests]
    assert [_patience(each) for each in said] == [600.0, 7.0, None] * 2
    assert {each.values("x-stainless-retry-count")[0] for each in said} == {"0"}
    assert said[3].values("x-stainless-timeout") != []


def _patience(request: Wired) -> float | None:
    return patience_s(dict(request.headers))


# forms of the headers on the wire

SILENT_S = 0.15


async def ask_silent(headers: dict[str, str]) -> tuple[Reply, int]:
    """Calls a silent provider with an attempt limit of 150 ms; returns the response and the number of requests sent."""
    limits = {"attempt": f"{SILENT_S * 1000:g}ms"}
    async with (
        ScriptedProvider([Hold()]) as provider,
        standing(config_of(provider.url, timeout=limits, retry={"max_attempts": 2})) as stand,
    ):
        return await ask(stand.url, CHAT.path, CHAT.body(), headers), len(provider.requests)


@pytest.mark.parametrize("name", ["x-stainless-timeout", "x-stainless-read-timeout"])
@pytest.mark.parametrize("said", ["NOT_GIVEN", "None", "0", "600.0", "600", "nan", "-1"])
async def test_header_without_a_short_timeout_leaves_the_gateway_its_attempts(name: str, said: str) -> None:
    reply, asked = await ask_silent({name: said})
    assert (reply.status, reply.headers["x-llm-guard-attempts"], asked) == (504, "2", 2)
    assert "x-llm-guard-refused-by" not in reply.headers
    assert reply.took_s >= 2 * SILENT_S - 0.05


@pytest.mark.parametrize("name", ["x-stainless-timeout", "X-Stainless-Read-Timeout"])
async def test_short_client_timeout_is_met_under_either_header(name: str) -> None:
    reply, asked = await ask_silent({name: "0.2"})
    assert (reply.status, reply.headers["x-llm-guard-attempts"], asked) == (504, "1", 1)
    assert reply.headers["x-llm-guard-refused-by"] == "deadline"


async def test_client_deadline_begins_when_the_request_has_been_sent() -> None:
    """A slow upload does not count against the client's timeout: SDKs start waiting for a response after it."""
    body = CHAT.body()
    head = (
        f"POST {CHAT.path} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nx-stainless-read-timeout: 0.3\r\n\r\n"
    ).encode()
    async with ScriptedProvider(CHAT.ok) as provider, standing(config_of(provider.url)) as stand:
        async with Connection(stand.url) as connection:
            connection.writer.write(head + body[:5])
            await asyncio.sleep(0.5)
            reply = await connection.ask(body[5:])
        assert reply.status == 200


# calls that must be executed at most once, according to the SDK


@pytest.mark.parametrize(
    "change",
    [
        lambda client: client.files.create(file=b"{}", purpose="batch"),
        lambda client: client.batches.create(input_file_id="f", endpoint="/v1/embeddings", completion_window="24h"),
        lambda client: client.fine_tuning.jobs.create(model="gpt-4o", training_file="f"),
        lambda client: client.responses.create(model="gpt-4o", input="hi", store=True),
        lambda client: client.responses.create(model="gpt-4o", input="hi", background=True),
        lambda client: client.responses.create(model="gpt-4o", input="hi", previous_response_id="resp_1"),
        lambda client: client.responses.create(model="gpt-4o", input="hi", conversation="conv_1"),
    ],
    ids=["file", "batch", "fine-tuning", "store", "background", "previous_response_id", "conversation"],
)
async def test_change_that_may_have_been_executed_is_sent_once_by_sdk_and_gateway_together(
    change: Callable[[AsyncOpenAI], Awaitable[Any]],
) -> None:
    async with (
        ScriptedProvider([whole(503, ERROR)], [Reset()], [whole(200, RESPONSES.answer)]) as provider,
        gateway(config_text(provider.url)) as app,
        AsyncOpenAI(base_url=f"{app.addresses[0]}/v1", api_key="k") as client,
    ):
        with pytest.raises(openai_sdk.InternalServerError) as caught:
            await change(client)
        assert caught.value.status_code == 503  # the provider's last error; the reset carried none
        assert len(provider.requests) == 2  # one refused, one perhaps executed


# failures on which another model is tried

TOO_LONG = json.dumps({
    "error": {
        "message": "This model's maximum context length is 8192 tokens.", "type": "invalid_request_error",
        "param": "messages", "code": "context_length_exceeded",
    }
}).encode()  # fmt: skip
FILTERED = json.dumps({
    "error": {
        "message": "The response was filtered due to the prompt triggering our content management policy.",
        "type": None, "param": "prompt", "code": "content_filter", "status": 400,
    }
}).encode()  # fmt: skip


def two_models(rules: str = "", *, is_alone: bool = False) -> str:
    fallbacks = "" if is_alone else "fallbacks: [large],"
    return f"""
  small: {{deployments: [{{upstream: openai}}, {{upstream: openai, model: twin}}], {fallbacks} retry: {{{rules}}}}}
  large: {{deployments: [{{upstream: openai}}]}}
"""


@asynccontextmanager
async def refused_by_small(error: bytes, models: str) -> AsyncIterator[tuple[AsyncOpenAI, ScriptedProvider]]:
    async with (
        ScriptedProvider([whole(400, error)], CHAT.ok) as provider,
        gateway(config_text(provider.url, models=models)) as app,
        AsyncOpenAI(base_url=f"{app.addresses[0]}/v1", api_key="k") as client,
    ):
        yield client, provider


def models_requested(provider: ScriptedProvider) -> list[str]:
    return [json.loads(wired(request).body)["model"] for request in provider.requests]


async def test_context_too_long_goes_to_the_fallback_and_not_to_another_deployment_of_the_model() -> None:
    async with refused_by_small(TOO_LONG, two_models()) as (client, provider):
        raw = await client.chat.completions.with_raw_response.create(model="small", messages=SAID)
        assert raw.headers["x-llm-guard-deployment"] == "openai/large"
        assert models_requested(provider) == ["small", "large"]


@pytest.mark.parametrize("models", [two_models(is_alone=True), two_models("fallback_on: []")], ids=["alone", "told so"])
async def test_context_too_long_is_passed_on_at_once_where_no_other_model_may_answer(models: str) -> None:
    async with refused_by_small(TOO_LONG, models) as (client, provider):
        with pytest.raises(openai_sdk.BadRequestError, match="maximum context length") as caught:
            await client.chat.completions.create(model="small", messages=SAID)
        assert caught.value.code == "context_length_exceeded"
        assert models_requested(provider) == ["small"]


async def test_refusal_for_content_is_passed_on_unless_the_route_falls_back() -> None:
    async with refused_by_small(FILTERED, two_models()) as (client, provider):
        with pytest.raises(openai_sdk.BadRequestError, match="content management policy"):
            await client.chat.completions.create(model="small", messages=SAID)
        assert models_requested(provider) == ["small"]
    async with refused_by_small(FILTERED, two_models("fallback_on: [content_policy]")) as (client, provider):
        await client.chat.completions.create(model="small", messages=SAID)
        assert models_requested(provider) == ["small", "large"]
