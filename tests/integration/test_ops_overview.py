"""The operator's overview of calls and deployments over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from llm_guard.admin.api import history as ops_history
from llm_guard.admin.api.health import HealthApi
from llm_guard.admin.api.overview import Overview
from llm_guard.admin.http.endpoint import AdminRequest, Operator
from llm_guard.admin.schemas.history import HistoryView
from llm_guard.admin.schemas.models import (
    DeploymentDetail,
    DeploymentView,
    HealthSummary,
    LabelledBreaker,
    Snapshot,
)
from llm_guard.clock import SystemClock
from llm_guard.outcome import Failure, FailureKind
from tests.admin_client import look, view
from tests.chaos.forms import CHAT
from tests.chaos.stand import Stand, facing
from tests.chaos.wire import ask
from tests.fakes.provider import Hold, Reset, whole
from tests.fakes.waiting import eventually

OPENS_FAST = {"consecutive_failures": 3, "open_for": "30s", "open_jitter": 0, "early_probes": False}
GOOD, BAD = CHAT.ok, [whole(500)]


async def snapshot(stand: Stand) -> Snapshot:
    await stand.idle()
    return await view(stand.url, "/admin/metrics", Snapshot)


def of(seen: Snapshot, label: str) -> DeploymentView:
    return next(deployment for deployment in seen.deployments if deployment.deployment == label)


async def test_calls_are_counted_by_model_and_in_sum() -> None:
    async with facing(GOOD, GOOD, BAD, GOOD, retry={"max_attempts": 2}) as (stand, _):
        for _ in range(3):
            assert (await CHAT.ask(stand.url)).status == 200
        seen = await snapshot(stand)
        model = next(model_view for model_view in seen.models if model_view.model == "gpt")
        assert model.outcomes == {"ok": 3}
        assert (model.traffic.calls, model.traffic.success_rate, model.traffic.in_flight) == (3, 1.0, 0)
        assert model.traffic.attempts_per_call == pytest.approx(4 / 3, abs=1e-3)
        assert model.traffic.retries_per_call == pytest.approx(1 / 3, abs=1e-3)
        assert model.traffic.calls_per_second == 0.6
        assert model.traffic.timeout_rate == 0.0
        assert model.traffic.duration.p95_s is not None
        assert model.traffic.time_to_first_token.p50_s is None
        assert seen.total == model.traffic
        one = of(seen, "one/gpt")
        assert (one.attempts, one.outcomes, one.success_rate) == (4, {"ok": 3, "server_error": 1}, 0.75)
        assert (one.upstream, one.dialect, one.model) == ("one", "openai", "gpt")


async def test_models_without_calls_are_shown_too() -> None:
    async with facing(GOOD) as (stand, _):
        seen = await snapshot(stand)
        assert [model.model for model in seen.models] == ["gpt", "claude"]
        assert seen.total.calls == 0
        assert seen.total.success_rate is seen.total.retries_per_call is None
        assert (seen.health, seen.reasons, seen.is_draining) == ("healthy", [], False)


async def test_client_error_is_no_failure() -> None:
    async with facing([whole(400, b'{"error":{"message":"bad"}}')], [whole(500)]) as (stand, _):
        await CHAT.ask(stand.url)
        await ask(stand.url, CHAT.path, b'{"model":"unknown"}')
        await ask(stand.url, CHAT.path, b"{")
        seen = await snapshot(stand)
        assert (seen.total.calls, seen.total.success_rate) == (3, None)
        await CHAT.ask(stand.url)
        assert (await snapshot(stand)).total.success_rate == 0.0


async def test_refused_key_of_a_caller_is_no_failure_but_a_configured_one_is() -> None:
    refused = [whole(401, b'{"error":{"message":"no","code":"invalid_api_key"}}')]
    async with facing(refused) as (stand, provider):
        await CHAT.ask(stand.url)
        assert (await snapshot(stand)).total.success_rate is None
        upstreams = {"one": {"dialect": "openai", "base_url": f"{provider.url}/v1", "api_key": "sk-of-ours"}}
        async with facing(refused, upstreams=upstreams) as (ours, _):
            await CHAT.ask(ours.url)
            assert (await snapshot(ours)).total.success_rate == 0.0


async def test_limits_that_were_hit_and_last_success_are_shown() -> None:
    async with facing(GOOD, [Hold()], timeout={"attempt": "500ms"}) as (stand, _):
        await CHAT.ask(stand.url)
        await CHAT.ask(stand.url)
        seen = await snapshot(stand)
        one = of(seen, "one/gpt")
        assert (one.timeout_rate, seen.total.timeout_rate) == (0.5, 0.5)
        assert one.last_success is not None
        assert datetime.fromisoformat(one.last_success) <= datetime.fromisoformat(seen.at)
        assert of(seen, "two/claude").last_success is None


async def test_connections_to_an_upstream_are_counted_when_they_are_begun() -> None:
    async with facing(GOOD, GOOD, [Reset()], GOOD) as (stand, _):
        assert of(await snapshot(stand), "one/gpt").connection_attempts == 0
        await CHAT.ask(stand.url)
        await CHAT.ask(stand.url)
        assert of(await snapshot(stand), "one/gpt").connection_attempts == 1
        await CHAT.ask(stand.url)
        await CHAT.ask(stand.url)
        assert of(await snapshot(stand), "one/gpt").connection_attempts > 1


async def test_calls_in_flight_and_connections_are_those_of_now() -> None:
    async with facing([Hold()]) as (stand, _):
        calling = asyncio.ensure_future(CHAT.ask(stand.url))
        await eventually(lambda: stand.app.gateway.running == 1)
        await eventually(lambda: stand.deployment("one/gpt").gates.in_flight == 1)
        seen = await view(stand.url, "/admin/metrics", Snapshot)
        assert (seen.total.in_flight, of(seen, "one/gpt").gate.in_flight) == (1, 1)
        assert seen.connections == 2
        assert seen.max_connections > 2
        calling.cancel()
        await asyncio.wait([calling])


async def test_deployments_and_breakers_can_be_requested_alone() -> None:
    async with facing(BAD, breaker=OPENS_FAST) as (stand, _):
        for _ in range(3):
            await CHAT.ask(stand.url)
        deployments = await view(stand.url, "/admin/deployments", list[DeploymentDetail])
        assert [deployment.deployment for deployment in deployments] == ["one/gpt", "two/claude", "one", "two"]
        breakers = await view(stand.url, "/admin/breakers", list[LabelledBreaker])
        one = next(breaker for breaker in breakers if breaker.deployment == "one/gpt")
        assert (one.state, one.is_forced, one.calls, one.failure_share) == ("open", False, 3, 1.0)
        assert one.next_probe_s is not None
        assert 29 < one.next_probe_s <= 30
        assert one.reason == "3 failures in a row"
        assert one.since is not None
        (shown,) = one.restrictions
        assert (shown.kind, shown.rule, [error.status for error in shown.errors]) == ("breaker", one.reason, [500] * 3)
        assert deployments[0].restrictions == [shown]
        other = next(breaker for breaker in breakers if breaker.deployment == "one")
        assert (other.next_probe_s, other.reason, other.since, other.restrictions) == (None, None, None, [])


async def test_names_under_a_pattern_share_a_label_and_the_worst_is_shown() -> None:
    models = {"m-*": {"deployments": [{"upstream": "one"}]}}
    async with facing(GOOD, BAD, BAD, BAD, models=models, breaker=OPENS_FAST) as (stand, _):
        for name in ("m-good", "m-bad", "m-bad", "m-bad"):
            await ask(stand.url, CHAT.path, b'{"model":"%b"}' % name.encode())
        one = of(await snapshot(stand), "one/m-*")
        assert (one.breaker.state, one.breaker.breakers, one.breaker.calls) == ("open", 2, 4)
        assert one.breaker.failure_share == 0.75
        assert (one.model, one.health, one.attempts) == (None, "unhealthy", 4)


# health


async def test_healthy_gateway_is_reported_as_healthy() -> None:
    async with facing(GOOD) as (stand, _):
        await CHAT.ask(stand.url)
        summary = await view(stand.url, "/admin/health", HealthSummary)
        assert (summary.health, summary.reasons, summary.unhealthy, summary.degraded) == ("healthy", [], [], [])
        assert {state: counted.count for state, counted in summary.deployments.items()} == {
            "healthy": 4, "degraded": 0, "unhealthy": 0, "failed": 0,
        }  # fmt: skip
        assert (await look(stand.url, "/readyz")).text == "ready\nhealth: healthy\n"


async def test_outage_is_unhealthy_and_the_gateway_still_ready() -> None:
    async with facing(BAD, breaker=OPENS_FAST) as (stand, _):
        for _ in range(5):
            await CHAT.ask(stand.url)
        summary = await view(stand.url, "/admin/health", HealthSummary)
        assert (summary.health, summary.unhealthy) == ("unhealthy", ["one/gpt"])
        assert summary.deployments["unhealthy"].share == 0.25
        ready = await look(stand.url, "/readyz")
        assert ready.status == 200
        assert ready.text == "ready\nhealth: unhealthy\none/gpt: its breaker is open\n"
        seen = await snapshot(stand)
        assert (seen.health, of(seen, "one/gpt").reasons) == ("unhealthy", ["its breaker is open"])
        assert await stand.metric("llm_guard_health_state", deployment="one/gpt", state="unhealthy") == 1


async def test_one_that_still_answers_leaves_the_whole_degraded() -> None:
    models = {"gpt": {"deployments": [{"upstream": "one"}], "fallbacks": ["spare"]},
              "spare": {"deployments": [{"upstream": "one"}]}}  # fmt: skip
    scripts = [each for _ in range(3) for each in (BAD, GOOD)]
    async with facing(*scripts, models=models, breaker=OPENS_FAST) as (stand, _):
        for _ in range(4):
            assert (await CHAT.ask(stand.url)).status == 200
        summary = await view(stand.url, "/admin/health", HealthSummary)
        assert (summary.health, summary.unhealthy) == ("degraded", ["one/gpt"])


@pytest.mark.parametrize(("key", "health"), [("xy", "unhealthy"), ("x*", "degraded")])
async def test_model_without_deployments_makes_the_whole_unhealthy_unless_it_is_one_name_of_a_pattern(
    key: str, health: str
) -> None:
    models = {key: {"deployments": [{"upstream": "one"}]}, "well": {"deployments": [{"upstream": "one"}]}}
    async with facing(GOOD, BAD, models=models, breaker=OPENS_FAST, retry={"max_attempts": 1}) as (stand, _):
        assert (await CHAT.ask(stand.url, model="well")).status == 200
        for _ in range(4):
            await CHAT.ask(stand.url, model="xy")
        summary = await view(stand.url, "/admin/health", HealthSummary)
        assert (summary.health, summary.unhealthy) == (health, [f"one/{key}"])
        assert (summary.reasons[0] == "no deployment is left for xy") == (health == "unhealthy")


async def test_answers_slower_than_their_budget_are_degraded() -> None:
    async with facing(GOOD, ops={"health": {"p95": "1ms"}}) as (stand, _):
        deployment = stand.deployment("one/gpt")
        for _ in range(20):
            deployment.latency.note(0.5, SystemClock().now())
        summary = await view(stand.url, "/admin/health", HealthSummary)
        assert (summary.health, summary.degraded) == ("degraded", ["one/gpt"])
        assert "one/gpt: p95 is 0.5 s, above its budget of 0.001 s\n" in (await look(stand.url, "/readyz")).text


async def test_deployment_that_its_provider_holds_is_degraded_unless_it_is_another_account() -> None:
    async with facing(GOOD) as (stand, _):
        now, gates = SystemClock().now(), stand.deployment("one/gpt").gates
        gates.of("an account", now).pause_until(now + 60)
        (one,) = (await view(stand.url, "/admin/health", HealthSummary)).degraded
        assert one == "one/gpt"
        assert (
            "one/gpt: its provider sent a Retry-After: no calls for another " in (await look(stand.url, "/readyz")).text
        )
        gates.of("another account", now)
        assert (await view(stand.url, "/admin/health", HealthSummary)).health == "healthy"


async def test_deployment_whose_own_credential_is_in_cooldown_is_degraded() -> None:
    upstreams = {"paid": {"dialect": "openai", "base_url": "http://127.0.0.1:1/v1", "api_key": "sk-of-ours"}}
    models = {"ours": {"deployments": [{"upstream": "paid"}]}}
    async with facing(GOOD, upstreams=upstreams, models=models) as (stand, _):
        credential = stand.deployment("paid/ours").credential
        assert credential is not None
        for key in (credential, ("credential", "one", "", "a caller's", "")):
            for _ in range(2):
                stand.app.gateway.cooldowns.note_refusal(key, "m", Failure(FailureKind.AUTH, "no"), SystemClock().now())
        seen = await snapshot(stand)
        assert seen.credentials_in_cooldown == 2
        assert [deployment.deployment for deployment in seen.deployments if deployment.health == "degraded"] == [
            "paid/ours",
            "paid",
        ]
        assert of(seen, "paid/ours").reasons[0].startswith("its credential is in cooldown for another ")


async def test_breaker_that_is_being_tried_has_no_next_probe() -> None:
    async with facing(BAD, breaker=OPENS_FAST) as (stand, _):
        for _ in range(3):
            await CHAT.ask(stand.url)
        assert stand.deployment("one/gpt").breaker.try_acquire(SystemClock().now() + 31) is not None
        one = of(await snapshot(stand), "one/gpt")
        assert (one.breaker.state, one.breaker.next_probe_s) == ("half_open", None)
        assert (one.health, one.reasons) == ("degraded", ["its breaker is half-open"])


class Breathing(SystemClock):
    """Counts the items processed between two pauses."""

    def __init__(self) -> None:
        self.most = self._looks = 0

    def seen(self, look: Callable[..., Any]) -> Callable[..., Any]:
        def looked(*args: Any) -> Any:
            self._looks += 1
            self.most = max(self.most, self._looks)
            return look(*args)

        return looked

    async def sleep(self, seconds: float) -> None:
        self._looks = 0
        await super().sleep(seconds)


@pytest.mark.parametrize("path", ["metrics", "deployments", "breakers", "health"])
async def test_overview_of_many_deployments_pauses_after_a_few(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    models = {f"m{number}": {"deployments": [{"upstream": "one"}]} for number in range(300)}
    async with facing(GOOD, models=models) as (stand, _):
        for name in models:
            stand.app.ops.overview._counters.models[name].calls["ok"] += 1
        clock = Breathing()
        monkeypatch.setattr(stand.app.ops.overview, "_running", replace(stand.app.ops.overview._running, clock=clock))
        monkeypatch.setattr(stand.app.ops._health, "_clock", clock)
        for owner, name in ((HealthApi, "_signs"), (Overview, "_view"), (Overview, "_labelled"),
                            (Overview, "_model_view"), (ops_history.HistoryApi, "model")):  # fmt: skip
            monkeypatch.setattr(owner, name, clock.seen(getattr(owner, name)))
        assert (await look(stand.url, f"/admin/{path}")).status == 200
        assert 10 < clock.most <= 100


async def test_reasons_of_readiness_are_bounded() -> None:
    models = {f"m{number}": {"deployments": [{"upstream": "one"}]} for number in range(50)}
    async with facing(GOOD, models=models) as (stand, _):
        for deployment in stand.app.gateway.deployments():
            deployment.breaker.force("forced_open", 0.0)
        lines = (await look(stand.url, "/readyz")).text.splitlines()
        assert len(lines) == 2 + 20 + 1
        assert lines[-1] == "and 34 more"


async def test_readiness_reasons_are_evaluated_at_most_once_a_second() -> None:
    """Readiness reasons are cached, because a viewer may send requests at any rate."""
    async with facing(GOOD) as (stand, _):
        assert (await look(stand.url, "/readyz")).text == "ready\nhealth: healthy\n"
        stand.deployment("one/gpt").breaker.force("forced_open", 0.0)
        health = stand.app.ops._health
        health._looked_at += 60.0  # ensures that the cached reasons are still valid, however slow this test is
        asked = AdminRequest("GET", "/readyz", {}, caller=Operator("vic", "viewer"))
        assert (await health._ready(asked)).body == b"ready\nhealth: healthy\n"
        health._looked_at -= 61.0
        assert b"one/gpt: its breaker is forced open" in (await health._ready(asked)).body


async def test_stopping_gateway_is_not_ready_and_states_why_first() -> None:
    async with facing(GOOD) as (stand, _):
        stand.app.gateway.is_leaving = True
        ready = await look(stand.url, "/readyz")
        assert (ready.status, ready.text.splitlines()[0]) == (503, "draining")
        assert (await snapshot(stand)).is_draining


# history


async def test_history_is_there_from_the_start() -> None:
    async with facing(GOOD) as (stand, _):
        await CHAT.ask(stand.url)
        history = await view(stand.url, "/admin/history", HistoryView)
        assert (history.step_s, history.at, history.models) == (5.0, [], {})
        assert history.total.calls_per_second == []
