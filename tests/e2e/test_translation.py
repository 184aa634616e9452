"""Models of the other provider stand in: whole answers and streams, failures, resumed streams, keys and losses."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic as anthropic_sdk
import openai as openai_sdk
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from structlog.testing import capture_logs

from llm_guard.mock.content import say
from llm_guard.storage.cache.response_store import MemoryCache
from tests.e2e.stand import SAID, TOKENS
from tests.e2e.translating import KEYS, mixed, received, route, scripted, stream
from tests.e2e.wire import exchange
from tests.fakes.provider import whole
from tests.unit.dialects.translation.conversions import CHAT_TOOL, MESSAGES_TOOL, WEATHER, message_events, text_block

TEXT = "".join(say(TOKENS))
CALLS = 200
AT_ONCE = 20
MESSAGE: dict[str, Any] = {
    "id": "m", "type": "message", "role": "assistant", "model": "claude", "stop_reason": "end_turn",
    "stop_sequence": None, "content": [{"type": "text", "text": "a"}],
    "usage": {"input_tokens": 1, "output_tokens": 1},
}  # fmt: skip
PAIRS = [("openai/gpt-4o", "anthropic/claude-sonnet-4-5", 503), ("anthropic/claude-sonnet-4-5", "openai/gpt-4o", 529)]
"""Primary, the deployment that stands in, and how the primary fails."""


def chat_sdk(url: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{url}/v1", api_key="sk-caller", max_retries=0, timeout=20)


def claude_sdk(url: str) -> AsyncAnthropic:
    return AsyncAnthropic(base_url=url, api_key="sk-caller", max_retries=0, timeout=20)


async def said(client: Any, *, stream: bool, model: str = "front", **fields: Any) -> tuple[str, Any]:
    """Makes a call with either SDK. Returns its text, and the response headers."""
    if isinstance(client, AsyncOpenAI):
        raw: Any = await client.chat.completions.with_raw_response.create(
            model=model, messages=SAID, stream=stream, **fields
        )
        if not stream:
            return raw.parse().choices[0].message.content or "", raw.headers
        deltas = [chunk.choices[0].delta.content or "" async for chunk in raw.parse() if chunk.choices]
        return "".join(deltas), raw.headers
    asked: Any = {"model": model, "messages": SAID, "max_tokens": 99, **fields}
    if not stream:
        raw = await client.messages.with_raw_response.create(**asked)
        return "".join(block.text for block in (await raw.parse()).content), raw.headers
    async with client.messages.stream(**asked) as events:
        text = "".join([text async for text in events.text_stream])
        assert (await events.get_final_message()).stop_reason == "end_turn"
        return text, events.response.headers


def sdk_of(primary: str, url: str) -> Any:
    return chat_sdk(url) if primary.startswith("openai") else claude_sdk(url)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("primary", "stand_in", "status"), PAIRS)
async def test_every_call_succeeds_while_the_primary_is_down(
    primary: str, stand_in: str, status: int, stream: bool
) -> None:
    models = route(f"{primary}+status:{status}", stand_in)
    breaker = "  breaker: {consecutive_failures: 5, open_for: 30s}"
    async with mixed(models, defaults=breaker) as stand, sdk_of(primary, stand.url) as client:
        slots = asyncio.Semaphore(AT_ONCE)

        async def call() -> str:
            async with slots:
                text, headers = await said(client, stream=stream)
                assert headers["x-llm-guard-deployment"] == stand_in
                return text

        first = await said(client, stream=stream)
        assert stand.upstream_requests <= 3  # max_attempts, and the stand-in
        assert first[1]["x-llm-guard-attempts"] == "3"
        assert await asyncio.gather(*(call() for _ in range(CALLS - 1))) == [TEXT] * (CALLS - 1)
        assert stand.upstream_requests <= 1.5 * CALLS
        before = stand.upstream_requests
        for _ in range(50):
            assert (await said(client, stream=stream))[0] == TEXT
        assert stand.upstream_requests - before <= 55


CUT = [("openai/gpt-4o", "anthropic/claude-sonnet-4-5"), ("anthropic/claude-sonnet-4-5", "openai/gpt-4o")]


@pytest.mark.parametrize("sdk", [chat_sdk, claude_sdk])
@pytest.mark.parametrize(("primary", "stand_in"), CUT)
async def test_cut_streams_are_continued_by_the_other_provider(primary: str, stand_in: str, sdk: Any) -> None:
    models = route(f"{primary}+cut:4@20%", stand_in)
    defaults = "  stream: {recover: continue}\n  breaker: {consecutive_failures: 1000, min_calls: 10000}"
    ended_well, resumed = 0, 0
    async with mixed(models, defaults=defaults, tokens=12) as stand, sdk(stand.url) as client:
        for _ in range(100):
            text, ids, ended, was_resumed = await _followed(client)
            assert not ended or text == "".join(say(12))
            assert len(ids) == 1
            ended_well += ended
            resumed += was_resumed
    assert resumed > 5
    assert ended_well >= 99


async def _followed(client: Any) -> tuple[str, set[str], bool, bool]:
    """Follows a stream. Returns its text, its ids, whether it ended well, and whether it was resumed."""
    text, ids, resumed = "", set[str](), False
    try:
        if isinstance(client, AsyncOpenAI):
            async for chunk in await client.chat.completions.create(model="front", messages=SAID, stream=True):
                ids.add(chunk.id)
                resumed |= "llm_guard" in (chunk.model_extra or {})
                text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
            return text, ids, True, resumed
        asked: Any = {"model": "front", "messages": SAID, "max_tokens": 99}
        async with client.messages.stream(**asked) as events:
            async for event in events:
                resumed |= "llm_guard" in (getattr(event, "model_extra", None) or {})
                if event.type == "message_start":
                    ids.add(event.message.id)
                if event.type == "content_block_delta":
                    text += event.delta.text
            assert (await events.get_final_message()).stop_reason == "end_turn"
        return text, ids, True, resumed
    except (openai_sdk.APIError, anthropic_sdk.APIError):
        return text, ids, False, resumed


@pytest.mark.parametrize(("primary", "stand_in"), CUT)
async def test_cut_tool_call_is_never_ended_as_whole(primary: str, stand_in: str) -> None:
    models = route(f"{stand_in}+cut:2", f"{stand_in}+cut:2")
    async with mixed(models, defaults="  stream: {recover: continue}") as stand:
        if primary.startswith("openai"):
            tools: Any = {"tools": [CHAT_TOOL], "tool_choice": "required"}
            with pytest.raises(openai_sdk.APIError):
                async for _ in await chat_sdk(stand.url).chat.completions.create(
                    model="front", messages=SAID, stream=True, **tools
                ):
                    pass
            return
        tools = {"tools": [MESSAGES_TOOL], "tool_choice": {"type": "any"}}
        async with claude_sdk(stand.url) as client:
            with pytest.raises(anthropic_sdk.APIError):
                async with client.messages.stream(model="front", messages=SAID, max_tokens=99, **tools) as events:
                    await events.get_final_message()


@pytest.mark.parametrize(("primary", "stand_in", "status"), PAIRS)
async def test_bad_request_is_not_sent_to_a_translated_deployment(primary: str, stand_in: str, status: int) -> None:
    del status
    async with mixed(route(f"{primary}+status:400", stand_in)) as stand, sdk_of(primary, stand.url) as client:
        with pytest.raises((openai_sdk.BadRequestError, anthropic_sdk.BadRequestError)):
            await said(client, stream=False)
        assert stand.upstream_requests == 1


@pytest.mark.parametrize(("primary", "stand_in", "status"), PAIRS)
async def test_refusal_of_a_translated_request_is_tried_elsewhere_and_is_no_error_of_the_client(
    primary: str, stand_in: str, status: int
) -> None:
    del status
    models = route(f"{stand_in}+status:400", primary)
    async with mixed(models) as stand, sdk_of(primary, stand.url) as client:
        text, headers = await said(client, stream=False)
        assert (text, headers["x-llm-guard-deployment"]) == (TEXT, primary)
        assert stand.upstream_requests == 2
    models = f'  front: {{deployments: [{{upstream: {stand_in.partition("/")[0]}, model: "m+status:400"}}]}}'
    async with mixed(models) as stand, sdk_of(primary, stand.url) as client:
        with pytest.raises((openai_sdk.InternalServerError, anthropic_sdk.InternalServerError)):
            await said(client, stream=False)


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500])
@pytest.mark.parametrize(("primary", "stand_in"), CUT)
async def test_error_is_raised_as_the_clients_sdk_raises_its_own(primary: str, stand_in: str, status: int) -> None:
    upstream = stand_in.partition("/")[0]
    deployment = f'{{upstream: {upstream}, model: "m+status:{status}"}}'
    models = f"  front: {{deployments: [{deployment}], retry: {{max_attempts: 1}}}}"
    wanted = {
        401: "AuthenticationError", 403: "PermissionDeniedError", 404: "NotFoundError", 429: "RateLimitError",
        500: "InternalServerError",
    }[status]  # fmt: skip
    sdk = openai_sdk if primary.startswith("openai") else anthropic_sdk
    async with mixed(models) as stand, sdk_of(primary, stand.url) as client:
        with pytest.raises(getattr(sdk, wanted)) as caught:
            await said(client, stream=True)
    assert caught.value.status_code == status
    body: Any = caught.value.body
    if sdk is openai_sdk:
        assert set(body) == {"message", "type", "param", "code"}
    else:
        assert (body["type"], set(body["error"])) == ("error", {"type", "message"})


async def test_bytes_of_a_whole_response_are_the_clients() -> None:
    only = "  front: {deployments: [{upstream: anthropic, model: claude-sonnet-4-5}]}"
    async with mixed(only) as stand:
        body = json.dumps({"model": "front", "messages": SAID}).encode()
        reply = await exchange(stand.url, "/v1/chat/completions", body, {"content-type": "application/json"})
    assert reply.values("content-type") == ["application/json"]
    assert reply.values("request-id") == []
    assert len(reply.values("x-request-id")) == 1
    assert json.loads(reply.body).get("object") == "chat.completion"


async def test_request_that_cannot_be_expressed_skips_the_deployment_or_is_refused_by_name() -> None:
    models = route("anthropic/claude-sonnet-4-5", "openai/gpt-4o")
    async with mixed(models) as stand, chat_sdk(stand.url) as client:
        raw = await client.chat.completions.with_raw_response.create(model="front", messages=SAID, n=2)
        assert raw.headers["x-llm-guard-deployment"] == "openai/gpt-4o"
        assert len(raw.parse().choices) == 2
        assert stand.upstream_requests == 1
    only = "  front: {deployments: [{upstream: anthropic, model: claude-sonnet-4-5}]}"
    async with mixed(only) as stand, chat_sdk(stand.url) as client:
        with pytest.raises(openai_sdk.BadRequestError, match="cannot express n") as caught:
            await client.chat.completions.create(model="front", messages=SAID, n=2)
        assert caught.value.response.headers["x-llm-guard-refused-by"] == "translation"
        assert (caught.value.code, caught.value.param) == ("not_expressible", "n")
        assert stand.upstream_requests == 0
    allowed = only.replace("}]}", "}], translate: {drop: [n]}}")
    async with mixed(allowed) as stand, chat_sdk(stand.url) as client:
        raw = await client.chat.completions.with_raw_response.create(model="front", messages=SAID, n=2, seed=1)
        assert raw.headers["x-llm-guard-dropped"] == "n, seed"


async def test_invalid_request_is_the_clients_even_if_only_a_translation_could_serve_it() -> None:
    only = "  front: {deployments: [{upstream: openai, model: gpt-4o}]}"
    async with mixed(only) as stand, claude_sdk(stand.url) as client:
        wrong: Any = [{"role": "robot", "content": "hi"}]
        with pytest.raises(anthropic_sdk.BadRequestError, match="must be user or assistant"):
            await client.messages.create(model="front", max_tokens=9, messages=wrong)
        assert stand.upstream_requests == 0


async def test_callers_key_never_reaches_an_upstream_of_the_other_dialect() -> None:
    models = "  front: {deployments: [{upstream: openai, model: gpt-4o}]}"
    async with mixed(models, has_keys=False) as stand:
        async with claude_sdk(stand.url) as client:
            with pytest.raises(anthropic_sdk.BadRequestError, match="caller's key is never sent"):
                await client.messages.create(model="front", max_tokens=9, messages=SAID)
        assert stand.upstream_requests == 0
        async with chat_sdk(stand.url) as client:
            await client.chat.completions.create(model="front", messages=SAID)
        assert stand.provider.last.header("authorization") == "Bearer sk-caller"


async def test_every_header_of_the_caller_but_its_agent_stays_here() -> None:
    only = "  front: {deployments: [{upstream: anthropic, model: claude-sonnet-4-5}]}"
    async with scripted(only, [whole(200, json.dumps(MESSAGE).encode())]) as (app, provider):
        async with AsyncOpenAI(base_url=f"{app.addresses[0]}/v1", api_key="sk-caller", organization="org") as client:
            await client.chat.completions.create(model="front", messages=SAID, extra_headers={"cookie": "a=b"})
        headers, _ = received(provider)
        assert set(headers) == {
            ":target", "host", "content-type", "accept", "accept-encoding", "user-agent", "anthropic-version",
            "x-api-key", "content-length",
        }  # fmt: skip
        assert headers["x-api-key"] == KEYS["anthropic"]


async def test_tokens_are_counted_alike_in_both_dialects() -> None:
    usage = {"input_tokens": 5, "output_tokens": 7, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20}
    raw = message_events(text_block("Salt"), usage=usage)
    only = "  front: {deployments: [{upstream: anthropic, model: claude-sonnet-4-5}]}"
    for sdk in (chat_sdk, claude_sdk):
        async with scripted(only, stream(raw)) as (app, _):
            async with sdk(app.addresses[0]) as client:
                await said(client, stream=True)
            counts = app.gateway.recorder.models["front"].tokens
            assert (counts["input"], counts["output"]) == (125, 7)


async def test_translations_are_counted_and_logged() -> None:
    models = route("openai/gpt-4o+status:503", "anthropic/claude-sonnet-4-5")
    async with mixed(models) as stand, chat_sdk(stand.url) as client:
        await client.chat.completions.create(model="front", messages=SAID, seed=1, user="u")
        recorder = stand.app.gateway.recorder
        assert recorder._counters.translations == {("openai", "anthropic", "ok"): 1}
        assert recorder._counters.translation_losses == {"seed": 1, "user": 1}


async def test_log_line_names_dialect_and_losses_of_the_attempt() -> None:
    models = route("openai/gpt-4o+status:503", "anthropic/claude-sonnet-4-5")
    async with mixed(models) as stand, chat_sdk(stand.url) as client:
        with capture_logs() as log:
            await client.chat.completions.create(model="front", messages=SAID, seed=1)
    (line,) = [line for line in log if line["event"] == "call"]
    assert "translated_to" not in line["attempts"][0]
    assert (line["attempts"][-1]["translated_to"], line["attempts"][-1]["dropped"]) == ("anthropic", ["seed"])


async def test_learned_limit_is_written_from_then_on() -> None:
    refusal = {"type": "error", "error": {
        "type": "invalid_request_error",
        "message": "max_tokens: 32000 > 8192, which is the maximum allowed number of output tokens for claude-x",
    }}  # fmt: skip
    only = "  front: {deployments: [{upstream: anthropic, model: claude-x}]}"
    scripts = [[whole(400, json.dumps(refusal).encode())], [whole(200, json.dumps(MESSAGE).encode())]]
    async with scripted(only, *scripts) as (app, provider), chat_sdk(app.addresses[0]) as client:
        for _ in range(2):
            text, _ = await said(client, stream=False)
            assert text == "a"
        assert [received(provider, index)[1]["max_tokens"] for index in range(3)] == [32_000, 8192, 8192]


async def test_structured_output_comes_from_the_other_provider() -> None:
    models = route("openai/gpt-4o+status:503", "anthropic/claude-sonnet-4-5")
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "w", "schema": WEATHER, "strict": True}}
    async with mixed(models) as stand, chat_sdk(stand.url) as client:
        text, headers = await said(client, stream=False, response_format=wanted)
    assert json.loads(text) == {"city": "mock"}
    assert headers["x-llm-guard-deployment"] == "anthropic/claude-sonnet-4-5"


async def test_cached_answer_of_a_stand_in_is_served_again_in_the_clients_dialect() -> None:
    models = route("openai/gpt-4o+status:503", "anthropic/claude-sonnet-4-5", rules="cache: {ttl: 1h, requests: all}")
    async with mixed(models) as stand, chat_sdk(stand.url) as client:
        for expected in ("miss", "hit"):
            text, headers = await said(client, stream=False, temperature=0)
            assert (text, headers["x-llm-guard-cache"]) == (TEXT, expected)
        assert stand.upstream_requests == 3


async def test_answer_of_a_stand_in_is_cached_for_a_minute_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    long = route("openai/gpt-4o+status:503", "anthropic/claude-sonnet-4-5", rules="cache: {ttl: 1h, requests: all}")
    kept: list[float] = []
    put = MemoryCache.put

    async def noting(cache: MemoryCache, key: bytes, answer: Any, lasts_s: float) -> None:
        kept.append(lasts_s)
        await put(cache, key, answer, lasts_s)

    monkeypatch.setattr(MemoryCache, "put", noting)
    for models in (long, long.replace("+status:503", "")):
        async with mixed(models) as stand, chat_sdk(stand.url) as client:
            await said(client, stream=False, temperature=0)
    assert kept == [60.0, 3600.0]


async def test_hedge_may_go_to_a_deployment_of_the_other_dialect() -> None:
    models = """
  front:
    deployments: [{upstream: openai, model: "gpt-4o+latency:3s"}, {upstream: anthropic, model: claude-sonnet-4-5}]
    hedge: {after: 50ms, max_extra: 1}
"""
    async with mixed(models) as stand, chat_sdk(stand.url) as client:
        text, headers = await said(client, stream=True)
    assert (text, headers["x-llm-guard-deployment"]) == (TEXT, "anthropic/claude-sonnet-4-5")


async def test_large_request_is_translated() -> None:
    models = route("openai/gpt-4o+status:503", "anthropic/claude-sonnet-4-5")
    history: Any = [{"role": "user", "content": "x" * 3_000_000}]
    async with mixed(models) as stand, chat_sdk(stand.url) as client:
        found = await client.chat.completions.create(model="front", messages=history)
        assert found.choices[0].message.content == TEXT
        body = json.loads(stand.provider.last.body)
        assert len(body["messages"][0]["content"]) == 3_000_000
