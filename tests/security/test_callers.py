"""Authentication of callers and the cost that one caller can cause: anyone not surely a known client is refused.

Keys are compared as a whole and by their digest. Requests that a caller repeats or abandons cost the providers little
more than one.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from contextlib import AsyncExitStack

import pytest

from llm_guard.resilience.retry.limits import BudgetSettings
from tests.chaos.forms import CHAT, MESSAGES
from tests.chaos.stand import connections_to, facing
from tests.chaos.wire import Connection, Reply
from tests.fakes.client import VanishingClient
from tests.fakes.provider import Hold, Step, chunk, stream_head, whole
from tests.fakes.waiting import eventually
from tests.security.grammar import head
from tests.security.keys import CLIENT_KEY, STRANGERS_KEY, keyed
from tests.security.stand import BODY, HOST, Front

KEY = CLIENT_KEY.encode()
BEARER = b"Authorization: Bearer "


async def ask_with(front: Front, *fields: bytes, path: str = CHAT.path, body: bytes = BODY) -> Reply:
    call = head(b"POST %b HTTP/1.1" % path.encode(), HOST, b"Content-Length: %d" % len(body), *fields) + body
    async with Connection(front.url) as connection:
        return await connection.ask(call)


async def check_denied(front: Front, *fields: bytes) -> None:
    """Expects a 401, no byte sent to a provider, and no hint at what was wrong with the key."""
    reply = await ask_with(front, *fields)
    assert (reply.status, CHAT.error_of(reply)["code"]) == (401, "invalid_api_key")
    assert reply.headers["x-llm-guard-refused-by"] == "auth"
    assert reply.headers["x-should-retry"] == "false"
    assert not front.provider.connections


@pytest.mark.parametrize(
    "field",
    [
        BEARER + KEY, b"authorization: bearer " + KEY, b"AUTHORIZATION: BEARER   " + KEY, b"X-Api-Key: " + KEY,
        b"api-key: " + KEY, BEARER + KEY + b" ",
    ],
)  # fmt: skip
async def test_right_key_is_right_in_every_form(field: bytes) -> None:
    """C63: the scheme is case-insensitive (RFC 9110, section 11.1)."""
    async with keyed(is_open=False) as front:
        assert (await ask_with(front, field)).status == 200


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param((), id="C63 no key"),
        pytest.param((b"Authorization:",), id="C63 nothing"),
        pytest.param((b"Authorization: Bearer",), id="C63 the scheme alone"),
        pytest.param((BEARER,), id="C63 the scheme and a space"),
        pytest.param((b"Authorization: Bearer\t" + KEY,), id="C63 a tab"),
        pytest.param((b"Authorization: Basic " + KEY,), id="C63 another scheme"),
        pytest.param((b"Authorization: Bearer Bearer " + KEY,), id="C63 the scheme twice"),
        pytest.param((b"X-Api-Key:",), id="C63 an empty key"),
        pytest.param((b"X-Api-Key: Bearer " + KEY,), id="C63 a scheme where none is"),
        pytest.param((b"X_Api_Key: " + KEY,), id="C63 an underscored name"),
        pytest.param((b"Cookie: authorization=" + KEY,), id="C63 a cookie"),
        pytest.param((BEARER + b"None",), id="C63 the word None"),
        pytest.param((BEARER + b"null",), id="C63 the word null"),
        pytest.param((BEARER + KEY[:-1],), id="C60 one character less"),
        pytest.param((BEARER + KEY[:-1] + b"X",), id="C60 another last character"),
        pytest.param((BEARER + b"X" + KEY[1:],), id="C60 another first character"),
        pytest.param((BEARER + KEY.upper(),), id="C60 in capitals"),
        pytest.param((BEARER + b"\xff",), id="C60 no UTF-8"),
        pytest.param((BEARER + KEY + b"\xff",), id="C60 no UTF-8 at its end"),
        pytest.param((BEARER + "sk-ключ".encode(),), id="C60 not ASCII"),
        pytest.param((b"X-Api-Key: \xed\xa0\x80",), id="C60 half a surrogate pair"),
        pytest.param((BEARER + KEY[:20] + b"0" * 100,), id="C62 the same twenty characters before it"),
        pytest.param((BEARER + KEY + b"0",), id="C62 one character more"),
        pytest.param((BEARER + hashlib.sha256(KEY).hexdigest().encode(),), id="C62 the digest itself"),
        pytest.param((BEARER + b"' OR 1=1--",), id="C61 SQL"),
        pytest.param((BEARER + b"*",), id="C61 any key"),
        pytest.param((BEARER + b"sk-*",), id="C61 a pattern"),
        pytest.param((BEARER + b"sk-CANARY-client-51be0?",), id="C61 a wildcard"),
        pytest.param((BEARER + b"[s]k-CANARY-client-51be02",), id="C61 a class"),
        pytest.param((BEARER + KEY + b", " + KEY,), id="C63 a list"),
        pytest.param((BEARER + KEY, BEARER + b"sk-another"), id="C63 two keys, the first right"),
        pytest.param((BEARER + b"sk-another", BEARER + KEY), id="C63 two keys, the last right"),
        pytest.param((b"X-Api-Key: " + KEY, b"x-api-key: sk-another"), id="C63 two keys of another form"),
        pytest.param((BEARER + KEY, b"Authorization: Basic " + KEY), id="C63 two schemes"),
    ],
)
async def test_doubtful_client_is_denied(fields: tuple[bytes, ...]) -> None:
    async with keyed(is_open=False) as front:
        await check_denied(front, *fields)


@pytest.mark.parametrize(
    "field", [BEARER + KEY + b"\r\n :", BEARER + b"*\rX: 1", BEARER + KEY + b"\0", BEARER + b"\x7f" + KEY]
)
async def test_key_with_control_characters_is_no_request(field: bytes) -> None:
    """C61: refused with 400 or 401."""
    async with keyed(is_open=False) as front:
        heard = await front.hear(head(b"GET /v1/models HTTP/1.1", HOST, field))
        assert heard.statuses in ([400], [401])
        assert not front.provider.connections


async def test_same_right_key_twice_is_one_key() -> None:
    """C63: a proxy may have duplicated it."""
    async with keyed(is_open=False) as front:
        assert (await ask_with(front, BEARER + KEY, BEARER + KEY)).status == 200


async def test_one_right_key_with_a_key_in_another_form_is_enough() -> None:
    """C63: Anthropic's SDK sends both if both are set; neither is passed on."""
    async with keyed(is_open=False) as front:
        assert (await ask_with(front, BEARER + KEY, b"X-Api-Key: sk-another")).status == 200
        (request,) = front.provider.requests
        assert not request.values(b"x-api-key")


