"""Connection targets of the upstream client: names, addresses, TLS, proxies."""

from __future__ import annotations

import asyncio
import errno
import gc
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from llm_guard.outcome import FailureKind
from llm_guard.proxy.http_client import connection_pool as origin_module
from llm_guard.proxy.http_client.connection_pool import UpstreamError
from tests.chaos.sinks import TlsProvider, refusing
from tests.fakes.provider import END, Hold, Reset, ScriptedProvider, chunk, stream_head, whole
from tests.fakes.waiting import eventually
from tests.integration.test_upstream_client import ask, client, failure, on_each_loop, rest_of, send, served_by, uses

OK = whole(200, b"fine")
VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def _without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


class Names:
    """Replaces the system's resolver."""

    def __init__(self, *addresses: tuple[str, int]) -> None:
        self.addresses = addresses
        self.asked = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        asyncio.get_running_loop().getaddrinfo = self._look_up  # type: ignore[method-assign,assignment]

    async def _look_up(self, host: str, port: int, **_how: int) -> list[Any]:
        if host == "127.0.0.1":  # uvloop also resolves addresses when it connects
            return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port))]
        self.asked += 1
        await self.may_answer.wait()
        if not self.addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", address) for address in self.addresses]


def address_of(url: str) -> tuple[str, int]:
    host, _, port = url.rpartition("//")[2].rpartition(":")
    return host, int(port)


# names


@on_each_loop
async def test_name_is_resolved_once_for_all_waiting_calls_and_again_when_expired() -> None:
    async with ScriptedProvider([OK]) as provider, client() as connections:
        names = Names(address_of(provider.url))
        names.may_answer.clear()
        url = "http://provider.test"
        waiting = [asyncio.ensure_future(ask(connections, url, is_repeatable=False)) for _ in range(3)]
        await eventually(lambda: names.asked)
        waiting[0].cancel()  # the other waiters still need its look-up
        names.may_answer.set()
        assert await asyncio.gather(*waiting[1:]) == [b"fine"] * 2
        assert names.asked == 1
        assert b"\r\nHost: provider.test\r\n" in provider.requests[0]
        connections._origins[url]._resolved_until -= origin_module._RESOLUTION_S
        assert await ask(connections, url, is_repeatable=False) == b"fine"
        assert names.asked == 2


@on_each_loop
async def test_new_connections_spread_over_the_addresses() -> None:
    async with ScriptedProvider([OK]) as one, ScriptedProvider([OK]) as two, client() as connections:
        Names(address_of(one.url), address_of(two.url))
        for _ in range(4):
            await ask(connections, "http://provider.test", is_repeatable=False)
        assert (len(uses(one)), len(uses(two))) == (2, 2)


@on_each_loop
async def test_address_that_refuses_is_passed_over() -> None:
    with refusing() as (refused, _):
        async with ScriptedProvider([OK]) as provider, client() as connections:
            Names(address_of(refused), address_of(provider.url))
            for _ in range(2):
                assert await ask(connections, "http://provider.test", is_repeatable=False) == b"fine"


@on_each_loop
async def test_unknown_name_is_a_network_failure_and_is_resolved_again() -> None:
    async with ScriptedProvider([OK]) as provider, client() as connections:
        names = Names()
        error = await failure(ask(connections, "http://provider.test"))
        assert (error.kind, error.detail) == (FailureKind.NETWORK, "host name not found")
        names.addresses = (address_of(provider.url),)
        assert await ask(connections, "http://provider.test") == b"fine"


@on_each_loop
async def test_abandoned_name_lookup_fails_silently() -> None:
    heard: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: heard.append(context))
    async with client() as connections:
        names = Names()
        names.may_answer.clear()
        asking = asyncio.ensure_future(ask(connections, "http://provider.test"))
        await eventually(lambda: names.asked)
        asking.cancel()
        await asyncio.wait([asking])
        names.may_answer.set()
        await eventually(lambda: connections._origins["http://provider.test"]._resolving is None)
        gc.collect()
        assert heard == []


