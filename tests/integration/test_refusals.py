"""Requests that the gateway itself refuses: the status, the message, and no harm to the next request."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator, Mapping

import pytest

from tests.chaos.forms import ANY_ANSWER, CHAT, EMBEDDINGS, MESSAGES, UNARY, Form, name_of
from tests.chaos.stand import Stand, config_of, facing, standing
from tests.chaos.wire import Connection, Reply, ask
from tests.fakes.client import raw_request
from tests.fakes.provider import ScriptedProvider, whole

MAX_BODY = 100_000
BODY = CHAT.body()
dialects = pytest.mark.parametrize("form", [CHAT, MESSAGES], ids=["openai", "anthropic"])
unary = pytest.mark.parametrize("form", UNARY, ids=name_of)


@pytest.fixture
async def setting() -> AsyncIterator[tuple[Stand, ScriptedProvider]]:
    """A gateway that accepts only small bodies; its provider's response is valid for any endpoint."""
    async with facing([whole(200, ANY_ANSWER)], server={"max_body": str(MAX_BODY)}) as both:
        yield both


@pytest.fixture
def stand(setting: tuple[Stand, ScriptedProvider]) -> Stand:
    return setting[0]


@pytest.fixture
def provider(setting: tuple[Stand, ScriptedProvider]) -> ScriptedProvider:
    return setting[1]


async def refused(stand: Stand, provider: ScriptedProvider, request: bytes, form: Form = CHAT) -> Reply:
    """Returns the refusal of `request`, after checking that it reached no provider and that the next call succeeds:
    on the same connection, unless the refusal closes it."""
    async with Connection(stand.url) as connection:
        reply = await connection.ask(request)
        assert reply.is_whole
        assert not provider.connections
        assert reply.headers["content-type"].startswith("application/json")
        if request.startswith(b"HEAD "):
            return reply
        assert form.error_of(reply)["message"]
        if reply.headers.get("connection", "").lower() == "close":
            async with Connection(stand.url) as another:
                assert (await another.ask(CHAT.request())).status == 200
        else:
            assert (await connection.ask(CHAT.request())).status == 200
    return reply


def check(form: Form, reply: Reply, status: int, code: str, by: str = "request") -> None:
    assert reply.status == status
    assert reply.headers["x-llm-guard-refused-by"] == by
    assert reply.headers["x-should-retry"] == "false"
    assert reply.headers["x-llm-guard-attempts"] == "0"
    assert reply.headers["x-llm-guard-request-id"] == reply.json["request_id"]
    if form is CHAT:
        assert form.error_of(reply)["code"] == code


# content of the body


@unary
@pytest.mark.parametrize("body", [b"{", b"hello", b'{"model": }', b"\xff\xfe{}"])
async def test_body_that_is_no_json_is_refused(
    stand: Stand, provider: ScriptedProvider, form: Form, body: bytes
) -> None:
    reply = await refused(stand, provider, raw_request(form.path, body), form)
    assert reply.status == 400
    assert reply.headers["x-llm-guard-refused-by"] == "request"


@pytest.mark.parametrize("form", [CHAT, EMBEDDINGS, MESSAGES], ids=name_of)
@pytest.mark.parametrize("body", [b'{"input": "hi"}', b"[]", b'"gpt"', b"null", b""])
async def test_body_without_a_model_is_refused(
    stand: Stand, provider: ScriptedProvider, form: Form, body: bytes
) -> None:
    reply = await refused(stand, provider, raw_request(form.path, body), form)
    check(form, reply, 400, "missing_model")
    assert "model" in form.error_of(reply)["message"]


async def test_connection_is_closed_after_connection_close(stand: Stand) -> None:
    async with Connection(stand.url) as connection:
        reply = await connection.ask(raw_request("/v1/../admin", BODY))
        assert reply.headers["connection"].lower() == "close"
        assert await connection.is_closed()


@unary
async def test_unknown_model_is_refused_with_names_near_it(
    stand: Stand, provider: ScriptedProvider, form: Form
) -> None:
    body = json.dumps({"model": f"{form.model}x"}).encode()
    reply = await refused(stand, provider, raw_request(form.path, body), form)
    check(form, reply, 404, "model_not_found", by="route")
    message = form.error_of(reply)["message"]
    assert f"{form.model}x" in message
    assert message.rpartition("similar names")[2].count(form.model) == 1


@dialects
async def test_model_of_the_other_dialect_is_refused_with_the_right_path(
    stand: Stand, provider: ScriptedProvider, form: Form
) -> None:
    other = MESSAGES if form is CHAT else CHAT
    reply = await refused(stand, provider, raw_request(form.path, other.body()), form)
    check(form, reply, 400, "wrong_dialect", by="route")
    assert other.path in form.error_of(reply)["message"]