async def test_keys_are_held_against_each_other_as_digests_of_the_whole() -> None:
    """C60 to C62: a table of SHA-256 digests. The time of a look-up depends on a digest's hash, which is salted for
    each process, and reveals nothing about how much of a key was right."""
    async with keyed(is_open=False) as front:
        known = front.stand.app.gateway._clients._known
        assert list(known) == [hashlib.sha256(KEY).digest()]


async def test_lost_state_authorizes_no_client() -> None:
    """C63: clients are defined by the config alone; a failed reload changes nothing."""
    async with keyed(is_open=False) as front:
        front.stand.app._path = None
        await check_denied(front, BEARER + STRANGERS_KEY.encode())
        front.stand.app.gateway.is_leaving = True
        await check_denied(front, BEARER + STRANGERS_KEY.encode())


async def test_stranger_is_refused_before_the_body_is_read() -> None:
    """C63: an unknown caller cannot make the gateway hold data."""
    async with keyed(is_open=False) as front, Connection(front.url) as connection:
        connection.writer.write(head(b"POST /v1/messages HTTP/1.1", HOST, b"Content-Length: 60000000"))
        reply = await connection.reply()
        assert (reply.status, MESSAGES.error_of(reply)["type"]) == (401, "authentication_error")


@pytest.mark.parametrize("fallbacks", [0, 1])
async def test_request_that_always_fails_costs_a_fifth_more_than_once(fallbacks: int) -> None:
    """C83: limited by the product's default retry budget ratio, however many attempts a call may make, plus once more
    for each deployment it may fall back to."""
    ratio, calls = BudgetSettings().ratio, 600
    assert ratio <= 0.2
    failing = whole(500, b'{"error":{"message":"poison","type":"server_error"}}')
    retry = {"max_attempts": 5, "base_delay": "1ms", "budget": {"ratio": ratio, "min_per_second": 0.001}}
    spare = [{"upstream": "one", "model": f"spare-{each}"} for each in range(fallbacks)]
    models = {"gpt": {"deployments": [{"upstream": "one"}, *spare]}}
    async with facing([failing], retry=retry, models=models) as (stand, provider):
        async with Connection(stand.url) as connection:
            for _ in range(calls):
                assert (await connection.ask(CHAT.request())).status == 500
        assert len(provider.requests) <= (1.2 + 1.2 * fallbacks) * calls + 10


async def test_disconnected_clients_leave_nothing_running() -> None:
    """C85: two hundred streams, each abandoned after its first token."""
    pouring: list[Step] = [stream_head(), *map(chunk, CHAT.preamble), chunk(CHAT.token), Hold()]
    async with facing(pouring) as (stand, provider):
        client = VanishingClient(stand.url)
        asked = CHAT.request(stream=True)
        for how in ("reset", "close"):
            for _ in range(10):
                await asyncio.gather(*(client.vanish(asked, after_bytes=300, how=how) for _ in range(10)))
        await eventually(lambda: stand.app.gateway.running == 0)
        await eventually(lambda: provider.live_connections == 0)
        assert len(provider.requests) == 200
        assert connections_to(provider.url) == 0
        assert await stand.metric("llm_guard_in_flight_calls") == 0
        assert await stand.metric("llm_guard_calls_total", outcome="client_cancelled") == 200


async def test_clients_that_disconnect_before_a_response_leave_nothing_running() -> None:
    """C85: a hundred unary calls, each abandoned before its response."""
    async with facing([Hold()]) as (stand, provider), AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Connection(stand.url)) for _ in range(100)]
        for client in clients:
            client.writer.write(CHAT.request())
        await eventually(lambda: len(provider.requests) == 100, within_s=30)
        for client in clients:
            client.leave("reset")
        await eventually(lambda: stand.app.gateway.running == 0)
        await eventually(lambda: provider.live_connections == 0)


@pytest.mark.parametrize("model", ["gpt", "unknown"])
async def test_refusal_does_not_reveal_other_clients_to_a_stranger(model: str) -> None:
    """C91: names of models, upstreams and clients are visible to clients only."""
    async with keyed(is_open=False) as front:
        reply = await ask_with(front, BEARER + STRANGERS_KEY.encode(), body=json.dumps({"model": model}).encode())
        assert reply.status == 401
        assert not [word for word in ("gpt", "claude", "one", "127.0.0.1") if f" {word}" in reply.text]
