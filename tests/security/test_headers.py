"""Headers with which clients try to impersonate proxies, control the connection or forge the gateway's own headers.

Names match regardless of case, and a client cannot remove headers that the gateway adds.
"""

from __future__ import annotations

import gzip
import json

import pytest

from tests.chaos.forms import CHAT
from tests.chaos.stand import Section, facing
from tests.chaos.wire import Connection, ask
from tests.fakes.client import raw_request
from tests.fakes.provider import whole
from tests.security.grammar import Request, head
from tests.security.keys import DOOR, UPSTREAM_KEY, keyed
from tests.security.stand import BODY, HOST, POST, Front, fronting


async def reached(front: Front, *fields: bytes) -> Request:
    """Returns the request that the provider receives for a call with these header fields."""
    call = head(POST, HOST, b"Content-Length: %d" % len(BODY), *fields) + BODY
    async with Connection(front.url) as connection:
        assert (await connection.ask(call)).status == 200
    return front.provider.requests[-1]


@pytest.mark.parametrize(
    "line",
    [
        "X_Api_Key: admin", "X-Api_Key: admin", "Content_Length: 2", "Transfer_Encoding: chunked", "_: evil",
    ],
)  # fmt: skip
async def test_underscored_name_reaches_no_provider(line: str) -> None:
    """C15: behind a CGI or WSGI server it would be the header with dashes."""
    async with fronting() as front:
        request = await reached(front, line.encode())
        assert not [name for name, _ in request.fields if b"_" in name]
        assert request.body == BODY


@pytest.mark.parametrize(
    "lines",
    [
        ("Upgrade: h2c", "Connection: Upgrade, HTTP2-Settings", "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA"),
        ("Upgrade: h2c", "Connection: Upgrade", "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA"),
        ("Upgrade: TLS/1.0", "Connection: upgrade"),
        ("Upgrade: h2c",),
    ],
)
async def test_upgrade_header_reaches_no_provider(lines: tuple[str, ...]) -> None:
    """C19: requests on an upgraded connection would no longer be inspected."""
    async with fronting() as front:
        request = await reached(front, *(line.encode() for line in lines))
        assert not {b"upgrade", b"http2-settings"} & {name for name, _ in request.fields}


@pytest.mark.parametrize(
    ("attack", "status"),
    [
        ({"model": "gpt\r\nX-Evil: 1"}, 404),
        ({"model": "gpt", "user": "a\r\nX-Evil: 1", "metadata": {"a\r\nX-Evil": "1\r\nX-Evil: 1"}}, 200),
    ],
)
async def test_line_breaks_of_a_body_become_no_header(attack: dict[str, object], status: int) -> None:
    """C44: no part of a body is copied into a header of the request or the response."""
    async with fronting(models={"gpt*": {"deployments": [{"upstream": "one"}]}}) as front:
        reply = await ask(front.url, CHAT.path, json.dumps(attack).encode())
        assert reply.status == status
        assert "x-evil" not in reply.headers
        assert not any("evil" in value.lower() for value in reply.headers.values())
        assert not any(request.values(b"x-evil") for request in front.provider.requests)


@pytest.mark.parametrize(
    "value", [b"a\rX-Evil: 1", b"a\nX-Evil: 1", b"a\0b", b"a\x01b", b"a\x7fb", b"a\r\n\tX-Evil: 1"]
)
async def test_control_character_in_a_header_is_refused(value: bytes) -> None:
    """C44: refused with 400."""
    async with fronting() as front:
        call = head(POST, HOST, b"Content-Length: %d" % len(BODY), b"X-Odd: " + value) + BODY
        heard = await front.hear(call)
        assert heard.is_closed
        assert heard.statuses == [400]
        await front.check_reached()


async def test_named_headers_stay_and_added_ones_are_forwarded() -> None:
    """C45, CVE-2022-31813: `Connection: Authorization` must not send a call out without the key."""
    named = b"Connection: close, X-Tenant-Id, Authorization, Host, Content-Length, Content-Type"
    async with keyed() as front:
        call = head(
            POST, HOST, b"Content-Length: %d" % len(BODY), named, b"X-Tenant-Id: 7", b"Authorization: Bearer sk-theirs"
        )
        heard = await front.hear(call + BODY)
        assert heard.statuses == [200]
        (request,) = front.provider.requests
        assert request.values(b"x-tenant-id") == []
        assert request.values(b"authorization") == [b"Bearer " + UPSTREAM_KEY.encode()]
        await front.check_reached(BODY)


@pytest.mark.parametrize(
    "line",
    [
        "Keep-Alive: timeout=5", "TE: trailers", "Trailer: X-Sum", "Proxy-Authorization: Basic x", "Proxy: http://evil",
        "Proxy-Connection: keep-alive", "Proxy-Authenticate: Basic", "X-Forwarded-For: 10.0.0.1", "Via: 1.1 evil",
        "X-Forwarded-Host: evil.example", "X-Forwarded-Proto: https", "Forwarded: for=10.0.0.1", "X-Real-IP: 10.0.0.1",
        "X-LLM-Guard-Attempts: 7", "X-LLM-Guard-Refused-By: auth", "X-Envoy-Original-Path: /admin",
        "X-Envoy-Internal: true", "x-envoy-upstream-rq-timeout-ms: 1", "True-Client-IP: 10.0.0.1",
        "X-Original-URL: /admin", "X-Rewrite-URL: /admin", "x-fOrWaRdEd-fOr: 10.0.0.1",
    ],
)  # fmt: skip
async def test_proxy_and_connection_headers_of_a_client_are_not_passed_on(line: str) -> None:
    """C45 and C46: hop-by-hop and forwarding headers of a client are dropped."""
    async with fronting() as front:
        request = await reached(front, line.encode())
        assert request.values(line.partition(":")[0].lower().encode()) == []


