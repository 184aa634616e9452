"""Requests to each endpoint of both dialects reach the provider with method, path and query unchanged."""

from __future__ import annotations

import re

import aiohttp
import pytest
from yarl import URL

from tests.e2e.endpoints import ANTHROPIC, OPENAI, by_resource
from tests.e2e.stand import config_text, gateway
from tests.e2e.wire import wired
from tests.fakes.provider import ScriptedProvider, whole

QUERY = "limit=2&after=a%2Fb%20c&include[]=x.y&created_at%5Bgte%5D=2026-01-01T00%3A00%3A00Z&q=+&flag"
JSON = "application/json"
OPENAI_HEADERS = {"authorization": "Bearer k", "content-type": JSON}
ANTHROPIC_HEADERS = {"authorization": "Bearer k", "anthropic-version": "2023-06-01", "content-type": JSON}


def _ids(resources: list[tuple[str, list[tuple[str, str]]]]) -> list[str]:
    return [name for name, _ in resources]


_OPENAI = by_resource(OPENAI)
_ANTHROPIC = by_resource(ANTHROPIC)


def test_listing_is_whole() -> None:
    assert sum(len(operations) for _, operations in _OPENAI) == 281
    assert sum(len(operations) for _, operations in _ANTHROPIC) == 87


@pytest.mark.parametrize(("resource", "operations"), _OPENAI, ids=_ids(_OPENAI))
async def test_openai_endpoints_reach_the_provider(resource: str, operations: list[tuple[str, str]]) -> None:
    async with ScriptedProvider([whole()]) as own, ScriptedProvider([whole(404)]) as other:
        config = config_text(own.url, anthropic_url=other.url, answers="off")
        await _call(config, own, operations, b'{"model": "gpt-4o"}', OPENAI_HEADERS)
    assert other.requests == []


@pytest.mark.parametrize(("resource", "operations"), _ANTHROPIC, ids=_ids(_ANTHROPIC))
async def test_anthropic_endpoints_reach_the_provider(resource: str, operations: list[tuple[str, str]]) -> None:
    async with ScriptedProvider([whole()]) as own, ScriptedProvider([whole(404)]) as other:
        config = config_text(other.url, anthropic_url=own.url, answers="off")
        await _call(config, own, operations, b'{"model": "claude-3-opus"}', ANTHROPIC_HEADERS)
    assert other.requests == []


async def _call(
    config: str, provider: ScriptedProvider, operations: list[tuple[str, str]], body: bytes, headers: dict[str, str]
) -> None:
    """Sends every operation through a gateway with this config; `provider` must receive each one unchanged. The gateway
    itself lists models, so that an upstream's own are requested by its name."""
    upstream = "/upstreams/anthropic" if headers is ANTHROPIC_HEADERS else "/upstreams/openai"
    asked = [(method, target, body if method == "POST" else b"") for method, target in _filled(operations)]
    async with gateway(config) as app, aiohttp.ClientSession() as session:
        for method, target, sent in asked:
            prefix = upstream if method == "GET" and target.startswith("/v1/models") else ""
            url = URL(app.addresses[0] + prefix + target, encoded=True)
            async with session.request(method, url, data=sent or None, headers=headers) as answer:
                assert (answer.status, await answer.read()) == (200, b"{}"), target
    arrived = [wired(request) for request in provider.requests]
    assert [(each.first_line, each.body) for each in arrived] == [
        (f"{method} {target} HTTP/1.1", sent) for method, target, sent in asked
    ]
    assert all(each.values("content-type") == [JSON] for each in arrived)


def _filled(operations: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(method, f"{re.sub('{.*?}', 'id%2F1~a:b', path)}?{QUERY}") for method, path in operations]