@on_each_loop
async def test_refused_connection_is_a_network_failure() -> None:
    with refusing() as (url, _):
        async with client() as connections:
            assert (await failure(ask(connections, url))).kind is FailureKind.NETWORK
            assert connections.count == 0


@on_each_loop
async def test_machine_without_sockets_is_not_the_upstreams_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    async def exhausted(*_: object, **__: object) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(origin_module, "start_connection", exhausted)
    async with client() as connections:
        assert (await failure(ask(connections, "http://127.0.0.1:1"))).kind is FailureKind.OWN_RESOURCES


@on_each_loop
@pytest.mark.parametrize("origin", ["http://", "http://[", "http://h:99999", "http://" + "a" * 70 + ".test"])
async def test_invalid_origin_is_a_local_failure(origin: str) -> None:
    async with client() as connections:
        with pytest.raises(UpstreamError) as raised:
            await ask(connections, origin)
        assert raised.value.kind in (FailureKind.INTERNAL, FailureKind.NETWORK)


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@on_each_loop
@pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6")
async def test_address_may_be_one_of_ipv6() -> None:
    with socket.socket(socket.AF_INET6) as listener:
        listener.bind(("::1", 0))
        port = listener.getsockname()[1]
        async with ScriptedProvider([OK], sock=listener) as provider, client() as connections:
            assert await ask(connections, f"http://[::1]:{port}") == b"fine"
            assert b"\r\nHost: [::1]:%d\r\n" % port in provider.requests[0]


@on_each_loop
async def test_small_writes_are_sent_at_once_and_dead_peers_are_noticed() -> None:
    async with ScriptedProvider([Hold()]) as provider, client() as connections:
        asking = asyncio.ensure_future(ask(connections, provider.url))
        await eventually(lambda: provider.requests)
        (connection,) = connections._living
        sock = connection.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        asking.cancel()
        await asyncio.wait([asking])


# TLS


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> trustme.CA:
    """A CA that the client trusts."""
    authority, trusted = trustme.CA(), tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(trusted)
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    return authority


@on_each_loop
async def test_body_large_and_small_passes_over_tls(authority: trustme.CA) -> None:
    provider = TlsProvider([stream_head(), chunk(b"f" * 300_000), END])
    authority.issue_cert("127.0.0.1").configure_cert(provider.context)
    provider.context.set_alpn_protocols(["h2", "http/1.1"])
    async with provider, client() as connections:
        for body in (b"small", b"l" * 2_000_000):
            assert await rest_of(await send(connections, provider.url, body=body)) == b"f" * 300_000
        (connection,) = connections._living
        assert connection.transport.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
        assert [len(request) > 2_000_000 for request in provider.requests] == [False, True]
        assert uses(provider) == [2]


@on_each_loop
@pytest.mark.parametrize("fault", ["stranger", "other host"])
async def test_provider_without_a_valid_certificate_gets_no_byte(authority: trustme.CA, fault: str) -> None:
    provider = TlsProvider([OK])
    issuer = trustme.CA() if fault == "stranger" else authority
    issuer.issue_cert("127.0.0.1" if fault == "stranger" else "api.openai.com").configure_cert(provider.context)
    async with provider, client() as connections:
        assert (await failure(ask(connections, provider.url))).kind is FailureKind.CERTIFICATE
        assert (provider.requests, connections.count) == ([], 0)


@on_each_loop
async def test_host_header_names_the_intended_provider(authority: trustme.CA) -> None:
    provider, meant = TlsProvider([OK]), []
    authority.issue_cert("provider.test").configure_cert(provider.context)
    provider.context.sni_callback = lambda _socket, name, _context: meant.append(name)
    async with provider, client() as connections:
        Names(address_of(provider.url))
        assert await ask(connections, "https://provider.test.") == b"fine"
        assert meant == ["provider.test"]


@on_each_loop
async def test_cancelled_handshake_is_closed_at_once(authority: trustme.CA) -> None:
    async with ScriptedProvider([Hold()]) as provider, client() as connections:
        asking = asyncio.ensure_future(ask(connections, provider.url.replace("http:", "https:")))
        await eventually(lambda: provider.connections)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert await provider.closed_within(1)


