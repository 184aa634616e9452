"""Requests that two parsers can frame differently: refused, their connections closed, and nothing of them sent to a
provider.

Accepted requests reach the provider in the gateway's own framing, one for one.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.forms import CHAT
from tests.chaos.process import _ROOT
from tests.chaos.stand import config_text
from tests.chaos.wire import Connection, fetch
from tests.security.grammar import chunked, head
from tests.security.stand import BODY, HOST, POST, SMUGGLED, Recorder, fronting, hear, process_of

LENGTH = b"Content-Length: %d" % len(BODY)
TE = b"Transfer-Encoding: chunked"
CHUNKED = chunked(BODY)
CLOSE = b"Connection: close"
FILE = b'{"purpose":"x"}'
"""Same length as BODY; names no model."""
KEYS = {"client_keys": [{"name": "app", "key": "sk-app"}]}


def post(*fields: bytes, body: bytes = CHUNKED, line: bytes = POST) -> bytes:
    return head(line, HOST, *fields) + body


def named(attacks: dict[str, bytes]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("attack", [pytest.param(data, id=name) for name, data in attacks.items()])


FRAMED_TWICE = {
    "C01 CL.TE": post(LENGTH, TE),
    "C01 TE.CL": post(TE, LENGTH),
    "C01 a length that ends before the chunks": post(b"Content-Length: 5", TE),
    "C01 a length that holds the call behind": post(b"Content-Length: %d" % (5 + len(SMUGGLED)), TE, body=b"0\r\n\r\n"),
    "C01 no length at all": post(b"Content-Length: 0", TE),
    "C02 chunked twice": post(TE, TE),
    "C02 chunked, then identity": post(TE, b"Transfer-Encoding: identity"),
    "C02 twice in one line": post(b"Transfer-Encoding: chunked, chunked"),
    "C02 twice, in two cases": post(TE, b"transfer-encoding: CHUNKED"),
}
OBSCURED = {
    "xchunked": b"Transfer-Encoding: xchunked",
    "identity": b"Transfer-Encoding: identity",
    "a comma before": b"Transfer-Encoding: ,chunked",
    "a comma behind": b"Transfer-Encoding: chunked,",
    "identity behind": b"Transfer-Encoding: chunked, identity",
    "vertical tab": b"Transfer-Encoding: \x0bchunked",
    "no-break spaces": b"Transfer-Encoding: \xa0chunked\xa0",
    "space before the colon": b"Transfer-Encoding : chunked",
    "tab before the colon": b"Transfer-Encoding\t: chunked",
    "quoted": b'Transfer-Encoding: "chunked"',
    "with a parameter": b"Transfer-Encoding: chunked;q=1",
    "two words": b"Transfer-Encoding: chunked chunked",
    "folded": b"Transfer-Encoding:\r\n chunked",
    "cut": b"Transfer-Encoding: chunke",
    "nothing": b"Transfer-Encoding:",
    "NUL": b"Transfer-Encoding: chunked\0",
    "behind a bare CR": b"X: y\rTransfer-Encoding: chunked",
    "behind a bare LF": b"X: y\nTransfer-Encoding: chunked",
    "gzip after": b"Transfer-Encoding: chunked, gzip",
}
LENGTHS = {
    "two that differ": (b"Content-Length: 1", LENGTH),
    "two alike": (LENGTH, LENGTH),
    "a list": (b"Content-Length: 15, 15",),
    "a plus": (b"Content-Length: +15",),
    "a minus": (b"Content-Length: -1",),
    "an underscore": (b"Content-Length: 1_5",),
    "hexadecimal": (b"Content-Length: 0xf",),
    "nothing": (b"Content-Length:",),
    "Arabic-Indic digits": ("Content-Length: ١٥".encode(),),
    "2^70": (b"Content-Length: %d" % 2**70,),
    "2^64 and as many": (b"Content-Length: %d" % (2**64 + len(BODY)),),
    "two numbers": (b"Content-Length: 15 15",),
    "exponent": (b"Content-Length: 15e0",),
    "a semicolon": (b"Content-Length: 15;",),
    "folded": (b"Content-Length: 1\r\n 5",),
}
SIZES = {
    "0x": b"0xf", "underscore": b"0_f", "minus": b"-f", "plus": b"+f", "nothing": b"", "space before": b" f",
    "space behind": b"f ", "tab behind": b"f\t", "2^72 less one": b"f" * 18, "2^64 and as many": b"1000000000000000f",
    "a letter that is no digit": b"g", "CR before": b"\rf", "too short": b"e", "too long": b"10",
}  # fmt: skip
EXTENSIONS = {
    "LF in it": b"1;a\nb\r\nZ\r\n0\r\n\r\n",
    "CR CR": b"2\r\r;a\r\n02\r\n0\r\n\r\n",
    "CR in it": b"f;a\rb\r\n" + BODY + b"\r\n0\r\n\r\n",
    "LF ends it": b"f;a\n" + BODY + b"\r\n0\r\n\r\n",
    "NUL in it": b"f;a\0b\r\n" + BODY + b"\r\n0\r\n\r\n",
    "an open quotation": b'f;a="b\r\n' + BODY + b"\r\n0\r\n\r\n",
    "a megabyte (CVE-2024-22019)": b"f;a=" + b"b" * (1 << 20) + b"\r\n" + BODY + b"\r\n0\r\n\r\n",
}
BARE_LF = {
    "the whole head": post(LENGTH, body=BODY).replace(b"\r\n", b"\n"),
    "the request line": post(LENGTH, body=BODY).replace(b"\r\n", b"\n", 1),
    "one field": post(b"X: y\n" + LENGTH, body=BODY),
    "the blank line": post(LENGTH, body=b"")[:-2] + b"\n" + BODY,
    "the last field and the blank line": post(LENGTH, body=b"")[:-4] + b"\n\n" + BODY,
    "a chunk's size": post(TE, body=b"f\n" + BODY + b"\r\n0\r\n\r\n"),
    "a chunk's end": post(TE, body=b"f\r\n" + BODY + b"\n0\r\n\r\n"),
    "the last chunk": post(TE, body=b"f\r\n" + BODY + b"\r\n0\n\r\n"),
    "the end of all": post(TE, body=b"f\r\n" + BODY + b"\r\n0\r\n\n"),
}


@named(
    FRAMED_TWICE
    | {f"C03 {name}": post(field) for name, field in OBSCURED.items()}
    | {f"C03 {name}, and a length": post(LENGTH, field, body=BODY) for name, field in OBSCURED.items()}
    | {f"C06 {name}": post(*fields, body=BODY) for name, fields in LENGTHS.items()}
    | {f"C07 {name}": post(TE, body=size + b"\r\n" + BODY + b"\r\n0\r\n\r\n") for name, size in SIZES.items()}
    | {f"C08 {name}": post(TE, body=body) for name, body in EXTENSIONS.items()}
    | {f"C09 {name}": data for name, data in BARE_LF.items()}
)
async def test_request_that_can_be_framed_in_two_ways_is_refused(attack: bytes) -> None:
    async with fronting() as front:
        await front.check_refused(attack, (400, 413, 501))


@named({
    "C04 gzip below chunked": post(b"Transfer-Encoding: gzip, chunked"),
    "C04 gzip alone": post(b"Transfer-Encoding: gzip", LENGTH, body=BODY),
    "C04 in two lines": post(b"Transfer-Encoding: gzip", TE),
})  # fmt: skip
async def test_transfer_coding_besides_chunked_is_refused(attack: bytes) -> None:
    async with fronting() as front:
        await front.check_refused(attack, (400, 501))


@named({
    "C05 HTTP 1.0": post(TE, line=POST[:-1] + b"0"),
    "C05 HTTP 1.0 that would be kept alive": post(TE, b"Connection: keep-alive", line=POST[:-1] + b"0"),
})  # fmt: skip
async def test_chunks_below_http_1_1_are_refused(attack: bytes) -> None:
    async with fronting() as front:
        await front.check_refused(attack)


async def test_well_formed_chunk_extension_is_not_forwarded() -> None:
    """C08: the body arrives without the extensions."""
    async with fronting() as front:
        body = b'7;a=b;c="d"\r\n' + BODY[:7] + b"\r\n8;e\r\n" + BODY[7:] + b"\r\n0;f=g\r\n\r\n"
        heard = await front.hear(post(TE, CLOSE, body=body))
        assert heard.statuses == [200]
        await front.check_reached(BODY)


@named({
    "C10 a length and a key": chunked(BODY, trailer=b"Content-Length: 5\r\nAuthorization: Bearer sk-evil\r\n"),
    "C10 a transfer coding": chunked(BODY, trailer=b"Transfer-Encoding: chunked\r\n"),
    "C10 another host": chunked(BODY, trailer=b"Host: evil.example\r\nX-Evil: yes\r\n"),
    "C10 what trailers are for": chunked(BODY, trailer=b"Expires: never\r\nX-Evil: yes\r\n"),
})  # fmt: skip
async def test_trailer_is_no_header(attack: bytes) -> None:
    async with fronting() as front:
        heard = await front.hear(post(TE, b"Trailer: Expires", CLOSE, body=attack))
        assert heard.is_closed
        assert heard.statuses in ([200], [400])
        for received in front.provider.connections:
            assert not any(word in received.lower() for word in (b"evil", b"trailer", b"never", b"length: 5\r"))
        await front.check_reached(*([BODY] if heard.statuses == [200] else []))


async def test_trailer_is_no_header_of_the_next_request_either() -> None:
    """C10: behind a proxy that shares its connections, the next request is another client's."""
    async with fronting() as front:
        with_trailer = post(TE, body=chunked(BODY, trailer=b"X-Evil: yes\r\nAuthorization: Bearer sk-evil\r\n"))
        heard = await front.hear(with_trailer + post(LENGTH, body=BODY) + post(LENGTH, CLOSE, body=BODY))
        assert heard.statuses == [200, 200, 200]
        assert not [
            request
            for request in front.provider.requests
            if request.values(b"x-evil") or request.values(b"authorization")
        ]
        await front.check_reached(BODY, BODY, BODY)


