"""Parsing of request heads, and reading of bodies."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_guard.proxy.http_server.request import Request, RequestFields, RequestParser, check_head, objection
from llm_guard.proxy.request_body.model_field import BadRequest

HOST = (b"Host", b"gateway.test:8080")


def request(
    target: str = "/v1/models", *fields: tuple[bytes, bytes], method: str = "GET", version: str = "1.1"
) -> Request:
    return Request(method, target, version, RequestFields.read(list(fields or (HOST,)), is_head_long=True))


@pytest.mark.parametrize(
    "host", [b"a", b"a.b-c_d:1", b"127.0.0.1:8080", b"[::1]:80", b"[fe80::1]", b"localhost:", b"xn--bcher-kva.example"]
)
def test_host_with_or_without_a_port_is_accepted(host: bytes) -> None:
    check_head(request("/", (b"Host", host)))


@pytest.mark.parametrize(
    "host", [b"", b"a/b", b"a?b", b"a#b", b"u@a", b"a b", b"a,b", b"a:80:81", b"a:port", b"[::1", b"b\xfccher", b"a\\b"]
)
def test_host_that_is_more_than_a_host_is_refused(host: bytes) -> None:
    with pytest.raises(BadRequest) as refused:
        check_head(request("/", (b"Host", host)))
    assert refused.value.code == "invalid_host"


def test_host_may_be_missing_only_before_http_1_1() -> None:
    check_head(request("/", (b"A", b"b"), version="1.0"))
    with pytest.raises(BadRequest, match="missing"):
        check_head(request("/", (b"A", b"b")))


@pytest.mark.parametrize("version", ["0.9", "2.0", "1.2"])
def test_other_versions_are_refused(version: str) -> None:
    with pytest.raises(BadRequest) as refused:
        check_head(request(version=version))
    assert refused.value.status == 505


@pytest.mark.parametrize("coding", [b"gzip, chunked", b"chunked, chunked", b",chunked", b"identity", b"chunked;q=1"])
def test_other_transfer_codings_are_refused(coding: bytes) -> None:
    with pytest.raises(BadRequest, match="transfer coding"):
        check_head(request("/", HOST, (b"Transfer-Encoding", coding)))


def test_chunks_are_refused_before_http_1_1() -> None:
    check_head(request("/", HOST, (b"Transfer-Encoding", b"Chunked")))
    with pytest.raises(BadRequest, match="transfer coding"):
        check_head(request("/", HOST, (b"Transfer-Encoding", b"chunked"), version="1.0"))


def test_fields_are_stored_as_written_and_found_by_lower_case_name() -> None:
    this = request("/", HOST, (b"X-A", b"one \t"), (b"x-a", b"two"), (b"X_Api_Key", b"dropped"), (b"B", b"\xe9"))
    assert this.headers == (("Host", "gateway.test:8080"), ("X-A", "one"), ("x-a", "two"), ("B", "\xe9"))
    assert this.names == {"host": "gateway.test:8080", "x-a": "one", "b": "\xe9"}


def test_two_hosts_are_refused() -> None:
    with pytest.raises(BadRequest, match="two Host"):
        request("/", HOST, HOST)


def test_number_and_length_of_fields_are_bounded() -> None:
    request("/", HOST, *[(b"a%d" % number, b"") for number in range(127)])
    for fields in [[(b"a%d" % number, b"") for number in range(128)], [(b"a", b"x" * 16_385)]]:
        with pytest.raises(BadRequest) as refused:
            request("/", HOST, *fields)
        assert refused.value.status == 431


@pytest.mark.parametrize(
    "target",
    [
        "/", "/v1/chat/completions", "/v1/models/meta-llama%2FLlama-3.1", "/v1/files/file-1/content?a=//../b&c=%00",
        "/v1/models/gpt-4o:ft@x", "/v1/models/", "/v1/a.b/..c/.d", "/v1/m%C3%A9",
    ],
)  # fmt: skip
def test_plain_targets_are_accepted(target: str) -> None:
    assert objection(request(target)) is None


@pytest.mark.parametrize(
    "target",
    [
        "", "*", "v1/models", "//evil/x", "/v1//models", "http://evil/v1/models", "evil:80", "/v1/../admin", "/v1/.",
        "/v1/./models", "/v1/..", "/v1/%2e%2e/admin", "/v1%2f..%2fadmin", "/v1/%252e%252e/admin", "/v1/..%5cadmin",
        "/v1/..\\admin", "/v1/%00", "/v1/a%0d%0aX", "/v1/%", "/v1/%zz", "/v1/models#x", "/v1/models?a#b", "/v1/a;b c",
        "/v1/%2f/x", '/v1/"', "/v1/<x>",
    ],
)  # fmt: skip
def test_other_targets_are_refused(target: str) -> None:
    bad = objection(request(target))
    assert bad is not None
    assert (bad.status, bad.code) == (400, "invalid_path")


@given(st.lists(st.sampled_from(["%2e", "%252E", "..", ".", "%2f", "/", "%5c", "v1", "a", "%25"]), max_size=8))
def test_no_accepted_path_leaves_its_folder_however_often_it_is_decoded(pieces: list[str]) -> None:
    path = "/v1/" + "".join(pieces)
    if objection(request(path)) is None:
        for _ in range(2):
            path = (
                path.replace("%25", "%")
                .replace("%2e", ".")
                .replace("%2E", ".")
                .replace("%2f", "/")
                .replace("%5c", "\\")
            )
            assert "\\" not in path
            assert not {"..", ".", ""} & set(path.rstrip("/").split("/")[1:])


@pytest.mark.parametrize("method", ["TRACE", "CONNECT", "PROPFIND", "M-SEARCH"])
def test_other_methods_are_refused(method: str) -> None:
    bad = objection(request(method=method))
    assert bad is not None
    assert bad.status == 405


def test_long_target_is_refused() -> None:
    bad = objection(request("/v1/" + "x" * 16_381))
    assert bad is not None
    assert bad.status == 431
    assert objection(request("/v1/" + "x" * 16_380)) is None


# bodies


async def test_body_is_read_as_it_arrives() -> None:
    this = request()
    this.feed(b"one")
    this.feed(b"two")
    assert await this.read() == b"onetwo"
    rest = asyncio.ensure_future(this.read())
    await asyncio.sleep(0)
    this.feed(b"three")
    assert await rest == b"three"
    end = asyncio.ensure_future(this.read())
    await asyncio.sleep(0)
    this.complete()
    assert await end == b""
    assert this.has_arrived


async def test_body_that_fails_raises_after_what_has_arrived() -> None:
    this = request()
    this.feed(b"one")
    this.fail(BadRequest(400, "invalid_body", "broken"))
    assert await this.read() == b"one"
    with pytest.raises(BadRequest, match="broken"):
        await this.read()
    assert not this.has_arrived


async def test_reader_gets_a_failure_at_once() -> None:
    this = request()
    reading = asyncio.ensure_future(this.read())
    await asyncio.sleep(0)
    this.fail(BadRequest(408, "request_timeout", "slow"))
    with pytest.raises(BadRequest, match="slow"):
        await reading


async def test_body_of_tiny_pieces_is_refused() -> None:
    this = request()
    for _ in range(4097):
        this.feed(b"x")
    await this.read()
    with pytest.raises(BadRequest) as refused:
        await this.read()
    assert refused.value.status == 413


async def test_body_of_many_pieces_of_some_size_is_read() -> None:
    this = request()
    for _ in range(10_000):
        this.feed(b"x" * 16)
    this.complete()
    assert len(await this.read()) == 160_000


async def test_reading_stops_until_the_buffer_is_read() -> None:
    this, resumed = request(), []
    assert not this.feed(b"x" * 200_000)
    assert this.feed(b"x" * 100_000)
    this.resume_with(lambda: resumed.append(True))
    await this.read()
    assert resumed == [True]
    this.feed(b"x")
    await this.read()
    assert resumed == [True]


class IgnoringHandler:
    """A handler that ignores all requests."""

    def on_begun(self) -> None: ...
    def on_request(self, request: Request) -> None: ...
    def on_whole(self, request: Request) -> None: ...
    def on_full(self, request: Request) -> None: ...


def feed_all(data: bytes) -> None:
    parser = RequestParser(IgnoringHandler())
    while data:
        data = parser.feed(data)


@pytest.mark.parametrize("data", [b"this is no request\r\n\r\n", b"GET /" + b"x" * 70_000])
def test_error_is_not_raised_twice(data: bytes) -> None:
    """An exception keeps the frames that raised it: a shared instance would keep those of every bad request."""
    errors = []
    for _ in range(2):
        with pytest.raises(BadRequest) as refused:
            feed_all(data)
        errors.append(refused.value)
    assert errors[0] is not errors[1]


def test_broken_bodies_have_each_an_error_of_their_own() -> None:
    head = b"POST /v1/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    errors = []
    for _ in range(2):
        parser = RequestParser(IgnoringHandler())
        parser.feed(head)
        this = parser.reading
        with pytest.raises(BadRequest):
            parser.feed(b"zz\r\n")
        assert this is not None
        errors.append(this._error)
    assert errors[0] is not errors[1]
