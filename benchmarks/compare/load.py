"""Calls over keep-alive connections, as fast as responses come or at a given rate.

A client that takes a few microseconds per call: with an SDK, the SDK would be measured. The targets are chosen in
`measure`; streams are in `benchmarks.stream_client`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import deque
from dataclasses import dataclass
from random import Random
from selectors import SelectSelector
from typing import cast
from urllib.parse import urlsplit

from uvloop import new_event_loop

from benchmarks.processes import Way

_WELL = b"HTTP/1.1 200"
_BODY = json.dumps(
    {
        "model": "gpt-4o",
        "messages": [
            {"role": "system", "content": "You are a patient engineer. " * 12},
            {"role": "user", "content": "Why do circuit breakers need a half-open state? " * 22},
        ],
        "temperature": 0.2,
    }
).encode()
_HEAD = (
    "POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\naccept: application/json\r\n"
    "content-type: application/json\r\nuser-agent: OpenAI/Python 3.52.0\r\n"
    "authorization: Bearer sk-benchmark\r\nx-stainless-lang: python\r\n"
    "x-stainless-retry-count: 0\r\nx-stainless-read-timeout: 600\r\ncontent-length: {length}\r\n\r\n"
)
_WARM_UP_S = 0.2
_LAST_ANSWERS_S = 3.0
_SEED = 7


@dataclass(frozen=True, slots=True)
class Calls:
    """Results of one run of calls."""

    seconds: float
    cpu_s: float
    """CPU time of the target's process; nan if unknown."""
    latencies_s: tuple[float, ...]
    """Latencies of the successful calls."""
    failed: int
    """Calls with another status than 200, a broken connection or no response."""
    complaint: str
    """The first failure."""


def as_fast_as_possible(way: Way, connections: int, seconds: float) -> Calls:
    """Each connection sends its next call as soon as it has the response. Raises OSError if nothing listens."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_ask_again_and_again(way, connections, seconds))


def at_rate(way: Way, connections: int, per_s: float, seconds: float) -> Calls:
    """Calls arrive at random (Poisson), at the same times for every target. A latency begins when a call was due, so
    that waiting for a free connection is included. Raises OSError.

    Does not use uvloop or epoll, which wake at whole milliseconds; select() wakes within some 70 us."""
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(SelectSelector())) as runner:
        return runner.run(_ask_at_rate(way, connections, per_s, seconds))


def request(url: str) -> bytes:
    """A request of 1.5 kB with headers, like an SDK's."""
    return _HEAD.format(host=urlsplit(url).netloc, length=len(_BODY)).encode() + _BODY


class Load:
    """The connections, and the results of their calls."""

    def __init__(self, url: str) -> None:
        self.request = request(url)
        self.idle: deque[Connection] = deque()
        self.waiting: deque[float] = deque()
        """Due times of calls that wait for a connection."""
        self.asks_again = True
        self._asking = 0
        self._all_answered = asyncio.Event()
        self.begin()

    def begin(self) -> None:
        """Discards the results so far, which were warm-up."""
        self.latencies_s: list[float] = []
        self.failed = 0
        self.complaint = ""

    def ask(self, due_at: float) -> None:
        """Sends a call at once if a connection is free, else as soon as one is."""
        if self.idle:
            self._ask(self.idle.popleft(), due_at)
        else:
            self.waiting.append(due_at)

    def answered(self, connection: Connection, latency_s: float, answer: bytes) -> None:
        """Called by a connection that has its whole response."""
        self._asking -= 1
        if answer.startswith(_WELL):
            self.latencies_s.append(latency_s)
        else:
            self._fail(answer.partition(b"\r\n")[0].decode(errors="replace"))
        if self.asks_again:
            self._ask(connection, time.monotonic())
        elif self.waiting:
            self._ask(connection, self.waiting.popleft())
        else:
            self.idle.append(connection)
            if not self._asking:
                self._all_answered.set()

    def lost(self, connection: Connection, why: str | None) -> None:
        """Called by a closed connection; `why`: set if a call was waiting for its response."""
        if why is None:
            with contextlib.suppress(ValueError):  # closed by this client after the last call
                self.idle.remove(connection)
        else:
            self._asking -= 1
            self._fail(why)

    async def wait_idle(self) -> None:
        """Waits until every call has its response; calls without one after some seconds have failed."""
        self._all_answered.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_ANSWERS_S if self._asking else 0):
                await self._all_answered.wait()
        for _ in range(self._asking + len(self.waiting)):
            self._fail(f"no answer {_LAST_ANSWERS_S:.0f} s after the last call")

    def _ask(self, connection: Connection, due_at: float) -> None:
        self._asking += 1
        connection.ask(due_at)

    def _fail(self, why: str) -> None:
        self.failed += 1
        self.complaint = self.complaint or why


