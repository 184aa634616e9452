"""The gateway handles an error by its meaning, not by its status: over real sockets, error by error."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from llm_guard.app import create_app
from llm_guard.config import parse_config
from tests.fakes.provider import END, ScriptedProvider, Step, chunk, stream_head, whole

GOOD = b'{"id": "x", "choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}]}'
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


@asynccontextmanager
async def gateway(provider: ScriptedProvider, errors: str = "[]") -> AsyncIterator[str]:
    config = parse_config(f"""
server: {{port: 0, drain: 1s}}
upstreams:
  a: {{dialect: openai, base_url: "{provider.url}/v1", errors: {errors}}}
defaults:
  retry: {{max_attempts: 2, base_delay: 1ms, max_delay: 5ms}}
models:
  m: {{deployments: [{{upstream: a}}]}}
""")
    app = create_app(config)
    await app.start()
    try:
        yield app.addresses[0]
    finally:
        await app.stop()


async def ask(url: str, **extra: Any) -> tuple[int, bytes]:
    async with aiohttp.ClientSession() as client:
        answer = await client.post(f"{url}/v1/chat/completions", json={**CHAT, **extra})
        return answer.status, await answer.read()


async def requests_and_response(*scripts: list[Step], errors: str = "[]", **extra: Any) -> tuple[int, int, bytes]:
    """Returns the number of requests sent to the provider, and the client's response."""
    async with ScriptedProvider(*scripts) as provider, gateway(provider, errors) as url:
        status, body = await ask(url, **extra)
        return len(provider.requests), status, body


def error(**fields: Any) -> bytes:
    return json.dumps({"error": {"message": "it failed", **fields}}).encode()


async def test_error_under_200_is_retried_like_the_error_it_is() -> None:
    overloaded = b'\n\n {"code": "The service is currently unavailable", "error": "The model is at capacity"}'
    requests, status, body = await requests_and_response([whole(200, overloaded)], [whole(200, GOOD)])
    assert (requests, status, body) == (2, 200, GOOD)


async def test_error_under_200_that_is_final_becomes_the_error_answer_it_should_have_been() -> None:
    said = error(code="insufficient_quota")
    requests, status, body = await requests_and_response([whole(200, said)])
    assert (requests, status, body) == (1, 429, said)


async def test_answer_with_a_null_error_is_an_answer() -> None:
    good = b'{"id": "r", "error": null, "choices": [{"message": {"role": "assistant", "content": "hi"}}]}'
    assert await requests_and_response([whole(200, good)]) == (1, 200, good)


async def test_spent_balance_is_not_retried_despite_a_server_error_status() -> None:
    said = b'{"type":"error","error":{"type":"api_error","message":"insufficient balance (1008)"}}'
    requests, status, _ = await requests_and_response([whole(500, said)], [whole(200, GOOD)])
    assert (requests, status) == (1, 500)


async def test_peak_load_is_retried_despite_a_bad_request_status() -> None:
    said = error(message="The system is currently experiencing high demand. Your request exceeds peak load.")
    requests, status, _ = await requests_and_response([whole(400, said)], [whole(200, GOOD)])
    assert (requests, status) == (2, 200)


async def test_dead_engine_is_retried_despite_a_bad_request_event() -> None:
    dead = b'data: {"error":{"message":"EngineCore encountered an issue.","type":"BadRequestError","code":400}}\n\n'
    script: list[Step] = [stream_head(), chunk(dead), chunk(b"data: [DONE]\n\n"), END]
    requests, status, _ = await requests_and_response(script, script, stream=True)
    assert (requests, status) == (2, 500)


RULE = "[{match: {status: 400, message: '*pool is draining*'}, kind: overloaded}]"


@pytest.mark.parametrize(("errors", "requests"), [(RULE, 2), ("[]", 1)])
async def test_rule_of_the_config_decides_errors_that_the_tables_do_not_have(errors: str, requests: int) -> None:
    found, _, _ = await requests_and_response(
        [whole(400, error(message="Worker pool is draining!"))], [whole(200, GOOD)], errors=errors
    )
    assert found == requests