@named({
    "C10 a megabyte": chunked(BODY, trailer=b"".join(b"X-%d: %b\r\n" % (each, b"v" * 1000) for each in range(1000))),
    "C10 ten thousand": chunked(BODY, trailer=b"X: v\r\n" * 10_000),
    "C10 one long line": chunked(BODY, trailer=b"X: " + b"v" * (1 << 20) + b"\r\n"),
})  # fmt: skip
async def test_trailer_is_bounded_like_a_head(attack: bytes) -> None:
    async with fronting() as front:
        await front.check_refused(post(TE, body=attack), (400, 413, 431))


@named({
    "C11 a word before": b"y 100-continue", "C11 twice": b"100-continue, 100-continue", "C11 another": b"200-ok",
    "C11 a parameter": b"100-continue;q=1",
})  # fmt: skip
async def test_unknown_expectation_is_refused_and_the_connection_closed(attack: bytes) -> None:
    async with fronting() as front:
        await front.check_refused(post(LENGTH, b"Expect: " + attack, body=BODY), (400, 417))


@named({
    "C11 no expectation": post(LENGTH, body=BODY), "C11 chunked": post(TE, body=CHUNKED),
    "C11 a body that is a call": post(b"Content-Length: %d" % len(SMUGGLED), body=SMUGGLED),
})  # fmt: skip
async def test_call_refused_before_its_body_is_answered_once_and_its_body_is_never_a_request(attack: bytes) -> None:
    async with fronting(server=KEYS) as front:
        last = head(b"GET /healthz HTTP/1.1", HOST, CLOSE)
        heard = await front.hear(attack + last)
        assert heard.is_closed
        # The gateway may either read the body and go on, or close.
        closes = heard.answers[0].headers.get("connection", "") == "close"
        assert heard.statuses == ([401] if closes else [401, 200])
        assert front.provider.connections == []


