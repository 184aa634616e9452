"""The upstream HTTP client over real sockets, on either event loop: requests, responses and connection reuse."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress

import pytest
import uvloop

from llm_guard.outcome import FailureKind
from llm_guard.proxy.call import Exchange
from llm_guard.proxy.http_client import connection as upstream_connection
from llm_guard.proxy.http_client import connection_pool as origin_module
from llm_guard.proxy.http_client.connection_pool import ConnectionPool, UpstreamError
from llm_guard.proxy.http_client.http1 import RequestHeaders
from tests.chaos.sinks import never_reading, pouring
from tests.fakes.provider import END, Close, Hold, Pause, Reset, Respond, ScriptedProvider, Step, chunk, stream_head
from tests.fakes.provider import whole as answer
from tests.fakes.waiting import eventually

OK = answer(200, b"fine")
PLAIN = b"HTTP/1.1 200 OK\r\n"
UPGRADE = [("Connection", "Upgrade"), ("Upgrade", "websocket")]
SWITCHED = b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"


def on_each_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Runs a test on asyncio's own loop and on uvloop: their transports differ."""

    @functools.wraps(test)
    def run(new_loop: Callable[[], asyncio.AbstractEventLoop], **given: object) -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(test(**given))  # type: ignore[arg-type]  # a coroutine

    signature = inspect.signature(test)
    kinds = [inspect.Parameter("new_loop", inspect.Parameter.KEYWORD_ONLY)]
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *kinds])  # type: ignore[attr-defined]
    loops = [asyncio.new_event_loop, uvloop.new_event_loop]
    parametrized: Callable[..., None] = pytest.mark.parametrize("new_loop", loops, ids=["asyncio", "uvloop"])(run)
    return parametrized


@asynccontextmanager
async def client() -> AsyncIterator[ConnectionPool]:
    connections = ConnectionPool()
    try:
        yield connections
    finally:
        await connections.close()
        assert connections.count == 0


@asynccontextmanager
async def facing(*scripts: Sequence[Step]) -> AsyncIterator[tuple[ConnectionPool, ScriptedProvider]]:
    async with ScriptedProvider(*scripts) as provider, client() as connections:
        yield connections, provider


async def send(
    connections: ConnectionPool,
    url: str,
    method: str = "POST",
    target: str = "/v1/x",
    headers: Sequence[tuple[str, str]] = (),
    body: object = b"",
    *,
    is_repeatable: bool = True,
) -> Exchange:
    sending = connections.origin(url).send(
        method, target, RequestHeaders(list(headers)), body, None, is_repeatable=is_repeatable  # type: ignore[arg-type]
    )  # fmt: skip
    return await sending


async def rest_of(exchange: Exchange) -> bytes:
    body = b""
    while data := await exchange.read():
        body += data
    return body


async def ask(connections: ConnectionPool, url: str, method: str = "POST", *, is_repeatable: bool = True) -> bytes:
    return await rest_of(await send(connections, url, method, is_repeatable=is_repeatable))


async def failure(asking: Awaitable[object]) -> UpstreamError:
    with pytest.raises(UpstreamError) as raised:
        await asking
    return raised.value


def uses(provider: ScriptedProvider) -> list[int]:
    """Number of requests on each connection."""
    return [len(connection.requests) for connection in provider.connections]


