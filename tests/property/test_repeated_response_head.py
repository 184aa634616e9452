"""A response that is recognized by its head must be the one that parsing gives, whatever came before it."""

from __future__ import annotations

from typing import Any, cast

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_guard.proxy.http_client.http1 import ResponseParser
from tests.effort import repeated

STATUS_LINES = (
    b"HTTP/1.1 200 OK", b"HTTP/1.1 200 Ok", b"HTTP/1.1 429 Slow Down", b"HTTP/1.0 200 OK", b"HTTP/1.1 204 No Content",
    b"HTTP/1.1 304 Not Modified", b"HTTP/1.1 100 Continue", b"HTTP/1.1 200",
)  # fmt: skip
LENGTHS = (b"2", b"02", b" 2", b"2 ", b"+2", b"-2", b"2_0", b"12", b"0", b"", b"2\t", b"2, 2", b"1" * 13)
VALUES = (
    b"1", b"2", b"", b" ", b"a b", b"a  ", b"\t1", b"1\t2", b"1\r2", b"1\n2", b"1\x002", b"\xe9", b"1\x7f", b"close",
    b"keep-alive", b"chunked", b"timeout=5", b"timeout=7", b"1\r\nX-C: 3", b"1\r\n folded", b"content-length: 7",
    b"1\r\nContent-Length: 2",
)  # fmt: skip
NAMES = (b"X-A", b"x-a", b"X-B", b"Connection", b"Keep-Alive", b"Transfer-Encoding", b"Upgrade", b"X-A ", b" X-A")

heads = st.builds(
    lambda line, fields, length, is_last: (line, [*fields, length] if is_last else [length, *fields]),
    st.sampled_from(STATUS_LINES[:1] * 8 + STATUS_LINES),
    st.lists(st.tuples(st.sampled_from(NAMES[:3] * 4 + NAMES), st.sampled_from(VALUES[:2] * 8 + VALUES)), max_size=3),
    st.tuples(st.just(b"Content-Length"), st.sampled_from(LENGTHS[:1] * 12 + LENGTHS)),
    st.booleans(),
)
bodies = st.sampled_from((b"ok", b"ok", b"ok", b"no", b"", b"okHTTP/1.1 200 OK\r\n\r\n", b"okokokokokok"))


@st.composite
def conversations(draw: st.DrawFn) -> list[tuple[list[bytes], bool, bool]]:
    """Returns the responses of one connection: nearly always a head like the one before, sometimes in two reads or to
    another kind of request."""
    responses = []
    line, fields = draw(heads)
    for _ in range(draw(st.integers(2, 6))):
        if draw(st.integers(0, 9)) == 0:
            line, fields = draw(heads)
        at = draw(st.integers(0, len(fields) - 1))
        name, values = fields[at][0], LENGTHS if fields[at][0] == b"Content-Length" else VALUES
        fields = [*fields[:at], (name, draw(st.sampled_from((fields[at][1], *values)))), *fields[at + 1 :]]
        separator = b": " if draw(st.integers(0, 9)) else draw(st.sampled_from((b":", b":  ", b":\t")))
        head = b"\r\n".join([line, *(name + separator + value for name, value in fields), b"", b""])
        data = head + draw(bodies)
        cut = draw(st.integers(1, len(data) - 1)) if draw(st.integers(0, 4)) == 0 else len(data)
        kind = draw(st.integers(0, 19))
        responses.append(([piece for piece in (data[:cut], data[cut:]) if piece], kind == 0, kind == 1))
    return responses


class Reading:
    """Reads the responses of one connection, as long as it is kept."""

    def __init__(self, *, is_recognized: bool = True) -> None:
        self.reader = ResponseParser()
        self.seen: list[object] = []
        self.parsed = 0
        """Number of reads that llhttp was fed."""
        self._is_recognized = is_recognized
        self._parser, self.reader.parser = self.reader.parser, cast("httptools.HttpResponseParser", self)

    def feed_data(self, data: bytes) -> None:
        self.parsed += 1
        self._parser.feed_data(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)

    def read(self, *pieces: bytes, is_head: bool = False, is_upgrade: bool = False) -> bool:
        """Reads a response; returns whether another may follow."""
        reader, error = self.reader, ""
        reader.expect(is_head=is_head, is_upgrade=is_upgrade)
        for piece in pieces:
            if not self._is_recognized:
                reader._repeated = None
            try:
                reader.feed(piece)
            except (httptools.HttpParserError, httptools.HttpParserUpgrade) as raised:
                error = type(raised).__name__
                break
        self.seen.append((reader.status, reader.reason, reader.headers, b"".join(reader.pieces), error))
        self.seen.append((reader.is_complete, reader.is_kept, reader.keep_alive_s, reader.has_interim))
        reader.pieces.clear()
        return not error and reader.is_complete and reader.is_kept