async def test_hundred_unknown_models_leave_one_series(stand: Stand) -> None:
    async with Connection(stand.url) as connection:
        for number in range(100):
            reply = await connection.ask(raw_request(CHAT.path, b'{"model": "made-up-%d"}' % number))
            assert reply.status == 404
        scrape = await connection.ask(raw_request("/metrics", method="GET"))
    assert await stand.metric("llm_guard_calls_total", model="other", outcome="refused") == 100
    assert "made-up" not in scrape.text


# size of the body


@dialects
async def test_body_announced_as_too_large_is_refused_before_it_arrives(
    stand: Stand, provider: ScriptedProvider, form: Form
) -> None:
    request = raw_request(form.path, b"", {"content-length": str(MAX_BODY + 1)})
    reply = await refused(stand, provider, request, form)
    check(form, reply, 413, "body_too_large")
    assert str(MAX_BODY) in form.error_of(reply)["message"]


@dialects
async def test_chunked_body_that_grows_too_large_is_refused(
    stand: Stand, provider: ScriptedProvider, form: Form
) -> None:
    head = f"POST {form.path} HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    part = b"%x\r\n%b\r\n" % (MAX_BODY // 2, b" " * (MAX_BODY // 2))
    reply = await refused(stand, provider, head + part * 3, form)
    check(form, reply, 413, "body_too_large")


async def test_body_of_exactly_the_bound_is_served(stand: Stand, provider: ScriptedProvider) -> None:
    body = BODY + b" " * (MAX_BODY - len(BODY))
    assert (await ask(stand.url, CHAT.path, body)).status == 200
    assert provider.requests[0].endswith(body)


@dialects
async def test_gzip_bomb_is_refused(stand: Stand, provider: ScriptedProvider, form: Form) -> None:
    bomb = gzip.compress(form.body(prompt="x" * 50 * MAX_BODY))
    assert len(bomb) < MAX_BODY
    reply = await refused(stand, provider, raw_request(form.path, bomb, {"content-encoding": "gzip"}), form)
    check(form, reply, 413, "body_too_large")


@dialects
@pytest.mark.parametrize("body", [BODY, gzip.compress(BODY)[:-12], b""], ids=["plain", "cut", "nothing"])
async def test_body_that_is_not_gzip_as_it_claims_is_refused(
    stand: Stand, provider: ScriptedProvider, form: Form, body: bytes
) -> None:
    reply = await refused(stand, provider, raw_request(form.path, body, {"content-encoding": "gzip"}), form)
    assert reply.status == 400
    assert reply.headers["x-llm-guard-refused-by"] == "request"


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
async def test_compressed_body_is_forwarded_unchanged(
    stand: Stand, provider: ScriptedProvider, encoding: str, pack: type
) -> None:
    body = pack(BODY)
    assert (await ask(stand.url, CHAT.path, body, {"content-encoding": encoding})).status == 200
    assert provider.requests[0].endswith(body)


# the head


@pytest.mark.parametrize(
    "request_bytes",
    [
        raw_request(CHAT.path, BODY, {"x-long": "x" * 20_000}),
        raw_request(f"{CHAT.path}?{20_000 * 'x'}", BODY),
    ],
    ids=["header", "request line"],
)
async def test_head_that_is_too_long_is_refused(stand: Stand, provider: ScriptedProvider, request_bytes: bytes) -> None:
    reply = await refused_bare(stand, request_bytes)
    assert reply.status == 431
    assert CHAT.error_of(reply)["type"] == "invalid_request_error"
    assert not provider.connections
    assert (await CHAT.ask(stand.url)).status == 200


@pytest.mark.parametrize(
    "request_bytes", [b"hello\r\n\r\n", b"GET / HTTP/1.1\r\nbroken\r\n\r\n", b"\x16\x03\x01\x02\x00\r\n\r\n"]
)
async def test_request_that_is_not_http_is_refused(
    stand: Stand, provider: ScriptedProvider, request_bytes: bytes
) -> None:
    assert (await refused_bare(stand, request_bytes)).status == 400
    assert not provider.connections
    assert (await CHAT.ask(stand.url)).status == 200


async def refused_bare(stand: Stand, request: bytes) -> Reply:
    async with Connection(stand.url) as connection:
        reply = await connection.ask(request)
        assert reply.json["error"]["message"]
        assert await connection.is_closed()
        return reply


@dialects
@pytest.mark.parametrize("method", ["TRACE", "PROPFIND"])
async def test_other_methods_are_refused(stand: Stand, provider: ScriptedProvider, form: Form, method: str) -> None:
    reply = await refused(stand, provider, raw_request(form.path, form.body(), method=method), form)
    check(form, reply, 405, "method_not_allowed")
    assert "POST" in reply.headers["allow"]


@pytest.mark.parametrize("path", ["/v2/chat/completions", "/chat/completions", "/upstreams/one/chat"])
async def test_unknown_paths_are_refused(stand: Stand, provider: ScriptedProvider, path: str) -> None:
    check(CHAT, await refused(stand, provider, raw_request(path, BODY)), 404, "unknown_path", by="route")


