"""The admin API is for operators only: closed to strangers, to clients, and to web pages in an operator's browser."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from llm_guard.admin.http import penalty
from llm_guard.admin.http.endpoint import Endpoint
from llm_guard.admin.http.websocket import MAX_BYTES, PROTOCOL_ERROR, TOO_BIG
from tests.chaos.forms import CHAT
from tests.chaos.stand import Stand, config_of, facing
from tests.chaos.wire import Connection, Reply
from tests.fakes.client import raw_request
from tests.fakes.waiting import eventually

HOST = {"host": "localhost"}
TOKEN = "ops-t0ken-of-this-test"
CLIENTS = "client-key-of-this-test"
BEARER = {"authorization": f"Bearer {TOKEN}"}
OPEN = {"/", "/healthz", "/readyz", "/metrics", "/dashboard", "/dashboard/{file}"}
"""Open to everyone: they show what a scraper sees, and the dashboard's own files."""
LOGINS = {"/dashboard/login", "/dashboard/logout"}
"""Open as well, since a login has no credentials yet: they change nothing but the browser's cookie."""
UPGRADE = {
    "connection": "Upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
}
SOCKET = "/admin/events/ws"


@pytest.fixture(autouse=True)
def _guesses_are_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the delay of wrong tokens, since hundreds are sent here; `test_control_plane` tests the delay."""
    monkeypatch.setattr(penalty, "WRONG_TOKEN_S", 0.0)


@pytest.fixture
async def stand() -> AsyncIterator[Stand]:
    """Runs a gateway with an admin token, and a client that has a key."""
    server = {"client_keys": [{"name": "app", "key": CLIENTS}]}
    async with facing(CHAT.ok, ops={"token": TOKEN}, server=server) as (stand, _):
        yield stand


@pytest.fixture
async def bare() -> AsyncIterator[Stand]:
    """Runs a gateway without an admin token in its config, so that one is generated."""
    async with facing(CHAT.ok, ops={"token": ""}) as (stand, _):
        yield stand


def guarded(stand: Stand) -> list[Endpoint]:
    """Returns every page of the router that needs a token."""
    return [page for page in stand.app.ops._site.pages if not page.is_open]


def path_of(page: Endpoint) -> str:
    return re.sub(r"\{\w+\}", "x", page.path)


async def send(stand: Stand, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> Reply:
    """Sends one request unmodified; of a stream that is accepted reads only the head."""
    async with Connection(stand.url) as connection:
        connection.writer.write(raw_request(path, body, {**HOST, **headers}, method))
        reply = await connection.head()
        if "content-length" in reply.headers and method != "HEAD":
            reply.body = await connection.reader.readexactly(int(reply.headers["content-length"]))
        return reply


async def ask(stand: Stand, page: Endpoint, headers: Mapping[str, str]) -> Reply:
    """Sends a valid request for the page, with `headers` added."""
    is_socket = page.path == SOCKET
    body = b'{"reason":"an attack"}' if page.method == "POST" else b""
    return await send(stand, page.method, path_of(page), {**(UPGRADE if is_socket else {}), **headers}, body)


def code(reply: Reply) -> tuple[int, str]:
    return reply.status, reply.json["error"]["code"] if reply.body else ""


def token_of(stand: Stand) -> dict[str, str]:
    """Returns the header with the generated token."""
    generated = stand.app.operator_token.generated
    assert generated is not None
    return {"authorization": f"Bearer {generated.token}"}


def cookie_of(stand: Stand) -> str:
    """Returns the login cookie of an operator's browser."""
    credential = stand.app.ops._site.guard.credentials[0]
    return f"{credential.cookie_name}={credential.new_cookie(time.time())}"


def traces(stand: Stand) -> Any:
    """Returns the state that a change would alter."""
    gateway, ops = stand.app.gateway, stand.app.ops
    states = [
        (deployment.label, deployment.breaker.snapshot(0.0).generation, deployment.hold)
        for deployment in gateway.deployments()
    ]
    return ops.journal.last_id, stand.app.config, gateway.table, states, ops._events.count


# C64


