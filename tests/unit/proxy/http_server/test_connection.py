"""A client connection over a transport that records its calls, on a manual clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import pytest

from llm_guard.proxy.http_server.connection import ClientConnection, Listener, ListenerSettings, Mounts
from llm_guard.proxy.http_server.request import Request
from llm_guard.proxy.http_server.response_writer import ResponseWriter
from llm_guard.proxy.request_body.model_field import BadRequest
from tests.fakes.clock import ManualClock

HOST = b"Host: gateway.test\r\n"
GET = b"GET /v1/models HTTP/1.1\r\n" + HOST + b"\r\n"


def post(body: bytes, *headers: bytes, length: int | None = None) -> bytes:
    lines = [
        b"POST /v1/chat/completions HTTP/1.1",
        HOST.strip(),
        *headers,
        b"Content-Length: %d" % (length or len(body)),
    ]
    return b"\r\n".join([*lines, b"", body])


class Transport:
    """Records what is written and how the connection ends."""

    def __init__(self) -> None:
        self.written = b""
        self.is_paused = self.has_eof = self.is_closed = self.is_aborted = False
        self.unsent_bytes = 0

    def set_write_buffer_limits(self, high: int, low: int) -> None: ...
    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def is_closing(self) -> bool:
        return self.is_closed or self.is_aborted

    def write(self, data: bytes) -> None:
        assert not self.has_eof
        self.written += data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.has_eof = True

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_aborted = True

    @property
    def statuses(self) -> list[int]:
        return [int(part[:3]) for part in self.written.split(b"HTTP/1.1 ")[1:]]


Serve = Callable[[Request, ResponseWriter], Awaitable[None]]


class Stand:
    """A listener and the requests that it has served."""

    def __init__(self, serve: Serve | None = None, **settings: Any) -> None:
        self.clock = ManualClock()
        self.served: list[tuple[str, bytes]] = []
        self.seen: list[dict[str, str]] = []
        self.cancelled = 0
        self.go_on = asyncio.Event()
        self.go_on.set()
        rules = ListenerSettings(**{"max_connections": 10, **settings})
        self.listener = Listener(serve or self._serve, rules, self.clock)

    def connect(self) -> tuple[ClientConnection, Transport]:
        connection, transport = cast("ClientConnection", self.listener()), Transport()
        connection.connection_made(cast("asyncio.Transport", transport))
        return connection, transport

    def pass_s(self, seconds: float) -> None:
        """Advances the clock in steps, so that each sweep runs on time."""
        for _ in range(round(seconds * 2)):
            self.clock.advance(0.5)
            self.clock.ring_due()

    async def _serve(self, request: Request, reply: ResponseWriter) -> None:
        body = b""
        try:
            while piece := await request.read():
                body += piece
        except BadRequest as bad:
            await reply.send(bad.status, "", [], bad.code.encode())
            return
        self.served.append((request.path, body))
        self.seen.append(dict(request.names))
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        await reply.send(200, "", [], request.path.encode())


@pytest.fixture
async def stand() -> AsyncIterator[Stand]:
    stand = Stand()
    yield stand
    await stand.listener.close(0)


def ends(transport: Transport) -> str:
    return "aborted" if transport.is_aborted else "closed" if transport.is_closed else ""


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_request_is_served_however_it_is_cut(stand: Stand, size: int) -> None:
    connection, transport = stand.connect()
    request = post(b"hello") + GET
    for at in range(0, len(request), size):
        connection.data_received(request[at : at + size])
        await settle()
    assert stand.served == [("/v1/chat/completions", b"hello"), ("/v1/models", b"")]
    assert transport.statuses == [200, 200]
    assert not transport.is_closing()


async def test_pipelined_requests_are_answered_in_their_order(stand: Stand) -> None:
    connection, transport = stand.connect()
    requests = b"".join(GET.replace(b"models", b"models/%d" % number) for number in range(500))
    connection.data_received(requests)
    await settle()
    for _ in range(500):
        await settle()
    assert [path for path, _ in stand.served] == [f"/v1/models/{number}" for number in range(500)]
    assert len(transport.statuses) == 500


async def test_pipelined_data_is_parsed_ahead_up_to_a_bound(stand: Stand) -> None:
    stand.go_on.clear()
    connection, transport = stand.connect()
    for _ in range(4):
        connection.data_received(GET * 1000)
    await settle()
    assert len(stand.served) == 1
    assert len(connection._queue) < 100
    assert transport.is_paused
    connection.connection_lost(None)
    await settle()


async def test_request_after_one_that_is_answered_does_not_wait_for_more_bytes(stand: Stand) -> None:
    stand.go_on.clear()
    connection, transport = stand.connect()
    connection.data_received(GET)
    await settle()
    connection.data_received(post(b"second"))
    stand.go_on.set()
    await settle()
    assert stand.served[-1] == ("/v1/chat/completions", b"second")
    assert len(transport.statuses) == 2


async def test_error_after_a_request_is_sent_after_its_response(stand: Stand) -> None:
    stand.go_on.clear()
    connection, transport = stand.connect()
    connection.data_received(GET + b"this is no request\r\n\r\n" + GET)
    await settle()
    assert transport.statuses == []
    stand.go_on.set()
    await settle()
    assert transport.statuses == [200, 400]
    assert transport.has_eof
    assert len(stand.served) == 1


@pytest.mark.parametrize(("sends_for_s", "lives_for_s"), [(0, 2.0), (10, 11.0), (60, 30.0)])
async def test_client_that_is_answered_early_has_time_to_finish_sending(sends_for_s: int, lives_for_s: float) -> None:
    async def answer_early(_request: Request, reply: ResponseWriter) -> None:
        await reply.send(401, "", [], b"no")

    stand = Stand(answer_early)
    connection, transport = stand.connect()
    connection.data_received(post(b"begins", length=1_000_000))
    await settle()
    assert transport.statuses == [401]
    began_at, sent_s = stand.clock.now(), 0
    while not transport.is_aborted:
        if sent_s < sends_for_s:
            sent_s += 1
            connection.data_received(b"more")
        stand.pass_s(1.0)
    assert lives_for_s <= stand.clock.now() - began_at <= lives_for_s + 1.0
    assert transport.statuses == [401]
    await stand.listener.close(0)


async def test_limit_on_a_body_outlasts_a_pause_of_its_answer() -> None:
    failed: list[str] = []

    async def answer_early(request: Request, reply: ResponseWriter) -> None:
        try:
            while await request.read():
                pass
        except BadRequest as bad:
            failed.append(bad.code)

    stand = Stand(answer_early, body_timeout=10.0)
    connection, _ = stand.connect()
    connection.data_received(post(b"begins", length=1000))
    await settle()
    connection.pause_writing()
    connection.resume_writing()
    stand.pass_s(11.0)
    await settle()
    assert failed == ["request_timeout"]
    await stand.listener.close(0)


async def test_client_that_does_not_read_is_disconnected_though_its_body_has_ended() -> None:
    async def hold(_request: Request, _reply: ResponseWriter) -> None:
        await asyncio.Event().wait()

    stand = Stand(hold)
    connection, transport = stand.connect()
    connection.data_received(post(b"begins", length=10))
    await settle()
    connection.pause_writing()
    connection.data_received(b"ends")
    stand.pass_s(61.0)
    assert transport.is_aborted
    connection.connection_lost(None)
    await settle()
    await stand.listener.close(0)


async def test_body_that_breaks_is_refused_to_its_reader(stand: Stand) -> None:
    connection, transport = stand.connect()
    connection.data_received(
        b"POST /v1/x HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\nzz\r\n" + GET
    )
    await settle()
    assert transport.statuses == [400]
    assert stand.served == []
    assert b"Connection: close" in transport.written


async def test_trailer_is_no_header_of_the_next_request(stand: Stand) -> None:
    connection, transport = stand.connect()
    chunked = b"POST /v1/x HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nX-Evil: 1\r\n\r\n"
    connection.data_received(chunked + GET)
    await settle()
    assert stand.served == [("/v1/x", b"hi"), ("/v1/models", b"")]
    assert transport.statuses == [200, 200]
    assert [names for names in stand.seen if "x-evil" in names] == []


@pytest.mark.parametrize("what", ["extension", "trailer"])
async def test_framing_without_end_is_refused(stand: Stand, what: str) -> None:
    connection, transport = stand.connect()
    connection.data_received(b"POST /v1/x HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n")
    connection.data_received(b"2;" if what == "extension" else b"0\r\nA: ")
    for _ in range(17):
        connection.data_received(b"x" * 4096)
    await settle()
    assert transport.statuses == [400]


async def test_framing_of_each_request_counts_for_itself(stand: Stand) -> None:
    connection, transport = stand.connect()
    for _ in range(4):
        connection.data_received(b"POST /v1/x HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(8):
            connection.data_received(b"1;" + b"x" * 4000 + b"\r\na\r\n")
        connection.data_received(b"0\r\n\r\n")
        await settle()
    assert transport.statuses == [200] * 4


async def test_short_limit_is_checked_more_often_than_a_long_one() -> None:
    stand = Stand(head_timeout=0.2)
    _, transport = stand.connect()
    for _ in range(6):
        stand.clock.advance(0.05)
        stand.clock.ring_due()
    assert ends(transport) == "closed"
    await stand.listener.close(0)


async def test_answer_before_the_body_is_read_closes_the_connection_in_peace() -> None:
    async def refuse(_request: Request, reply: ResponseWriter) -> None:
        await reply.send(401, "", [], b"no")

    stand = Stand(refuse)
    connection, transport = stand.connect()
    connection.data_received(post(b"part", length=100))
    await settle()
    assert transport.statuses == [401]
    assert b"Connection: close" in transport.written
    assert transport.has_eof
    assert not transport.is_closing()
    connection.data_received(b"the rest, or another request")
    stand.pass_s(2.5)
    assert transport.is_aborted
    assert transport.statuses == [401]


async def test_body_of_a_jdk_client_that_requests_h2c_is_read(stand: Stand) -> None:
    connection, transport = stand.connect()
    upgrade = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAEA")
    request = post(b"hello", *upgrade)
    connection.data_received(request[:-3])
    await settle()
    connection.data_received(request[-3:] + GET)
    await settle()
    assert stand.served == [("/v1/chat/completions", b"hello"), ("/v1/models", b"")]
    assert transport.statuses == [200, 200]


async def test_h2c_without_a_body_is_served_plainly(stand: Stand) -> None:
    connection, transport = stand.connect()
    connection.data_received(GET.replace(HOST, HOST + b"Connection: Upgrade\r\nUpgrade: h2c\r\n"))
    await settle()
    connection.data_received(GET)
    await settle()
    assert transport.statuses == [200, 200]


async def test_websocket_that_is_refused_ends_its_connection(stand: Stand) -> None:
    connection, transport = stand.connect()
    connection.data_received(GET.replace(HOST, HOST + b"Connection: Upgrade\r\nUpgrade: websocket\r\n") + b"frame")
    await settle()
    assert transport.statuses == [200]
    assert transport.is_closed


async def test_head_that_takes_too_long_is_refused(stand: Stand) -> None:
    connection, transport = stand.connect()
    for byte in GET[:28]:
        connection.data_received(bytes([byte]))
        stand.pass_s(0.5)
    assert transport.statuses == []
    stand.pass_s(2)
    assert transport.statuses == [408]
    assert transport.has_eof


async def test_requests_of_a_connection_have_one_task(stand: Stand) -> None:
    connection, transport = stand.connect()
    before = asyncio.all_tasks()
    connection.data_received(GET)
    await settle()
    (task,) = asyncio.all_tasks() - before
    asyncio.get_running_loop().call_soon(connection.data_received, GET)
    await asyncio.sleep(0)
    assert transport.statuses == [200, 200]  # the second one within the callback that received it
    assert asyncio.all_tasks() - before == {task}
    connection.connection_lost(None)
    await settle()
    assert task.done()
    assert not task.cancelled()


async def test_call_that_was_cancelled_alone_leaves_its_connection(stand: Stand) -> None:
    """As calls that are still running at the end of a drain are."""
    stand.go_on.clear()
    connection, transport = stand.connect()
    connection.data_received(GET)
    await settle()
    assert connection.task is not None
    connection.task.cancel()
    await settle()
    assert stand.cancelled == 1
    assert ends(transport) == "closed"  # nothing was answered
    connection.connection_lost(None)
    await settle()
    assert connection.task is None


async def test_other_connections_are_served_between_pipelined_requests(stand: Stand) -> None:
    (first, transport), (second, other) = stand.connect(), stand.connect()
    first.data_received(GET * 20)
    second.data_received(GET)
    for _ in range(5):
        await asyncio.sleep(0)
    assert other.statuses == [200]
    assert len(transport.statuses) < 10
    await settle()
    await settle()
    assert len(transport.statuses) == 20


async def test_silent_connection_is_closed(stand: Stand) -> None:
    _, transport = stand.connect()
    stand.pass_s(14)
    assert ends(transport) == ""
    stand.pass_s(2)
    assert ends(transport) == "closed"
    assert transport.written == b""


@pytest.mark.parametrize("sent", [b"", GET[:28], post(b"", length=1000), GET], ids=["nothing", "head", "body", "idle"])
async def test_time_in_which_the_event_loop_stood_still_counts_against_no_client(stand: Stand, sent: bytes) -> None:
    """The connection is accepted, and its waiting bytes are read, only after the late sweep."""
    stand.connect()[0].data_received(GET)
    await settle()
    stand.clock.advance(100)
    connection, transport = stand.connect()
    connection.data_received(sent)
    await settle()
    for _ in range(2):
        stand.clock.ring_due()
        await settle()
        stand.clock.advance(100)
    assert not transport.is_closing()
    assert transport.statuses == ([200] if sent == GET else [])


async def test_idle_connection_stays_open_for_its_time(stand: Stand) -> None:
    connection, transport = stand.connect()
    connection.data_received(GET)
    await settle()
    stand.pass_s(74)
    assert not transport.is_closing()
    stand.pass_s(2)
    assert transport.is_closed


async def test_trickling_body_is_given_up(stand: Stand) -> None:
    connection, transport = stand.connect()
    connection.data_received(post(b"", length=1000))
    for _ in range(59):
        connection.data_received(b"x")
        stand.pass_s(1)
    await settle()
    assert transport.statuses == []
    stand.pass_s(2)
    await settle()
    assert transport.statuses == [408]
    assert stand.served == []


async def test_body_at_a_fair_pace_has_the_time_that_it_needs(stand: Stand) -> None:
    connection, transport = stand.connect()
    connection.data_received(post(b"", length=20_000 * 200))
    for _ in range(200):
        connection.data_received(b"x" * 20_000)
        await settle()
        stand.pass_s(1)
    await settle()
    assert transport.statuses == [200]


async def test_call_may_take_as_long_as_it_likes(stand: Stand) -> None:
    stand.go_on.clear()
    connection, transport = stand.connect()
    connection.data_received(post(b"hi"))
    await settle()
    stand.pass_s(1000)
    assert not transport.is_closing()
    stand.go_on.set()
    await settle()
    assert transport.statuses == [200]


async def test_client_that_takes_nothing_is_cut(stand: Stand) -> None:
    connection, transport = stand.connect()
    stand.go_on.clear()
    connection.data_received(GET)
    await settle()
    transport.unsent_bytes = 100_000
    connection.pause_writing()
    stand.pass_s(59)
    transport.unsent_bytes = 90_000
    stand.pass_s(2)
    assert ends(transport) == ""
    stand.pass_s(61)
    assert ends(transport) == "aborted"
    connection.connection_lost(None)
    await settle()


async def test_longest_idle_connection_makes_room_for_a_new_one(stand: Stand) -> None:
    both = Stand(max_connections=2)
    both.go_on.clear()
    busy, busy_transport = both.connect()
    busy.data_received(GET)
    _, idle_transport = both.connect()
    _, new_transport = both.connect()
    assert idle_transport.is_aborted
    assert not busy_transport.is_closing()
    assert not new_transport.is_closing()
    assert both.listener.count == 2
    await both.listener.close(0)
    await settle()


async def test_connection_above_the_limit_gets_an_error() -> None:
    stand = Stand(max_connections=1)
    stand.go_on.clear()
    busy, busy_transport = stand.connect()
    busy.data_received(GET)
    rejected, transport = stand.connect()
    rejected.data_received(GET)
    assert transport.statuses == [503]
    assert ends(transport) == "closed"
    assert ends(busy_transport) == ""
    assert stand.listener.refused == 1
    await stand.listener.close(0)
    await settle()


async def test_limits_of_a_reload_hold_for_the_next_connection() -> None:
    stand = Stand(max_connections=10)
    stand.go_on.clear()
    busy, _ = stand.connect()
    busy.data_received(GET)
    stand.listener.adopt(ListenerSettings(max_connections=1))
    _, transport = stand.connect()
    assert transport.statuses == [503]
    await stand.listener.close(0)
    await settle()


async def test_connection_that_still_takes_its_answer_makes_no_room() -> None:
    stand = Stand(max_connections=1)
    _, transport = stand.connect()
    transport.unsent_bytes = 20_000
    _, refused = stand.connect()
    assert ends(transport) == ""
    assert refused.statuses == [503]
    await stand.listener.close(0)


async def test_answer_that_is_still_taken_outlives_the_end_of_the_listener(stand: Stand) -> None:
    connection, transport = stand.connect()
    transport.unsent_bytes = 20_000
    closing = asyncio.ensure_future(stand.listener.close(10))
    await settle()
    assert ends(transport) == "closed"
    transport.unsent_bytes = 0
    connection.connection_lost(None)
    await closing
    assert ends(transport) == "closed"


async def test_connection_is_read_again_after_an_unread_body() -> None:
    async def refuse(_request: Request, reply: ResponseWriter) -> None:
        await reply.send(400, "", [], b"no")

    stand = Stand(refuse)
    connection, transport = stand.connect()
    connection.data_received(post(b"x" * 300_000))  # the call begins once the whole body has arrived
    assert [transport.is_paused] == [True]
    await settle()
    assert transport.statuses == [400]
    assert [transport.is_paused] == [False]


async def test_cancelled_wait_for_room_does_not_cancel_others(stand: Stand) -> None:
    connection, _ = stand.connect()
    connection.pause_writing()
    first, second = (asyncio.ensure_future(connection.wait_room()) for _ in range(2))
    await settle()
    first.cancel()
    await settle()
    assert not second.done()
    connection.resume_writing()
    await second


async def test_client_that_reads_slowly_is_not_cut(stand: Stand) -> None:
    stand.go_on.clear()
    connection, transport = stand.connect()
    connection.data_received(GET)
    await settle()
    for _ in range(20):
        transport.unsent_bytes = 66_000
        connection.pause_writing()
        stand.pass_s(30)
        connection.resume_writing()
    assert ends(transport) == ""
    connection.connection_lost(None)
    await settle()


async def test_upload_that_we_do_not_read_is_not_too_slow(stand: Stand) -> None:
    stand.go_on.clear()
    connection, transport = stand.connect()
    connection.data_received(GET + post(b"", length=10))
    await settle()
    stand.pass_s(200)
    stand.go_on.set()
    await settle()
    connection.data_received(b"0123456789")
    await settle()
    assert transport.statuses == [200, 200]


async def test_client_that_leaves_cancels_its_call(stand: Stand) -> None:
    stand.go_on.clear()
    connection, transport = stand.connect()
    connection.data_received(GET)
    await settle()
    connection.connection_lost(None)
    await settle()
    assert stand.cancelled == 1
    assert connection.task is None
    assert transport.written == b""
    assert stand.listener.count == 0


async def test_large_body_is_read_no_faster_than_it_is_taken() -> None:
    taken = asyncio.Event()

    async def wait_first(request: Request, reply: ResponseWriter) -> None:
        await taken.wait()
        size = 0
        while piece := await request.read():
            size += len(piece)
        await reply.send(200, "", [], str(size).encode())

    stand = Stand(wait_first)
    connection, transport = stand.connect()
    connection.data_received(post(b"", length=600_000))
    for _ in range(3):
        connection.data_received(b"x" * 100_000)
    await settle()
    assert [transport.is_paused] == [True]
    taken.set()
    await settle()
    assert [transport.is_paused] == [False]
    for _ in range(3):
        connection.data_received(b"x" * 100_000)
    await settle()
    assert transport.written.endswith(b"600000")


@pytest.mark.parametrize("path", ["/", "/healthz", "/admin", "/admin/health", "/admin//"])
async def test_path_below_a_mounted_root_is_served_by_the_mounted(path: str) -> None:
    assert await server_of(path) == "mounted"


@pytest.mark.parametrize("path", ["/v1/models", "//", "//admin", "/administration", "/v1/admin", "/health"])
async def test_any_other_path_is_served_as_without_mounts(path: str) -> None:
    assert await server_of(path) == "other"


async def server_of(path: str) -> str:
    """Returns which of two functions serves a path, where the admin API is mounted."""

    def named(name: str) -> Serve:
        async def serve(_: Request, reply: ResponseWriter) -> None:
            await reply.send(200, "", [], name.encode())

        return serve

    stand = Stand(Mounts(named("other"), named("mounted"), ("/", "/healthz", "/admin")).serve)
    connection, transport = stand.connect()
    connection.data_received(b"GET %b HTTP/1.1\r\n%b\r\n" % (path.encode(), HOST))
    await settle()
    await stand.listener.close(0)
    return transport.written.rpartition(b"\r\n\r\n")[2].decode()
