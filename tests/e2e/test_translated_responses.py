"""Calls of the Responses API that deployments without it serve, as openai's SDK sees them."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

from llm_guard.mock.content import say
from tests.e2e.stand import SAID
from tests.e2e.test_translation_streams import BREAKS, CHAT_ERROR, ERROR, RICH, RICH_CHAT, USAGE, sdk
from tests.e2e.translating import mixed, received, route, scripted, stream
from tests.fakes.provider import END, Reset, Respond, chunk, stream_head, whole
from tests.unit.dialects.translation.conversions import RESPONSES_TOOL, message_events, text_block

LOCAL = route("local/qwen", "local/qwen-small")
MODELS = route("anthropic/claude-sonnet-4-5", "anthropic/claude-haiku-4-5")
TOOLS: Any = [RESPONSES_TOOL]
CHAT_CALLS = [("weather", "call_1", {"city": "Oslo"}), ("weather", "call_2", {"city": "Rome"})]
CALLS = [("weather", "toolu_1", {"city": "Oslo"}), ("weather", "toolu_2", {"city": "Rome"})]

ANSWER: dict[str, Any] = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "stop_reason": "tool_use",
    "stop_sequence": None, "usage": USAGE, "content": [
        {"type": "thinking", "thinking": "Let me see.", "signature": ""}, {"type": "text", "text": "It is "},
        {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}},
        {"type": "tool_use", "id": "toolu_2", "name": "weather", "input": {"city": "Rome"}},
    ],
}  # fmt: skip

COMPLETION: dict[str, Any] = {
    "id": "c", "object": "chat.completion", "created": 1, "model": "qwen", "choices": [{
        "index": 0, "finish_reason": "tool_calls", "message": {"role": "assistant", "content": "It is ", "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}},
            {"id": "call_2", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}},
        ]},
    }],
    "usage": {"prompt_tokens": 105, "completion_tokens": 30, "total_tokens": 135},
}  # fmt: skip


async def respond(url: str, **fields: Any) -> Any:
    """Streams a response through openai's SDK; returns the final one."""
    async with sdk(url) as client:
        fields = {"input": "hi", "tools": TOOLS, **fields}
        async with client.responses.stream(model="front", **fields) as events:
            async for _ in events:
                pass
            return await events.get_final_response()


def calls_of(response: Any) -> list[tuple[str, str, Any]]:
    calls = [item for item in response.output if item.type == "function_call"]
    return [(call.name, call.call_id, json.loads(call.arguments)) for call in calls]


async def test_streamed_response_is_served_by_messages_with_thinking_text_and_two_tools() -> None:
    async with scripted(MODELS, stream(RICH)) as (app, provider):
        found = await respond(app.addresses[0], instructions="Be brief.", store=False)
    assert (found.status, found.output_text, calls_of(found)) == ("completed", "It is ", CALLS)
    assert [item.type for item in found.output] == ["message", "function_call", "function_call"]
    usage = found.usage
    assert (usage.input_tokens, usage.input_tokens_details.cached_tokens, usage.output_tokens) == (105, 100, 30)
    headers, body = received(provider)
    assert headers[":target"] == "/v1/messages"
    assert headers["x-api-key"] == "sk-of-anthropic"
    assert b"sk-caller" not in b"".join(provider.requests)
    assert (body["model"], body["stream"], body["system"]) == ("claude-sonnet-4-5", True, "Be brief.")
    assert body["tools"][0]["name"] == "weather"


async def test_whole_response_is_served_by_messages() -> None:
    async with (
        scripted(MODELS, [whole(body=json.dumps(ANSWER).encode())]) as (app, provider),
        sdk(app.addresses[0]) as client,
    ):
        found = await client.responses.create(model="front", input="hi", tools=TOOLS)
    assert (found.status, found.output_text, calls_of(found)) == ("completed", "It is ", CALLS)
    assert found.usage is not None
    assert (found.usage.input_tokens, found.usage.input_tokens_details.cached_tokens) == (105, 100)
    _, body = received(provider)
    assert "stream" not in body


async def test_parsed_response_is_served_by_messages() -> None:
    class Weather(BaseModel):
        city: str

    answer = {**ANSWER, "content": [{"type": "text", "text": '{"city": "Oslo"}'}], "stop_reason": "end_turn"}
    async with (
        scripted(MODELS, [whole(body=json.dumps(answer).encode())]) as (app, provider),
        sdk(app.addresses[0]) as client,
    ):
        found = await client.responses.parse(model="front", input="hi", text_format=Weather)
    assert found.output_parsed == Weather(city="Oslo")
    _, body = received(provider)
    assert body["output_config"]["format"]["type"] == "json_schema"