def test_few_pages_are_open_and_none_that_changes_anything(stand: Stand) -> None:
    """C64: a new page is either guarded or listed here."""
    pages = stand.app.ops._site.pages
    assert {page.path for page in pages if page.is_open} == OPEN | LOGINS
    assert {page.path for page in pages if page.is_open and page.method != "GET"} == LOGINS
    assert len(guarded(stand)) > 8


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": f"Bearer {TOKEN}x"},
        {"authorization": f"Bearer {TOKEN[:-1]}"},
        {"authorization": f"Bearer {CLIENTS}"},
        {"x-api-key": CLIENTS},
        {"x-api-key": TOKEN},
        {"api-key": TOKEN},
        {"authorization": f"Basic {base64.b64encode(f'admin:{TOKEN}'.encode()).decode()}"},
        {"cookie": f"token={TOKEN}; authorization=Bearer {TOKEN}"},
        {"sec-websocket-protocol": f"bearer.{base64.urlsafe_b64encode(TOKEN.encode()).decode()}"},
    ],
    ids=lambda headers: next(iter(headers.items()), ("no", "key"))[0],
)
async def test_every_page_requires_the_operator_token(stand: Stand, headers: dict[str, str]) -> None:
    """C64: no token, a wrong one, a client's key; also in other headers, except the subprotocol that is the socket's
    own place for a token."""
    before = traces(stand)
    for page in guarded(stand):
        if page.path == SOCKET and "sec-websocket-protocol" in headers:
            continue
        reply = await ask(stand, page, headers)
        assert code(reply)[0] == 401, page.path
        assert code(reply)[1] == ("wrong_token" if "Bearer" in headers.get("authorization", "") else "token_needed"), (
            page.path
        )
    assert traces(stand) == before


async def test_token_in_the_target_is_none(stand: Stand) -> None:
    """C64: in the URL it would end up in logs and browser histories."""
    for query in (f"?token={TOKEN}", f"?access_token={TOKEN}", f"?authorization=Bearer%20{TOKEN}"):
        for page in guarded(stand):
            reply = await send(stand, page.method, path_of(page) + query, UPGRADE if page.path == SOCKET else {})
            assert reply.status == 401, page.path


async def test_token_of_yesterday_opens_nothing(stand: Stand) -> None:
    """C64: a token that a reload has replaced."""
    assert (await send(stand, "GET", "/admin/metrics", BEARER)).status == 200
    stand.app.ops.adopt(config_of("http://127.0.0.1:1", ops={"token": "another-t0ken"}))
    for page in guarded(stand):
        assert code(await ask(stand, page, BEARER)) == (401, "wrong_token"), page.path


async def test_operators_token_is_no_clients_key(stand: Stand) -> None:
    """C64: nor does an admin token work as a client key."""
    reply = await send(stand, "POST", CHAT.path, BEARER, CHAT.body())
    assert (reply.status, reply.headers["x-llm-guard-refused-by"]) == (401, "auth")


@pytest.mark.parametrize(
    "target",
    [
        "/admin/metrics/", "/admin//metrics", "//admin/metrics", "/ADMIN/metrics", "/%61dmin/metrics",
        "/admin%2fmetrics", "/admin/./metrics", "/v1/../admin/metrics", "/healthz/../admin/metrics",
        "/dashboard/../admin/metrics",
        "/dashboard/%2e%2e%2fadmin%2fmetrics", "/admin/metrics;x", "/upstreams/one/../../admin/metrics",
        "http://localhost/admin/metrics", "/admin/metrics%00", "/admin/metrics%20",
    ],
)  # fmt: skip
async def test_no_other_spelling_leads_to_a_page(bare: Stand, target: str) -> None:
    """C64: 400 or 404, and no content of the page."""
    reply = await send(bare, "GET", target, token_of(bare))
    assert reply.status in (400, 404), target
    assert b"deployments" not in reply.body


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "BREW"])
async def test_no_other_method_leads_to_a_page(stand: Stand, method: str) -> None:
    """C64: other methods are refused and change nothing."""
    before = traces(stand)
    for page in guarded(stand):
        if method == page.method:
            continue
        reply = await send(stand, method, path_of(page), UPGRADE if page.path == SOCKET else {}, b"")
        assert reply.status in (400, 401, 405), (method, page.path)
    assert traces(stand) == before


