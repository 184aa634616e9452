"""/metrics over a real socket, after calls and during them, in both formats."""

from __future__ import annotations

import asyncio
import json
import subprocess

from llm_guard.admin.metrics.exposition import CONTENT_TYPES
from tests.chaos.stand import Stand, config_of, facing, standing
from tests.chaos.wire import Reply, ask
from tests.fakes.provider import Hold, ScriptedProvider, whole
from tests.fakes.waiting import eventually
from tests.scrape import Scraped
from tests.tools import need

OPENMETRICS = {"accept": "application/openmetrics-text; version=1.0.0, text/plain; q=0.5"}
_CHOICES = b'[{"message": {"role": "assistant", "content": "hi"}}]'
OK = (whole(body=b'{"choices": %b, "usage": {"prompt_tokens": 7, "completion_tokens": 3}}' % _CHOICES),)
BUSY = (whole(503, b'{"error": {"message": "busy"}}'),)
REFUSED = (whole(401, b'{"error": {"message": "no such key", "code": "invalid_api_key"}}'),)


async def call(stand: Stand, model: str = "gpt") -> Reply:
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "hi"}]}).encode()
    return await ask(stand.url, "/v1/chat/completions", body, {"content-type": "application/json"})


async def page(url: str, accept: dict[str, str] | None = None) -> Reply:
    reply = await ask(url, "/metrics", headers=accept, method="GET")
    assert reply.status == 200
    return reply


async def scraped(stand: Stand) -> Scraped:
    await stand.idle()
    return Scraped((await page(stand.url)).text)


async def test_prometheus_own_linter_finds_nothing() -> None:
    async with facing(BUSY, OK, REFUSED, retry={"max_attempts": 2}) as (stand, _):
        assert [(await call(stand)).status for _ in range(2)] == [200, 401]
        await call(stand, "unknown")
        await stand.idle()
        text = (await page(stand.url)).body
    line = [need("promtool"), "check", "metrics"]
    done = await asyncio.to_thread(subprocess.run, line, input=text, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


async def test_outcomes_of_calls_are_on_the_page() -> None:
    async with facing(BUSY, OK, OK, retry={"max_attempts": 2}) as (stand, _):
        assert [(await call(stand)).status for _ in range(2)] == [200, 200]
        assert (await call(stand, "of-a-callers-choice")).status == 404
        found = await scraped(stand)
    assert found("calls_total", model="gpt", outcome="ok") == 2
    assert found("calls_total", model="other", outcome="refused") == 1
    assert found("attempts_total", deployment="one/gpt", outcome="overloaded") == 1
    assert found("retries_total", deployment="one/gpt", kind="overloaded") == 1
    assert found("tokens_total", model="gpt", direction="input") == 14
    assert found("connection_attempts_total", upstream="one") == 1
    assert "of-a-callers-choice" not in {value for sample in found.samples for value in sample.labels.values()}


async def test_openmetrics_page_leads_to_the_calls() -> None:
    async with facing(OK) as (stand, _):
        await call(stand)
        [line] = await stand.calls()
        reply = await page(stand.url, OPENMETRICS)
        assert (await page(stand.url)).headers["content-type"] == CONTENT_TYPES["text"]
    assert reply.headers["content-type"] == CONTENT_TYPES["openmetrics"]
    found = Scraped(reply.text, "openmetrics")
    examples = [sample for sample in found.samples if sample.exemplar is not None]
    assert {example.name for example in examples} == {"llm_guard_call_duration_seconds_bucket"}
    assert [example.exemplar.labels for example in examples if example.exemplar] == [{"request_id": line["request_id"]}]


async def test_breaker_that_opens_is_seen_at_the_next_scrape() -> None:
    async with facing(BUSY, breaker={"consecutive_failures": 1, "min_calls": 1, "open_for": "60s"}) as (stand, _):
        before = await scraped(stand)
        await call(stand)
        after = await scraped(stand)
    opened = {"deployment": "one/gpt", "to": "open"}
    assert (before("breaker_transitions_total", **opened), after("breaker_transitions_total", **opened)) == (0, 1)
    assert after("breaker_state", deployment="one/gpt", state="open") == 1
    assert after("breaker_state", deployment="one/gpt", state="closed") == 0


async def test_health_is_shown_for_every_deployment() -> None:
    async with facing() as (stand, _):
        found = await scraped(stand)
    states = [sample for sample in found.samples if sample.name == "llm_guard_health_state"]
    labels = {state.labels["deployment"] for state in states}
    assert {"one/gpt", "two/claude"} <= labels
    assert sum(state.value for state in states) == len(labels)


async def test_call_that_waits_for_its_turn_is_in_the_queue() -> None:
    models = {"gpt": {"deployments": [{"upstream": "one"}], "capacity": {"concurrency": 1}}}
    async with (
        ScriptedProvider((Hold(),), OK) as provider,
        standing(config_of(provider.url, models=models)) as stand,
    ):
        calls = [asyncio.create_task(call(stand)) for _ in range(2)]
        await eventually(lambda: sum(gate.waiting for gate in stand.deployment("one/gpt").gates.all()) == 1)
        found = Scraped((await page(stand.url)).text)
        for each in calls:
            each.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    assert found("queue_length", deployment="one/gpt") == 1
    assert found("in_flight_attempts", deployment="one/gpt") == 1
    assert found("in_flight_calls", model="gpt") == 2


async def test_key_that_is_refused_twice_is_in_a_cooldown() -> None:
    upstreams = {"own": {"dialect": "openai", "base_url": "URL", "api_key": "sk-of-the-gateway"}}
    models = {"gpt": {"deployments": [{"upstream": "own"}]}}
    async with ScriptedProvider(REFUSED, REFUSED) as provider:
        upstreams["own"]["base_url"] = f"{provider.url}/v1"
        async with standing(config_of(provider.url, upstreams=upstreams, models=models)) as stand:
            for _ in range(2):
                await call(stand)
            found = await scraped(stand)
    assert found("credentials_in_cooldown", upstream="own") == 1
    assert found("credentials_in_cooldown", upstream="one") == 0


async def test_second_listener_has_the_page_to_itself_and_a_count_of_its_own() -> None:
    async with standing(config_of("http://127.0.0.1:9", ops={"port": 0})) as stand:
        found = Scraped((await page(stand.app.addresses[1])).text)
        assert (await ask(stand.url, "/metrics", method="GET")).status == 404
    assert found("open_connections", listener="ops") == 1
    assert found("open_connections", listener="calls") == 0


async def test_concurrent_scrapers_all_get_a_whole_page() -> None:
    async with facing(OK) as (stand, _):
        scrapes = [asyncio.create_task(page(stand.url, OPENMETRICS)) for _ in range(30)]
        assert (await call(stand)).status == 200
        pages = await asyncio.gather(*scrapes)
    assert all(reply.is_whole and reply.text.endswith("# EOF\n") for reply in pages)