@pytest.mark.parametrize("kind", BREAKS)
@pytest.mark.parametrize("at", [0.35, 0.6, 0.9])
async def test_broken_stream_never_ends_cleanly(kind: str, at: float) -> None:
    models = MODELS.replace("fallbacks: [back], ", "timeout: {idle: 100ms}, ")
    cut = RICH[: int(len(RICH) * at)]
    async with scripted(models, stream(cut, *BREAKS[kind]), defaults="  stream: {recover: off}") as (app, _):
        with pytest.raises(openai.APIError):
            await respond(app.addresses[0])


async def test_error_event_in_the_stream_raises_in_the_clients_sdk_with_the_providers_words() -> None:
    cut = RICH.index(b"event: content_block_start", RICH.index(b"is "))
    script = [stream_head(), chunk(RICH[:cut]), Respond(b""), chunk(ERROR), END]
    async with scripted(MODELS, script, defaults="  stream: {recover: off}") as (app, _):
        with pytest.raises(openai.APIError, match="Overloaded"):
            await respond(app.addresses[0])


async def test_stream_that_dies_continues_at_another_deployment_as_one_response() -> None:
    first = message_events(text_block("It is ", "sunny in "))
    cut = first.index(b"event: content_block_stop")
    rest = message_events(text_block("It is sunny in Oslo today."))
    defaults = "  stream: {recover: continue}"
    async with scripted(MODELS, [stream_head(), chunk(first[:cut]), Reset()], stream(rest), defaults=defaults) as (
        app,
        _,
    ):
        found = await respond(app.addresses[0], tools=[])
    assert found.output_text == "It is sunny in Oslo today."
    assert found.status == "completed"


async def test_errors_have_openais_format_and_overload_is_unavailable() -> None:
    error = b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}'
    script = [whole(529, error)]
    alone = MODELS.replace("fallbacks: [back], ", "")
    async with scripted(alone, script, script) as (app, _), sdk(app.addresses[0]) as client:
        with pytest.raises(openai.InternalServerError) as caught:
            await client.responses.create(model="front", input="hi")
    assert caught.value.status_code == 503
    assert caught.value.body["message"] == "Overloaded"  # type: ignore[index]


async def test_what_cannot_be_expressed_is_refused_by_name() -> None:
    async with scripted(MODELS) as (app, provider), sdk(app.addresses[0]) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(model="front", input="hi", previous_response_id="resp_1")
    assert (caught.value.code, caught.value.param) == ("not_expressible", "previous_response_id")
    assert provider.requests == []


# an OpenAI-compatible server that has only chats


async def test_streamed_response_is_served_by_a_chat() -> None:
    async with scripted(LOCAL, stream(RICH_CHAT)) as (app, provider):
        found = await respond(app.addresses[0], instructions="Be brief.")
    assert (found.status, found.output_text, calls_of(found)) == ("completed", "It is ", CHAT_CALLS)
    assert (found.usage.input_tokens, found.usage.input_tokens_details.cached_tokens) == (105, 100)
    headers, body = received(provider)
    assert (headers[":target"], headers["authorization"]) == ("/v1/chat/completions", "Bearer sk-of-local")
    assert (body["model"], body["stream_options"]) == ("qwen", {"include_usage": True})
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}


async def test_whole_response_is_served_by_a_chat() -> None:
    answer = whole(body=json.dumps(COMPLETION).encode())
    async with scripted(LOCAL, [answer]) as (app, _), sdk(app.addresses[0]) as client:
        found = await client.responses.create(model="front", input="hi", tools=TOOLS)
    assert (found.status, found.output_text, calls_of(found)) == ("completed", "It is ", CHAT_CALLS)


@pytest.mark.parametrize("kind", BREAKS)
@pytest.mark.parametrize("at", [0.3, 0.5, 0.75])
async def test_broken_chat_never_ends_cleanly(kind: str, at: float) -> None:
    models = LOCAL.replace("fallbacks: [back], ", "timeout: {idle: 100ms}, ")
    cut = RICH_CHAT[: int(len(RICH_CHAT) * at)]
    async with scripted(models, stream(cut, *BREAKS[kind]), defaults="  stream: {recover: off}") as (app, _):
        with pytest.raises(openai.APIError):
            await respond(app.addresses[0])


async def test_error_event_in_a_chat_raises() -> None:
    cut = RICH_CHAT.index(b"data: ", RICH_CHAT.index(b"is "))
    script = [stream_head(), chunk(RICH_CHAT[:cut]), chunk(CHAT_ERROR + b"data: [DONE]\n\n"), END]
    async with scripted(LOCAL, script, defaults="  stream: {recover: off}") as (app, _):
        with pytest.raises(openai.APIError, match="had an error"):
            await respond(app.addresses[0])


