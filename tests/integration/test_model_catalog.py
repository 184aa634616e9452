"""`GET /v1/models` and `GET /v1/models/NAME`: the gateway's own models, in the caller's dialect."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from llm_guard.config import parse_config
from tests.chaos.stand import Stand, config_text, standing
from tests.chaos.wire import Reply, ask
from tests.fakes.provider import Reset, ScriptedProvider, Step, whole

ANTHROPIC = {"anthropic-version": "2023-06-01"}
PATTERN = {"gpt-*": {"deployments": [{"upstream": "one"}]}, "claude": {"deployments": [{"upstream": "two"}]}}
LISTED = {"object": "list", "data": [{"id": name, "owned_by": "they"} for name in ("gpt-4o", "gpt-4o-mini", "o3")]}
KEYS = [{"name": "a", "key": "sk-a", "allow": {"models": ["gpt-4o", "other"]}}]


OWN = {"gpt": {"deployments": [{"upstream": "one"}]}, "claude": {"deployments": [{"upstream": "two"}]}}


@asynccontextmanager
async def serving(
    *scripts: Sequence[Step], models: dict[str, Any] = OWN, **sections: Any
) -> AsyncIterator[tuple[Stand, ScriptedProvider]]:
    """Runs a gateway with exactly these models."""
    async with ScriptedProvider(*scripts) as provider:
        config = {**json.loads(config_text(provider.url, **sections)), "models": models}
        async with standing(parse_config(json.dumps(config), "test.yaml", {})) as stand:
            yield stand, provider


def said(value: object, status: int = 200) -> list[Step]:
    return [whole(status, json.dumps(value).encode())]


async def get(url: str, path: str = "/v1/models", headers: dict[str, str] | None = None) -> Any:
    reply = await ask(url, path, headers=headers or {}, method="GET")
    assert reply.status == 200, reply
    return json.loads(reply.body)


def names_in(answer: dict[str, Any]) -> list[str]:
    return [entry["id"] for entry in answer["data"]]


def code_of(reply: Reply) -> tuple[int, str]:
    return reply.status, json.loads(reply.body)["error"]["code"]


async def test_names_of_the_config_are_listed_without_a_request() -> None:
    async with serving() as (stand, provider):
        answer = await get(stand.url)
        assert answer == {
            "object": "list", "data": [{"id": "gpt", "object": "model", "created": 0, "owned_by": "llm_guard"}],
        }  # fmt: skip
        assert await get(stand.url, "/v1/models/gpt") == answer["data"][0]
        assert provider.requests == []


async def test_list_has_the_callers_dialect() -> None:
    async with serving() as (stand, _):
        answer = await get(stand.url, headers=ANTHROPIC)
        assert names_in(answer) == ["claude"]
        assert (answer["has_more"], answer["first_id"], answer["last_id"]) == (False, "claude", "claude")
        assert (await get(stand.url, "/v1/models/claude", ANTHROPIC))["type"] == "model"


async def test_pattern_is_expanded_from_the_list_of_its_upstream() -> None:
    models = {**PATTERN, "gpt-4o": {"deployments": [{"upstream": "one", "model": "other"}]}}
    async with serving(said(LISTED), models=models) as (stand, provider):
        answer = await get(stand.url)
        assert names_in(answer) == ["gpt-4o", "gpt-4o-mini"]
        assert [entry["owned_by"] for entry in answer["data"]] == ["llm_guard", "they"]
        assert provider.requests[-1].startswith(b"GET /v1/models HTTP/1.1\r\n")


async def test_callers_key_is_passed_on_and_its_query_is_not() -> None:
    async with serving(said(LISTED), models=PATTERN) as (stand, provider):
        await get(stand.url, "/v1/models?limit=1", {"authorization": "Bearer sk-caller"})
        assert b"Bearer sk-caller" in provider.requests[-1]
        assert provider.requests[-1].startswith(b"GET /v1/models HTTP/1.1\r\n")


async def test_one_model_of_a_pattern_is_requested_from_its_upstream() -> None:
    """Providers know aliases and fine-tuned models that they do not list."""
    unknown = {"error": {"message": "no such model", "code": "model_not_found"}}
    async with serving(said(LISTED["data"][1]), said(unknown, 404), models=PATTERN) as (stand, provider):
        key = {"authorization": "Bearer sk-caller"}
        assert await get(stand.url, "/v1/models/gpt-4o-mini?beta=true", key) == LISTED["data"][1]
        assert provider.requests[-1].startswith(b"GET /v1/models/gpt-4o-mini?beta=true HTTP/1.1\r\n")
        assert b"Bearer sk-caller" in provider.requests[-1]
        assert code_of(await ask(stand.url, "/v1/models/gpt-9", method="GET")) == (404, "model_not_found")
        assert len(provider.requests) == 2
        assert code_of(await ask(stand.url, "/v1/models/o3", method="GET")) == (404, "model_not_found")
        assert len(provider.requests) == 2


async def test_one_model_of_a_pattern_that_only_renames_is_the_gateways() -> None:
    models = {"my-*": {"deployments": [{"upstream": "one", "model": "x"}]}}
    async with serving(models=models) as (stand, provider):
        assert (await get(stand.url, "/v1/models/my-model"))["id"] == "my-model"
        assert provider.requests == []


@pytest.mark.parametrize("script", [said({}, 500), said({"data": 5}), said([]), [Reset()]], ids=str)
async def test_list_that_cannot_be_had_is_left_out(script: list[Step]) -> None:
    models = {**PATTERN, "own": {"deployments": [{"upstream": "one", "model": "x"}]}}
    async with serving(script, script, models=models) as (stand, _):
        assert names_in(await get(stand.url)) == ["own"]


async def test_nothing_but_unknown_patterns_is_an_error() -> None:
    async with serving(said({}, 401), models=PATTERN) as (stand, _):
        reply = await ask(stand.url, "/v1/models", method="GET")
        assert code_of(reply) == (502, "models_unknown")
        assert "one did not list its models" in reply.text


async def test_key_sees_the_models_that_it_may_request() -> None:
    key = {"authorization": "Bearer sk-a"}
    async with serving(said(LISTED), models=PATTERN, server={"client_keys": KEYS}) as (stand, _):
        assert names_in(await get(stand.url, headers=key)) == ["gpt-4o"]
        denied = await ask(stand.url, "/v1/models/gpt-4o-mini", headers=key, method="GET")
        assert code_of(denied) == (403, "permission_denied")
        assert (await ask(stand.url, "/v1/models", method="GET")).status == 401


async def test_list_of_an_upstream_is_its_own() -> None:
    async with serving(said(LISTED), models=PATTERN) as (stand, _):
        assert await get(stand.url, "/upstreams/one/v1/models") == LISTED


async def test_head_is_answered_without_a_body() -> None:
    async with serving() as (stand, _):
        reply = await ask(stand.url, "/v1/models", method="HEAD")
        assert (reply.status, reply.body) == (200, b"")


async def test_list_counts_as_a_call_of_its_key() -> None:
    key, keys = {"authorization": "Bearer sk-a"}, [{"name": "a", "key": "sk-a", "limits": {"rate": 1}}]
    async with serving(said(LISTED), models=PATTERN, server={"client_keys": keys}) as (stand, provider):
        assert names_in(await get(stand.url, headers=key)) == ["gpt-4o", "gpt-4o-mini"]
        assert (await ask(stand.url, "/v1/models", headers=key, method="GET")).status == 429
        assert len(provider.requests) == 1


async def test_call_is_recorded() -> None:
    async with serving(said(LISTED), models=PATTERN) as (stand, _):
        await get(stand.url, "/v1/models/gpt-4o")
        (line,) = await stand.calls()
        assert (line["path"], line["method"], line["status"]) == ("/v1/models/gpt-4o", "GET", 200)