async def test_call_refused_before_100_continue_ends_the_connection() -> None:
    """C11: the client may or may not send the body now, and it could not be distinguished from a request."""
    async with fronting(server=KEYS) as front:
        expecting = post(b"Content-Length: %d" % len(SMUGGLED), b"Expect: 100-continue", body=b"")
        async with Connection(front.url) as connection:
            answer = await connection.ask(expecting)
            assert (answer.status, answer.interim) == (401, [])
            assert answer.headers["connection"] == "close"
            connection.writer.write(SMUGGLED + SMUGGLED)
            assert await connection.is_closed()
        assert front.provider.connections == []


async def test_client_that_expects_100_continue_gets_it_once() -> None:
    """C11: one 100 (Continue), and the header is not passed on."""
    async with fronting() as front, Connection(front.url) as connection:
        connection.writer.write(post(LENGTH, b"Expect: 100-continue", body=b""))
        assert (await connection.head()).status == 100
        assert (await connection.ask(BODY)).status == 200
        assert (await connection.ask(post(LENGTH, body=BODY))).interim == []
        await front.check_reached(BODY, BODY)
        assert b"expect" not in b"".join(map(bytes, front.provider.connections)).lower()


@named({
    "C11 too large": post(b"Content-Length: %d" % (8 << 20), body=b"x" * (8 << 20)),
    "C11 too large, in chunks": post(TE, body=chunked(*[b"x" * (1 << 20)] * 8)),
    "C11 broken in its middle": post(TE, body=b"f\r\n" + BODY + b"broken" + b"x" * (8 << 20)),
})  # fmt: skip
async def test_answer_before_the_end_of_a_large_body_arrives(attack: bytes) -> None:
    async with fronting(server={"max_body": "64KiB"}) as front:
        heard = await front.hear(attack)
        assert heard.is_closed
        assert not heard.is_reset
        assert len(heard.answers) == 1
        assert heard.answers[0].status in (400, 413)
        assert heard.answers[0].headers["connection"] == "close"
        await front.check_reached()


