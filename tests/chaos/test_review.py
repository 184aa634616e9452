"""One test for each bug found by using the gateway without knowing its code."""

from __future__ import annotations

import asyncio
import json

import pytest

from llm_guard.proxy.request_body.model_field import BadRequest, rename
from tests.chaos.forms import CHAT
from tests.chaos.stand import facing
from tests.chaos.wire import Connection, ask
from tests.fakes.client import raw_request
from tests.fakes.provider import END, Pause, Reset, Respond, chunk, stream_head, whole


def event(**choice: object) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, **choice}]}).encode() + b"\n\n"


def posted(body: bytes) -> bytes:
    return raw_request("/v1/chat/completions", body)


async def test_slow_upload_does_not_shorten_the_deadline_of_other_calls() -> None:
    """`total` covers attempts, waits and the stream: a client that uploads slowly must not open a breaker."""
    body = b'{"model": "gpt", "messages": []}'
    async with facing(CHAT.ok, timeout={"total": "300ms"}) as (stand, _):
        reader, writer = await asyncio.open_connection(*stand.url.removeprefix("http://").split(":"))
        request = posted(body)
        writer.write(request[:-5])
        await asyncio.sleep(0.5)
        writer.write(request[-5:])
        assert (await reader.readline()).split()[1] == b"200"
        writer.close()


async def test_server_that_ignores_n_ends_its_stream_well() -> None:
    events = event(delta={"content": "a"}) + event(delta={}, finish_reason="stop") + b"data: [DONE]\n\n"
    async with facing([stream_head(), chunk(events[:60]), Pause(0.02), chunk(events[60:]), END]) as (stand, _):
        reply = await CHAT.ask(stand.url, stream=True, n=2)
        assert (reply.is_whole, reply.body) == (True, events)
        assert stand.breaker(CHAT.deployment).failures == 0


async def test_refused_head_carries_no_body() -> None:
    async with facing(CHAT.ok) as (stand, _):
        reader, writer = await asyncio.open_connection(*stand.url.removeprefix("http://").split(":"))
        writer.write(b"HEAD /nope HTTP/1.1\r\nHost: g\r\n\r\nGET /healthz HTTP/1.1\r\nHost: g\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_broken_chunk_in_a_later_packet_is_refused_at_once() -> None:
    async with facing(CHAT.ok) as (stand, _):
        reader, writer = await asyncio.open_connection(*stand.url.removeprefix("http://").split(":"))
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
        )
        await asyncio.sleep(0.05)
        writer.write(b"ZZZ\r\n")
        async with asyncio.timeout(2):
            assert (await reader.readline()).split()[1] == b"400"
        writer.close()


async def test_key_with_escapes_on_a_renamed_route_is_a_clear_400() -> None:
    models = {"alias": {"deployments": [{"upstream": "one", "model": "real"}]}}
    async with facing(CHAT.ok, models=models) as (stand, provider):
        reply = await ask(stand.url, "/v1/chat/completions", (b'{"mod\\u0065l": "alias", "messages": []}'))
        assert (reply.status, CHAT.error_of(reply)["code"]) == (400, "invalid_model")
        assert not provider.requests


def test_millions_of_model_fields_are_refused_quickly() -> None:
    body = b'{"x": [' + b'{"model":"x"},' * 200_000 + b'1], "model": "a"}'
    with pytest.raises(BadRequest):
        rename(body, "application/json", "", "b")


async def test_answer_with_a_control_character_in_its_head_is_none() -> None:
    async with facing([Respond(whole(200, b"{}", {"X-Odd": "a\x7fb"}).data)]) as (stand, _):
        reply = await CHAT.ask(stand.url)
        assert (reply.status, CHAT.error_of(reply)["code"]) == (502, "upstream_malformed")


async def test_event_stream_is_one_however_its_type_is_written() -> None:
    first = event(delta={"content": "a"})
    head = b"HTTP/1.1 200 OK\r\nContent-Type: Text/Event-Stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with facing([Respond(head), chunk(first), Pause(0.05), Reset()]) as (stand, _):
        reply = await CHAT.ask(stand.url, stream=True)
        assert b'"error"' in reply.body
        assert not reply.is_whole


async def test_unasked_change_of_protocols_is_not_an_answer() -> None:
    switch = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    async with facing([Respond(switch)]) as (stand, _):
        assert (await CHAT.ask(stand.url)).status == 502


async def test_error_is_attributed_to_the_deployment_that_sent_it() -> None:
    models = {
        "gpt": {"deployments": [{"upstream": "one"}, {"upstream": "dead"}]},
    }
    dead = {"dead": {"dialect": "openai", "base_url": "http://127.0.0.1:1/v1"}}
    async with facing([whole(503, b'{"error": {"message": "m"}}')], models=models, upstreams=dead) as (stand, _):
        reply = await CHAT.ask(stand.url)
        assert (reply.status, reply.headers["x-llm-guard-deployment"]) == (503, "one/gpt")


async def test_connection_can_be_used_again_after_a_refusal() -> None:
    async with facing(CHAT.ok) as (stand, _), Connection(stand.url) as connection:
        assert (await connection.ask(posted(b"{"))).status == 400
        assert (await connection.ask(CHAT.request())).status == 200
