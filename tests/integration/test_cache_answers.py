"""Cached responses over real sockets: which callers get one, what it looks like, and what is never stored."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.forms import BOTH, CHAT, EMBEDDINGS, MESSAGES, RESPONSES, STREAMS, Form, name_of
from tests.chaos.stand import Stand, facing, standing
from tests.chaos.wire import Reply, ask
from tests.fakes.provider import END, Pause, Reset, ScriptedProvider, Step, chunk, stream_head, whole
from tests.fakes.waiting import eventually
from tests.integration.caching import CACHE, cached, cached_config


def script_of(form: Form, *, is_stream: bool) -> Sequence[Step]:
    return form.good_stream if is_stream else form.ok


@pytest.mark.parametrize(("form", "is_stream"), BOTH, ids=name_of)
async def test_second_call_gets_the_answer_of_the_first(form: Form, is_stream: bool) -> None:
    async with cached(script_of(form, is_stream=is_stream)) as (stand, provider):
        first = await form.ask(stand.url, stream=is_stream)
        second = await form.ask(stand.url, stream=is_stream)
        assert second.body == first.body
        assert first.is_whole
        assert second.is_whole
        assert (first.headers["x-llm-guard-cache"], second.headers["x-llm-guard-cache"]) == ("miss", "hit")
        assert "age" not in first.headers
        assert second.headers["age"] == "0"
        assert second.headers["x-llm-guard-attempts"] == "0"
        assert second.headers["x-llm-guard-deployment"] == form.deployment
        assert second.headers["content-type"] == first.headers["content-type"]
        assert second.headers["x-llm-guard-request-id"] != first.headers["x-llm-guard-request-id"]
        assert len(provider.requests) == 1


async def test_route_without_a_cache_has_no_cache_headers() -> None:
    async with facing(CHAT.ok) as (stand, provider):
        replies = [await CHAT.ask(stand.url) for _ in range(2)]
        assert not any("x-llm-guard-cache" in reply.headers for reply in replies)
        assert len(provider.requests) == 2


async def test_cached_response_has_no_headers_of_the_original_exchange() -> None:
    of_the_exchange = {
        "x-request-id": "req_1", "date": "Sat, 01 Jan 2028 00:00:00 GMT", "set-cookie": "a=b",
        "x-ratelimit-remaining-requests": "9", "openai-processing-ms": "12", "openai-organization": "org-1",
        "cf-ray": "1", "server": "nginx", "request-id": "req_1", "retry-after": "1",
    }  # fmt: skip
    kept = {"openai-model": "gpt-1", "openai-version": "2020-10-01", "content-language": "en"}
    async with cached((whole(200, CHAT.answer, {**of_the_exchange, **kept}),)) as (stand, _):
        first, second = [await CHAT.ask(stand.url) for _ in range(2)]
        assert of_the_exchange.items() <= first.headers.items()
        assert not of_the_exchange.keys() & second.headers.keys()
        assert kept.items() <= second.headers.items()


async def test_log_line_and_metrics_have_the_cache_result_of_a_call() -> None:
    async with cached(CHAT.ok) as (stand, _):
        await CHAT.ask(stand.url)
        await CHAT.ask(stand.url)
        miss, hit = await stand.calls()
        assert (miss["cache"], len(miss["attempts"])) == ("miss", 1)
        assert (hit["cache"], hit["attempts"], hit["outcome"], hit["age_s"] >= 0) == ("hit", [], "ok", True)
        for result in ("miss", "hit"):
            assert await stand.metric("llm_guard_cache_total", model="gpt", result=result) == 1
        assert await stand.metric("llm_guard_cache_entries", model="gpt") == 1
        assert await stand.metric("llm_guard_cache_bytes", model="gpt") > len(CHAT.answer)
        assert await stand.metric("llm_guard_attempts_total") == 1
        assert await stand.metric("llm_guard_tokens_total", direction="input") == 3
        assert await stand.metric("llm_guard_calls_total", outcome="ok") == 2


# identity of callers

CALLERS: dict[str, dict[str, str]] = {
    "one key": {"authorization": "Bearer sk-caller-one-0001"},
    "another key": {"authorization": "Bearer sk-caller-two-0002"},
    "its organisation": {"authorization": "Bearer sk-caller-one-0001", "openai-organization": "org-a"},
    "another organisation": {"authorization": "Bearer sk-caller-one-0001", "openai-organization": "org-b"},
    "its project": {"authorization": "Bearer sk-caller-one-0001", "openai-project": "p"},
    "a cookie": {"authorization": "Bearer sk-caller-one-0001", "cookie": "user=1"},
    "another cookie": {"authorization": "Bearer sk-caller-one-0001", "cookie": "user=2"},
    "another header of its own": {"authorization": "Bearer sk-caller-one-0001", "x-user": "2"},
    "nobody": {"connection": "close"},
}


async def call(stand: Stand, headers: Mapping[str, str], **more: object) -> Reply:
    return await ask(stand.url, CHAT.path, CHAT.body(**more), headers)  # type: ignore[arg-type]


async def test_callers_never_get_each_others_answers() -> None:
    async with cached(CHAT.ok) as (stand, provider):
        for headers in CALLERS.values():
            assert (await call(stand, headers)).headers["x-llm-guard-cache"] == "miss"
        assert len(provider.requests) == len(CALLERS)
        for headers in CALLERS.values():
            assert (await call(stand, headers)).headers["x-llm-guard-cache"] == "hit"


async def test_callers_do_not_share_requests_in_flight_either() -> None:
    go_on = asyncio.Event()
    async with cached([Pause(go_on), *CHAT.ok]) as (stand, provider):
        calls = [asyncio.create_task(call(stand, headers)) for headers in CALLERS.values()]
        await eventually(lambda: len(provider.requests) == len(CALLERS))
        go_on.set()
        assert {(await each).headers["x-llm-guard-cache"] for each in calls} == {"miss"}


async def test_shared_route_gives_all_callers_the_same_response() -> None:
    shared = {"ttl": "1m", "shared": True}
    async with cached(CHAT.ok, cache=shared) as (stand, provider):
        told = [(await call(stand, headers)).headers["x-llm-guard-cache"] for headers in CALLERS.values()]
        # An unknown header may affect the response, even on a shared route.
        assert told.count("miss") == 2
        assert len(provider.requests) == 2


async def test_callers_are_distinguished_by_their_client_keys() -> None:
    keys = [{"name": name, "key": f"sk-opens-{name}-000001"} for name in ("app-1", "app-2")]
    async with cached(CHAT.ok, server={"client_keys": keys}) as (stand, provider):
        for key, expected in (("app-1", "miss"), ("app-2", "miss"), ("app-1", "hit"), ("app-2", "hit")):
            reply = await call(stand, {"authorization": f"Bearer sk-opens-{key}-000001"})
            assert reply.headers["x-llm-guard-cache"] == expected
        assert (await call(stand, {"authorization": "Bearer sk-opens-nothing-0001"})).status == 401
        assert len(provider.requests) == 2


async def test_same_request_on_another_path_or_route_is_another() -> None:
    async with ScriptedProvider(CHAT.ok) as other:
        upstreams = {"three": {"dialect": "openai", "base_url": f"{other.url}/v1"}}
        async with cached(CHAT.ok, upstreams=upstreams) as (stand, provider):
            await CHAT.ask(stand.url)
            await CHAT.ask(stand.url, temperature=0)
            for target in (f"{CHAT.path}?beta=true", f"/upstreams/one{CHAT.path}", f"/upstreams/three{CHAT.path}"):
                await ask(stand.url, target, CHAT.body())
            assert (len(provider.requests), len(other.requests)) == (4, 1)
            assert await stand.metric("llm_guard_cache_total", result="miss") == 5


async def test_headers_without_effect_on_the_response_do_not_count() -> None:
    async with cached(CHAT.ok) as (stand, provider):
        for number in range(3):
            headers = {
                "connection": "close", "user-agent": f"sdk/{number}", "x-stainless-retry-count": str(number),
                "idempotency-key": str(number), "traceparent": f"00-{number:032x}-0000000000000001-01",
                "x-forwarded-for": f"10.0.0.{number}", "x-request-id": str(number), "accept-encoding": "gzip" * number,
                "cf-ray": str(number), "newrelic": str(number), "elastic-apm-traceparent": str(number),
                "x-amz-cf-id": str(number),
            }  # fmt: skip
            await call(stand, headers)
        assert len(provider.requests) == 1


# cache control by the client


@pytest.mark.parametrize(
    ("says", "asked", "told"),
    [
        ("no-store", 3, [None, None, "miss"]),
        ("no-cache", 2, ["miss", "miss", "hit"]),
        ("max-age=0", 2, ["miss", "miss", "hit"]),
        ("max-age=60", 1, ["miss", "hit", "hit"]),
        ("min-fresh=61", 2, ["miss", "miss", "hit"]),
        ("only-if-cached", 1, [None, None, "miss"]),
    ],
)
async def test_client_controls_the_cache_with_its_headers(says: str, asked: int, told: list[str | None]) -> None:
    async with cached(CHAT.ok) as (stand, provider):
        headers = {"connection": "close", "cache-control": says}
        replies = [await call(stand, headers), await call(stand, headers), await call(stand, {"connection": "close"})]
        assert [reply.headers.get("x-llm-guard-cache") for reply in replies] == told
        assert len(provider.requests) == asked


async def test_only_if_cached_is_refused_when_nothing_is_stored() -> None:
    async with cached(CHAT.ok) as (stand, provider):
        headers = {"connection": "close", "cache-control": "only-if-cached"}
        reply = await call(stand, headers)
        assert (reply.status, CHAT.error_of(reply)["code"]) == (504, "not_cached")
        assert not provider.requests
        await call(stand, {"connection": "close"})
        assert (await call(stand, headers)).headers["x-llm-guard-cache"] == "hit"


# responses that are not stored


def chat(finish: str) -> bytes:
    return json.dumps({"choices": [{"message": {"content": "hi"}, "finish_reason": finish}]}).encode()


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(whole(201, CHAT.answer), id="another status"),
        pytest.param(whole(200, b"{}"), id="no choices"),
        pytest.param(whole(200, b'{"choices":null}'), id="choices that are null"),
        pytest.param(whole(200, b'{"choices": []}'), id="choices of which there is none"),
        pytest.param(whole(200, b"[1]"), id="no object"),
        pytest.param(whole(200, b"it works", {"content-type": "text/html"}), id="no JSON"),
        pytest.param(whole(200, chat("content_filter")), id="filtered"),
        pytest.param(whole(200, CHAT.answer, {"cache-control": "private, no-store"}), id="no-store"),
        pytest.param(whole(200, CHAT.answer, {"content-encoding": "br"}), id="compressed"),
        pytest.param(whole(200, chat("stop" * 2000)), id="too large"),
    ],
)
async def test_incomplete_or_unsuccessful_response_is_not_stored(answer: Step) -> None:
    async with cached([answer], cache={"ttl": "1m", "max_answer": 4000}, answers="off") as (stand, provider):
        replies = [await CHAT.ask(stand.url) for _ in range(2)]
        assert [reply.headers["x-llm-guard-cache"] for reply in replies] == ["miss", "miss"]
        assert replies[0].body == replies[1].body
        assert len(provider.requests) == 2


@pytest.mark.parametrize("answer", [whole(500, b"{}"), whole(400, b'{"error":{"message":"no"}}'), Reset()])
async def test_failure_is_not_stored(answer: Step) -> None:
    async with cached([answer], CHAT.ok) as (stand, provider):
        assert (await CHAT.ask(stand.url)).status >= 400
        assert (await CHAT.ask(stand.url)).headers["x-llm-guard-cache"] == "miss"
        assert len(provider.requests) == 2


@pytest.mark.parametrize("says", ["private", "no-cache, must-revalidate", "max-age=0", "public, max-age=3"])
async def test_habitual_cache_headers_of_providers_are_ignored(says: str) -> None:
    async with cached([whole(200, CHAT.answer, {"cache-control": says})]) as (stand, _):
        assert [(await CHAT.ask(stand.url)).headers["x-llm-guard-cache"] for _ in range(2)] == ["miss", "hit"]


@pytest.mark.parametrize("finish", ["stop", "length", "tool_calls"])
async def test_response_that_ends_at_the_requested_limit_is_stored(finish: str) -> None:
    async with cached([whole(200, chat(finish))]) as (stand, _):
        assert [(await CHAT.ask(stand.url)).headers["x-llm-guard-cache"] for _ in range(2)] == ["miss", "hit"]


@pytest.mark.parametrize("form", STREAMS, ids=name_of)
@pytest.mark.parametrize("end", [(Reset(),), (END,)], ids=["reset", "no terminal event"])
async def test_stream_that_breaks_is_not_stored(form: Form, end: tuple[Step, ...]) -> None:
    broken: list[Step] = [stream_head(), chunk(form.token), Pause(0.02), *end]
    async with cached(broken, form.good_stream) as (stand, provider):
        first = await form.ask(stand.url, stream=True)
        assert not first.is_whole
        assert form.deployment in form.error_in(first.events[-1])["message"]
        assert form is not MESSAGES or first.headers["x-llm-guard-request-id"] in first.text
        second = await form.ask(stand.url, stream=True)
        assert second.headers["x-llm-guard-cache"] == "miss"
        assert second.body == form.stream_bytes
        assert len(provider.requests) == 2


async def test_stream_of_unknown_completeness_is_not_stored() -> None:
    script: list[Step] = [stream_head(), chunk(b'data: {"completion": "hi"}\n\n'), END]
    async with cached(script) as (stand, provider):
        body = json.dumps({"model": "claude", "stream": True}).encode()
        replies = [await ask(stand.url, "/v1/complete", body) for _ in range(2)]
        assert [reply.headers["x-llm-guard-cache"] for reply in replies] == ["miss", "miss"]
        assert len(provider.requests) == 2


async def test_stream_that_a_filter_has_ended_is_not_stored() -> None:
    end = CHAT.end.replace(b'"stop"', b'"content_filter"')
    script: list[Step] = [stream_head(), chunk(CHAT.token), chunk(end), END]
    async with cached(script) as (stand, provider):
        replies = [await CHAT.ask(stand.url, stream=True) for _ in range(2)]
        assert [reply.is_whole for reply in replies] == [True, True]
        assert len(provider.requests) == 2


@pytest.mark.parametrize("more", [{"store": True}, {"background": True}, {"previous_response_id": "r"}])
async def test_request_that_is_more_than_a_question_is_not_answered_from_before(more: dict[str, Any]) -> None:
    async with cached(RESPONSES.ok) as (stand, provider):
        replies = [await RESPONSES.ask(stand.url, **more) for _ in range(2)]
        assert not any("x-llm-guard-cache" in reply.headers for reply in replies)
        assert len(provider.requests) == 2


async def test_route_may_store_deterministic_responses_only() -> None:
    async with cached(CHAT.ok, cache={"ttl": "1m", "requests": "deterministic"}) as (stand, _):
        for more, is_kept in (
            ({}, False),
            ({"temperature": 0}, True),
            ({"temperature": 0.5}, False),
            ({"seed": 1}, True),
        ):
            replies = [await CHAT.ask(stand.url, **more) for _ in range(2)]
            assert ("x-llm-guard-cache" in replies[1].headers) == is_kept
    async with cached(EMBEDDINGS.ok, cache={"ttl": "1m", "requests": "deterministic"}) as (stand, _):
        assert [(await EMBEDDINGS.ask(stand.url)).headers["x-llm-guard-cache"] for _ in range(2)] == ["miss", "hit"]


async def test_large_request_is_answered_from_before_as_well() -> None:
    async with cached(CHAT.ok) as (stand, provider):
        for _ in range(2):
            await CHAT.ask(stand.url, messages=["x" * 300_000])
        assert len(provider.requests) == 1
        for _ in range(2):  # this one is spooled to a file
            reply = await CHAT.ask(stand.url, messages=["x" * 1_200_000])
            assert "x-llm-guard-cache" not in reply.headers
        assert len(provider.requests) == 3


async def test_provider_is_sent_accept_encoding_that_every_client_can_decode() -> None:
    async with cached(CHAT.ok) as (stand, provider):
        await call(stand, {"connection": "close", "accept-encoding": "br, gzip"})
        head = provider.requests[0].split(b"\r\n\r\n")[0].lower()
        assert head.count(b"accept-encoding") == 1
        assert b"accept-encoding: identity" in head


async def test_connection_is_closed_after_a_cached_response_when_the_gateway_stops() -> None:
    async with cached(CHAT.ok) as (stand, _):
        assert "connection" not in (await CHAT.ask(stand.url)).headers
        stand.app.gateway.is_leaving = True
        hit, miss = await CHAT.ask(stand.url), await CHAT.ask(stand.url, seed=1)
        assert (hit.headers["x-llm-guard-cache"], hit.headers["connection"]) == ("hit", "close")
        assert (miss.headers["x-llm-guard-cache"], miss.headers["connection"]) == ("miss", "close")


async def test_answers_outlive_the_process_in_a_file(tmp_path: Path) -> None:
    async with ScriptedProvider(CHAT.good_stream) as provider:
        config = cached_config(provider, CACHE, "sqlite", None, {"ops": {"store": str(tmp_path)}})
        told = []
        for _ in range(2):
            async with standing(config) as stand:
                reply = await CHAT.ask(stand.url, stream=True)
                told.append((reply.headers["x-llm-guard-cache"], reply.body))
        assert told == [("miss", CHAT.stream_bytes), ("hit", CHAT.stream_bytes)]
        assert len(provider.requests) == 1
