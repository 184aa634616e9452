"""Deferred calls, made and fetched with the official SDKs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

import anthropic as anthropic_sdk
import httpx2
import openai as openai_sdk
import pytest
from anthropic import AsyncAnthropic
from anthropic.types import Message
from openai import AsyncOpenAI, AsyncStream
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.e2e.stand import SAID, Stand, standing

ASYNC = {"x-llm-guard-async": "true"}


@pytest.fixture
async def stand() -> AsyncIterator[Stand]:
    async with standing(seed=1) as stand:
        yield stand


async def fetched(client: AsyncOpenAI | AsyncAnthropic, url: str) -> httpx2.Response:
    """Polls for the response itself: 202 means that there is none yet."""
    async with asyncio.timeout(10):
        while (reply := await client.get(url, cast_to=httpx2.Response)).status_code == 202:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return reply


def place(headers: Mapping[str, str], base: str) -> str:
    """Returns the response's location, relative to the SDK's base URL."""
    return headers["location"].removeprefix(base)


async def test_openai_is_deferred_and_fetches_a_completion(stand: Stand, openai: AsyncOpenAI) -> None:
    raw = await openai.chat.completions.with_raw_response.create(model="gpt-x", messages=SAID, extra_headers=ASYNC)
    assert raw.status_code == 202
    url = place(raw.headers, "/v1")
    await fetched(openai, url)
    completion = await openai.get(url, cast_to=ChatCompletion)
    assert completion.choices[0].message.content
    assert completion.model == "gpt-x"
    assert stand.upstream_requests == 1
    assert stand.provider.last.header("authorization") == "Bearer sk-caller"


async def test_openai_fetches_a_stream_as_a_stream(stand: Stand, openai: AsyncOpenAI) -> None:
    raw = await openai.chat.completions.with_raw_response.create(
        model="gpt-x", messages=SAID, stream=True, extra_headers=ASYNC
    )
    url = place(raw.headers, "/v1")
    await fetched(openai, url)
    stream = await openai.get(
        url, cast_to=ChatCompletionChunk, stream=True, stream_cls=AsyncStream[ChatCompletionChunk]
    )  # fmt: skip
    said = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
    assert len("".join(said)) > 10


async def test_anthropic_is_deferred_and_fetches_a_message(stand: Stand, anthropic: AsyncAnthropic) -> None:
    raw = await anthropic.messages.with_raw_response.create(
        model="claude-x", max_tokens=9, messages=SAID, extra_headers=ASYNC
    )
    assert raw.status_code == 202
    url = place(raw.headers, "")
    await fetched(anthropic, url)
    message = await anthropic.get(url, cast_to=Message)
    assert message.content[0].type == "text"


async def test_failed_call_is_raised_by_the_sdk_when_it_is_fetched(stand: Stand, openai: AsyncOpenAI) -> None:
    raw = await openai.chat.completions.with_raw_response.create(
        model="gpt-x+status:400", messages=SAID, extra_headers=ASYNC
    )
    with pytest.raises(openai_sdk.BadRequestError) as caught:
        await fetched(openai, place(raw.headers, "/v1"))
    assert "(attempts: 1)" in caught.value.message


async def test_anthropic_failure_is_in_the_anthropic_format(stand: Stand, anthropic: AsyncAnthropic) -> None:
    raw = await anthropic.messages.with_raw_response.create(
        model="claude-x+status:400", max_tokens=9, messages=SAID, extra_headers=ASYNC
    )
    with pytest.raises(anthropic_sdk.BadRequestError) as caught:
        await fetched(anthropic, place(raw.headers, ""))
    assert "(attempts: 1)" in caught.value.message


async def test_failing_provider_is_retried_until_it_answers(stand: Stand, openai: AsyncOpenAI) -> None:
    stand.provider.switch("gpt-x", "status:503")
    raw = await openai.chat.completions.with_raw_response.create(model="gpt-x", messages=SAID, extra_headers=ASYNC)
    url = place(raw.headers, "/v1")
    async with asyncio.timeout(10):
        while (await openai.get(url, cast_to=httpx2.Response)).json()["last_failure"] is None:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    stand.provider.switch("gpt-x", "")
    assert (await fetched(openai, url)).status_code == 200


async def test_another_key_finds_nothing(stand: Stand, openai: AsyncOpenAI) -> None:
    raw = await openai.chat.completions.with_raw_response.create(model="gpt-x", messages=SAID, extra_headers=ASYNC)
    url = place(raw.headers, "/v1")
    other = openai.with_options(api_key="sk-other")
    with pytest.raises(openai_sdk.NotFoundError):
        await other.get(url, cast_to=httpx2.Response)
