"""A provider answers a streaming request with a unary response: the official SDKs read all of it as a stream."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai as openai_sdk
import pytest
from anthropic import AsyncAnthropic
from anthropic.types import Message
from openai import AsyncOpenAI
from openai.types import Completion
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from tests.e2e.stand import SAID, config_text, gateway
from tests.fakes.provider import ScriptedProvider, whole

MODELS = """
  gpt: {deployments: [{upstream: openai}]}
  claude: {deployments: [{upstream: anthropic}]}
"""
TEXT = 'Hello.\n"Quoted" – \N{GRINNING FACE}'
USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
CALLS = [
    {"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": '{"city": "Wien"}'}}
    for name in ("weather", "time")
]
MESSAGES: list[tuple[dict[str, Any], str]] = [
    ({"role": "assistant", "content": TEXT, "refusal": None, "annotations": []}, "stop"),
    ({"role": "assistant", "content": None, "tool_calls": CALLS}, "tool_calls"),
    ({"role": "assistant", "content": TEXT, "reasoning_content": "Hm."}, "length"),
    ({"role": "assistant", "content": None, "refusal": "No."}, "stop"),
]
LOGPROBS = {"content": [{"token": "x", "logprob": -0.5, "bytes": [120], "top_logprobs": []}], "refusal": None}


@asynccontextmanager
async def answering(body: dict[str, Any]) -> AsyncIterator[str]:
    """Runs a gateway in front of a provider that answers every request with this body."""
    script = [whole(200, json.dumps(body).encode())]
    async with (
        ScriptedProvider(script) as provider,
        gateway(config_text(f"{provider.url}/v1", anthropic_url=provider.url, models=MODELS)) as app,
    ):
        yield app.addresses[0]


def sdk(url: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0, timeout=10)


def claude(url: str) -> AsyncAnthropic:
    return AsyncAnthropic(base_url=url, api_key="k", max_retries=0, timeout=10)


def chat(*messages: tuple[dict[str, Any], str]) -> dict[str, Any]:
    choices = [
        {"index": index, "message": message, "finish_reason": finish, "logprobs": LOGPROBS}
        for index, (message, finish) in enumerate(messages)
    ]
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m", "system_fingerprint": "fp"}
    return {**head, "choices": choices, "usage": USAGE}


# chat, completions


@pytest.mark.parametrize("answer", [chat(message) for message in MESSAGES] + [chat(*MESSAGES)])
async def test_chat(answer: dict[str, Any]) -> None:
    sent = ChatCompletion.model_validate(answer)
    async with answering(answer) as url, sdk(url) as client:
        manager = client.chat.completions.stream(
            model="gpt", messages=SAID, n=len(sent.choices), stream_options={"include_usage": True}
        )
        async with manager as stream:
            async for _ in stream:
                pass
            with_end = await final_of(stream)
    assert with_end.usage == sent.usage
    assert (with_end.id, with_end.system_fingerprint) == (sent.id, sent.system_fingerprint)
    for got, choice in zip(with_end.choices, sent.choices, strict=True):
        assert (got.finish_reason, got.logprobs) == (choice.finish_reason, choice.logprobs)
        assert (got.message.content, got.message.refusal) == (choice.message.content, choice.message.refusal)
        reasoning = [getattr(each.message, "reasoning_content", None) for each in (got, choice)]
        assert reasoning[0] == reasoning[1]
        assert calls_of(got.message) == calls_of(choice.message)


def calls_of(message: Any) -> list[tuple[str, str, str]]:
    return [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ()]


async def final_of(stream: Any) -> Any:
    """Returns the helper's snapshot: `get_final_completion` raises for every response that was cut at its length."""
    try:
        return await stream.get_final_completion()
    except openai_sdk.LengthFinishReasonError:
        return stream.current_completion_snapshot


@pytest.mark.parametrize("is_usage_wanted", [False, True])
async def test_chat_without_the_helper(is_usage_wanted: bool) -> None:
    async with answering(chat(MESSAGES[0])) as url, sdk(url) as client:
        stream = await client.chat.completions.create(
            model="gpt", messages=SAID, stream=True, stream_options={"include_usage": is_usage_wanted}
        )
        chunks = [chunk async for chunk in stream]
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == TEXT
    assert [chunk.usage is not None for chunk in chunks] == [False] * 3 + [True] * is_usage_wanted


async def test_completion() -> None:
    choices = [
        {"index": index, "text": f"{TEXT} {index}", "finish_reason": "stop", "logprobs": None} for index in (0, 1)
    ]
    answer = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m", "choices": choices}
    sent = Completion.model_validate({**answer, "usage": USAGE})
    async with answering({**answer, "usage": USAGE}) as url, sdk(url) as client:
        stream = await client.completions.create(
            model="gpt", prompt=["a", "b"], stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert [choice for chunk in chunks for choice in chunk.choices] == sent.choices
    assert chunks[-1].usage == sent.usage


# responses

ITEMS: list[dict[str, Any]] = [
    {
        "id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": "Think."}],
        "content": [{"type": "reasoning_text", "text": "Hm."}], "encrypted_content": "abc", "status": None,
    },
    {
        "id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "x"},
    },
    {
        "id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
        "content": [
            {
                "type": "output_text", "text": TEXT, "logprobs": [],
                "annotations": [
                    {"type": "url_citation", "url": "u", "title": "t", "start_index": 0, "end_index": 1}
                ],
            },
            {"type": "refusal", "refusal": "No."},
        ],
    },
    {
        "id": "fc_1", "type": "function_call", "status": "completed", "call_id": "call_1", "name": "weather",
        "arguments": '{"city": "Wien"}',
    },
    {"id": "ct_1", "type": "custom_tool_call", "call_id": "call_2", "name": "run", "input": "ls"},
]  # fmt: skip
RESPONSE: dict[str, Any] = {
    "id": "resp_1", "object": "response", "created_at": 1, "status": "completed", "model": "m", "output": ITEMS,
    "error": None, "incomplete_details": None, "instructions": None, "metadata": {}, "parallel_tool_calls": True,
    "temperature": 1.0, "tool_choice": "auto", "tools": [], "top_p": 1.0,
    "usage": {
        "input_tokens": 7, "output_tokens": 5, "total_tokens": 12,
        "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 2},
    },
}  # fmt: skip
CUT = RESPONSE | {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}


