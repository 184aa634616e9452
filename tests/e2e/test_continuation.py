"""A stream that dies midway resumes on another deployment, and the official SDKs see one complete response."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic as anthropic_sdk
import openai as openai_sdk
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from llm_guard.mock.content import say
from llm_guard.resilience.retry.limits import FailureRate
from tests.chaos.stand import total
from tests.chaos.wire import fetch
from tests.e2e.stand import MAX_ATTEMPTS, SAID, Stand, standing

TOKENS = 30
TEXT = "".join(say(TOKENS))
DEATHS = ["cut:10", "error:10", "stall:10", "truncated"]
"""Faults in the middle of a stream."""
RESUME_MODES = ["prefill", "instruction", "restart"]

deaths = pytest.mark.parametrize("death", DEATHS)
resume_modes = pytest.mark.parametrize("resume_mode", RESUME_MODES)


def models(resume_mode: str, death: str, *, second: str = "", has_third: bool = False) -> str:
    """Builds models: the first deployment dies this way; the second does not, or does as `second` says; a third one is
    healthy."""
    recover = "restart" if resume_mode == "restart" else "continue"
    prefill = "plain" if resume_mode == "prefill" else "none"
    # On a busy machine a healthy stream may be silent for a while, too.
    idle = "700ms" if death.startswith("stall") else "30s"
    rules = f"timeout: {{idle: {idle}}}, stream: {{recover: {recover}}}"
    return "\n".join(
        f"  {alias}: {{deployments: [{{upstream: {upstream}, model: {name}-first+{death}}}, "
        f"{{upstream: {upstream}, model: {name}{second}, prefill: {prefill}}}"
        f"{f', {{upstream: {upstream}, model: {name}-third, prefill: {prefill}}}' if has_third else ''}], {rules}}}"
        for alias, upstream, name in (("gpt", "openai", "gpt-4o"), ("claude", "anthropic", "claude-3-opus"))
    )


@asynccontextmanager
async def facing(resume_mode: str, death: str, *, second: str = "", has_third: bool = False) -> AsyncIterator[Stand]:
    """Runs a gateway with a mock that sends tokens one by one: data in one packet with the first token is judged before
    it is passed on."""
    each = models(resume_mode, death, second=second, has_third=has_third)
    async with standing(tokens=TOKENS, token_delay_s=0.003, models=each) as stand:
        yield stand


@asynccontextmanager
async def openai(stand: Stand) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{stand.url}/v1", api_key="k", max_retries=0) as client:
        yield client


@asynccontextmanager
async def anthropic(stand: Stand) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=stand.url, api_key="k", max_retries=0) as client:
        yield client


async def stream_resumes(stand: Stand, **labels: str) -> float:
    return total((await fetch(f"{stand.url}/metrics")).text, "llm_guard_stream_resumes_total", **labels)


@deaths
@resume_modes
async def test_chat_stream_is_resumed(resume_mode: str, death: str) -> None:
    async with facing(resume_mode, death) as stand, openai(stand) as client:
        stream = await client.chat.completions.create(
            model="gpt", messages=SAID, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        said = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
        assert "".join(said) == TEXT
        assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
        assert [choice.delta.role for chunk in chunks for choice in chunk.choices if choice.delta.role] == ["assistant"]
        finishes = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
        assert finishes == ["stop"]
        marks = [mark for chunk in chunks if (mark := (chunk.model_extra or {}).get("llm_guard"))]
        assert marks == [{"recovered": resume_mode, "deployment": "openai/gpt-4o"}]
        usage = chunks[-1].usage
        assert usage is not None
        assert usage.completion_tokens >= TOKENS
        assert await stream_resumes(stand, model="gpt", mode=resume_mode, outcome="ok") == 1
        assert stand.upstream_requests == 2


@deaths
@resume_modes
async def test_chat_stream_helper_sees_one_whole_answer(resume_mode: str, death: str) -> None:
    async with (
        facing(resume_mode, death) as stand,
        openai(stand) as client,
        client.chat.completions.stream(model="gpt", messages=SAID) as stream,
    ):
        completion = await stream.get_final_completion()
        assert completion.choices[0].message.content == TEXT
        assert completion.choices[0].finish_reason == "stop"


@deaths
@resume_modes
async def test_legacy_completion_is_resumed(resume_mode: str, death: str) -> None:
    async with facing(resume_mode, death) as stand, openai(stand) as client:
        stream = await client.completions.create(model="gpt", prompt="Say something.", stream=True)
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].text for chunk in chunks) == TEXT
        assert len({chunk.id for chunk in chunks}) == 1


@deaths
@pytest.mark.parametrize("resume_mode", ["instruction", "restart"])
async def test_responses_stream_is_resumed(resume_mode: str, death: str) -> None:
    async with (
        facing(resume_mode, death) as stand,
        openai(stand) as client,
        client.responses.stream(model="gpt", input="hi", store=False) as stream,
    ):
        events = [event async for event in stream]
        response = await stream.get_final_response()
        assert response.output_text == TEXT
        assert [event.sequence_number for event in events] == list(range(len(events)))
        created = next(event for event in events if event.type == "response.created")
        assert created.response.id == response.id
        (item,) = response.output
        assert item.type == "message"
        assert {event.item_id for event in events if event.type == "response.output_text.delta"} == {item.id}
        assert response.usage is not None
        assert response.usage.output_tokens >= TOKENS


@deaths
@resume_modes
async def test_message_is_resumed(resume_mode: str, death: str) -> None:
    async with (
        facing(resume_mode, death) as stand,
        anthropic(stand) as client,
        client.messages.stream(model="claude", max_tokens=99, messages=SAID) as stream,
    ):
        events = [event async for event in stream]
        message = await stream.get_final_message()
        assert [block.text for block in message.content if block.type == "text"] == [TEXT]
        assert message.stop_reason == "end_turn"
        assert message.usage.output_tokens >= TOKENS
        kinds = [event.type for event in events]
        for once in ("message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"):
            assert [kind for kind in kinds if kind == once] == [once]
        assert stand.upstream_requests == 2


@pytest.mark.parametrize("habit", ["preamble", "overlap:8", "overlap:99", "preamble+overlap:12"])
async def test_model_that_adds_to_the_quoted_words_is_resumed(habit: str) -> None:
    """The model adds a remark before the last words, or repeats more of them: the joined text still has every character
    once."""
    async with facing("instruction", "cut:10", second=f"+{habit}") as stand:
        async with openai(stand) as client:
            stream = await client.chat.completions.create(model="gpt", messages=SAID, stream=True)
            assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == TEXT
            async with client.responses.stream(model="gpt", input="hi", store=False) as events:
                assert (await events.get_final_response()).output_text == TEXT
        async with (
            anthropic(stand) as other,
            other.messages.stream(model="claude", max_tokens=99, messages=SAID) as message,
        ):
            assert await message.get_final_text() == TEXT
        assert await stream_resumes(stand, mode="instruction", outcome="ok") == 3


def forget_failures(stand: Stand) -> None:
    """Resets the failure rates: otherwise deployments that failed are tried last."""
    for deployment in stand.app.gateway.deployments():
        deployment.budget.recent = FailureRate(time.monotonic())


@pytest.mark.parametrize("habit", ["overlap:0", "overlap:1", "another", "preamble+overlap:0"])
async def test_text_that_cannot_be_joined_ends_in_an_error(habit: str) -> None:
    """Each SDK raises after receiving the beginning of the text, and no resume is counted as successful."""
    async with facing("instruction", "cut:10", second=f"+{habit}") as stand:
        heard = ""
        async with openai(stand) as client:
            stream = await client.chat.completions.create(model="gpt", messages=SAID, stream=True)
            with pytest.raises(openai_sdk.APIError, match="not resumed"):  # noqa: PT012
                async for chunk in stream:
                    heard += chunk.choices[0].delta.content or ""
            forget_failures(stand)
            with pytest.raises(openai_sdk.APIError, match="not resumed"):
                async with client.responses.stream(model="gpt", input="hi", store=False) as events:
                    await events.get_final_response()
        forget_failures(stand)
        async with anthropic(stand) as other:
            with pytest.raises(anthropic_sdk.APIStatusError, match="not resumed"):
                async with other.messages.stream(model="claude", max_tokens=99, messages=SAID) as message:
                    await message.get_final_message()
        assert TEXT.startswith(heard)
        assert heard
        assert await stream_resumes(stand, mode="instruction", outcome="ok") == 0
        assert await stream_resumes(stand, mode="instruction", outcome="diverged") >= 3


async def test_stream_without_quotation_is_resumed_by_prefill_alone() -> None:
    """`recover: auto`, the default, resumes exactly where a deployment accepts a prefill, and nowhere else."""
    rules = "retry: {max_attempts: 1}"
    models = "\n".join(
        f"  {alias}: {{deployments: [{{upstream: {upstream}, model: {name}-first+cut:10}}, "
        f"{{upstream: {upstream}, model: {name}-none, prefill: none}}, "
        f"{{upstream: {upstream}, model: {name}{fault}, prefill: {prefill}}}], {rules}}}"
        for alias, upstream, name, prefill, fault in (
            ("gpt", "openai", "gpt-4o", "plain", ""),
            ("none", "openai", "gpt-5", "none", ""),
            ("refusing", "openai", "gpt-3", "plain", "+noprefill"),
            ("claude", "anthropic", "claude-3-opus", "plain", ""),
        )
    )
    async with standing(tokens=TOKENS, token_delay_s=0.003, models=models) as stand, openai(stand) as client:
        stream = await client.chat.completions.create(model="gpt", messages=SAID, stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == TEXT
        async with (
            anthropic(stand) as other,
            other.messages.stream(model="claude", max_tokens=99, messages=SAID) as message,
        ):
            assert await message.get_final_text() == TEXT
        assert await stream_resumes(stand, mode="prefill", outcome="ok") == 2
        assert stand.upstream_requests == 4, "the one that takes no beginning was asked"
        for name in ("none", "refusing"):
            stream = await client.chat.completions.create(model=name, messages=SAID, stream=True)
            with pytest.raises(openai_sdk.APIError):
                [chunk async for chunk in stream]
        assert await stream_resumes(stand, mode="instruction") == 0


@pytest.mark.parametrize("resume_mode", ["prefill", "instruction"])
async def test_stream_may_die_more_than_once(resume_mode: str) -> None:
    async with facing(resume_mode, "cut:10", second="+cut:10", has_third=True) as stand, openai(stand) as client:
        stream = await client.chat.completions.create(model="gpt", messages=SAID, stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == TEXT
        assert stand.upstream_requests == 3


async def test_restarts_that_all_die_in_the_same_place_end_in_an_error() -> None:
    async with facing("restart", "cut:10", second="+cut:10") as stand, openai(stand) as client:
        stream = await client.chat.completions.create(model="gpt", messages=SAID, stream=True)
        with pytest.raises(openai_sdk.APIError, match="max_attempts reached"):
            [chunk async for chunk in stream]
        assert stand.upstream_requests == 2 * MAX_ATTEMPTS


@deaths
async def test_refused_prefill_leads_to_an_instruction(death: str) -> None:
    async with facing("prefill", death, second="+noprefill") as stand:
        async with openai(stand) as client:
            stream = await client.chat.completions.create(model="gpt", messages=SAID, stream=True)
            assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == TEXT
        async with (
            anthropic(stand) as other,
            other.messages.stream(model="claude", max_tokens=99, messages=SAID) as message,
        ):
            assert await message.get_final_text() == TEXT
        before = stand.upstream_requests
        async with openai(stand) as client:
            stream = await client.chat.completions.create(model="gpt", messages=SAID, stream=True)
            assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == TEXT
        assert stand.upstream_requests - before == 2, "the refusal was not remembered"


@deaths
async def test_restart_with_different_text_ends_in_an_error(death: str) -> None:
    async with facing("restart", death, second="+another") as stand, openai(stand) as client:
        stream = await client.chat.completions.create(model="gpt", messages=SAID, stream=True)
        said = []
        # The provider's own error event is passed on once no deployment can resume the stream.
        why = "server had an error" if death.startswith("error") else "not resumed"
        with pytest.raises(openai_sdk.APIError, match=why):  # noqa: PT012
            async for chunk in stream:
                said.append(chunk.choices[0].delta.content or "")  # noqa: PERF401
        assert TEXT.startswith("".join(said))


TOOL: Any = {
    "name": "weather",
    "description": "tells it",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
}


@deaths
async def test_tool_call_is_restarted_rather_than_continued(death: str) -> None:
    async with facing("instruction", death.replace(":10", ":2")) as stand:
        async with openai(stand) as client:
            choice: Any = {"type": "function", "function": {"name": "weather"}}
            async with client.chat.completions.stream(
                model="gpt", messages=SAID, tools=[{"type": "function", "function": TOOL}], tool_choice=choice
            ) as stream:
                completion = await stream.get_final_completion()
            calls = completion.choices[0].message.tool_calls
            assert calls is not None
            assert [call.function.arguments for call in calls] == ['{"city":"mock","days":7}']
        async with anthropic(stand) as other:
            tool: Any = {"name": "weather", "input_schema": TOOL["parameters"]}
            async with other.messages.stream(model="claude", max_tokens=99, messages=SAID, tools=[tool]) as message:
                final = await message.get_final_message()
            assert [block.input for block in final.content if block.type == "tool_use"] == [{"city": "mock", "days": 7}]
            assert final.stop_reason == "tool_use"


@deaths
async def test_structured_output_is_restarted(death: str) -> None:
    schema: Any = {"type": "json_schema", "json_schema": {"name": "w", "schema": TOOL["parameters"]}}
    async with facing("instruction", death.replace(":10", ":2")) as stand, openai(stand) as client:
        stream = await client.chat.completions.create(model="gpt", messages=SAID, response_format=schema, stream=True)
        said = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        assert said == '{"city":"mock","days":7}'


@pytest.mark.parametrize("recover", ["off", "continue"])
async def test_client_gets_an_error_when_no_deployment_can_resume(recover: str) -> None:
    """There is no other deployment, and this one fails early each time."""
    fault = "cut:3"
    rules = f"stream: {{recover: {recover}}}, retry: {{max_attempts: 1}}"
    only = f"""
  gpt: {{deployments: [{{upstream: openai, model: gpt-4o+{fault}}}], {rules}}}
  claude: {{deployments: [{{upstream: anthropic, model: claude-3-opus+{fault}}}], {rules}}}
"""
    async with standing(tokens=TOKENS, token_delay_s=0.003, models=only) as stand:
        async with openai(stand) as client:
            stream = await client.chat.completions.create(model="gpt", messages=SAID, stream=True)
            with pytest.raises(openai_sdk.APIError, match="openai/gpt-4o"):
                [chunk async for chunk in stream]
        async with anthropic(stand) as other:
            with pytest.raises(anthropic_sdk.APIStatusError, match="anthropic/claude-3-opus"):
                async with other.messages.stream(model="claude", max_tokens=99, messages=SAID) as message:
                    await message.get_final_message()
        assert stand.upstream_requests == 2
