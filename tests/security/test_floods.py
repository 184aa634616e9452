"""Oversized and slow input: every connection, head, body and response has a limit, and other clients are not
delayed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.chaos.forms import CHAT
from tests.chaos.stand import config_text
from tests.chaos.wire import Connection
from tests.fakes.provider import chunk, stream_head
from tests.security.grammar import head
from tests.security.stand import BODY, HOST, POST, Front, crowd, fronting, process_of

MIB = 1 << 20
CLOSE = b"Connection: close"
JSON = b"Content-Type: application/json"
LENGTH = b"Content-Length: %d" % len(BODY)
GET = b"GET /v1/files HTTP/1.1"
SOON = {"head_timeout": "300ms", "body_timeout": "300ms"}
CROWD = 100
"""Number of slow clients of each kind."""


def named(attacks: dict[str, bytes]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("attack", [pytest.param(data, id=name) for name, data in attacks.items()])


async def drip(connection: Connection, data: bytes) -> None:
    """Sends a byte each 20 ms until the gateway closes the connection."""
    for each in data:
        if connection.writer.is_closing() or connection.reader.at_eof():
            return
        connection.writer.write(bytes([each]))
        await asyncio.sleep(0.02)


async def end_of(connection: Connection) -> list[int]:
    """Reads until the gateway closes and returns the statuses of its last responses."""
    received = b""
    with suppress(ConnectionError):
        async with asyncio.timeout(5):
            while data := await connection.reader.read(1 << 16):
                received += data
    return [int(line.split(b" ")[1]) for line in received.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]


async def honest_call(front: Front) -> int:
    return (await CHAT.ask(front.url)).status


async def test_slow_heads_are_cut_and_delay_no_other_call() -> None:
    """C23: hundreds of clients that send nothing, half a head, or a byte now and then."""
    async with fronting(server={"head_timeout": "1s"}) as front, AsyncExitStack() as stack:
        silent, halted, dripping = [await crowd(stack, front.url, CROWD) for _ in range(3)]
        for each in halted:
            each.writer.write(head(GET, HOST)[:-3])
        drips = [asyncio.create_task(drip(each, head(GET, HOST, b"X: " + b"v" * 1000))) for each in dripping]
        ends = asyncio.gather(*map(end_of, silent + halted + dripping))
        assert await honest_call(front) == 200
        assert not ends.done()
        calls = 1
        while not ends.done():
            assert await honest_call(front) == 200
            calls += 1
        statuses = await ends
        assert all(status in ([], [408]) for status in statuses[:CROWD])
        assert statuses[CROWD:] == [[408]] * (2 * CROWD)
        await asyncio.gather(*drips)
        assert len(front.provider.requests) == calls


async def test_head_that_drips_on_a_used_connection_is_cut() -> None:
    """C23: the limit applies to each head, not only to a connection's first byte."""
    async with fronting(server=SOON) as front, Connection(front.url) as connection:
        assert (await connection.ask(head(GET, HOST))).status == 200
        dripping = asyncio.create_task(drip(connection, head(GET, HOST, b"X: " + b"v" * 1000)))
        assert await end_of(connection) == [408]
        await dripping


async def test_used_connection_that_is_silent_is_closed_without_a_response() -> None:
    """C23: an idle connection is closed without a response."""
    async with fronting(server={"keep_alive": "200ms"}) as front, Connection(front.url) as connection:
        assert (await connection.ask(head(GET, HOST))).status == 200
        assert await end_of(connection) == []


@named({
    "C24 silence": head(POST, HOST, b"Content-Length: 100") + b'{"',
    "C24 silence within chunks": head(POST, HOST, b"Transfer-Encoding: chunked") + b'64\r\n{"',
    "C24 no word of it": head(POST, HOST, b"Content-Length: 100"),
    "C24 told to go on": head(POST, HOST, b"Content-Length: 100", b"Expect: 100-continue"),
    "C24 for a path that is none": head(b"POST /nowhere HTTP/1.1", HOST, b"Content-Length: 100"),
})  # fmt: skip
async def test_body_that_stops_coming_is_not_waited_for(attack: bytes) -> None:
    async with fronting(server=SOON) as front:
        heard = await front.hear(attack)
        assert heard.is_closed
        assert heard.statuses in ([408], [404] if b"nowhere" in attack else [408])
        await front.check_reached()


async def test_body_that_drips_is_not_waited_for() -> None:
    """C24: a byte now and then does not count as progress."""
    async with fronting(server=SOON) as front, Connection(front.url) as connection:
        connection.writer.write(head(POST, HOST, b"Content-Length: 1000"))
        dripping = asyncio.create_task(drip(connection, b"x" * 1000))
        assert await end_of(connection) == [408]
        await dripping
        await front.check_reached()


async def test_large_body_that_arrives_steadily_is_waited_for() -> None:
    """C24: it takes far longer than the limit, as an upload over a slow line does."""
    body = b'{"model":"gpt","user":"' + b"v" * (8 << 14) + b'"}'
    async with fronting(server=SOON) as front, Connection(front.url) as connection:
        connection.writer.write(head(POST, HOST, b"Content-Length: %d" % len(body)))
        for start in range(0, len(body), 1 << 14):
            connection.writer.write(body[start : start + (1 << 14)])
            await asyncio.sleep(0.1)
        assert (await connection.reply()).status == 200
        front.provider.requests.clear()


# Clients that do not read


@contextmanager
def deaf_clients(url: str, size: int, request: bytes) -> Iterator[list[socket.socket]]:
    """Opens clients that send a request and never read the response."""
    sockets = []
    try:
        for _ in range(size):
            one = socket.socket()
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.connect(("127.0.0.1", int(url.rsplit(":", 1)[1])))
            one.sendall(request)
            sockets.append(one)
        yield sockets
    finally:
        for one in sockets:
            one.close()


@asynccontextmanager
async def pouring(beginning: bytes, block: bytes, count: int) -> AsyncIterator[str]:
    """The URL of a provider that answers every request with this beginning and so many blocks, written under
    backpressure."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while request := await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(int(request.lower().partition(b"content-length:")[2].split()[0]))
                writer.write(beginning)
                for _ in range(count):
                    writer.write(block)
                    await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


BLOCK = b"v" * (1 << 16)
EVENT = chunk(CHAT.token.replace(b"h\\u00e9", BLOCK)).data
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n{" % (64 * MIB + 1)


@pytest.mark.parametrize(
    ("beginning", "block"),
    [pytest.param(stream_head().data, EVENT, id="C25 streams"), pytest.param(WHOLE, BLOCK, id="C25 whole answers")],
)
async def test_answers_of_clients_that_do_not_read_are_not_piled_up(
    beginning: bytes, block: bytes, tmp_path: Path
) -> None:
    """50 clients, 64 MB for each."""
    async with pouring(beginning, block, 1024) as url:
        text = config_text(url, timeout={"idle": "300ms", "attempt": "1s"})
        async with process_of(tmp_path / "c.yaml", text) as served:
            gateway = psutil.Process(served.process.pid)
            before = gateway.memory_info().rss
            with deaf_clients(served.url, 50, CHAT.request(stream=block == EVENT)):
                while len(calls := [line for line in served.log if line["event"] == "call"]) < 50:
                    # Measured growth: 100 to 150 MiB, for any size of the responses.
                    assert gateway.memory_info().rss - before < 400 * MIB
                    await asyncio.sleep(0.01)
            assert "ok" not in {line["outcome"] for line in calls}
