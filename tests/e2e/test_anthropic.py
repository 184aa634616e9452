"""Common uses of the `anthropic` SDK through the gateway."""

from __future__ import annotations

from typing import Any

import pytest
from anthropic import APITimeoutError, AsyncAnthropic, omit
from openai import AsyncOpenAI
from pydantic import BaseModel

from llm_guard.mock.content import say
from tests.e2e.stand import SAID, TOKENS, Stand
from tests.fakes.waiting import eventually

TEXT = "".join(say(TOKENS))
TOOL: Any = {"name": "add", "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}
ASKED: Any = {"model": "claude-3-opus", "max_tokens": 99, "messages": SAID}


class Verdict(BaseModel):
    ok: bool
    words: list[str]


async def test_messages_answer(anthropic: AsyncAnthropic, stand: Stand) -> None:
    message = await anthropic.messages.create(**ASKED)
    assert (message.content[0].text, message.stop_reason) == (TEXT, "end_turn")
    assert message.usage.output_tokens == TOKENS
    assert stand.upstream_requests == 1


async def test_messages_stream_event_by_event(anthropic: AsyncAnthropic) -> None:
    kinds = [event.type async for event in await anthropic.messages.create(stream=True, **ASKED)]
    assert kinds == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * TOKENS,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


async def test_stream_helper_yields_text_and_the_final_message(anthropic: AsyncAnthropic) -> None:
    async with anthropic.messages.stream(**ASKED) as stream:
        assert [text async for text in stream.text_stream] == say(TOKENS)
        final = await stream.get_final_message()
    assert final.content[0].text == TEXT  # type: ignore[union-attr]  # the first block is text
    assert final.usage.output_tokens == TOKENS


async def test_tools_are_used_whole_and_streamed_until_their_result(anthropic: AsyncAnthropic) -> None:
    used = await anthropic.messages.create(tools=[TOOL], **ASKED)
    async with anthropic.messages.stream(tools=[TOOL], **ASKED) as stream:
        streamed = await stream.get_final_message()
    for message in (used, streamed):
        block: Any = message.content[0]
        assert (message.stop_reason, block.name, block.input) == ("tool_use", "add", {"a": 7})
    result: Any = {"type": "tool_result", "tool_use_id": "toolu_mock", "content": "8"}
    talk = [*SAID, {"role": "user", "content": [result]}]
    done = await anthropic.messages.create(tools=[TOOL], **ASKED | {"messages": talk})
    assert done.stop_reason == "end_turn"


async def test_structured_output_is_parsed(anthropic: AsyncAnthropic) -> None:
    message = await anthropic.messages.parse(output_format=Verdict, **ASKED)
    assert message.parsed_output == Verdict(ok=True, words=["mock"])


async def test_tokens_are_counted(anthropic: AsyncAnthropic) -> None:
    counted = await anthropic.messages.count_tokens(model="claude-3-opus", messages=SAID)
    assert counted.input_tokens > 1


async def test_message_batches_return_their_results(anthropic: AsyncAnthropic) -> None:
    batch = await anthropic.messages.batches.create(requests=[{"custom_id": "one", "params": ASKED}])
    assert (await anthropic.messages.batches.retrieve(batch.id)).processing_status == "ended"
    results = [line async for line in await anthropic.messages.batches.results(batch.id)]
    assert [(line.custom_id, line.result.type) for line in results] == [("one", "succeeded")]


async def test_models_of_each_dialect_are_distinguished(anthropic: AsyncAnthropic, openai: AsyncOpenAI) -> None:
    theirs = [model.id async for model in anthropic.models.list()]
    others = [model.id async for model in openai.models.list()]
    assert "claude-3-opus" in theirs
    assert "gpt-4o" in others
    assert not set(theirs) & set(others)
    assert (await anthropic.models.retrieve("claude-3-opus")).type == "model"


async def test_bearer_token_passes_unchanged(stand: Stand) -> None:
    async with AsyncAnthropic(base_url=stand.url, auth_token="tok", max_retries=0) as client:
        await client.messages.create(**ASKED)
        assert "claude-3-opus" in [model.id async for model in client.models.list()]
    for seen in stand.provider.seen:
        assert (seen.header("authorization"), seen.header("x-api-key")) == ("Bearer tok", None)


async def test_x_api_key_passes_unchanged(stand: Stand) -> None:
    # The form of older SDKs; newer ones send a bearer token.
    headers: Any = {"x-api-key": "sk-old", "authorization": omit}
    async with AsyncAnthropic(base_url=stand.url, auth_token="tok", max_retries=0) as client:
        await client.messages.create(extra_headers=headers, **ASKED)
    assert stand.provider.last.header("x-api-key") == "sk-old"
    assert stand.provider.last.header("authorization") is None


async def test_beta_endpoints_keep_their_query_and_header(anthropic: AsyncAnthropic, stand: Stand) -> None:
    # Older SDKs add the query themselves.
    await anthropic.beta.messages.create(betas=["files-api-2025-04-14"], extra_query={"beta": "true"}, **ASKED)
    assert stand.provider.last.target == "/v1/messages?beta=true"
    assert stand.provider.last.header("anthropic-beta") == "files-api-2025-04-14"


async def test_raw_response_shows_the_gateway_headers(anthropic: AsyncAnthropic) -> None:
    raw = await anthropic.messages.with_raw_response.create(**ASKED)
    assert raw.headers["x-llm-guard-request-id"].startswith("lg-")
    assert raw.headers["x-llm-guard-attempts"] == "1"
    assert raw.headers["x-llm-guard-deployment"] == "anthropic/claude-*"
    assert raw.request_id == raw.headers["request-id"]


@pytest.mark.parametrize("stream", [False, True])
async def test_client_timeout_closes_the_upstream_exchange(
    anthropic: AsyncAnthropic, stand: Stand, stream: bool
) -> None:
    # Drops the headers in which the SDK announces its timeout: other clients send none.
    unsaid = {"x-stainless-read-timeout": "None", "x-stainless-timeout": "NOT_GIVEN"}
    with pytest.raises(APITimeoutError):
        await anthropic.with_options(timeout=0.3).messages.create(
            stream=stream, extra_headers=unsaid, **ASKED | {"model": "claude-3-opus+silence"}
        )
    await eventually(lambda: stand.provider.stats().departures)
    assert stand.upstream_requests == 1
