"""Uploads that go to the provider while they arrive from the client, over real sockets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from llm_guard.proxy.attempts import upstream_attempt
from llm_guard.proxy.http_server import connection
from tests.chaos.forms import CHAT
from tests.chaos.sinks import never_reading
from tests.chaos.stand import CLOSE_S, Stand, config_of, standing
from tests.chaos.wire import Connection
from tests.fakes.client import raw_request
from tests.fakes.eager_provider import Act, EagerProvider, Upload, early, resetting, store
from tests.fakes.provider import END, chunk, stream_head, whole
from tests.fakes.waiting import eventually

MIB = 1 << 20
HALF = MIB
FILES, TRANSCRIPTIONS = "/v1/files", "/v1/audio/transcriptions"
FORM = {"content-type": "multipart/form-data; boundary=b0"}
CLOSE = b"\r\n--b0--\r\n"
CONTENT = bytes(range(256)) * (2 * MIB // 256)
TRIES = {"max_attempts": 3}


def field(name: str, value: bytes) -> bytes:
    return b'--b0\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (name.encode(), value)


FILE = b'--b0\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n' + CONTENT
BODY = field("purpose", b"batch") + FILE + CLOSE


def head(path: str = FILES, length: int = len(BODY), headers: Mapping[str, str] | None = None) -> bytes:
    return raw_request(path, b"", {**FORM, "content-length": str(length), **(headers or {})})


def chunked_head(path: str = FILES) -> bytes:
    return raw_request(path, b"", {**FORM, "transfer-encoding": "chunked"}).replace(b"content-length: 0\r\n", b"")


@asynccontextmanager
async def uploading(*acts: Act, **sections: Any) -> AsyncIterator[tuple[Stand, EagerProvider, Connection]]:
    """Runs a gateway in front of a provider that plays these acts, with a connected client."""
    async with (
        EagerProvider(*acts) as provider,
        standing(config_of(provider.url, **sections)) as stand,
        Connection(stand.url) as client,
    ):
        yield stand, provider, client


async def arrived(provider: EagerProvider, size: int = HALF, attempt: int = 0) -> Upload:
    """Waits until so much of an attempt's body has arrived, and returns its request."""
    await eventually(lambda: len(provider.uploads) > attempt and len(provider.uploads[attempt].body) >= size)
    return provider.uploads[attempt]


def check_blameless(stand: Stand, deployment: str = "one") -> None:
    snapshot = stand.breaker(deployment)
    assert (snapshot.calls, snapshot.failures, snapshot.consecutive_failures) == (0, 0, 0)


async def check_waited_for(stand: Stand, provider: EagerProvider, size: int) -> None:
    """Checks that so much has arrived, and that nothing was sent to the provider."""
    await eventually(lambda: stand.app.gateway.spool.used_bytes == size)
    await asyncio.sleep(0.05)
    assert not provider.uploads


# while it arrives


async def test_provider_has_the_first_bytes_before_the_client_has_sent_the_last() -> None:
    async with uploading(store) as (stand, provider, client):
        client.writer.write(head() + BODY[:HALF])
        upload = await arrived(provider)
        assert upload.body == BODY[:HALF]
        assert b"\r\ncontent-length: %d" % len(BODY) in upload.head
        client.writer.write(BODY[HALF:])
        assert (await client.reply()).status == 200
        assert upload.body == BODY
        await stand.idle()
        assert stand.app.gateway.spool.used_bytes == 0


async def test_body_of_unannounced_length_is_sent_in_chunks() -> None:
    async with uploading(store) as (_, provider, client):
        client.writer.write(chunked_head() + chunk(BODY[:HALF]).data)
        upload = await arrived(provider)
        assert b"content-length" not in upload.head
        client.writer.write(chunk(BODY[HALF:]).data + END.data)
        assert (await client.reply()).status == 200
        assert upload.is_whole
        assert upload.body == BODY


