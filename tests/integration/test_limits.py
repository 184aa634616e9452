"""Each timeout on its own except `stall` (see `test_stream_stalls`): the client's response, the metrics, and how
soon the upstream connection is closed."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
import trustme

from tests.chaos.forms import BOTH, CHAT, MESSAGES, STREAMS, UNARY, Form, name_of
from tests.chaos.process import serving
from tests.chaos.sinks import TlsProvider, never_accepting, never_reading
from tests.chaos.stand import ANSWER_S, CLOSE_S, Stand, config_of, config_text, connections_to, facing, standing, total
from tests.chaos.wire import Reply, fetch
from tests.fakes.provider import Hold, Pause, Respond, ScriptedProvider, chunk, stream_head, whole
from tests.fakes.waiting import eventually

LIMIT_S = 0.2
LIMIT = "200ms"
EARLY_S = 0.02
"""Tolerance in seconds: the gateway's timer starts a moment before the provider sees the connection, and a loop's
clock is coarse."""

both = pytest.mark.parametrize(("form", "is_stream"), BOTH, ids=name_of)
unary = pytest.mark.parametrize("form", UNARY, ids=name_of)
streams = pytest.mark.parametrize("form", STREAMS, ids=name_of)


def drip(step: Respond, times: int = 30, every_s: float = 0.05) -> list[Respond | Pause]:
    return [each for _ in range(times) for each in (step, Pause(every_s))]


async def check_answer(stand: Stand, form: Form, reply: Reply, limit: str) -> None:
    """Expects a 504 in the form's dialect, soon after the limit, counted under the limit's name."""
    assert reply.status == 504
    assert reply.is_whole
    error = form.error_of(reply)
    assert error["type"] == "timeout_error"
    assert form.deployment in error["message"]
    assert reply.headers["x-should-retry"] == "false"
    assert LIMIT_S - EARLY_S <= reply.took_s <= LIMIT_S + ANSWER_S + stand.lag_s
    await check_counted(stand, form, limit)


async def check_event(stand: Stand, form: Form, reply: Reply, limit: str) -> None:
    """Expects an error event after complete events, no clean end, soon after the limit, counted under the limit's
    name."""
    assert reply.status == 200
    assert not reply.is_whole
    *passed, last = reply.events
    assert b"\n\n".join(passed).startswith(b"".join(form.preamble).rstrip(b"\n"))
    assert form.error_in(last)["type"] == "timeout_error"
    await check_counted(stand, form, limit)


async def check_counted(stand: Stand, form: Form, limit: str) -> None:
    name = "llm_guard_timeouts_total"
    assert await stand.metric(name) == 1
    assert await stand.metric(name, deployment=form.deployment, limit=limit) == 1
    outcome = "connect_timeout" if limit == "connect" else "timeout"
    assert await stand.metric("llm_guard_calls_total", model=form.model, outcome=outcome) == 1
    assert stand.breaker(form.deployment).failures == 1


async def check_left(stand: Stand, provider: ScriptedProvider, limit_s: float = LIMIT_S) -> None:
    """Checks that the gateway closed the provider's last connection at the limit."""
    connection = provider.connections[-1]
    assert await connection.closed_within(1)
    assert connection.is_closed_by_peer
    assert connection.closed_at is not None
    stayed_s = connection.closed_at - connection.opened_at
    # A late loop records the opening of a connection late, too.
    assert limit_s - EARLY_S - stand.lag_s <= stayed_s <= limit_s + CLOSE_S + stand.lag_s


# connect


@both
async def test_connection_that_is_never_accepted_ends_at_the_connect_limit(form: Form, is_stream: bool) -> None:
    with never_accepting() as url:
        async with standing(config_of(url, timeout={"connect": LIMIT})) as stand:
            reply = await form.ask(stand.url, stream=is_stream)
            await check_answer(stand, form, reply, "connect")


async def test_tls_handshake_that_is_never_answered_ends_at_the_connect_limit() -> None:
    async with ScriptedProvider([Hold()]) as provider:
        url = provider.url.replace("http:", "https:")
        async with standing(config_of(url, timeout={"connect": LIMIT})) as stand:
            reply = await CHAT.ask(stand.url)
            await check_answer(stand, CHAT, reply, "connect")
            await check_left(stand, provider)


# first_token


@streams
async def test_stream_without_a_head_ends_at_the_first_token_limit(form: Form) -> None:
    async with facing([Hold()], timeout={"first_token": LIMIT}) as (stand, provider):
        reply = await form.ask(stand.url, stream=True)
        await check_answer(stand, form, reply, "first_token")
        await check_left(stand, provider)


@streams
async def test_stream_that_is_silent_after_its_head_ends_at_the_first_token_limit(form: Form) -> None:
    async with facing([stream_head(), Hold()], timeout={"first_token": LIMIT}) as (stand, provider):
        reply = await form.ask(stand.url, stream=True)
        await check_answer(stand, form, reply, "first_token")
        await check_left(stand, provider)


