"""Fallback responses over real sockets: which calls get one, what an operator sees, and degraded mode, in which they
come early."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.forms import BOTH, CHAT, EMBEDDINGS, MESSAGES, STREAMS, Form, name_of
from tests.chaos.stand import Stand, config_text, facing
from tests.chaos.wire import ask
from tests.fakes.provider import Close, Hold, Pause, ScriptedProvider, Step, chunk, stream_head, whole
from tests.integration.operating import HERE, audit, change, get, post, running

SORRY = "We cannot answer now."
RULES: Mapping[str, Any] = {
    "static_response": SORRY,
    "min_calls": 3,
    "window": "60s",
    "recovery_window": "30s",
    "max_wait": "200ms",
}
DOWN = [whole(500, b'{"error":{"message":"out of order"}}')]
HANGS: list[Step] = [Hold()]


def models(**more: Any) -> dict[str, Any]:
    rules = {**RULES, **more}
    return {
        "gpt": {"deployments": [{"upstream": "one"}], "degraded": rules},
        "claude": {"deployments": [{"upstream": "two"}], "degraded": rules},
        "plain": {"deployments": [{"upstream": "one"}]},
    }


def look(stand: Stand, after_s: float = 0.0) -> None:
    """Evaluates degraded mode as the gateway does four times a second, `after_s` seconds in the future."""
    stand.app.gateway.degraded.look(stand.app._clock.now() + after_s)


async def fail(stand: Stand, form: Form = CHAT, calls: int = 3) -> None:
    for _ in range(calls):
        assert (await form.ask(stand.url)).headers["x-llm-guard-degraded"] == "static"
    await stand.idle()
    look(stand)


def turns(stand: Stand) -> list[tuple[Any, Any]]:
    events = [event.facts for event in stand.app.ops.journal.since(0)[0] if event.kind == "degraded"]
    return [(each["model"], each["is_degraded"]) for each in events]


# which calls get a fallback response


@pytest.mark.parametrize(("form", "stream"), BOTH, ids=name_of)
async def test_failed_call_gets_the_text_in_its_dialect(form: Form, stream: bool) -> None:
    async with facing(DOWN, models=models()) as (stand, _):
        reply = await form.ask(stand.url, stream=stream)
        (line,) = await stand.calls()
        assert line["outcome"] == "server_error"
        if form is EMBEDDINGS:
            assert (reply.status, "fallback_response" in line) == (500, False)
            return
        assert (reply.status, reply.is_whole) == (200, True)
        assert reply.headers["content-type"].startswith("text/event-stream" if stream else "application/json")
        assert SORRY in reply.text
        assert (line["status"], line["fallback_response"], line["reason"]) == (
            200,
            "static",
            "answered 500 (status 500)",
        )
        assert await stand.metric("llm_guard_fallback_responses_total", model=form.model, kind="static") == 1
        assert await stand.metric("llm_guard_calls_total", model=form.model, outcome="ok") == 0


async def test_success_rate_sees_the_outage() -> None:
    async with facing(DOWN, models=models()) as (stand, _):
        await fail(stand)
        snapshot = await get(stand.url, "metrics")
        (gpt,) = (each for each in snapshot["models"] if each["model"] == "gpt")
        assert gpt["traffic"]["success_rate"] == 0
        assert snapshot["degraded"]["models"][0]["fallback_responses"] == {"static": 3}


async def test_route_without_rules_fails_as_ever() -> None:
    async with facing(DOWN, models=models()) as (stand, _):
        reply = await CHAT.ask(stand.url, model="plain")
        assert (reply.status, reply.json["error"]["message"]) == (500, "out of order")


async def test_client_error_is_passed_on_unchanged() -> None:
    async with facing([whole(400, b'{"error":{"message":"bad"}}')], models=models()) as (stand, _):
        assert (await CHAT.ask(stand.url)).status == 400


async def test_call_without_an_available_deployment_gets_the_static_text() -> None:
    async with facing(CHAT.ok, models=models()) as (stand, provider):
        await change(stand.url, "deployments/drain", deployment="one/gpt")
        reply = await CHAT.ask(stand.url)
        assert (reply.status, reply.headers["x-llm-guard-degraded"]) == (200, "static")
        assert provider.requests == []


async def test_answers_from_before_hide_no_outage() -> None:
    cached = {name: {**each, "cache": {"ttl": "1h"}} for name, each in models().items()}
    async with facing(CHAT.ok, DOWN, models=cached) as (stand, _):
        for _ in range(30):
            assert (await CHAT.ask(stand.url)).body == CHAT.answer
        for number in range(3):
            assert SORRY in (await CHAT.ask(stand.url, seed=number)).text
        await stand.idle()
        look(stand)
        assert turns(stand) == [("gpt", True)]


async def test_stale_response_is_preferred_to_the_text() -> None:
    cached = {name: {**each, "cache": {"ttl": "1ms", "stale_if_error": "1h"}} for name, each in models().items()}
    async with facing(CHAT.ok, DOWN, models=cached) as (stand, _):
        await CHAT.ask(stand.url)
        await asyncio.sleep(0.01)  # longer than its ttl
        reply = await CHAT.ask(stand.url)
        assert (reply.body, reply.headers["x-llm-guard-cache"]) == (CHAT.answer, "stale")
        assert "x-llm-guard-degraded" not in reply.headers
        assert (await stand.calls())[-1]["outcome"] == "server_error"
        assert await stand.metric("llm_guard_fallback_responses_total", model="gpt", kind="stale") == 1


@pytest.mark.parametrize("form", STREAMS, ids=name_of)
async def test_stream_that_dies_after_its_first_token_ends_as_ever(form: Form) -> None:
    script: list[Step] = [stream_head(), *map(chunk, form.preamble), chunk(form.token), Close()]
    async with facing(script, models=models()) as (stand, _):
        reply = await form.ask(stand.url, stream=True)
        assert not reply.is_whole
        assert SORRY not in reply.text


@pytest.mark.parametrize("stream", [True, False])
async def test_text_follows_an_early_head(stream: bool) -> None:
    waiting = {"keepalive": {"interval": "50ms", "before_headers": True, "unary": True}}
    async with facing(HANGS, models=models(), stream=waiting, timeout={"total": "200ms"}) as (stand, _):
        reply = await CHAT.ask(stand.url, stream=stream)
        assert (reply.status, reply.is_whole) == (200, True)
        assert reply.body.startswith(b": waiting\n\n" if stream else b"\n")
        assert SORRY in reply.text


@pytest.mark.parametrize("form", STREAMS, ids=name_of)
async def test_stream_that_dies_is_stored_before_its_client_gets_the_error(form: Form, tmp_path: Path) -> None:
    script: list[Step] = [stream_head(), *map(chunk, form.preamble), chunk(form.token), Close()]
    kept = {name: {**each, "dead_letter": "always"} for name, each in models().items()}
    async with facing(script, models=kept, ops={"store": str(tmp_path)}) as (stand, _):
        await form.ask(stand.url, stream=True)
        (line,) = await stand.calls()
        assert (line["outcome"], bool(line["dead_letter_id"])) == ("truncated", True)
        assert await stand.metric("llm_guard_dead_letters_total", model=form.model) == 1


async def test_dead_letter_of_a_call_with_a_fallback_response_is_named_to_its_client(tmp_path: Path) -> None:
    async with facing(DOWN, models=models(), ops={"store": str(tmp_path)}) as (stand, _):
        reply = await ask(stand.url, CHAT.path, CHAT.body(), {"x-llm-guard-dead-letter": "true"})
        (line,) = await stand.calls()
        assert reply.headers["x-llm-guard-degraded"] == "static"
        assert reply.headers["x-llm-guard-dead-letter"] == line["dead_letter_id"] != ""


# degraded mode


async def test_degraded_route_answers_soon_where_its_provider_hangs() -> None:
    async with facing(*[DOWN] * 3, HANGS, models=models()) as (stand, provider):
        await fail(stand)
        reply = await CHAT.ask(stand.url)
        assert (reply.status, reply.headers["x-llm-guard-degraded"]) == (200, "static")
        assert reply.took_s < 2.0 + stand.lag_s  # its limits are 5 s
        assert len(provider.requests) == 4
        line = (await stand.calls())[-1]
        assert (line["outcome"], line["fallback_response"]) == ("timeout", "static")
        assert stand.breaker("one/gpt").failures == 3, "what was cut short is held against nobody"
        look(stand)
        assert (await get(stand.url, "degraded"))["models"][0]["calls"] == 0, "nor for a sign of anything"


async def test_degraded_route_returns_to_normal_with_real_responses() -> None:
    async with facing(*[DOWN] * 3, CHAT.ok, models=models()) as (stand, _):
        await fail(stand)
        assert turns(stand) == [("gpt", True)]
        reply = await CHAT.ask(stand.url)
        assert "x-llm-guard-degraded" not in reply.headers
        assert reply.body == CHAT.answer
        await stand.idle()
        look(stand, 31)
        assert turns(stand) == [("gpt", True), ("gpt", False)]


async def test_degraded_call_whose_response_has_begun_is_awaited() -> None:
    slow: list[Step] = [*CHAT.good_stream[:3], Pause(0.4), *CHAT.good_stream[3:]]
    async with facing(*[DOWN] * 3, slow, models=models()) as (stand, _):
        await fail(stand)
        reply = await CHAT.ask(stand.url, stream=True)
        assert reply.body == CHAT.stream_bytes


def without_instants(view: dict[str, Any]) -> list[dict[str, Any]]:
    """Drops instants: each view converts them from the monotonic clock, and may differ by a millisecond."""
    return [
        {key: value for key, value in each.items() if key != "since"} for each in (view["gateway"], *view["models"])
    ]


async def test_mode_is_seen_everywhere() -> None:
    async with facing(DOWN, models=models()) as (stand, _):
        await fail(stand)
        await fail(stand, MESSAGES)
        assert turns(stand) == [("gpt", True), (None, True), ("claude", True)]
        view = await get(stand.url, "degraded")
        assert (view["gateway"]["is_degraded"], view["gateway"]["by"]) == (True, "rule")
        assert [(each["model"], each["by"]) for each in view["models"]] == [("gpt", "rule"), ("claude", "rule")]
        assert view["models"][0]["reason"] == "3 of 3 calls within 60 s failed"
        health = await get(stand.url, "health")
        assert health["health"] != "healthy"
        assert health["degraded_models"] == ["gpt", "claude"]
        assert "the gateway is degraded" in health["reasons"]
        ready = await ask(stand.url, "/readyz", headers=HERE, method="GET")
        assert ready.status == 200
        assert "degraded mode: gpt, claude\n" in ready.text
        assert await stand.metric("llm_guard_degraded", model="gpt") == 1
        assert await stand.metric("llm_guard_degraded_gateway") == 1
        shown = (await get(stand.url, "metrics"))["degraded"]
        assert without_instants(shown) == without_instants(view)


# operator overrides


async def test_operator_enters_and_leaves_and_all_of_it_is_written_down() -> None:
    async with facing(HANGS, models=models()) as (stand, _):
        answer = await change(stand.url, "degraded/enter", model="gpt", for_="1h")
        (gpt, claude) = answer["now"]["models"]
        assert (gpt["is_degraded"], gpt["by"], gpt["reason"], gpt["operator"]) == (
            True, "operator", "an outage", "ann from 127.0.0.1",
        )  # fmt: skip
        assert gpt["until"] > gpt["since"]
        assert not claude["is_degraded"]
        assert (await CHAT.ask(stand.url)).headers["x-llm-guard-degraded"] == "static"
        answer = await change(stand.url, "degraded/exit", model="gpt")
        assert (answer["now"]["models"][0]["is_degraded"], answer["now"]["models"][0]["by"]) == (False, "operator")
        answer = await change(stand.url, "degraded/auto", model="gpt")
        assert answer["now"]["models"][0]["by"] is None
        assert [each[1:3] for each in await audit(stand.url)] == [
            ("degraded.auto", "gpt"), ("degraded.exit", "gpt"), ("degraded.enter", "gpt"),
        ]  # fmt: skip
        assert turns(stand) == [("gpt", True), ("gpt", False)]


async def test_operator_degrades_the_whole_gateway_until_the_time_is_over() -> None:
    async with facing(HANGS, models=models()) as (stand, _):
        answer = await change(stand.url, "degraded/enter", for_="1h")
        assert answer["now"]["gateway"]["by"] == "operator"
        assert [each["by"] for each in answer["now"]["models"]] == ["gateway", "gateway"]
        stand.app.ops._degraded.look(stand.app._clock.now() + 3601)
        view = await get(stand.url, "degraded")
        assert (view["gateway"]["is_degraded"], view["gateway"]["by"]) == (False, None)
        assert (await audit(stand.url))[0] == ("expiry", "degraded.auto", "gateway", "the override expired")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"model": "gtp"}, 404, "unknown_model"),
        ({"model": "plain"}, 409, "no_degraded_rules"),
        ({"for_": "soon"}, 422, "invalid_body"),
        ({"reason": ...}, 422, "invalid_body"),
        ({"deployment": "one/gpt"}, 422, "invalid_body"),
    ],
)
async def test_override_for_an_unknown_route_is_refused(body: dict[str, Any], status: int, code: str) -> None:
    async with facing(CHAT.ok, models=models()) as (stand, _):
        reply = await post(stand.url, "degraded/enter", **body)
        assert (reply.status, reply.json["error"]["code"]) == (status, code)
        assert (await get(stand.url, "degraded"))["models"][0]["by"] is None


async def test_override_on_a_gateway_without_fallback_responses_warns() -> None:
    async with facing(CHAT.ok) as (stand, _):
        answer = await change(stand.url, "degraded/enter")
        assert answer["warnings"] == ["no effect: no model has `degraded` in its rules"]
        answer = await change(stand.url, "degraded/auto")
        assert answer["warnings"] == []
        answer = await change(stand.url, "degraded/auto")
        assert answer["warnings"] == ["gateway had no override"]


async def test_reload_that_removes_the_rules_ends_override_and_mode(tmp_path: Path) -> None:
    path = tmp_path / "guard.yaml"
    async with ScriptedProvider(DOWN) as provider:
        path.write_text(config_text(provider.url, models=models()))
        async with running(path) as stand:
            await fail(stand, MESSAGES)
            await change(stand.url, "degraded/enter", model="gpt")
            path.write_text(config_text(provider.url))
            await change(stand.url, "config/reload")
            assert (await get(stand.url, "degraded"))["models"] == []
            assert (await CHAT.ask(stand.url)).status == 500
            assert ("reload", "degraded.auto", "gpt") in [each[:3] for each in await audit(stand.url)]
            assert set(turns(stand)[-2:]) == {("gpt", False), ("claude", False)}
