"""A gateway in front of a provider that records every byte it receives, and clients that send arbitrary bytes.

Also has the checks that must hold after every attack.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Self, cast

from tests.chaos.forms import ANY_ANSWER, CHAT
from tests.chaos.process import _ROOT, Served, _read_complaints, _read_log, write
from tests.chaos.stand import Section, Stand, config_of, standing
from tests.chaos.wire import Connection, Reply, ask, fetch
from tests.fakes.provider import whole
from tests.security.grammar import Request, first_request, head

BODY = b'{"model":"gpt"}'
POST = b"POST /v1/chat/completions HTTP/1.1"
HOST = b"Host: test"
SMUGGLED = head(POST, HOST, b"X-Smuggled: yes", b"Content-Length: %d" % len(BODY)) + BODY
"""A call placed after an attack on its connection: it is executed if the attack is misread."""
_PATIENCE_S = 5.0
"""Seconds that a client waits for a connection that should be closed at once."""
_number = count(1)

Answer = Callable[[Request], bytes]


def usual_answer(request: Request) -> bytes:
    """Answers a call with its form's good response, and anything else with the requested target."""
    if request.method == b"POST":
        return whole(200, CHAT.answer if request.target == CHAT.path.encode() else ANY_ANSWER).data
    said = whole(200, b'{"object":"list","data":[],"target":"%b"}' % request.target).data
    return said.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" if request.method == b"HEAD" else said


class Recorder:
    """A provider that accepts only unambiguously framed requests."""

    def __init__(self, answer: Answer = usual_answer) -> None:
        self.answer = answer
        self.url = ""
        self.connections: list[bytearray] = []
        """Every byte of each connection, unparsed."""
        self.requests: list[Request] = []
        """Requests of all connections, in the order of arrival."""

    async def __aenter__(self) -> Self:
        self._lines: set[asyncio.Transport] = set()
        self._server = await asyncio.get_running_loop().create_server(lambda: _Line(self), "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *_exception: object) -> None:
        self._server.close()
        for transport in list(self._lines):
            transport.abort()
        await self._server.wait_closed()

    @property
    def port(self) -> int:
        return int(self._server.sockets[0].getsockname()[1])

    def check(self) -> None:
        """Checks that every byte belongs to a request framed by the gateway, and that every request is for this
        host."""
        for received in self.connections:
            at = 0
            while at < len(received):
                taken = first_request(bytes(received), at)
                assert taken is not None, f"half a request: {bytes(received[at:])[:200]!r}"
                at = taken[1]
        for request in self.requests:
            assert request.minor == 1
            assert request.values(b"host") == [b"127.0.0.1:%d" % self.port]
            assert not request.values(b"transfer-encoding")
            assert request.values(b"content-length") or not request.body
            assert request.target.startswith(b"/v1/")


class _Line(asyncio.Protocol):
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._received = bytearray()
        self._taken = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._recorder._lines.add(self._transport)
        self._recorder.connections.append(self._received)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (taken := first_request(bytes(self._received), self._taken)) is not None:
            request, self._taken = taken
            self._recorder.requests.append(request)
            self._transport.write(self._recorder.answer(request))

    def connection_lost(self, error: Exception | None) -> None:
        self._recorder._lines.discard(self._transport)


@dataclass(slots=True)
class Received:
    """Everything received over one connection."""

    answers: list[Reply]
    is_closed: bool
    """Closed by the gateway."""
    is_reset: bool
    """Closed with RST: over a real network the response could be lost with it."""

    @property
    def statuses(self) -> list[int]:
        return [answer.status for answer in self.answers]


async def hear(url: str, *pieces: bytes, patience_s: float = _PATIENCE_S, has_body: bool = True) -> Received:
    """Sends the pieces one after the other, then reads until the gateway closes, for at most `patience_s` seconds."""
    received = bytearray()
    is_closed, is_reset = True, False
    async with Connection(url) as connection:
        try:
            async with asyncio.timeout(patience_s):
                for piece in pieces:
                    connection.writer.write(piece)
                    await asyncio.sleep(0)
                while data := await connection.reader.read(1 << 16):
                    received += data
        except ConnectionError:
            is_reset = True
        except TimeoutError:
            is_closed = False
    return Received(await _answers(bytes(received), has_body=has_body), is_closed, is_reset)


async def _answers(received: bytes, *, has_body: bool) -> list[Reply]:
    connection = Connection("http://test")
    connection.reader = asyncio.StreamReader(limit=1 << 20)
    connection.reader.feed_data(received)
    connection.reader.feed_eof()
    found = []
    while not connection.reader.at_eof():
        reply = await connection.reply(has_body=has_body)
        assert reply.is_whole
        found.append(reply)
    return found


async def crowd(stack: AsyncExitStack, url: str, size: int) -> list[Connection]:
    """Opens connections that have sent nothing yet."""
    return [await stack.enter_async_context(Connection(url)) for _ in range(size)]


@dataclass(slots=True)
class Front:
    """A gateway under attack and the provider behind it."""

    stand: Stand
    provider: Recorder

    @property
    def url(self) -> str:
        return self.stand.url

    async def hear(self, *pieces: bytes, patience_s: float = _PATIENCE_S, has_body: bool = True) -> Received:
        return await hear(self.url, *pieces, patience_s=patience_s, has_body=has_body)

    async def check_refused(self, attack: bytes, statuses: Collection[int] = (400,)) -> Reply:
        """Expects one response, the end of the connection, and that the provider receives neither a byte of the attack
        nor of a call that follows it on the connection."""
        heard = await self.hear(attack + SMUGGLED)
        assert heard.is_closed, heard.statuses
        assert len(heard.answers) == 1, heard.statuses
        (answer,) = heard.answers
        assert answer.status in statuses, answer
        assert answer.headers["connection"].lower() == "close"
        await self.check_reached()
        return answer

    async def check_reached(self, *expected: bytes) -> None:
        """Checks that exactly these bodies have reached the provider. Sends an honest call first, which arrives after
        everything in transit."""
        mark = b'{"model":"gpt","user":"%d"}' % next(_number)
        assert (await ask(self.url, CHAT.path, mark)).status == 200
        await self.stand.idle()
        self.provider.check()
        assert [request.body for request in self.provider.requests] == [*expected, mark]
        self.provider.requests.clear()


@asynccontextmanager
async def fronting(answer: Answer = usual_answer, **sections: Section) -> AsyncIterator[Front]:
    """Runs a gateway in front of a recording provider."""
    async with Recorder(answer) as provider, standing(config_of(provider.url, **sections)) as stand:
        yield Front(stand, provider)
        provider.check()


@asynccontextmanager
async def process_of(
    path: Path, text: str, *, descriptors: int | None = None, env: Sequence[str] = ()
) -> AsyncIterator[Served]:
    """Runs a gateway in a process of its own, limited to `descriptors` open files, with
    `env` added to its environment."""
    limit = f"ulimit -n {descriptors} && " if descriptors is not None else ""
    served = (sys.executable, "-m", "llm_guard", "serve", "-c", str(write(path, text)))
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", f'{limit}exec env "$@"', "sh", f"PYTHONPATH={_ROOT}", "PYTHONUNBUFFERED=1", *env, *served,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    one = Served(process, "")
    reading: asyncio.Future[tuple[None, None]] | None = None
    try:
        async with asyncio.timeout(20):
            one.said = (await process.stderr.readline()).decode()
        assert one.urls, one.said
        assert (await fetch(f"{one.url}/healthz")).status == 200
        reading = asyncio.gather(_read_log(process.stdout, one), _read_complaints(process.stderr, one))
        yield one
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        if reading is not None:
            await reading
