"""Limits of client keys over real sockets: which calls are refused, what the response says, and what is refunded."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.forms import BOTH, CHAT, MESSAGES, Form, name_of
from tests.chaos.stand import Stand, config_text, facing
from tests.chaos.wire import Connection, Reply, ask
from tests.fakes.client import raw_request
from tests.fakes.provider import Hold, Pause, Reset, Respond, ScriptedProvider, Step, chunk, stream_head, whole
from tests.fakes.waiting import eventually
from tests.integration.caching import cached
from tests.integration.calls_on_disk import ASYNC, outcome, running_with_store, shown
from tests.integration.operating import change, get, post, running


def keys(**limits: float) -> dict[str, Any]:
    return {"client_keys": [{"name": "app", "key": "k-app", "limits": limits}, {"name": "other", "key": "k-other"}]}


@asynccontextmanager
async def limited(*scripts: Sequence[Step], **limits: float) -> AsyncIterator[tuple[Stand, ScriptedProvider]]:
    async with facing(*scripts, server=keys(**limits)) as (stand, provider):
        yield stand, provider


async def send(stand: Stand, form: Form = CHAT, key: str = "k-app", *, stream: bool = False, **more: Any) -> Reply:
    headers = {"x-api-key": key} if form is MESSAGES else {"authorization": f"Bearer {key}"}
    return await ask(stand.url, form.path, form.body(stream=stream, **more), headers)


def left(stand: Stand, limit: str) -> float:
    app = stand.app
    found = app.gateway.quotas.by_name["app"].left(app._clock.now(), app._clock.wall())
    return next(limit_left.left for limit_left in found if limit_left.limit == limit)


@pytest.mark.parametrize("form", [CHAT, MESSAGES], ids=str)
async def test_refusal_states_remaining_quota_and_retry_after_in_the_dialect(form: Form) -> None:
    async with limited(form.ok, form.ok, form.ok, rate=2, tokens_per_day=1000) as (stand, provider):
        assert [(await send(stand, form)).status for _ in range(2)] == [200, 200]
        reply = await send(stand, form)
        assert (reply.status, reply.headers["x-llm-guard-refused-by"]) == (429, "client_limit")
        assert reply.headers["x-should-retry"] == "true"
        wait_ms = int(reply.headers["retry-after-ms"])
        assert 0 < wait_ms <= 500
        assert reply.headers["retry-after"] == "1"
        message = form.error_of(reply)["message"]
        assert "'app'" in message
        assert "0 of 2 calls a second left" in message
        assert "992 of 1000 tokens a day left" in message
        if form is MESSAGES:
            assert form.error_of(reply)["type"] == "rate_limit_error"
            names = [f"anthropic-ratelimit-{what}-{{}}" for what in ("requests", "tokens-day")]
            assert reply.headers["anthropic-ratelimit-requests-reset"].endswith("Z")
        else:
            assert form.error_of(reply)["code"] == "client_limit_exceeded"
            names = [f"x-ratelimit-{{}}-{what}" for what in ("requests", "tokens-day")]
            assert reply.headers["x-ratelimit-reset-requests"].endswith("s")
        values = [[reply.headers[name.format(part)] for part in ("limit", "remaining")] for name in names]
        assert values == [["2", "0"], ["1000", "992"]]
        assert len(provider.requests) == 2
        assert (await send(stand, form, "k-other")).status == 200, "a limit is one key's"
        await asyncio.sleep(wait_ms / 1000 + 0.01)
        assert (await send(stand, form)).status == 200


@pytest.mark.parametrize(("form", "is_stream"), BOTH, ids=name_of)
async def test_estimate_is_corrected_by_the_usage_of_the_answer(form: Form, is_stream: bool) -> None:
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\n'
    stream = [*form.good_stream[:-2], chunk(usage), *form.good_stream[-2:]] if form is CHAT else form.good_stream
    async with limited(stream if is_stream else form.ok, tokens_per_minute=60, tokens_per_day=100_000) as (stand, _):
        reply = await send(stand, form, stream=is_stream, max_tokens=5000)
        assert reply.status == 200
        await stand.idle()
        used = {"embeddings": 3}.get(str(form), 4)
        assert left(stand, "tokens_per_day") == 100_000 - used


async def test_call_that_fails_is_refunded_its_estimate() -> None:
    async with limited([whole(500)], tokens_per_day=10_000) as (stand, _):
        assert (await send(stand, max_tokens=5000)).status == 500
        await stand.idle()
        assert left(stand, "tokens_per_day") == 10_000


async def test_answer_without_usage_is_charged_as_estimated() -> None:
    answer = json.loads(CHAT.answer)
    del answer["usage"]
    async with limited([whole(200, json.dumps(answer).encode())], tokens_per_day=10_000) as (stand, _):
        assert (await send(stand, max_tokens=5000)).status == 200
        await stand.idle()
        assert left(stand, "tokens_per_day") == 5000 - len(CHAT.body(max_tokens=5000)) // 4


async def test_client_that_disconnects_is_charged_its_estimate_and_releases_its_slot() -> None:
    begun: list[Step] = [stream_head(), chunk(CHAT.token), Hold()]
    async with limited(begun, CHAT.ok, concurrency=1, tokens_per_day=10_000) as (stand, _):
        body = CHAT.body(stream=True, max_tokens=500)
        async with Connection(stand.url) as connection:
            connection.writer.write(raw_request(CHAT.path, body, {"authorization": "Bearer k-app"}))
            await connection.reader.readuntil(CHAT.token)
            assert left(stand, "concurrency") == 0
            refused = await send(stand)
            assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        await stand.idle()
        assert left(stand, "concurrency") == 1
        assert left(stand, "tokens_per_day") == 9500 - len(body) // 4
        assert (await send(stand)).status == 200


@pytest.mark.parametrize("size", [20_000, 3_000_000])
async def test_compressed_prompt_is_charged_by_its_plain_size(size: int) -> None:
    """Compressed it can be a thousandth of that, and a stream without usage corrects no estimate."""
    async with limited(CHAT.good_stream, tokens_per_day=1_000_000) as (stand, _):
        plain = json.dumps({"model": "gpt", "stream": True, "messages": [{"role": "user", "content": "x" * size}]})
        headers = {"authorization": "Bearer k-app", "content-encoding": "gzip"}
        assert (await ask(stand.url, CHAT.path, gzip.compress(plain.encode()), headers)).status == 200
        await stand.idle()
        assert left(stand, "tokens_per_day") <= 1_000_000 - len(plain) // 4


@pytest.mark.parametrize("coding", ["gzip", "identity"])
async def test_stream_without_usage_is_charged_by_its_events(coding: str) -> None:
    """Providers send no usage in a stream unless the client requests it: without an estimate such clients would be
    unlimited."""
    stream: list[Respond] = [stream_head(), *[chunk(CHAT.token)] * 50, *CHAT.good_stream[-2:]]
    async with limited(stream, stream, tokens_per_day=100) as (stand, provider):
        body = CHAT.body(stream=True)
        headers = {"authorization": "Bearer k-app", "accept-encoding": coding}
        assert (await ask(stand.url, CHAT.path, body, headers)).status == 200
        await stand.idle()
        used = len(body) // 4 + sum(each.data.count(b"data:") for each in stream)
        assert left(stand, "tokens_per_day") == 100 - used
        assert used > 50
        assert b"gzip" not in provider.requests[0].lower()
        assert (await send(stand, max_tokens=50)).status == 429


async def test_client_that_leaves_a_stream_is_charged_what_it_received() -> None:
    begun: list[Step] = [stream_head(), *[chunk(CHAT.token)] * 50, Hold()]
    async with limited(begun, tokens_per_day=10_000) as (stand, _):
        body = CHAT.body(stream=True)
        async with Connection(stand.url) as connection:
            connection.writer.write(raw_request(CHAT.path, body, {"authorization": "Bearer k-app"}))
            for _ in range(50):
                await connection.reader.readuntil(CHAT.token)
        await stand.idle()
        assert left(stand, "tokens_per_day") == 10_000 - len(body) // 4 - 50


async def test_stream_that_dies_is_charged_what_was_sent() -> None:
    dying: list[Step] = [stream_head(), *[chunk(CHAT.token)] * 50, Reset()]
    async with limited(dying, tokens_per_day=10_000) as (stand, _):
        reply = await send(stand, stream=True)
        assert b"error" in reply.body
        await stand.idle()
        came = reply.body.count(CHAT.token)
        assert came > 0
        assert left(stand, "tokens_per_day") == 10_000 - len(CHAT.body(stream=True)) // 4 - came


async def test_deferred_calls_use_the_quota_of_their_key_and_wait_for_it(tmp_path: Path) -> None:
    """Deferred calls must not bypass limits, though each is accepted at once and executed later."""
    go_on = asyncio.Event()
    body, headers = CHAT.body(max_tokens=50), {**ASYNC, "authorization": "Bearer k-app"}
    server = keys(concurrency=1, tokens_per_day=1000, rate=2)
    async with running_with_store(tmp_path, [Pause(go_on), *CHAT.ok], CHAT.ok, server=server) as (stand, provider):
        deferred = [(await ask(stand.url, CHAT.path, body, headers)).json["id"] for _ in range(2)]
        await eventually(lambda: left(stand, "concurrency") == 0)
        refused = await send(stand)
        assert (refused.status, refused.headers["x-llm-guard-refused-by"]) == (429, "client_limit")
        assert await eventually_failed(stand, deferred) == "client_limit_exceeded"
        await eventually(lambda: len(provider.requests) > 0)  # the slot is held from before the connection
        assert len(provider.requests) == 1
        go_on.set()
        key = {"authorization": "Bearer k-app"}
        assert [(await outcome(stand, each, key)).status for each in deferred] == [200, 200]
        await stand.idle()
        assert left(stand, "tokens_per_day") == 1000 - 2 * 4


async def test_call_is_deferred_though_its_key_has_no_slot_left(tmp_path: Path) -> None:
    """A call that is only stored does not run: it needs its slot later."""
    go_on = asyncio.Event()
    headers = {**ASYNC, "authorization": "Bearer k-app"}
    async with running_with_store(tmp_path, [Pause(go_on), *CHAT.ok], server=keys(concurrency=1)) as (stand, provider):
        running = asyncio.create_task(send(stand))
        await eventually(lambda: len(provider.requests) == 1)
        replies = [await ask(stand.url, CHAT.path, CHAT.body(), headers) for _ in range(2)]
        assert [reply.status for reply in replies] == [202, 202]
        assert left(stand, "concurrency") == 0
        plain = await ask(stand.url, CHAT.path, CHAT.body(), headers | {"x-llm-guard-async": "false"})
        assert plain.status == 429
        go_on.set()
        assert (await running).status == 200


async def eventually_failed(stand: Stand, deferred: list[str]) -> str:
    """Waits until one of these deferred calls has failed, and returns the kind of failure."""
    async with asyncio.timeout(5):
        while True:
            for kept_id in deferred:
                state = (await shown(stand, kept_id, {"authorization": "Bearer k-app"})).json
                if state["last_failure"] is not None:
                    return str(state["last_failure"]["kind"])
            await asyncio.sleep(0.01)


async def test_answer_that_is_refreshed_for_a_client_is_charged_to_its_key() -> None:
    cache = {"ttl": "10ms", "stale_while_revalidate": "1m"}
    async with cached(CHAT.ok, CHAT.ok, cache=cache, server=keys(tokens_per_day=1000)) as (stand, provider):
        await send(stand)
        await asyncio.sleep(0.02)
        assert (await send(stand)).headers["x-llm-guard-cache"] == "stale"
        await eventually(lambda: stand.app.gateway.cache_stage.flights == 0)
        assert len(provider.requests) == 2
        assert left(stand, "tokens_per_day") == 1000 - 2 * 4


async def test_refused_calls_are_counted_by_key_and_limit() -> None:
    async with limited(CHAT.ok, rate=0.1) as (stand, _):
        for _ in range(3):
            await send(stand)
        assert await stand.metric("llm_guard_client_refusals_total", client="app", limit="rate") == 2
        assert await stand.metric("llm_guard_refusals_total", reason="client_limit") == 2
        (line,) = [line for line in await stand.calls() if line["outcome"] == "ok"]
        assert line["client"] == "app"


@pytest.mark.parametrize(("limit", "most"), [("rate", 20), ("tokens_per_day", 700)])
async def test_calls_that_come_at_once_are_let_in_up_to_the_limit(limit: str, most: int) -> None:
    """Most of them enter without a check of their own."""
    async with limited(*[CHAT.ok] * 80, **{limit: most}) as (stand, _):
        began_at = time.monotonic()
        replies = await asyncio.gather(*(send(stand, max_tokens=10) for _ in range(80)))
        took_s = time.monotonic() - began_at
        served = sum(reply.status == 200 for reply in replies)
        assert {reply.status for reply in replies} == {200, 429}
        await stand.idle()
        if limit == "rate":
            assert most <= served <= most + took_s * most + 1
        else:
            assert left(stand, limit) == most - 4 * served >= 0


async def test_call_larger_than_a_day_has_no_retry_after() -> None:
    async with limited(CHAT.ok, tokens_per_day=100) as (stand, _):
        reply = await send(stand, max_tokens=101)
        assert (reply.status, reply.headers["x-should-retry"]) == (429, "false")
        assert "retry-after" not in reply.headers


async def test_sdk_does_not_retry_until_the_next_day() -> None:
    async with limited(CHAT.ok, CHAT.ok, rate=1 / 61) as (stand, _):
        await send(stand)
        reply = await send(stand)
        assert (reply.status, reply.headers["x-should-retry"]) == (429, "false")
        assert int(reply.headers["retry-after"]) > 60


async def test_reload_preserves_the_usage_of_a_key(tmp_path: Path) -> None:
    path = tmp_path / "guard.yaml"
    async with ScriptedProvider(CHAT.ok) as provider:
        path.write_text(config_text(provider.url, server=keys(tokens_per_day=100)))
        async with running(path) as stand:
            assert (await send(stand)).status == 200
            path.write_text(config_text(provider.url, server=keys(tokens_per_day=1000)))
            await change(stand.url, "config/reload")
            await stand.idle()
            assert left(stand, "tokens_per_day") == 996


async def test_sum_of_the_day_survives_a_restart(tmp_path: Path, unused_tcp_port: int) -> None:
    path, ops = tmp_path / "guard.yaml", {"store": str(tmp_path / "store")}
    async with ScriptedProvider(CHAT.ok) as provider:
        server = {**keys(tokens_per_day=100), "port": unused_tcp_port}
        path.write_text(config_text(provider.url, server=server, ops=ops))
        async with running(path) as stand:
            assert (await send(stand)).status == 200
            await stand.idle()
            assert left(stand, "tokens_per_day") == 96
        async with running(path) as stand:
            assert left(stand, "tokens_per_day") == 96


async def test_operator_sees_the_remaining_quota_and_resets_it() -> None:
    async with limited(CHAT.ok, tokens_per_day=40) as (stand, _):
        await send(stand)
        refused = await send(stand, max_tokens=35)
        assert refused.status == 429
        app, other = await get(stand.url, "clients")
        assert app["calls"] == {"ok": 1, "refused": 1}
        assert app["tokens"] == {"input": 3, "output": 1}
        (limit,) = app["limits"]
        assert (limit["limit"], limit["allowed"], limit["left"], limit["refused"]) == ("tokens_per_day", 40, 36, 1)
        assert limit["is_refusing"]
        assert (other["client"], other["limits"]) == ("other", [])
        assert (await get(stand.url, "metrics"))["clients"][0]["client"] == "app"
        now = (await change(stand.url, "clients/reset", client="app"))["now"]
        assert now["limits"][0]["left"] == 40
        assert (await post(stand.url, "clients/reset", client="nobody")).status == 404


async def test_usage_is_counted_by_key_and_names_no_caller() -> None:
    answer = {**json.loads(CHAT.answer), "usage": {
        "prompt_tokens": 30, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 20},
    }}  # fmt: skip
    async with limited([whole(200, json.dumps(answer).encode())], [whole(500)]) as (stand, _):
        assert [(await send(stand, key=key)).status for key in ("k-app", "k-other", "k-unknown")] == [200, 500, 401]
        for direction, count in {"input": 30, "output": 7, "cached": 20}.items():
            assert await stand.metric("llm_guard_client_tokens_total", client="app", direction=direction) == count
        assert await stand.metric("llm_guard_client_calls_total", client="app", outcome="ok") == 1
        assert await stand.metric("llm_guard_client_calls_total", client="other", outcome="server_error") == 1
        assert await stand.metric("llm_guard_client_calls_total") == 2
        assert [line.get("tokens") for line in await stand.calls()] == [
            {"input": 30, "output": 7, "cached": 20}, None, None,
        ]  # fmt: skip


async def test_input_includes_cache_reads_and_writes_of_anthropic() -> None:
    answer = {**json.loads(MESSAGES.answer), "usage": {
        "input_tokens": 5, "output_tokens": 7, "cache_read_input_tokens": 20, "cache_creation_input_tokens": 4,
    }}  # fmt: skip
    async with limited([whole(200, json.dumps(answer).encode())], tokens_per_day=1000) as (stand, _):
        assert (await send(stand, MESSAGES)).status == 200
        (line,) = await stand.calls()
        assert line["tokens"] == {"input": 29, "output": 7, "cached": 20}
        assert await stand.metric("llm_guard_client_tokens_total", client="app", direction="input") == 29
        assert await stand.metric("llm_guard_tokens_total", direction="input") == 29
        assert left(stand, "tokens_per_day") == 1000 - 29 - 7
