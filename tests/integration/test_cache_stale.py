"""Stale responses: served while a refresh runs, and when no deployment can answer."""

from __future__ import annotations

import asyncio

import pytest

from tests.chaos.forms import BOTH, CHAT, MESSAGES, Form, name_of
from tests.chaos.stand import Stand
from tests.chaos.wire import Reply, ask
from tests.fakes.provider import Hold, Pause, Reset, Step, chunk, stream_head, whole
from tests.fakes.waiting import eventually
from tests.integration.caching import cached
from tests.integration.operating import audit, change, get, post

SWR = {"ttl": "10ms", "stale_while_revalidate": "1m"}
SIE = {"ttl": "10ms", "stale_if_error": "1m"}
TTL_S = 0.02
NEW = CHAT.answer.replace(b"hi", b"new")


def cache_result(reply: Reply) -> tuple[str, bytes]:
    return reply.headers["x-llm-guard-cache"], reply.body


async def refreshed(stand: Stand) -> None:
    await eventually(lambda: stand.app.gateway.cache_stage.flights == 0)


async def test_stale_response_is_sent_at_once_and_one_request_refreshes_it() -> None:
    go_on = asyncio.Event()
    async with cached(CHAT.ok, [Pause(go_on), whole(200, NEW)], cache={**SWR, "ttl": "300ms"}) as (stand, provider):
        await CHAT.ask(stand.url)
        await asyncio.sleep(0.32)
        replies = await asyncio.gather(*(CHAT.ask(stand.url) for _ in range(20)))
        assert {cache_result(reply) for reply in replies} == {("stale", CHAT.answer)}
        await eventually(lambda: len(provider.requests) == 2)
        go_on.set()
        await refreshed(stand)
        assert (await CHAT.ask(stand.url)).body == NEW
        assert len(provider.requests) == 2
        assert provider.requests[1].startswith(b"POST /v1/chat/completions ")
        assert CHAT.body() in provider.requests[1]


async def test_refresh_is_no_clients_call_but_its_attempts_count() -> None:
    async with cached(CHAT.ok, [whole(200, NEW)], cache={**SWR, "ttl": "300ms"}) as (stand, _):
        await CHAT.ask(stand.url)
        await asyncio.sleep(0.32)
        stale = await CHAT.ask(stand.url)
        await refreshed(stand)
        assert cache_result(await CHAT.ask(stand.url)) == ("hit", NEW)
        assert await stand.metric("llm_guard_calls_total") == 3
        assert await stand.metric("llm_guard_attempts_total", outcome="ok") == 2
        assert await stand.metric("llm_guard_tokens_total", direction="input") == 6
        assert await stand.metric("llm_guard_in_flight_calls") == 0
        (background_call,) = [line for line in await stand.calls() if "background_purpose" in line]
        assert (
            background_call["background_purpose"],
            len(background_call["attempts"]),
            background_call["outcome"],
        ) == ("refresh", 1, "ok")
        assert background_call["request_id"] == stale.headers["x-llm-guard-request-id"] + "-refresh"
        shown = await get(stand.url, f"calls/{background_call['request_id']}")
        assert shown["background_purpose"] == "refresh"


async def test_refresh_that_fails_leaves_the_stale_answer() -> None:
    async with cached(CHAT.ok, [whole(503, b"{}")], cache=SWR) as (stand, _):
        await CHAT.ask(stand.url)
        for _ in range(3):
            await asyncio.sleep(TTL_S)
            assert cache_result(await CHAT.ask(stand.url)) == ("stale", CHAT.answer)
            await refreshed(stand)
        outcomes = [line["outcome"] for line in await stand.calls() if "background_purpose" in line]
        assert outcomes == ["overloaded"] * 3 or set(outcomes) == {"server_error"}
        assert await stand.metric("llm_guard_calls_total", outcome="ok") == 4


async def test_client_that_names_an_age_gets_no_stale_answer() -> None:
    async with cached(CHAT.ok, [whole(200, NEW)], cache=SWR) as (stand, _):
        headers = {"connection": "close", "cache-control": "max-age=60"}
        await ask(stand.url, CHAT.path, CHAT.body(), headers)
        await asyncio.sleep(TTL_S)
        assert cache_result(await ask(stand.url, CHAT.path, CHAT.body(), headers)) == ("miss", NEW)


async def test_drain_ends_a_refresh() -> None:
    async with cached(CHAT.ok, [Hold()], cache=SWR) as (stand, provider):
        await CHAT.ask(stand.url)
        await asyncio.sleep(TTL_S)
        await CHAT.ask(stand.url)
        await eventually(lambda: len(provider.requests) == 2)
        assert stand.app.gateway.running == 1
        stand.app.gateway.end_running()
        await stand.idle()
        await refreshed(stand)
        assert await provider.closed_within(1)


async def test_gateway_that_shuts_down_begins_no_refresh() -> None:
    async with cached(CHAT.ok, [whole(200, NEW)], cache=SWR) as (stand, provider):
        await CHAT.ask(stand.url)
        await asyncio.sleep(TTL_S)
        stand.app.gateway.is_leaving = True
        assert cache_result(await CHAT.ask(stand.url)) == ("stale", CHAT.answer)
        assert (stand.app.gateway.cache_stage.flights, len(provider.requests)) == (0, 1)


# when no deployment can answer


