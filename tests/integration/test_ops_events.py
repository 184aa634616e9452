"""Live events over the wire: server-sent events and WebSocket."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import WSMsgType

from llm_guard.admin.events import websocket_stream
from llm_guard.admin.events.event_log import KEPT
from llm_guard.admin.events.stream import BEAT_S, MAX_READERS, EventStream
from llm_guard.admin.events.websocket_stream import EventSocket
from llm_guard.admin.http import websocket
from llm_guard.version import __version__
from tests.admin_client import HOST, Listening, look
from tests.chaos.forms import CHAT
from tests.chaos.lag import measured
from tests.chaos.process import serving, write
from tests.chaos.stand import Stand, config_text, facing
from tests.chaos.wire import Connection
from tests.fakes.client import raw_request
from tests.fakes.provider import ScriptedProvider, whole
from tests.fakes.waiting import eventually
from tests.tokens import BEARER

PATH = "/admin/events/ws"
TOKEN = "s3cret/ä?"  # of this test


@pytest.fixture
async def stand() -> AsyncIterator[Stand]:
    async with facing(CHAT.ok) as (stand, _):
        yield stand


def events_of(stand: Stand) -> EventStream:
    return stand.app.ops._events


def readers(stand: Stand) -> int:
    return events_of(stand).count


# server-sent


async def test_reader_is_greeted_and_gets_events(stand: Stand) -> None:
    async with Listening(stand.url) as reader:
        assert reader.head.status == 200
        assert reader.head.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert reader.head.headers["cache-control"] == "no-store"
        hello = await reader.event()
        boot = events_of(stand).boot
        assert hello == {"kind": "hello", "version": __version__, "boot": boot, "last_id": 0}
        stand.app.ops.journal.note("reload", outcome="ok", why="two\nlines")
        block = await reader.block()
        assert (block["id"], block["event"]) == (f"{boot}-1", "reload")
        assert json.loads(block["data"])["facts"] == {"outcome": "ok", "why": "two\nlines"}


async def test_opening_of_a_breaker_is_published_within_two_ticks() -> None:
    rules = {"consecutive_failures": 1, "early_probes": False}
    async with facing([whole(500)], breaker=rules) as (stand, _), Listening(stand.url) as reader:
        await reader.event()
        await CHAT.ask(stand.url)
        told = await reader.event()
        assert told["kind"] == "breaker"
        assert told["facts"]["deployment"] == "one/gpt"
        assert (told["facts"]["before"], told["facts"]["after"]) == ("closed", "open")


@pytest.mark.parametrize("by", ["query", "header"])
async def test_returning_reader_gets_missed_events_and_then_new_ones(stand: Stand, by: str) -> None:
    journal, boot = stand.app.ops.journal, events_of(stand).boot
    for number in range(4):
        journal.note("change", number=number)
    position = f"{boot}-2"
    query, headers = (f"?since={position}", {}) if by == "query" else ("", {"last-event-id": position})
    async with Listening(stand.url, query, headers) as reader:
        hello = await reader.block()
        assert (hello["event"], hello["id"]) == ("hello", position)
        assert [(await reader.event())["id"] for _ in range(2)] == [3, 4]
        journal.note("change", number=4)
        assert (await reader.event())["id"] == 5


async def test_number_alone_is_taken_as_this_processes(stand: Stand) -> None:
    stand.app.ops.journal.note("change")
    stand.app.ops.journal.note("change")
    async with Listening(stand.url, "?since=1") as reader:
        assert [(await reader.event())["kind"] for _ in range(2)] == ["hello", "change"]


async def test_reader_without_missed_events_gets_none(stand: Stand) -> None:
    stand.app.ops.journal.note("change")
    async with Listening(stand.url) as reader:
        assert (await reader.event())["last_id"] == 1
        stand.app.ops.journal.note("reload")
        assert (await reader.event())["id"] == 2


async def test_reader_that_returns_too_late_gets_a_gap_event(stand: Stand) -> None:
    journal = stand.app.ops.journal
    for _ in range(KEPT + 10):
        journal.note("change")
    async with Listening(stand.url, "?since=3") as reader:
        assert (await reader.event())["kind"] == "hello"
        assert await reader.event() == {"kind": "missed", "after": "3", "reason": "expired"}
        assert [(await reader.event())["id"] for _ in range(KEPT)] == list(range(11, KEPT + 11))


@pytest.mark.parametrize("position", ["00000000-7", "99"])
async def test_reader_of_an_earlier_process_gets_a_gap_event_and_all_events_of_this_one(
    stand: Stand, position: str
) -> None:
    stand.app.ops.journal.note("reload")
    async with Listening(stand.url, f"?since={position}") as reader:
        assert (await reader.event())["kind"] == "hello"
        assert await reader.event() == {"kind": "missed", "after": position, "reason": "other_process"}
        assert (await reader.event())["id"] == 1


@pytest.mark.parametrize("position", ["x", "b007-1", "0123abcd-", "0123abcd-x", "-1", "1" * 16, "%C2%B2", "1%0A"])
async def test_position_that_is_none_is_refused(stand: Stand, position: str) -> None:
    reply = await look(stand.url, f"/admin/events?since={position}")
    assert (reply.status, reply.json["error"]["code"]) == (422, "invalid_query")
    reply = await look(stand.url, "/admin/events", {"last-event-id": position})
    assert (reply.status, reply.json["error"]["code"]) == (400, "invalid_position")
    assert readers(stand) == 0


async def test_heads_of_streams_are_whole_answers(stand: Stand) -> None:
    async with Connection(stand.url) as connection:
        reply = await connection.ask(raw_request("/admin/events", headers=HOST, method="HEAD"))
        assert reply.headers["content-type"].startswith("text/event-stream")
        assert await connection.is_closed()
    assert readers(stand) == 0


async def test_silence_is_broken_by_a_comment_now_and_then(stand: Stand) -> None:
    events = events_of(stand)
    stand.app.ops._watch.stop()
    async with Listening(stand.url) as reader:
        await reader.event()
        events.look(now := events._beat_at)
        assert await reader.block() == {"": ""}
        events.look(now + BEAT_S - 0.1)
        stand.app.ops.journal.note("reload")
        assert "data" in await reader.block()
        events.look(now + BEAT_S)
        assert await reader.block() == {"": ""}


async def test_silent_reader_is_not_disconnected() -> None:
    async with facing(CHAT.ok) as (stand, _), Listening(stand.url) as reader:
        await reader.event()
        listener = stand.app._listeners[0][1]
        (connection,) = listener._connections
        assert connection.due_at == float("inf")
        assert connection not in listener.idle


async def test_disconnected_reader_is_forgotten(stand: Stand) -> None:
    async with Listening(stand.url) as reader:
        await reader.event()
        assert readers(stand) == 1
    await eventually(lambda: readers(stand) == 0)
    stand.app.ops.journal.note("reload")


async def test_reader_that_does_not_read_is_dropped_and_others_are_not(stand: Stand) -> None:
    journal = stand.app.ops.journal
    async with Listening(stand.url) as lazy, Listening(stand.url) as eager:
        await lazy.event()
        await eager.event()
        cast("asyncio.Transport", lazy.writer.transport).pause_reading()
        for number in range(400):
            journal.note("change", number=number, text="x" * 10_000)
            assert (await eager.event())["facts"]["number"] == number
        await eventually(lambda: readers(stand) == 1)
        journal.note("reload")
        assert (await eager.event())["kind"] == "reload"
    assert any(line["event"].startswith("event reader dropped") for line in stand.log)


async def test_number_of_readers_is_bounded_and_slots_are_reused(stand: Stand) -> None:
    async with AsyncExitStack() as stack:
        listening = [await stack.enter_async_context(Listening(stand.url)) for _ in range(MAX_READERS)]
        for reader in listening:
            assert (await reader.event())["kind"] == "hello"
        reply = await look(stand.url, "/admin/events")
        assert (reply.status, reply.json["error"]["code"]) == (503, "too_many_readers")
        listening[0].writer.close()
        await eventually(lambda: readers(stand) == MAX_READERS - 1)
        async with Listening(stand.url) as reader:
            assert (await reader.event())["kind"] == "hello"


async def test_drain_is_published_and_then_the_stream_ends_cleanly() -> None:
    with measured() as lag:
        async with facing(CHAT.ok) as (stand, _):
            reader = Listening(stand.url)
            await reader.__aenter__()
            await reader.event()
            began_at = asyncio.get_running_loop().time()
        told = await reader.event()
        assert (told["kind"], told["facts"]) == ("drain", {"running": 0})
        assert await reader.block() == {}
        assert asyncio.get_running_loop().time() - began_at < 1.0 + lag.total_s
    await reader.__aexit__()


async def test_gateway_that_is_stopping_accepts_no_reader(stand: Stand) -> None:
    events_of(stand).end()
    reply = await look(stand.url, "/admin/events")
    assert (reply.status, reply.json["error"]["code"]) == (503, "draining")
    events_of(stand)._is_over = False


async def test_reloads_and_the_end_of_a_process_are_published(tmp_path: Path) -> None:
    path = tmp_path / "guard.yaml"
    async with ScriptedProvider([whole(500)]) as provider:
        text = config_text(provider.url, breaker={"consecutive_failures": 1, "early_probes": False})
        async with serving(path, text) as served, Listening(served.url) as reader:
            await reader.event()
            await CHAT.ask(served.url)
            await reader.until("breaker", after="open")
            write(path, "models: 7")
            served.signal(signal.SIGHUP)
            *_, refused = heard = await reader.until("reload", outcome="refused")
            assert "guard.yaml:1: " in refused["facts"]["reason"]
            write(path, text)
            served.signal(signal.SIGHUP)
            heard += await reader.until("reload", outcome="ok")
            served.signal(signal.SIGTERM)
            heard += await reader.until("drain")
            assert "breaker" not in {each["kind"] for each in heard}, "it was kept, and is not told again"
            assert await reader.block() == {}
            assert await served.exit_code() == 0


# over a WebSocket


@pytest.fixture
async def http(stand: Stand) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(stand.url, headers=BEARER) as session:
        yield session


async def receive(socket: aiohttp.ClientWebSocketResponse) -> dict[str, Any]:
    data: dict[str, Any] = await socket.receive_json(timeout=5)
    return data


async def test_socket_sends_the_same_events_as_texts(stand: Stand, http: aiohttp.ClientSession) -> None:
    stand.app.ops.journal.note("change", number=1)
    async with http.ws_connect(f"{PATH}?since=0", compress=15) as socket:
        assert socket.compress == 0
        assert await receive(socket) == {
            "kind": "hello", "version": __version__, "boot": events_of(stand).boot, "last_id": 1,
        }  # fmt: skip
        assert (await receive(socket))["facts"] == {"number": 1}
        stand.app.ops.journal.note("reload", text="déjà " * 30_000)
        assert (await receive(socket))["facts"] == {"text": "déjà " * 30_000}
        await socket.send_str("nobody listens to this")
        stand.app.ops.journal.note("reload")
        assert (await receive(socket))["kind"] == "reload"
    await eventually(lambda: readers(stand) == 0)


async def test_ping_of_a_client_is_answered(http: aiohttp.ClientSession) -> None:
    async with http.ws_connect(PATH, autoping=False) as socket:
        await receive(socket)
        await socket.ping(b"there?")
        pong = await socket.receive(timeout=5)
        assert (pong.type, pong.data) == (WSMsgType.PONG, b"there?")


async def test_close_of_a_client_is_answered_with_its_code(stand: Stand, http: aiohttp.ClientSession) -> None:
    async with http.ws_connect(PATH, autoclose=False) as socket:
        await receive(socket)
        assert await socket.close(code=4001)
        assert socket.close_code == 4001
    await eventually(lambda: readers(stand) == 0)


async def test_socket_is_closed_when_the_gateway_stops() -> None:
    async with aiohttp.ClientSession(headers=BEARER) as session:
        with measured() as lag:
            async with facing(CHAT.ok) as (stand, _):
                socket = await session.ws_connect(stand.url + PATH)
                await receive(socket)
                began_at = asyncio.get_running_loop().time()
            assert (await receive(socket))["kind"] == "drain"
            closed = await socket.receive(timeout=5)
            assert (closed.type, closed.data) == (WSMsgType.CLOSE, websocket.GOING_AWAY)
            assert asyncio.get_running_loop().time() - began_at < 1.0 + lag.total_s


async def test_client_that_answers_no_ping_is_disconnected(stand: Stand, http: aiohttp.ClientSession) -> None:
    events = events_of(stand)
    stand.app.ops._watch.stop()
    async with http.ws_connect(PATH, autoping=False) as socket:
        await receive(socket)
        now = events._beat_at
        for beat in range(websocket_stream._SILENT_BEATS):
            events.look(now + beat * BEAT_S)
            assert (await socket.receive(timeout=5)).type is WSMsgType.PING
        await socket.pong()
        (reader,) = events._readers
        assert isinstance(reader, EventSocket)
        await eventually(lambda: reader._unanswered == 0)
        for beat in range(3, 4 + websocket_stream._SILENT_BEATS):
            events.look(now + beat * BEAT_S)
        assert readers(stand) == 1
        await eventually(lambda: readers(stand) == 0)


async def test_message_that_is_too_long_ends_the_connection(http: aiohttp.ClientSession) -> None:
    async with http.ws_connect(PATH) as socket:
        await receive(socket)
        await socket.send_str("a" * (websocket.MAX_BYTES + 1))
        assert (await socket.receive(timeout=5)).data == websocket.TOO_BIG


async def test_client_that_vanishes_leaks_nothing(stand: Stand) -> None:
    upgrade = {
        **HOST, "connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    }  # fmt: skip
    async with Connection(stand.url) as connection:
        connection.writer.write(raw_request(PATH, headers=upgrade, method="GET"))
        head = await connection.head()
        assert (head.status, head.headers["sec-websocket-accept"]) == (101, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")
        assert readers(stand) == 1
        connection.leave("reset")
    await eventually(lambda: readers(stand) == 0)
    await eventually(lambda: stand.app._listeners[0][1].count == 0)


async def test_endpoint_without_an_upgrade_explains_itself(stand: Stand) -> None:
    reply = await look(stand.url, PATH)
    assert (reply.status, reply.json["error"]["code"]) == (400, "upgrade_needed")


async def test_token_may_be_sent_as_a_subprotocol() -> None:
    token = base64.urlsafe_b64encode(TOKEN.encode()).decode().rstrip("=")
    async with (
        facing(CHAT.ok, ops={"token": "s3cret"}) as (stand, _),
        aiohttp.ClientSession(stand.url) as session,
    ):
        good = base64.urlsafe_b64encode(b"s3cret").decode().rstrip("=")
        async with session.ws_connect(PATH, protocols=("llm-guard.events", f"bearer.{good}")) as socket:
            assert socket.protocol == "llm-guard.events"
            assert (await receive(socket))["kind"] == "hello"
        for wrong in (token, "", "s3cret", "!!!!"):
            with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
                await session.ws_connect(PATH, protocols=("llm-guard.events", f"bearer.{wrong}"))
            assert caught.value.status == 401
        assert readers(stand) == 0