@dialects
@pytest.mark.parametrize("rest", ["", "/v1/models"])
async def test_unknown_upstreams_are_refused(stand: Stand, provider: ScriptedProvider, form: Form, rest: str) -> None:
    path = f"/upstreams/three{rest or form.path}"
    headers = {} if form is CHAT else {"anthropic-version": "2023-06-01"}
    reply = await refused(stand, provider, raw_request(path, form.body(), headers), form)
    check(form, reply, 404, "unknown_upstream", by="route")
    assert "three" in form.error_of(reply)["message"]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/../admin", "/v1/./models", "/v1/%2e%2e/admin", "/v1/files/%2E%2e", "/v1/..%2fadmin", "/v1/x\\..\\admin",
        "/v1/..%5cadmin", "/upstreams/one/v1/../x",
    ],
)  # fmt: skip
async def test_dot_segments_are_refused(stand: Stand, provider: ScriptedProvider, path: str) -> None:
    check(CHAT, await refused(stand, provider, raw_request(path, BODY)), 400, "invalid_path")


async def test_dots_within_a_segment_are_served(stand: Stand, provider: ScriptedProvider) -> None:
    assert (await ask(stand.url, "/v1/files/a..b", method="GET")).status == 200
    assert provider.requests[0].startswith(b"GET /v1/files/a..b HTTP/1.1\r\n")


@pytest.mark.parametrize("method", ["DELETE", "GET"])
async def test_empty_json_body_without_a_model_is_fine_elsewhere(
    stand: Stand, provider: ScriptedProvider, method: str
) -> None:
    assert (await ask(stand.url, "/v1/files/file-1", b"", method=method)).status == 200
    assert provider.requests[0].startswith(f"{method} /v1/files/file-1 ".encode())


# expectations


@unary
async def test_client_that_expects_100_continue_gets_it(stand: Stand, form: Form) -> None:
    head, _, body = raw_request(form.path, form.body(), {"expect": "100-continue"}).partition(b"\r\n\r\n")
    async with Connection(stand.url) as connection:
        connection.writer.write(head + b"\r\n\r\n")
        assert (await connection.head()).status == 100
        connection.writer.write(body)
        assert (await connection.reply()).status == 200
        assert (await connection.ask(CHAT.request())).status == 200


async def test_client_that_expects_100_continue_for_too_large_a_body_does_not_get_it(
    stand: Stand, provider: ScriptedProvider
) -> None:
    headers = {"expect": "100-continue", "content-length": str(MAX_BODY + 1)}
    reply = await refused(stand, provider, raw_request(CHAT.path, b"", headers))
    check(CHAT, reply, 413, "body_too_large")
    assert reply.interim == []


@dialects
async def test_other_expectations_are_refused(stand: Stand, provider: ScriptedProvider, form: Form) -> None:
    reply = await refused(stand, provider, raw_request(form.path, form.body(), {"expect": "a miracle"}), form)
    check(form, reply, 417, "expectation_failed")


# client keys


@dialects
@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong"}, {"x-api-key": "wrong"}])
async def test_callers_without_a_client_key_are_refused(form: Form, headers: Mapping[str, str]) -> None:
    keys = [{"name": "app", "key": "right"}]
    async with facing(form.ok, server={"client_keys": keys}) as (stand, provider):
        reply = await ask(stand.url, form.path, form.body(), headers)
        check(form, reply, 401, "invalid_api_key", by="auth")
        assert form.error_of(reply)["type"] == "authentication_error"
        assert not provider.connections
        for right in ({"authorization": "Bearer right"}, {"x-api-key": "right"}):
            assert (await ask(stand.url, form.path, form.body(), right)).status == 200
        assert not any(b"right" in request for request in provider.requests)


# isolation from other requests


async def test_body_that_never_arrives_blocks_no_other_call(stand: Stand) -> None:
    async with Connection(stand.url) as waiting:
        waiting.writer.write(raw_request(CHAT.path, b"", {"content-length": "50"}))
        assert (await CHAT.ask(stand.url)).status == 200


async def test_pipelined_requests_are_answered_in_order(stand: Stand) -> None:
    async with Connection(stand.url) as connection:
        bad = raw_request(CHAT.path, b'{"model": "nobody"}')
        connection.writer.write(bad + CHAT.request() + bad)
        async with asyncio.timeout(5):
            statuses = [(await connection.reply()).status for _ in range(3)]
        assert statuses == [404, 200, 404]


async def test_refusals_count_against_no_breaker() -> None:
    async with standing(config_of("http://127.0.0.1:9", breaker={"consecutive_failures": 1})) as stand:
        for body in (b"{", b'{"model": "nobody"}', b"{}"):
            assert (await ask(stand.url, CHAT.path, body)).status in (400, 404)
        assert stand.breaker(CHAT.deployment).state == "closed"
        assert await stand.metric("llm_guard_refusals_total") == 3
        assert await stand.metric("llm_guard_in_flight_calls") == 0
