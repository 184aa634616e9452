"""Large bodies over real sockets: the disk space that they may use together, and the sizes allowed by client and
path."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, cast

import pytest

from llm_guard.proxy.settings import ProxySettings
from tests.chaos.forms import CHAT
from tests.chaos.stand import CLOSE_S, Stand, config_of, facing, total
from tests.chaos.wire import Connection, Reply, fetch
from tests.fakes.client import raw_request
from tests.fakes.provider import Hold, Pause, chunk, whole
from tests.fakes.waiting import eventually

MIB = 1 << 20
FILES, PARTS = "/v1/files", "/v1/uploads/upload_1/parts"
KEY = {"authorization": "Bearer ours"}
PROXIED = {"x-forwarded-for": "203.0.113.7"}
STORED = whole(200, b'{"id":"file-1","object":"file"}')
FORM = {"content-type": "multipart/form-data; boundary=b0"}
OPEN = b'--b0\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'
CLOSE = b"\r\n--b0--\r\n"


def form(size: int) -> bytes:
    return OPEN + b"x" * (size - len(OPEN) - len(CLOSE)) + CLOSE


def upload(size: int, path: str = FILES, headers: Mapping[str, str] | None = None) -> bytes:
    return raw_request(path, form(size), {**FORM, **(headers or {})})


def announced(size: int, path: str = FILES, headers: Mapping[str, str] | None = None) -> bytes:
    """Only the head."""
    return raw_request(path, b"", {**FORM, "content-length": str(size), **(headers or {})})


def used(stand: Stand) -> int:
    return stand.app.gateway.spool.used_bytes


def check_no_room(reply: Reply) -> None:
    assert reply.status == 503
    assert CHAT.error_of(reply)["code"] == "no_room_for_body"
    assert reply.headers["x-llm-guard-refused-by"] == "limit"
    assert (reply.headers["x-should-retry"], reply.headers["retry-after"]) == ("true", "5")


async def shown(stand: Stand, name: str) -> float:
    """Reads a metric without waiting for calls in flight."""
    return total((await fetch(f"{stand.url}/metrics")).text, name)


# the limit for all bodies together


async def test_uploads_at_once_share_the_limit_to_the_last_byte() -> None:
    go = asyncio.Event()
    async with facing([Pause(go), STORED], server={"max_spool": str(4 * MIB)}) as (stand, provider):
        async with Connection(stand.url) as first, Connection(stand.url) as second:
            first.writer.write(upload(2 * MIB))
            second.writer.write(upload(2 * MIB))
            await eventually(lambda: len(provider.requests) == 2)
            assert await shown(stand, "llm_guard_spooled_bytes") == 4 * MIB
            assert await shown(stand, "llm_guard_spool_limit_bytes") == 4 * MIB
            async with Connection(stand.url) as third:
                check_no_room(await third.ask(announced(2 * MIB)))
            go.set()
            assert (await first.reply()).status == (await second.reply()).status == 200
        await stand.idle()
        assert used(stand) == 0
        async with Connection(stand.url) as fourth:
            assert (await fourth.ask(upload(4 * MIB))).status == 200


async def test_body_of_unannounced_length_is_refused_where_it_passes_the_limit() -> None:
    async with facing([Hold()], server={"max_spool": str(3 * MIB)}) as (stand, provider):
        async with Connection(stand.url) as first, Connection(stand.url) as second:
            first.writer.write(upload(2 * MIB))
            await eventually(lambda: provider.requests)
            head = raw_request(FILES, b"", {**FORM, "transfer-encoding": "chunked"})
            second.writer.write(head.replace(b"content-length: 0\r\n", b"") + chunk(form(2 * MIB)).data)
            reply = await second.reply()
            check_no_room(reply)
            assert reply.headers["connection"].lower() == "close"
            assert used(stand) == 2 * MIB
        await stand.idle()
        assert used(stand) == 0


async def test_client_that_waits_for_100_continue_is_refused_before_it_sends() -> None:
    async with (
        facing([Hold()], server={"max_spool": str(2 * MIB)}) as (stand, provider),
        Connection(stand.url) as first,
        Connection(stand.url) as second,
    ):
        first.writer.write(upload(2 * MIB))
        await eventually(lambda: provider.requests)
        reply = await second.ask(announced(2 * MIB, headers={"expect": "100-continue"}))
        check_no_room(reply)
        assert not reply.interim


async def test_body_larger_than_all_of_the_spool_is_not_to_be_sent_again() -> None:
    async with facing([STORED], server={"max_spool": str(2 * MIB)}) as (stand, _), Connection(stand.url) as client:
        reply = await client.ask(announced(2 * MIB + 1))
        assert (reply.status, reply.headers["x-should-retry"]) == (413, "false")
        assert "server.max_spool" in CHAT.error_of(reply)["message"]


@pytest.mark.parametrize("how", ["reset", "close"])
async def test_client_that_disconnects_half_way_frees_its_room(how: str) -> None:
    async with facing([STORED], server={"max_spool": str(4 * MIB)}) as (stand, provider):
        async with Connection(stand.url) as client:
            client.writer.write(upload(4 * MIB)[: 2 * MIB])
            await eventually(lambda: used(stand) > MIB)
            left_at = client.leave(how)
            await eventually(lambda: used(stand) == 0)
            assert time.monotonic() - left_at < CLOSE_S + stand.lag_s
        assert not provider.requests
        async with Connection(stand.url) as another:
            assert (await another.ask(upload(4 * MIB))).status == 200


async def test_client_that_leaves_while_the_provider_thinks_frees_its_room() -> None:
    async with facing([Hold()]) as (stand, provider), Connection(stand.url) as client:
        client.writer.write(upload(2 * MIB))
        await eventually(lambda: provider.requests)
        assert used(stand) == 2 * MIB
        client.leave("reset")
        await eventually(lambda: used(stand) == 0)


async def test_call_that_breaks_the_gateway_frees_its_room() -> None:
    async with facing([STORED]) as (stand, _), Connection(stand.url) as client:
        stand.app.gateway.cache_stage._deferred_store = cast("Any", object())
        reply = await client.ask(upload(2 * MIB, headers={"x-llm-guard-async": "true"}))
        assert reply.status == 500
        await stand.idle()
        assert used(stand) == 0


async def test_failed_and_refused_calls_free_their_room() -> None:
    async with facing([whole(500)]) as (stand, _):
        for request in (
            upload(2 * MIB),
            upload(2 * MIB, "/v1/chat/completions"),
            upload(2 * MIB, "/upstreams/x/v1/files"),
        ):
            async with Connection(stand.url) as client:
                assert (await client.ask(request)).status >= 400
        await stand.idle()
        assert used(stand) == 0


async def test_reload_changes_the_limit() -> None:
    async with facing([STORED]) as (stand, provider):
        default = stand.app.gateway.spool.max_bytes
        for size, limit in ((MIB, MIB), (None, default)):
            server = {} if size is None else {"max_spool": str(size)}
            config = config_of(provider.url, server=server)
            stand.app.gateway.adopt(ProxySettings(config, stand.app.gateway.table))
            assert stand.app.gateway.spool.max_bytes == limit


# the limit for each body


@pytest.mark.parametrize("path", [FILES, PARTS, "/v1/uploads", "/upstreams/one/v1/files"])
async def test_files_may_be_larger_than_other_bodies(path: str) -> None:
    async with facing([STORED], server={"max_body": str(MIB), "max_upload": str(3 * MIB)}) as (stand, provider):
        async with Connection(stand.url) as client:
            assert (await client.ask(upload(3 * MIB, path))).status == 200
        assert provider.requests[0].endswith(form(3 * MIB))
        await check_too_large(stand, announced(3 * MIB + 1, path), "server.max_upload")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/filesystem", "/v1/audio/transcriptions", "/v1/file"])
async def test_other_bodies_may_not(path: str) -> None:
    async with facing([STORED], server={"max_body": str(MIB)}) as (stand, _):
        await check_too_large(stand, announced(MIB + 1, path), "server.max_body")


async def test_unidentified_client_sends_no_large_files() -> None:
    async with facing([STORED], server={"max_body": str(MIB)}) as (stand, _):
        await check_too_large(stand, announced(MIB + 1, headers=PROXIED), "server.max_body")
        await check_too_large(stand, announced(MIB + 1).replace(b"HTTP/1.1", b"HTTP/1.0"), "server.max_body")


async def test_client_with_a_key_sends_large_files_from_anywhere() -> None:
    keys = {"client_keys": [{"name": "app", "key": "ours", "allow": {"paths": ["/v1/files"]}}]}
    async with facing([STORED], server={"max_body": str(MIB), **keys}) as (stand, _), Connection(stand.url) as client:
        assert (await client.ask(upload(2 * MIB, headers={**KEY, **PROXIED}))).status == 200


async def test_larger_max_body_holds_for_files_too() -> None:
    server = {"max_body": str(3 * MIB), "max_upload": str(MIB)}
    async with facing([STORED], server=server) as (stand, _), Connection(stand.url) as client:
        assert (await client.ask(upload(3 * MIB))).status == 200


async def check_too_large(stand: Stand, request: bytes, key: str) -> None:
    async with Connection(stand.url) as client:
        reply = await client.ask(request)
    assert reply.status == 413
    assert reply.headers["x-llm-guard-refused-by"] == "request"
    assert key in CHAT.error_of(reply)["message"]
