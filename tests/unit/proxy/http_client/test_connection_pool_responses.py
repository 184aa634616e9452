"""Which bytes from an upstream are accepted as a response: llhttp's strictness, and additional checks."""

from __future__ import annotations

import httptools
import pytest

from llm_guard.proxy.http_client import http1
from llm_guard.proxy.http_client.http1 import ResponseParser

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"
LENGTH_1 = b"content-length: 1\r\n\r\n"
WHOLE = OK + b"X-Id: 1\r\n" + LENGTH_1 + b"x"


def read(*segments: bytes, is_head: bool = False, is_upgrade: bool = False) -> tuple[ResponseParser, bool]:
    """Returns the reader after it was fed these bytes, and whether it accepted all of them."""
    reader = ResponseParser()
    reader.expect(is_head=is_head, is_upgrade=is_upgrade)
    return reader, feed(reader, *segments)


def feed(reader: ResponseParser, *segments: bytes) -> bool:
    try:
        for segment in segments:
            reader.feed(segment)
    except httptools.HttpParserError:
        return False
    return True


def fields(count: int, size: int = 1) -> bytes:
    return b"".join(b"x-%d: %s\r\n" % (number, b"v" * size) for number in range(count))


NOT_A_HEAD = {
    "content-length and transfer-encoding": OK + b"content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
    "transfer-encoding and content-length": OK + b"transfer-encoding: chunked\r\ncontent-length: 1\r\n\r\n",
    "two lengths": OK + b"content-length: 1\r\ncontent-length: 2\r\n\r\n",
    "twice the same length": OK + b"content-length: 1\r\n" + LENGTH_1,
    "a list of lengths": OK + b"content-length: 1, 1\r\n\r\n",
    "a length with a sign": OK + b"content-length: +1\r\n\r\n",
    "a negative length": OK + b"content-length: -1\r\n\r\n",
    "a hexadecimal length": OK + b"content-length: 0x1\r\n\r\n",
    "an empty length": OK + b"content-length: \r\n\r\n",
    "a huge length": OK + b"content-length: 99999999999999999999\r\n\r\n",
    "a coding within chunked": OK + b"transfer-encoding: gzip, chunked\r\n\r\n",
    "a coding around chunked": OK + b"transfer-encoding: chunked, gzip\r\n\r\n",
    "chunked twice": OK + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n",
    "identity": OK + b"transfer-encoding: identity\r\n\r\n",
    "nearly chunked": OK + b"Transfer-Encoding: xchunked\r\n\r\n",
    "chunked in HTTP/1.0": b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ntransfer-encoding: chunked\r\n\r\n",
    "bare line feeds": b"HTTP/1.1 200 OK\ncontent-length: 1\n\n",
    "one bare line feed": OK + b"a: b\n" + LENGTH_1,
    "a bare carriage return": OK + b"a: b\rc: d\r\n" + LENGTH_1,
    "a folded line": OK + b"a: b\r\n c\r\n" + LENGTH_1,
    "NUL in a value": OK + b"a: b\0c\r\n" + LENGTH_1,
    "escape in a value": OK + b"a: b\x1bc\r\n" + LENGTH_1,
    "a space in a name": OK + b"a b: c\r\n" + LENGTH_1,
    "a space behind a name": OK + b"content-length : 1\r\n\r\n",
    "no name": OK + b": c\r\n" + LENGTH_1,
    "no colon": OK + b"broken\r\n" + LENGTH_1,
    "HTTP/0.9": b"<html>hello",
    "a version 0.9": b"HTTP/0.9 200 OK\r\n" + LENGTH_1,
    "a version 2.0": b"HTTP/2.0 200 OK\r\nconnection: keep-alive\r\n" + LENGTH_1,
    "status 099": b"HTTP/1.1 099 OK\r\n" + LENGTH_1,
    "status 999": b"HTTP/1.1 999 OK\r\n" + LENGTH_1,
    "status 600": b"HTTP/1.1 600 OK\r\n" + LENGTH_1,
    "status 20": b"HTTP/1.1 20 OK\r\n" + LENGTH_1,
    "101 unasked": b"HTTP/1.1 101 S\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
    "too many headers": OK + fields(200) + LENGTH_1,
    "a header too long": OK + fields(1, 1 << 15) + LENGTH_1,
    "headers too long together": OK + fields(3, 30_000) + LENGTH_1,
    "too many interim responses": b"HTTP/1.1 102 P\r\n\r\n" * 1001 + WHOLE,
}
NOT_A_BODY = {
    "a chunk's size with a prefix": b"0x1\r\nx\r\n0\r\n\r\n",
    "a negative size": b"-1\r\nx\r\n0\r\n\r\n",
    "a size with a grouping": b"1_0\r\nx\r\n0\r\n\r\n",
    "no size": b"\r\nx\r\n0\r\n\r\n",
    "a space behind a size": b"1 \r\nx\r\n0\r\n\r\n",
    "a size beyond 64 bit": b"10000000000000000\r\nx\r\n0\r\n\r\n",
    "a bare line feed behind a size": b"1\nx\r\n0\r\n\r\n",
    "a bare line feed in an extension": b"1;a\nb\r\nx\r\n0\r\n\r\n",
    "a bare line feed behind a chunk": b"1\r\nx\n0\r\n\r\n",
    "a chunk longer than its size": b"1\r\nxx\r\n0\r\n\r\n",
    "a length among the trailers": b"1\r\nx\r\n0\r\ncontent-length: 5\r\n\r\n",
    "a coding among the trailers": b"1\r\nx\r\n0\r\ntransfer-encoding: chunked\r\n\r\n",
}


