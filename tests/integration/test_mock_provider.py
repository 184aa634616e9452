"""The mock provider seen through the official SDKs."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from anthropic import APIStatusError as AnthropicStatusError
from anthropic import AsyncAnthropic
from openai import APIError, APIStatusError, AsyncOpenAI
from pydantic import BaseModel

from llm_guard.mock.content import say
from llm_guard.mock.provider import MockProvider

SAID: Any = [{"role": "user", "content": "hi"}]
TEXT = "".join(say(8))
TOOL: Any = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}
ANTHROPIC_TOOL: Any = {"name": "add", "input_schema": TOOL["function"]["parameters"]}


class Verdict(BaseModel):
    ok: bool
    words: list[str]


@pytest.fixture
async def provider() -> AsyncIterator[MockProvider]:
    async with MockProvider() as provider:
        yield provider


@pytest.fixture
async def openai(provider: MockProvider) -> AsyncIterator[AsyncOpenAI]:
    url = f"{provider.url}/v1"
    async with AsyncOpenAI(base_url=url, api_key="k", max_retries=0, timeout=10) as client:
        yield client


@pytest.fixture
async def anthropic(provider: MockProvider) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=provider.url, api_key="k", max_retries=0, timeout=10) as client:
        yield client


@pytest.fixture
async def http(provider: MockProvider) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(provider.url, timeout=aiohttp.ClientTimeout(10)) as session:
        yield session


async def test_openai_chat_answers_each_choice(openai: AsyncOpenAI, provider: MockProvider) -> None:
    answer = await openai.chat.completions.create(model="gpt-4o+latency:1ms", messages=SAID, n=2)
    assert [choice.message.content for choice in answer.choices] == [TEXT, TEXT]
    assert answer.model == "gpt-4o"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8
    assert provider.last.model == "gpt-4o+latency:1ms"


async def test_openai_chat_streams_with_a_usage_trailer(openai: AsyncOpenAI) -> None:
    stream = await openai.chat.completions.create(
        model="gpt-4o", messages=SAID, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == TEXT
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None


async def test_openai_tools_are_called_when_they_must_be(openai: AsyncOpenAI) -> None:
    answer = await openai.chat.completions.create(model="gpt-4o", messages=SAID, tools=[TOOL], tool_choice="required")
    call: Any = (answer.choices[0].message.tool_calls or [])[0]
    assert (call.function.name, call.function.arguments) == ("add", '{"a":7}')
    free = await openai.chat.completions.create(model="gpt-4o", messages=SAID, tools=[TOOL])
    assert free.choices[0].message.content == TEXT


async def test_openai_tool_calls_stream_in_pieces(openai: AsyncOpenAI) -> None:
    named: Any = {"type": "function", "function": {"name": "add"}}
    async with openai.chat.completions.stream(model="gpt-4o", messages=SAID, tools=[TOOL], tool_choice=named) as stream:
        final = await stream.get_final_completion()
    call: Any = (final.choices[0].message.tool_calls or [])[0]
    assert (call.function.name, call.function.arguments) == ("add", '{"a":7}')


async def test_openai_structured_output_fits_its_schema(openai: AsyncOpenAI) -> None:
    answer = await openai.chat.completions.parse(model="gpt-4o", messages=SAID, response_format=Verdict)
    assert answer.choices[0].message.parsed == Verdict(ok=True, words=["mock"])
    response = await openai.responses.parse(model="gpt-4o", input="hi", text_format=Verdict)
    assert response.output_parsed == Verdict(ok=True, words=["mock"])


async def test_openai_completions_answer_whole_and_streamed(openai: AsyncOpenAI) -> None:
    whole = await openai.completions.create(model="gpt-3.5-turbo-instruct", prompt="hi")
    assert whole.choices[0].text == TEXT
    stream = await openai.completions.create(model="gpt-3.5-turbo-instruct", prompt="hi", stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == TEXT


async def test_openai_responses_answer_whole_and_streamed(openai: AsyncOpenAI) -> None:
    whole = await openai.responses.create(model="gpt-4o", input="hi")
    assert whole.output_text == TEXT
    async with openai.responses.stream(model="gpt-4o", input="hi") as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert final.output_text == TEXT
    assert kinds[0] == "response.created"
    assert kinds.count("response.output_text.delta") == 8
    assert kinds[-1] == "response.completed"


async def test_openai_embeddings_are_the_same_in_both_encodings(openai: AsyncOpenAI) -> None:
    floats = await openai.embeddings.create(model="e", input=["a", "b"], encoding_format="float", dimensions=4)
    packed = await openai.embeddings.create(model="e", input=["a", "b"], encoding_format="base64", dimensions=4)
    defaulted = await openai.embeddings.create(model="e", input=["a", "b"], dimensions=4)
    assert [len(one.embedding) for one in floats.data] == [4, 4]
    as_text: Any = packed.data[0].embedding
    assert isinstance(as_text, str)
    assert [one.embedding for one in defaulted.data] == [one.embedding for one in floats.data]
    assert len((await openai.embeddings.create(model="e", input=[1, 2, 3])).data) == 1


async def test_openai_media_and_moderation_answer(openai: AsyncOpenAI) -> None:
    images = await openai.images.generate(model="gpt-image-1", prompt="a", n=2)
    assert len(images.data or []) == 2
    speech = await openai.audio.speech.create(model="tts-1", input="a", voice="alloy")
    assert speech.content.startswith(b"ID3")
    heard = await openai.audio.transcriptions.create(model="whisper-1", file=("a.wav", io.BytesIO(bytes(500))))
    assert heard.text == "heard 500 bytes"
    judged = await openai.moderations.create(input=["a", "b"])
    assert [result.flagged for result in judged.results] == [False, False]


async def test_openai_files_are_stored_and_deleted(openai: AsyncOpenAI) -> None:
    data = bytes(range(256))
    file = await openai.files.create(file=("a.jsonl", data), purpose="batch")
    assert (file.bytes, file.filename) == (256, "a.jsonl")
    assert [one.id async for one in openai.files.list()] == [file.id]
    assert (await openai.files.retrieve(file.id)).id == file.id
    assert (await openai.files.content(file.id)).content == data
    assert (await openai.files.delete(file.id)).deleted
    with pytest.raises(APIStatusError) as caught:
        await openai.files.retrieve(file.id)
    assert caught.value.status_code == 404


async def test_openai_batches_and_models_are_found(openai: AsyncOpenAI) -> None:
    batch = await openai.batches.create(input_file_id="f", endpoint="/v1/chat/completions", completion_window="24h")
    assert (await openai.batches.retrieve(batch.id)).status == "completed"
    assert "gpt-4o" in [model.id async for model in openai.models.list()]
    assert (await openai.models.retrieve("gpt-x")).id == "gpt-x"


async def test_anthropic_messages_answer_whole_and_streamed(anthropic: AsyncAnthropic) -> None:
    whole = await anthropic.messages.create(model="claude-3-opus", max_tokens=99, messages=SAID)
    block: Any = whole.content[0]
    assert (block.text, whole.stop_reason) == (TEXT, "end_turn")
    async with anthropic.messages.stream(model="claude-3-opus", max_tokens=99, messages=SAID) as stream:
        assert await stream.get_final_text() == TEXT
        assert (await stream.get_final_message()).usage.output_tokens == 8


async def test_anthropic_tools_are_used_until_their_result(anthropic: AsyncAnthropic) -> None:
    asked: Any = {"model": "claude-3-opus", "max_tokens": 99, "tools": [ANTHROPIC_TOOL]}
    used = await anthropic.messages.create(messages=SAID, **asked)
    block: Any = used.content[0]
    assert (used.stop_reason, block.name, block.input) == ("tool_use", "add", {"a": 7})
    async with anthropic.messages.stream(messages=SAID, **asked) as stream:
        streamed: Any = (await stream.get_final_message()).content[0]
    assert streamed.input == {"a": 7}
    result: Any = {"type": "tool_result", "tool_use_id": block.id, "content": "8"}
    done = await anthropic.messages.create(messages=[*SAID, {"role": "user", "content": [result]}], **asked)
    assert done.stop_reason == "end_turn"


async def test_anthropic_counts_models_and_batches_answer(anthropic: AsyncAnthropic) -> None:
    assert (await anthropic.messages.count_tokens(model="claude-3-opus", messages=SAID)).input_tokens > 1
    assert "claude-3-opus" in [model.id async for model in anthropic.models.list()]
    params: Any = {"model": "claude-3-opus", "max_tokens": 9, "messages": SAID}
    batch = await anthropic.messages.batches.create(requests=[{"custom_id": "one", "params": params}])
    assert (await anthropic.messages.batches.retrieve(batch.id)).processing_status == "ended"
    results = [line async for line in await anthropic.messages.batches.results(batch.id)]
    assert [(line.custom_id, line.result.type) for line in results] == [("one", "succeeded")]


async def test_realtime_echoes_and_closes_with_the_requested_code(http: aiohttp.ClientSession) -> None:
    async with http.ws_connect("/v1/realtime?model=gpt-realtime") as socket:
        assert (await socket.receive_json())["type"] == "session.created"
        await socket.send_json({"type": "response.create"})
        kinds = [(await socket.receive_json())["type"] for _ in range(10)]
        assert kinds == ["response.created", *["response.output_text.delta"] * 8, "response.done"]
        await socket.send_json({"type": "x", "n": 1})
        assert (await socket.receive_json())["event"] == {"type": "x", "n": 1}
        await socket.send_bytes(b"\x00\xff")
        assert await socket.receive_bytes() == b"\x00\xff"
        await socket.send_json({"type": "mock.close", "code": 4000, "reason": "enough"})
        closed = await socket.receive()
    assert (closed.type, closed.data, closed.extra) == (aiohttp.WSMsgType.CLOSE, 4000, "enough")


async def test_realtime_refuses_the_upgrade_with_the_requested_status(http: aiohttp.ClientSession) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await http.ws_connect("/v1/realtime?model=gpt-realtime+status:401")
    assert caught.value.status == 401


async def test_status_has_the_body_and_headers_of_the_dialect(openai: AsyncOpenAI, anthropic: AsyncAnthropic) -> None:
    with pytest.raises(APIStatusError) as caught:
        await openai.chat.completions.create(model="gpt-4o+status:429:7", messages=SAID)
    assert (caught.value.status_code, caught.value.code) == (429, "rate_limit_exceeded")
    assert caught.value.response.headers["retry-after"] == "7"
    assert caught.value.request_id
    with pytest.raises(AnthropicStatusError) as overloaded:
        await anthropic.messages.create(model="claude+status:529", max_tokens=9, messages=SAID)
    assert overloaded.value.status_code == 529
    assert overloaded.value.request_id
    body: Any = overloaded.value.body
    assert body["error"]["type"] == "overloaded_error"


async def test_an_error_in_the_stream_reaches_the_sdk_as_one(openai: AsyncOpenAI, anthropic: AsyncAnthropic) -> None:
    stream = await openai.chat.completions.create(model="gpt-4o+error:2", messages=SAID, stream=True)
    heard = [(await anext(stream)).choices[0].delta.content for _ in range(3)]
    assert heard == ["", *say(2)]
    with pytest.raises(APIError):
        await anext(stream)
    fields: Any = {"model": "c+error:0", "max_tokens": 9, "messages": SAID}
    async with anthropic.messages.stream(**fields) as messages:
        with pytest.raises(AnthropicStatusError):
            await messages.get_final_text()