@pytest.mark.parametrize(("form", "is_stream"), BOTH, ids=name_of)
@pytest.mark.parametrize("failing", [whole(500, b"{}"), Reset()], ids=["500", "reset"])
async def test_outage_is_invisible_to_callers_of_cached_requests(form: Form, is_stream: bool, failing: Step) -> None:
    good = form.good_stream if is_stream else form.ok
    async with cached(good, [failing], cache=SIE) as (stand, _):
        await form.ask(stand.url, stream=is_stream)
        await asyncio.sleep(TTL_S)
        reply = await form.ask(stand.url, stream=is_stream)
        assert (reply.status, reply.is_whole) == (200, True)
        assert cache_result(reply) == ("stale", form.stream_bytes if is_stream else form.answer)
        assert reply.headers["age"] == "0"
        assert await stand.metric("llm_guard_cache_total", result="stale_if_error") == 1
        assert await stand.metric("llm_guard_fallback_responses_total", kind="stale") == 1


async def test_outage_is_invisible_when_every_breaker_is_open() -> None:
    breaker = {"consecutive_failures": 1, "early_probes": False}
    async with cached(CHAT.ok, [whole(500, b"{}")], cache=SIE, breaker=breaker) as (stand, provider):
        await CHAT.ask(stand.url)
        await asyncio.sleep(TTL_S)
        for _ in range(3):
            assert cache_result(await CHAT.ask(stand.url)) == ("stale", CHAT.answer)
        assert len(provider.requests) == 2


async def test_each_of_several_calls_gets_the_stale_answer() -> None:
    go_on = asyncio.Event()
    async with cached(CHAT.ok, [Pause(go_on), whole(500, b"{}")], cache=SIE) as (stand, _):
        await CHAT.ask(stand.url)
        await asyncio.sleep(TTL_S)
        calls = [asyncio.create_task(CHAT.ask(stand.url)) for _ in range(5)]
        await eventually(lambda: stand.app.gateway.running == 5)
        await asyncio.sleep(0.02)
        go_on.set()
        assert {cache_result(reply) for reply in await asyncio.gather(*calls)} == {("stale", CHAT.answer)}


async def test_client_error_is_not_hidden_by_a_stale_response() -> None:
    async with cached(CHAT.ok, [whole(401, b'{"error":{"message":"Incorrect API key"}}')], cache=SIE) as (stand, _):
        await CHAT.ask(stand.url)
        await asyncio.sleep(TTL_S)
        assert (await CHAT.ask(stand.url)).status == 401


async def test_client_that_requires_a_new_response_gets_no_stale_one() -> None:
    async with cached(CHAT.ok, [whole(500, b"{}")], cache=SIE) as (stand, _):
        headers = {"connection": "close", "cache-control": "no-cache"}
        await ask(stand.url, CHAT.path, CHAT.body(), headers)
        assert (await ask(stand.url, CHAT.path, CHAT.body(), headers)).status == 500


async def test_stream_that_breaks_after_its_first_token_is_reported_as_ever() -> None:
    broken: list[Step] = [stream_head(), chunk(CHAT.token), Pause(0.02), Reset()]
    async with cached(CHAT.good_stream, broken, cache=SIE) as (stand, _):
        await CHAT.ask(stand.url, stream=True)
        await asyncio.sleep(TTL_S)
        reply = await CHAT.ask(stand.url, stream=True)
        assert not reply.is_whole
        assert reply.headers["x-llm-guard-cache"] == "miss"


# operators


async def test_operator_sees_the_cache_contents_and_empties_it() -> None:
    models = {"other": {"deployments": [{"upstream": "one"}], "cache": {"ttl": "1m"}}}
    async with cached(CHAT.ok, MESSAGES.ok, CHAT.ok, models=models) as (stand, _):
        await CHAT.ask(stand.url)
        await CHAT.ask(stand.url)
        await MESSAGES.ask(stand.url)
        await stand.idle()
        seen = {each["route"]: each for each in (await get(stand.url, "cache"))["routes"]}
        assert seen.keys() == {"gpt", "claude", "other", "none"}
        assert {name: seen["gpt"][name] for name in ("is_enabled", "entries", "hit", "miss")} == {
            "is_enabled": True, "entries": 1, "hit": 1, "miss": 1,
        }  # fmt: skip
        assert (seen["claude"]["entries"], seen["other"]["entries"]) == (1, 0)

        assert (await change(stand.url, "cache/purge", route="gpt"))["now"] == {"purged": 1}
        assert (await CHAT.ask(stand.url)).headers["x-llm-guard-cache"] == "miss"
        await change(stand.url, "cache/purge", all=True)
        written = [(what, target) for _, what, target, _ in await audit(stand.url)]
        assert written == [("cache.purge", "all"), ("cache.purge", "gpt")]


@pytest.mark.parametrize(
    ("body", "status"),
    [({}, 422), ({"all": True, "route": "gpt"}, 422), ({"route": "gtp"}, 404), ({"all": False}, 422)],
)
async def test_purge_reports_what_was_removed(body: dict[str, object], status: int) -> None:
    async with cached(CHAT.ok) as (stand, _):
        assert (await post(stand.url, "cache/purge", **body)).status == status


async def test_request_sent_before_a_purge_is_not_stored_after_it() -> None:
    go_on = asyncio.Event()
    async with cached([Pause(go_on), *CHAT.ok]) as (stand, provider):
        under_way = asyncio.create_task(CHAT.ask(stand.url))
        await eventually(lambda: len(provider.requests) == 1)
        await change(stand.url, "cache/purge", all=True)
        go_on.set()
        assert (await under_way).status == 200
        assert (await CHAT.ask(stand.url)).headers["x-llm-guard-cache"] == "miss"