@asynccontextmanager
async def served_by(
    handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """The URL of a server that runs `handle` for each connection; exits once all connections have ended."""
    running: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await handle(reader, writer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        running.discard(task)

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await eventually(lambda: not running)


class File:
    """A body of blocks that counts how many were read."""

    def __init__(self, blocks: int, size: int | None = None) -> None:
        self.size = blocks * 65536 if size is None else size
        self._count = blocks
        self.taken = 0

    def blocks(self) -> Iterator[bytes]:
        for _ in range(self._count):
            self.taken += 1
            yield b"b" * 65536


# requests


@on_each_loop
async def test_request_is_sent_unchanged() -> None:
    async with facing([OK]) as (connections, provider):
        exchange = await send(connections, provider.url, target="/v1/%2e?q=%zz&é", headers=[("X", "é")], body=b"{}")
        assert await rest_of(exchange) == b"fine"
        host = provider.url.removeprefix("http://").encode()
        line = b"POST /v1/%2e?q=%zz&\xe9 HTTP/1.1\r\n"
        assert provider.requests == [line + b"Host: " + host + b"\r\nX: \xe9\r\nContent-Length: 2\r\n\r\n{}"]


@on_each_loop
async def test_invalid_request_makes_no_connection() -> None:
    async with facing([OK]) as (connections, provider):
        error = await failure(send(connections, provider.url, headers=[("X", "a\r\nY: b")]))
        assert error.kind is FailureKind.INTERNAL
        assert (connections.count, provider.connections) == (0, [])


@on_each_loop
async def test_large_body_arrives_whole_from_memory_and_from_a_file() -> None:
    async with facing([OK]) as (connections, provider):
        body = os.urandom(3_000_000)
        assert await rest_of(await send(connections, provider.url, body=body)) == b"fine"
        assert await rest_of(await send(connections, provider.url, body=File(40))) == b"fine"
        first, second = (request.partition(b"\r\n\r\n") for request in provider.requests)
        assert first[2] == body
        assert (second[2], b"Content-Length: 2621440" in second[0]) == (b"b" * 40 * 65536, True)
        assert uses(provider) == [2]


@on_each_loop
async def test_file_is_read_no_faster_than_the_upstream_takes_it_and_a_cancelled_upload_ends_at_once() -> None:
    async with never_reading() as unread, client() as connections:
        file = File(1000)
        sending = asyncio.ensure_future(send(connections, unread.url, body=file))
        await eventually(lambda: file.taken > 2)
        for _ in range(2000):
            await asyncio.sleep(0)
        assert file.taken < 200
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await eventually(lambda: connections.count == 0)
        taken = file.taken
        assert await unread.read_rest() < taken * 65536


@on_each_loop
@pytest.mark.parametrize("size", [65535 * 3, 65537 * 3])
async def test_file_that_is_not_as_long_as_it_was_breaks_the_request_off(size: int) -> None:
    async with facing([Hold()]) as (connections, provider):
        assert (await failure(send(connections, provider.url, body=File(3, size)))).kind is FailureKind.INTERNAL
        await eventually(lambda: connections.count == 0)
        assert provider.requests == []


@on_each_loop
async def test_early_refusal_of_an_upload_is_read_and_the_upload_stops() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(100_000)
        writer.write(answer(413, b"too ", {"content-length": "9"}).data)
        draining = asyncio.ensure_future(reader.read())
        await go_on.wait()
        writer.write(b"large")
        await draining

    file, go_on = File(400), asyncio.Event()
    async with served_by(refuse) as url, client() as connections:
        exchange = await send(connections, url, body=file)
        taken = file.taken
        for _ in range(200):
            await asyncio.sleep(0)
        go_on.set()
        assert (exchange.status, await rest_of(exchange)) == (413, b"too large")
        await eventually(lambda: connections.count == 0)
        assert file.taken == taken < 400


@on_each_loop
async def test_early_answer_does_not_end_an_upload_that_it_may_belong_to() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(stream_head().data + chunk(b"begun").data)
        received = len(await reader.readexactly(100 * 65536))
        writer.write(chunk(b"%d" % received).data + END.data)
        await reader.read()

    async with served_by(echo) as url, client() as connections:
        assert await rest_of(await send(connections, url, body=File(100))) == b"begun6553600"


@on_each_loop
async def test_answer_that_is_whole_before_its_request_leaves_no_connection() -> None:
    async def hurry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(100_000)
        writer.write(OK.data)
        while await reader.read(1 << 20):
            pass

    async with served_by(hurry) as url, client() as connections:
        file = File(4000)
        assert await rest_of(await send(connections, url, body=file)) == b"fine"
        await eventually(lambda: connections.count == 0)
        assert file.taken < 4000


# responses


@on_each_loop
async def test_body_is_delivered_as_it_arrives() -> None:
    go_on = asyncio.Event()
    async with facing([stream_head(), chunk(b"one"), Pause(go_on), chunk(b"two"), chunk(b"three"), END]) as (
        it,
        provider,
    ):
        exchange = await send(it, provider.url)
        assert await exchange.read() == b"one"
        go_on.set()
        assert await rest_of(exchange) == b"twothree"
        assert await exchange.read() == b""


@on_each_loop
@pytest.mark.parametrize("end", [Close(), Reset()], ids=["closed", "reset"])
async def test_cut_is_reported_after_everything_that_came_before_it(end: Step) -> None:
    async with facing([stream_head(), chunk(b"one"), chunk(b"two"), Pause(0.02), end]) as (connections, provider):
        exchange = await send(connections, provider.url)
        await eventually(lambda: connections.count == 0)
        assert await exchange.read() == b"onetwo"
        for _ in range(2):
            assert (await failure(exchange.read())).kind is FailureKind.TRUNCATED


@on_each_loop
async def test_body_without_a_length_ends_with_the_connection() -> None:
    async with facing([Respond(PLAIN + b"\r\nsome"), Pause(0.01), Respond(b" more"), Close()]) as (
        connections,
        provider,
    ):
        assert await ask(connections, provider.url) == b"some more"


@on_each_loop
async def test_body_without_a_length_that_is_reset_is_cut() -> None:
    async with facing([Respond(PLAIN + b"\r\nsome"), Pause(0.02), Reset()]) as (connections, provider):
        exchange = await send(connections, provider.url)
        assert await exchange.read() == b"some"
        assert (await failure(exchange.read())).kind is FailureKind.TRUNCATED


BROKEN = [
    ("closed", [Close()], FailureKind.NETWORK),
    ("reset", [Reset()], FailureKind.NETWORK),
    ("closed in the head", [Respond(PLAIN), Close()], FailureKind.NETWORK),
    ("not HTTP", [Respond(b"SSH-2.0-x\r\n\r\n"), Hold()], FailureKind.MALFORMED),
    ("a head without end", [Respond(PLAIN + b"x-a: 1\r\n" * 9000), Hold()], FailureKind.MALFORMED),
    ("a huge header", [Respond(PLAIN + b"a: " + b"x" * 1_000_000 + b"\r\n\r\n"), Hold()], FailureKind.MALFORMED),
    ("101 unasked", [Respond(SWITCHED), Hold()], FailureKind.MALFORMED),
]  # fmt: skip


@on_each_loop
@pytest.mark.parametrize(("steps", "kind"), [each[1:] for each in BROKEN], ids=[each[0] for each in BROKEN])
async def test_invalid_response_states_why_and_leaves_no_connection(steps: Sequence[Step], kind: FailureKind) -> None:
    async with facing(steps) as (connections, provider):
        assert (await failure(send(connections, provider.url))).kind is kind
        await eventually(lambda: connections.count == 0)


@on_each_loop
@pytest.mark.parametrize("flood", [b"x-trailer: 1\r\n", b"1;" + b"e" * 70_000], ids=["trailers", "extension"])
async def test_missing_end_is_a_cut(flood: bytes) -> None:
    head = [stream_head(), chunk(b"one"), Respond(b"0\r\n" if b":" in flood else b"")]
    async with facing([*head, Pause(0.01), *[Respond(flood)] * 12000, Hold()]) as (connections, provider):
        exchange = await send(connections, provider.url)
        assert await exchange.read() == b"one"
        assert (await failure(exchange.read())).kind is FailureKind.TRUNCATED


@on_each_loop
async def test_unread_data_is_not_taken_from_the_upstream() -> None:
    async with pouring(b"x" * 8192) as fountain, client() as connections:
        exchange = await send(connections, fountain.url)
        poured = -1
        while poured < fountain.poured:
            poured = fountain.poured
            await asyncio.sleep(0.05)
        held = connections._living.copy().pop()
        assert sum(map(len, held.pieces)) < 1_000_000
        while fountain.poured < poured + 4_000_000:
            assert await exchange.read()
        exchange.abort()
        await eventually(lambda: fountain.closed_at is not None)
        assert (await failure(exchange.read())).kind is FailureKind.TRUNCATED


# connection reuse


@on_each_loop
@pytest.mark.parametrize("script", [[OK], [stream_head(), chunk(b"fi"), chunk(b"ne"), END]], ids=["length", "chunked"])
async def test_connection_is_used_again_the_one_used_last_first(script: Sequence[Step]) -> None:
    async with facing([Pause(0.02), *script], [Pause(0.02), *script], script) as (connections, provider):
        assert await asyncio.gather(*(ask(connections, provider.url) for _ in range(2))) == [b"fine"] * 2
        assert connections.count == 2
        for _ in range(3):
            assert await ask(connections, provider.url) == b"fine"
        assert sorted(uses(provider)) == [1, 4]


@on_each_loop
async def test_non_repeatable_request_gets_a_fresh_connection() -> None:
    async with facing([OK]) as (connections, provider):
        for is_repeatable in (True, False, True):
            assert await ask(connections, provider.url, is_repeatable=is_repeatable) == b"fine"
        assert uses(provider) == [1, 2]


@on_each_loop
@pytest.mark.parametrize("end", [Close(), Reset()], ids=["closed", "reset"])
async def test_pooled_connection_that_ends_before_any_byte_was_stale(end: Step) -> None:
    async with facing([OK], [end]) as (connections, provider):
        assert await ask(connections, provider.url) == b"fine"
        assert (await failure(ask(connections, provider.url))).kind is FailureKind.RETIRED
        assert uses(provider) == [2]


@on_each_loop
async def test_pooled_connection_that_ends_within_a_response_or_late_was_not_stale(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with facing([OK], [Respond(b"H"), Close()], [OK], [Close()]) as (connections, provider):
        for _ in range(2):
            assert await ask(connections, provider.url) == b"fine"
            assert (await failure(ask(connections, provider.url))).kind is FailureKind.NETWORK
            monkeypatch.setattr(upstream_connection, "_STALE_WITHIN_S", 0.0)


OLD = OK.data.replace(b"1.1", b"1.0").replace(b"\r\n", b"\r\nconnection: keep-alive\r\n", 1)
POISON = answer(200, b"POISON").data
ODD = [
    ("another answer", [Respond(OK.data + POISON)]),
    ("half of one", [Respond(OK.data + POISON[:9]), Pause(0.02), Respond(POISON[9:])]),
    ("one that comes later", [OK, Pause(0.02), Respond(POISON)]),
    ("a byte", [Respond(OK.data + b"\0")]),
    ("one behind the last chunk", [stream_head(), chunk(b"fine"), Respond(END.data + POISON)]),
    ("an end", [OK, Close()]),
    ("word of an end", [answer(200, b"fine", {"connection": "close"})]),
    ("no time to stay", [answer(200, b"fine", {"keep-alive": "timeout=1"})]),
    ("HTTP/1.0", [Respond(OLD)]),
]  # fmt: skip


@on_each_loop
@pytest.mark.parametrize("steps", [steps for _, steps in ODD], ids=[name for name, _ in ODD])
async def test_connection_on_which_anything_was_odd_is_never_used_again(steps: Sequence[Step]) -> None:
    async with facing(steps, [OK]) as (connections, provider):
        assert await ask(connections, provider.url) == b"fine"
        await eventually(lambda: connections.count == 0)
        assert await ask(connections, provider.url) == b"fine"
        assert uses(provider) == [1, 1]


@on_each_loop
@pytest.mark.parametrize("body", [b"", b"12345"], ids=["none", "one"])
async def test_response_to_head_has_no_body(body: bytes) -> None:
    head = Respond(PLAIN + b"content-length: 5\r\n\r\n" + body)
    async with facing([head], [OK]) as (connections, provider):
        exchange = await send(connections, provider.url, "HEAD")
        assert (await rest_of(exchange), dict(exchange.headers)["content-length"]) == (b"", "5")
        assert await ask(connections, provider.url) == b"fine"
        assert uses(provider) == [1, 1]


@on_each_loop
async def test_answer_without_content_leaves_its_connection_to_the_next() -> None:
    async with facing([Respond(b"HTTP/1.1 204 None\r\n\r\n")], [OK]) as (connections, provider):
        assert await ask(connections, provider.url) == b""
        assert await ask(connections, provider.url) == b"fine"
        assert uses(provider) == [2]


@on_each_loop
async def test_exchange_that_is_over_does_not_end_the_one_after_it() -> None:
    go_on = asyncio.Event()
    async with facing([OK], [stream_head(), chunk(b"a"), Pause(go_on), END]) as (connections, provider):
        first = await send(connections, provider.url)
        second = await send(connections, provider.url)
        first.abort()
        assert await first.read() == b"fine"  # it had arrived completely before the abort
        go_on.set()
        assert await rest_of(second) == b"a"
        assert uses(provider) == [2]


@on_each_loop
async def test_connections_that_idle_are_bounded_and_grow_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origin_module, "_MAX_IDLE", 2)
    monkeypatch.setattr(origin_module, "_SWEEP_S", 0.01)
    script: Sequence[Step] = [Pause(0.02), OK]
    async with facing(script, script, script) as (connections, provider):
        await asyncio.gather(*(ask(connections, provider.url) for _ in range(3)))
        await eventually(lambda: connections.count == 2)
        origin = connections._origins[provider.url]
        for idle in origin._idle:
            idle.expires_at -= origin_module._IDLE_S
        await eventually(lambda: connections.count == 0)
        assert await provider.closed_within(1)


@on_each_loop
async def test_connection_that_has_grown_old_unseen_is_not_used() -> None:
    async with facing([OK]) as (connections, provider):
        await ask(connections, provider.url)
        (idle,) = connections._origins[provider.url]._idle
        idle.expires_at -= origin_module._IDLE_S
        assert await ask(connections, provider.url) == b"fine"
        assert uses(provider) == [1, 1]


# aborts and shutdown


@on_each_loop
@pytest.mark.parametrize("steps", [[Hold()], [Respond(PLAIN), Hold()]], ids=["no byte", "half a head"])
async def test_cancelled_before_the_head_it_closes_at_once(steps: Sequence[Step]) -> None:
    async with facing(steps) as (connections, provider):
        sending = asyncio.ensure_future(send(connections, provider.url))
        await eventually(lambda: provider.requests)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert await provider.closed_within(1)


@on_each_loop
async def test_cancelled_in_its_body_it_closes_at_once() -> None:
    async with facing([stream_head(), chunk(b"a"), Hold()]) as (connections, provider):
        exchange = await send(connections, provider.url)
        exchange.abort()
        exchange.abort()
        assert await provider.closed_within(1)


@on_each_loop
async def test_close_ends_idle_and_running_connections() -> None:
    async with facing([OK], [stream_head(), chunk(b"a"), Hold()]) as (connections, provider):
        await asyncio.gather(ask(connections, provider.url), asyncio.sleep(0))
        running = await send(connections, provider.url)
        assert await running.read() == b"a"
        await connections.close()
        assert connections.count == 0
        assert (await failure(running.read())).kind is FailureKind.TRUNCATED
        assert await provider.closed_within(1)


# upgrades


class Inbox:
    def __init__(self) -> None:
        self.received = b""
        self.is_over = False

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self.received += data
        return False, b""

    def feed_eof(self) -> None:
        self.is_over = True


@on_each_loop
async def test_upgraded_connection_passes_bytes_in_both_directions_from_the_first() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SWITCHED + b"first")
        writer.write(await reader.readexactly(5))

    async with served_by(greet) as url, client() as connections:
        exchange = await send(connections, url, "GET", headers=UPGRADE)
        inbox = Inbox()
        wire = exchange.take_over(inbox)
        await wire.write(b"hello")
        await eventually(lambda: inbox.is_over)
        assert (exchange.status, inbox.received) == (101, b"firsthello")
        with pytest.raises(ConnectionError):
            await wire.write(b"x")
        exchange.abort()


@on_each_loop
async def test_last_bytes_of_an_upgraded_connection_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream_connection, "_LAST_BYTES_S", 30.0)
    received = 0

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal received
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SWITCHED)
        while data := await reader.read(1 << 16):
            received += len(data)

    async with served_by(listen) as url, client() as connections:
        exchange = await send(connections, url, "GET", headers=UPGRADE)
        wire = exchange.take_over(Inbox())
        wire.transport.write(b"b" * 10_000_000)  # more than the system accepts at once
        exchange.abort()
        await eventually(lambda: received == 10_000_000)


@on_each_loop
async def test_refused_upgrade_is_an_answer_like_any_other() -> None:
    async with facing([answer(400, b"no")]) as (connections, provider):
        exchange = await send(connections, provider.url, "GET", headers=UPGRADE)
        assert (exchange.status, await rest_of(exchange)) == (400, b"no")


@on_each_loop
async def test_calls_cancelled_while_they_connect_leak_nothing() -> None:
    async with facing([OK]) as (connections, provider):
        for turns in range(14):
            for _ in range(20):
                sending = connections.origin(provider.url).send(
                    "GET", "/v1/x", RequestHeaders([]), b"", None, is_repeatable=False
                )
                task = asyncio.ensure_future(sending)
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await eventually(lambda: connections.count == len(connections._origins[provider.url]._idle))