async def test_connection_serves_the_next_upload() -> None:
    async with uploading(store) as (_, provider, client):
        for count in (1, 2):
            client.writer.write(head() + BODY[:HALF])
            await arrived(provider, attempt=count - 1)
            client.writer.write(BODY[HALF:])
            assert (await client.reply()).status == 200


@pytest.mark.parametrize("path", ["/v1/uploads/upload_1/parts", "/upstreams/one/v1/audio/transcriptions"])
async def test_paths_whose_route_needs_no_model_begin_at_once(path: str) -> None:
    body = FILE + b"\r\n" + field("purpose", b"batch") + CLOSE.removeprefix(b"\r\n")
    async with uploading(store) as (_, provider, client):
        client.writer.write(head(path, len(body)) + body[:HALF])
        await arrived(provider)


async def test_body_that_is_no_form_begins_at_once() -> None:
    async with uploading(store) as (_, provider, client):
        client.writer.write(head("/v1/custom", headers={"content-type": "application/octet-stream"}) + BODY[:HALF])
        await arrived(provider)


async def test_path_of_the_gateways_own_takes_no_upload() -> None:
    async with uploading(store) as (_, provider, client):
        path = "/v1/llm-guard/calls/1"
        client.writer.write(head(path, headers={"content-type": "application/octet-stream"}) + BODY[:HALF])
        client.writer.write(BODY[HALF:])
        assert (await client.reply()).status == 404
        assert not provider.uploads


async def test_slow_client_is_not_the_providers_time() -> None:
    async with uploading(store, timeout={"attempt": "500ms", "total": "600ms"}) as (stand, _, client):
        client.writer.write(head())
        step = len(BODY) // 4
        for at in range(0, len(BODY), step):
            client.writer.write(BODY[at : at + step])
            await asyncio.sleep(0.25)
        assert (await client.reply()).status == 200
        (call,) = await stand.calls()
        assert [each["outcome"] for each in call["attempts"]] == ["ok"]
        assert stand.deployment("one").latency.longest_s < 0.75 + stand.lag_s


async def test_provider_that_is_silent_after_the_last_byte_is_out_of_time() -> None:
    async def silent(upload: Upload) -> None:
        await upload.read_whole()

    async with uploading(silent, timeout={"attempt": "200ms"}) as (stand, provider, client):
        client.writer.write(head() + BODY[:HALF])
        await arrived(provider)
        client.writer.write(BODY[HALF:])
        reply = await client.reply()
        assert (reply.status, CHAT.error_of(reply)["code"]) == (504, "upstream_timeout")
        assert stand.breaker("one").failures == 1


async def test_provider_that_does_not_read_is_out_of_time() -> None:
    async with (
        never_reading() as provider,
        standing(config_of(provider.url, timeout={"attempt": "300ms"}, server={"max_body": "64MiB"})) as stand,
        Connection(stand.url) as client,
    ):
        client.writer.write(head(length=32 * MIB) + bytes(16 * MIB))
        reply = await client.reply()
        assert reply.status == 504
        assert stand.breaker("one").failures == 1