@streams
@pytest.mark.parametrize("ping", [b": keep-alive\n\n", b'event: ping\ndata: {"type": "ping"}\n\n'])
async def test_preamble_and_pings_are_no_token(form: Form, ping: bytes) -> None:
    head = [stream_head(), *map(chunk, form.preamble)]
    async with facing([*head, *drip(chunk(ping)), Hold()], timeout={"first_token": LIMIT}) as (stand, provider):
        reply = await form.ask(stand.url, stream=True)
        await check_answer(stand, form, reply, "first_token")
        await check_left(stand, provider)


async def test_first_token_limit_leaves_a_unary_call_alone() -> None:
    async with facing([Pause(0.3), *CHAT.ok], timeout={"first_token": LIMIT, "idle": LIMIT}) as (stand, _):
        assert (await CHAT.ask(stand.url)).body == CHAT.answer


# idle


@streams
async def test_stream_that_falls_silent_ends_at_the_idle_limit(form: Form) -> None:
    events = [*map(chunk, form.preamble), chunk(form.token)]
    async with facing([stream_head(), *events, Hold()], timeout={"idle": LIMIT}) as (stand, provider):
        reply = await form.ask(stand.url, stream=True)
        assert LIMIT_S - EARLY_S <= reply.took_s <= LIMIT_S + ANSWER_S + stand.lag_s
        await check_event(stand, form, reply, "idle")
        await check_left(stand, provider)


@streams
@pytest.mark.parametrize("ping", [b": keep-alive\n\n", b'event: ping\ndata: {"type": "ping"}\n\n'])
async def test_comments_and_pings_keep_a_stream_alive(form: Form, ping: bytes) -> None:
    script = [*form.good_stream[:-2], *drip(chunk(ping), 10), *form.good_stream[-2:]]
    async with facing(script, timeout={"idle": LIMIT}) as (stand, _):
        reply = await form.ask(stand.url, stream=True)
        assert reply.is_whole
        assert reply.body.count(ping) >= 10
        assert reply.took_s > 2 * LIMIT_S
        assert await stand.metric("llm_guard_timeouts_total") == 0


@streams
async def test_half_an_event_now_and_then_keeps_a_stream_alive(form: Form) -> None:
    letters = [form.token[i : i + 1] for i in range(6)]
    script = [
        *form.good_stream[:-2], *(each for byte in letters for each in (chunk(byte), Pause(0.08))),
        chunk(form.token[6:]), *form.good_stream[-2:],
    ]  # fmt: skip
    async with facing(script, timeout={"idle": LIMIT}) as (stand, _):
        reply = await form.ask(stand.url, stream=True)
        assert reply.is_whole
        assert reply.body.count(form.token) == 2


# attempt


@unary
async def test_unary_call_without_a_head_ends_at_the_attempt_limit(form: Form) -> None:
    async with facing([Hold()], timeout={"attempt": LIMIT}) as (stand, provider):
        reply = await form.ask(stand.url)
        await check_answer(stand, form, reply, "attempt")
        await check_left(stand, provider)


@unary
async def test_unary_answer_that_drips_ends_at_the_attempt_limit(form: Form) -> None:
    head = whole(200, b"", {"content-length": "1000"})
    async with facing([head, *drip(Respond(b" "), every_s=0.02), Hold()], timeout={"attempt": LIMIT}) as (
        stand,
        provider,
    ):
        reply = await form.ask(stand.url)
        await check_answer(stand, form, reply, "attempt")
        await check_left(stand, provider)


async def test_unary_answer_too_large_to_be_read_whole_that_stalls_ends_at_the_attempt_limit() -> None:
    head = whole(200, b" " * (2 << 20), {"content-length": str(3 << 20)})
    small = {"max_buffered_answer": "1MiB"}
    async with facing([head, Hold()], timeout={"attempt": LIMIT}, defaults=small) as (stand, provider):
        reply = await CHAT.ask(stand.url)
        assert (reply.status, reply.is_whole) == (200, False)
        await check_counted(stand, CHAT, "attempt")
        await check_left(stand, provider)


@streams
async def test_attempt_limit_leaves_a_stream_alone(form: Form) -> None:
    script = [*form.good_stream[:-2], *drip(chunk(form.token), 6), *form.good_stream[-2:]]
    async with facing(script, timeout={"attempt": LIMIT}) as (stand, _):
        reply = await form.ask(stand.url, stream=True)
        assert reply.is_whole
        assert reply.took_s > LIMIT_S


# total


@both
async def test_silence_ends_at_the_total_limit(form: Form, is_stream: bool) -> None:
    async with facing([Hold()], timeout={"total": LIMIT}) as (stand, provider):
        reply = await form.ask(stand.url, stream=is_stream)
        await check_answer(stand, form, reply, "total")
        assert reply.headers["x-llm-guard-refused-by"] == "deadline"
        await check_left(stand, provider)


