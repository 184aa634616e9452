"""Identical calls at the same time share one upstream request, and each is served as if it were its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.forms import BOTH, CHAT, MESSAGES, STREAMS, Form, name_of
from tests.chaos.stand import CLOSE_S, Stand, config_text
from tests.chaos.wire import Connection, Reply, ask
from tests.fakes.provider import END, Hold, Pause, Reset, ScriptedProvider, Step, chunk, stream_head, whole
from tests.fakes.waiting import eventually
from tests.integration.caching import cached
from tests.integration.operating import change, running

COALESCED = "llm_guard_cache_total"


def held(form: Form, go_on: asyncio.Event, *, is_stream: bool) -> Sequence[Step]:
    """A response that waits for `go_on`; a stream sends its first token at once."""
    if is_stream:
        return [stream_head(), chunk(form.token), Pause(go_on), chunk(form.end), END]
    return [Pause(go_on), *form.ok]


async def call(form: Form, stand: Stand, *, is_stream: bool) -> Reply:
    """Sends `form.request` byte for byte: a key planted by `tests.sweep` would make it a different caller."""
    async with Connection(stand.url) as connection:
        return await connection.ask(form.request(stream=is_stream))


async def begun(stand: Stand, calls: int) -> None:
    """Waits until so many calls are running."""
    await eventually(lambda: stand.app.gateway.running == calls)
    await asyncio.sleep(0.02)


async def streaming(stand: Stand, calls: int) -> None:
    """Waits until so many calls are running, and each client gets a stream."""
    await eventually(lambda: [call.sent_status for call in stand.app.gateway.calls()] == [200] * calls)


@pytest.mark.parametrize(("form", "is_stream"), BOTH, ids=name_of)
async def test_hundred_calls_make_one_request(form: Form, is_stream: bool) -> None:
    go_on = asyncio.Event()
    async with cached(held(form, go_on, is_stream=is_stream)) as (stand, provider):
        calls = [asyncio.create_task(form.ask(stand.url, stream=is_stream)) for _ in range(100)]
        await begun(stand, 100)
        go_on.set()
        replies = await asyncio.gather(*calls)
        assert all(reply.is_whole for reply in replies)
        assert {reply.body for reply in replies} == {form.token + form.end if is_stream else form.answer}
        assert len({reply.headers["x-llm-guard-request-id"] for reply in replies}) == 100
        assert {reply.headers["x-llm-guard-cache"] for reply in replies} == {"miss"}
        assert len(provider.requests) == 1
        assert await stand.metric(COALESCED, result="coalesced") == 99
        assert await stand.metric(COALESCED, result="miss") == 1
        assert await stand.metric("llm_guard_attempts_total") == 1
        assert await stand.metric("llm_guard_calls_total", outcome="ok") == 100
        assert [len(line["attempts"]) for line in await stand.calls()].count(1) == 1
        assert stand.app.gateway.cache_stage.flights == 0


async def test_wait_for_anothers_request_is_no_time_that_the_gateway_takes() -> None:
    go_on = asyncio.Event()
    async with cached(held(CHAT, go_on, is_stream=False)) as (stand, _):
        calls = [asyncio.create_task(CHAT.ask(stand.url)) for _ in range(3)]
        await begun(stand, 3)
        await asyncio.sleep(0.2)
        go_on.set()
        await asyncio.gather(*calls)
        for line in await stand.calls():
            assert line["overhead_s"] < 0.1 + stand.lag_s
            assert line["duration_s"] > 0.2


async def test_hundred_calls_make_one_request_with_a_file_too(tmp_path: Any) -> None:
    async with cached(CHAT.ok, kind="sqlite", ops={"store": str(tmp_path)}) as (stand, provider):
        replies = await asyncio.gather(*(CHAT.ask(stand.url) for _ in range(100)))
        assert {reply.body for reply in replies} == {CHAT.answer}
        assert len(provider.requests) == 1


async def test_late_call_gets_a_stream_from_its_beginning_and_live() -> None:
    go_on = asyncio.Event()
    async with cached(held(CHAT, go_on, is_stream=True)) as (stand, _), Connection(stand.url) as first:
        first.writer.write(CHAT.request(stream=True))
        await first.head()
        async with Connection(stand.url) as second:
            second.writer.write(CHAT.request(stream=True))
            assert (await second.head()).headers["x-llm-guard-cache"] == "miss"
            assert CHAT.token in await second.reader.readuntil(CHAT.token)
            go_on.set()
            assert CHAT.end in await second.reader.readuntil(b"0\r\n\r\n")
            await first.reader.readuntil(b"0\r\n\r\n")


async def test_client_that_requires_a_new_response_joins_no_other_and_others_join_it() -> None:
    first, second = asyncio.Event(), asyncio.Event()
    async with cached([Pause(first), *CHAT.ok], [Pause(second), *CHAT.ok]) as (stand, provider):
        usual, new = {"connection": "close"}, {"connection": "close", "cache-control": "no-cache"}
        older = asyncio.create_task(ask(stand.url, CHAT.path, CHAT.body(), usual))
        await eventually(lambda: len(provider.requests) == 1)
        newer = asyncio.create_task(ask(stand.url, CHAT.path, CHAT.body(), new))
        await eventually(lambda: len(provider.requests) == 2)
        first.set()
        await older
        await eventually(lambda: stand.app.gateway.cache_stage.flights == 1)
        await change(stand.url, "cache/purge", all=True)
        joining = asyncio.create_task(ask(stand.url, CHAT.path, CHAT.body(), usual))
        await begun(stand, 2)
        second.set()
        assert [(await each).status for each in (newer, joining)] == [200, 200]
        assert len(provider.requests) == 2


# disconnecting clients


@pytest.mark.parametrize(("form", "is_stream"), BOTH, ids=name_of)
async def test_call_that_is_cancelled_does_not_end_the_others(form: Form, is_stream: bool) -> None:
    go_on = asyncio.Event()
    async with cached(held(form, go_on, is_stream=is_stream)) as (stand, provider):
        async with Connection(stand.url) as leaving:
            leaving.writer.write(form.request(stream=is_stream))
            await eventually(lambda: len(provider.requests) == 1)
            staying = asyncio.create_task(call(form, stand, is_stream=is_stream))
            await begun(stand, 2)
            leaving.leave("reset")
        await begun(stand, 1)
        assert provider.live_connections == 1
        go_on.set()
        assert (await staying).body == (form.token + form.end if is_stream else form.answer)
        left, stayed = await stand.calls()
        # The remaining call takes over the request's record.
        assert (left["outcome"], left["attempts"], left["cache"]) == ("client_cancelled", [], "miss")
        assert (stayed["outcome"], len(stayed["attempts"]), stayed["cache"]) == ("ok", 1, "coalesced")
        assert await stand.metric("llm_guard_tokens_total", direction="input") in (0, 3)
        assert await stand.metric("llm_guard_attempts_total", outcome="ok") == 1


@pytest.mark.parametrize("is_stream", [False, True], ids=["unary", "stream"])
async def test_request_is_broken_off_at_once_when_all_have_left(is_stream: bool) -> None:
    async with cached([stream_head(), chunk(CHAT.token), Hold()] if is_stream else [Hold()]) as (stand, provider):
        async with Connection(stand.url) as one, Connection(stand.url) as two:
            for each in (one, two):
                each.writer.write(CHAT.request(stream=is_stream))
            await eventually(lambda: len(provider.requests) == 1)
            await begun(stand, 2)
            one.leave("reset")
            await begun(stand, 1)
            assert provider.live_connections == 1
            two.leave("reset")
        assert await provider.closed_within(CLOSE_S)
        await stand.idle()
        assert stand.app.gateway.cache_stage.flights == 0
        assert {line["outcome"] for line in await stand.calls()} == {"client_cancelled"}
        assert await stand.metric("llm_guard_attempts_total") == 1
        deployment = stand.deployment(CHAT.deployment)
        assert deployment.gates.in_flight == 0
        assert stand.breaker(CHAT.deployment).failures == 0


async def test_client_that_disconnects_at_the_terminal_event_leaves_a_cached_response() -> None:
    script: list[Step] = [*MESSAGES.good_stream[:-1], Pause(0.05), END]
    async with cached(script) as (stand, provider):
        async with Connection(stand.url) as client:
            client.writer.write(MESSAGES.request(stream=True))
            await client.reader.readuntil(b'message_stop"}\n\n')
            client.leave("close")
        await stand.idle()
        await eventually(lambda: stand.app.gateway.cache_stage.flights == 0)
        assert await stand.metric("llm_guard_tokens_total", direction="output") == 1
        assert (await call(MESSAGES, stand, is_stream=True)).headers["x-llm-guard-cache"] == "hit"
        assert [line["outcome"] for line in await stand.calls()] == ["ok", "ok"]
        assert len(provider.requests) == 1


# failures


async def test_each_waiter_gets_a_failure_as_its_own() -> None:
    go_on = asyncio.Event()
    failing: list[Step] = [Pause(go_on), whole(500, b'{"error":{"message":"broken"}}')]
    async with cached(failing) as (stand, provider):
        calls = [asyncio.create_task(CHAT.ask(stand.url)) for _ in range(5)]
        await begun(stand, 5)
        go_on.set()
        replies = await asyncio.gather(*calls)
        assert {(reply.status, reply.body) for reply in replies} == {(500, b'{"error":{"message":"broken"}}')}
        assert {reply.headers["x-llm-guard-attempts"] for reply in replies} == {"1"}
        assert {reply.headers["x-llm-guard-deployment"] for reply in replies} == {CHAT.deployment}
        assert len({reply.headers["x-llm-guard-request-id"] for reply in replies}) == 5
        assert len(provider.requests) == 1
        assert [line["outcome"] for line in await stand.calls()] == ["server_error"] * 5
        assert await stand.metric("llm_guard_attempts_total", outcome="server_error") == 1


async def test_each_waiter_gets_the_gateway_error_with_its_own_id() -> None:
    go_on = asyncio.Event()
    async with cached([Pause(go_on), Reset()]) as (stand, _):
        calls = [asyncio.create_task(MESSAGES.ask(stand.url)) for _ in range(3)]
        await begun(stand, 3)
        go_on.set()
        for reply in await asyncio.gather(*calls):
            assert reply.status == 502
            assert MESSAGES.error_of(reply)["message"].startswith("two/claude: ")
            assert reply.json["request_id"] == reply.headers["x-llm-guard-request-id"]


@pytest.mark.parametrize("form", STREAMS, ids=name_of)
async def test_each_waiter_gets_the_error_of_a_stream_that_breaks(form: Form) -> None:
    go_on = asyncio.Event()
    async with cached([stream_head(), chunk(form.token), Pause(go_on), Reset()]) as (stand, _):
        calls = [asyncio.create_task(form.ask(stand.url, stream=True)) for _ in range(3)]
        await streaming(stand, 3)
        go_on.set()
        for reply in await asyncio.gather(*calls):
            assert not reply.is_whole
            assert reply.body.startswith(form.token)
            assert form.deployment in form.error_in(reply.events[-1])["message"]
            assert form is not MESSAGES or reply.headers["x-llm-guard-request-id"] in reply.text
        assert [line["outcome"] for line in await stand.calls()] == ["truncated"] * 3
        assert stand.breaker(form.deployment).failures == 1


async def test_providers_own_error_event_is_passed_on_to_each_once() -> None:
    go_on = asyncio.Event()
    async with cached([stream_head(), chunk(CHAT.token), Pause(go_on), chunk(CHAT.error), END]) as (stand, _):
        calls = [asyncio.create_task(CHAT.ask(stand.url, stream=True)) for _ in range(3)]
        await streaming(stand, 3)
        go_on.set()
        for reply in await asyncio.gather(*calls):
            assert (reply.body, reply.is_whole) == (CHAT.token + CHAT.error, True)


async def test_next_call_after_a_failure_sends_a_new_request() -> None:
    async with cached([whole(500, b"{}")], CHAT.ok) as (stand, provider):
        assert (await CHAT.ask(stand.url)).status == 500
        assert (await CHAT.ask(stand.url)).status == 200
        assert len(provider.requests) == 2


async def test_model_that_cannot_be_renamed_is_refused_for_each() -> None:
    models = {"odd": {"deployments": [{"upstream": "one", "model": "even"}], "cache": {"ttl": "1m"}}}
    body = b'{"mod\\u0065l": "odd", "stream": false}'
    async with cached(CHAT.ok, models=models) as (stand, provider):
        replies = await asyncio.gather(*(ask(stand.url, CHAT.path, body) for _ in range(3)))
        assert {(reply.status, CHAT.error_of(reply)["code"]) for reply in replies} == {(400, "invalid_model")}
        assert not provider.requests


# client deadlines


def with_read_timeout(seconds: float) -> dict[str, str]:
    return {"connection": "close", "x-stainless-read-timeout": str(seconds)}


async def test_call_with_a_short_deadline_leaves_and_another_continues() -> None:
    go_on = asyncio.Event()
    async with cached([Pause(go_on), *CHAT.ok]) as (stand, provider):
        hurried = asyncio.create_task(ask(stand.url, CHAT.path, CHAT.body(), with_read_timeout(0.4)))
        await eventually(lambda: len(provider.requests) == 1)
        calm = asyncio.create_task(ask(stand.url, CHAT.path, CHAT.body(), with_read_timeout(60)))
        reply: Reply = await hurried
        assert (reply.status, CHAT.error_of(reply)["code"]) == (504, "upstream_timeout")
        assert reply.headers["x-llm-guard-refused-by"] == "deadline"
        assert provider.live_connections == 1
        go_on.set()
        assert (await calm).status == 200
        assert len(provider.requests) == 1


async def test_impatience_of_the_only_call_ends_its_request_as_ever() -> None:
    async with cached([Hold()]) as (stand, provider):
        reply = await ask(stand.url, CHAT.path, CHAT.body(), with_read_timeout(0.3))
        assert (reply.status, CHAT.error_of(reply)["code"]) == (504, "upstream_timeout")
        assert await provider.closed_within(CLOSE_S)
        (line,) = await stand.calls()
        assert (line["outcome"], [each["outcome"] for each in line["attempts"]]) == ("timeout", ["timeout"])
        assert stand.breaker(CHAT.deployment).failures == 0


async def test_each_waiter_gets_keep_alives() -> None:
    go_on = asyncio.Event()
    waiting = {"keepalive": {"interval": "50ms", "before_headers": True}}
    async with cached([Pause(go_on), *CHAT.good_stream], stream=waiting) as (stand, provider):
        calls = [
            asyncio.create_task(ask(stand.url, CHAT.path, CHAT.body(stream=True), with_read_timeout(0.5)))
            for _ in range(3)
        ]
        await asyncio.sleep(0.6)  # longer than any of them would wait in silence
        go_on.set()
        for reply in await asyncio.gather(*calls):
            assert reply.body.startswith(b": waiting\n\n")
            assert reply.body.endswith(CHAT.stream_bytes)
            assert reply.is_whole
        assert len(provider.requests) == 1


async def test_call_of_high_priority_waits_for_no_call_of_a_low_one() -> None:
    go_on = [asyncio.Event() for _ in range(4)]
    alone = {"gpt": {"deployments": [{"upstream": "one"}], "capacity": {"concurrency": 1}}}
    scripts: list[list[Step]] = [[Pause(each), *CHAT.ok] for each in go_on]
    door = {"client_keys": [{"name": "app", "key": "k-app", "priority": "high"}]}
    async with cached(*scripts, models=alone, server=door) as (stand, provider):

        def begin(question: str, priority: str) -> asyncio.Task[Reply]:
            headers = {"connection": "close", "x-llm-guard-priority": priority, "authorization": "Bearer k-app"}
            return asyncio.create_task(ask(stand.url, CHAT.path, CHAT.body(user=question), headers))

        calls = []
        for question, priority in (("first", "normal"), ("shared", "low"), ("other", "normal"), ("shared", "high")):
            calls.append(begin(question, priority))
            await begun(stand, len(calls))
        go_on[0].set()
        await eventually(lambda: len(provider.requests) == 2)
        # A second request would not make a running one faster, so calls of any priority join it.
        calls.append(begin("shared", "high"))
        await begun(stand, 4)
        for each in go_on:
            each.set()
        assert {(await call).status for call in calls} == {200}
        asked = [request.rpartition(b'"user": "')[2] for request in provider.requests]
        assert asked == [b'first"}', b'shared"}', b'other"}', b'shared"}']


async def test_call_after_a_reload_joins_no_call_under_the_old_rules(tmp_path: Path) -> None:
    path = tmp_path / "guard.yaml"
    models = {"gpt": {"deployments": [{"upstream": "one"}], "cache": {"ttl": "1m"}}}
    async with ScriptedProvider([Hold()]) as old, ScriptedProvider(CHAT.ok) as new:
        path.write_text(config_text(old.url, models=models))
        async with running(path) as stand:
            before = asyncio.create_task(CHAT.ask(stand.url))
            await eventually(lambda: len(old.requests) == 1)
            path.write_text(config_text(new.url, models=models))
            await change(stand.url, "config/reload")
            assert (await CHAT.ask(stand.url)).status == 200
            before.cancel()


async def test_alias_that_a_reload_points_elsewhere_has_other_answers(tmp_path: Path) -> None:
    path = tmp_path / "guard.yaml"

    def led_to(model: str) -> dict[str, Any]:
        return {"gpt": {"deployments": [{"upstream": "one", "model": model}], "cache": {"ttl": "1m"}}}

    async with ScriptedProvider(CHAT.ok) as provider:
        path.write_text(config_text(provider.url, models=led_to("small")))
        async with running(path) as stand:
            for model, requests in (("small", 1), ("small", 1), ("large", 2), ("small", 2)):
                path.write_text(config_text(provider.url, models=led_to(model)))
                await change(stand.url, "config/reload")
                assert (await CHAT.ask(stand.url)).status == 200
                assert len(provider.requests) == requests


# slow readers and the drain


async def test_client_that_does_not_read_does_not_delay_others() -> None:
    event = CHAT.token.replace(b"h\xc3\xa9", b"x" * 1000)
    script = [stream_head(), *([chunk(event * 100)] * 60), chunk(CHAT.end), END]
    async with cached(script) as (stand, _), Connection(stand.url) as idle:
        idle.writer.write(CHAT.request(stream=True))
        idle.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await begun(stand, 1)
        for _ in range(2):
            reply = await call(CHAT, stand, is_stream=True)
            assert reply.is_whole
            assert reply.body.endswith(CHAT.end)
        idle.leave("reset")
        assert stand.app.gateway.cache_stage.flights == 0


async def test_client_that_reads_slowly_gets_all_of_a_large_answer() -> None:
    event = CHAT.token.replace(b"h\xc3\xa9", b"x" * 1000)
    script = [stream_head(), *([chunk(event * 100)] * 60), chunk(CHAT.end), END]
    async with cached(script) as (stand, _), Connection(stand.url) as slow:
        slow.writer.write(CHAT.request(stream=True))
        await asyncio.sleep(0.1)
        reply = await slow.reply()
        assert reply.is_whole
        assert reply.body == event * 6000 + CHAT.end


@pytest.mark.parametrize("is_stream", [False, True], ids=["unary", "stream"])
async def test_drain_ends_all_of_them(is_stream: bool) -> None:
    async with cached([stream_head(), chunk(CHAT.token), Hold()] if is_stream else [Hold()]) as (stand, provider):
        calls = [asyncio.create_task(CHAT.ask(stand.url, stream=is_stream)) for _ in range(3)]
        await (streaming if is_stream else begun)(stand, 3)
        stand.app.gateway.end_running()
        for reply in await asyncio.gather(*calls):
            if is_stream:
                assert CHAT.error_in(reply.events[-1])["code"] == "gateway_draining"
                assert not reply.is_whole
            else:
                assert (reply.status, CHAT.error_of(reply)["code"]) == (503, "gateway_draining")
        assert await provider.closed_within(CLOSE_S)
        assert stand.app.gateway.cache_stage.flights == 0
