"""Webhook requests on the wire, and the handling of receivers that are dead, slow or hostile."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trustme

from llm_guard.config import WebhookConfig
from llm_guard.webhooks import client as webhook_client
from llm_guard.webhooks.alert_webhook import Webhook
from llm_guard.webhooks.client import WebhookClient, WebhookResult
from llm_guard.webhooks.payloads import Notice
from llm_guard.webhooks.signature import signature
from tests.fakes.clock import SteppedClock
from tests.fakes.provider import Close, Hold, Reset, Respond, ScriptedProvider, Step, whole
from tests.fakes.waiting import eventually

NOTICE = Notice("1-1", "firing", "latency", "warning", "gpt", "gpt: slow", 2.0, 1.5, 1_800_000_000.0, 1_800_000_000.0)
WALL = 1_800_000_000.0


@pytest.fixture
async def client(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WebhookClient]:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    one = WebhookClient()
    yield one
    await one.close()


async def post(client: WebhookClient, url: str) -> WebhookResult:
    return await client.post(url, {"content-type": "application/json"}, b"{}", WALL)


def dead_url() -> str:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{sock.getsockname()[1]}"


# formats


@pytest.mark.parametrize(
    ("facts", "path"),
    [
        ({"format": "generic"}, "/a?b=c"),
        ({"format": "slack"}, "/a?b=c"),
        ({"format": "pagerduty", "routing_key": "K"}, "/a?b=c"),
        ({"format": "alertmanager"}, "/api/v2/alerts"),
    ],
)
async def test_each_format_is_one_signed_post(facts: dict[str, Any], path: str, client: WebhookClient) -> None:
    async with ScriptedProvider([whole(202)]) as receiver:
        url = receiver.url if path == "/api/v2/alerts" else receiver.url + path
        one = Webhook(
            WebhookConfig(url=url, secret="s3cret", **facts), client.post, "host-1", SteppedClock(), lambda: 0.5
        )
        one.start()
        one.offer(NOTICE)
        await eventually(lambda: one.view().delivered == 1)
        await one.stop(1.0)
        (request,) = receiver.requests
    head, _, content = request.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == f"POST {path} HTTP/1.1"
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
    assert headers["content-type"] == "application/json"
    assert "gpt" in json.dumps(json.loads(content))
    at = int(headers["x-llm-guard-signature"].split(",")[0].removeprefix("t="))
    assert headers["x-llm-guard-signature"] == signature("s3cret", content, at)


async def test_request_on_the_wire_is_whole_and_its_connection_is_closed(client: WebhookClient) -> None:
    async with ScriptedProvider([whole(204, b"")]) as receiver:
        assert (await client.post(f"{receiver.url}/x?y=1", {"x-a": "b"}, b'{"a":1}', WALL)).is_delivered
        (request,) = receiver.requests
        assert await receiver.closed_within(5)
    head, _, content = request.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /x?y=1 HTTP/1.1\r\n")
    assert b"\r\nx-a: b" in head
    assert content == b'{"a":1}'


# meaning of a response


@pytest.mark.parametrize(
    ("status", "may_retry", "problem"),
    [
        (500, True, "answered 500"),
        (503, True, "answered 503"),
        (429, True, "answered 429"),
        (408, True, "answered 408"),
        (400, False, "answered 400: the receiver rejects the payload"),
        (404, False, "answered 404: check its url"),
        (403, False, "answered 403: check its key, or its headers"),
    ],
)
async def test_response_decides_whether_to_retry(
    status: int, may_retry: bool, problem: str, client: WebhookClient
) -> None:
    async with ScriptedProvider([whole(status, b"secret of the body")]) as receiver:
        sent = await post(client, receiver.url)
    assert (sent.is_delivered, sent.may_retry, sent.problem) == (False, may_retry, problem)


@pytest.mark.parametrize(("asked", "kept_s"), [("7", 7.0), ("86400", 300.0), ("-1", None), ("soon", None)])
async def test_requested_wait_is_bounded(asked: str, kept_s: float | None, client: WebhookClient) -> None:
    async with ScriptedProvider([whole(429, b"", {"retry-after": asked})]) as receiver:
        assert (await post(client, receiver.url)).retry_after_s == kept_s


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_redirect_is_not_followed(status: int, client: WebhookClient) -> None:
    async with ScriptedProvider([whole()]) as elsewhere:
        async with ScriptedProvider([whole(status, b"", {"location": elsewhere.url})]) as receiver:
            sent = await post(client, receiver.url)
        assert (sent.is_delivered, sent.may_retry) == (False, False)
        assert sent.problem == f"answered {status}: redirects are not followed, set the final URL"
        assert elsewhere.connections == []


async def test_body_without_end_is_not_read(client: WebhookClient) -> None:
    endless = Respond(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000000\r\n\r\n" + b"x" * 100_000)
    async with ScriptedProvider([endless, Hold()]) as receiver:
        assert (await post(client, receiver.url)).is_delivered
        assert await receiver.closed_within(5)


@pytest.mark.parametrize(
    "script",
    [
        [Reset()],
        [Close()],
        [Respond(b"\x00\xffgarbage\r\n\r\n")],
        [Respond(b"HTTP/1.1 200 OK\r\n" + b"a: " + b"x" * 100_000 + b"\r\n\r\n"), Close()],
        [Respond(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 100_000 + b"\r\n"), Close()],
    ],
)
async def test_invalid_response_is_reported_in_plain_text(script: list[Step], client: WebhookClient) -> None:
    async with ScriptedProvider(script) as receiver:
        sent = await post(client, receiver.url)
    assert (sent.is_delivered, sent.may_retry) == (False, True)
    assert sent.problem.startswith("connection failed (")


async def test_unreachable_webhook_is_retried(client: WebhookClient) -> None:
    sent = await post(client, dead_url())
    assert (sent.may_retry, sent.problem) == (True, "connection failed (ClientConnectorError)")


async def test_one_that_never_answers_is_left(client: WebhookClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_client, "_TOTAL_S", 0.05)
    async with ScriptedProvider([Hold()]) as receiver:
        sent = await post(client, receiver.url)
        assert (sent.may_retry, sent.problem) == (True, "no response within 0.05 s")
        assert await receiver.closed_within(5)


async def test_cookies_are_not_stored(client: WebhookClient) -> None:
    async with ScriptedProvider([whole(200, b"", {"set-cookie": "a=b"})]) as receiver:
        by_name = receiver.url.replace("127.0.0.1", "localhost")  # cookies are not stored for IP addresses
        await post(client, by_name)
        await post(client, by_name)
        assert b"cookie" not in receiver.requests[1].lower()


async def test_self_signed_certificate_is_refused(client: WebhookClient) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("localhost", "127.0.0.1").configure_cert(context)
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    async with server:
        sent = await post(client, f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    assert (sent.is_delivered, sent.may_retry) == (False, True)
    assert sent.problem.startswith("its TLS certificate is refused")


# proxies and DNS


async def test_proxy_of_the_environment_is_used(client: WebhookClient, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ScriptedProvider([whole()]) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        assert (await post(client, "http://hooks.example/x")).is_delivered
        assert proxy.requests[0].startswith(b"POST http://hooks.example/x HTTP/1.1\r\n")


async def test_name_that_does_not_exist_is_a_problem(client: WebhookClient, monkeypatch: pytest.MonkeyPatch) -> None:
    look_up = socket.getaddrinfo

    def fail(host: str, *rest: Any, **more: Any) -> object:
        if host != "hooks.example":  # other lookups of this process
            return look_up(host, *rest, **more)
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    sent = await post(client, "http://hooks.example/x")
    assert (sent.may_retry, sent.problem) == (True, "connection failed (ClientConnectorDNSError)")


async def test_name_is_resolved_and_called_at_its_address(
    client: WebhookClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_up = socket.getaddrinfo
    async with ScriptedProvider([whole()]) as receiver:
        port = int(receiver.url.rsplit(":", 1)[1])
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

        def find(host: str, *rest: Any, **more: Any) -> object:
            if host != "hooks.example":  # other lookups of this process
                return look_up(host, *rest, **more)
            return found

        monkeypatch.setattr(socket, "getaddrinfo", find)
        assert (await post(client, f"http://hooks.example:{port}/x")).is_delivered
        assert b"\r\nHost: hooks.example" in receiver.requests[0]


async def test_hanging_name_server_blocks_one_thread_and_no_call(
    client: WebhookClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, asked = threading.Event(), list[object]()
    look_up = socket.getaddrinfo

    def hang(host: str, *rest: Any, **more: Any) -> object:
        if host != "hooks.example":  # other lookups of this process
            return look_up(host, *rest, **more)
        asked.append(host)
        goes_on.wait(10)
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    monkeypatch.setattr(webhook_client, "_TOTAL_S", 0.05)
    try:
        for _ in range(3):
            assert (await post(client, "http://hooks.example/x")).problem == "no response within 0.05 s"
        assert asked == ["hooks.example"]
        await asyncio.get_running_loop().run_in_executor(None, lambda: None)
    finally:
        goes_on.set()
    await eventually(lambda: not any(each.name == "webhook name" for each in threading.enumerate()))
    await post(client, "http://hooks.example/x")
    assert len(asked) == 2, "the next one looks again"