class Connection(asyncio.Protocol):
    """Sends one call at a time."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._received = b""
        self._due_at: float | None = None
        """Due time of the call that waits for its response."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's transports are not subclasses of asyncio's

    def ask(self, due_at: float) -> None:
        """Sends a call; `due_at` in monotonic seconds."""
        self._due_at = due_at
        self.transport.write(self._load.request)

    def data_received(self, data: bytes) -> None:
        if self._received:
            data = self._received + data
        if not is_whole(data):
            self._received = data
            return
        self._received = b""
        due_at, self._due_at = self._due_at, None
        if due_at is not None:
            self._load.answered(self, time.monotonic() - due_at, data)

    def connection_lost(self, error: Exception | None) -> None:
        due_at, self._due_at = self._due_at, None
        self._load.lost(self, None if due_at is None else f"a connection broke: {error or 'closed without an answer'}")


def is_whole(answer: bytes) -> bool:
    """True if the response is complete, by its length or its last chunk."""
    end = answer.find(b"\r\n\r\n")
    if end < 0:
        return False
    head = answer[:end].lower()
    at = head.find(b"\r\ncontent-length:")
    if at < 0:
        return answer.endswith(b"\r\n0\r\n\r\n")
    return len(answer) >= end + 4 + int(head[at + 17 :].partition(b"\r\n")[0])


async def _ask_again_and_again(way: Way, connections: int, seconds: float) -> Calls:
    load = Load(way.url)
    opened = await _connect(way, load, connections)
    try:
        for _ in opened:
            load.ask(time.monotonic())
        await asyncio.sleep(_WARM_UP_S)
        load.begin()
        began_at, cpu_s = time.monotonic(), way.cpu_s()
        await asyncio.sleep(seconds)
        cpu_s, took_s = way.cpu_s() - cpu_s, time.monotonic() - began_at
        latencies_s = tuple(load.latencies_s)
        load.asks_again = False
        await load.wait_idle()
    finally:
        _close(opened)
    return Calls(took_s, cpu_s, latencies_s, load.failed, load.complaint)


async def _ask_at_rate(way: Way, connections: int, per_s: float, seconds: float) -> Calls:
    load = Load(way.url)
    opened = await _connect(way, load, connections)
    try:
        for _ in opened:
            load.ask(time.monotonic())
        await asyncio.sleep(_WARM_UP_S)
        load.asks_again = False
        await load.wait_idle()
        load.begin()
        began_at, cpu_s = time.monotonic(), way.cpu_s()
        await _come(load, instants(per_s, seconds))
        await load.wait_idle()
        cpu_s, took_s = way.cpu_s() - cpu_s, time.monotonic() - began_at
    finally:
        _close(opened)
    return Calls(took_s, cpu_s, tuple(load.latencies_s), load.failed, load.complaint)


def instants(per_s: float, seconds: float) -> list[float]:
    """Arrival times in seconds from the start; random, but the same each time."""
    dice, found = Random(_SEED), [0.0]
    while found[-1] < seconds:
        found.append(found[-1] + dice.expovariate(per_s))
    return found[:-1]


async def _come(load: Load, instants: list[float]) -> None:
    """Sends a call at each of the times; one that the loop wakes too late for keeps its due time."""
    loop = asyncio.get_running_loop()
    began_at, over, coming = time.monotonic(), loop.create_future(), deque(instants)

    def arrive() -> None:
        now = time.monotonic()
        while coming and began_at + coming[0] <= now:
            load.ask(began_at + coming.popleft())
        if coming:
            loop.call_at(began_at + coming[0], arrive)  # the loop's clock is the monotonic one
        else:
            over.set_result(None)

    arrive()
    await over


async def _connect(way: Way, load: Load, connections: int) -> list[Connection]:
    place = urlsplit(way.url)
    assert place.hostname is not None
    assert place.port is not None
    loop = asyncio.get_running_loop()
    for _ in range(connections):
        _, connection = await loop.create_connection(lambda: Connection(load), place.hostname, place.port)
        load.idle.append(connection)
    return list(load.idle)


def _close(connections: list[Connection]) -> None:
    for connection in connections:
        connection.transport.abort()
