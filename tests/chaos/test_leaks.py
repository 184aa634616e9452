"""Ten thousand calls that time out and ten thousand that are abandoned leave nothing behind (`make test`: an eighth of
them)."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import psutil
import pytest
import structlog

from llm_guard.app import App, create_app
from tests.chaos.forms import CHAT
from tests.chaos.stand import config_of, total
from tests.chaos.wire import fetch
from tests.effort import repeated
from tests.fakes.waiting import eventually

CALLS = repeated(10_000)
AT_ONCE = 200
GROWTH_BYTES = 5 << 20
"""Bytes by which the second half of the calls may grow the process's memory: 1 kB per call with full effort. Not
scaled, because after a quarter of the calls the allocator alone takes 1.5 MB more."""
NEVER_OPEN = {"consecutive_failures": 1_000_000, "min_calls": 1_000_000}

UNARY, STREAM = CHAT.request(), CHAT.request(stream=True)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Turns off logging: twenty thousand log lines would distort the measurement."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


class Silent(asyncio.Protocol):
    """A provider's connection that reads everything and never answers."""

    def __init__(self, open_ones: set[Silent]) -> None:
        self._open = open_ones

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._open.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._open.discard(self)


class Caller(asyncio.Protocol):
    """A client's connection with one request at a time; `answered` ends with the response or the connection."""

    def __init__(self) -> None:
        self.answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if not self.answered.done():
            self.answered.set_result(data)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.answered.done():
            self.answered.set_result(b"")


@asynccontextmanager
async def silent_provider() -> AsyncIterator[tuple[str, set[Silent]]]:
    open_ones: set[Silent] = set()
    server = await asyncio.get_running_loop().create_server(lambda: Silent(open_ones), "127.0.0.1", 0, backlog=1000)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", open_ones
    finally:
        server.close()
        for open_one in list(open_ones):
            open_one.transport.abort()  # type: ignore[attr-defined]
        await server.wait_closed()


async def call_and_time_out(port: int, number: int) -> None:
    """Makes one call that the gateway's limit ends."""
    loop = asyncio.get_running_loop()
    transport, caller = await loop.create_connection(Caller, "127.0.0.1", port)
    transport.write(STREAM if number % 2 else UNARY)
    answer = await caller.answered
    assert answer.startswith(b"HTTP/1.1 504 "), answer
    transport.abort()


async def call_and_leave(port: int, number: int) -> None:
    """Makes one call that its client abandons after 0 to 39 ms."""
    transport, _ = await asyncio.get_running_loop().create_connection(Caller, "127.0.0.1", port)
    transport.write(STREAM if number % 2 else UNARY)
    await asyncio.sleep(0.001 * (number % 40))
    transport.abort()


async def repeat(one: Callable[[int, int], Awaitable[None]], port: int, numbers: range) -> None:
    """Runs `one` for each number, AT_ONCE at a time."""
    waiting = iter(numbers)

    async def work() -> None:
        for number in waiting:
            await one(port, number)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(work())


def memory() -> int:
    gc.collect()
    return psutil.Process().memory_info().rss


@pytest.mark.parametrize(
    ("one", "limit", "outcome"),
    [(call_and_time_out, "20ms", "timeout"), (call_and_leave, "5s", "client_cancelled")],
    ids=["timed out", "abandoned"],
)
async def test_ten_thousand_calls_leak_nothing(
    one: Callable[[int, int], Awaitable[None]], limit: str, outcome: str
) -> None:
    async with silent_provider() as (url, open_ones):
        limits = {"attempt": limit, "first_token": limit}
        app = create_app(config_of(url, timeout=limits, breaker=NEVER_OPEN))
        await app.start()
        port = int(app.addresses[0].rsplit(":", 1)[1])
        await repeat(one, port, range(AT_ONCE))
        await settle(app, open_ones)
        tasks, handles = len(asyncio.all_tasks()), psutil.Process().num_fds()

        await repeat(one, port, range(CALLS // 2))
        await settle(app, open_ones)
        half = memory()
        await repeat(one, port, range(CALLS // 2))
        await settle(app, open_ones)
        assert memory() - half < GROWTH_BYTES

        await eventually(lambda: psutil.Process().num_fds() <= handles)
        await eventually(lambda: len(asyncio.all_tasks()) <= tasks)
        metrics = (await fetch(f"{app.addresses[0]}/metrics")).text
        assert total(metrics, "llm_guard_in_flight_calls") == 0
        calls = total(metrics, "llm_guard_calls_total")
        assert total(metrics, "llm_guard_calls_total", outcome=outcome) == calls
        # A client that disconnects at once may be gone before its request is read.
        assert calls > CALLS * (0.8 if outcome == "client_cancelled" else 1)
        await app.stop()


async def settle(app: App, open_ones: set[Silent]) -> None:
    """Waits until every call is over and the gateway has closed every connection to the provider."""
    await eventually(lambda: app.gateway.running == 0)
    await eventually(lambda: not open_ones)
