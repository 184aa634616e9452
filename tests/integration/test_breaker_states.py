"""Breaker states set in the config, slow calls that open a breaker, and the return of calls after an outage."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.forms import BOTH, CHAT, MESSAGES, Form, name_of
from tests.chaos.manual import ManualProvider, after
from tests.chaos.process import serving, write
from tests.chaos.stand import Stand, config_of, config_text, facing, standing, total
from tests.chaos.wire import Reply, fetch
from tests.fakes.provider import whole
from tests.fakes.waiting import eventually

OPENS_FAST = {"consecutive_failures": 1, "open_for": "30s", "open_jitter": 0, "early_probes": False}
BROKEN = [whole(500)]


def refusal(reply: Reply) -> tuple[int, str | None]:
    return reply.status, reply.headers.get("x-llm-guard-refused-by")


async def states(url: str, deployment: str = "one/gpt") -> set[str]:
    """Returns the breaker states that /metrics shows as set."""
    text = (await fetch(f"{url}/metrics")).text
    names = ("closed", "open", "half_open", "forced_open", "forced_closed", "metrics_only", "disabled")
    return {name for name in names if total(text, "llm_guard_breaker_state", deployment=deployment, state=name)}


# states set in the config


@pytest.mark.parametrize(("form", "is_stream"), BOTH, ids=name_of)
async def test_forced_open_refuses_every_call_by_the_breaker(form: Form, is_stream: bool) -> None:
    async with facing(form.ok, breaker={"state": "forced_open", "open_for": "7s"}) as (stand, provider):
        reply = await form.ask(stand.url, stream=is_stream)
        assert refusal(reply) == (503, "breaker")
        assert (reply.headers["retry-after"], reply.headers["x-should-retry"]) == ("7", "false")
        assert form.error_of(reply)
        assert not provider.connections
        assert await states(stand.url, form.deployment) == {"forced_open"}
        assert await stand.metric("llm_guard_refusals_total", reason="breaker") == 1


async def test_forced_open_is_passed_over_where_there_is_another() -> None:
    models = {
        "gpt": {
            "deployments": [{"upstream": "one", "model": "a"}],
            "fallbacks": ["b"],
            "breaker": {"state": "forced_open"},
        },
        "b": {"deployments": [{"upstream": "one"}]},
    }
    async with facing(CHAT.ok, models=models) as (stand, provider):
        reply = await CHAT.ask(stand.url)
        assert (reply.status, reply.headers["x-llm-guard-deployment"]) == (200, "one/b")
        assert len(provider.requests) == 1


@pytest.mark.parametrize(("state", "counted"), [("forced_closed", 5), ("metrics_only", 5), ("disabled", 0)])
async def test_breaker_forced_closed_admits_all_calls(state: str, counted: int) -> None:
    async with facing(BROKEN, breaker={**OPENS_FAST, "state": state}) as (stand, provider):
        for _ in range(5):
            assert refusal(await CHAT.ask(stand.url)) == (500, None)
        assert len(provider.requests) == 5
        assert await states(stand.url) == {state}
        assert stand.breaker("one/gpt").failures == counted


async def test_state_set_by_a_reload_holds_from_the_next_call_on(tmp_path: Path) -> None:
    path = tmp_path / "guard.yaml"
    async with ManualProvider(after(0, *CHAT.ok)) as provider:

        def text(state: str) -> str:
            return config_text(provider.url, breaker={**OPENS_FAST, "state": state})

        async with serving(path, text("auto")) as served:
            reloads = 0

            async def set_to(state: str) -> None:
                nonlocal reloads
                reloads += 1
                write(path, text(state))
                served.signal(signal.SIGHUP)
                await served.logged("reloaded", reloads)
                assert await states(served.url) == {state if state != "auto" else "closed"}

            assert (await CHAT.ask(served.url)).status == 200
            await set_to("forced_open")
            assert refusal(await CHAT.ask(served.url)) == (503, "breaker")
            await set_to("forced_closed")
            assert (await CHAT.ask(served.url)).status == 200
            await set_to("auto")
            provider.on_request = after(0, *BROKEN)
            assert refusal(await CHAT.ask(served.url)) == (500, None)
            assert refusal(await CHAT.ask(served.url)) == (503, "breaker")
            await set_to("disabled")
            assert refusal(await CHAT.ask(served.url)) == (500, None)
            assert refusal(await CHAT.ask(served.url)) == (500, None)
        assert served.complaints == []


async def test_reload_that_forces_open_does_not_end_a_running_call(tmp_path: Path) -> None:
    path = tmp_path / "guard.yaml"
    async with ManualProvider() as provider, serving(path, config_text(provider.url)) as served:
        call = asyncio.create_task(CHAT.ask(served.url))
        await eventually(lambda: provider.open)
        write(path, config_text(provider.url, breaker={"state": "forced_open"}))
        served.signal(signal.SIGHUP)
        await served.logged("reloaded")
        assert refusal(await CHAT.ask(served.url)) == (503, "breaker")
        provider.open[0].answer(*CHAT.ok)
        assert (await call).status == 200
        assert await states(served.url) == {"forced_open"}


# slow calls


@pytest.mark.parametrize(("form", "is_stream"), [(CHAT, False), (CHAT, True), (MESSAGES, True)], ids=name_of)
async def test_slow_answers_open_the_breaker_though_all_are_good(form: Form, is_stream: bool) -> None:
    breaker = {**OPENS_FAST, "slow_call": "10ms", "slow_call_rate": 0.5, "window_calls": 4, "min_calls": 4}
    answer = form.good_stream if is_stream else form.ok
    async with (
        ManualProvider(after(0.02, *answer)) as provider,
        standing(config_of(provider.url, breaker=breaker)) as stand,
    ):
        for _ in range(4):
            assert (await form.ask(stand.url, stream=is_stream)).status == 200
        assert refusal(await form.ask(stand.url, stream=is_stream)) == (503, "breaker")
        assert len(provider.exchanges) == 4
        (line,) = (each for each in stand.log if each["event"] == "breaker")
        assert "4 of 4 calls took longer" in line["reason"]


async def test_quick_responses_of_a_slow_breaker_leave_it_closed() -> None:
    breaker = {**OPENS_FAST, "slow_call": "2s", "slow_call_rate": 0.5, "window_calls": 4, "min_calls": 4}
    async with facing(CHAT.ok, breaker=breaker) as (stand, _):
        for _ in range(8):
            assert (await CHAT.ask(stand.url)).status == 200
        assert stand.breaker("one/gpt").slow_calls == 0


async def test_long_stream_is_not_a_slow_call() -> None:
    """Only the time to the first token counts: a response of ten minutes may just be long."""
    breaker = {**OPENS_FAST, "slow_call": "100ms", "slow_call_rate": 0.5, "window_calls": 1, "min_calls": 1}
    async with ManualProvider() as provider, standing(config_of(provider.url, breaker=breaker)) as stand:
        call = asyncio.create_task(CHAT.ask(stand.url, stream=True))
        await eventually(lambda: provider.open)
        *begin, last, end = CHAT.good_stream
        provider.open[0].say(*begin)
        await asyncio.sleep(0.2)
        provider.open[0].answer(last, end)
        assert (await call).is_whole
        await stand.idle()
        assert (stand.breaker("one/gpt").state, stand.breaker("one/gpt").slow_calls) == ("closed", 0)


# after an outage


OPEN_S = 0.1


async def recovered(stand: Stand, provider: ManualProvider) -> None:
    """Opens the breaker and closes it again with a successful probe."""
    provider.on_request = after(0, *BROKEN)
    await CHAT.ask(stand.url)
    assert stand.breaker("one/gpt").state == "open"
    provider.on_request = after(0, *CHAT.ok)
    await asyncio.sleep(OPEN_S)
    assert (await CHAT.ask(stand.url)).status == 200
    assert stand.breaker("one/gpt").state == "closed"
    provider.most_open = 0


def opening(**more: Any) -> dict[str, Any]:
    return {
        "consecutive_failures": 1,
        "open_for": f"{OPEN_S * 1000:g}ms",
        "open_jitter": 0,
        "early_probes": False,
        **more,
    }


async def test_calls_return_gradually_after_an_outage_and_none_is_refused() -> None:
    """Four at a time and a second each would take 10 s, longer than calls wait, but the slow start is over in 3 s."""
    async with (
        ManualProvider() as provider,
        standing(config_of(provider.url, breaker=opening(slow_start="3s"))) as stand,
    ):
        await recovered(stand, provider)
        provider.on_request = None
        calls = [asyncio.create_task(CHAT.ask(stand.url)) for _ in range(40)]
        met: list[int] = []
        while len(provider.exchanges) < 42:
            most = 4 + sum(met)
            await eventually(lambda most=most: len(provider.open) >= min(most, 40 - sum(met)))  # type: ignore[misc]
            wave = list(provider.open)
            met.append(len(wave))
            for exchange in wave:
                exchange.answer(*CHAT.ok)
        await answer_rest(provider, calls)
        assert {reply.status for reply in await asyncio.gather(*calls)} == {200}
        # Four, and one more for every success: the number doubles with each round trip.
        assert met == [4, 8, 16, 12]


async def answer_rest(provider: ManualProvider, calls: list[asyncio.Task[Reply]]) -> None:
    while not all(call.done() for call in calls):
        for exchange in list(provider.open):
            exchange.answer(*CHAT.ok)
        await asyncio.sleep(0.001)


async def test_slow_start_ends_after_its_time_with_calls_that_hang() -> None:
    breaker = opening(slow_start="300ms")
    async with ManualProvider() as provider, standing(config_of(provider.url, breaker=breaker)) as stand:
        await recovered(stand, provider)
        provider.on_request = None
        began_at = time.monotonic()
        calls = [asyncio.create_task(CHAT.ask(stand.url)) for _ in range(10)]
        # On a machine that stalls the count may never be seen at exactly 2.
        await eventually(lambda: len(provider.open) >= 2)
        await eventually(lambda: len(provider.open) == 10)
        assert time.monotonic() - began_at >= 0.2
        await answer_rest(provider, calls)
        assert {reply.status for reply in await asyncio.gather(*calls)} == {200}


async def test_without_a_slow_start_all_return_at_once() -> None:
    async with (
        ManualProvider() as provider,
        standing(config_of(provider.url, breaker=opening(slow_start="0s"))) as stand,
    ):
        await recovered(stand, provider)
        provider.on_request = None
        calls = [asyncio.create_task(CHAT.ask(stand.url)) for _ in range(20)]
        await eventually(lambda: len(provider.open) == 20)
        await answer_rest(provider, calls)
        assert {reply.status for reply in await asyncio.gather(*calls)} == {200}


async def test_openings_end_apart_by_their_jitter() -> None:
    models = {name: {"deployments": [{"upstream": "one", "model": name}]} for name in "abcdefgh"}
    breaker = {**OPENS_FAST, "open_jitter": 0.5}
    async with facing(BROKEN, models=models, breaker=breaker) as (stand, _):
        ends = []
        for name in models:
            form = Form(CHAT.path, name, CHAT.answer)
            assert (await form.ask(stand.url)).status == 500
            snapshot = stand.breaker(f"one/{name}")
            assert snapshot.probe_at is not None
            assert snapshot.opened_at is not None
            ends.append(snapshot.probe_at - snapshot.opened_at)
        assert 15 <= min(ends) <= max(ends) <= 30
        assert max(ends) - min(ends) > 1