@pytest.mark.parametrize("sizes", [(1,), (1, 2, 3, 5, 7, 11), (4096,), (70_000,), (65_536, 1)], ids=str)
async def test_body_reaches_the_provider_byte_for_byte_however_it_was_cut(sizes: tuple[int, ...]) -> None:
    """C12: chunked bodies in pieces of any size arrive unchanged."""
    parts: list[bytes] = []
    words = "".join(map(chr, range(0x20, 0x7F))).replace('"', "").replace("\\", "") + "é\u2028😀"
    body = b'{"model": "gpt", "user":"%b"}' % (words * (600 if max(sizes) > 16 else 10)).encode()
    at = 0
    while at < len(body):
        parts.append(body[at : at + sizes[len(parts) % len(sizes)]])
        at += len(parts[-1])
    async with fronting() as front:
        whole = post(TE, CLOSE, body=chunked(*parts))
        heard = await front.hear(*(whole[start : start + 9_999] for start in range(0, len(whole), 9_999)))
        assert heard.statuses == [200]
        (request,) = front.provider.requests
        assert request.values(b"content-length") == [b"%d" % len(body)]
        await front.check_reached(body)


@pytest.mark.parametrize(
    ("method", "fields", "body"),
    [
        pytest.param(b"GET", (LENGTH,), FILE, id="C12 GET with a body"),
        pytest.param(b"GET", (TE,), chunked(FILE), id="C12 GET with chunks"),
        pytest.param(b"GET", (b"Content-Length: 0",), b"", id="C12 GET with no length"),
        pytest.param(b"DELETE", (LENGTH,), FILE, id="C12 DELETE with a body"),
        pytest.param(b"OPTIONS", (TE,), chunked(FILE), id="C12 OPTIONS with chunks"),
        pytest.param(b"HEAD", (), b"", id="C12 HEAD"),
        pytest.param(b"HEAD", (LENGTH,), FILE, id="C12 HEAD with a body"),
        pytest.param(b"DELETE", (), b"", id="C12 DELETE"),
        pytest.param(b"PUT", (TE,), b"0\r\n\r\n", id="C12 PUT with no chunk"),
    ],
)
async def test_unusual_pair_of_method_and_body_is_framed_once(
    method: bytes, fields: tuple[bytes, ...], body: bytes
) -> None:
    async with fronting() as front:
        request = head(method + b" /v1/files HTTP/1.1", HOST, b"Content-Type: application/json", *fields) + body
        closing = head(b"GET /healthz HTTP/1.1", HOST, CLOSE)
        if method == b"HEAD":
            heard = await front.hear(request.replace(HOST, HOST + b"\r\n" + CLOSE), has_body=False)
            assert heard.statuses == [200]
        else:
            heard = await front.hear(request + closing)
            assert heard.statuses == [200, 200]
        (reached,) = front.provider.requests
        assert reached.method == method
        await front.check_reached(FILE if len(body) > 5 else b"")


async def test_gateway_is_as_strict_where_aiohttp_parses_in_python(tmp_path: Path) -> None:
    """C13: aiohttp falls back to a parser in Python that accepts all of these; the listener must not depend on it."""
    async with Recorder() as provider:
        served = process_of(tmp_path / "c.yaml", config_text(provider.url), env=["AIOHTTP_NO_EXTENSIONS=1"])
        async with served as gateway:
            for attack in (
                post(b"Content-Length: %d" % 2**70, body=BODY),
                post(TE, body=b"f" * 18 + b"\r\n" + BODY),
                post(TE, body=b"f;a\nb\r\n" + BODY + b"\r\n0\r\n\r\n"),
                head(b"GET /v1/\xe9 HTTP/1.1", HOST),
                head(b"get /v1/models HTTP/1.1", HOST),
            ):
                heard = await hear(gateway.url, attack + SMUGGLED)
                assert heard.is_closed
                assert [answer.status in (400, 405) for answer in heard.answers] == [True]
            assert (await fetch(f"{gateway.url}/healthz")).status == 200
        assert provider.connections == []


def test_gateway_does_not_start_without_its_parser() -> None:
    """C13: there is no parser to fall back to."""
    blocked = "import sys; sys.modules['httptools.parser.parser'] = None; import llm_guard.app"
    done = subprocess.run([sys.executable, "-c", blocked], cwd=_ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "httptools" in done.stderr


async def test_form_of_the_attacks_is_that_of_a_good_call() -> None:
    """C01: this and all other attacks differ from it in one thing each."""
    async with fronting() as front:
        for good in (post(LENGTH, CLOSE, body=BODY), post(TE, CLOSE)):
            assert (await front.hear(good)).answers[0].body == CHAT.answer
        await front.check_reached(BODY, BODY)