@pytest.mark.parametrize("name", ["x-forwarded-for", "forwarded", "x-real-ip", "via", "x-forwarded-host"])
async def test_without_a_configured_token_only_the_generated_one_is_accepted(bare: Stand, name: str) -> None:
    """C64: neither without a token nor with a header that claims a loopback address."""
    for page in guarded(bare):
        assert code(await ask(bare, page, {})) == (401, "token_needed"), page.path
        assert code(await ask(bare, page, {name: "127.0.0.1"})) == (401, "token_needed"), page.path
    assert (await send(bare, "GET", "/admin", token_of(bare))).status == 200


# C65


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:1"},
        {"origin": "http://localhost.evil.example"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
    ids=lambda headers: " ".join(next(iter(headers.items()))),
)
async def test_page_of_another_site_may_not_send_requests_even_with_browser_headers(
    stand: Stand, bare: Stand, headers: dict[str, str]
) -> None:
    """C65, C66, C68: with a token of the config, and with a generated one."""
    same = {"origin": "http://localhost"}
    for one, token in ((stand, BEARER), (bare, token_of(bare))):
        before = traces(one)
        for page in guarded(one):
            reply = await ask(one, page, {**token, **headers, "cookie": cookie_of(one)})
            assert code(reply) == (403, "foreign_origin"), page.path
            assert "access-control-allow-origin" not in reply.headers
        assert traces(one) == before
        assert (await send(one, "GET", "/admin/metrics", {**token, **same})).status == 200


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/json"]
)
async def test_form_of_a_page_changes_nothing(stand: Stand, bare: Stand, kind: str) -> None:
    """C65: content types that a browser sends without a preflight."""
    for one, token in ((stand, BEARER), (bare, token_of(bare))):
        before = traces(one)
        for page in guarded(one):
            if page.method != "GET":
                body = json.dumps({"reason": "an attack", "deployment": "one/gpt"}).encode()
                reply = await send(one, page.method, path_of(page), {**token, "content-type": kind}, body)
                assert code(reply) == (415, "json_needed"), page.path
        assert traces(one) == before


async def test_reading_changes_nothing(stand: Stand) -> None:
    """C65: no GET has a side effect."""
    before = traces(stand)
    for page in guarded(stand):
        if page.method == "GET":
            assert (await ask(stand, page, BEARER)).status in (101, 200, 404, 422), page.path
    await eventually(lambda: traces(stand) == before)


# C66


async def test_every_answer_forbids_frames_guessing_and_other_origins(stand: Stand) -> None:
    """C66: on pages, streams and refusals."""
    for page in stand.app.ops._site.pages:
        if page.path == SOCKET:
            continue
        for headers in (BEARER, {}, {**BEARER, "origin": "http://evil.example"}):
            reply = await ask(stand, page, headers)
            _check_headers(reply)
    for path in ("/admin/nowhere", "/admin", "/dashboard/nowhere"):
        _check_headers(await send(stand, "GET", path, BEARER))
        _check_headers(await send(stand, "DELETE", path, BEARER))


