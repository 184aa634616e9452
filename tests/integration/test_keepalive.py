"""Keep-alives for a client that waits for its first token, and their price: the status is sent before the outcome is
known."""

from __future__ import annotations

import gzip
import json
import zlib

import pytest

from llm_guard.mock.errors import error_body
from tests.chaos.forms import CHAT, MESSAGES, STREAMS, Form, name_of
from tests.chaos.stand import facing
from tests.chaos.wire import Connection
from tests.fakes.client import raw_request
from tests.fakes.provider import END, Close, Hold, Pause, Reset, Step, chunk, stream_head, whole
from tests.fakes.waiting import eventually

streams = pytest.mark.parametrize("form", STREAMS, ids=name_of)
SOON = {"keepalive": {"interval": "50ms"}}
EARLY = {"keepalive": {"interval": "50ms", "before_headers": True}}
UNARY = {"keepalive": {"interval": "50ms", "unary": True}}
WORD = b": waiting\n\n"
RETRY = {"max_attempts": 2}


def without_comments(body: bytes) -> bytes:
    return body.replace(WORD, b"")


@streams
async def test_comments_begin_once_a_provider_has_started_a_stream(form: Form) -> None:
    script: list[Step] = [stream_head(), Pause(0.2), *form.good_stream[1:]]
    async with facing(script, stream=SOON) as (stand, _):
        reply = await form.ask(stand.url, stream=True)
        assert reply.is_whole
        assert reply.body.startswith(WORD)
        assert without_comments(reply.body) == form.stream_bytes
        assert reply.headers["content-type"].startswith("text/event-stream")
        assert reply.headers["x-llm-guard-request-id"]
        (call,) = await stand.calls()
        assert (call["outcome"], call["status"]) == ("ok", 200)


@streams
async def test_nothing_is_sent_while_a_failure_can_still_have_a_status(form: Form) -> None:
    script: list[Step] = [Pause(0.2), whole(429, b'{"error": {"message": "busy"}}', {"retry-after": "7"})]
    async with facing(script, stream=SOON) as (stand, _):
        reply = await form.ask(stand.url, stream=True)
        assert (reply.status, reply.headers["retry-after"]) == (429, "7")


async def test_nothing_is_sent_to_a_client_with_a_short_timeout() -> None:
    async with facing(
        [Pause(0.1), *CHAT.good_stream], stream={"keepalive": {"interval": "5s", "before_headers": True}}
    ) as (
        stand,
        _,
    ):
        reply = await CHAT.ask(stand.url, stream=True)
        assert reply.body == CHAT.stream_bytes
        assert reply.headers["x-llm-guard-deployment"] == CHAT.deployment


@streams
async def test_comments_may_precede_any_head(form: Form) -> None:
    async with facing([Pause(0.2), *form.good_stream], stream=EARLY) as (stand, _):
        reply = await form.ask(stand.url, stream=True)
        assert reply.is_whole
        assert reply.body.count(WORD) >= 2
        assert without_comments(reply.body) == form.stream_bytes


@streams
async def test_attempts_continue_behind_the_comments(form: Form) -> None:
    first: list[Step] = [stream_head(), Pause(0.2), Close()]
    async with facing(first, form.good_stream, stream=SOON, retry=RETRY) as (stand, _):
        reply = await form.ask(stand.url, stream=True)
        assert without_comments(reply.body) == form.stream_bytes
        (call,) = await stand.calls()
        assert [each["outcome"] for each in call["attempts"]] == ["truncated", "ok"]


@streams
async def test_failure_after_comments_is_an_error_event(form: Form) -> None:
    async with facing([stream_head(), Pause(0.2), Close()], stream=SOON) as (stand, _):
        reply = await form.ask(stand.url, stream=True)
        assert (reply.status, reply.is_whole) == (200, False)
        assert form.deployment in form.error_in(without_comments(reply.body).removesuffix(b"\n\n"))["message"]
        (call,) = await stand.calls()
        assert call["outcome"] == "truncated"


@streams
async def test_error_response_after_comments_is_passed_on_as_an_event(form: Form) -> None:
    said = error_body("anthropic" if form is MESSAGES else "openai", 429, form.model)
    async with facing([Pause(0.2), whole(429, json.dumps(said).encode())], stream=EARLY) as (stand, _):
        reply = await form.ask(stand.url, stream=True)
        assert (reply.status, reply.is_whole) == (200, False)
        error = form.error_in(without_comments(reply.body).removesuffix(b"\n\n"))
        assert error["message"] == said["error"]["message"]
        (call,) = await stand.calls()
        assert (call["outcome"], call["status"]) == ("rate_limit", 200)


async def test_error_page_behind_comments_becomes_an_error_of_the_gateway() -> None:
    async with facing([Pause(0.2), whole(502, b"<html>oops")], stream=EARLY) as (stand, _):
        reply = await CHAT.ask(stand.url, stream=True)
        assert CHAT.error_in(without_comments(reply.body).removesuffix(b"\n\n"))["code"] == "upstream_error"


async def test_unary_response_is_written_as_a_stream_after_comments() -> None:
    async with facing([Pause(0.2), *CHAT.ok], stream=EARLY) as (stand, _):
        reply = await CHAT.ask(stand.url, stream=True)
        assert reply.is_whole
        assert reply.body.startswith(WORD)
        assert reply.body.endswith(b"data: [DONE]\n\n")
        assert b'"content":"hi"' in reply.body


