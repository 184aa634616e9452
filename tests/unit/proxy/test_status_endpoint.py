"""`/v1/llm-guard/status` on a manual clock: what a subscriber is sent, and when a stream ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import pytest

from llm_guard.proxy import status_endpoint
from llm_guard.proxy.call import Call
from llm_guard.proxy.http_server.request import Request, RequestFields
from llm_guard.proxy.http_server.response_writer import ResponseConnection, ResponseWriter
from llm_guard.proxy.status_endpoint import BEAT_S, MAX_PER_KEY, STATUS_PATH, StatusEndpoint
from llm_guard.resilience.client_keys.scope import KeyScope
from llm_guard.routing.route_table import compile_routes
from tests.unit.proxy.http_server.test_response_writer import FakeConnection
from tests.unit.proxy.test_model_status import World

EVENTS = {"accept": "text/event-stream"}


class SlowReader(FakeConnection):
    """A client that reads only when `goes_on` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    def push(self, data: bytes) -> bool:
        super().push(data)
        self.is_stuck = not self.goes_on.is_set()
        return not self.is_stuck

    async def wait_room(self) -> None:
        await self.goes_on.wait()
        self.is_stuck = False


class Desk:
    """The endpoint of a gateway on a manual clock."""

    def __init__(self) -> None:
        self.world = World()
        self.endpoint = StatusEndpoint(self.world.statuses, self.world.clock)

    async def pass_s(self, seconds: int) -> None:
        for _ in range(seconds):
            self.world.clock.advance(1.0)
            self.world.clock.ring_due()
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    def call(self, client: str | None = None, models: tuple[str, ...] | None = None, method: str = "GET") -> Call:
        call = Call("id", "openai", method, STATUS_PATH, "", (), self.world.clock.now())
        call.client_key, call.key_digest = client, "digest"
        call.scope = None if client is None else KeyScope(models)
        return call

    @asynccontextmanager
    async def subscribed(self, **key: Any) -> AsyncIterator[tuple[SlowReader, asyncio.Task[None]]]:
        reply, client = reply_to(EVENTS)
        task = asyncio.create_task(self.endpoint.serve(self.call(**key), reply))
        await asyncio.sleep(0)
        try:
            yield client, task
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def reply_to(headers: dict[str, str]) -> tuple[ResponseWriter, SlowReader]:
    request = Request("GET", STATUS_PATH, "1.0", RequestFields(tuple(headers.items()), headers))
    request.complete()
    connection = SlowReader()
    return ResponseWriter(request, cast("ResponseConnection", connection)), connection


