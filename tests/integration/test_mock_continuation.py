"""The mock continues a text that is given back to it, in every format, as seen through the official SDKs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from anthropic import BadRequestError as AnthropicBadRequestError
from openai import AsyncOpenAI, BadRequestError

from llm_guard.mock.content import say
from llm_guard.mock.provider import MockProvider

TEXT = "".join(say(8))
USER: Any = {"role": "user", "content": "hi"}
BEGUN: Any = {"role": "assistant", "content": "Breakers open"}
ORDER: Any = {"role": "user", "content": 'Go on where you stopped. Begin with "Breakers open".'}
TOOL: Any = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}


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


async def chat(openai: AsyncOpenAI, *messages: Any, model: str = "m", **fields: Any) -> list[str]:
    """Returns the pieces of a streamed response, after checking its usage against their number."""
    stream = await openai.chat.completions.create(
        model=model, messages=list(messages), stream=True, stream_options={"include_usage": True}, **fields
    )
    chunks = [chunk async for chunk in stream]
    pieces = [one.choices[0].delta.content for one in chunks if one.choices and one.choices[0].delta.content]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(pieces)
    return pieces


async def messages(anthropic: AsyncAnthropic, *turns: Any, model: str = "m") -> list[str]:
    async with anthropic.messages.stream(model=model, max_tokens=99, messages=list(turns)) as stream:
        pieces = [text async for text in stream.text_stream]
        final = await stream.get_final_message()
    assert final.usage.output_tokens == len(pieces)
    return pieces


async def responses(openai: AsyncOpenAI, *items: Any, model: str = "m") -> list[str]:
    async with openai.responses.stream(model=model, input=list(items)) as stream:
        pieces = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        final = await stream.get_final_response()
    assert final.usage is not None
    assert final.usage.output_tokens == len(pieces)
    assert final.output_text == "".join(pieces)
    return pieces


async def test_chat_continues_a_last_message_of_the_assistant(openai: AsyncOpenAI) -> None:
    assert await chat(openai, USER, BEGUN) == [" when ", *say(8)[3:]]
    assert await chat(openai, USER, {**BEGUN, "partial": True}) == [" when ", *say(8)[3:]]
    vllm = {"continue_final_message": True, "add_generation_prompt": False}
    assert await chat(openai, USER, BEGUN, extra_body=vllm) == [" when ", *say(8)[3:]]
    whole = await openai.chat.completions.create(model="m", messages=[USER, BEGUN])
    assert "Breakers open" + (whole.choices[0].message.content or "") == TEXT
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 6


async def test_chat_repeats_a_prefix_as_mistral_does(openai: AsyncOpenAI) -> None:
    assert await chat(openai, USER, {**BEGUN, "prefix": True}) == ["Breakers open", " when ", *say(8)[3:]]


async def test_final_message_is_not_continued_with_a_generation_prompt(openai: AsyncOpenAI) -> None:
    with pytest.raises(BadRequestError, match="Cannot set both"):
        await chat(openai, USER, BEGUN, extra_body={"continue_final_message": True})


async def test_messages_continue_a_last_message_of_the_assistant(anthropic: AsyncAnthropic) -> None:
    assert await messages(anthropic, USER, BEGUN) == [" when ", *say(8)[3:]]
    blocks = [{"type": "text", "text": "Breakers op"}]
    assert await messages(anthropic, USER, {**BEGUN, "content": blocks}) == ["en ", *say(8)[2:]]


async def test_messages_refuse_a_beginning_that_ends_in_whitespace_whole(anthropic: AsyncAnthropic) -> None:
    words = "messages: final assistant content cannot end with trailing whitespace"
    for model in ("m", "m+cut:1"):
        with pytest.raises(AnthropicBadRequestError, match=words):
            await messages(anthropic, USER, {**BEGUN, "content": "Breakers "}, model=model)


async def test_legacy_completions_continue_the_end_of_the_prompt(openai: AsyncOpenAI) -> None:
    prompt = "Say something. Breakers open"
    whole = await openai.completions.create(model="m", prompt=prompt)
    assert "Breakers open" + whole.choices[0].text == TEXT
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 6
    stream = await openai.completions.create(
        model="m", prompt=prompt, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert [one.choices[0].text for one in chunks if one.choices] == [" when ", *say(8)[3:], ""]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 6


async def test_every_format_continues_when_instructed(openai: AsyncOpenAI, anthropic: AsyncAnthropic) -> None:
    turns = (USER, BEGUN, ORDER)
    assert await chat(openai, *turns) == await messages(anthropic, *turns) == await responses(openai, *turns) == say(8)
    turns = (USER, BEGUN, {**ORDER, "content": "Go on."})
    assert await chat(openai, *turns) == await messages(anthropic, *turns) == say(8)[2:]
    assert await responses(openai, *turns) == say(8)[2:]


async def test_overlap_repeats_words_regardless_of_the_quotation(
    openai: AsyncOpenAI, anthropic: AsyncAnthropic
) -> None:
    turns = (USER, BEGUN, ORDER)
    assert await chat(openai, *turns, model="m+overlap:1") == say(8)[1:]
    assert await messages(anthropic, *turns, model="m+overlap:0") == say(8)[2:]
    assert await responses(openai, *turns, model="m+overlap:7") == say(8)
    assert await chat(openai, USER, model="m+overlap:1") == say(8)


async def test_preamble_precedes_a_continued_text(openai: AsyncOpenAI, anthropic: AsyncAnthropic) -> None:
    said = "Sure, here is the rest:\n\n" + "".join(say(8))
    for chat_in in (chat(openai, USER, BEGUN, ORDER, model="m+preamble"),
                    messages(anthropic, USER, BEGUN, ORDER, model="m+preamble"),
                    responses(openai, USER, BEGUN, ORDER, model="m+preamble")):  # fmt: skip
        assert "".join(await chat_in) == said
    assert await chat(openai, USER, model="m+preamble") == say(8)


async def test_continued_stream_can_be_cut_again(openai: AsyncOpenAI, provider: MockProvider) -> None:
    stream = await openai.chat.completions.create(model="m+truncated", messages=[USER, BEGUN], stream=True)
    heard = [chunk.choices[0].delta.content async for chunk in stream]
    assert heard == ["", " when ", "providers ", "fail, "]


async def test_no_model_without_prefill_takes_one(openai: AsyncOpenAI, anthropic: AsyncAnthropic) -> None:
    words = "This model does not support assistant message prefill"
    with pytest.raises(BadRequestError, match=words) as caught:
        await chat(openai, USER, BEGUN, model="m+noprefill")
    assert caught.value.type == "invalid_request_error"
    with pytest.raises(BadRequestError, match=words):
        await responses(openai, USER, BEGUN, model="m+noprefill")
    with pytest.raises(AnthropicBadRequestError, match=words) as refused:
        await messages(anthropic, USER, BEGUN, model="m+noprefill")
    body: Any = refused.value.body
    assert body["error"]["type"] == "invalid_request_error"


async def test_other_requests_are_not_struck_by_noprefill(openai: AsyncOpenAI, anthropic: AsyncAnthropic) -> None:
    assert await chat(openai, USER, model="m+noprefill") == say(8)
    assert await messages(anthropic, USER, BEGUN, ORDER, model="m+noprefill") == say(8)
    assert await responses(openai, USER, model="m+noprefill") == say(8)
    with pytest.raises(BadRequestError, match="Invalid value"):
        await chat(openai, USER, model="m+noprefill+status:400")


async def test_other_text_is_sent_in_every_format(openai: AsyncOpenAI, anthropic: AsyncAnthropic) -> None:
    other = say(8, is_another=True)
    assert await chat(openai, USER, model="m+another") == other
    assert await messages(anthropic, USER, model="m+another") == other
    assert await responses(openai, USER, model="m+another") == other
    legacy = await openai.completions.create(model="m+another", prompt="hi")
    assert legacy.choices[0].text == "".join(other)
    assert await chat(openai, USER, BEGUN, model="m+another") == other


async def test_other_text_is_chosen_at_random(openai: AsyncOpenAI) -> None:
    said = {(await chat(openai, USER, model="m+another@50%"))[0] for _ in range(12)}
    assert said == {"Breakers ", "srekaerB "}


async def test_tool_calls_and_json_restart_and_differ_in_another_response(openai: AsyncOpenAI) -> None:
    async def arguments(model: str) -> str:
        answer = await openai.chat.completions.create(
            model=model, messages=[USER, BEGUN], tools=[TOOL], tool_choice="required"
        )
        call: Any = (answer.choices[0].message.tool_calls or [])[0]
        return str(call.function.arguments)

    assert (await arguments("m"), await arguments("m+another")) == ('{"a":7}', '{"a":8}')
    schema: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": TOOL["function"]["parameters"]}}
    begun = {**BEGUN, "content": '{"a":'}
    assert "".join(await chat(openai, USER, begun, response_format=schema)) == '{"a":7}'
    assert "".join(await chat(openai, USER, begun, model="m+another", response_format=schema)) == '{"a":8}'


async def test_messages_and_responses_vary_their_tool_calls_and_json_too(
    openai: AsyncOpenAI, anthropic: AsyncAnthropic
) -> None:
    schema = TOOL["function"]["parameters"]
    tools: Any = [{"name": "add", "input_schema": schema}]
    called: Any = await anthropic.messages.create(model="m+another", max_tokens=99, messages=[USER, BEGUN], tools=tools)
    assert called.content[0].input == {"a": 8}
    wanted: Any = {"format": {"type": "json_schema", "name": "n", "schema": schema}}
    told: Any = await anthropic.messages.create(
        model="m+another", max_tokens=99, messages=[USER, BEGUN], output_config=wanted
    )
    assert told.content[0].text == '{"a":8}'
    assert (await openai.responses.create(model="m+another", input=[USER, BEGUN], text=wanted)).output_text == '{"a":8}'