@pytest.mark.parametrize("name", NOT_A_HEAD)
def test_ambiguous_framing_is_no_response(name: str) -> None:
    reader, is_taken = read(NOT_A_HEAD[name])
    assert not is_taken
    assert reader.status == 0
    assert not reader.is_complete


@pytest.mark.parametrize("name", NOT_A_BODY)
def test_a_body_that_is_not_framed_as_it_must_be_has_no_end(name: str) -> None:
    reader, is_taken = read(CHUNKED + NOT_A_BODY[name])
    assert not is_taken
    assert (reader.status, reader.is_complete) == (200, False)


@pytest.mark.parametrize(
    "rest", [WHOLE, b"H", b"HTTP/1.1 ", b"x", b" ", b"\0"], ids=["an answer", "H", "a version", "x", "space", "NUL"]
)
def test_data_after_a_response_is_noticed(rest: bytes) -> None:
    reader, is_taken = read(WHOLE + rest)
    assert not is_taken
    assert (reader.is_complete, b"".join(reader.pieces)) == (True, b"x")


def test_body_where_none_can_be_is_noticed() -> None:
    reader, is_taken = read(b"HTTP/1.1 204 No Content\r\n" + LENGTH_1 + b"x")
    assert (is_taken, reader.status, reader.is_complete, reader.pieces) == (False, 204, True, [])


def test_head_request_has_an_answer_without_body_after_which_nothing_is_read() -> None:
    reader, is_taken = read(OK + b"content-length: 5\r\n\r\n12345", is_head=True)
    assert (is_taken, reader.status, reader.is_complete, reader.pieces) == (False, 200, True, [])


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (WHOLE, b"x"),
        (CHUNKED + b'5;ext=1;q="a b"\r\nabcde\r\nA\r\n0123456789\r\n0\r\nX-Sum: 1\r\n\r\n', b"abcde0123456789"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 E\r\nX-Id: 0\r\n\r\n" + WHOLE, b"x"),
        (b"HTTP/1.1 304 Not Modified\r\nX-Id: 1\r\ncontent-length: 9\r\n\r\n", b""),
    ],
    ids=["length", "chunked", "interim", "not modified"],
)  # fmt: skip
def test_answer_is_the_same_however_it_is_split(answer: bytes, body: bytes) -> None:
    expected, _ = read(answer)
    for at in range(1, len(answer)):
        reader, is_taken = read(answer[:at], answer[at:])
        assert is_taken
        assert (reader.is_complete, reader.is_kept) == (True, True)
        assert (reader.status, reader.reason, reader.headers) == (expected.status, expected.reason, expected.headers)
        assert b"".join(reader.pieces) == body


