"""count_tokens of a model whose deployments cannot all count, through anthropic's SDK."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest

from tests.e2e.stand import SAID
from tests.e2e.test_translation_streams import claude_sdk
from tests.e2e.translating import route, scripted
from tests.fakes.provider import whole

ALONE = route("openai/gpt-4o", "openai/gpt-4o-mini")
MIXED = route("anthropic/claude-sonnet-4-5", "openai/gpt-4o")
TEXT: list[Any] = [{"role": "user", "content": "word " * 800}]
COUNTED = [whole(body=b'{"input_tokens": 77}')]
DOWN = [whole(500, b'{"type": "error", "error": {"type": "api_error", "message": "down"}}')]


async def counted(url: str, messages: list[Any]) -> tuple[int, Any]:
    async with claude_sdk(url) as client:
        raw = await client.messages.with_raw_response.count_tokens(model="front", messages=messages, system="Be brief.")
        return (await raw.parse()).input_tokens, raw.headers


async def test_estimate_without_any_provider_that_counts() -> None:
    async with scripted(ALONE) as (app, provider):
        tokens, headers = await counted(app.addresses[0], TEXT)
    assert 1000 <= tokens <= 1100
    assert headers["x-llm-guard-degraded"] == "estimate"
    assert headers["x-llm-guard-attempts"] == "0"
    assert provider.requests == []


async def test_provider_counts_while_it_can() -> None:
    async with scripted(MIXED, COUNTED) as (app, _):
        tokens, headers = await counted(app.addresses[0], SAID)
    assert (tokens, headers.get("x-llm-guard-degraded")) == (77, None)


async def test_estimate_while_the_provider_is_down() -> None:
    async with scripted(MIXED, DOWN, DOWN) as (app, provider):
        tokens, headers = await counted(app.addresses[0], TEXT)
    assert 1000 <= tokens <= 1100
    assert (headers["x-llm-guard-degraded"], headers["x-llm-guard-attempts"]) == ("estimate", "2")
    assert all(b"/v1/messages/count_tokens" in request for request in provider.requests)


async def test_estimate_of_a_large_request() -> None:
    async with scripted(ALONE) as (app, _):
        tokens, _ = await counted(app.addresses[0], [{"role": "user", "content": "word " * 600_000}])
    assert 740_000 < tokens < 760_000


async def test_mistake_of_the_client_is_no_reason_for_an_estimate() -> None:
    bad = whole(400, b'{"type": "error", "error": {"type": "invalid_request_error", "message": "messages: wrong"}}')
    async with scripted(MIXED, [bad]) as (app, _):
        with pytest.raises(anthropic.BadRequestError, match="messages: wrong"):
            await counted(app.addresses[0], SAID)


async def test_no_estimate_where_calls_are_not_translated() -> None:
    models = "  front: {deployments: [{upstream: openai, model: gpt-4o}], translate: off}"
    async with scripted(models) as (app, _):
        with pytest.raises(anthropic.BadRequestError):
            await counted(app.addresses[0], SAID)


async def test_body_that_is_not_json_is_refused() -> None:
    async with scripted(ALONE) as (app, _), claude_sdk(app.addresses[0]) as client:
        with pytest.raises(anthropic.BadRequestError):
            await client.post("/v1/messages/count_tokens", body=["front"], cast_to=object)
