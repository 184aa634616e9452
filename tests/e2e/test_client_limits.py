"""The official SDKs at a client key's limit: they wait as long as the response says, or raise their error for a 429."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest

from tests.chaos.forms import CHAT, MESSAGES
from tests.chaos.stand import facing


def keys(**limits: float) -> dict[str, Any]:
    return {"client_keys": [{"name": "app", "key": "k-app", "limits": limits}]}


async def test_openai_waits_and_is_served() -> None:
    async with facing(CHAT.ok, server=keys(rate=5)) as (stand, _):
        async with openai.AsyncOpenAI(base_url=f"{stand.url}/v1", api_key="k-app", max_retries=3) as client:
            for _ in range(8):
                await client.chat.completions.create(model="gpt", messages=[])
        assert await stand.metric("llm_guard_client_calls_total", client="app", outcome="ok") == 8
        assert 1 <= await stand.metric("llm_guard_client_refusals_total", client="app", limit="rate") <= 3


async def test_openai_raises_a_rate_limit_error() -> None:
    async with (
        facing(CHAT.ok, server=keys(tokens_per_day=50)) as (stand, _),
        openai.AsyncOpenAI(base_url=f"{stand.url}/v1", api_key="k-app", max_retries=0) as client,
    ):
        with pytest.raises(openai.RateLimitError) as caught:
            await client.chat.completions.create(model="gpt", messages=[], max_tokens=40)
        assert caught.value.code == "client_limit_exceeded"
        assert caught.value.response.headers["x-ratelimit-remaining-tokens-day"] == "50"


async def test_anthropic_raises_a_rate_limit_error() -> None:
    async with (
        facing(MESSAGES.ok, server=keys(tokens_per_minute=600)) as (stand, _),
        anthropic.AsyncAnthropic(base_url=stand.url, api_key="k-app", max_retries=0) as client,
    ):
        await client.messages.create(model="claude", messages=[], max_tokens=1000)
        await stand.idle()
        limits = stand.app.gateway.quotas.by_name["app"]
        limits.try_enter(500, stand.app._clock.now(), stand.app._clock.wall())
        with pytest.raises(anthropic.RateLimitError) as caught:
            await client.messages.create(model="claude", messages=[], max_tokens=400)
        headers = caught.value.response.headers
        assert 0 < int(headers["anthropic-ratelimit-tokens-remaining"]) < 100
        assert 30_000 < int(headers["retry-after-ms"]) < 60_000