def events_in(client: FakeConnection) -> list[tuple[str, Any]]:
    """Returns the kind and data of each event; a keep-alive is `("", None)`."""
    blocks = b"".join(client.writes).partition(b"\r\n\r\n")[2].decode().split("\n\n")[:-1]
    found: list[tuple[str, Any]] = []
    for block in blocks:
        if block == ":":
            found.append(("", None))
        else:
            kind, data = block.split("\n")
            found.append((kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def kinds_in(client: FakeConnection) -> list[str]:
    return [kind for kind, _ in events_in(client)]


async def test_json_has_each_model_with_reason_and_instants() -> None:
    desk = Desk()
    desk.world.break_down("a/pair", "b/pair")
    reply, client = reply_to({})
    await desk.endpoint.serve(desk.call(), reply)
    body = json.loads(client.writes[-1].partition(b"\r\n\r\n")[2])
    assert body == {
        "object": "llm_guard.status",
        "state": "down",
        "models": [
            {
                "model": "pair", "state": "down", "since": "2027-01-15T08:00:00.000Z",
                "expected_end": "2027-01-15T08:00:30.000Z", "reason": "calls fail",
            },
            {"model": "solo", "state": "ok", "since": None, "expected_end": None, "reason": None},
        ],
    }  # fmt: skip


async def test_poll_is_answered_from_states_up_to_a_second_old() -> None:
    desk = Desk()

    async def state() -> str:
        reply, client = reply_to({})
        await desk.endpoint.serve(desk.call(), reply)
        return str(json.loads(client.writes[-1].partition(b"\r\n\r\n")[2])["state"])

    assert await state() == "ok"
    desk.world.break_down("a/pair")
    assert await state() == "ok"
    desk.world.clock.advance(1.0)
    assert await state() == "degraded"


async def test_stream_has_the_whole_state_then_each_change() -> None:
    desk = Desk()
    async with desk.subscribed() as (client, _):
        assert [(kind, data["state"]) for kind, data in events_in(client)] == [("status", "ok")]
        desk.world.break_down("a/pair")
        assert len(events_in(client)) == 1
        await desk.pass_s(1)
        desk.world.break_down("b/pair")
        await desk.pass_s(1)
        for label in ("a/pair", "b/pair"):
            desk.world.deployment(label).breaker.force("forced_closed", desk.world.clock.now())
        await desk.pass_s(3)
        found = events_in(client)[1:]
        assert [(kind, data["model"], data["state"]) for kind, data in found] == [
            ("degraded", "pair", "degraded"), ("down", "pair", "down"), ("recovered", "pair", "ok"),
        ]  # fmt: skip
        assert [data["expected_end"] is None for _, data in found] == [False, False, True]


async def test_stream_has_only_the_models_of_the_key() -> None:
    desk = Desk()
    async with desk.subscribed(client="app", models=("solo",)) as (client, _):
        desk.world.break_down("a/pair", "b/pair")
        await desk.pass_s(1)
        ((kind, data),) = events_in(client)
        assert (kind, [one["model"] for one in data["models"]]) == ("status", ["solo"])


async def test_quiet_stream_has_keep_alives() -> None:
    desk = Desk()
    async with desk.subscribed() as (client, _):
        await desk.pass_s(int(BEAT_S) - 1)
        assert kinds_in(client) == ["status"]
        await desk.pass_s(int(BEAT_S) + 1)
        assert kinds_in(client) == ["status", "", ""]


async def test_states_are_looked_at_only_while_there_are_subscribers() -> None:
    desk = Desk()
    alarms = desk.world.clock.alarms
    assert alarms == []
    async with desk.subscribed(), desk.subscribed():
        await desk.pass_s(2)
        assert len([alarm for alarm in alarms if not alarm.has_rung]) == 1, "one look serves all"
    assert all(alarm.has_rung or alarm.is_cancelled for alarm in alarms)
    assert desk.endpoint.subscribers == 0


async def test_slow_reader_misses_states_in_between_and_is_aborted_at_a_keep_alive() -> None:
    desk = Desk()
    async with desk.subscribed() as (client, task):
        client.goes_on.clear()
        desk.world.break_down("a/pair")
        await desk.pass_s(1)
        writes = len(client.writes)
        for _ in range(5):
            breaker = desk.world.deployment("b/pair").breaker
            breaker.force("forced_open", desk.world.clock.now())
            await desk.pass_s(1)
            breaker.force("forced_closed", desk.world.clock.now())
            await desk.pass_s(1)
        assert len(client.writes) == writes, "nothing is written that the client does not read"
        await desk.pass_s(int(BEAT_S))
        assert client.end == "aborted"
        client.goes_on.set()
        await asyncio.wait_for(task, 5)
        assert desk.endpoint.subscribers == 0


async def test_shutdown_ends_streams_and_refuses_new_ones() -> None:
    desk = Desk()
    async with desk.subscribed() as (client, task):
        desk.endpoint.end_streams()
        await asyncio.wait_for(task, 5)
        assert kinds_in(client) == ["status"]
        async with desk.subscribed() as (other, refused):
            await asyncio.wait_for(refused, 5)
            assert b"503" in other.writes[0]


async def test_shutdown_aborts_a_stream_that_is_not_read() -> None:
    desk = Desk()
    async with desk.subscribed() as (client, _):
        client.goes_on.clear()
        desk.world.break_down("a/pair")
        await desk.pass_s(1)
        desk.endpoint.end_streams()
        assert client.end == "aborted"


async def test_reload_ends_streams_so_that_clients_reconnect() -> None:
    desk = Desk()
    async with desk.subscribed() as (_, task):
        gateway = desk.world.gateway
        gateway.table = compile_routes(desk.world.config, desk.world.clock.now(), gateway.table)
        await desk.pass_s(1)
        await asyncio.wait_for(task, 5)
        async with desk.subscribed() as (client, _):
            assert kinds_in(client) == ["status"]


@pytest.mark.parametrize("most", [2, 3])
async def test_subscribers_are_limited_overall(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(status_endpoint, "MAX_SUBSCRIBERS", most)
    desk = Desk()
    reply, refused = reply_to(EVENTS)
    async with desk.subscribed(client="a"), desk.subscribed(client="b"):
        if most == 2:
            await desk.endpoint.serve(desk.call("c"), reply)
            assert b"HTTP/1.1 429" in refused.writes[0]
            assert b"retry-after: 30" in refused.writes[0].lower()
        async with desk.subscribed(client="c") as (client, _):
            assert (b"HTTP/1.1 200" in client.writes[0]) == (most == 3)


async def test_subscribers_are_limited_for_each_key() -> None:
    desk = Desk()
    tasks = []
    for _ in range(MAX_PER_KEY):
        reply, _ = reply_to(EVENTS)
        tasks.append(asyncio.create_task(desk.endpoint.serve(desk.call("app"), reply)))
    await asyncio.sleep(0)
    async with desk.subscribed(client="app") as (refused, _), desk.subscribed(client="other") as (client, _):
        assert b"HTTP/1.1 429" in refused.writes[0]
        assert kinds_in(client) == ["status"]
        tasks.pop().cancel()
        await asyncio.sleep(0)
        async with desk.subscribed(client="app") as (next_one, _):
            assert kinds_in(next_one) == ["status"]
    for task in tasks:
        task.cancel()