def test_headers_are_those_of_the_answer_alone() -> None:
    interim = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    reader, _ = read(interim + OK + b"X-Id: 1 \t\r\nx-id: 2\r\nX-None:\r\n" + LENGTH_1 + b"x")
    assert reader.headers == (("X-Id", "1"), ("x-id", "2"), ("X-None", ""), ("content-length", "1"))
    assert (reader.status, reader.reason) == (200, "OK")


def test_bytes_of_a_value_can_be_written_again() -> None:
    value = "naïve … 日本".encode() + b"\xff\xa0"
    reader, _ = read(OK + b"X-Odd: " + value + b"\r\n" + LENGTH_1)
    assert dict(reader.headers)["X-Odd"].encode("latin-1") == value


def test_reason_has_no_control_character() -> None:
    reader, _ = read(b"HTTP/1.1 200 a\0b\x1b\xe9\r\n" + LENGTH_1)
    assert reader.reason == "a b \xe9"


@pytest.mark.parametrize(
    ("head", "is_kept", "is_framed"),
    [
        (OK + LENGTH_1, True, True),
        (CHUNKED, True, True),
        (OK + b"Connection: foo, Close\r\n" + LENGTH_1, False, True),
        (OK + b"connection: close\r\nconnection: keep-alive\r\n" + LENGTH_1, False, True),
        (OK + b"\r\n", False, False),
        (b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\n" + LENGTH_1, False, True),
        (b"HTTP/1.0 200 OK\r\n\r\n", False, False),
    ],
)
def test_connection_is_pooled_only_if_both_sides_know_where_a_response_ends(
    head: bytes, is_kept: bool, is_framed: bool
) -> None:
    reader, _ = read(head)
    assert (reader.is_kept, reader.is_framed) == (is_kept, is_framed)


def test_head_after_an_interim_one_is_read_in_its_own_version() -> None:
    interim, final = (
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 0\r\n\r\n",
    )
    for segments in ((interim + final,), (interim, final)):
        reader, is_accepted = read(*segments)
        assert is_accepted
        assert (reader.status, reader.is_kept) == (200, False)


def test_keep_alive_timeout_is_read() -> None:
    assert read(OK + b"Keep-Alive: timeout=5, max=100\r\n" + LENGTH_1)[0].keep_alive_s == 5
    assert read(OK + b"Keep-Alive: soon\r\n" + LENGTH_1)[0].keep_alive_s is None


def test_requested_upgrade_ends_the_parsing() -> None:
    reader = ResponseParser()
    reader.expect(is_head=False, is_upgrade=True)
    switched = b"HTTP/1.1 101 S\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n"
    with pytest.raises(httptools.HttpParserUpgrade) as ended:
        reader.parser.feed_data(switched + b"frames")
    assert ended.value.args[0] == len(switched)
    assert (reader.status, reader.is_complete) == (101, False)


def test_one_answer_leaves_nothing_to_the_next() -> None:
    reader, _ = read(b"HTTP/1.1 404 Gone Fishing\r\nX-Id: 1\r\n" + LENGTH_1 + b"x")
    reader.pieces.clear()
    reader.expect(is_head=False, is_upgrade=False)
    assert (reader.status, reader.is_complete) == (0, False)
    assert feed(reader, b"HTTP/1.1 200\r\ncontent-length: 0\r\n\r\n")
    assert (reader.status, reader.reason, reader.headers) == (200, "", (("content-length", "0"),))


def test_names_that_upstreams_invent_are_not_stored_for_ever() -> None:
    for number in range(3000):
        read(OK + b"x-made-up-%d: 1\r\n" % number + LENGTH_1)
    assert len(http1._names) <= 1024
    assert read(OK + b"x-made-up-2999: 1\r\n" + LENGTH_1)[0].headers[0][0] == "x-made-up-2999"