@streams
async def test_stream_without_end_ends_at_the_total_limit(form: Form) -> None:
    script = [*form.good_stream[:-2], *drip(chunk(form.token), every_s=0.02), Hold()]
    async with facing(script, timeout={"total": LIMIT}) as (stand, provider):
        reply = await form.ask(stand.url, stream=True)
        assert LIMIT_S - EARLY_S <= reply.took_s <= LIMIT_S + ANSWER_S + stand.lag_s
        await check_event(stand, form, reply, "total")
        await check_left(stand, provider)


async def test_total_limit_holds_over_attempts_and_their_waits() -> None:
    retry = {"max_attempts": 100, "base_delay": "30ms", "multiplier": 1, "immediate_first": False}
    limits = {"attempt": "60ms", "total": "300ms"}
    async with facing([Hold()], timeout=limits, retry=retry) as (stand, provider):
        reply = await CHAT.ask(stand.url)
        assert reply.status == 504
        assert 0.15 <= reply.took_s <= 0.3 + ANSWER_S + stand.lag_s
        attempts = int(reply.headers["x-llm-guard-attempts"])
        assert 2 <= attempts <= 4
        assert len(provider.connections) == attempts
        assert await provider.closed_within(1)


async def test_no_wait_is_begun_that_would_end_after_the_total_limit() -> None:
    retry = {"max_attempts": 3, "base_delay": "1s", "immediate_first": False}
    async with facing([whole(503, b'{"error":{"message":"no"}}')], timeout={"total": "500ms"}, retry=retry) as (
        stand,
        provider,
    ):
        reply = await CHAT.ask(stand.url)
        assert (reply.status, reply.body) == (503, b'{"error":{"message":"no"}}')
        assert reply.took_s < 0.25 + stand.lag_s
        assert len(provider.requests) == 1


@streams
async def test_total_limit_holds_over_attempt_wait_and_stream_together(form: Form) -> None:
    retry = {"max_attempts": 2, "base_delay": "200ms", "jitter": 0, "immediate_first": False}
    endless = [*form.good_stream[:-2], *drip(chunk(form.token), every_s=0.02), Hold()]
    async with facing([Pause(0.15), whole(503)], endless, timeout={"total": "450ms"}, retry=retry) as (stand, _):
        reply = await form.ask(stand.url, stream=True)
        assert 0.45 - EARLY_S <= reply.took_s <= 0.45 + ANSWER_S + stand.lag_s
        assert reply.headers["x-llm-guard-attempts"] == "2"
        assert form.error_in(reply.events[-1])["type"] == "timeout_error"
        assert not reply.is_whole
        assert await stand.metric("llm_guard_timeouts_total", limit="total") == 1


# a stuck upload


@pytest.mark.parametrize(("limit", "is_stream"), [("attempt", False), ("first_token", True), ("total", False)])
async def test_upload_to_a_provider_that_does_not_read_is_dropped_at_the_limit(limit: str, is_stream: bool) -> None:
    async with never_reading() as provider, standing(config_of(provider.url, timeout={limit: LIMIT})) as stand:
        began_at = time.monotonic()
        reply = await CHAT.ask(stand.url, stream=is_stream, prompt="x" * 5_000_000)
        assert len(provider.sockets) == 1
        await eventually(lambda: connections_to(provider.url) == 0)
        ended_s = time.monotonic() - began_at
        assert reply.status == 504
        await check_counted(stand, CHAT, limit)
        # The five megabytes are parsed and copied in this loop before the limit begins.
        assert ended_s <= LIMIT_S + CLOSE_S + stand.lag_s + 0.1
        async with asyncio.timeout(5):
            assert await provider.read_rest() < 5_000_000


# TLS


@pytest.mark.parametrize(
    ("limit", "is_stream", "script"),
    [
        ("attempt", False, [Hold()]),
        ("first_token", True, [stream_head(), Hold()]),
        ("idle", True, [*MESSAGES.good_stream[:-2], Hold()]),
    ],
    ids=["attempt", "first_token", "idle"],
)
async def test_provider_over_tls_is_disconnected_at_the_limit(
    tmp_path: Path, limit: str, is_stream: bool, script: list[Respond | Hold]
) -> None:
    authority, trusted = trustme.CA(), tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(trusted)
    provider = TlsProvider(MESSAGES.ok, script)
    authority.issue_cert("127.0.0.1").configure_cert(provider.context)
    async with provider:
        config = config_text(provider.url, timeout={limit: LIMIT})
        async with serving(tmp_path / "config.yaml", config, env={"SSL_CERT_FILE": str(trusted)}) as served:
            assert (await MESSAGES.ask(served.url)).body == MESSAGES.answer
            asked_at = time.monotonic()
            reply = await MESSAGES.ask(served.url, stream=is_stream)
            assert (reply.status, reply.is_whole) == ((200, False) if limit == "idle" else (504, True))
            assert await provider.closed_within(1)
            closed_at = provider.connections[-1].closed_at
            assert closed_at is not None
            # Two processes share the machine; the time that one waits for the other cannot be measured.
            assert closed_at - asked_at <= LIMIT_S + CLOSE_S + 0.1
            counted = (await fetch(f"{served.url}/metrics")).text
            assert total(counted, "llm_guard_timeouts_total", deployment="two/claude", limit=limit) == 1