@on_each_loop
async def test_answer_over_tls_that_is_reset_is_cut(authority: trustme.CA) -> None:
    provider = TlsProvider([stream_head(), chunk(b"one"), Reset()])
    authority.issue_cert("127.0.0.1").configure_cert(provider.context)
    async with provider, client() as connections:
        exchange = await send(connections, provider.url)
        with pytest.raises(UpstreamError) as raised:
            assert await rest_of(exchange) == b""
        assert raised.value.kind is FailureKind.TRUNCATED


# proxies


@asynccontextmanager
async def proxy(status: bytes = b"200 OK") -> AsyncIterator[tuple[str, list[bytes]]]:
    """Yields an HTTP proxy's URL and the heads of its requests. It connects to the target of a CONNECT and answers
    all other requests itself."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        method, target, _ = heads[-1].split(b" ", 2)
        if method != b"CONNECT":
            writer.write(OK.data)
            await reader.read()
            return
        writer.write(b"HTTP/1.1 %b\r\n\r\n" % status)
        if not status.startswith(b"200"):
            return
        host, _, port = target.decode().rpartition(":")
        behind, onward = await asyncio.open_connection(host, int(port))
        await asyncio.wait(
            [asyncio.ensure_future(_copy(reader, onward)), asyncio.ensure_future(_copy(behind, writer))],
        )

    async with served_by(serve) as url:
        yield url, heads


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(1 << 16):
            sink.write(data)
    except ConnectionError:
        pass
    sink.close()


async def test_plain_origin_is_called_through_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    async with proxy() as (url, heads):
        monkeypatch.setenv("http_proxy", url)
        async with client() as connections:
            exchange = await send(connections, "http://provider.test", headers=[("X", "1")], body=b"{}")
            assert await rest_of(exchange) == b"fine"
            assert connections.count == 1
    (head,) = heads
    assert head.startswith(b"POST http://provider.test/v1/x HTTP/1.1\r\n")
    assert b"\r\nContent-Length: 2\r\n" in head
    assert b"\r\nX: 1\r\n" in head
    assert b"chunked" not in head


async def test_tls_passes_through_the_proxy_and_is_verified(
    monkeypatch: pytest.MonkeyPatch, authority: trustme.CA
) -> None:
    provider = TlsProvider([OK])
    authority.issue_cert("127.0.0.1").configure_cert(provider.context)
    async with provider, proxy() as (url, heads):
        monkeypatch.setenv("https_proxy", url)
        async with client() as connections:
            assert await ask(connections, provider.url) == b"fine"
        stranger = trustme.CA()
        context = ssl.create_default_context(cadata=stranger.cert_pem.bytes().decode())
        async with client() as connections:
            connections._tls = context
            assert (await failure(ask(connections, provider.url))).kind is FailureKind.CERTIFICATE
    assert [head.split(b" ")[0] for head in heads] == [b"CONNECT"] * 2
    assert len(provider.requests) == 1


async def test_proxy_that_refuses_or_is_down_is_no_failure_of_the_upstream(monkeypatch: pytest.MonkeyPatch) -> None:
    async with proxy(b"403 Forbidden") as (url, _):
        monkeypatch.setenv("all_proxy", url)
        async with client() as connections:
            assert (await failure(ask(connections, "https://provider.test"))).kind is FailureKind.EGRESS
    with refusing() as (gone, _):
        monkeypatch.setenv("all_proxy", gone)
        async with client() as connections:
            assert (await failure(ask(connections, "https://provider.test"))).kind is FailureKind.EGRESS


async def test_invalid_request_reaches_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    async with proxy() as (url, heads):
        monkeypatch.setenv("http_proxy", url)
        async with client() as connections:
            sending = send(connections, "http://provider.test", target="/a b")
            assert (await failure(sending)).kind is FailureKind.INTERNAL
    assert heads == []


async def test_host_that_needs_no_proxy_is_reached_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    async with ScriptedProvider([OK]) as provider, client() as connections:
        assert await ask(connections, provider.url) == b"fine"
