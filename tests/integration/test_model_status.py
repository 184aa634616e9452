"""`GET /v1/llm-guard/status` over real sockets: once and as an event stream."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from llm_guard.proxy.status_endpoint import MAX_PER_KEY, STATUS_PATH
from tests.chaos.forms import CHAT
from tests.chaos.stand import Stand, facing
from tests.chaos.wire import Connection, Reply, ask
from tests.fakes.client import raw_request
from tests.fakes.provider import Hold, whole
from tests.fakes.waiting import eventually

EVENTS = {"accept": "text/event-stream"}
FAILS = [whole(500, b'{"error": {"message": "sk-secret at one exploded"}}')]
KEYS = {
    "client_keys": [
        {"name": "app", "key": "k-app", "allow": {"models": ["gpt"]}},
        {"name": "other", "key": "k-other"},
        {"name": "slow", "key": "k-slow", "limits": {"rate": 1, "concurrency": 1}},
    ]
}


def of(key: str, headers: dict[str, str] | None = None) -> dict[str, str]:
    return {"authorization": f"Bearer {key}", **(headers or {})}


async def status(stand: Stand, headers: dict[str, str] | None = None, method: str = "GET") -> Reply:
    return await ask(stand.url, STATUS_PATH, headers=headers or {}, method=method)


class Stream:
    """An open event stream."""

    def __init__(self, connection: Connection, reply: Reply) -> None:
        self._connection = connection
        self.reply = reply

    async def next(self) -> tuple[str, Any]:
        """Returns kind and data of the next event."""
        async with asyncio.timeout(15):
            while True:
                size = int(await self._connection.reader.readline(), 16)
                piece = await self._connection.reader.readexactly(size + 2)
                if size == 0:
                    raise EOFError
                if piece.startswith(b"event: "):
                    kind, data = piece.decode().strip().split("\n")
                    return kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))

    async def ends(self) -> bool:
        """Returns whether the stream ends as its framing requires, with no event before."""
        try:
            await self.next()
        except EOFError:
            return await self._connection.is_closed()
        return False

    def leave(self) -> None:
        self._connection.leave("reset")


@asynccontextmanager
async def subscribed(stand: Stand, headers: dict[str, str] | None = None) -> AsyncIterator[Stream]:
    async with Connection(stand.url) as connection:
        connection.writer.write(raw_request(STATUS_PATH, headers={**EVENTS, **(headers or {})}, method="GET"))
        yield Stream(connection, await connection.head())


async def test_state_changes_with_the_breaker_of_a_model_and_names_no_provider() -> None:
    breaker = {"consecutive_failures": 2, "open_for": "1s", "open_jitter": 0, "early_probes": False}
    async with facing(FAILS, FAILS, CHAT.ok, breaker=breaker) as (stand, _):
        first = (await status(stand)).json
        assert (first["object"], first["state"]) == ("llm_guard.status", "ok")
        assert [(one["model"], one["state"]) for one in first["models"]] == [("gpt", "ok"), ("claude", "ok")]
        async with subscribed(stand) as stream:
            assert stream.reply.headers["content-type"] == "text/event-stream; charset=utf-8"
            assert await stream.next() == ("status", first)
            began_at = time.time()
            for _ in range(2):
                assert (await CHAT.ask(stand.url)).status == 500
            kind, view = await stream.next()
            assert (kind, view["model"], view["state"], view["reason"]) == ("down", "gpt", "down", "calls fail")
            assert view["since"] < view["expected_end"]
            seen = json.dumps([first, view])
            assert view["since"] >= time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(began_at - 1))
            kind, view = await stream.next()
            assert (kind, view["model"]) == ("degraded", "gpt"), "the next call is a trial"
            seen += json.dumps(view)
            assert (await CHAT.ask(stand.url)).status == 200
            assert (await stream.next())[0] == "recovered"
            assert not any(word in seen for word in ("one/", '"one"', "sk-", "exploded", "127.0.0.1"))


async def test_key_is_required_and_sees_only_its_models() -> None:
    async with facing(server=KEYS) as (stand, _):
        for headers in ({}, of("wrong"), of("wrong", EVENTS)):
            assert (await status(stand, headers)).status == 401
        body = (await status(stand, of("k-app"))).json
        assert [one["model"] for one in body["models"]] == ["gpt"]
        async with subscribed(stand, of("k-app")) as app, subscribed(stand, of("k-other")) as other:
            assert [one["model"] for one in (await app.next())[1]["models"]] == ["gpt"]
            assert [one["model"] for one in (await other.next())[1]["models"]] == ["gpt", "claude"]
            stand.deployment("two/claude").breaker.force("forced_open", time.monotonic())
            assert (await other.next())[1]["model"] == "claude"
            stand.deployment("one/gpt").breaker.force("forced_open", time.monotonic())
            assert (await app.next())[1]["model"] == "gpt", "nothing of the other model came before"


async def test_rate_counts_and_a_stream_holds_no_slot() -> None:
    async with facing(CHAT.ok, server=KEYS) as (stand, _), subscribed(stand, of("k-slow")) as stream:
        assert (await stream.next())[0] == "status"
        refused = await status(stand, of("k-slow"))
        assert (refused.status, refused.headers["x-llm-guard-refused-by"]) == (429, "client_limit")
        assert "calls a second" in CHAT.error_of(refused)["message"]
        await asyncio.sleep(int(refused.headers["retry-after-ms"]) / 1000 + 0.05)
        reply = await ask(stand.url, CHAT.path, CHAT.body(stream=False), of("k-slow"))
        assert reply.status == 200, "the only slot is free"


async def test_state_is_read_while_all_slots_of_the_key_are_taken() -> None:
    keys = {"client_keys": [{"name": "slow", "key": "k-slow", "limits": {"concurrency": 1}}]}
    async with facing([Hold()], server=keys) as (stand, provider):
        call = asyncio.create_task(ask(stand.url, CHAT.path, CHAT.body(stream=False), of("k-slow")))
        await eventually(lambda: bool(provider.requests))
        assert (await status(stand, of("k-slow"))).status == 200
        call.cancel()


async def test_streams_of_a_key_are_limited_and_a_client_that_leaves_frees_one() -> None:
    async with facing() as (stand, _):
        endpoint = stand.app.gateway.own.status
        connections = [subscribed(stand, of("k")) for _ in range(MAX_PER_KEY)]
        streams = [await connection.__aenter__() for connection in connections]
        refused = await status(stand, of("k", EVENTS))
        assert (refused.status, refused.headers["retry-after"]) == (429, "30")
        assert refused.headers["x-llm-guard-refused-by"] == "limit"
        assert (await status(stand, of("k"))).status == 200, "JSON is not limited"
        streams[0].leave()
        await eventually(lambda: endpoint.subscribers == MAX_PER_KEY - 1)
        async with subscribed(stand, of("k")) as stream:
            assert stream.reply.status == 200
        for connection in connections:
            await connection.__aexit__(None, None, None)
        await eventually(lambda: endpoint.subscribers == 0)


async def test_shutdown_ends_streams_at_once() -> None:
    async with facing(server={"drain": "60s", "drain_delay": "0s"}) as (stand, _), subscribed(stand) as stream:
        await stream.next()
        assert stand.app.gateway.running == 1
        began_at = time.monotonic()
        stopping = asyncio.create_task(stand.app.stop())
        assert await stream.ends()
        await stopping
        assert time.monotonic() - began_at < 20 + stand.lag_s, "the drain has not waited for the stream"


async def test_status_calls_are_neither_counted_as_calls_nor_kept_for_operators() -> None:
    async with facing() as (stand, _):
        await status(stand)
        assert await stand.metric("llm_guard_calls_total") == 0
        (line,) = await stand.calls()
        assert (line["background_purpose"], line["status"]) == ("status", 200)


@pytest.mark.parametrize("headers", [{}, EVENTS])
async def test_head_has_the_head_only(headers: dict[str, str]) -> None:
    async with facing() as (stand, _):
        reply = await status(stand, headers, "HEAD")
        assert (reply.status, reply.body) == (200, b"")
        assert stand.app.gateway.own.status.subscribers == 0


async def test_other_methods_are_unknown() -> None:
    async with facing() as (stand, _):
        assert (await status(stand, method="DELETE")).status == 404
