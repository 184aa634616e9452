"""Claude on Vertex AI and Amazon Bedrock behind the gateway, with the official SDKs, against strict stand-ins."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from click.testing import CliRunner
from structlog.testing import capture_logs

from llm_guard.cli.main import main
from llm_guard.config import parse_config
from llm_guard.proxy.http_client.connection_pool import ConnectionPool
from llm_guard.resilience.health.probe_policy import ProbeResult, ProbeSettings
from llm_guard.routing.deployment import upstream_of
from llm_guard.upstreams.probes.probe import new_probe
from llm_guard.upstreams.probes.targets import subjects_of
from tests.e2e.clouds import CONFIG, FORMS, chat, claude, said, standing
from tests.e2e.stand import SAID, gateway
from tests.fakes.strict_clouds import (
    KEY,
    MODELS,
    TEXT,
    amazon_error,
    answered,
    chunked,
    google_error,
    strict_cloud,
)

BETAS = ["beta-one", "beta-two"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("sdk", [claude, chat])
async def test_both_sdks_get_answers_of_a_cloud(form: str, stream: bool, sdk: Any) -> None:
    async with standing(form) as (cloud, app), sdk(app) as client:
        assert await said(client, stream=stream) == TEXT
        assert cloud.refused == []
        (_, headers, _), *others = cloud.requests
        assert (headers["authorization"], others) == (f"Bearer {KEY}", [])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("stream", [False, True])
async def test_betas_reach_the_cloud_in_its_own_way(form: str, stream: bool) -> None:
    async with standing(form) as (cloud, app), claude(app) as client:
        asked: Any = {"model": "front", "messages": SAID, "max_tokens": 9, "stream": stream, "betas": BETAS}
        answer = await client.beta.messages.create(**asked)
        if stream:
            assert [event.type async for event in answer][-1] == "message_stop"
        ((path, headers, body),) = cloud.requests
        assert cloud.refused == []
        assert "?" not in path  # `?beta=true` is not for clouds
        if form == "vertex":
            assert headers["anthropic-beta"].split(",") == BETAS
            assert "anthropic_beta" not in body
        else:
            assert body["anthropic_beta"] == BETAS


@pytest.mark.parametrize("form", FORMS)
async def test_stream_is_one_of_messages_whatever_the_chunks_are(form: str) -> None:
    async with standing(form) as (cloud, app), claude(app) as client:
        for size in (1, 7, 64, 1000, 100_000):
            cloud.faults = [chunked(size)]
            assert await said(client, stream=True) == TEXT
        raw = await client.messages.with_raw_response.create(model="front", messages=SAID, max_tokens=9, stream=True)
        assert raw.headers["content-type"].startswith("text/event-stream")
        events = [event async for event in await raw.parse()]
        assert [event.type for event in events][-2:] == ["message_delta", "message_stop"]
        assert "invocationMetrics" not in str(events[-1])


@pytest.mark.parametrize("form", FORMS)
async def test_model_that_the_client_names_is_sent(form: str) -> None:
    async with standing(form) as (cloud, app), claude(app) as client:
        assert await said(client, stream=False, model=MODELS[form]) == TEXT
        assert await said(client, stream=True, model=MODELS[form]) == TEXT
        with pytest.raises(anthropic.APIStatusError, match="was not found"):
            await said(client, stream=False, model="../../../v1/else?x=1")
        assert "/else" not in cloud.requests[-1][0]
        with pytest.raises(anthropic.BadRequestError, match="is not the id of a model"):
            await said(client, stream=False, model="..")


@pytest.mark.parametrize("form", FORMS)
async def test_callers_key_is_a_bearer_token_for_the_cloud(form: str) -> None:
    async with standing(form, key="") as (cloud, app), claude(app, KEY) as client:
        assert await said(client, stream=True) == TEXT
        assert cloud.refused == []


async def test_vertex_counts_tokens_and_bedrock_is_not_asked() -> None:
    asked: Any = {"model": "front", "messages": SAID}
    async with standing("vertex") as (cloud, app), claude(app) as client:
        assert (await client.messages.count_tokens(**asked)).input_tokens == 7
        ((path, _, body),) = cloud.requests
        assert path.endswith("/publishers/anthropic/models/count-tokens:rawPredict")
        assert body["model"] == MODELS["vertex"]
    async with standing("bedrock-invoke") as (cloud, app), claude(app) as client:
        counted = await client.messages.with_raw_response.count_tokens(**asked)
        assert counted.headers["x-llm-guard-degraded"] == "estimate"
        assert cloud.requests == []


@pytest.mark.parametrize("form", FORMS)
async def test_endpoints_that_a_cloud_lacks_are_refused_with_the_reason(form: str) -> None:
    async with standing(form) as (cloud, app), httpx2.AsyncClient(base_url=app.addresses[0]) as client:
        headers = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
        for method, path in (
            ("GET", "/v1/files"), ("POST", "/v1/messages/batches"), ("GET", "/upstreams/cloud/v1/models"),
            ("GET", "/v1/messages/batches/b"), ("POST", "/upstreams/cloud/v1/files"),
        ):  # fmt: skip
            answer = await client.request(method, path, headers=headers, json={} if method == "POST" else None)
            assert answer.status_code == 404, path
            assert f"the form {form}" in answer.json()["error"]["message"]
            assert answer.headers["x-llm-guard-refused-by"] == "route"
        models = await client.get("/v1/models", headers=headers)
        assert sorted(model["id"] for model in models.json()["data"]) == ["front", "gpt"]
        assert cloud.requests == []


ERRORS = [
    ("vertex", lambda: google_error(429, "RESOURCE_EXHAUSTED", "Quota exceeded"), 429, "rate_limit_error"),
    ("vertex", lambda: google_error(401, "UNAUTHENTICATED", "bad token"), 401, "authentication_error"),
    ("vertex", lambda: google_error(403, "PERMISSION_DENIED", "no right"), 403, "permission_error"),
    ("vertex", lambda: google_error(404, "NOT_FOUND", "Publisher Model x was not found"), 404, "not_found_error"),
    ("vertex", lambda: google_error(503, "UNAVAILABLE", "The service is down"), 503, "overloaded_error"),
    ("bedrock-invoke", lambda: amazon_error(429, "ThrottlingException", "Too many"), 429, "rate_limit_error"),
    ("bedrock-invoke", lambda: amazon_error(403, "AccessDeniedException", "no right"), 403, "permission_error"),
    ("bedrock-invoke", lambda: amazon_error(400, "ValidationException", "bad field"), 400, "invalid_request_error"),
    ("bedrock-invoke", lambda: amazon_error(408, "ModelTimeoutException", "late"), 408, "timeout_error"),
    ("bedrock-invoke", lambda: amazon_error(500, "InternalServerException", "oh"), 500, "api_error"),
]


@pytest.mark.parametrize(("form", "response", "status", "kind"), ERRORS)
@pytest.mark.parametrize("stream", [False, True])
async def test_errors_have_the_format_of_the_client(
    form: str, response: Any, status: int, kind: str, stream: bool
) -> None:
    message = json.loads(response().body)
    message = (message[0]["error"] if isinstance(message, list) else message)["message"]
    async with standing(form, attempts=1) as (cloud, app), claude(app) as client, chat(app) as other:
        cloud.faults = [answered(response), answered(response)]
        with pytest.raises(anthropic.APIStatusError) as caught:
            await said(client, stream=stream)
        body: Any = caught.value.body
        assert isinstance(body, dict)
        assert (caught.value.status_code, body["type"], body["error"]["type"]) == (status, "error", kind)
        assert body["error"]["message"] == message
        with pytest.raises(openai.APIStatusError, match=message):
            await said(other, stream=stream)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("stream", [False, True])
async def test_throttled_call_is_made_again(form: str, stream: bool) -> None:
    async with standing(form) as (cloud, app), claude(app) as client:
        refusal = google_error if form == "vertex" else amazon_error
        names = {"vertex": "RESOURCE_EXHAUSTED", "bedrock-invoke": "ThrottlingException"}
        cloud.faults = [answered(lambda: refusal(429, names[form], "later"))]
        assert await said(client, stream=stream) == TEXT
        assert len(cloud.requests) == 2


@pytest.mark.parametrize("form", FORMS)
async def test_large_request_is_sent_whole(form: str) -> None:
    text = "grüße " * 300_000
    async with standing(form) as (cloud, app), claude(app) as client:
        asked: Any = {"model": "front", "messages": [{"role": "user", "content": text}], "max_tokens": 9}
        answer = await client.messages.create(**asked)
        assert answer.stop_reason == "end_turn"
        assert cloud.refused == []
        assert cloud.requests[-1][2]["messages"][0]["content"] == text


async def test_endpoint_that_one_cloud_lacks_is_served_by_the_other() -> None:
    async with strict_cloud("vertex") as vertex, strict_cloud("bedrock-invoke") as bedrock:
        upstreams = "\n".join(
            f'  {cloud.form}: {{dialect: anthropic, form: {cloud.form}, base_url: "{cloud.base_url}", api_key: {KEY}}}'
            for cloud in (bedrock, vertex)
        )
        deployments = ", ".join(f'{{upstream: {form}, model: "{MODELS[form]}"}}' for form in reversed(FORMS))
        config = f"server: {{port: 0}}\nupstreams:\n{upstreams}\nmodels: {{front: {{deployments: [{deployments}]}}}}\n"
        async with gateway(config) as app, claude(app) as client:
            raw = await client.messages.with_raw_response.count_tokens(model="front", messages=SAID)
            assert raw.headers["x-llm-guard-deployment"] == f"vertex/{MODELS['vertex']}"
            assert bedrock.requests == []
            assert await said(client, stream=True) == TEXT
            assert (len(bedrock.requests), bedrock.refused, vertex.refused) == (1, [], [])


@pytest.mark.parametrize("form", FORMS)
async def test_log_and_metrics_know_of_no_translation_without_one(form: str) -> None:
    async with standing(form) as (_, app), claude(app) as client, chat(app) as other:
        with capture_logs() as logs:
            await said(client, stream=True)
            await said(other, stream=True)
        own, translated = (line["attempts"][0] for line in logs if line["event"] == "call")
        assert ("translated_to" in own, translated["translated_to"]) == (False, "anthropic")
        async with httpx2.AsyncClient() as raw:
            metrics = (await raw.get(f"{app.addresses[0]}/metrics")).text
        counted = [line for line in metrics.splitlines() if line.startswith("llm_guard_translations_total{")]
        assert counted == ['llm_guard_translations_total{from="openai",to="anthropic",outcome="ok"} 1']


@pytest.mark.parametrize("form", FORMS)
async def test_probe_of_a_deployment_calls_it_in_its_form(form: str) -> None:
    async with strict_cloud(form) as cloud:
        upstream = f'{{dialect: anthropic, form: {form}, base_url: "{cloud.base_url}", api_key: {KEY}}}'
        models = f'{{m: {{deployments: [{{upstream: c, model: "{MODELS[form]}", probe: {{}}}}]}}}}'
        config = parse_config(f"upstreams: {{c: {upstream}}}\nmodels: {models}\n", "f.yaml", {})
        (subject,) = subjects_of(config, {"c": upstream_of("c", config.upstreams["c"])}).values()
        connections = ConnectionPool()
        try:
            assert await new_probe(subject, connections).look() == ProbeResult("ok")
            found = await new_probe(replace(subject, settings=ProbeSettings()), connections).look()
        finally:
            await connections.close()
        assert found.finding == "answered"  # there is no health page; the host responds
        assert cloud.refused == []


@pytest.mark.parametrize("form", FORMS)
async def test_doctor_calls_a_cloud(form: str, tmp_path: Path) -> None:
    async with strict_cloud(form) as cloud:
        path = tmp_path / "gateway.yaml"
        known = {"first_token": "10s", "idle": "10s", "attempts": 2, "recover": "off", "stream": ""}
        key, model = f", api_key: {KEY}, prefill: none", MODELS[form]
        path.write_text(CONFIG.format(form=form, url=cloud.base_url, key=key, model=model, **known))
        result = await asyncio.to_thread(CliRunner().invoke, main, ["doctor", "-c", str(path), "--calls"])
        assert f"the form {form} has no list" in result.output
        assert (cloud.refused, len(cloud.requests)) == ([], 2)


LIMIT = "max_tokens: 32000 > 8192, which is the maximum allowed number of output tokens for claude"


@pytest.mark.parametrize(("form", "response"), [
    ("vertex", lambda: google_error(400, "INVALID_ARGUMENT", LIMIT)),
    ("bedrock-invoke", lambda: amazon_error(400, "ValidationException", LIMIT)),
])  # fmt: skip
async def test_output_limit_is_learned_from_the_error_of_a_cloud(form: str, response: Any) -> None:
    async with standing(form) as (cloud, app), chat(app) as client:
        cloud.faults = [answered(response)]
        assert await said(client, stream=True) == TEXT
        assert [body["max_tokens"] for _, _, body in cloud.requests] == [32000, 8192]
