"""Runs a gateway in front of a strict cloud, and calls it with either official SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from llm_guard.app import App
from tests.e2e.stand import SAID, gateway
from tests.fakes.strict_clouds import KEY, MODELS, StrictCloud, strict_cloud

FORMS = ["vertex", "bedrock-invoke"]
CONFIG = """
server: {{port: 0, drain: 1s}}
upstreams:
  cloud: {{dialect: anthropic, form: {form}, base_url: "{url}"{key}}}
defaults:
  timeout: {{connect: 5s, first_token: {first_token}, idle: {idle}, attempt: 10s, total: 20s}}
  retry: {{max_attempts: {attempts}, base_delay: 2ms, max_delay: 10ms, budget: {{ratio: 1, min_per_second: 1000}}}}
  breaker: {{consecutive_failures: 1000, min_calls: 10000}}
  stream: {{recover: {recover}, {stream}}}
models:
  gpt: {{deployments: [{{upstream: cloud, model: "{model}"}}]}}
  front: {{deployments: [{{upstream: cloud, model: "{model}"}}]}}
  "*": {{deployments: [{{upstream: cloud}}]}}
"""


@asynccontextmanager
async def standing(
    form: str, *, key: str = f", api_key: {KEY}", **rules: Any
) -> AsyncIterator[tuple[StrictCloud, App]]:
    known = {"first_token": "10s", "idle": "10s", "attempts": 2, "recover": "off", "stream": ""} | rules
    async with (
        strict_cloud(form) as cloud,
        gateway(CONFIG.format(form=form, url=cloud.base_url, key=key, model=MODELS[form], **known)) as app,
    ):
        yield cloud, app


def claude(app: App, key: str = "sk-caller") -> AsyncAnthropic:
    return AsyncAnthropic(base_url=app.addresses[0], api_key=key, max_retries=0, timeout=20)


def chat(app: App) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{app.addresses[0]}/v1", api_key="sk-caller", max_retries=0, timeout=20)


async def said(client: Any, *, stream: bool, model: str = "front", **fields: Any) -> str:
    """Makes a call with either SDK; returns the text of a response that has ended well."""
    if isinstance(client, AsyncOpenAI):
        if not stream:
            answer = await client.chat.completions.create(model=model, messages=SAID, **fields)
            return answer.choices[0].message.content or ""
        text, finish = "", None
        async for event in await client.chat.completions.create(model=model, messages=SAID, stream=True, **fields):
            text += (event.choices[0].delta.content or "") if event.choices else ""
            finish = (event.choices[0].finish_reason if event.choices else None) or finish
        assert finish == "stop"
        return text
    asked: Any = {"model": model, "messages": SAID, "max_tokens": 99, **fields}
    if not stream:
        return "".join(block.text for block in (await client.messages.create(**asked)).content)
    async with client.messages.stream(**asked) as events:
        text = "".join([piece async for piece in events.text_stream])
        final = await events.get_final_message()
    assert final.stop_reason == "end_turn"
    assert final.usage.output_tokens >= 9
    return text
