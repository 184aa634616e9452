"""The WebSocket of `/v1/realtime`: a session that echoes events.

A refused upgrade is a `status` fault, which `provider` handles before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiohttp import WSMsgType, web
from msgspec import DecodeError
from msgspec.json import decode, encode

from llm_guard.mock.content import say
from llm_guard.mock.exchange import MockRequest


async def converse(
    request: web.BaseRequest, asked: MockRequest, headers: Mapping[str, str], tokens: int
) -> web.StreamResponse:
    """Runs the session until the peer closes it, or requests that: `{"type": "mock.close", "code": 4000, "reason":
    "..."}`.

    Replies to `response.create` with text deltas, to `session.update` with `session.updated`, and to any other event
    with an event of type "mock.echo"; returns a binary message unchanged."""
    socket = web.WebSocketResponse(protocols=("realtime",), max_msg_size=0)
    socket.headers.update(headers)
    await socket.prepare(request)
    session = {"id": f"sess_mock{asked.number}", "type": "realtime", "model": asked.model}
    await _send(socket, "session.created", session=session)
    async for message in socket:
        if message.type is WSMsgType.BINARY:
            await socket.send_bytes(message.data)
            continue
        event = _read(message.data)
        if event.get("type") == "mock.close":
            await socket.close(code=event.get("code", 4000), message=str(event.get("reason", "")).encode())
            break
        await _answer(socket, event, session, tokens)
    return socket


def _read(text: str) -> dict[str, Any]:
    try:
        event = decode(text)
    except DecodeError:
        event = text
    return event if isinstance(event, dict) else {"text": text}


async def _answer(socket: web.WebSocketResponse, event: dict[str, Any], session: dict[str, Any], tokens: int) -> None:
    match event.get("type"):
        case "session.update":
            await _send(socket, "session.updated", session=session | (event.get("session") or {}))
        case "response.create":
            response = {"id": "resp_mock", "object": "realtime.response", "output": []}
            item = {"response_id": "resp_mock", "item_id": "item_mock", "output_index": 0, "content_index": 0}
            await _send(socket, "response.created", response=response | {"status": "in_progress"})
            for word in say(tokens):
                await _send(socket, "response.output_text.delta", **item, delta=word)
            await _send(socket, "response.done", response=response | {"status": "completed"})
        case _:
            await _send(socket, "mock.echo", event=event)


async def _send(socket: web.WebSocketResponse, kind: str, **fields: Any) -> None:
    await socket.send_str(encode({"type": kind, "event_id": "event_mock", **fields}).decode())
