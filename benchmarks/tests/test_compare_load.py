"""The comparison's clients: which calls count as successful, and when their latency begins."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time

import pytest

from benchmarks.compare.load import _BODY, Connection, Load, instants, is_whole, request
from benchmarks.relay_peers import _ANSWER, _ANSWER_BODY, _Connection

HEAD = b"HTTP/1.1 200 OK\r\n"
PLAIN = HEAD + b"Content-Length: 5\r\n\r\nhello"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"


class Line(asyncio.Transport):
    """Records what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)


def connected(load: Load) -> Connection:
    connection = Connection(load)
    connection.connection_made(Line())
    load.idle.append(connection)
    return connection


@pytest.mark.parametrize("answer", [PLAIN, CHUNKED])
def test_answer_is_whole_with_its_last_byte(answer: bytes) -> None:
    assert is_whole(answer)
    assert not [cut for cut in range(len(answer)) if is_whole(answer[:cut])]


async def test_answer_in_pieces_is_one_answer() -> None:
    load = Load("http://127.0.0.1:9")
    connection = connected(load)
    load.ask(time.monotonic())
    for answers in (1, 2):
        for at in range(len(PLAIN)):
            assert len(load.latencies_s) == answers - 1
            connection.data_received(PLAIN[at : at + 1])
    assert (len(load.latencies_s), load.failed) == (2, 0)


async def test_next_call_is_sent_after_the_response() -> None:
    load = Load("http://127.0.0.1:9")
    connection = connected(load)
    load.ask(time.monotonic())
    connection.data_received(PLAIN)
    connection.data_received(CHUNKED)
    assert isinstance(connection.transport, Line)
    assert connection.transport.written == 3 * load.request
    assert len(load.latencies_s) == 2


async def test_unexpected_status_is_a_reported_failure() -> None:
    load = Load("http://127.0.0.1:9")
    connection = connected(load)
    load.ask(time.monotonic())
    connection.data_received(PLAIN.replace(b"200 OK", b"503 Service Unavailable"))
    connection.data_received(PLAIN.replace(b"200 OK", b"404 Not Found"))
    assert (load.failed, load.complaint, load.latencies_s) == (2, "HTTP/1.1 503 Service Unavailable", [])


async def test_broken_connection_is_a_failure_only_where_a_call_waits() -> None:
    load = Load("http://127.0.0.1:9")
    asked, unasked = connected(load), connected(load)
    load.ask(time.monotonic())
    unasked.connection_lost(None)
    assert load.failed == 0
    asked.connection_lost(ConnectionResetError("reset"))
    assert (load.failed, load.complaint, list(load.idle)) == (1, "a connection broke: reset", [])


async def test_call_without_an_answer_has_failed_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.compare.load._LAST_ANSWERS_S", 0.01)
    load = Load("http://127.0.0.1:9")
    connected(load)
    load.ask(time.monotonic())
    load.ask(time.monotonic())  # this one has not even found a connection
    await load.wait_idle()
    assert load.failed == 2


async def test_latency_begins_when_a_call_was_due() -> None:
    """A call that finds no connection has waited as long as its user would have."""
    load = Load("http://127.0.0.1:9")
    load.asks_again = False
    connection = connected(load)
    now = time.monotonic()
    load.ask(now - 100)
    load.ask(now - 50)
    connection.data_received(PLAIN)
    connection.data_received(PLAIN)
    assert load.latencies_s == pytest.approx([100, 50], abs=1)


async def test_warm_up_is_forgotten() -> None:
    load = Load("http://127.0.0.1:9")
    connection = connected(load)
    load.ask(time.monotonic())
    connection.data_received(PLAIN)
    connection.data_received(b"HTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n")
    load.begin()
    assert (load.latencies_s, load.failed, load.complaint) == ([], 0, "")


def test_calls_arrive_randomly_at_the_rate_and_reproducibly() -> None:
    found = instants(1000, 5.0)
    gaps = [after - before for before, after in itertools.pairwise(found)]
    assert found == instants(1000, 5.0)
    assert len(found) == pytest.approx(5000, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(statistics.mean(gaps), rel=0.1), "which Poisson arrivals have"
    assert found[-1] < 5.0


def test_sizes_are_those_of_the_page() -> None:
    assert len(_BODY) == pytest.approx(1500, rel=0.05)
    assert len(_ANSWER_BODY) == pytest.approx(700, rel=0.1)


async def test_provider_answers_a_call_after_the_other() -> None:
    provider, line, asked = _Connection(), Line(), request("http://127.0.0.1:9")
    provider.connection_made(line)
    for answers in (1, 2):
        for data in (asked[:50], asked[50:-1], asked[-1:]):
            assert line.written == (answers - 1) * _ANSWER
            provider.data_received(data)
    assert line.written == 2 * _ANSWER
    assert is_whole(_ANSWER)


@pytest.mark.parametrize("field", [b'"user": "pace_s=60.0"', b'"user":"pace_s=60.0","stream":true'])
async def test_provider_streams_at_the_requested_pace(field: bytes) -> None:
    provider, line, body = _Connection(), Line(), b'{"model": "gpt-4o", ' + field + b"}"
    provider.connection_made(line)
    provider.data_received(b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
    assert line.written.count(b"\n\n") == 1, "the first event; the next one is a minute away"
    assert provider._timer is not None
    assert provider._timer.when() == pytest.approx(asyncio.get_running_loop().time() + 60, abs=1)
    provider.connection_lost(None)
    assert provider._timer.cancelled()