async def test_refusal_of_the_translated_request_is_not_the_clients_mistake() -> None:
    error = b'{"error":{"message":"messages: wrong","type":"invalid_request_error","param":"messages","code":null}}'
    alone = LOCAL.replace("fallbacks: [back], ", "")
    async with scripted(alone, [whole(400, error)]) as (app, _), sdk(app.addresses[0]) as client:
        with pytest.raises(openai.InternalServerError) as caught:
            await client.responses.create(model="front", input="hi")
    assert caught.value.status_code == 502


async def test_callers_key_reaches_a_server_of_its_own_dialect() -> None:
    alone = LOCAL.replace("fallbacks: [back], ", "").replace("upstream: local", "upstream: bare")
    text = whole(body=json.dumps(COMPLETION).encode())
    async with scripted(alone, [text]) as (app, provider), sdk(app.addresses[0]) as client:
        await client.responses.create(model="front", input="hi")
    assert received(provider)[0]["authorization"] == "Bearer sk-caller"


async def test_chats_of_such_a_server_are_not_changed() -> None:
    answer = whole(body=json.dumps(COMPLETION).encode())
    async with scripted(LOCAL, [answer]) as (app, provider), sdk(app.addresses[0]) as client:
        found = await client.chat.completions.create(model="front", messages=SAID, seed=1)
    assert found.id == "c"
    assert received(provider)[1]["seed"] == 1


async def test_server_is_the_fallback_of_one_with_the_responses_api() -> None:
    models = route("openai/gpt-5.5", "local/qwen")
    down = [whole(500, b'{"error": {"message": "down"}}')]
    async with scripted(models, down, down, stream(RICH_CHAT)) as (app, provider):
        found = await respond(app.addresses[0])
    assert found.output_text == "It is "
    targets = [received(provider, index)[0][":target"] for index in range(3)]
    assert targets == ["/v1/responses", "/v1/responses", "/v1/chat/completions"]


# streams that break, and go on elsewhere

PAIRS = [
    ("openai/gpt-4o", "anthropic/claude-sonnet-4-5"), ("anthropic/claude-sonnet-4-5", "openai/gpt-4o"),
    ("openai/gpt-4o", "local/qwen"), ("local/qwen", "anthropic/claude-sonnet-4-5"),
]  # fmt: skip


@pytest.mark.parametrize(("primary", "stand_in"), PAIRS)
async def test_cut_streams_are_continued_by_a_server_with_another_api(primary: str, stand_in: str) -> None:
    models = route(f"{primary}+cut:4@20%", stand_in)
    defaults = "  stream: {recover: continue}\n  breaker: {consecutive_failures: 1000, min_calls: 10000}"
    ended_well, resumed = 0, 0
    async with mixed(models, defaults=defaults, tokens=12) as stand, sdk(stand.url) as client:
        for _ in range(60):
            text, ids, ended, was_resumed = await _followed(client)
            assert not ended or text == "".join(say(12))
            assert len(ids) == 1
            ended_well += ended
            resumed += was_resumed
    assert resumed > 3
    assert ended_well >= 59


async def _followed(client: AsyncOpenAI) -> tuple[str, set[str], bool, bool]:
    """Follows a stream. Returns its text, its ids, whether it ended well, and whether it was resumed."""
    text, ids, resumed, numbers = "", set[str](), False, list[int]()
    try:
        async for event in await client.responses.create(model="front", input="hi", stream=True, store=False):
            numbers.append(event.sequence_number)
            resumed |= "llm_guard" in (event.model_extra or {})
            if event.type in ("response.created", "response.in_progress", "response.completed"):
                ids.add(event.response.id)
            if event.type == "response.output_text.delta":
                text += event.delta
        assert numbers == list(range(len(numbers)))
        assert event.type == "response.completed"
        assert event.response.output_text == text
        return text, ids, True, resumed
    except openai.APIError:
        return text, ids, False, resumed


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stand_in", ["anthropic/claude-sonnet-4-5", "local/qwen"])
async def test_every_call_succeeds_while_the_provider_with_the_responses_api_is_down(
    stand_in: str, stream: bool
) -> None:
    async with mixed(route("openai/gpt-4o+status:500", stand_in)) as stand, sdk(stand.url) as client:
        for _ in range(10):
            if stream:
                found = await respond(stand.url, tools=[])
            else:
                found = await client.responses.create(model="front", input="hi")
            assert (found.status, found.output_text) == ("completed", "".join(say(8)))