@settings(max_examples=repeated(4000))
@given(conversations())
def test_recognized_response_is_the_one_that_parsing_gives(responses: list[tuple[list[bytes], bool, bool]]) -> None:
    quick, thorough = Reading(), Reading(is_recognized=False)
    for pieces, is_head, is_upgrade in responses:
        may_go_on = quick.read(*pieces, is_head=is_head, is_upgrade=is_upgrade)
        thorough.read(*pieces, is_head=is_head, is_upgrade=is_upgrade)
        assert quick.seen == thorough.seen
        if not may_go_on:
            return


def answer(value: bytes = b"1", *, line: bytes = STATUS_LINES[0], length: bytes = b"2", body: bytes = b"ok") -> bytes:
    return line + b"\r\nX-A: " + value + b"\r\nContent-Length: " + length + b"\r\n\r\n" + body


def test_response_is_recognized_whatever_its_values_and_its_length() -> None:
    reading = Reading()
    for response in (
        answer(),
        answer(),
        answer(b"Sat, 28 Nov", length=b"3", body=b"yes"),
        answer(length=b"0", body=b""),
    ):
        assert reading.read(response)
    assert reading.parsed == 1
    assert reading.seen[-4] == (200, "OK", (("X-A", "Sat, 28 Nov"), ("Content-Length", "3")), b"yes", "")
    assert reading.seen[-2] == (200, "OK", (("X-A", "1"), ("Content-Length", "0")), b"", "")


@pytest.mark.parametrize("value", [*VALUES[2:13], b"1\r\nX-C: 3"])
def test_value_that_is_not_plain_is_parsed(value: bytes) -> None:
    reading = Reading()
    reading.read(answer())
    reading.read(answer(value))
    assert reading.parsed == (1 if value == b"a b" else 2)


@pytest.mark.parametrize("name", [b"Connection", b"Keep-Alive", b"Proxy-Connection", b"Upgrade"])
def test_change_of_a_header_that_concerns_the_connection_is_parsed(name: bytes) -> None:
    reading = Reading()
    for value, parsed in ((b"a", 1), (b"a", 1), (b"b", 2)):
        reading.read(answer().replace(b"X-A: 1", name + b": " + value))
        assert reading.parsed == parsed


@pytest.mark.parametrize(
    "other",
    [
        answer(line=STATUS_LINES[1]), answer(body=b"okok"), answer(body=b"o"), answer(length=b"+2"),
        answer().replace(b"X-A: 1\r\n", b""), answer().replace(b"X-A", b"x-a"), answer()[:-2],
    ],
    ids=["status line", "rest", "part", "no number", "fewer headers", "other name", "no body"],
)  # fmt: skip
def test_response_that_differs_more_is_parsed(other: bytes) -> None:
    reading = Reading()
    reading.read(answer())
    reading.read(other)
    assert reading.parsed == 2


def test_response_to_head_and_rest_of_a_response_are_parsed() -> None:
    reading = Reading()
    for pieces, is_head, parsed in (
        ((answer(),), False, 1),
        ((answer()[:20], answer()[20:]), False, 3),
        ((answer(),), True, 4),
    ):
        reading.read(*pieces, is_head=is_head)
        assert reading.parsed == parsed


def test_heads_that_always_differ_are_kept_only_a_few_times() -> None:
    reading = Reading()
    for number in range(6):
        reading.read(answer().replace(b"X-A", b"X-%d" % number))
    assert reading.reader._kept == 4


def test_body_that_looks_like_the_next_response_is_none() -> None:
    reading = Reading()
    reading.read(answer())
    reading.read(answer(length=b"%d" % len(answer()), body=b""), answer())
    assert reading.parsed == 3
    assert reading.seen[-2] == (200, "OK", (("X-A", "1"), ("Content-Length", str(len(answer())))), answer(), "")
