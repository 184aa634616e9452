"""`server.tls`: TLS towards clients, with and without client certificates."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
from openai import AsyncOpenAI

from tests.chaos.forms import CHAT
from tests.chaos.stand import Stand, config_of, facing, standing
from tests.chaos.wire import Connection, Reply
from tests.e2e.stand import SAID
from tests.fakes.certificates import Authority, replace
from tests.fakes.client import raw_request
from tests.fakes.provider import Hold, ScriptedProvider
from tests.fakes.waiting import eventually

often = pytest.mark.usefixtures("poll_s")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@asynccontextmanager
async def serving(tls: Mapping[str, str], **server: object) -> AsyncIterator[Stand]:
    async with facing(CHAT.ok, server={"tls": dict(tls), **server}) as (stand, _):
        yield stand


async def ask(stand: Stand, tls: ssl.SSLContext) -> Reply:
    async with Connection(stand.url, tls) as connection:
        return await connection.ask(CHAT.request())


async def certificate_of(stand: Stand, tls: ssl.SSLContext) -> str:
    """Returns the common name of the certificate that a new connection receives."""
    async with Connection(stand.url, tls) as connection:
        return name_in(connection)


def name_in(connection: Connection) -> str:
    names = dict(pair for (pair,) in connection.writer.get_extra_info("peercert")["subject"])
    return str(names["commonName"])


def logged_errors(stand: Stand, event: str) -> list[str]:
    return [str(line.get("error", "")) for line in stand.log if line["event"].startswith(event)]


async def test_calls_are_served_over_tls(authority: Authority) -> None:
    async with serving(authority.pair("one")) as stand:
        assert stand.url.startswith("https://127.0.0.1:")
        reply = await ask(stand, authority.client())
        assert (reply.status, reply.body) == (200, CHAT.answer)


async def test_kept_alive_connection_serves_several_calls_and_streams(authority: Authority) -> None:
    async with (
        facing(CHAT.ok, CHAT.good_stream, CHAT.ok, server={"tls": authority.pair("one")}) as (stand, _),
        Connection(stand.url, authority.client()) as connection,
    ):
        first = await connection.ask(CHAT.request())
        stream = await connection.ask(CHAT.request(stream=True))
        last = await connection.ask(CHAT.request())
    assert [first.status, stream.status, last.status] == [200, 200, 200]
    assert stream.is_whole


async def test_openai_sdk_calls_over_tls(authority: Authority) -> None:
    async with (
        facing(CHAT.ok, CHAT.good_stream, server={"tls": authority.pair("one")}) as (stand, _),
        httpx2.AsyncClient(verify=authority.client()) as http,
        AsyncOpenAI(base_url=f"{stand.url}/v1", api_key="sk-caller", http_client=http, max_retries=0) as client,
    ):
        answer = await client.chat.completions.create(model="gpt", messages=SAID)
        assert answer.choices
        stream = await client.chat.completions.create(model="gpt", messages=SAID, stream=True)
        assert [chunk async for chunk in stream]


async def test_large_body_and_large_answer_pass(authority: Authority) -> None:
    body = CHAT.body(messages=[{"role": "user", "content": "x" * (3 << 20)}])
    async with serving(authority.pair("one")) as stand, Connection(stand.url, authority.client()) as connection:
        reply = await connection.ask(raw_request(CHAT.path, body))
        assert reply.status == 200


async def test_request_in_the_packet_of_the_handshakes_end_is_read(authority: Authority) -> None:
    async with serving(authority.pair("one")) as stand:
        reply = await asyncio.to_thread(_send_in_one_packet, stand.url, authority.client())
        assert reply.startswith(b"HTTP/1.1 200")


def _send_in_one_packet(url: str, context: ssl.SSLContext) -> bytes:
    """Sends the last part of the handshake and the request in one write."""
    parts = urlsplit(url)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with socket.create_connection((parts.hostname, parts.port), timeout=5) as sock:
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                sock.sendall(outgoing.read())
                incoming.write(sock.recv(65536))
        tls.write(CHAT.request())
        sock.sendall(outgoing.read())
        while True:
            try:
                return tls.read(65536)
            except ssl.SSLWantReadError:
                incoming.write(sock.recv(65536))


# clients with certificates


async def test_client_without_a_certificate_is_refused_where_one_is_required(authority: Authority) -> None:
    tls = {**authority.pair("one"), "client_ca": str(authority.file)}
    async with serving(tls) as stand:
        assert (await ask(stand, authority.client(authority.pair("me")))).status == 200
        for stranger in (authority.client(), authority.client(_of_another(authority))):
            with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                await ask(stand, stranger)
        assert (await ask(stand, authority.client(authority.pair("me")))).status == 200


def _of_another(authority: Authority) -> dict[str, str]:
    folder = authority.file.parent / "other"
    folder.mkdir()
    return Authority(folder).pair("stranger")


# files that change


@often
async def test_new_certificate_is_for_new_connections_and_old_ones_continue(authority: Authority) -> None:
    files = authority.pair("one")
    async with serving(files) as stand, Connection(stand.url, authority.client()) as old:
        assert name_in(old) == "one"
        replace(files, authority.pair("two"))
        await eventually(lambda: logged_errors(stand, "changed files are in use"))
        assert await certificate_of(stand, authority.client()) == "two"
        assert (await old.ask(CHAT.request())).status == 200


async def test_broken_certificate_leaves_the_old_one_in_use_and_is_reported_once(
    authority: Authority, poll_s: float
) -> None:
    files = authority.pair("one")
    async with serving(files) as stand:
        replace({"key": files["key"]}, authority.pair("other"))
        await eventually(lambda: logged_errors(stand, "changed files cannot be used"))
        await asyncio.sleep(5 * poll_s)  # long enough to check the files twice more
        assert await certificate_of(stand, authority.client()) == "one"
        (problem,) = logged_errors(stand, "changed files cannot be used")
        assert "is not the key of the certificate" in problem
        replace(files, authority.pair("two"))
        await eventually(lambda: logged_errors(stand, "changed files are in use"))
        assert await certificate_of(stand, authority.client()) == "two"


@often
async def test_absent_pair_leaves_the_old_one_in_use(authority: Authority) -> None:
    files = authority.pair("one")
    async with serving(files) as stand:
        os.unlink(files["cert"])
        await eventually(lambda: logged_errors(stand, "changed files cannot be used"))
        assert (await ask(stand, authority.client())).status == 200


# other protocols and slow handshakes


async def test_plain_client_and_slow_handshakes_hurt_no_others(authority: Authority) -> None:
    async with serving(authority.pair("one"), head_timeout="500ms", max_connections=20) as stand:
        parts = urlsplit(stand.url)
        slow = [await asyncio.open_connection(parts.hostname, parts.port) for _ in range(30)]
        slow[0][1].write(b"\x16\x03\x01\x02")  # the beginning of a ClientHello
        plain, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(CHAT.request())
        assert (await plain.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
        assert b"write https:// instead of http://" in await plain.read()
        began_at = time.monotonic()
        assert (await ask(stand, authority.client())).status == 200
        assert time.monotonic() - began_at < 1 + stand.lag_s
        (_, listener) = stand.app._listeners[0]
        assert listener.count <= 20
        await eventually(lambda: listener.count == 0, 5)
        for _, each in [*slow, (plain, writer)]:
            each.close()


async def test_client_that_leaves_cancels_its_call(authority: Authority) -> None:
    async with (
        ScriptedProvider([Hold()]) as provider,
        standing(config_of(provider.url, server={"tls": authority.pair("one")})) as stand,
    ):
        async with Connection(stand.url, authority.client()) as connection:
            connection.writer.write(CHAT.request())
            await eventually(lambda: provider.requests)
            connection.leave("reset")
        assert await provider.closed_within(2)


async def test_bad_request_is_answered_and_the_connection_closed(authority: Authority) -> None:
    async with serving(authority.pair("one")) as stand, Connection(stand.url, authority.client()) as connection:
        reply = await connection.ask(b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n")
        assert reply.status == 400
        assert await connection.is_closed(5)


async def test_drain_closes_idle_tls_connections(authority: Authority) -> None:
    async with serving(authority.pair("one")) as stand, Connection(stand.url, authority.client()) as connection:
        assert (await connection.ask(CHAT.request())).status == 200
        began_at = time.monotonic()
        await stand.app.stop()
        assert time.monotonic() - began_at < 4 + stand.lag_s
        assert await connection.is_closed()
