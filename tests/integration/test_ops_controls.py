"""Operator actions on a running gateway: breakers, deployments and limits, their effect on calls, and how they end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from tests.chaos.forms import CHAT
from tests.chaos.stand import Stand, facing
from tests.fakes.provider import Pause, Step, whole
from tests.fakes.waiting import eventually
from tests.integration.operating import audit, change, get, post

TWO: Mapping[str, Any] = {
    "gpt": {"deployments": [{"upstream": "one", "model": "a"}, {"upstream": "one", "model": "b"}]},
    "m-*": {"deployments": [{"upstream": "one"}]},
}
HOUR = {"for_": "1h"}


async def served_by(stand: Stand, model: str = "gpt") -> str | None:
    """Makes a call and returns the deployment that answered it, or the reason for its refusal."""
    reply = await CHAT.ask(stand.url, model=model)
    return reply.headers.get("x-llm-guard-deployment") or reply.headers.get("x-llm-guard-refused-by")


def held_up(gate: asyncio.Event) -> list[Step]:
    """A stream that waits for `gate` before its end."""
    return [*CHAT.good_stream[:-2], Pause(gate), *CHAT.good_stream[-2:]]


def pass_s(stand: Stand, seconds: float) -> None:
    """Runs the check that normally runs four times a second, as if so much time had passed."""
    now = stand.app._clock.now() + seconds
    stand.app.ops._controls.look(now)


async def view(stand: Stand, label: str) -> dict[str, Any]:
    found = [each for each in await get(stand.url, "deployments") if each["deployment"] == label]
    return dict(found[0])


# draining and cordoning


async def test_drained_deployment_gets_no_new_calls_and_ends_the_running_ones() -> None:
    gate = asyncio.Event()
    async with facing(held_up(gate), CHAT.ok, models=TWO) as (stand, provider):
        running = asyncio.create_task(CHAT.ask(stand.url, stream=True))
        await eventually(lambda: provider.requests)
        answer = await change(stand.url, "deployments/drain", deployment="one/a")
        hold = answer["now"][0]["hold"]
        assert (hold["kind"], hold["reason"], hold["until"]) == ("drained", "an outage", None)
        assert answer["warnings"] == []
        assert await served_by(stand) == "one/b"
        gate.set()
        assert (await running).is_whole
        seen = await view(stand, "one/a")
        assert (seen["hold"]["operator"], seen["health"]) == ("ann from 127.0.0.1", "degraded")
        assert seen["reasons"] == ["drained by an operator"]
        await change(stand.url, "deployments/uncordon", deployment="one/a")
        assert await served_by(stand) == "one/a"


async def test_last_one_of_a_model_may_be_drained_and_the_answer_warns() -> None:
    async with facing(CHAT.ok, models=TWO) as (stand, _):
        await change(stand.url, "deployments/drain", deployment="one/a")
        answer = await change(stand.url, "deployments/cordon", deployment="one/b", **HOUR)
        assert answer["warnings"] == ["gpt: no deployment is left"]
        reply = await CHAT.ask(stand.url)
        assert (reply.status, reply.headers["x-llm-guard-refused-by"]) == (503, "hold")
        assert int(reply.headers["retry-after"]) <= 30
        assert "an operator" in CHAT.error_of(reply)["message"]
        (model, *_) = (await get(stand.url, "metrics"))["models"]
        assert (model["model"], model["traffic"]["success_rate"]) == ("gpt", 0.0)
        assert [call["outcome"] for call in await stand.calls()] == ["refused"]


async def test_cordoned_deployment_returns_by_itself_and_that_is_audited() -> None:
    async with facing(CHAT.ok, models=TWO) as (stand, _):
        await change(stand.url, "deployments/cordon", deployment="one/a", **HOUR)
        pass_s(stand, 3599)
        assert await served_by(stand) == "one/b"
        pass_s(stand, 3601)
        assert await served_by(stand) == "one/a"
        assert (await audit(stand.url))[0] == ("expiry", "deployments.uncordon", "one/a", "the hold expired")


async def test_names_under_a_drained_pattern_get_no_call_at_all() -> None:
    async with facing(CHAT.ok, models=TWO) as (stand, provider):
        answer = await change(stand.url, "deployments/drain", deployment="one/m-*")
        assert answer["now"] == []
        assert [await served_by(stand, f"m-{number}") for number in range(3)] == ["hold"] * 3
        assert provider.requests == []
        await change(stand.url, "deployments/uncordon", deployment="one/m-*")
        assert await served_by(stand, "m-0") == "one/m-*"


# breaker overrides


async def test_breaker_that_is_forced_open_is_shown_and_ends_by_itself() -> None:
    async with facing(CHAT.ok, models=TWO) as (stand, _):
        await change(stand.url, "breakers/force-open", deployment="one/a", **HOUR)
        assert await served_by(stand) == "one/b"
        breaker = next(each for each in await get(stand.url, "breakers") if each["deployment"] == "one/a")
        assert (breaker["state"], breaker["is_forced"], breaker["reason"]) == ("forced_open", True, "an outage")
        assert breaker["until"] is not None
        pass_s(stand, 3601)
        assert await served_by(stand) == "one/a"
        assert (await audit(stand.url))[0] == ("expiry", "breakers.reset", "one/a", "the override expired")


async def test_breaker_that_is_forced_closed_stays_closed_however_calls_fail() -> None:
    failing = [whole(500, CHAT.error)]
    async with facing(failing, models=TWO, breaker={"consecutive_failures": 1}) as (stand, _):
        await change(stand.url, "breakers/force-closed", deployment="one/a")
        for _ in range(4):
            await CHAT.ask(stand.url)
        assert stand.breaker("one/a").state == "forced_closed"


async def test_host_of_an_upstream_is_forced_open_for_all_its_deployments() -> None:
    async with facing(CHAT.ok, models=TWO) as (stand, _):
        answer = await change(stand.url, "breakers/force-open", upstream="one")
        assert answer["warnings"] == [
            "gpt: no deployment is left",
            "m-*: no deployment is left",
            "/upstreams/one: no deployment is left",
        ]
        assert {each["host"] for each in answer["now"]} == {"forced_open"}
        assert await served_by(stand) == "breaker"
        await change(stand.url, "breakers/reset", upstream="one")
        assert await served_by(stand) == "one/a"


async def test_one_name_under_a_pattern_is_forced_open_alone() -> None:
    async with facing(CHAT.ok, models=TWO) as (stand, _):
        assert await served_by(stand, "m-1") == await served_by(stand, "m-2") == "one/m-*"
        await change(stand.url, "breakers/force-open", deployment="one/m-*", model="m-1")
        assert [await served_by(stand, name) for name in ("m-1", "m-2", "m-3")] == ["breaker", "one/m-*", "one/m-*"]
        await change(stand.url, "breakers/force-open", deployment="one/m-*")
        assert (await post(stand.url, "breakers/reset", deployment="one/m-*", model="m-1")).status == 409
        await change(stand.url, "breakers/reset", deployment="one/m-*")
        assert [await served_by(stand, name) for name in ("m-1", "m-2")] == ["one/m-*"] * 2


# concurrency limits


async def test_limit_holds_at_once_and_is_lifted_by_a_reset() -> None:
    gate = asyncio.Event()
    async with facing(held_up(gate), CHAT.ok, models=TWO) as (stand, provider):
        (now,) = (await change(stand.url, "limits", deployment="one/a", concurrency=1))["now"]
        assert (now["concurrency"], now["is_changed"]) == (1, True)
        running = asyncio.create_task(CHAT.ask(stand.url, stream=True))
        await eventually(lambda: provider.requests)
        assert await served_by(stand) == "one/b"
        (now,) = (await change(stand.url, "limits/reset", deployment="one/a"))["now"]
        assert (now["concurrency"], now["is_changed"]) == (None, False)
        assert await served_by(stand) == "one/a"
        gate.set()
        assert (await running).is_whole


async def test_waiting_call_is_admitted_as_soon_as_there_is_room() -> None:
    gate = asyncio.Event()
    alone = {"gpt": {"deployments": [{"upstream": "one", "model": "a"}]}}
    async with facing(held_up(gate), CHAT.ok, models=alone) as (stand, provider):
        await change(stand.url, "limits", deployment="one/a", concurrency=1)
        running = asyncio.create_task(CHAT.ask(stand.url, stream=True))
        await eventually(lambda: provider.requests)
        waiting = asyncio.create_task(CHAT.ask(stand.url))
        await eventually(lambda: any(gate.waiting for gate in stand.deployment("one/a").gates.all()))
        assert (await get(stand.url, "limits"))[0]["waiting"] == 1
        await change(stand.url, "limits", deployment="one/a", concurrency=2)
        assert (await waiting).status == 200
        gate.set()
        assert (await running).is_whole


# refused changes


@pytest.mark.parametrize(
    ("path", "body", "status", "word"),
    [
        ("deployments/drain", {"deployment": "one/A"}, 404, "similar names: one/a"),
        ("deployments/drain", {}, 422, "deployment"),
        ("deployments/drain", {"deployment": "one/a", "reason": ...}, 422, "reason"),
        ("deployments/drain", {"deployment": "one/a", "reason": " \t"}, 422, "reason"),
        ("deployments/drain", {"deployment": "one/a", "reason": None}, 422, "reason"),
        ("deployments/drain", {"deployment": "one/a", "why": "x"}, 422, "why"),
        ("deployments/drain", {"deployment": "one/a", "for_": "soon"}, 422, "for"),
        ("deployments/drain", {"deployment": "one/a", "for_": "0s"}, 422, "greater than 0"),
        ("deployments/drain", {"deployment": "one/a", "for_": "99999h"}, 422, "at most 9999h"),
        ("deployments/cordon", {"deployment": "one/a"}, 422, "for"),
        ("breakers/force-open", {}, 422, "upstream"),
        (
            "breakers/force-open",
            {"deployment": "one/a", "upstream": "one"},
            422,
            "send either `deployment` or `upstream`",
        ),
        ("breakers/force-open", {"upstream": "one", "model": "a"}, 422, "omit `model`"),
        ("breakers/force-open", {"upstream": "none"}, 404, "no upstream is named"),
        ("breakers/force-open", {"deployment": "one/m-*", "model": "m-9"}, 404, "no model is named"),
        ("limits", {"deployment": "one/a"}, 422, "send at least one of"),
        ("limits", {"deployment": "one/a", "retry_ratio": 2}, 422, "retry_ratio"),
        ("limits/reset", {"deployment": "two"}, 200, ""),
    ],
)
async def test_change_that_makes_no_sense_is_refused_with_a_remedy(
    path: str, body: dict[str, Any], status: int, word: str
) -> None:
    async with facing(CHAT.ok, models=TWO) as (stand, _):
        reply = await post(stand.url, path, **body)
        assert reply.status == status, reply.text
        assert word in reply.text
        assert await served_by(stand) == "one/a"
