"""Requests to upstreams: heads, origins and forward proxies."""

from __future__ import annotations

import pytest

from llm_guard.outcome import FailureKind
from llm_guard.proxy.http_client import http1 as module
from llm_guard.proxy.http_client.errors import UpstreamError
from llm_guard.proxy.http_client.forward_proxy import _readable, proxy_for
from llm_guard.proxy.http_client.http1 import RequestHeaders, request_head
from llm_guard.routing.deployment import Upstream


def head(
    method: str = "POST", target: str = "/v1", headers: list[tuple[str, str]] | None = None, body_size: int = 0
) -> tuple[bytes, bool]:
    sent = RequestHeaders(headers or [])
    return request_head(method, target, "h", sent, body_size), sent.is_upgrade


def test_head_is_the_given_one_and_the_length() -> None:
    written, is_upgrade = head("POST", "/v1/x?a=%20b", [("X-Key", "1"), ("accept", "*/*")], 7)
    assert written == b"POST /v1/x?a=%20b HTTP/1.1\r\nHost: h\r\nX-Key: 1\r\naccept: */*\r\nContent-Length: 7\r\n\r\n"
    assert not is_upgrade


@pytest.mark.parametrize(
    ("method", "body_size", "length"),
    [
        ("POST", 0, b"0"), ("PUT", 0, b"0"), ("PATCH", 0, b"0"), ("GET", 0, None), ("DELETE", 0, None),
        ("HEAD", 0, None), ("OPTIONS", 0, None), ("GET", 3, b"3"), ("DELETE", 3, b"3"),
    ],
)  # fmt: skip
def test_length_is_stated_where_there_is_a_body_or_could_be_one(
    method: str, body_size: int, length: bytes | None
) -> None:
    written, _ = head(method, body_size=body_size)
    assert written.lower().count(b"content-length") == (length is not None)
    assert length is None or b"Content-Length: %s\r\n\r\n" % length in written


@pytest.mark.parametrize(
    "headers",
    [
        [("X", "a\r\nY: b")], [("X", "a\nY: b")], [("X", "a\rb")], [("X", "a\0b")], [("X", "日")],
        [("X\r\nY", "a")], [("X Y", "a")], [("X:", "a")], [("", "a")], [("Ü", "a")],
        [("Host", "evil")], [("content-length", "5")], [("Transfer-Encoding", "chunked")],
    ],
)  # fmt: skip
def test_header_that_would_be_more_than_one_is_never_sent(headers: list[tuple[str, str]]) -> None:
    for _ in range(2):  # also when the name is in the cache
        with pytest.raises(UpstreamError) as raised:
            head(headers=headers)
        assert raised.value.kind is FailureKind.INTERNAL


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/a b"), ("GET", "/a\r\nX: y"), ("GET", "/a\n"), ("GET", "/\0"), ("GET", ""), ("GET", "a"),
        ("GET", "http://evil/"), ("GET", "/日"), ("TRACE", "/"), ("CONNECT", "/"), ("GET /x HTTP/1.1\r\nX:", "/"),
    ],
)  # fmt: skip
def test_request_line_that_would_be_more_than_one_is_never_sent(method: str, target: str) -> None:
    with pytest.raises(UpstreamError) as raised:
        head(method, target)
    assert raised.value.kind is FailureKind.INTERNAL


def test_headers_that_requests_share_are_written_for_each_target() -> None:
    shared = RequestHeaders([("X-Key", "1")])
    for start in ("POST /a h", "POST /b h", "GET /b h", "GET /b other", "POST /a h"):
        method, target, host = start.split()
        for size in (5, 70, None):
            alone = RequestHeaders([("X-Key", "1")])
            assert request_head(method, target, host, shared, size) == request_head(method, target, host, alone, size)
    for _ in range(2):
        with pytest.raises(UpstreamError):
            request_head("POST", "/a\n", "h", shared, 5)
    assert request_head("POST", "/a", "h", shared, 5).startswith(b"POST /a HTTP/1.1\r\nHost: h\r\nX-Key: 1\r\n")


def test_latin_1_bytes_are_sent_unchanged() -> None:
    assert "é".encode() in head(target="/" + "é".encode().decode("latin-1"))[0]


def test_request_for_an_upgrade_is_seen_every_time() -> None:
    for name in ("Upgrade", "upgrade"):
        assert [head(headers=[(name, "websocket")])[1] for _ in range(2)] == [True, True]


def test_names_that_clients_invent_are_not_stored_for_ever() -> None:
    for number in range(3000):
        head(headers=[(f"x-made-up-{number}", "1")])
    assert len(module._sound_names) <= 1024
    assert b"x-made-up-2999: 1\r\n" in head(headers=[("x-made-up-2999", "1")])[0]


@pytest.mark.parametrize(
    ("base_url", "origin", "base_path"),
    [
        ("https://api.openai.com/v1", "https://api.openai.com", "/v1"),
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000", ""),
        ("http://[::1]:80/a/b%2Fc", "http://[::1]:80", "/a/b%2Fc"),
        ("https://h/käse", "https://h", "/k%C3%A4se"),
    ],
)
def test_base_url_is_an_origin_and_a_path(base_url: str, origin: str, base_path: str) -> None:
    upstream = Upstream("u", "openai", base_url, None, "bearer")
    assert (upstream.origin, upstream.base_path) == (origin, base_path)


PROXIES = {"https": "http://proxy:3128", "all": "fallback:1080"}


@pytest.mark.parametrize(
    ("origin", "no_proxy", "proxy"),
    [
        ("https://api.openai.com", "", "http://proxy:3128"),
        ("http://api.openai.com", "", "http://fallback:1080"),
        ("https://api.openai.com", "openai.com", None),
        ("https://api.openai.com", "other.com", "http://proxy:3128"),
        ("http://127.0.0.1:8000", "127.0.0.1", None),
        ("http://127.0.0.1:8000", "127.0.0.1:9000", "http://fallback:1080"),
        ("https://api.openai.com", "*", None),
    ],
)
def test_proxy_is_the_schemes_unless_the_host_is_named(
    monkeypatch: pytest.MonkeyPatch, origin: str, no_proxy: str, proxy: str | None
) -> None:
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("no_proxy", no_proxy)
    assert proxy_for(origin, PROXIES) == proxy


def test_without_proxies_every_origin_is_reached_directly() -> None:
    assert proxy_for("https://api.openai.com", {}) is None


def test_header_that_a_proxied_answer_brings_can_be_written_again() -> None:
    assert _readable("é\udcff\x01").encode("latin-1") == "é".encode() + b"\xff "
