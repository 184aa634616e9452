"""Responses that report a failure at their end, end too early, or do not come from an API: none of them passes as
valid."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import pytest

from tests.chaos.forms import CHAT, EMBEDDINGS, RESPONSES, Form
from tests.chaos.stand import config_of, facing, standing
from tests.chaos.wire import Connection, ask
from tests.fakes.client import raw_request
from tests.fakes.provider import END, Close, Pause, Respond, ScriptedProvider, Step, chunk, stream_head, whole
from tests.fakes.waiting import eventually
from tests.fakes.wrong_answers import PAGE, TITLE

RETRY = {"max_attempts": 2}
BROKEN = [
    ({"finish_reason": "stop", "native_finish_reason": "network_error"}, "network"),
    ({"finish_reason": "Network-Error"}, "network"),
    ({"finish_reason": "ERROR"}, "server_error"),
    ({"finish_reason": "error_finish"}, "server_error"),
    ({"finish_reason": "timeout"}, "timeout"),
    ({"finish_reason": "stop", "error": {"code": 502, "message": "Upstream error"}}, "network"),
]


def chat_chunk(**choice: Any) -> bytes:
    return b"data: %b\n\n" % json.dumps({"choices": [{"index": 0, "delta": {}, **choice}]}).encode()


@pytest.mark.parametrize(("end", "kind"), BROKEN)
@pytest.mark.parametrize("stream", [False, True])
async def test_end_that_reports_a_failure_is_retried(end: dict[str, Any], kind: str, stream: bool) -> None:
    if stream:
        broken: list[Step] = [stream_head(), chunk(chat_chunk(**end) + b"data: [DONE]\n\n"), END]
        good: list[Step] = list(CHAT.good_stream)
    else:
        answer = {"choices": [{"message": {"role": "assistant", "content": ""}, **end}]}
        broken, good = [whole(200, json.dumps(answer).encode())], list(CHAT.ok)
    async with facing(broken, good, retry=RETRY) as (stand, _):
        reply = await CHAT.ask(stand.url, stream=stream)
        assert reply.body == (CHAT.stream_bytes if stream else CHAT.answer)
        (call,) = await stand.calls()
        assert [attempt["outcome"] for attempt in call["attempts"]] == [kind, "ok"]


@pytest.mark.parametrize(("end", "kind"), BROKEN)
async def test_failure_reported_after_text_is_followed_by_no_end(end: dict[str, Any], kind: str) -> None:
    has_token = asyncio.Event()
    last = chunk(chat_chunk(**end) + b"data: [DONE]\n\n")
    script: list[Step] = [stream_head(), chunk(CHAT.token), Pause(has_token), last, END]
    async with facing(script, stream={"recover": "off"}) as (stand, _), Connection(stand.url) as client:
        client.writer.write(CHAT.request(stream=True))
        await client.reader.readuntil(CHAT.token)
        has_token.set()
        rest = await client.reader.read()
        assert b"[DONE]" not in rest
        assert b"event: error" in rest
        (call,) = await stand.calls()
        assert call["outcome"] == kind


async def test_completed_response_that_has_failed_is_retried() -> None:
    failed = {"status": "failed", "error": {"code": "server_error", "message": "boom"}}
    data = json.dumps({"type": "response.completed", "response": failed}).encode()
    script: list[Step] = [stream_head(), chunk(b"event: response.completed\ndata: %b\n\n" % data), END]
    async with facing(script, RESPONSES.good_stream, retry=RETRY) as (stand, _):
        assert (await RESPONSES.ask(stand.url, stream=True)).body == RESPONSES.stream_bytes


SPEECH = Form("/v1/audio/speech", "gpt", b"")
TRANSCRIPT = Form("/v1/audio/transcriptions", "gpt", b"")
IMAGES = Form("/v1/images/generations", "gpt", b"")
MEDIA = [
    (SPEECH, {"type": "speech.audio.delta", "audio": "AA"}, {"type": "speech.audio.done"}),
    (TRANSCRIPT, {"type": "transcript.text.delta", "delta": "x"}, {"type": "transcript.text.done", "text": "x"}),
    (IMAGES, {"type": "image_generation.partial_image"}, {"type": "image_generation.completed"}),
]


@pytest.mark.parametrize(("form", "first", "last"), MEDIA, ids=["speech", "transcript", "images"])
async def test_media_stream_without_its_last_event_is_cut(form: Form, first: object, last: object) -> None:
    begun, ended = (b"data: %b\n\n" % json.dumps(event).encode() for event in (first, last))
    cut: list[Step] = [stream_head(), chunk(begun), END]
    good: list[Step] = [stream_head(), chunk(begun), chunk(ended), END]
    async with facing(cut, good) as (stand, _):
        reply = await form.ask(stand.url, stream=True)
        assert b"event: error" in reply.body
        assert "upstreams.one.stream_end: lenient" in str((await stand.calls())[0]["reason"])
        reply = await form.ask(stand.url, stream=True)
        assert (reply.body, reply.is_whole) == (begun + ended, True)


async def test_media_stream_may_end_anywhere_where_its_upstream_is_lenient() -> None:
    begun = b'data: {"type":"speech.audio.delta","audio":"AA"}\n\n'
    lenient = {"dialect": "openai", "stream_end": "lenient"}
    async with ScriptedProvider([stream_head(), chunk(begun), END]) as provider:
        upstreams = {"one": {**lenient, "base_url": f"{provider.url}/v1"}}
        async with standing(config_of(provider.url, upstreams=upstreams)) as stand:
            reply = await SPEECH.ask(stand.url, stream=True)
            assert (reply.body, reply.is_whole) == (begun, True)


# large answers

ITEM = b'{"object":"embedding","embedding":[%b]}' % b",".join([b"0.125"] * 1000)
LARGE = b'{"object":"list","data":[%b],"usage":{"prompt_tokens":3}}' % b",".join([ITEM] * 60)
AT_ITEM = LARGE[: LARGE.rindex(b"]}", 0, len(LARGE) - 50_000) + 2]
"""Cut at the end of an item."""
SMALL_BUFFER = {"max_buffered_answer": "128KiB"}
PACKED = {"content-encoding": "gzip"}


def stored(body: bytes) -> bytes:
    """Wraps the body in gzip without compressing it, so that it is as large on the wire."""
    return gzip.compress(body, 0)


def chunked(body: bytes, headers: dict[str, str]) -> list[Step]:
    pieces = [body[at : at + 30_000] for at in range(0, len(body), 30_000)]
    return [stream_head(200, {"content-type": "application/json", **headers}), *map(chunk, pieces), END]


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (AT_ITEM, {}),
        (AT_ITEM[:-3], {}),
        (LARGE + PAGE, {}),
        (stored(AT_ITEM), PACKED),
        (stored(LARGE)[:-5000], PACKED),
        (stored(LARGE)[:-4], PACKED),
        (gzip.compress(LARGE)[:-9], PACKED),
        (gzip.compress(AT_ITEM), PACKED),
    ],
    ids=["at an item", "in an item", "HTML behind", "packed at an item", "packed", "in its sum", "small", "small cut"],
)
async def test_large_answer_that_is_cut_never_ends_cleanly(body: bytes, headers: dict[str, str]) -> None:
    async with facing(chunked(body, headers), defaults=SMALL_BUFFER) as (stand, _):
        reply = await EMBEDDINGS.ask(stand.url)
        assert (reply.status, reply.is_whole) == (200, False)
        (call,) = await stand.calls()
        assert call["outcome"] == "truncated"
        await eventually(lambda: stand.app.upstreams.memory.taken_bytes == 0)


@pytest.mark.parametrize("body", [AT_ITEM, LARGE + PAGE, gzip.compress(AT_ITEM), stored(LARGE)[:-4]])
async def test_large_answer_that_is_cut_and_has_a_length_is_never_whole(body: bytes) -> None:
    headers = PACKED if body.startswith(b"\x1f") else {}
    async with facing([whole(200, body, headers)], defaults=SMALL_BUFFER) as (stand, _):
        reply = await EMBEDDINGS.ask(stand.url)
        assert (reply.status, reply.is_whole) == (200, False)
        (call,) = await stand.calls()
        assert call["outcome"] == "truncated"


@pytest.mark.parametrize("name", [b"detail", b"error"])
async def test_large_answer_of_another_shape_never_ends_cleanly(name: bytes) -> None:
    body = b'{"%b":"%b"}' % (name, b"x" * 200_000)
    async with facing([whole(200, body)], defaults=SMALL_BUFFER) as (stand, _):
        reply = await EMBEDDINGS.ask(stand.url)
        assert (reply.status, reply.is_whole) == (200, False)
        (call,) = await stand.calls()
        assert (call["outcome"], "has no data" in call["reason"]) == ("malformed", True)
        assert stand.breaker(EMBEDDINGS.deployment).failures == 0


async def test_large_answer_whose_connection_ends_at_an_item_never_ends_cleanly() -> None:
    head = Respond(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n" + AT_ITEM)
    async with facing([head, Close()], defaults=SMALL_BUFFER) as (stand, _):
        reply = await EMBEDDINGS.ask(stand.url)
        assert (reply.status, reply.is_whole) == (200, False)


@pytest.mark.parametrize(
    ("body", "headers"),
    [(LARGE, {}), (b"\xef\xbb\xbf" + LARGE + b" \r\n", {}), (stored(LARGE), PACKED), (gzip.compress(LARGE), PACKED)],
    ids=["plain", "marked", "stored", "packed"],
)
async def test_large_answer_passes_unmodified(body: bytes, headers: dict[str, str]) -> None:
    async with facing(chunked(body, headers), defaults=SMALL_BUFFER) as (stand, _):
        reply = await EMBEDDINGS.ask(stand.url)
        assert (reply.status, reply.body, reply.is_whole) == (200, body, True)


@pytest.mark.parametrize(
    ("body", "headers", "kind"),
    [
        (PAGE + b" " * 200_000, {}, "misrouted"),
        (stored(PAGE + b" " * 200_000), PACKED, "misrouted"),
        (b"x" * 200_000, {}, "malformed"),
        (b"[%b1]" % (b"1," * 200_000), {}, "malformed"),
        (LARGE, {"content-encoding": "br"}, "malformed"),
    ],
)
async def test_large_answer_that_begins_like_none_is_a_failed_attempt(
    body: bytes, headers: dict[str, str], kind: str
) -> None:
    async with facing(chunked(body, headers), EMBEDDINGS.ok, retry=RETRY, defaults=SMALL_BUFFER) as (stand, _):
        reply = await EMBEDDINGS.ask(stand.url)
        # An HTML page means a wrong base_url: only another deployment would help.
        assert reply.status == 502 if kind == "misrouted" else reply.body == EMBEDDINGS.answer
        (call,) = await stand.calls()
        assert call["attempts"][0]["outcome"] == kind
        await eventually(lambda: stand.app.upstreams.memory.taken_bytes == 0)


# unknown endpoints


@pytest.mark.parametrize("content_type", ["text/html; charset=utf-8", "application/json", "text/plain"])
@pytest.mark.parametrize("path", ["/v1/threads", "/v1/ocr"])
async def test_page_is_no_answer_to_a_client_that_accepts_json(path: str, content_type: str) -> None:
    page = whole(200, PAGE, {"content-type": content_type})
    async with facing([page], [page]) as (stand, _):
        reply = await ask(stand.url, path, b'{"model":"gpt"}', {"accept": "application/json"})
        assert reply.status == 502
        (call,) = await stand.calls()
        assert (call["outcome"], TITLE in call["reason"]) == ("misrouted", True)
        assert (await ask(stand.url, path, b'{"model":"gpt"}', {"accept": "text/html, */*"})).body == PAGE


async def test_page_that_is_a_callers_file_passes() -> None:
    async with facing([whole(200, PAGE, {"content-type": "text/html"})]) as (stand, _):
        reply = await ask(stand.url, "/v1/files/file-1/content", b"", {"accept": "application/json"}, method="GET")
        assert (reply.status, reply.body) == (200, PAGE)


@pytest.mark.parametrize("path", ["/v1/files", "/v1/batches"])
async def test_redirect_creates_nothing(path: str) -> None:
    redirect = whole(307, b"", {"location": "http://127.0.0.1:9/login"})
    async with facing([redirect]) as (stand, _):
        reply = await ask(stand.url, path, b'{"purpose":"batch"}')
        assert (reply.status, "location" in reply.headers) == (502, False)


@pytest.mark.parametrize("value", ["true", "True", "1", "on"])
async def test_form_may_request_a_stream_in_many_spellings(value: str) -> None:
    form = b'--x\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
    body = form % (b"model", b"gpt") + form % (b"stream", value.encode()) + b"--x--\r\n"
    done = b'data: {"type":"transcript.text.done","text":"x"}\n\n'
    async with facing([stream_head(), chunk(done), END]) as (stand, _):
        reply = await ask(stand.url, TRANSCRIPT.path, body, {"content-type": "multipart/form-data; boundary=x"})
        assert (reply.status, reply.body) == (200, done)


@pytest.mark.parametrize("media", ["application/json", "audio/mpeg", "application/octet-stream"])
async def test_broken_answer_to_http_1_0_ends_in_an_error(media: str) -> None:
    """nginx speaks HTTP/1.0 to its backends by default: there the end of the connection is the end of an answer."""
    script: list[Step] = [stream_head(200, {"content-type": media}), chunk(b'{"a":"' + b"\x01" * 300_000), Close()]
    small = {"max_buffered_answer": "128KiB"}
    request = raw_request("/v1/files/a/content", method="GET").replace(b"HTTP/1.1", b"HTTP/1.0")
    async with facing(script, defaults=small) as (stand, _), Connection(stand.url) as client:
        client.writer.write(request)
        assert (await client.head()).status == 200
        with pytest.raises(ConnectionResetError):
            await client.reader.read()
