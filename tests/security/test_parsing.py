"""Requests that are not HTTP/1.1, exceed its limits, or are ambiguous: refused, bounded, or parsed in one way only."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

import psutil
import pytest

from tests.chaos.lag import measured
from tests.chaos.stand import config_text
from tests.chaos.wire import Connection, fetch
from tests.fakes.provider import whole
from tests.security.grammar import head
from tests.security.stand import BODY, HOST, POST, SMUGGLED, Recorder, fronting, process_of

LENGTH = b"Content-Length: %d" % len(BODY)
CLOSE = b"Connection: close"
JSON = b"Content-Type: application/json"
GET = b"GET /v1/files HTTP/1.1"
MIB = 1 << 20


def post(*fields: bytes, line: bytes = POST) -> bytes:
    """Builds a good call with additional header fields."""
    return head(line, HOST, *fields, JSON, LENGTH) + BODY


def named(attacks: dict[str, bytes]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("attack", [pytest.param(data, id=name) for name, data in attacks.items()])


FIELDS = {
    "CR in a value": b"X: a\rb", "NUL in a value": b"X: a\0b", "control in a value": b"X: a\x01b",
    "DEL in a value": b"X: a\x7fb", "folded by a blank": b"X: a\r\n b", "folded by a tab": b"X: a\r\n\tb",
    "no colon": b"bad line", "no name": b": v", "blank before the colon": b"X : v", "tab before the colon": b"X\t: v",
    "control in a name": b"X\x0b: v", "parentheses in a name": b"X(y): v", "a name that is no ASCII": b"X\xff: v",
    "a quoted name": b'"X": v', "a blank in a name": b"X Y: v", "NUL in a name": b"X\0: v",
    "a slash in a name": b"X/y: v",
}  # fmt: skip
LINES = {
    "tabs": b"POST\t/v1/chat/completions\tHTTP/1.1", "a blank behind": b"POST /v1/chat/completions HTTP/1.1 ",
    "a blank before": b" " + POST, "NUL": b"POST /v1/chat\0/completions HTTP/1.1",
    "CR": b"POST /v1/chat\r/completions HTTP/1.1", "a control": b"POST /v1/chat\x01/completions HTTP/1.1",
    "no target": b"POST HTTP/1.1", "no version": POST[:-9], "half a version": POST[:-2],
    "lower case": POST.replace(b"HTTP", b"http"), "a method's case": b"post" + POST[4:],
    "a byte order mark": b"\xef\xbb\xbf" + POST, "TLS": b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03",
    "SSH": b"SSH-2.0-OpenSSH_9.6", "an answer": b"HTTP/1.1 200 OK",
    "PROXY protocol": b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2",
}  # fmt: skip
VERSIONS = (
    b"HTTP/2.0", b"HTTP/0.9", b"HTTP/1.32", b"HTTP/1.2", b"HTTP/3.0", b"HTTP/11.1", b"HTTP/01.1", b"HTTP/1.",
    b"HTTP/1", b"HTTP/.1", b"HTTP/+1.1", b"HTTP/1,1", b"HTTP/1.1.1", b"HTTPS/1.1", b"ICE/1.0",
)  # fmt: skip


@named(
    {f"C14 {name}": post(field) for name, field in FIELDS.items()}
    | {f"C14 {name}, last": head(POST, HOST, LENGTH, field) + BODY for name, field in FIELDS.items()}
    | {f"C14 {name} in the request line": post(line=line) for name, line in LINES.items()}
    | {"C14 a blank before the first field": head(POST, b" " + HOST, LENGTH) + BODY}
)
async def test_head_that_is_no_head_is_refused(attack: bytes) -> None:
    async with fronting() as front:
        await front.check_refused(attack, (400, 405, 505))


@named({
    "C14 CR before": b"\r" + POST, "C14 LF before": b"\n" + POST, "C14 blank lines before": b"\r\n\r\n" + POST,
    "C14 two blanks": b"POST  /v1/chat/completions HTTP/1.1", "C18 RTSP": b"POST /v1/chat/completions RTSP/1.0",
})  # fmt: skip
async def test_tolerated_syntax_reaches_the_provider_as_one_well_formed_request(attack: bytes) -> None:
    """RFC 9112, sections 2.2 and 3, lets a server skip these; RTSP is read as HTTP/1.0."""
    async with fronting() as front:
        heard = await front.hear(post(CLOSE, line=attack))
        assert heard.is_closed
        assert heard.statuses in ([200], [400], [505])
        await front.check_reached(*([BODY] if heard.statuses == [200] else []))


@named({
    "C15 a length": b"Content_Length: 2", "C15 a coding": b"Transfer_Encoding: chunked",
    "C15 a key": b"X_Api_Key: admin", "C15 a word to ourselves": b"X_LLM_Guard_Priority: high",
    "C15 only underscores": b"__: x",
})  # fmt: skip
async def test_header_with_an_underscore_is_dropped(attack: bytes) -> None:
    async with fronting() as front:
        heard = await front.hear(post(attack, CLOSE))
        assert heard.statuses == [200]
        (request,) = front.provider.requests
        assert not any(b"_" in name for name, _ in request.fields)
        await front.check_reached(BODY)


@named({"C15 x_api_key": b"X_Api_Key: sk-app", "C15 api_key": b"Api_Key: sk-app"})
async def test_key_in_a_header_with_an_underscore_opens_nothing(attack: bytes) -> None:
    async with fronting(server={"client_keys": [{"name": "app", "key": "sk-app"}]}) as front:
        assert (await front.hear(post(attack, CLOSE))).statuses == [401]
        assert (await front.hear(post(b"X-Api-Key: sk-app", CLOSE))).statuses == [200]


@named({
    "C16 none": b"X: y", "C16 two": HOST + b"\r\n" + HOST, "C16 two that differ": HOST + b"\r\nHost: evil.example",
    "C16 two, in two cases": HOST + b"\r\nhost: evil.example", "C16 a list": b"Host: test, evil.example",
    "C16 nothing": b"Host:",
})  # fmt: skip
async def test_host_must_be_sent_exactly_once(attack: bytes) -> None:
    async with fronting() as front:
        await front.check_refused(head(GET, attack))


HOSTS = (
    "example.com/abc?bar=", "example.com#a", "user@example.com", "example.com?", "a b", "a\tb", "a\\b", "a:80:80",
    "a:port", "a:-1", "[::1", "::1", "<script>", "a%00", "a;b", 'a"b', "a'b{c}", "é.example", ":80", "http://a",
)  # fmt: skip


@pytest.mark.parametrize("host", HOSTS, ids=lambda host: f"C17 {host}")
async def test_host_that_holds_more_than_a_host_is_refused(host: str) -> None:
    async with fronting() as front:
        await front.check_refused(head(GET, b"Host: " + host.encode()))


@pytest.mark.parametrize(
    "host",
    ["localhost", "127.0.0.1:8080", "[::1]:8080", "[2001:db8::1]", "my_service:80", "a-b.example.com", "EXAMPLE.com"],
    ids=lambda host: f"C17 {host}",
)
async def test_host_that_is_a_host_is_served(host: str) -> None:
    async with fronting() as front:
        heard = await front.hear(head(GET, b"Host: " + host.encode(), CLOSE))
        assert heard.statuses == [200]
        front.provider.requests.clear()
        await front.check_reached()


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: f"C18 {version.decode()}")
@pytest.mark.parametrize("method", ["POST", "OPTIONS"])
async def test_version_other_than_the_two_is_refused(method: str, version: bytes) -> None:
    async with fronting() as front:
        line = method.encode() + b" /v1/chat/completions " + version
        await front.check_refused(head(line, HOST, LENGTH) + BODY, (400, 405, 505))


@named({
    "C18 the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x12\x04\0\0\0\0\0",
    "C18 the preface without its version": b"PRI * HTTP/1.1\r\n\r\nSM\r\n\r\n", "C18 HTTP/0.9": b"GET /v1/models\r\n",
})  # fmt: skip
async def test_other_protocol_is_refused(attack: bytes) -> None:
    async with fronting() as front:
        await front.check_refused(attack, (400, 405, 505))


UPGRADES = {
    "C19 h2c": (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA"),
    "C19 h2c alone": (b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA"),
    "C19 h2c, and connection said twice": (b"Connection: keep-alive", b"Connection: Upgrade", b"Upgrade: h2c"),
    "C19 TLS": (b"Connection: Upgrade", b"Upgrade: TLS/1.2, HTTP/1.1"),
    "C19 an unknown one": (b"Connection: Upgrade", b"Upgrade: llm/1"),
}  # fmt: skip


@pytest.mark.parametrize("fields", UPGRADES.values(), ids=UPGRADES)
async def test_upgrade_to_another_protocol_is_answered_in_this_one(fields: tuple[bytes, ...]) -> None:
    async with fronting() as front, Connection(front.url) as connection:
        for _ in range(2):  # the connection still speaks HTTP/1.1
            assert (await connection.ask(post(*fields))).status == 200
            assert (await connection.ask(head(GET, HOST, *fields))).status == 200
        behind = post(*fields) + head(GET, HOST, *fields) + head(GET, HOST, CLOSE)
        assert (await front.hear(behind)).statuses == [200, 200, 200]
        for request in front.provider.requests:
            assert not [value for name in (b"upgrade", b"http2-settings") for value in request.values(name)]
            assert b"upgrade" not in b"".join(request.values(b"connection")).lower()


LONG = b"v" * (17 * 1024)
TOO_MUCH = {
    "C20 the target": head(b"GET /v1/models?" + LONG + b" HTTP/1.1", HOST),
    "C20 the target, and no end of it": b"GET /v1/models?" + b"v" * MIB,
    "C20 the method, and no end of it": b"G" * MIB,
    "C20 a value": head(GET, HOST, b"X: " + LONG),
    "C20 a value, and no end of it": GET + b"\r\nX: " + b"v" * MIB,
    "C20 a name": head(GET, HOST, b"X" * (17 * 1024) + b": v"),
    "C20 200 fields": head(GET, HOST, *(b"X-%d: v" % each for each in range(200))),
    "C20 129 fields": head(GET, HOST, *(b"X-%d: v" % each for each in range(128))),
    "C20 100,000 fields, and no end of them": GET + b"\r\n" + b"X: v\r\n" * 100_000,
    "C20 many long fields": head(GET, HOST, *(b"X-%d: %b" % (each, b"v" * 15_000) for each in range(5))),
    "C20 many fields": head(GET, HOST, *(b"X-%d: %b" % (each, b"v" * 600) for each in range(120))),
}


@named(TOO_MUCH)
async def test_head_above_its_limit_is_refused_before_its_end(attack: bytes) -> None:
    async with fronting() as front:
        # The parser rejects an endless method at its first byte that no method has.
        await front.check_refused(attack, (400,) if attack.startswith(b"GG") else (431,))


async def test_head_that_drips_above_its_limit_is_refused() -> None:
    """C20: in small segments, each of them a read of its own."""
    async with fronting() as front, Connection(front.url) as connection:
        connection.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.writer.write(GET + b"\r\n" + HOST + b"\r\nX: ")
        answer = asyncio.ensure_future(connection.reply())
        for _ in range(5 * 1024):
            connection.writer.write(b"v" * 16)
            await asyncio.sleep(0)
            if answer.done():
                break
        assert (await answer).status == 431
        assert await connection.is_closed()


async def test_head_within_its_bounds_is_served() -> None:
    """C20: 128 fields, 45 kB of fields and a target of 15 kB are accepted."""
    async with fronting() as front:
        most = [HOST, CLOSE, *(b"X-%d: v" % each for each in range(126))]
        long = [HOST, CLOSE, b"X: " + b"v" * 15_000, b"Y: " + b"v" * 15_000, b"Z: " + b"v" * 15_000]
        for fields in (most, long):
            assert (await front.hear(head(GET, *fields))).statuses == [200]
        assert (await front.hear(head(b"GET /v1/models?" + b"v" * 15_000 + b" HTTP/1.1", HOST, CLOSE))).statuses == [
            200
        ]


async def test_ten_thousand_requests_at_once_are_answered_in_order() -> None:
    """C21: every tenth goes to the provider; the others are answered at once but must be sent in order."""
    async with fronting() as front:
        wanted = [b"/v1/files?n=%d" % each for each in range(1000)]
        others = head(b"GET /healthz HTTP/1.1", HOST) * 9
        flood = b"".join(head(b"GET %b HTTP/1.1" % target, HOST) + others for target in wanted)
        heard = await front.hear(flood + head(b"GET /v1/last HTTP/1.1", HOST, CLOSE), patience_s=60)
        assert len(heard.answers) == 10_001
        assert set(heard.statuses) == {200}
        bodies = [answer.json.get("target", "") if answer.body != b"ok\n" else "" for answer in heard.answers]
        expected = [part for target in wanted for part in (target.decode(), *[""] * 9)]
        assert bodies == [*expected, "/v1/last"]
        assert [request.target for request in front.provider.requests] == [*wanted, b"/v1/last"]


async def test_requests_after_an_unanswered_one_are_not_executed() -> None:
    """C21: backpressure stops a client that sends 64 MB of them."""
    async with fronting(lambda _request: b"") as front:
        loop = asyncio.get_running_loop()
        one = post(b"X: " + b"v" * 8000)
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
            sock.setblocking(False)
            await loop.sock_connect(sock, ("127.0.0.1", int(front.url.rsplit(":", 1)[1])))
            sent, waited = 0, 0
            while sent < 64 * MIB and waited < 50:
                try:
                    sent += sock.send(one * 16)
                    waited = 0
                except BlockingIOError:
                    waited += 1
                await asyncio.sleep(0.001)
            assert sent < 16 * MIB  # in the kernel's buffers
            assert len(front.provider.requests) == 1
            assert front.stand.app.gateway.running == 1


async def test_requests_whose_responses_are_not_read_are_not_made() -> None:
    """C21: a thousand pipelined requests with responses of a megabyte each."""
    async with (
        fronting(lambda _request: whole(200, b'{"object":"list","data":"' + b"v" * MIB + b'"}').data) as front,
        Connection(front.url) as connection,
    ):
        connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
        connection.writer.write(head(GET, HOST) * 1000)
        made = -1
        while made != (made := len(front.provider.requests)) or made == 0:  # noqa: ASYNC110 - what is waited for knows no event
            await asyncio.sleep(0.1)
        assert made < 50  # in the kernel's buffers
        assert front.stand.app.gateway.running == 1
        front.provider.connections.clear()


async def test_nothing_is_read_after_the_last_request_of_a_connection() -> None:
    """C21: after `Connection: close` or HTTP/1.0 the connection is closed and the rest discarded."""
    for last in (post(CLOSE), post(line=POST[:-1] + b"0"), post(b"Connection: keep-alive, close")):
        async with fronting() as front:
            heard = await front.hear(last + SMUGGLED)
            assert heard.is_closed
            assert heard.statuses == [200]
            await front.check_reached(BODY)


async def test_ten_megabytes_in_chunks_of_one_byte_delay_no_other_call(tmp_path: Path) -> None:
    """C22: other requests are served meanwhile."""
    first, last = [b"".join(b"1\r\n%c\r\n" % each for each in part) for part in (b'{"model":"gpt","user":"', b'"}')]
    wire = head(POST, HOST, b"Transfer-Encoding: chunked") + first + b"1\r\nv\r\n" * (10 * MIB) + last + b"0\r\n\r\n"
    async with (
        Recorder() as provider,
        process_of(tmp_path / "c.yaml", config_text(provider.url)) as served,
        Connection(served.url) as connection,
    ):
        gateway = psutil.Process(served.process.pid)
        before = sum(gateway.cpu_times()[:2])
        answer = asyncio.ensure_future(connection.reply())
        connection.writer.write(wire)
        longest_s = 0.0
        with measured() as lag:
            while not answer.done():
                began_at = time.monotonic()
                assert (await fetch(f"{served.url}/healthz")).status == 200
                longest_s = max(longest_s, time.monotonic() - began_at)
            assert (await answer).status in (200, 413)
            assert sum(gateway.cpu_times()[:2]) - before < 2
            assert longest_s < 0.5 + lag.total_s


KINDS = {
    "C37 text": (b"text/plain", BODY), "C37 nothing said": (b"", BODY),
    "C37 a form": (b"application/x-www-form-urlencoded", BODY),
    "C37 a charset": (b"application/json; charset=utf-7", BODY),
    "C37 two kinds": (b"application/json, text/plain", BODY),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "body"), KINDS.values(), ids=KINDS)
async def test_json_by_another_name_is_read_as_json_and_sent_on_as_it_was(kind: bytes, body: bytes) -> None:
    async with fronting() as front:
        for sent, status in ((body, 200), (body.replace(b"gpt", b"nobody"), 404)):
            fields = (HOST, CLOSE, b"Content-Type: " + kind, b"Content-Length: %d" % len(sent))
            assert (await front.hear(head(POST, *fields) + sent)).statuses == [status]
        assert [value for request in front.provider.requests for value in request.values(b"content-type")] == [kind]
        await front.check_reached(body)


OTHERS = {
    "C37 UTF-7": (b"application/json; charset=utf-7", b'+AHs-"model":"gpt"+AH0-'),
    "C37 UTF-16": (b"application/json; charset=utf-16", '{"model":"gpt"}'.encode("utf-16")),
    "C37 JSON for a form": (b"multipart/form-data; boundary=b", BODY),
    "C37 JSON for a form without a boundary": (b"multipart/form-data", BODY),
    "C37 a form for JSON": (b"application/json", b"model=gpt"),
    "C37 a form by its name": (b"application/x-www-form-urlencoded", b"model=gpt"),
    "C37 XML": (b"text/xml", b"<model>gpt</model>"),
    "C37 two documents": (b"application/json", BODY + BODY),
}


@pytest.mark.parametrize(("kind", "body"), OTHERS.values(), ids=OTHERS)
async def test_body_whose_model_is_ambiguous_goes_to_no_provider(kind: bytes, body: bytes) -> None:
    async with fronting() as front:
        fields = (HOST, CLOSE, b"Content-Type: " + kind, b"Content-Length: %d" % len(body))
        (answer,) = (await front.hear(head(POST, *fields) + body)).answers
        assert answer.status in (400, 415)
        await front.check_reached()
