"""The official SDKs read a static fallback response like any other: whole, as a stream, with their helpers, and
parsed."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anthropic
import openai
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic import BaseModel

from tests.e2e.stand import SAID, gateway

SORRY = "We cannot answer now."
JSON = '{"name": "nobody"}'

CONFIG = """
server: {port: 0, drain: 1s}
upstreams:
  openai: {dialect: openai, base_url: "http://127.0.0.1:9/v1"}
  anthropic: {dialect: anthropic, base_url: "http://127.0.0.1:9"}
defaults: {retry: {max_attempts: 1}, degraded: {static_response: "We cannot answer now."}}
models:
  gpt: {deployments: [{upstream: openai}]}
  gpt-json: {deployments: [{upstream: openai}], degraded: {static_response: '{"name": "nobody"}'}}
  claude: {deployments: [{upstream: anthropic}]}
  claude-json: {deployments: [{upstream: anthropic}], degraded: {static_response: '{"name": "nobody"}'}}
"""
"""All models have upstreams that refuse connections."""


class Person(BaseModel):
    name: str


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with gateway(CONFIG) as app:
        yield app.addresses[0]


@pytest.fixture
async def degraded(url: str) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0, timeout=10) as client:
        yield client


@pytest.fixture
async def degraded_claude(url: str) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=url, api_key="k", max_retries=0, timeout=10) as client:
        yield client


async def test_chat(degraded: AsyncOpenAI) -> None:
    raw = await degraded.chat.completions.with_raw_response.create(model="gpt", messages=SAID, n=2)
    assert raw.headers["x-llm-guard-degraded"] == "static"
    answer = raw.parse()
    assert [choice.message.content for choice in answer.choices] == [SORRY, SORRY]
    assert {choice.finish_reason for choice in answer.choices} == {"stop"}
    assert answer.id.startswith("chatcmpl-degraded-")
    assert answer.usage is not None
    assert answer.usage.total_tokens == 0


async def test_chat_stream_and_its_helper(degraded: AsyncOpenAI) -> None:
    stream = await degraded.chat.completions.create(
        model="gpt", messages=SAID, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == SORRY
    assert chunks[-1].usage is not None
    async with degraded.chat.completions.stream(model="gpt", messages=SAID) as helper:
        kinds = [event.type async for event in helper]
        final = await helper.get_final_completion()
    assert "content.done" in kinds
    assert final.choices[0].message.content == SORRY


async def test_chat_with_a_response_format(degraded: AsyncOpenAI) -> None:
    prose = await degraded.chat.completions.parse(model="gpt", messages=SAID, response_format=Person)
    assert (prose.choices[0].message.parsed, prose.choices[0].message.refusal) == (None, SORRY)
    fit = await degraded.chat.completions.parse(model="gpt-json", messages=SAID, response_format=Person)
    assert fit.choices[0].message.parsed == Person(name="nobody")
    async with degraded.chat.completions.stream(model="gpt", messages=SAID, response_format=Person) as helper:
        kinds = [event.type async for event in helper]
        final = await helper.get_final_completion()
    assert "refusal.done" in kinds
    assert final.choices[0].message.refusal == SORRY


async def test_completion(degraded: AsyncOpenAI) -> None:
    answer = await degraded.completions.create(model="gpt", prompt="hi")
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (SORRY, "stop")
    stream = await degraded.completions.create(model="gpt", prompt="hi", stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == SORRY


async def test_response(degraded: AsyncOpenAI) -> None:
    answer = await degraded.responses.create(model="gpt", input="hi")
    assert (answer.output_text, answer.status) == (SORRY, "completed")
    assert answer.id.startswith("resp_degraded-")
    assert answer.usage is not None
    assert answer.usage.total_tokens == 0


async def test_response_stream_and_its_helper(degraded: AsyncOpenAI) -> None:
    async with degraded.responses.stream(model="gpt", input="hi") as helper:
        kinds = [event.type async for event in helper]
        final = await helper.get_final_response()
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert final.output_text == SORRY


async def test_response_with_a_text_format(degraded: AsyncOpenAI) -> None:
    prose = await degraded.responses.parse(model="gpt", input="hi", text_format=Person)
    assert prose.output_parsed is None
    assert prose.output[0].type == "message"
    assert prose.output[0].content[0].type == "refusal"
    assert prose.output[0].content[0].refusal == SORRY
    fit = await degraded.responses.parse(model="gpt-json", input="hi", text_format=Person)
    assert fit.output_parsed == Person(name="nobody")
    async with degraded.responses.stream(model="gpt", input="hi", text_format=Person) as helper:
        kinds = [event.type async for event in helper]
        final = await helper.get_final_response()
    assert "response.refusal.done" in kinds
    assert final.output_parsed is None


async def test_message(degraded_claude: AsyncAnthropic) -> None:
    answer = await degraded_claude.messages.create(model="claude", max_tokens=9, messages=SAID)
    assert [block.text for block in answer.content if block.type == "text"] == [SORRY]
    assert (answer.stop_reason, answer.usage.output_tokens) == ("end_turn", 0)
    assert answer.id.startswith("msg_degraded-")


async def test_message_stream_and_its_helper(degraded_claude: AsyncAnthropic) -> None:
    async with degraded_claude.messages.stream(model="claude", max_tokens=9, messages=SAID) as helper:
        kinds = [event.type async for event in helper]
        final = await helper.get_final_message()
    assert kinds[-1] == "message_stop"
    assert [block.text for block in final.content if block.type == "text"] == [SORRY]
    assert final.stop_reason == "end_turn"


async def test_message_with_an_output_format(degraded_claude: AsyncAnthropic) -> None:
    fit = await degraded_claude.messages.parse(model="claude-json", max_tokens=9, messages=SAID, output_format=Person)
    assert fit.parsed_output == Person(name="nobody")
    with pytest.raises(anthropic.APIStatusError) as caught:
        await degraded_claude.messages.parse(model="claude", max_tokens=9, messages=SAID, output_format=Person)
    assert caught.value.status_code == 502


async def test_embedding_fails_as_ever(degraded: AsyncOpenAI) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        await degraded.embeddings.create(model="gpt", input="hi")
    assert caught.value.status_code == 502