async def test_response_and_its_helper() -> None:
    sent = Response.model_validate(RESPONSE)
    async with (
        answering(RESPONSE) as url,
        sdk(url) as client,
        client.responses.stream(model="gpt", input="hi") as stream,
    ):
        events = [event async for event in stream]
        final = await stream.get_final_response()
    assert final.model_dump(exclude={"output"}) == sent.model_dump(exclude={"output"})
    assert final.output_text == TEXT
    assert [item.to_dict()["id"] for item in final.output] == [item["id"] for item in ITEMS]
    said: dict[str, Any] = {event.type: event for event in events}
    assert said["response.output_text.delta"].delta == TEXT
    assert said["response.reasoning_summary_text.delta"].delta == "Think."
    assert said["response.reasoning_text.delta"].delta == "Hm."
    assert said["response.refusal.delta"].delta == "No."
    assert said["response.function_call_arguments.delta"].snapshot == ITEMS[3]["arguments"]
    assert said["response.custom_tool_call_input.done"].input == "ls"
    done = [event.item.to_dict() for event in events if event.type == "response.output_item.done"]
    assert done == [item.to_dict() for item in sent.output]


async def test_response_that_was_cut_at_its_length() -> None:
    async with answering(CUT) as url, sdk(url) as client:
        stream = await client.responses.create(model="gpt", input="hi", stream=True)
        events = [event async for event in stream]
    assert events[-1].type == "response.incomplete"
    assert events[-1].response == Response.model_validate(CUT)
    assert [event.sequence_number for event in events] == list(range(len(events)))


# messages

BLOCKS: list[dict[str, Any]] = [
    {"type": "thinking", "thinking": "Hm.", "signature": "sig"},
    {"type": "redacted_thinking", "data": "xyz"},
    {"type": "server_tool_use", "id": "st_1", "name": "web_search", "input": {"query": "x"}},
    {"type": "web_search_tool_result", "tool_use_id": "st_1", "content": []},
    {
        "type": "text", "text": TEXT,
        "citations": [{
            "type": "char_location", "cited_text": "x", "document_index": 0, "document_title": None, "file_id": None,
            "start_char_index": 0, "end_char_index": 1,
        }],
    },
    {"type": "tool_use", "id": "tu_1", "name": "weather", "input": {"city": "Wien", "days": [1, 2.5, None]}},
    {"type": "tool_use", "id": "tu_2", "name": "time", "input": {}},
]  # fmt: skip
MESSAGE: dict[str, Any] = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": BLOCKS,
    "stop_reason": "tool_use", "stop_sequence": None,
    "usage": {"input_tokens": 7, "output_tokens": 5, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 0},
}  # fmt: skip


async def test_message_and_its_helper() -> None:
    sent = Message.model_validate(MESSAGE)
    async with (
        answering(MESSAGE) as url,
        claude(url) as client,
        client.messages.stream(model="claude", messages=SAID, max_tokens=9) as stream,
    ):
        texts = [event.text async for event in stream if event.type == "text"]
        final = await stream.get_final_message()
    assert "".join(texts) == TEXT
    keys = {"content", "stop_reason", "id", "model", "usage"}
    got, expected = (json.loads(each.model_dump_json(include=keys, exclude_none=True)) for each in (final, sent))
    assert got == expected


async def test_message_without_the_helper() -> None:
    async with answering(MESSAGE) as url, claude(url) as client:
        stream = await client.messages.create(model="claude", messages=SAID, max_tokens=9, stream=True)
        kinds = [event.type async for event in stream]
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")


# content that cannot be converted


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"type": "hologram", "data": "x"}, "without the event stream that was requested"),
        ({"type": "tool_use", "id": "t", "input": "x"}, "instead of a message"),
    ],
)
async def test_message_with_an_unknown_block_is_a_failure(block: dict[str, Any], message: str) -> None:
    async with answering(MESSAGE | {"content": [*BLOCKS, block]}) as url, claude(url) as client:
        with pytest.raises(Exception, match=message):
            await client.messages.create(model="claude", messages=SAID, max_tokens=9, stream=True)


@pytest.mark.parametrize(
    "answer",
    [
        RESPONSE | {"status": "in_progress"},
        RESPONSE | {"output": [ITEMS[2] | {"content": [{"type": "hologram"}]}]},
    ],
)
async def test_response_that_is_not_over_or_has_an_unknown_part_is_a_failure(answer: dict[str, Any]) -> None:
    async with answering(answer) as url, sdk(url) as client:
        with pytest.raises(openai_sdk.APIStatusError, match="without the event stream that was requested"):
            await client.responses.create(model="gpt", input="hi", stream=True)


async def test_chat_without_a_finish_reason_is_a_failure() -> None:
    answer = chat(MESSAGES[0])
    answer["choices"][0]["finish_reason"] = None
    async with answering(answer) as url, sdk(url) as client:
        with pytest.raises(openai_sdk.APIStatusError, match="without the event stream that was requested"):
            await client.chat.completions.create(model="gpt", messages=SAID, stream=True)
