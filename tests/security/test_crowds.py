"""More connections and calls than there is room for: which are served, which wait, and which are rejected."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import psutil

from tests.chaos.forms import CHAT
from tests.chaos.stand import config_text, facing
from tests.chaos.wire import Connection
from tests.fakes.provider import END, Hold, Pause, ScriptedProvider, Step, chunk, stream_head
from tests.fakes.waiting import eventually
from tests.security.grammar import head
from tests.security.stand import HOST, Recorder, crowd, fronting, process_of

GET = b"GET /v1/files HTTP/1.1"


@asynccontextmanager
async def idle_sockets(url: str, size: int) -> AsyncIterator[list[socket.socket]]:
    """Opens connections that send nothing."""
    loop = asyncio.get_running_loop()
    sockets: list[socket.socket] = []
    try:
        for _ in range(size):
            one = socket.socket()
            one.setblocking(False)
            sockets.append(one)
            await loop.sock_connect(one, ("127.0.0.1", int(url.rsplit(":", 1)[1])))
        yield sockets
    finally:
        for one in sockets:
            one.close()


def is_open(one: socket.socket) -> bool:
    try:
        return bool(one.recv(1))
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


@contextmanager
def allowed_descriptors(needed: int) -> Iterator[int]:
    """Raises this process's limit of open files to `needed`, or as far as the machine allows; yields the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    try:
        yield most
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_thousands_of_idle_connections_do_not_stop_a_call(tmp_path: Path) -> None:
    """C23, C29: ten thousand, where the machine allows a process so many; all stay open, since they are within the
    limit."""
    with allowed_descriptors(10_500) as most:
        size = most - 500
        async with Recorder() as provider:
            text = config_text(provider.url, server={"max_connections": size + 100})
            async with (
                process_of(tmp_path / "c.yaml", text, descriptors=most) as served,
                idle_sockets(served.url, size) as sockets,
            ):
                for _ in range(20):
                    assert (await CHAT.ask(served.url)).status == 200
                assert sum(map(is_open, sockets)) == size


async def test_connection_above_the_limit_replaces_the_longest_idle_one() -> None:
    """C29: the connection that has been idle longest is closed."""
    async with fronting(server={"max_connections": 8}) as front, AsyncExitStack() as stack:
        first, *others = await crowd(stack, front.url, 8)
        for other in (*others, first):
            assert (await other.ask(head(GET, HOST))).status == 200
        assert (await CHAT.ask(front.url)).status == 200
        assert await others[0].is_closed()
        for each in (first, *others[1:]):
            assert (await each.ask(head(GET, HOST))).status == 200


async def test_connection_above_the_limit_is_refused_when_all_are_in_use() -> None:
    """C29: a new connection does not abort a call in flight."""
    go_on = asyncio.Event()
    script: list[Step] = [Pause(go_on), *CHAT.ok]
    async with (
        facing(*[script] * 8, server={"max_connections": 8}) as (stand, provider),
        AsyncExitStack() as stack,
    ):
        used = await crowd(stack, stand.url, 8)
        answers = [asyncio.create_task(each.ask(CHAT.request())) for each in used]
        await eventually(lambda: len(provider.requests) == 8)
        async with Connection(stand.url) as late:
            reply = await late.reply()
            assert reply.status == 503
            assert reply.headers["connection"] == "close"
            assert await late.is_closed()
        go_on.set()
        assert [(await answer).status for answer in answers] == [200] * 8
        assert (await CHAT.ask(stand.url)).status == 200


async def test_gateway_with_few_descriptors_outlives_a_flood_of_connections(tmp_path: Path) -> None:
    """C29: `ulimit -n 256`, 500 sockets."""
    go_on = asyncio.Event()
    slow: list[Step] = [
        stream_head(),
        *map(chunk, CHAT.preamble),
        chunk(CHAT.token),
        Pause(go_on),
        chunk(CHAT.end),
        END,
    ]
    async with (
        ScriptedProvider(slow, CHAT.ok) as provider,
        process_of(tmp_path / "c.yaml", config_text(provider.url), descriptors=256) as served,
        Connection(served.url) as streaming,
    ):
        streaming.writer.write(CHAT.request(stream=True))
        assert (await streaming.head()).status == 200
        async with idle_sockets(served.url, 500):
            assert (await CHAT.ask(served.url)).status == 200
            go_on.set()
            async with asyncio.timeout(5):
                rest = await streaming.reader.readuntil(b"\r\n0\r\n\r\n")
            assert rest.endswith(chunk(CHAT.end).data + END.data)
        assert (await CHAT.ask(served.url)).status == 200
    assert served.complaints == []


async def test_gateway_that_is_allowed_more_connections_than_descriptors_resets_no_call(tmp_path: Path) -> None:
    """C29: `max_connections: 5000`, `ulimit -n 128`. Idle connections are closed; the log says which limit is used."""
    async with Recorder() as provider:
        text = config_text(provider.url, server={"max_connections": 5000})
        async with process_of(tmp_path / "c.yaml", text, descriptors=128) as served:
            async with idle_sockets(served.url, 500):
                assert (await CHAT.ask(served.url)).status == 200
            for _ in range(20):
                assert (await CHAT.ask(served.url)).status == 200
            assert psutil.Process(served.process.pid).num_fds() < 128
            said = await served.logged("server.max_connections is more than the open files allow")
            assert said["limit"] == 64


async def test_calls_to_a_hanging_provider_are_refused_above_the_queue_limit() -> None:
    """C30: ten times as many calls as fit; the rest get a Retry-After."""
    models = {"gpt": {"deployments": [{"upstream": "one"}], "capacity": {"concurrency": 4, "max_queue": 8}}}
    async with facing([Hold()], models=models) as (stand, provider), AsyncExitStack() as stack:
        clients = await crowd(stack, stand.url, 120)
        answers = [asyncio.create_task(client.ask(CHAT.request())) for client in clients]
        await eventually(lambda: sum(answer.done() for answer in answers) == 108 and len(provider.requests) == 4)
        refused = [answer.result() for answer in answers if answer.done()]
        assert {each.status for each in refused} <= {429, 503}
        assert all(int(each.headers["retry-after"]) >= 1 for each in refused)
        assert stand.app.gateway.running == 12
        for client in clients:
            client.leave("reset")
        await asyncio.gather(*answers, return_exceptions=True)
