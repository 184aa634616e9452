"""`python -m benchmarks.relay_peers provider [PORT] | plain URL`: the provider, and the plain proxy for comparison.

The provider answers a call at once, and writes an endless stream if the call asks for one at a pace (`stream_client`).
The plain proxy is a simple combination of aiohttp's server and client: no stream checks, no limits, no logging.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Mapping
from typing import cast

from aiohttp import ClientSession, TCPConnector, web

from llm_guard.event_loop import run

_BACKLOG = 8192
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_EVENT = (
    b'data: {"id":"chatcmpl-BfXqZ0kTtS1mVw","object":"chat.completion.chunk","created":1715367049,'
    b'"model":"gpt-4o-2024-08-06","service_tier":"default","system_fingerprint":"fp_%017.9f",'
    b'"choices":[{"index":0,"delta":{"content":" breakers"},"logprobs":null,"finish_reason":null}]}\n\n'
)
"""An event as long as OpenAI's; the fingerprint is the send time on the monotonic clock that all processes share."""
_FRAME = b"%x\r\n%b\r\n"
_PACE = b"pace_s="
_ANSWER_BODY = json.dumps(
    {
        "id": "chatcmpl-BfXqZ0kTtS1mVw", "object": "chat.completion", "created": 1715367049,
        "model": "gpt-4o-2024-08-06", "service_tier": "default", "system_fingerprint": "fp_44709d6fcb",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "breakers " * 38}, "finish_reason": "stop"},
        ],
        "usage": {"prompt_tokens": 280, "completion_tokens": 88, "total_tokens": 368},
    },
).encode()  # fmt: skip
_ANSWER = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-request-id: req_8fXqZ0kTtS\r\ncontent-length: %d\r\n\r\n"
    % len(_ANSWER_BODY)
) + _ANSWER_BODY
_HOP_BY_HOP = frozenset({"connection", "content-length", "host", "keep-alive", "transfer-encoding", "upgrade"})


class _Connection(asyncio.Protocol):
    """A connection of the provider: one call after the other, or a stream until the client leaves."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._received = b""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._write = cast("asyncio.Transport", transport).write  # uvloop's transports are not subclasses of asyncio's

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, is_whole, body = self._received.partition(b"\r\n\r\n")
        if not is_whole or len(body) < _length(head):
            return
        self._received = b""
        at = body.find(_PACE)
        if at < 0:
            self._write(_ANSWER)
        else:
            pace_s = float(body[at + len(_PACE) :].partition(b'"')[0])
            self._write(_HEAD)
            self._tick(self._loop.time(), pace_s)

    def connection_lost(self, _error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self, due_at: float, pace_s: float) -> None:
        event = _EVENT % time.monotonic()
        self._write(_FRAME % (len(event), event))
        due_at += pace_s
        self._timer = self._loop.call_at(due_at, self._tick, due_at, pace_s)


async def serve_provider(port: int) -> None:
    """Serves until the process is ended."""
    await _serve(await asyncio.get_running_loop().create_server(_Connection, "127.0.0.1", port, backlog=_BACKLOG))


async def serve_plain(url: str) -> None:
    """Forwards every request to the provider at `url`, until the process is ended."""
    connector = TCPConnector(limit=0)  # aiohttp's own limit is 100
    async with ClientSession(connector=connector, auto_decompress=False) as session:

        async def relay(request: web.Request) -> web.StreamResponse:
            body = await request.read()
            async with session.post(url + request.path, data=body, headers=_end_to_end(request.headers)) as upstream:
                response = web.StreamResponse(status=upstream.status, headers=_end_to_end(upstream.headers))
                response.content_length = upstream.content_length
                with contextlib.suppress(ConnectionResetError):  # the client has left
                    await response.prepare(request)
                    async for chunk in upstream.content.iter_any():
                        await response.write(chunk)
                return response

        app = web.Application()
        app.router.add_post("/{path:.*}", relay)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        await runner.setup()
        assert runner.server is not None
        await _serve(await asyncio.get_running_loop().create_server(runner.server, "127.0.0.1", 0, backlog=_BACKLOG))


def _end_to_end(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _HOP_BY_HOP}


async def _serve(server: asyncio.Server) -> None:
    print(f"serves on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", file=sys.stderr, flush=True)
    await server.serve_forever()


def _length(head: bytes) -> int:
    at = head.lower().find(b"\r\ncontent-length:")
    return 0 if at < 0 else int(head[at + 17 :].partition(b"\r\n")[0])


if __name__ == "__main__":
    which, *arguments = sys.argv[1:]
    run(serve_provider(int(*arguments)) if which == "provider" else serve_plain(*arguments))
