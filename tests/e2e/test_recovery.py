"""Failures that the gateway hides from a client, and those that must reach it."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable
from typing import Any

import anthropic as anthropic_sdk
import openai as openai_sdk
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from llm_guard.mock.content import say
from tests.e2e.stand import SAID, TOKENS, Stand, first_only, standing

TEXT = "".join(say(TOKENS))
BEFORE_THE_FIRST_TOKEN = ["error:0", "cut:0", "malformed:0", "status:503", "status:429", "reset", "close"]
AFTER_IT = ["cut:3", "truncated", "error:3"]
WHOLE = ["status:500", "reset", "close", "cut:0", "truncated"]

FALLING_BACK = """
  front: {deployments: [{upstream: openai, model: "gpt-4o+status:500"}], fallbacks: [back]}
  back: {deployments: [{upstream: openai, model: gpt-4o-mini}]}
"""


@pytest.fixture
async def stand() -> AsyncIterator[Stand]:
    """Runs a stand that sends tokens one by one: an error in one packet with the first token would still be retried."""
    async with standing(token_delay_s=0.01) as stand:
        yield stand


@pytest.mark.parametrize("fault", BEFORE_THE_FIRST_TOKEN)
async def test_openai_stream_that_fails_before_its_first_token_is_recovered(fault: str) -> None:
    model = f"gpt-4o+{fault}@50%"
    async with (
        standing(seed=first_only(model)) as stand,
        AsyncOpenAI(base_url=f"{stand.url}/v1", api_key="k", max_retries=0) as client,
    ):
        raw = await client.chat.completions.with_raw_response.create(model=model, messages=SAID, stream=True)
        deltas = [chunk.choices[0].delta.content async for chunk in raw.parse()]
    assert deltas == ["", *say(TOKENS), None]
    assert raw.headers["x-llm-guard-attempts"] == "2"
    assert stand.upstream_requests == 2


@pytest.mark.parametrize("fault", BEFORE_THE_FIRST_TOKEN)
async def test_responses_stream_that_fails_before_its_first_token_is_recovered(fault: str) -> None:
    model = f"gpt-4o+{fault}@50%"
    async with (
        standing(seed=first_only(model)) as stand,
        AsyncOpenAI(base_url=f"{stand.url}/v1", api_key="k", max_retries=0) as client,
    ):
        events = [event async for event in await client.responses.create(model=model, input="hi", stream=True)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type == "response.completed"
    assert stand.upstream_requests == 2


@pytest.mark.parametrize("fault", [*BEFORE_THE_FIRST_TOKEN, "status:529"])
async def test_anthropic_stream_that_fails_before_its_first_token_is_recovered(fault: str) -> None:
    model = f"claude-3-opus+{fault}@50%"
    async with (
        standing(seed=first_only(model)) as stand,
        AsyncAnthropic(base_url=stand.url, api_key="k", max_retries=0) as client,
        client.messages.stream(model=model, max_tokens=9, messages=SAID) as stream,
    ):
        assert [text async for text in stream.text_stream] == say(TOKENS)
        assert (await stream.get_final_message()).stop_reason == "end_turn"
        assert stand.upstream_requests == 2


@pytest.mark.parametrize("fault", WHOLE)
async def test_whole_answer_that_fails_is_recovered(fault: str) -> None:
    model = f"gpt-4o+{fault}@50%"
    async with (
        standing(seed=first_only(model)) as stand,
        AsyncOpenAI(base_url=f"{stand.url}/v1", api_key="k", max_retries=0) as client,
    ):
        raw = await client.chat.completions.with_raw_response.create(model=model, messages=SAID)
    assert raw.parse().choices[0].message.content == TEXT
    assert raw.headers["x-llm-guard-attempts"] == "2"
    assert stand.upstream_requests == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_fallback_answers_for_a_model_that_is_down(stream: bool) -> None:
    async with (
        standing(models=FALLING_BACK) as stand,
        AsyncOpenAI(base_url=f"{stand.url}/v1", api_key="k", max_retries=0) as client,
    ):
        raw = await client.chat.completions.with_raw_response.create(model="front", messages=SAID, stream=stream)
        assert raw.headers["x-llm-guard-deployment"] == "openai/gpt-4o-mini"
        assert raw.headers["x-llm-guard-attempts"] == "4"
        assert stand.provider.last.model == "gpt-4o-mini"


@pytest.mark.parametrize("fault", AFTER_IT)
async def test_openai_stream_that_breaks_after_its_first_token_raises(
    openai: AsyncOpenAI, stand: Stand, fault: str
) -> None:
    stream = await openai.chat.completions.create(model=f"gpt-4o+{fault}", messages=SAID, stream=True)
    heard: list[str] = []
    with pytest.raises(openai_sdk.APIError, match=_said(fault)):
        await _keep(stream, lambda chunk: heard.append(chunk.choices[0].delta.content or ""))
    assert "".join(heard) == "".join(say(TOKENS // 2 if fault == "truncated" else 3))
    assert stand.upstream_requests == 1


@pytest.mark.parametrize("fault", ["cut:3", "truncated"])
async def test_responses_stream_that_breaks_after_its_first_token_raises(
    openai: AsyncOpenAI, stand: Stand, fault: str
) -> None:
    stream = await openai.responses.create(model=f"gpt-4o+{fault}", input="hi", stream=True)
    kinds: list[str] = []
    with pytest.raises(openai_sdk.APIError, match=_said(fault)):
        await _keep(stream, lambda event: kinds.append(event.type))
    assert kinds.count("response.output_text.delta") == (TOKENS // 2 if fault == "truncated" else 3)
    assert "response.completed" not in kinds
    assert stand.upstream_requests == 1


async def test_responses_error_event_passes_unchanged_and_is_recorded(openai: AsyncOpenAI, stand: Stand) -> None:
    # The SDK yields this event instead of raising, since its fields are flat, as in the API description. So the gateway
    # sends a second error event, on which the SDK raises.
    events: list[Any] = []
    with pytest.raises(openai_sdk.APIError, match="openai/gpt-"):  # noqa: PT012
        async for event in await openai.responses.create(model="gpt-4o+error:3", input="hi", stream=True):
            events.append(event)  # noqa: PERF401  # what came before counts
    assert [event.type for event in events][-2:] == ["response.output_text.delta", "error"]
    assert "The server had an error" in events[-1].message
    assert stand.upstream_requests == 1


@pytest.mark.parametrize("fault", AFTER_IT)
async def test_legacy_completion_stream_that_breaks_after_its_first_token_raises(
    openai: AsyncOpenAI, stand: Stand, fault: str
) -> None:
    stream = await openai.completions.create(model=f"gpt-3.5-turbo-instruct+{fault}", prompt="hi", stream=True)
    with pytest.raises(openai_sdk.APIError, match=_said(fault)):
        await _keep(stream, lambda _: None)
    assert stand.upstream_requests == 1


@pytest.mark.parametrize("fault", AFTER_IT)
async def test_anthropic_stream_that_breaks_after_its_first_token_raises(
    anthropic: AsyncAnthropic, stand: Stand, fault: str
) -> None:
    asked: Any = {"model": f"claude-3-opus+{fault}", "max_tokens": 9, "messages": SAID}
    heard: list[str] = []
    async with anthropic.messages.stream(**asked) as stream:
        with pytest.raises(anthropic_sdk.APIStatusError) as caught:
            await _keep(stream.text_stream, heard.append)
    assert heard == say(TOKENS // 2 if fault == "truncated" else 3)
    if fault != "error:3":
        body: Any = caught.value.body
        assert "anthropic/claude-*" in body["error"]["message"]
    assert stand.upstream_requests == 1


async def test_gzipped_stream_that_is_cut_is_no_clean_end(openai: AsyncOpenAI, stand: Stand) -> None:
    # No error event can follow compressed bytes: the connection is aborted instead.
    stream = await openai.chat.completions.create(
        model="gpt-4o+cut:3", messages=SAID, stream=True, extra_headers={"x-mock-gzip": "1"}
    )
    with pytest.raises(openai_sdk.APIConnectionError):
        await _keep(stream, lambda _: None)
    assert stand.upstream_requests == 1


def _said(fault: str) -> str:
    """Pattern of the exception's message: the provider's own error if it sent one, else the gateway's, which names the
    deployment."""
    return "The server had an error" if fault.startswith("error") else r"openai/gpt-\*: "


async def _keep(stream: AsyncIterable[Any], keep: Callable[[Any], None]) -> None:
    """Reads a stream to the end; items before an exception have been kept."""
    async for item in stream:
        keep(item)
