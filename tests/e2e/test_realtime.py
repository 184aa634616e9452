"""`client.realtime` of the `openai` SDK over a WebSocket through the gateway."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI
from websockets.exceptions import ConnectionClosedError, InvalidStatus

from llm_guard.mock.content import say
from tests.e2e.stand import TOKENS, Stand, standing
from tests.fakes.waiting import eventually

MODEL = "gpt-realtime"


def _client(stand: Stand, key: str = "sk-caller") -> AsyncOpenAI:
    # On plain HTTP older SDKs would still try wss: users of a local gateway set this address.
    url = f"{stand.url}/v1"
    return AsyncOpenAI(base_url=url, websocket_base_url=url.replace("http", "ws"), api_key=key, max_retries=0)


async def test_session_answers_and_echoes(stand: Stand) -> None:
    async with _client(stand) as client, client.realtime.connect(model=MODEL) as connection:
        created: Any = await connection.recv()
        assert (created.type, created.session.model) == ("session.created", MODEL)
        await connection.session.update(session={"type": "realtime", "instructions": "déjà"})
        updated: Any = await connection.recv()
        assert (updated.type, updated.session.instructions) == ("session.updated", "déjà")
        await connection.response.create()
        deltas = []
        async for event in connection:
            deltas += [event.delta] if event.type == "response.output_text.delta" else []
            if event.type == "response.done":
                break
        assert deltas == say(TOKENS)
    assert stand.provider.last.target == f"/v1/realtime?model={MODEL}"
    assert stand.provider.last.header("authorization") == "Bearer sk-caller"


async def test_message_of_a_megabyte_passes_in_both_directions(stand: Stand) -> None:
    async with _client(stand) as client:
        manager = client.realtime.connect(model=MODEL, websocket_connection_options={"max_size": None})
        async with manager as connection:
            await connection.recv()
            event: Any = {"type": "own", "audio": "QUJD" * 500_000}
            await connection.send(event)
            echo: Any = await connection.recv()
    assert echo.type == "mock.echo"
    assert echo.to_dict()["event"] == event


async def test_close_of_the_provider_reaches_the_client_with_code_and_reason(stand: Stand) -> None:
    async with _client(stand) as client, client.realtime.connect(model=MODEL) as connection:
        await connection.recv()
        closing: Any = {"type": "mock.close", "code": 4000, "reason": "session_expired: déjà vu"}
        await connection.send(closing)
        with pytest.raises(ConnectionClosedError) as caught:
            await connection.recv()
    assert caught.value.rcvd is not None
    assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (4000, "session_expired: déjà vu")
    await eventually(lambda: stand.provider.stats().open_connections == 0)


async def test_close_of_the_client_ends_the_upstream_connection(stand: Stand) -> None:
    async with _client(stand) as client, client.realtime.connect(model=MODEL) as connection:
        await connection.recv()
        assert stand.provider.stats().open_connections == 1
        async with asyncio.timeout(5):
            await connection.close(code=4001, reason="done")
    await eventually(lambda: stand.provider.stats().open_connections == 0)
    await eventually(lambda: stand.app.gateway.running == 0)


async def test_refused_upgrade_reaches_the_client_as_its_status(stand: Stand) -> None:
    async with _client(stand) as client:
        with pytest.raises(InvalidStatus) as caught:
            async with client.realtime.connect(model=f"{MODEL}+status:401"):
                pass
    response = caught.value.response
    assert response.status_code == 401
    assert b"invalid_api_key" in response.body
    assert stand.upstream_requests == 1


async def test_unknown_key_is_refused_before_the_upgrade() -> None:
    async with standing(keys=["sk-good"]) as stand, _client(stand, "sk-bad") as client:
        with pytest.raises(InvalidStatus) as caught:
            async with client.realtime.connect(model=MODEL):
                pass
        assert caught.value.response.status_code == 401
        assert caught.value.response.headers["x-llm-guard-refused-by"] == "auth"
        assert stand.upstream_requests == 0


async def test_sync_client_talks_too(stand: Stand) -> None:
    url = f"{stand.url}/v1"

    def scene() -> None:
        with (
            OpenAI(base_url=url, websocket_base_url=url.replace("http", "ws"), api_key="k") as client,
            client.realtime.connect(model=MODEL) as connection,
        ):
            assert connection.recv().type == "session.created"
            connection.response.create()
            kinds = [connection.recv().type for _ in range(TOKENS + 2)]
            assert (kinds[0], kinds[-1]) == ("response.created", "response.done")

    await asyncio.to_thread(scene)
