"""Common text features of the `openai` SDK through the gateway."""

from __future__ import annotations

from typing import Any

import pytest
from openai import APITimeoutError, AsyncOpenAI
from pydantic import BaseModel

from llm_guard.mock.content import say
from tests.e2e.stand import SAID, TOKENS, Stand
from tests.fakes.waiting import eventually

TEXT = "".join(say(TOKENS))
TOOL: Any = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}


class Verdict(BaseModel):
    ok: bool
    words: list[str]


async def test_chat_answers(openai: AsyncOpenAI, stand: Stand) -> None:
    answer = await openai.chat.completions.create(model="gpt-4o", messages=SAID)
    assert answer.choices[0].message.content == TEXT
    assert answer.usage is not None
    assert answer.usage.completion_tokens == TOKENS
    assert stand.upstream_requests == 1


async def test_chat_answers_each_choice_whole_and_streamed(openai: AsyncOpenAI) -> None:
    answer = await openai.chat.completions.create(model="gpt-4o", messages=SAID, n=2)
    assert [choice.message.content for choice in answer.choices] == [TEXT, TEXT]
    texts = ["", ""]
    finishes = []
    async for chunk in await openai.chat.completions.create(model="gpt-4o", messages=SAID, n=2, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            finishes += [choice.index] if choice.finish_reason else []
    assert texts == [TEXT, TEXT]
    assert finishes == [0, 1]


async def test_chat_streams_token_by_token(openai: AsyncOpenAI) -> None:
    stream = await openai.chat.completions.create(model="gpt-4o", messages=SAID, stream=True)
    deltas = [chunk.choices[0].delta.content async for chunk in stream]
    assert deltas == ["", *say(TOKENS), None]


async def test_usage_trailer_follows_the_finish_reason(openai: AsyncOpenAI) -> None:
    stream = await openai.chat.completions.create(
        model="gpt-4o", messages=SAID, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == TOKENS


async def test_chat_stream_helper_collects_the_final_completion(openai: AsyncOpenAI) -> None:
    async with openai.chat.completions.stream(model="gpt-4o", messages=SAID) as stream:
        deltas = [event.delta async for event in stream if event.type == "content.delta"]
        final = await stream.get_final_completion()
    assert "".join(deltas) == final.choices[0].message.content == TEXT


async def test_tools_are_called_whole_and_streamed(openai: AsyncOpenAI) -> None:
    answer = await openai.chat.completions.create(model="gpt-4o", messages=SAID, tools=[TOOL], tool_choice="required")
    named: Any = {"type": "function", "function": {"name": "add"}}
    async with openai.chat.completions.stream(model="gpt-4o", messages=SAID, tools=[TOOL], tool_choice=named) as stream:
        streamed = await stream.get_final_completion()
    for message in (answer.choices[0].message, streamed.choices[0].message):
        call: Any = (message.tool_calls or [])[0]
        assert (call.function.name, call.function.arguments) == ("add", '{"a":7}')


async def test_structured_output_is_parsed_whole_and_streamed(openai: AsyncOpenAI) -> None:
    wanted = Verdict(ok=True, words=["mock"])
    answer = await openai.chat.completions.parse(model="gpt-4o", messages=SAID, response_format=Verdict)
    assert answer.choices[0].message.parsed == wanted
    async with openai.chat.completions.stream(model="gpt-4o", messages=SAID, response_format=Verdict) as stream:
        assert (await stream.get_final_completion()).choices[0].message.parsed == wanted
    response = await openai.responses.parse(model="gpt-4o", input="hi", text_format=Verdict)
    assert response.output_parsed == wanted


async def test_legacy_completions_answer_whole_and_streamed(openai: AsyncOpenAI) -> None:
    whole = await openai.completions.create(model="gpt-3.5-turbo-instruct", prompt="hi")
    assert whole.choices[0].text == TEXT
    stream = await openai.completions.create(model="gpt-3.5-turbo-instruct", prompt="hi", stream=True)
    assert [chunk.choices[0].text async for chunk in stream] == [*say(TOKENS), ""]


async def test_responses_answer_whole_and_streamed(openai: AsyncOpenAI) -> None:
    whole = await openai.responses.create(model="gpt-4o", input="hi")
    assert whole.output_text == TEXT
    events = [event async for event in await openai.responses.create(model="gpt-4o", input="hi", stream=True)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")


async def test_responses_stream_helper_collects_the_final_response(openai: AsyncOpenAI) -> None:
    async with openai.responses.stream(model="gpt-4o", input="hi") as stream:
        deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        final = await stream.get_final_response()
    assert deltas == say(TOKENS)
    assert final.output_text == TEXT


async def test_embeddings_are_the_same_in_both_encodings(openai: AsyncOpenAI) -> None:
    asked: Any = {"model": "text-embedding-3-small", "input": ["a", "b"], "dimensions": 4}
    floats = await openai.embeddings.create(encoding_format="float", **asked)
    packed = await openai.embeddings.create(encoding_format="base64", **asked)
    decoded = await openai.embeddings.create(**asked)
    assert [len(one.embedding) for one in floats.data] == [4, 4]
    as_text: Any = packed.data[0].embedding
    assert isinstance(as_text, str)
    assert [one.embedding for one in decoded.data] == [one.embedding for one in floats.data]


async def test_raw_response_shows_the_gateway_headers(openai: AsyncOpenAI) -> None:
    raw = await openai.chat.completions.with_raw_response.create(model="gpt-4o", messages=SAID)
    assert raw.headers["x-llm-guard-request-id"].startswith("lg-")
    assert raw.headers["x-llm-guard-attempts"] == "1"
    assert raw.headers["x-llm-guard-deployment"] == "openai/gpt-*"
    assert raw.request_id
    assert raw.parse().choices[0].message.content == TEXT


async def test_streamed_response_carries_the_same_headers(openai: AsyncOpenAI) -> None:
    raw = await openai.chat.completions.with_raw_response.create(model="gpt-4o", messages=SAID, stream=True)
    assert raw.headers["x-llm-guard-attempts"] == "1"
    assert raw.headers["x-llm-guard-deployment"] == "openai/gpt-*"
    assert raw.headers["content-type"].startswith("text/event-stream")
    assert len([chunk async for chunk in raw.parse()]) == TOKENS + 2


@pytest.mark.parametrize("stream", [False, True])
async def test_client_timeout_closes_the_upstream_exchange(openai: AsyncOpenAI, stand: Stand, stream: bool) -> None:
    # Drops the header in which the SDK announces its timeout: other clients send none.
    unsaid = {"x-stainless-read-timeout": "None"}
    impatient = openai.with_options(timeout=0.3)
    with pytest.raises(APITimeoutError):
        await impatient.chat.completions.create(
            model="gpt-4o+silence", messages=SAID, stream=stream, extra_headers=unsaid
        )
    await eventually(lambda: stand.provider.stats().departures)
    assert [gone.model for gone in stand.provider.stats().departures] == ["gpt-4o+silence"]
    assert stand.upstream_requests == 1


async def test_stream_left_early_closes_the_upstream_exchange(openai: AsyncOpenAI, stand: Stand) -> None:
    stream = await openai.chat.completions.create(model="gpt-4o+stall:3", messages=SAID, stream=True)
    async for chunk in stream:
        if chunk.choices[0].delta.content == say(3)[-1]:
            break
    assert stand.provider.stats().departures == ()
    await stream.close()
    await eventually(lambda: stand.provider.stats().departures)
    await eventually(lambda: stand.provider.stats().in_flight == 0)


async def test_upstream_connection_serves_call_after_call(openai: AsyncOpenAI, stand: Stand) -> None:
    for stream in (False, True, False, True):
        answer = await openai.chat.completions.create(model="gpt-4o", messages=SAID, stream=stream)
        if stream:
            assert [chunk async for chunk in answer]  # type: ignore[union-attr]  # the overloads want a literal
    assert stand.provider.stats().open_connections == 1