async def test_headers_of_a_providers_connection_reach_no_client() -> None:
    """C45: hop-by-hop headers of the provider are dropped, and its forged x-llm-guard headers replaced."""
    said = {
        "Connection": "X-Internal, x-llm-guard-request-id, content-type", "X-Internal": "10.0.0.7",
        "Keep-Alive": "timeout=5", "Proxy-Authenticate": "Basic", "Trailer": "X", "Upgrade": "h2c",
        "X-LLM-Guard-Deployment": "forged", "X-LLM-Guard-Attempts": "99", "X-Kept": "1",
    }  # fmt: skip
    async with facing([whole(200, CHAT.answer, said)]) as (stand, _):
        reply = await CHAT.ask(stand.url)
        dropped = {"x-internal", "keep-alive", "proxy-authenticate", "trailer", "upgrade"}
        assert not dropped & set(reply.headers)
        assert reply.headers["x-kept"] == "1"
        assert reply.headers["x-llm-guard-request-id"].startswith("lg-")
        assert reply.headers["x-llm-guard-deployment"] == CHAT.deployment
        assert reply.headers["x-llm-guard-attempts"] == "1"


async def test_priority_is_read_by_the_gateway_and_not_forwarded() -> None:
    """C46: the priority header is for the gateway only."""
    async with fronting() as front:
        assert (await reached(front, b"X-LLM-Guard-Priority: low")).values(b"x-llm-guard-priority") == []


@pytest.mark.parametrize(
    "stream", [{}, {"keepalive": {"unary": True}}], ids=["C47", "C47 blank lines may stand before it"]
)
async def test_content_encoding_of_a_response_is_true(stream: Section) -> None:
    """The response is compressed and labelled so, or neither."""
    packed = whole(200, gzip.compress(CHAT.answer), {"content-encoding": "gzip"})
    async with facing([packed], stream=stream) as (stand, provider):
        reply = await ask(stand.url, CHAT.path, CHAT.body(), {"Accept-Encoding": "gzip"})
        asked = b"identity" if stream else b"gzip"
        assert provider.requests[0].lower().count(b"accept-encoding: " + asked) == 1
        is_packed = reply.headers.get("content-encoding") == "gzip"
        assert (gzip.decompress(reply.body) if is_packed else reply.body) == CHAT.answer


async def test_content_encoding_of_a_request_is_true() -> None:
    """C47: a body in which the model is renamed is compressed again."""
    renamed = {"alias": {"deployments": [{"upstream": "one", "model": "real"}]}}
    async with fronting(models=renamed) as front:
        for model, sent in (("gpt", "gpt"), ("alias", "real")):
            packed = gzip.compress(b'{"model":"%b"}' % model.encode())
            reply = await ask(front.url, CHAT.path, packed, {"Content-Encoding": "gzip"})
            assert reply.status == 200
            request = front.provider.requests[-1]
            assert request.values(b"content-encoding") == [b"gzip"]
            assert json.loads(gzip.decompress(request.body)) == {"model": sent}


async def test_gateway_adds_no_header_to_a_request() -> None:
    """C92: neither its name nor an encoding that the client did not accept."""
    async with fronting() as front:
        request = await reached(front, b"Content-Type: application/json")
        assert {name for name, _ in request.fields} <= {b"host", b"content-type", b"content-length", b"connection"}


async def test_user_agent_passes_and_accept_encoding_as_far_as_it_can_be_decoded() -> None:
    """C92: encodings that the gateway cannot decode are removed from Accept-Encoding."""
    async with fronting() as front:
        said = (b"User-Agent: OpenAI/Python 2.8.1", b"Accept-Encoding: zstd;q=0.9, gzip", b"Accept: a/b")
        request = await reached(front, *said)
        assert request.values(b"user-agent") == [b"OpenAI/Python 2.8.1"]
        assert request.values(b"accept-encoding") == [b"gzip"]
        assert request.values(b"accept") == [b"a/b"]


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("OPTIONS", "/v1/chat/completions", 401), ("OPTIONS", "/", 405), ("GET", "/", 200), ("GET", "/docs", 401),
        ("GET", "/debug/pprof", 401), ("GET", "/openapi.json", 401), ("GET", "/admin", 401), ("GET", "/.env", 401),
        ("TRACE", "/", 405), ("GET", "/v2/models", 401), ("GET", "/healthz", 200), ("GET", "/metrics", 200),
        ("POST", "/v1/chat/completions", 401), ("GET", "/upstreams/x/v1/models", 401),
    ],
)  # fmt: skip
async def test_answer_of_the_gateways_own_names_no_software(method: str, target: str, status: int) -> None:
    """C91: a version tells an attacker which vulnerabilities to try."""
    async with fronting(server=DOOR) as front, Connection(front.url) as connection:
        reply = await connection.ask(raw_request(target, method=method))
        assert reply.status == status
        assert not {"server", "x-powered-by", "via"} & set(reply.headers)
        shown = f"{reply.headers} {reply.text if target != '/metrics' else ''}".lower()
        assert not [word for word in ("aiohttp", "python", "httptools", "uvloop", "traceback", ".py") if word in shown]


@pytest.mark.parametrize("target", ["/metrics", "/healthz", "/readyz", "/admin/config"])
async def test_operators_paths_on_a_port_of_their_own_are_not_on_the_clients_one(target: str) -> None:
    """C91: on the clients' port these paths are like any other."""
    async with fronting(server=DOOR, ops={"port": 0}) as front, Connection(front.url) as connection:
        reply = await connection.ask(raw_request(target, method="GET"))
        assert reply.status == 401
        assert b"llm_guard_" not in reply.body