async def test_no_origin_is_allowed_by_cors(stand: Stand, bare: Stand) -> None:
    """C66: preflights are refused without CORS headers."""
    asks = {
        "origin": "http://evil.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    for one in (stand, bare):
        for page in guarded(one):
            reply = await send(one, "OPTIONS", path_of(page), asks)
            assert reply.status >= 400
            assert not any(name.startswith("access-control-") for name in reply.headers), page.path


def _check_headers(reply: Reply) -> None:
    headers = reply.headers
    assert headers["x-frame-options"] == "DENY"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert not any(name.startswith("access-control-") for name in headers)
    assert "set-cookie" not in headers
    if reply.status != 200 or "content-type" in headers:
        assert "unsafe-eval" not in headers["content-security-policy"]
        assert "*" not in headers["content-security-policy"]


# C67


@pytest.mark.parametrize(
    "host",
    [
        "attacker.example", "attacker.example:8080", "127.0.0.1.attacker.example", "localhost.attacker.example",
        "attacker.example.", "localhost.", "0x7f000001", "2130706433", "127.1", "x-localhost",
    ],
)  # fmt: skip
async def test_foreign_host_name_leads_to_no_page(stand: Stand, bare: Stand, host: str) -> None:
    """C67: DNS rebinding is refused, even with the right token."""
    for one, token in ((stand, BEARER), (bare, token_of(bare))):
        before = traces(one)
        for page in guarded(one):
            origin = {"origin": f"http://{host}"}
            assert code(await ask(one, page, {**token, "host": host})) == (403, "unknown_host"), page.path
            assert code(await ask(one, page, {**token, **origin, "host": host})) == (403, "unknown_host"), page.path
        assert traces(one) == before


async def test_request_without_a_host_leads_to_no_page(bare: Stand) -> None:
    """C67: HTTP/1.0 does not require a Host."""
    for page in guarded(bare):
        async with Connection(bare.url) as connection:
            key = token_of(bare)["authorization"]
            head = f"{page.method} {path_of(page)} HTTP/1.0\r\ncontent-type: application/json\r\nauthorization: {key}"
            reply = await connection.ask(f"{head}\r\n\r\n".encode())
            assert code(reply) == (403, "unknown_host"), page.path


async def test_configured_host_names_are_accepted(bare: Stand) -> None:
    """C67: hosts on the allow-list work, in any case and with any port."""
    bare.app.ops.adopt(config_of("http://127.0.0.1:1", ops={"token": "", "hosts": ["ops.example"]}))
    for host in ("ops.example", "OPS.EXAMPLE:8443", "localhost:1", "127.0.0.1", "[::1]:80"):
        assert (await send(bare, "GET", "/admin/metrics", {**token_of(bare), "host": host})).status == 200, host


# C68


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({**BEARER, "origin": "http://evil.example"}, 403),
        ({**BEARER, "origin": "null"}, 403),
        ({**BEARER, "sec-fetch-site": "cross-site"}, 403),
        ({**BEARER, "host": "attacker.example"}, 403),
        ({}, 401),
        ({"origin": "http://localhost"}, 401),
        ({"authorization": f"Bearer {CLIENTS}"}, 401),
        ({"cookie": f"token={TOKEN}"}, 401),
        ({"sec-websocket-protocol": "llm-guard.events"}, 401),
        ({"sec-websocket-protocol": f"llm-guard.events, bearer.{TOKEN}"}, 401),
        ({"sec-websocket-protocol": "llm-guard.events, bearer.!!"}, 401),
        ({"authorization": "Bearer wrong",
          "sec-websocket-protocol": f"bearer.{base64.urlsafe_b64encode(TOKEN.encode()).decode()}"}, 401),
    ],
)  # fmt: skip
async def test_socket_is_not_upgraded_before_authentication(stand: Stand, headers: dict[str, str], status: int) -> None:
    """C68: an HTTP error instead of 101, and no event subscriber."""
    reply = await send(stand, "GET", SOCKET, {**UPGRADE, **headers})
    assert reply.status == status
    assert "sec-websocket-accept" not in reply.headers
    assert stand.app.ops._events.count == 0


@pytest.mark.parametrize(
    ("attack", "expected"),
    [
        (b"\x81\xff" + (1 << 62).to_bytes(8, "big"), TOO_BIG),
        (b"\x81\xfe" + (MAX_BYTES + 1).to_bytes(2, "big"), TOO_BIG),
        (b"\x01\xfe" + MAX_BYTES.to_bytes(2, "big") + bytes(4 + MAX_BYTES) + b"\x80\x81" + bytes(5), TOO_BIG),
        (b"\x81\x05hello", PROTOCOL_ERROR),
        (b"\xf1\x80" + bytes(4), PROTOCOL_ERROR),
        (b"GET /admin/metrics HTTP/1.1\r\nhost: localhost\r\n\r\n", PROTOCOL_ERROR),
    ],
)
async def test_socket_that_is_abused_is_closed_with_a_reason(stand: Stand, attack: bytes, expected: int) -> None:
    """C68: oversized and unmasked frames, extensions that were not negotiated, and another request after it."""
    async with Connection(stand.url) as connection:
        connection.writer.write(raw_request(SOCKET, b"", {**HOST, **UPGRADE, **BEARER}, "GET"))
        assert (await connection.head()).status == 101
        connection.writer.write(attack)
        received = await connection.reader.read(1 << 16)
        while b"\x88" not in received[2:]:
            received += await connection.reader.read(1 << 16)
        close = received[received.rindex(b"\x88") :]
        assert int.from_bytes(close[2:4], "big") == expected
        assert b"HTTP/1.1" not in received
        assert await connection.is_closed()
    await eventually(lambda: stand.app.ops._events.count == 0)
