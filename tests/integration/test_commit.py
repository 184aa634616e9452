"""After commit nothing is retried: what a client receives when a response breaks midway, and the memory that a client
costs that does not read."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from tests.chaos.forms import CHAT, RESPONSES, STREAMS, Form, name_of
from tests.chaos.sinks import Fountain, half_closing, pouring
from tests.chaos.stand import CLOSE_S, Stand, config_of, facing, standing
from tests.chaos.wire import Connection, Reply
from tests.fakes.provider import END, Close, Hold, Pause, Reset, Respond, Step, chunk, stream_head, whole
from tests.fakes.waiting import eventually

RETRY = {"max_attempts": 3}
streams = pytest.mark.parametrize("form", STREAMS, ids=name_of)


async def check_broken_off(stand: Stand, form: Form, reply: Reply, kind: str) -> None:
    """Expects complete events, then one error event of the gateway's, then an unclean end; one failure of the
    deployment."""
    assert reply.status == 200
    assert not reply.is_whole
    error = form.error_in(reply.events[-1])
    assert form.deployment in error["message"]
    assert reply.body.count(b"event: error") == 1
    (call,) = await stand.calls()
    assert call["outcome"] == kind
    assert len(call["attempts"]) == 1
    assert await stand.metric("llm_guard_attempts_total", deployment=form.deployment, outcome=kind) == 1
    assert stand.breaker(form.deployment).failures == 1


def begun(form: Form) -> bytes:
    return b"".join(form.preamble) + form.token


@streams
@pytest.mark.parametrize(
    "cut",
    [
        pytest.param((Reset(),), id="reset"),
        pytest.param((Close(),), id="closed"),
        pytest.param((END,), id="ended without its terminal event"),
        pytest.param((Respond(b"5\r\nhal"), Close()), id="cut in a chunk"),
        pytest.param((chunk(b"data: [DONE]\n\n"), END), id="done without a finish"),
    ],
)
async def test_stream_that_breaks_ends_in_one_error_event(form: Form, cut: tuple[Step, ...]) -> None:
    # A reset may overtake data sent just before it.
    script: list[Step] = [*form.good_stream[:-2], Pause(0.05), *cut]
    async with facing(script, retry=RETRY) as (stand, provider):
        reply = await form.ask(stand.url, stream=True)
        assert reply.body.startswith(begun(form))
        await check_broken_off(stand, form, reply, "truncated")
        assert len(provider.requests) == 1


@streams
async def test_stream_cut_by_a_half_closing_provider_ends_in_one_error_event(form: Form) -> None:
    sent = b"".join(step.data for step in form.good_stream[:-2])
    async with half_closing(sent) as url, standing(config_of(url, retry=RETRY)) as stand:
        reply = await form.ask(stand.url, stream=True)
        await check_broken_off(stand, form, reply, "truncated")


@streams
async def test_stream_cut_anywhere_in_an_event_still_ends_in_a_readable_error_event(form: Form) -> None:
    for size in range(1, len(form.token), 7):
        script: list[Step] = [stream_head(), chunk(form.token), chunk(form.token[:size]), Close()]
        async with facing(script) as (stand, _):
            reply = await form.ask(stand.url, stream=True)
            assert reply.body.startswith(form.token + b"event: error\n")
            await check_broken_off(stand, form, reply, "truncated")


async def test_stream_cut_inside_a_character_still_ends_in_a_readable_error_event() -> None:
    event = 'data: {"choices":[{"index":0,"delta":{"content":"\N{GRINNING FACE}"},"finish_reason":null}]}\n\n'.encode()
    inside = event.index(b"\xf0") + 2
    async with facing([stream_head(), chunk(event), chunk(event[:inside]), Close()]) as (stand, _):
        reply = await CHAT.ask(stand.url, stream=True)
        assert reply.text.startswith(event.decode())
        await check_broken_off(stand, CHAT, reply, "truncated")


@streams
async def test_characters_and_events_may_be_split_between_chunks(form: Form) -> None:
    sent = form.stream_bytes
    script = [stream_head(), *(chunk(sent[i : i + 1]) for i in range(len(sent))), END]
    async with facing(script) as (stand, _):
        reply = await form.ask(stand.url, stream=True)
        assert reply.is_whole
        assert reply.body == sent


@streams
async def test_error_event_of_the_provider_is_passed_on_once(form: Form) -> None:
    script: list[Step] = [stream_head(), chunk(form.token), Pause(0.05), chunk(form.error), END]
    async with facing(script, retry=RETRY) as (stand, provider):
        reply = await form.ask(stand.url, stream=True)
        assert reply.body.startswith(form.token + form.error)
        # SDKs yield the flat error of a Responses stream instead of raising, so a second error event follows.
        assert reply.body.count(b"error") > 3 if form is RESPONSES else reply.body == form.token + form.error
        assert reply.is_whole == (form is not RESPONSES)
        (call,) = await stand.calls()
        assert call["outcome"] in ("overloaded", "server_error")
        assert len(provider.requests) == 1
        assert stand.breaker(form.deployment).failures == 1


@streams
async def test_error_event_that_arrives_with_the_first_token_is_before_commit(form: Form) -> None:
    both = chunk(form.token + form.error)
    async with facing([stream_head(), both, END], form.good_stream, retry=RETRY) as (stand, _):
        reply = await form.ask(stand.url, stream=True)
        assert reply.body == form.stream_bytes
        assert reply.headers["x-llm-guard-attempts"] == "2"


@streams
async def test_stream_whose_chunks_are_malformed_breaks_off_at_once(form: Form) -> None:
    script: list[Step] = [*form.good_stream[:-2], Pause(0.05), Respond(b"zz\r\n"), Hold()]
    async with facing(script, timeout={"idle": "500ms"}) as (stand, _):
        reply = await form.ask(stand.url, stream=True)
        await check_broken_off(stand, form, reply, "truncated")


@streams
async def test_reset_after_the_terminal_event_does_no_harm(form: Form) -> None:
    script: list[Step] = [*form.good_stream[:-1], Pause(0.05), Reset()]
    async with facing(script) as (stand, _):
        reply = await form.ask(stand.url, stream=True)
        assert reply.body == form.stream_bytes
        (call,) = await stand.calls()
        assert call["outcome"] == "ok"
        assert stand.breaker(form.deployment).failures == 0


@streams
async def test_malformed_event_after_the_first_token_is_the_clients_to_judge(form: Form) -> None:
    garbage = b"data: {not json}\n\n"
    script = [stream_head(), chunk(form.token), chunk(garbage), chunk(form.end), END]
    async with facing(script) as (stand, _):
        reply = await form.ask(stand.url, stream=True)
        assert reply.is_whole
        assert reply.body == form.token + garbage + form.end


# unary answers


BUFFERED: dict[str, object] = {"max_buffered_answer": "1MiB"}


def large(size: int) -> bytes:
    return json.dumps({"choices": [{"message": {"content": "x" * size}}]}).encode()


@pytest.mark.parametrize("odd", [b'"object": "caf\xe9"', b'"object": 7', b'"a": "\xff"', b'"usage": 1e400'])
async def test_odd_parts_of_a_unary_answer_are_the_clients_to_judge(odd: bytes) -> None:
    body = b"{%b, %b" % (odd, CHAT.answer[1:])
    async with facing([whole(200, body)]) as (stand, _):
        reply = await CHAT.ask(stand.url)
        assert (reply.status, reply.body) == (200, body)


async def test_error_under_200_is_one_in_any_encoding() -> None:
    async with facing([whole(200, b'{"error": {"message": "caf\xe9"}}')]) as (stand, _):
        assert (await CHAT.ask(stand.url)).status != 200
        (call,) = await stand.calls()
        assert call["outcome"] not in ("ok", "internal_error")


@pytest.mark.parametrize("status", [400, 429, 503])
async def test_failure_with_undecodable_text_is_classified_by_its_status(status: int) -> None:
    body = b'{"error": {"message": "caf\xe9", "type": "\xff", "code": "\xff"}}'
    async with facing([whole(status, body)]) as (stand, _):
        reply = await CHAT.ask(stand.url)
        assert reply.status == status
        (call,) = await stand.calls()
        assert call["outcome"] != "internal_error"


async def test_large_unary_answer_arrives_whole() -> None:
    body = large(3 << 20)
    for bound in ("16MiB", "1MiB"):
        async with facing([whole(200, body)], defaults={"max_buffered_answer": bound}) as (stand, _):
            reply = await CHAT.ask(stand.url)
            assert reply.is_whole
            assert reply.body == body


CUTS = [
    pytest.param([whole(200, large(2 << 20), {"content-length": str(3 << 20)}), Pause(0.1), Reset()], id="reset"),
    pytest.param([whole(200, large(2 << 20), {"content-length": str(3 << 20)}), Pause(0.1), Close()], id="closed"),
    pytest.param(
        [stream_head(200, {"content-type": "application/json"}), chunk(large(2 << 20)), Pause(0.1), Close()],
        id="in chunks",
    ),
]


@pytest.mark.parametrize("cut", [*CUTS, pytest.param([whole(200, large(2 << 20)[:-9])], id="in its JSON")])
async def test_large_unary_answer_that_was_cut_is_retried(cut: list[Step]) -> None:
    async with facing(cut, CHAT.ok, retry=RETRY) as (stand, provider):
        reply = await CHAT.ask(stand.url)
        assert (reply.status, reply.body) == (200, CHAT.answer)
        assert len(provider.requests) == 2
        assert stand.breaker(CHAT.deployment).failures == 1


@pytest.mark.parametrize("cut", CUTS)
async def test_unary_answer_too_large_to_be_read_whole_never_ends_cleanly_when_it_was_cut(cut: list[Step]) -> None:
    async with facing(cut, retry=RETRY, defaults=BUFFERED) as (stand, provider):
        reply = await CHAT.ask(stand.url)
        assert (reply.status, reply.is_whole) == (200, False)
        assert b"error" not in reply.body
        (call,) = await stand.calls()
        assert call["outcome"] == "truncated"
        assert len(provider.requests) == 1
        assert stand.breaker(CHAT.deployment).failures == 1


async def test_unary_answer_that_ends_with_its_connection_never_ends_cleanly_when_its_json_was_cut() -> None:
    head = Respond(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
    async with facing([head, Respond(large(2 << 20)[:-9]), Close()], defaults=BUFFERED) as (stand, _):
        reply = await CHAT.ask(stand.url)
        assert (reply.status, reply.is_whole) == (200, False)
        (call,) = await stand.calls()
        assert call["outcome"] == "truncated"


async def test_unary_answers_find_no_more_memory_than_there_is_for_all_of_them() -> None:
    body = large(3 << 20)
    async with facing([whole(200, body)], server={"max_buffered": "2MiB"}) as (stand, _):
        for _ in range(3):
            reply = await CHAT.ask(stand.url)
            assert (reply.is_whole, reply.body) == (True, body)
        await stand.idle()
        assert stand.app.upstreams.memory.taken_bytes == 0


# clients that do not read


EVENT = CHAT.token.replace("hé".encode(), b"x" * 60_000)
HELD_BYTES = 2 * ((1 << 16) + (1 << 18))
"""On each side of the gateway 64 KiB, plus what one read of the event loop can add."""
IN_FLIGHT_BYTES = 24 << 20
"""Upper bound of the kernel buffers of two loopback connections, with a margin."""


async def rest_of(fountain: Fountain) -> int:
    """Returns the bytes sent, once none were sent for 0.2 s."""
    poured = -1
    while poured != fountain.poured or poured == 0:
        poured = fountain.poured
        await asyncio.sleep(0.2)
    return poured


async def test_client_that_does_not_read_pauses_the_provider_and_costs_no_memory() -> None:
    async with pouring(EVENT) as fountain, standing(config_of(fountain.url)) as stand, Connection(stand.url) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.writer.write(CHAT.request(stream=True))
        poured = await rest_of(fountain)
        assert 0 < poured < IN_FLIGHT_BYTES
        assert stand.held_bytes <= HELD_BYTES
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(2 * poured // len(EVENT)):
            await client.reader.readuntil(b"\n\n")
        assert fountain.poured > poured


async def test_client_that_reads_a_byte_now_and_then_is_served_in_bounded_memory() -> None:
    async with pouring(EVENT) as fountain, standing(config_of(fountain.url)) as stand:
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(sock, ("127.0.0.1", int(stand.url.rsplit(":", 1)[1])))
            await loop.sock_sendall(sock, CHAT.request(stream=True))
            poured = await rest_of(fountain)
            for _ in range(20):
                assert len(await loop.sock_recv(sock, 1)) == 1
                await asyncio.sleep(0.01)
            assert fountain.poured - poured <= 2 * len(EVENT)
            assert stand.app.gateway.running == 1
        await stand.idle()
        await eventually(lambda: fountain.closed_at)


async def test_client_that_stops_reading_is_dropped_at_the_idle_limit() -> None:
    limits = {"idle": "300ms"}
    async with (
        pouring(EVENT) as fountain,
        standing(config_of(fountain.url, timeout=limits)) as stand,
        Connection(stand.url) as client,
    ):
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.writer.write(CHAT.request(stream=True))
        (call,) = await stand.calls()
        assert call["outcome"] == "client_cancelled"
        assert "stopped reading" in call["reason"]
        await eventually(lambda: fountain.closed_at)
        assert stand.breaker(CHAT.deployment).failures == 0


async def test_client_that_vanishes_from_a_flood_stops_it() -> None:
    async with pouring(EVENT) as fountain, standing(config_of(fountain.url)) as stand, Connection(stand.url) as client:
        client.writer.write(CHAT.request(stream=True))
        await client.reader.readuntil(b"\n\n")
        left_at = client.leave("reset")
        await eventually(lambda: fountain.closed_at)
        assert fountain.closed_at is not None
        assert fountain.closed_at - left_at <= CLOSE_S + stand.lag_s
        (call,) = await stand.calls()
        assert call["outcome"] == "client_cancelled"


async def test_provider_that_breaks_while_the_client_does_not_read_ends_the_call() -> None:
    flood = [chunk(EVENT) for _ in range(400)]
    async with (
        facing([stream_head(), *flood, Pause(0.1), Reset()], timeout={"idle": "300ms"}) as (stand, _),
        Connection(stand.url) as client,
    ):
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.writer.write(CHAT.request(stream=True))
        await stand.calls()
        assert stand.app.gateway.running == 0
