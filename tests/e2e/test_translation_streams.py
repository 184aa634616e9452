"""Streams of another dialect, as the official SDKs read them: thinking, text and tools, and every way to break."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import anthropic
import openai
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from llm_guard.dialects import DIALECTS
from llm_guard.dialects.sse import StreamObserver
from tests.e2e.stand import SAID
from tests.e2e.translating import received, route, scripted, stream
from tests.effort import repeated
from tests.fakes.provider import END, Close, Hold, Reset, Respond, chunk, stream_head, whole
from tests.unit.dialects.translation.conversions import (
    CHAT_TOOL,
    MESSAGES_TOOL,
    call_delta,
    chat_events,
    delta,
    message_events,
    text_block,
    tool_block,
)

MODELS = route("anthropic/claude-sonnet-4-5", "anthropic/claude-haiku-4-5")
BACK = route("openai/gpt-4o", "openai/gpt-4o-mini")
THOUGHT = {"type": "thinking", "thinking": "", "signature": "", "pieces": ["Let me ", "see."]}
USAGE = {"input_tokens": 5, "output_tokens": 30, "cache_read_input_tokens": 100}
RICH = message_events(
    THOUGHT, text_block("It ", "is "), tool_block("toolu_1", "weather", '{"city"', ': "Oslo"}'),
    tool_block("toolu_2", "weather", '{"city": "Rome"}'), stop="tool_use", usage=USAGE,
)  # fmt: skip
RICH_CHAT = chat_events(
    delta(role="assistant", content=""), delta(reasoning_content="Let me see."), delta(content="It "),
    delta(content="is "), call_delta(0, "", "call_1", "weather"), call_delta(0, '{"city": "Oslo"}'),
    call_delta(1, '{"city": "Rome"}', "call_2", "weather"), delta("tool_calls"),
    {"choices": [], "usage": {"prompt_tokens": 105, "completion_tokens": 30,
                              "prompt_tokens_details": {"cached_tokens": 100}}},
)  # fmt: skip
ERROR = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n'
CHAT_ERROR = b'data: {"error":{"message":"The server had an error","type":"server_error"}}\n\n'


def sdk(url: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{url}/v1", api_key="sk-caller", max_retries=0, timeout=10)


def claude_sdk(url: str) -> AsyncAnthropic:
    return AsyncAnthropic(base_url=url, api_key="sk-caller", max_retries=0, timeout=10)


async def chat(url: str, **fields: Any) -> Any:
    """Streams a chat through openai's SDK; returns its final completion."""
    tools: Any = [CHAT_TOOL]
    options: Any = {"include_usage": True}
    async with sdk(url) as client:
        asked = client.chat.completions.stream(
            model="front", messages=SAID, tools=tools, stream_options=options, **fields
        )
        async with asked as events:
            async for _ in events:
                pass
            return await events.get_final_completion()


async def messages(url: str, **fields: Any) -> Any:
    tools: Any = [MESSAGES_TOOL]
    async with claude_sdk(url) as client:
        asked = client.messages.stream(model="front", messages=SAID, max_tokens=99, tools=tools, **fields)
        async with asked as events:
            return await events.get_final_message()


