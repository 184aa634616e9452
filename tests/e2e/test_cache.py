"""Cached responses read by the official SDKs: whole ones, streams, and their stream helpers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from tests.e2e.stand import SAID, TOKENS, Stand, standing

MODELS = """
  "gpt-*": {deployments: [{upstream: openai}], cache: {ttl: 1m, stale_if_error: 1h}}
  "text-embedding-*": {deployments: [{upstream: openai}], cache: {ttl: 1m}}
  "claude-*": {deployments: [{upstream: anthropic}], cache: {ttl: 1m}}
"""
TWICE = range(2)


@pytest.fixture
async def stand() -> AsyncIterator[Stand]:
    async with standing(models=MODELS) as stand:
        yield stand


async def test_openai_chat(openai: AsyncOpenAI, stand: Stand) -> None:
    told = []
    for _ in TWICE:
        raw = await openai.chat.completions.with_raw_response.create(model="gpt-4o", messages=SAID)
        told.append((raw.headers["x-llm-guard-cache"], raw.parse().choices[0].message.content))
    assert [result for result, _ in told] == ["miss", "hit"]
    assert told[0][1] == told[1][1]
    assert stand.upstream_requests == 1


async def test_openai_chat_stream(openai: AsyncOpenAI, stand: Stand) -> None:
    told = []
    for _ in TWICE:
        stream = await openai.chat.completions.create(
            model="gpt-4o", messages=SAID, stream=True, stream_options={"include_usage": True}
        )
        told.append([chunk.model_dump() async for chunk in stream])
    assert told[0] == told[1]
    assert sum(bool(chunk["choices"] and chunk["choices"][0]["delta"]["content"]) for chunk in told[1]) == TOKENS
    assert told[1][-1]["usage"] is not None
    assert stand.upstream_requests == 1


async def test_openai_stream_helper(openai: AsyncOpenAI, stand: Stand) -> None:
    told = []
    for _ in TWICE:
        async with openai.chat.completions.stream(model="gpt-4o", messages=SAID) as stream:
            events = [event.type async for event in stream]
            completion = await stream.get_final_completion()
        told.append((events, completion.choices[0].message.content, completion.choices[0].finish_reason))
    assert told[0] == told[1]
    assert told[1][2] == "stop"
    assert stand.upstream_requests == 1


async def test_openai_responses_stream_helper(openai: AsyncOpenAI, stand: Stand) -> None:
    told = []
    for _ in TWICE:
        async with openai.responses.stream(model="gpt-4o", input="hi") as stream:
            events = [event.type async for event in stream]
            response = await stream.get_final_response()
        told.append((events, response.output_text, response.status))
    assert told[0] == told[1]
    assert told[1][2] == "completed"
    assert stand.upstream_requests == 1


async def test_openai_embeddings(openai: AsyncOpenAI, stand: Stand) -> None:
    told = [await openai.embeddings.create(model="text-embedding-3-small", input=["a", "b"]) for _ in TWICE]
    assert told[0].data == told[1].data
    assert stand.upstream_requests == 1


async def test_anthropic_messages(anthropic: AsyncAnthropic, stand: Stand) -> None:
    told = [await anthropic.messages.create(model="claude-3", max_tokens=99, messages=SAID) for _ in TWICE]
    assert told[0].content == told[1].content
    assert stand.upstream_requests == 1


async def test_anthropic_stream_helper(anthropic: AsyncAnthropic, stand: Stand) -> None:
    told = []
    for _ in TWICE:
        async with anthropic.messages.stream(model="claude-3", max_tokens=99, messages=SAID) as stream:
            texts = [text async for text in stream.text_stream]
            message = await stream.get_final_message()
        told.append((texts, message.stop_reason, message.usage.output_tokens))
    assert told[0] == told[1]
    assert len(told[1][0]) == TOKENS
    assert stand.upstream_requests == 1


async def test_outage_is_hidden_by_the_cache(openai: AsyncOpenAI, stand: Stand) -> None:
    async def ask() -> str | None:
        answer = await openai.chat.completions.create(model="gpt-4o", messages=SAID, extra_headers=NEW)
        return answer.choices[0].message.content

    before = await openai.chat.completions.create(model="gpt-4o", messages=SAID)
    await stand.provider.stop()
    NEW = {"cache-control": "max-age=1, min-fresh=60"}  # the cached response is not fresh enough for this  # noqa: N806
    assert await ask() == before.choices[0].message.content
