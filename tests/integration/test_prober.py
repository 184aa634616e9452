"""Active probes of upstreams: what an operator sees, and their effect on calls."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from llm_guard.admin.schemas.models import HealthSummary
from llm_guard.admin.schemas.subsystems import ProbedView
from llm_guard.config import Config, parse_config
from llm_guard.mock.provider import MockProvider
from tests.admin_client import view
from tests.chaos.forms import CHAT
from tests.chaos.stand import Stand, config_text, connections_to, facing, standing
from tests.chaos.wire import ask
from tests.fakes.waiting import eventually
from tests.integration.operating import change, get, post, running

PROBE = {"interval": "15ms", "timeout": "500ms", "max_failures": 2}
SECRET = "sk-of-the-upstream"  # of this test


def upstreams(*urls: str, probe: Mapping[str, Any] = PROBE) -> dict[str, Any]:
    return {
        name: {"dialect": "openai", "base_url": f"{url}/v1", "api_key": SECRET, "probe": dict(probe)}
        for name, url in zip("ab", urls, strict=False)
    }


def probed(*urls: str, probe: Mapping[str, Any] = PROBE, **sections: Any) -> Config:
    """Builds a config with a model `m` that has deployments at `a` and `b`, both probed."""
    models = {"m": {"deployments": [{"upstream": name, "model": "m"} for name, _ in zip("ab", urls, strict=False)]}}
    text = config_text(urls[0], upstreams=upstreams(*urls, probe=probe), models=models, **sections)
    return parse_config(text, "test.yaml", {})


async def answered_by(stand: Stand) -> str:
    body = json.dumps({"model": "m", "messages": []}).encode()
    reply = await ask(stand.url, CHAT.path, body)
    assert reply.status == 200, reply.text
    return reply.headers["x-llm-guard-deployment"]


async def probes(stand: Stand) -> dict[str, ProbedView]:
    found = await view(stand.url, "/admin/probes", list[ProbedView])
    return {probed_view.deployment or probed_view.upstream: probed_view for probed_view in found}


def state(stand: Stand, name: str) -> str:
    found = stand.app.prober.view(name)
    assert found is not None
    return found.state


def events(stand: Stand) -> list[dict[str, Any]]:
    return [event.facts for event in stand.app.ops.journal.since(0)[0] if event.kind == "probe"]


@pytest.fixture
async def pair() -> AsyncIterator[tuple[MockProvider, MockProvider]]:
    async with MockProvider() as a, MockProvider() as b:
        yield a, b


@pytest.mark.parametrize("fault", ["status:503", "close", "reset", "silence"])
async def test_upstream_that_is_down_is_tried_last_until_it_is_back(
    pair: tuple[MockProvider, MockProvider], fault: str
) -> None:
    a, b = pair
    probe = PROBE | {"timeout": "30ms"}
    async with standing(probed(a.url, b.url, probe=probe)) as stand:
        await eventually(lambda: state(stand, "a") == "up")
        assert await answered_by(stand) == "a/m"
        a.switch("/health", fault)
        await eventually(lambda: state(stand, "a") == "down")
        assert await answered_by(stand) == "b/m"
        b.switch("m", "status:500")
        assert await answered_by(stand) == "a/m"
        a.switch("/health", "")
        await eventually(lambda: state(stand, "a") == "up")
        assert await answered_by(stand) == "a/m"
        assert [(event["upstream"], event["deployment"], event["state"]) for event in events(stand)][:2] == [
            ("a", None, "down"),
            ("a", None, "up"),
        ]


async def test_operator_sees_the_results(pair: tuple[MockProvider, MockProvider]) -> None:
    a, b = pair
    a.switch("/health", "status:503")
    b.switch("/health", "status:404")
    async with standing(probed(a.url, b.url)) as stand:
        await eventually(lambda: (state(stand, "a"), state(stand, "b")) == ("down", "up"))
        found = await probes(stand)
        one, other = found["a"], found["b"]
        assert (one.state, one.last_result, one.reason) == ("down", "failed", "it answered 503 to the health page")
        assert (one.failures >= 2, one.last_ok, one.duration_s) == (True, None, None)
        assert (one.interval_s, one.timeout_s, one.max_failures) == (0.015, 0.5, 2)
        assert (other.state, other.last_result, other.reason) == (
            "up",
            "answered",
            "it answered 404 to the health page",
        )
        summary = await view(stand.url, "/admin/health", HealthSummary)
        assert set(summary.unhealthy) == {"a/m", "a"}
        shown = {each["deployment"]: each for each in await get(stand.url, "deployments")}
        assert shown["a/m"]["reasons"] == ["its probes find it down: it answered 503 to the health page"]
        assert await stand.metric("llm_guard_upstream_up", upstream="a") == 0
        assert await stand.metric("llm_guard_upstream_up", upstream="b") == 1
        assert await stand.metric("llm_guard_probes_total", upstream="a", kind="health", outcome="failed") >= 2
        assert await stand.metric("llm_guard_health_state", deployment="a/m", state="unhealthy") == 1
        assert await stand.metric("llm_guard_attempts_total") == 0
        b.switch("/health", "")
        await change(stand.url, "probes/now", upstream="b")
        shown = {each["deployment"]: each for each in await get(stand.url, "deployments")}
        assert shown["b/m"]["last_ok"] is not None
        assert await stand.metric("llm_guard_upstream_last_ok_timestamp_seconds", upstream="b") > 1e9
        assert await stand.metric("llm_guard_probe_duration_seconds_count", upstream="b") >= 2


async def test_probe_on_demand_waits_for_its_result(pair: tuple[MockProvider, MockProvider]) -> None:
    a, b = pair
    async with standing(probed(a.url, b.url, probe=PROBE | {"interval": "1h"})) as stand:
        assert (await change(stand.url, "probes/now"))["now"][0]["state"] == "up"
        a.switch("/health", "status:503")
        [found] = (await change(stand.url, "probes/now", upstream="a"))["now"]
        assert (found["upstream"], found["last_result"], found["failures"]) == ("a", "failed", 1)
        assert (await probes(stand))["b"].last_result == "ok"
        refused = await post(stand.url, "probes/now", upstream="z")
        assert (refused.status, refused.json["error"]["code"]) == (404, "unknown_probe")


async def test_probe_on_demand_without_probes_is_refused() -> None:
    async with facing(CHAT.ok) as (stand, provider):
        assert await probes(stand) == {}
        changed = await change(stand.url, "probes/now")
        assert changed["warnings"] == ["nothing was probed: no upstream has a `probe`"]
        assert provider.requests == []
        assert await stand.metric("llm_guard_upstream_up") == 0


async def test_engine_that_gave_up_is_failed(pair: tuple[MockProvider, MockProvider]) -> None:
    async with standing(probed(pair[0].url, pair[1].url)) as stand:
        stand.app.prober.set_failed("a", "it did not start 5 times")
        summary = await view(stand.url, "/admin/health", HealthSummary)
        assert (set(summary.failed), summary.unhealthy) == ({"a/m", "a"}, [])
        assert (await probes(stand))["a"].engine_given_up == "it did not start 5 times"
        assert await stand.metric("llm_guard_health_state", deployment="a/m", state="failed") == 1
        assert await answered_by(stand) == "b/m"


async def test_breaker_of_a_recovered_upstream_admits_a_call_early() -> None:
    breaker = {
        "consecutive_failures": 2, "open_for": "10m", "max_open_for": "10m", "early_probes": False, "min_calls": 2,
    }  # fmt: skip
    provider = MockProvider()
    port = int((await provider.start()).rsplit(":", 1)[1])
    url = provider.url
    async with standing(probed(url, breaker=breaker, probe=PROBE)) as stand:
        await answered_by(stand)
        await provider.stop()
        body = json.dumps({"model": "m", "messages": []}).encode()
        for _ in range(12):
            assert (await ask(stand.url, CHAT.path, body)).status >= 500
        await eventually(lambda: state(stand, "a") == "down")
        deployment = stand.deployment("a/m")
        assert "open" in (deployment.breaker.state, deployment.host.state)
        again = MockProvider()
        await again.start(port=port)
        try:
            await eventually(lambda: state(stand, "a") == "up")
            assert await answered_by(stand) == "a/m"
            assert (deployment.breaker.state, deployment.host.state) == ("closed", "closed")
        finally:
            await again.stop()


async def test_deployment_is_called_for_one_token(pair: tuple[MockProvider, MockProvider]) -> None:
    a, b = pair
    deployments = [
        {"upstream": "a", "model": "m", "probe": {"interval": "15ms", "max_failures": 1}},
        {"upstream": "b", "model": "m"},
    ]
    text = config_text(a.url, upstreams=upstreams(a.url, b.url), models={"m": {"deployments": deployments}})
    async with standing(parse_config(text, "test.yaml", {})) as stand:
        await eventually(lambda: any(request.model == "m" for request in a.seen))
        seen = next(request for request in a.seen if request.model == "m")
        assert json.loads(seen.body)["max_tokens"] == 1
        assert seen.header("authorization") == f"Bearer {SECRET}"
        a.switch("m", "status:503")
        await eventually(lambda: stand.app.prober.views()[2].state == "down")
        assert (await probes(stand))["a/m"].kind == "completion"
        assert await stand.metric("llm_guard_deployment_up", deployment="a/m") == 0
        assert await stand.metric("llm_guard_upstream_up", upstream="a") == 1
        assert await answered_by(stand) == "b/m"
        assert SECRET not in str(await get(stand.url, "probes"))


async def test_list_of_models_is_requested(pair: tuple[MockProvider, MockProvider]) -> None:
    async with standing(probed(pair[0].url, probe=PROBE | {"kind": "models"})) as stand:
        await eventually(lambda: state(stand, "a") == "up")
        assert (pair[0].last.method, pair[0].last.target) == ("GET", "/v1/models")
        found = (await probes(stand))["a"]
        assert (found.last_result, found.reason) == ("answered", "it does not list m")


async def test_reload_follows_the_file(tmp_path: Path, pair: tuple[MockProvider, MockProvider]) -> None:
    a, b = pair
    a.switch("/health", "status:503")
    path = tmp_path / "guard.yaml"
    path.write_text(config_text(a.url, upstreams=upstreams(a.url)))
    async with running(path) as stand:
        await eventually(lambda: state(stand, "a") == "down")
        path.write_text(config_text(a.url, upstreams=upstreams(a.url, b.url)))
        await change(stand.url, "config/reload")
        assert state(stand, "a") == "down"
        await eventually(lambda: state(stand, "b") == "up")
        path.write_text(config_text(a.url, upstreams={"b": upstreams(a.url, b.url)["b"]}))
        await change(stand.url, "config/reload")
        assert list(await probes(stand)) == ["b"]
        assert not stand.app.gateway.table.pool.down.keys
        looks = len(a.seen)
        seen = len(b.seen)
        await eventually(lambda: len(b.seen) > seen + 1)
        assert len(a.seen) == looks


async def test_stop_ends_a_running_probe(pair: tuple[MockProvider, MockProvider]) -> None:
    a, _ = pair
    a.switch("/health", "silence")
    async with standing(probed(a.url, probe=PROBE | {"timeout": "1h"})) as stand:
        await eventually(lambda: connections_to(a.url) == 1)
        assert state(stand, "a") == "unknown"
    assert connections_to(a.url) == 0


async def test_mock_has_a_health_page_of_its_own_faults() -> None:
    async with MockProvider() as provider, aiohttp.ClientSession() as session:

        async def page(method: str) -> tuple[int, bytes]:
            async with session.request(method, f"{provider.url}/health") as answer:
                return answer.status, await answer.read()

        assert await page("GET") == (200, b'{"status":"ok"}')
        assert await page("HEAD") == (200, b"")
        order = {"model": "/health", "faults": "status:503"}
        async with session.post(f"{provider.url}/mock/faults", json=order) as answer:
            assert answer.status == 200
        assert [(await page(method))[0] for method in ("GET", "HEAD")] == [503, 503]
        async with session.post(f"{provider.url}{CHAT.path}", data=CHAT.body()) as answer:
            assert answer.status == 200
