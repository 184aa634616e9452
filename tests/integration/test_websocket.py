"""A WebSocket through the gateway: frames, close codes, refusals, lost ends."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import WSCloseCode, WSMsgType
from yarl import URL

from llm_guard.app import App, create_app
from llm_guard.config import parse_config
from llm_guard.mock.provider import MockProvider
from tests.fakes.client import VanishingClient, raw_request
from tests.fakes.provider import Hold, Respond, ScriptedProvider, Step
from tests.fakes.waiting import eventually

_CONFIG = """
server: {{port: 0, drain: 200ms}}
upstreams:
  one: {{dialect: openai, base_url: "{url}/v1"}}
defaults:
  timeout: {{first_token: 2s, total: {total}}}
  retry: {{max_attempts: 2, base_delay: 5ms}}
models:
  "gpt-*": {{deployments: [{{upstream: one}}]}}
  alias: {{deployments: [{{upstream: one, model: gpt-realtime}}]}}
"""
TARGET = "/v1/realtime?model=gpt-realtime"
UPGRADE = {
    "connection": "Upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
}
SWITCHED = Respond(
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nX-Own: 1\r\n\r\n"
)
"""Accept value for the key above (RFC 6455, section 1.3)."""


@asynccontextmanager
async def _gateway(url: str, total: str = "20s") -> AsyncIterator[App]:
    app = create_app(parse_config(_CONFIG.format(url=url, total=total), "test.yaml", {}))
    await app.start()
    try:
        yield app
    finally:
        await app.stop()


@pytest.fixture
async def provider() -> AsyncIterator[MockProvider]:
    async with MockProvider() as provider:
        yield provider


@pytest.fixture
async def app(provider: MockProvider) -> AsyncIterator[App]:
    async with _gateway(provider.url) as app:
        yield app


@pytest.fixture
async def http(app: App) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(app.addresses[0]) as session:
        yield session


async def test_text_and_binary_pass_in_both_directions(http: aiohttp.ClientSession) -> None:
    async with http.ws_connect(TARGET, max_msg_size=0) as socket:
        assert (await socket.receive_json())["type"] == "session.created"
        await socket.send_json({"type": "own", "text": "déjà \U0001f600"})
        assert (await socket.receive_json())["event"] == {"type": "own", "text": "déjà \U0001f600"}
        for size in (0, 1, 125, 126, 65_535, 65_536, 3_000_000):
            await socket.send_bytes(bytes(size))
            assert await socket.receive_bytes() == bytes(size)


async def test_many_messages_keep_their_order(http: aiohttp.ClientSession) -> None:
    async with http.ws_connect(TARGET) as socket:
        await socket.receive()
        for number in range(2_000):
            await socket.send_bytes(struct.pack(">I", number))
        heard = [struct.unpack(">I", await socket.receive_bytes())[0] for _ in range(2_000)]
    assert heard == list(range(2_000))


async def test_compression_is_the_two_ends_own(http: aiohttp.ClientSession, provider: MockProvider) -> None:
    async with http.ws_connect(TARGET, compress=15) as socket:
        assert socket.compress == 15
        await socket.receive()
        await socket.send_json({"type": "own", "text": "a" * 10_000})
        assert (await socket.receive_json())["event"]["text"] == "a" * 10_000
    assert (provider.last.header("sec-websocket-extensions") or "").startswith("permessage-deflate")


async def test_subprotocol_is_negotiated_end_to_end(http: aiohttp.ClientSession, provider: MockProvider) -> None:
    async with http.ws_connect(TARGET, protocols=("realtime", "openai-beta.realtime-v1")) as socket:
        assert socket.protocol == "realtime"
    assert provider.last.header("sec-websocket-protocol") == "realtime,openai-beta.realtime-v1"


async def test_ping_is_answered_by_the_other_end(http: aiohttp.ClientSession) -> None:
    async with http.ws_connect(TARGET, autoping=False) as socket:
        await socket.receive()
        await socket.ping(b"are you there")
        pong = await socket.receive()
    assert (pong.type, pong.data) == (WSMsgType.PONG, b"are you there")


@pytest.mark.parametrize(("code", "reason"), [(1000, ""), (4000, "enough: déjà vu"), (1011, "x" * 123)])
async def test_close_by_the_server_preserves_its_code_and_reason(
    http: aiohttp.ClientSession, provider: MockProvider, code: int, reason: str
) -> None:
    async with http.ws_connect(TARGET) as socket:
        await socket.receive()
        await socket.send_json({"type": "mock.close", "code": code, "reason": reason})
        closed = await socket.receive()
    assert (closed.type, closed.data, closed.extra) == (WSMsgType.CLOSE, code, reason)
    await eventually(lambda: provider.stats().open_connections == 0)


@pytest.mark.parametrize("leaves_at_once", [False, True])
async def test_close_of_the_client_reaches_the_server_with_code_and_reason(leaves_at_once: bool) -> None:
    frame = _close_frame(4001, b"enough")
    async with ScriptedProvider([SWITCHED, Hold()]) as provider, _gateway(provider.url) as app:
        reader, writer = await asyncio.open_connection(*_address(app))
        writer.write(raw_request(TARGET, headers=UPGRADE, method="GET"))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
        (line,) = provider._lines
        writer.write(frame)
        if not leaves_at_once:
            await eventually(lambda: line._received == frame)
            assert provider.connections[0].closed_at is None
        writer.close()
        assert await provider.connections[0].closed_within(5)
    assert line._received == frame


async def test_refused_upgrade_is_passed_on_as_its_status(http: aiohttp.ClientSession, provider: MockProvider) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await http.ws_connect(f"{TARGET}%2Bstatus:401")
    assert caught.value.status == 401
    assert provider.stats().requests == 1


async def test_unknown_model_is_refused_before_the_upgrade(http: aiohttp.ClientSession, provider: MockProvider) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await http.ws_connect("/v1/realtime?model=nowhere")
    assert caught.value.status == 404
    assert provider.stats().requests == 0


async def test_upgrade_that_the_provider_resets_is_retried_and_then_reported(
    http: aiohttp.ClientSession, provider: MockProvider
) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await http.ws_connect(f"{TARGET}%2Breset")
    assert caught.value.status == 502
    assert provider.stats().requests == 2


async def test_alias_is_renamed_in_the_query(http: aiohttp.ClientSession, provider: MockProvider) -> None:
    async with http.ws_connect(URL("/v1/realtime?x[]=1&model=alias", encoded=True)) as socket:
        assert (await socket.receive_json())["session"]["model"] == "gpt-realtime"
    assert provider.last.target == "/v1/realtime?x[]=1&model=gpt-realtime"


async def test_head_of_the_upgrade_passes_with_the_gateway_headers() -> None:
    async with ScriptedProvider([SWITCHED, Hold()]) as provider, _gateway(provider.url) as app:
        reader, writer = await asyncio.open_connection(*_address(app))
        writer.write(raw_request(TARGET, headers=UPGRADE, method="GET"))
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        writer.close()
    for line in (b"x-own: 1", b"upgrade: websocket", b"sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo="):
        assert b"\r\n" + line + b"\r\n" in head
    assert b"x-llm-guard-deployment: one/gpt-realtime" in head
    assert b"transfer-encoding" not in head
    sent = provider.requests[0].lower()
    assert b"sec-websocket-key: dghlihnhbxbszsbub25jzq==" in sent
    assert b"upgrade: websocket" in sent


async def test_frame_in_one_packet_with_the_head_is_not_lost() -> None:
    early = b"\x81\x05early"
    script: list[Step] = [Respond(SWITCHED.data + early), Hold()]
    async with ScriptedProvider(script) as provider, _gateway(provider.url) as app:
        reader, writer = await asyncio.open_connection(*_address(app))
        writer.write(raw_request(TARGET, headers=UPGRADE, method="GET"))
        await reader.readuntil(b"\r\n\r\n")
        async with asyncio.timeout(5):
            assert await reader.readexactly(len(early)) == early
        writer.close()


async def test_client_that_vanishes_ends_the_upstream_connection(app: App, provider: MockProvider) -> None:
    client = VanishingClient(app.addresses[0])
    for how in ("reset", "close"):
        request = raw_request(TARGET, headers=UPGRADE, method="GET")
        await client.vanish(request, after_bytes=200, how=how)
    await eventually(lambda: provider.stats().open_connections == 0)
    await eventually(lambda: app.gateway.running == 0)
    assert provider.stats().requests == 2


async def test_session_outlives_the_limits_of_a_call(provider: MockProvider) -> None:
    async with (
        _gateway(provider.url, total="300ms") as app,
        aiohttp.ClientSession(app.addresses[0]) as http,
        http.ws_connect(TARGET) as socket,
    ):
        await socket.receive()
        await asyncio.sleep(0.5)
        await socket.send_json({"type": "own"})
        assert (await socket.receive_json(timeout=5))["type"] == "mock.echo"


async def test_drain_ends_an_open_session(app: App, http: aiohttp.ClientSession) -> None:
    async with http.ws_connect(TARGET) as socket:
        await socket.receive()
        await app.stop()
        ended = await socket.receive(timeout=5)
    assert ended.type in (WSMsgType.CLOSED, WSMsgType.ERROR)
    assert socket.close_code == WSCloseCode.ABNORMAL_CLOSURE


def _address(app: App) -> tuple[str, int]:
    host, _, port = app.addresses[0].removeprefix("http://").rpartition(":")
    return host, int(port)


def _close_frame(code: int, reason: bytes) -> bytes:
    """Builds a masked close frame with a mask of zeros."""
    payload = struct.pack(">H", code) + reason
    return bytes([0x88, 0x80 | len(payload)]) + bytes(4) + payload


async def test_connection_leaves_no_task_behind(app: App, http: aiohttp.ClientSession) -> None:
    async with http.ws_connect(TARGET) as websocket:
        await websocket.send_str("hello")
        await websocket.receive()
    await eventually(lambda: app.gateway.running == 0)
    await http.close()
    await eventually(lambda: not _tasks_of_connections())


def _tasks_of_connections() -> list[str]:
    return [name for task in asyncio.all_tasks() if "ClientConnection" in (name := str(task.get_coro()))]