@pytest.mark.parametrize("has_length", [True, False], ids=["length", "chunked"])
async def test_upload_through_a_proxy_is_sent_as_it_arrives(has_length: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async with EagerProvider(resetting(HALF // 2), store) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        config = config_of("http://provider.test", retry=TRIES)
        async with standing(config) as stand, Connection(stand.url) as client:
            client.writer.write(head() + BODY[:HALF] if has_length else chunked_head() + chunk(BODY[:HALF]).data)
            upload = await arrived(proxy, attempt=1)
            client.writer.write(BODY[HALF:] if has_length else chunk(BODY[HALF:]).data + END.data)
            assert (await client.reply()).status == 200
            assert upload.head.startswith(b"post http://provider.test/v1/files ")
            assert upload.is_whole
            assert upload.body == BODY


# retries


@pytest.mark.parametrize("has_length", [True, False], ids=["length", "chunked"])
async def test_provider_that_fails_mid_upload_is_retried_from_the_first_byte(has_length: bool) -> None:
    async with uploading(resetting(HALF // 2), store, retry=TRIES) as (stand, provider, client):
        client.writer.write(head() + BODY[:HALF] if has_length else chunked_head() + chunk(BODY[:HALF]).data)
        again = await arrived(provider, attempt=1)
        assert again.body == BODY[:HALF]
        client.writer.write(BODY[HALF:] if has_length else chunk(BODY[HALF:]).data + END.data)
        assert (await client.reply()).status == 200
        assert again.body == BODY
        (call,) = await stand.calls()
        assert [each["outcome"] for each in call["attempts"]] == ["network", "ok"]
        assert stand.breaker("one").failures == 1


async def test_retry_that_begins_after_the_last_byte_has_a_length() -> None:
    go_on = asyncio.Event()

    async def busy(upload: Upload) -> None:
        await upload.read_body(HALF)
        await go_on.wait()
        upload.answer(whole(503))

    async with uploading(busy, store, retry=TRIES) as (_, provider, client):
        client.writer.write(chunked_head() + chunk(BODY[:HALF]).data)
        await arrived(provider)
        client.writer.write(chunk(BODY[HALF:]).data + END.data)
        await client.writer.drain()
        await asyncio.sleep(0.1)
        go_on.set()
        assert (await client.reply()).status == 200
        assert b"\r\ncontent-length: %d" % len(BODY) in provider.uploads[1].head
        assert provider.uploads[1].body == BODY


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_early_answer_that_may_be_retried_is(status: int) -> None:
    async with uploading(early(HALF // 2, whole(status)), store, retry=TRIES) as (_, provider, client):
        client.writer.write(head() + BODY[:HALF])
        await arrived(provider, attempt=1)
        client.writer.write(BODY[HALF:])
        assert (await client.reply()).status == 200
        assert provider.uploads[1].body == BODY


async def test_provider_that_takes_no_chunks_is_sent_the_length_once_it_is_known() -> None:
    async with uploading(early(HALF // 2, whole(411)), store) as (stand, provider, client):
        client.writer.write(chunked_head() + chunk(BODY[:HALF]).data)
        await eventually(lambda: provider.uploads and provider.uploads[0].is_cut)
        client.writer.write(chunk(BODY[HALF:]).data + END.data)
        assert (await client.reply()).status == 200
        assert b"\r\ncontent-length: %d" % len(BODY) in provider.uploads[1].head
        assert provider.uploads[1].body == BODY
        (call,) = await stand.calls()
        assert [each["outcome"] for each in call["attempts"]] == ["ok"]


async def test_length_that_was_sent_and_is_refused_is_the_answer() -> None:
    async with uploading(early(HALF // 2, whole(411)), store) as (_, provider, client):
        client.writer.write(head() + BODY[:HALF])
        assert (await client.reply()).status == 411
        assert len(provider.uploads) == 1


async def test_file_that_was_sent_as_a_whole_is_not_sent_again() -> None:
    async def failing(upload: Upload) -> None:
        await upload.read_whole()
        upload.answer(whole(500))

    async with uploading(failing, store, retry=TRIES) as (stand, provider, client):
        client.writer.write(head() + BODY[:HALF])
        await arrived(provider)
        client.writer.write(BODY[HALF:])
        assert (await client.reply()).status == 500
        assert len(provider.uploads) == 1
        (call,) = await stand.calls()
        assert call["gave_up"] == "not idempotent: it may have been executed"


async def test_provider_that_takes_the_last_byte_and_breaks_may_have_stored_the_file() -> None:
    async with uploading(resetting(len(BODY)), store, retry=TRIES) as (_, provider, client):
        client.writer.write(head() + BODY[:HALF])
        await arrived(provider)
        client.writer.write(BODY[HALF:])
        assert (await client.reply()).status == 502
        assert len(provider.uploads) == 1


# early answers


@pytest.mark.parametrize("status", [400, 401, 413])
async def test_early_answer_that_is_final_reaches_the_client_before_its_last_byte(status: int) -> None:
    act = early(HALF // 2, whole(status, b'{"error":{"message":"no"}}'))
    async with uploading(act, retry=TRIES) as (stand, provider, client):
        client.writer.write(head() + BODY[:HALF])
        reply = await client.reply()
        assert (reply.status, reply.body) == (status, b'{"error":{"message":"no"}}')
        assert reply.headers["connection"] == "close"
        assert len(provider.uploads) == 1
        await stand.idle()
        assert stand.app.gateway.spool.used_bytes == 0


async def test_early_error_that_does_not_end_is_out_of_time() -> None:
    act = early(HALF, whole(400, b'{"error":', {"content-length": "1000"}))
    async with uploading(act, timeout={"attempt": "200ms"}) as (stand, _, client):
        client.writer.write(head() + BODY[:HALF])
        assert (await client.reply()).status == 504
        assert stand.breaker("one").failures == 1


async def test_early_success_that_is_whole_is_passed_on() -> None:
    async with uploading(early(HALF // 2, whole(200, b'{"id":"file-1"}'))) as (_, __, client):
        client.writer.write(head() + BODY[:HALF])
        reply = await client.reply()
        assert (reply.status, reply.body) == (200, b'{"id":"file-1"}')


async def test_answer_that_begins_early_and_lasts_waits_for_the_last_byte() -> None:
    async def echo(upload: Upload) -> None:
        await upload.read_body(HALF // 2)
        upload.answer(stream_head(headers={"content-type": "application/octet-stream"}))
        upload.answer(chunk(b"first"))
        await upload.read_whole()
        upload.answer(chunk(b" last"))
        upload.answer(END)

    async with uploading(echo, timeout={"attempt": "500ms"}) as (_, provider, client):
        client.writer.write(head("/v1/custom", headers={"content-type": "application/octet-stream"}) + BODY[:HALF])
        await arrived(provider)
        await asyncio.sleep(0.8)  # longer than the provider may take
        client.writer.write(BODY[HALF:])
        reply = await client.reply()
        assert (reply.status, reply.body) == (200, b"first last")
        assert provider.uploads[0].body == BODY


# the client's faults


@pytest.mark.parametrize("how", ["reset", "close"])
async def test_client_that_leaves_in_the_middle_blames_no_provider(how: str) -> None:
    async with uploading(store, retry=TRIES) as (stand, provider, client):
        client.writer.write(head() + BODY[:HALF])
        upload = await arrived(provider)
        left_at = client.leave(how)
        await eventually(lambda: upload.is_cut)
        assert time.monotonic() - left_at < CLOSE_S + stand.lag_s
        (call,) = await stand.calls()
        assert call["outcome"] == "client_cancelled"
        assert [each["outcome"] for each in call["attempts"]] == ["client_cancelled"]
        check_blameless(stand)
        assert not upload.is_whole
        assert stand.app.gateway.spool.used_bytes == 0


async def test_gateway_that_stops_mid_upload_reports_it_and_blames_no_provider() -> None:
    async with uploading(store, retry=TRIES) as (stand, provider, client):
        client.writer.write(head() + BODY[:HALF])
        upload = await arrived(provider)
        stand.app.gateway.end_running()
        reply = await client.reply()
        assert (reply.status, CHAT.error_of(reply)["code"]) == (503, "gateway_draining")
        await eventually(lambda: upload.is_cut)
        check_blameless(stand)
        await stand.idle()
        assert stand.app.gateway.spool.used_bytes == 0


async def test_client_that_stalls_while_a_retry_waits_gets_its_answer_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The body fails while no attempt is running."""
    monkeypatch.setattr(connection, "_BODY_BYTES_PER_S", 1 << 30)
    slow = {"max_attempts": 3, "base_delay": "30s", "max_delay": "30s", "jitter": 0}
    act = early(HALF // 2, whole(503))
    async with uploading(act, retry=slow, server={"body_timeout": "300ms"}) as (stand, provider, client):
        client.writer.write(head() + BODY[:HALF])
        assert (await client.reply()).status == 408
        assert len(provider.uploads) == 1
        (call,) = await stand.calls()
        assert [each["outcome"] for each in call["attempts"]] == ["server_error"]


async def test_client_that_stalls_in_the_middle_blames_no_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    # Otherwise the bytes already sent would extend the timeout by a minute.
    monkeypatch.setattr(connection, "_BODY_BYTES_PER_S", 1 << 30)
    server = {"body_timeout": "300ms"}
    async with uploading(store, retry=TRIES, server=server) as (stand, provider, client):
        client.writer.write(head() + BODY[:HALF])
        upload = await arrived(provider)
        reply = await client.reply()
        assert (reply.status, CHAT.error_of(reply)["code"]) == (408, "request_timeout")
        await eventually(lambda: upload.is_cut)
        check_blameless(stand)
        (call,) = await stand.calls()
        assert (call["outcome"], call["refused_by"]) == ("refused", "request")


@pytest.mark.parametrize("is_answered", [True, False], ids=["408", "reset"])
async def test_provider_that_drops_a_slow_client_is_not_to_blame(
    is_answered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream_attempt, "_CLIENT_SLOW_S", 0.05)

    async def impatient(upload: Upload) -> None:
        await upload.read_body(HALF)
        await asyncio.sleep(0.2)
        if is_answered:
            upload.answer(whole(408))
        else:
            upload.reset()

    async with uploading(impatient, store, retry=TRIES) as (stand, provider, client):
        client.writer.write(head() + BODY[:HALF])
        await arrived(provider, attempt=1)
        check_blameless(stand)
        client.writer.write(BODY[HALF:])
        assert (await client.reply()).status == 200


@pytest.mark.parametrize(
    ("server", "status", "code"),
    [
        ({"max_body": str(MIB), "max_upload": str(3 * HALF // 2)}, 413, "body_too_large"),
        ({"max_spool": str(3 * HALF // 2)}, 413, "body_too_large"),
    ],
    ids=["max_upload", "max_spool"],
)
async def test_body_that_passes_a_limit_in_the_middle_blames_no_provider(
    server: dict[str, str], status: int, code: str
) -> None:
    async with uploading(store, retry=TRIES, server=server) as (stand, provider, client):
        client.writer.write(chunked_head() + chunk(BODY[:HALF]).data)
        upload = await arrived(provider)
        client.writer.write(chunk(BODY[HALF:]).data)
        reply = await client.reply()
        assert (reply.status, CHAT.error_of(reply)["code"]) == (status, code)
        await eventually(lambda: upload.is_cut)
        assert not upload.is_whole
        check_blameless(stand)
        await stand.idle()
        assert stand.app.gateway.spool.used_bytes == 0


async def test_body_that_finds_no_room_in_the_middle_blames_no_provider() -> None:
    async with (
        uploading(store, server={"max_spool": str(3 * MIB)}) as (stand, provider, client),
        Connection(stand.url) as other,
    ):
        client.writer.write(chunked_head() + chunk(BODY[: HALF + 1]).data)
        await arrived(provider)
        other.writer.write(chunked_head() + chunk(BODY[: 3 * HALF // 2]).data)
        await arrived(provider, 3 * HALF // 2, attempt=1)
        client.writer.write(chunk(BODY[HALF + 1 :]).data)
        reply = await client.reply()
        assert (reply.status, CHAT.error_of(reply)["code"]) == (503, "no_room_for_body")
        assert reply.headers["x-should-retry"] == "true"
        check_blameless(stand)


# forms


def spoken(*parts: bytes) -> bytes:
    return b"".join(parts) + CLOSE.removeprefix(b"\r\n")


MODEL_FIRST = spoken(field("model", b"gpt"), FILE + b"\r\n")
MODEL_LAST = spoken(FILE + b"\r\n", field("model", b"gpt"))
RENAMED = {"gpt": {"deployments": [{"upstream": "one", "model": "whisper-very-large"}]}}


@pytest.mark.parametrize("has_length", [True, False], ids=["length", "chunked"])
async def test_model_before_the_file_is_renamed_as_the_body_passes(has_length: bool) -> None:
    sent = MODEL_FIRST.replace(b"\r\ngpt\r\n", b"\r\nwhisper-very-large\r\n")
    async with uploading(store, models=RENAMED) as (_, provider, client):
        first, rest = MODEL_FIRST[:HALF], MODEL_FIRST[HALF:]
        if has_length:
            client.writer.write(head(TRANSCRIPTIONS, len(MODEL_FIRST)) + first)
        else:
            client.writer.write(chunked_head(TRANSCRIPTIONS) + chunk(first).data)
        upload = await arrived(provider)
        client.writer.write(rest if has_length else chunk(rest).data + END.data)
        await client.reply()
        assert upload.body == sent
        assert upload.is_whole


async def test_model_after_the_file_is_waited_for() -> None:
    async with uploading(store, models=RENAMED) as (stand, provider, client):
        client.writer.write(head(TRANSCRIPTIONS, len(MODEL_LAST)) + MODEL_LAST[:-10])
        await check_waited_for(stand, provider, len(MODEL_LAST) - 10)
        client.writer.write(MODEL_LAST[-10:])
        await client.reply()
        assert provider.uploads[0].body.endswith(b"\r\nwhisper-very-large\r\n--b0--\r\n")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (FILES, spoken(FILE + b"\r\n", field("model", b"gpt"))),
        (TRANSCRIPTIONS, spoken(field("model", b"gpt"), FILE + b"\r\n", field("model", b"other"))),
        (FILES, spoken(FILE + b"\r\n", b"--b0\r\n" + b"x" * 5000 + b"\r\n\r\n\r\n")),
        ("/upstreams/one/v1/files", spoken(FILE + b"\r\n", b"--b0\r\n" + b"x" * 5000 + b"\r\n\r\n\r\n")),
    ],
    ids=["model", "another model", "fault", "fault to a named upstream"],
)
async def test_form_that_would_be_refused_as_a_whole_reaches_no_provider_as_a_whole(path: str, body: bytes) -> None:
    async with uploading(store) as (stand, provider, client):
        client.writer.write(head(path, len(body)) + body[:HALF])
        upload = await arrived(provider)
        client.writer.write(body[HALF:])
        reply = await client.reply()
        assert (reply.status, reply.headers["x-llm-guard-refused-by"]) == (400, "request")
        await eventually(lambda: upload.is_cut)
        assert not upload.is_whole
        check_blameless(stand)


# calls that need the whole body


@pytest.mark.parametrize(
    ("headers", "sections"),
    [
        ({"x-llm-guard-dead-letter": "true"}, {}),
        ({}, {"defaults": {"dead_letter": "always"}}),
        ({}, {"defaults": {"deferred": {"mode": "on_failure"}}}),
        ({}, {"defaults": {"hedge": {}}, "server": {"idempotency": {FILES: True}}}),
    ],
    ids=["letter", "letters", "later", "hedge"],
)
async def test_call_that_may_be_stored_or_hedged_waits_for_its_whole_body(
    headers: dict[str, str], sections: dict[str, Any]
) -> None:
    async with uploading(store, **sections) as (stand, provider, client):
        client.writer.write(head(headers=headers) + BODY[:-10])
        await check_waited_for(stand, provider, len(BODY) - 10)
        client.writer.write(BODY[-10:])
        assert (await client.reply()).status == 200
        assert provider.uploads[0].body == BODY