async def test_chat_is_served_by_messages_with_thinking_text_and_two_tools() -> None:
    async with scripted(MODELS, stream(RICH)) as (app, provider):
        found = await chat(app.addresses[0])
    choice = found.choices[0]
    assert (choice.message.content, choice.finish_reason) == ("It is ", "tool_calls")
    calls = [(call.id, call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls]
    assert calls == [("toolu_1", "weather", {"city": "Oslo"}), ("toolu_2", "weather", {"city": "Rome"})]
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (105, 30)
    assert found.usage.prompt_tokens_details.cached_tokens == 100
    headers, body = received(provider)
    assert headers[":target"] == "/v1/messages"
    assert (headers["x-api-key"], headers["anthropic-version"]) == ("sk-of-anthropic", "2023-06-01")
    assert b"sk-caller" not in b"".join(provider.requests)
    assert (body["model"], body["stream"], body["tools"][0]["name"]) == ("claude-sonnet-4-5", True, "weather")


async def test_messages_are_served_by_a_chat_with_reasoning_text_and_two_tools() -> None:
    async with scripted(BACK, stream(RICH_CHAT)) as (app, provider):
        found = await messages(app.addresses[0])
    assert [block.type for block in found.content] == ["text", "tool_use", "tool_use"]
    assert (found.content[0].text, found.stop_reason) == ("It is ", "tool_use")
    assert [block.input for block in found.content[1:]] == [{"city": "Oslo"}, {"city": "Rome"}]
    usage = found.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (5, 100, 30)
    headers, body = received(provider)
    assert headers[":target"] == "/v1/chat/completions"
    assert headers["authorization"] == "Bearer sk-of-openai"
    assert b"sk-caller" not in b"".join(provider.requests)
    assert body["stream_options"] == {"include_usage": True}


async def test_reasoning_is_shown_where_the_config_says_so() -> None:
    shown = "  translate: {reasoning: show}"
    async with scripted(MODELS, stream(RICH), defaults=shown) as (app, _):
        found = await chat(app.addresses[0])
    assert found.choices[0].message.reasoning_content == "Let me see."
    async with scripted(BACK, stream(RICH_CHAT), defaults=shown) as (app, _):
        found = await messages(app.addresses[0])
    assert (found.content[0].type, found.content[0].thinking) == ("thinking", "Let me see.")


BREAKS: dict[str, list[Any]] = {"cut": [Close()], "reset": [Reset()], "clean end": [END], "stall": [Hold()]}


@pytest.mark.parametrize("kind", BREAKS)
@pytest.mark.parametrize("at", [0.35, 0.6, 0.9])
async def test_broken_stream_never_ends_cleanly(kind: str, at: float) -> None:
    defaults = "  stream: {recover: off}"
    models = MODELS.replace("fallbacks: [back], ", "timeout: {idle: 100ms}, ")
    cut = RICH[: int(len(RICH) * at)]
    async with scripted(models, stream(cut, *BREAKS[kind]), defaults=defaults) as (app, _):
        with pytest.raises(openai.APIError):
            await chat(app.addresses[0])
    models = BACK.replace("fallbacks: [back], ", "timeout: {idle: 100ms}, ")
    cut = RICH_CHAT[: int(len(RICH_CHAT) * at * 0.8)]
    async with scripted(models, stream(cut, *BREAKS[kind]), defaults=defaults) as (app, _):
        with pytest.raises(anthropic.APIError):
            await messages(app.addresses[0])


async def test_error_event_in_the_stream_raises_in_the_clients_sdk_with_the_providers_words() -> None:
    cut = RICH.index(b"event: content_block_start", RICH.index(b"is "))
    off = "  stream: {recover: off}"
    script = [stream_head(), chunk(RICH[:cut]), Respond(b""), chunk(ERROR), END]
    async with scripted(MODELS, script, defaults=off) as (app, _):
        with pytest.raises(openai.APIError, match="Overloaded"):
            await chat(app.addresses[0])
    cut = RICH_CHAT.index(b"data: ", RICH_CHAT.index(b"is "))
    script = [stream_head(), chunk(RICH_CHAT[:cut]), chunk(CHAT_ERROR + b"data: [DONE]\n\n"), END]
    async with scripted(BACK, script, defaults=off) as (app, _):
        with pytest.raises(anthropic.APIStatusError, match="The server had an error"):
            await messages(app.addresses[0])


async def test_error_before_the_first_token_is_retried_elsewhere() -> None:
    for models, error, rich, ask in ((MODELS, ERROR, RICH, chat), (BACK, CHAT_ERROR, RICH_CHAT, messages)):
        async with scripted(models, stream(error), stream(error), stream(rich)) as (app, provider):
            found: Any = await ask(app.addresses[0])
            assert found.usage is not None
            assert len(provider.requests) == 3


async def test_prebuffered_stream_that_dies_meanwhile_is_sent_by_another_deployment() -> None:
    held = "  stream: {prebuffer: {tokens: 50, time: 2s}}"
    for models, rich, ask in ((MODELS, RICH, chat), (BACK, RICH_CHAT, messages)):
        cut = rich[: len(rich) // 2]
        scripts = [stream(cut, Close()), stream(cut, Close()), stream(rich)]
        async with scripted(models, *scripts, defaults=held) as (app, provider):
            await ask(app.addresses[0])
            assert len(provider.requests) == 3


async def test_garbled_event_is_no_text_that_is_missing_unnoticed() -> None:
    text = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":1,"delta":\n\n'
    cut = RICH.index(b"event: content_block_start", RICH.index(b"is "))
    broken = RICH[:cut] + text + RICH[cut:]
    async with scripted(MODELS, stream(broken), defaults="  stream: {recover: off}") as (app, _):
        with pytest.raises(openai.APIError, match="cannot be translated"):
            await chat(app.addresses[0])


async def test_call_whose_arguments_are_no_json_is_no_valid_message() -> None:
    raw = chat_events(call_delta(0, '{"city": Oslo}', "call_1", "weather"), delta("tool_calls"))
    async with scripted(BACK, stream(raw), defaults="  stream: {recover: off}") as (app, _):
        with pytest.raises(anthropic.APIError, match="not a JSON object"):
            await messages(app.addresses[0])


async def test_such_a_call_in_a_stream_that_is_held_back_is_tried_again() -> None:
    raw = chat_events(call_delta(0, '{"city": Oslo}', "call_1", "weather"), delta("tool_calls"))
    held = "  stream: {prebuffer: {tokens: 50, time: 2s}}"
    async with scripted(BACK, stream(raw), stream(RICH_CHAT), defaults=held) as (app, provider):
        assert (await messages(app.addresses[0])).stop_reason == "tool_use"
        assert len(provider.requests) == 2


async def test_stream_without_usage_and_done_ends_for_the_client() -> None:
    raw = chat_events(delta(content="Salt"), delta("stop"), done=False)
    async with scripted(BACK, stream(raw)) as (app, _):
        found = await messages(app.addresses[0])
    assert (found.content[0].text, found.stop_reason) == ("Salt", "end_turn")


async def test_whole_response_to_a_stream_becomes_the_clients_stream() -> None:
    message: dict[str, Any] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "stop_sequence": None,
    }
    message |= {"content": [{"type": "text", "text": "Salt"}], "stop_reason": "end_turn", "usage": USAGE}
    async with scripted(MODELS, [whole(200, json.dumps(message).encode())]) as (app, _):
        found = await chat(app.addresses[0])
    assert (found.choices[0].message.content, found.usage.completion_tokens) == ("Salt", 30)


STREAMS = Path(__file__).parents[1] / "data" / "streams"
RECORDED = (
    "anthropic_text", "anthropic_thinking", "anthropic_tool_use", "anthropic_unnamed", "anthropic_refusal",
    "openai_chat", "openai_chat_usage", "openai_chat_logprobs", "openai_chat_refusal", "azure_chat", "gemini_chat",
    "gemini_chat_tools", "groq_chat", "mistral_chat", "ollama_chat", "ollama_chat_usage", "openrouter_chat",
    "sglang_chat", "vllm_chat_reasoning", "xai_chat",
)  # fmt: skip


def has_ended(name: str, raw: bytes) -> bool:
    """Returns whether a stream has shown its end."""
    is_anthropic = name.startswith("anthropic")
    dialect = DIALECTS["anthropic" if is_anthropic else "openai"]
    observer = StreamObserver(dialect.stream_reader(dialect.DEFAULT_PATH, 1))
    observer.feed(raw)
    return observer.has_ended


@pytest.mark.parametrize("name", RECORDED)
async def test_recorded_stream_that_is_cut_raises_in_the_sdk(name: str) -> None:
    raw, random = (STREAMS / f"{name}.sse").read_bytes(), Random(name)
    assert has_ended(name, raw)
    places = [random.randrange(len(raw)) for _ in range(repeated(60))]
    cuts = [raw[:at] for at in places if not has_ended(name, raw[:at])]
    assert len(cuts) >= repeated(20)
    upstream = "anthropic" if name.startswith("anthropic") else "openai"
    only = f"  front: {{deployments: [{{upstream: {upstream}}}], retry: {{max_attempts: 1}}}}"
    settings = "  stream: {recover: off}\n  breaker: {consecutive_failures: 1000, min_calls: 10000}"
    async with scripted(only, *(stream(cut, Close()) for cut in cuts), defaults=settings) as (app, provider):
        for _ in cuts:
            with pytest.raises((openai.APIError, anthropic.APIError)):
                await (chat if upstream == "anthropic" else messages)(app.addresses[0])
        assert len(provider.requests) == len(cuts)
