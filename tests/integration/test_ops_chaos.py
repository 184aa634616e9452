"""Faults that operators inject into a running gateway: effect, recognition, end."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from llm_guard.admin.api.chaos import ChaosApi
from tests.chaos.forms import CHAT, MESSAGES, Form
from tests.chaos.stand import Stand, config_text, facing
from tests.chaos.wire import Reply, ask
from tests.fakes.provider import ScriptedProvider
from tests.fakes.waiting import eventually
from tests.integration.operating import HERE, audit, change, get, post, running

ON = {"chaos": True}
DOWN = {"kind": "status"}
TWO = {"gpt": {"deployments": [{"upstream": "one", "model": "a"}, {"upstream": "one", "model": "b"}]}}


async def inject(stand: Stand, fault: dict[str, Any], **said: Any) -> dict[str, Any]:
    aim = {} if "deployment" in said else {"model": "gpt"}
    answer: dict[str, Any] = await change(stand.url, "chaos", **{"fault": fault, "share": 1, **aim, **said})
    return answer


async def end(stand: Stand, fault_id: str) -> Reply:
    return await post(stand.url, "chaos/end", id=fault_id, reason="over")


def pass_s(stand: Stand, seconds: float) -> None:
    """Runs the check that normally runs four times a second, as if so much time had passed."""
    group = next(group for group in stand.app.ops._site._groups if isinstance(group, ChaosApi))
    group.look(stand.app._clock.now() + seconds)


async def test_injected_error_is_recognisable_everywhere_and_costs_no_request() -> None:
    async with facing(CHAT.ok, ops=ON) as (stand, provider):
        answer = await inject(stand, DOWN)
        assert answer["warnings"] == []
        reply = await CHAT.ask(stand.url)
        assert (reply.status, provider.requests) == (503, [])
        assert CHAT.error_of(reply)["code"] == "injected_fault"
        assert reply.headers["x-llm-guard-injected-faults"] == "chaos-1: status on one/gpt"
        (line,) = await stand.calls()
        assert line["injected_faults"] == ["chaos-1: status on one/gpt"]
        assert await stand.metric("llm_guard_injected_faults_total", deployment="one/gpt", fault="status") == 1
        assert await stand.metric("llm_guard_injected_faults_active") == 1
        (error,) = stand.deployment("one/gpt").errors.latest()
        assert error.code == "injected_fault"


@pytest.mark.parametrize("form", [CHAT, MESSAGES], ids=str)
async def test_incident_says_that_an_operator_has_caused_it(form: Form) -> None:
    async with facing(ops=ON, breaker={"consecutive_failures": 2}) as (stand, _):
        await inject(stand, DOWN, model=form.model)
        for _ in range(3):
            await form.ask(stand.url)
        found = {incident["kind"]: incident for incident in await get(stand.url, "incidents")}
        assert found.keys() == {"override", "outage"}
        assert "chaos-1: status for 100% of the attempts, injected by ann" in found["override"]["title"]
        assert found["override"]["actions"][0]["body"] == {"id": "chaos-1"}
        assert "injected_fault" in found["outage"]["title"]
        assert {error["code"] for error in found["outage"]["errors"]} == {"injected_fault"}
        (fault,) = [one for one in await get(stand.url, "restrictions") if one["kind"] == "injected_fault"]
        assert (fault["model"], fault["deployment"], fault["refused"]) == (form.model, None, 2)


async def test_calls_without_a_fault_bear_no_mark() -> None:
    async with facing(MESSAGES.ok, CHAT.ok, ops=ON) as (stand, _):
        metrics = (await ask(stand.url, "/metrics", headers=HERE, method="GET")).text
        assert not re.search("^llm_guard_injected", metrics, re.MULTILINE)
        await inject(stand, DOWN)
        replies = [await MESSAGES.ask(stand.url)]
        await end(stand, "chaos-1")
        replies.append(await CHAT.ask(stand.url))
        assert [reply.status for reply in replies] == [200, 200]
        assert not any("x-llm-guard-injected-faults" in reply.headers for reply in replies)
        assert not any("injected_faults" in line for line in await stand.calls())


async def test_anthropic_client_gets_the_error_in_its_dialect() -> None:
    async with facing(ops=ON) as (stand, _):
        await inject(stand, {"kind": "status", "status": 529}, model="claude")
        reply = await MESSAGES.ask(stand.url)
        assert (reply.status, reply.json["error"]["type"]) == (529, "overloaded_error")


async def test_fault_of_one_deployment_leaves_the_others() -> None:
    async with facing(CHAT.ok, ops=ON, models=TWO) as (stand, provider):
        await inject(stand, DOWN, deployment="one/a")
        reply = await CHAT.ask(stand.url)
        assert (reply.status, reply.headers["x-llm-guard-deployment"], len(provider.requests)) == (200, "one/b", 1)
        assert reply.headers["x-llm-guard-injected-faults"] == "chaos-1: status on one/a"


async def test_stream_is_cut_and_the_client_sees_that_it_is_not_whole() -> None:
    async with facing(CHAT.good_stream, ops=ON) as (stand, provider):
        most = len(CHAT.stream_bytes) - len(CHAT.end) + 1
        await inject(stand, {"kind": "cut", "after_bytes": most})
        reply = await CHAT.ask(stand.url, stream=True)
        assert len(provider.requests) == 1
        assert CHAT.token in reply.body
        assert CHAT.end not in reply.body
        (line,) = await stand.calls()
        assert (line["outcome"], "chaos-1" in line["reason"]) == ("truncated", True)


async def test_hang_meets_the_limit_of_the_attempt() -> None:
    async with facing(ops=ON, timeout={"attempt": "200ms"}) as (stand, provider):
        await inject(stand, {"kind": "hang"})
        reply = await CHAT.ask(stand.url)
        assert (reply.status, provider.requests) == (504, [])


async def test_calls_that_hang_are_released_when_the_fault_is_ended() -> None:
    async with facing(CHAT.ok, ops=ON, retry={"max_attempts": 2}) as (stand, _):
        await inject(stand, {"kind": "hang"})
        call = asyncio.ensure_future(CHAT.ask(stand.url))
        await eventually(lambda: stand.app.upstreams._injector.counts)
        assert (await end(stand, "chaos-1")).json["now"] == []
        assert (await call).status == 200
        assert (await audit(stand.url))[0] == ("ann from 127.0.0.1", "chaos.end", "gpt", "over")


async def test_fault_is_listed_and_ends_by_itself_after_five_minutes() -> None:
    async with facing(CHAT.ok, ops=ON) as (stand, _):
        await inject(stand, {"kind": "delay", "delay": "10ms"}, share=0.25)
        (shown,) = await get(stand.url, "chaos")
        assert shown.items() >= {
            "id": "chaos-1", "model": "gpt", "deployment": None, "kind": "delay", "share": 0.25, "reason": "an outage",
            "operator": "ann from 127.0.0.1", "struck": 0,
        }.items()  # fmt: skip
        pass_s(stand, 299)
        assert len(await get(stand.url, "chaos")) == 1
        pass_s(stand, 301)
        assert await get(stand.url, "chaos") == []
        assert (await audit(stand.url))[0] == ("expiry", "chaos.end", "gpt", "the fault expired")


async def test_nothing_can_be_injected_unless_the_config_allows_it() -> None:
    async with facing(CHAT.ok) as (stand, _):
        reply = await post(stand.url, "chaos", fault=DOWN, share=1, model="gpt")
        assert (reply.status, reply.json["error"]["code"]) == (403, "chaos_is_off")
        assert "ops.chaos: true" in reply.json["error"]["message"]
        assert (await get(stand.url, "chaos"), await audit(stand.url)) == ([], [])
        assert (await CHAT.ask(stand.url)).status == 200


async def test_reload_that_forbids_faults_ends_them(tmp_path: Path) -> None:
    path = tmp_path / "guard.yaml"
    async with ScriptedProvider(CHAT.ok) as provider:
        path.write_text(config_text(provider.url, ops=ON))
        async with running(path) as stand:
            await inject(stand, DOWN)
            assert (await CHAT.ask(stand.url)).status == 503
            path.write_text(config_text(provider.url))
            await change(stand.url, "config/reload")
            assert (await CHAT.ask(stand.url)).status == 200
            assert ("reload", "chaos.end", "gpt", "the new config has not ops.chaos: true") in await audit(stand.url)


@pytest.mark.parametrize(
    ("said", "status", "code"),
    [
        ({"model": "gpd"}, 404, "unknown_model"),
        ({"deployment": "one/gpd"}, 404, "unknown_deployment"),
        ({}, 422, "invalid_body"),
        ({"model": "gpt", "deployment": "one/gpt"}, 422, "invalid_body"),
        ({"model": "gpt", "share": 0}, 422, "invalid_body"),
        ({"model": "gpt", "share": 1.01}, 422, "invalid_body"),
        ({"model": "gpt", "for_": "61m"}, 422, "invalid_body"),
        ({"model": "gpt", "for_": "3601s"}, 422, "invalid_body"),
        ({"model": "gpt", "for_": None}, 422, "invalid_body"),
        ({"model": "gpt", "fault": {"kind": "status", "status": 401}}, 422, "invalid_body"),
        ({"model": "gpt", "fault": {"kind": "status", "retry_after": "2h"}}, 422, "invalid_body"),
        ({"model": "gpt", "fault": {"kind": "delay"}}, 422, "invalid_body"),
        ({"model": "gpt", "fault": {"kind": "delay", "delay": "61s"}}, 422, "invalid_body"),
        ({"model": "gpt", "fault": {"kind": "fire"}}, 422, "invalid_body"),
    ],
)
async def test_mistake_is_refused_and_injects_nothing(said: dict[str, Any], status: int, code: str) -> None:
    async with facing(ops=ON) as (stand, _):
        reply = await post(stand.url, "chaos", **{"fault": DOWN, "share": 0.5, **said})
        assert (reply.status, reply.json["error"]["code"]) == (status, code), reply.text
        assert await get(stand.url, "chaos") == []


async def test_faults_are_few_and_an_unknown_one_cannot_be_ended() -> None:
    async with facing(ops=ON) as (stand, _):
        for number in range(1, 21):
            assert (await inject(stand, DOWN, for_="1h"))["now"][-1]["id"] == f"chaos-{number}"
        refused = await post(stand.url, "chaos", fault=DOWN, share=1, model="gpt")
        assert (refused.status, refused.json["error"]["code"]) == (409, "too_many_faults")
        unknown = await end(stand, "chaos-21")
        assert (unknown.status, unknown.json["error"]["code"]) == (404, "unknown_fault")


async def test_fault_does_not_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "guard.yaml"
    async with ScriptedProvider(CHAT.ok) as provider:
        path.write_text(config_text(provider.url, ops={**ON, "store": str(tmp_path / "store")}))
        async with running(path) as stand:
            await inject(stand, DOWN, for_="1h")
        async with running(path) as stand:
            assert await get(stand.url, "chaos") == []
            assert (await audit(stand.url))[0] == ("stop", "chaos.end", "gpt", "the gateway stops")
            assert (await CHAT.ask(stand.url)).status == 200