async def test_response_that_cannot_be_written_as_a_stream_cannot_follow_comments() -> None:
    unfinished = CHAT.answer.replace(b'"stop"', b"null")
    async with facing([Pause(0.2), whole(200, unfinished)], stream=EARLY) as (stand, _):
        reply = await CHAT.ask(stand.url, stream=True)
        assert not reply.is_whole
        assert (
            "without the event stream" in CHAT.error_in(without_comments(reply.body).removesuffix(b"\n\n"))["message"]
        )


async def test_client_that_disconnects_after_comments_ends_the_exchange() -> None:
    async with facing([stream_head(), Hold()], stream=SOON) as (stand, provider):
        async with Connection(stand.url) as client:
            client.writer.write(CHAT.request(stream=True))
            await client.reader.readuntil(WORD)
            client.leave("reset")
        await eventually(lambda: provider.connections[0].closed_at is not None)
        (call,) = await stand.calls()
        assert call["outcome"] == "client_cancelled"


async def test_client_that_disconnects_at_the_end_after_comments_has_all_of_it() -> None:
    async with facing([stream_head(), Pause(0.2), *CHAT.good_stream[1:-1], Hold()], stream=SOON) as (stand, _):
        async with Connection(stand.url) as client:
            client.writer.write(CHAT.request(stream=True))
            await client.reader.readuntil(b"[DONE]\n\n")
            client.leave("close")
        (call,) = await stand.calls()
        assert call["outcome"] == "ok"


async def test_drain_behind_comments_is_reported_in_an_event() -> None:
    async with facing([stream_head(), Hold()], stream=SOON) as (stand, _):
        async with Connection(stand.url) as client:
            client.writer.write(CHAT.request(stream=True))
            await client.reader.readuntil(WORD)
            stand.app.gateway.end_running()
            rest = await client.reader.read()
        assert b"gateway_draining" in rest
        (call,) = await stand.calls()
        assert call["refused_by"] == "drain"


async def test_compressed_stream_is_waited_for_in_silence() -> None:
    head = stream_head(200, {"content-encoding": "gzip"})
    async with facing([head, Pause(0.2), Reset()], stream=SOON) as (stand, _):
        reply = await CHAT.ask(stand.url, stream=True)
        assert reply.status == 502


async def test_read_timeout_of_the_client_is_ignored_once_it_gets_keep_alives() -> None:
    """Without keep-alives the gateway answers shortly before the client's read timeout."""
    slow: list[Step] = [stream_head(), Pause(0.5), *CHAT.good_stream[1:]]
    async with facing([stream_head(), Pause(0.1), Close()], slow, stream=SOON, retry=RETRY) as (stand, _):
        async with Connection(stand.url) as client:
            request = CHAT.request(stream=True).replace(b"\r\n", b"\r\nx-stainless-read-timeout: 0.4\r\n", 1)
            reply = await client.ask(request)
        assert without_comments(reply.body) == CHAT.stream_bytes


@pytest.mark.parametrize("encoding", ["gzip", "br"])
async def test_compressed_stream_after_a_plain_head_is_inflated_or_refused(encoding: str) -> None:
    """The first provider began a plain stream and died; keep-alives may be sent from then on."""
    packer = zlib.compressobj(wbits=31)
    packed = packer.compress(CHAT.token + CHAT.end) + packer.flush()
    second: list[Step] = [stream_head(200, {"content-encoding": encoding}), Pause(0.2), chunk(packed), END]
    async with facing([stream_head(), Close()], second, stream=SOON, retry=RETRY) as (stand, _):
        async with Connection(stand.url) as client:
            reply = await client.ask(raw_request(CHAT.path, CHAT.body(stream=True), {"accept-encoding": encoding}))
        if encoding == "gzip":
            assert without_comments(reply.body) == CHAT.token + CHAT.end
        else:
            assert b"compressed with br" in reply.body


# unary calls


async def test_unary_call_gets_no_keep_alives_by_default() -> None:
    async with facing([Pause(0.2), *CHAT.ok], stream=EARLY) as (stand, _):
        reply = await CHAT.ask(stand.url)
        assert reply.body == CHAT.answer
        assert reply.headers["content-length"] == str(len(CHAT.answer))


async def test_unary_call_may_get_blank_lines_before_its_json() -> None:
    async with facing([Pause(0.2), *CHAT.ok], stream=UNARY) as (stand, _):
        reply = await CHAT.ask(stand.url)
        assert (reply.status, reply.is_whole) == (200, True)
        assert reply.body.startswith(b"\n\n")
        assert reply.body.lstrip() == CHAT.answer
        assert reply.json["object"] == "chat.completion"


async def test_compressed_response_cannot_follow_blank_lines() -> None:
    """The request accepts no compression; a provider that compresses anyway has failed."""
    packed = whole(200, gzip.compress(CHAT.answer), {"content-encoding": "gzip"})
    async with facing([Pause(0.2), packed], stream=UNARY) as (stand, provider), Connection(stand.url) as client:
        reply = await client.ask(raw_request(CHAT.path, CHAT.body(), {"accept-encoding": "gzip"}))
        assert b"accept-encoding: identity" in provider.requests[0].lower()
        assert not reply.is_whole
        assert "compressed" in reply.json["error"]["message"]
        (call,) = await stand.calls()
        assert call["outcome"] == "malformed"


async def test_unary_call_that_fails_after_blank_lines_is_broken_off() -> None:
    async with facing([Pause(0.2), whole(500, b'{"error": {"message": "boom"}}')], stream=UNARY) as (stand, _):
        reply = await CHAT.ask(stand.url)
        assert (reply.status, reply.is_whole) == (200, False)
        assert reply.json["error"]["message"] == "boom"
