"""`python -m benchmarks.relay_peers provider PACE_S | plain URL`: what the gateway is measured between and against.

The provider writes a chat stream without an end, a chunk every PACE_S to each client. The plain relay is aiohttp's
server and client and the loop that anybody would write between them: no watch, no limits, no record.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time

from aiohttp import ClientSession, TCPConnector, web

from llm_guard.app import run

_BACKLOG = 2048
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_EVENT = (
    b'data: {"id":"chatcmpl-BfXqZ0kTtS1mVw","object":"chat.completion.chunk","created":1715367049,'
    b'"model":"gpt-4o-2024-08-06","service_tier":"default","system_fingerprint":"fp_%017.9f",'
    b'"choices":[{"index":0,"delta":{"content":" breakers"},"logprobs":null,"finish_reason":null}]}\n\n'
)
"""As long as OpenAI's; the fingerprint is the instant of sending, in monotonic seconds, which all processes share."""
_FRAME = b"%x\r\n%b\r\n"


class _Stream(asyncio.Protocol):
    """One connection: a request, then chunks until it leaves."""

    def __init__(self, pace_s: float) -> None:
        self._pace_s = pace_s
        self._loop = asyncio.get_running_loop()
        self._received = b""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert hasattr(transport, "write")
        self._write = transport.write

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, is_whole, body = self._received.partition(b"\r\n\r\n")
        if is_whole and self._timer is None and len(body) >= _length(head):
            self._write(_HEAD)
            self._tick(self._loop.time())

    def connection_lost(self, _error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self, due_at: float) -> None:
        event = _EVENT % time.monotonic()
        self._write(_FRAME % (len(event), event))
        due_at += self._pace_s
        self._timer = self._loop.call_at(due_at, self._tick, due_at)


async def serve_provider(pace_s: float) -> None:
    """Serves until it is ended."""
    server = await asyncio.get_running_loop().create_server(lambda: _Stream(pace_s), "127.0.0.1", 0, backlog=_BACKLOG)
    await _serve(server)


async def serve_plain(url: str) -> None:
    """Relays every request to the provider at `url`, until it is ended."""
    connector = TCPConnector(limit=0)  # aiohttp's own limit is 100
    async with ClientSession(connector=connector, auto_decompress=False) as session:

        async def relay(request: web.BaseRequest) -> web.StreamResponse:
            body = await request.read()
            headers = {"content-type": request.content_type}
            async with session.post(url + request.path, data=body, headers=headers) as upstream:
                response = web.StreamResponse(
                    status=upstream.status, headers={"content-type": upstream.headers["content-type"]}
                )
                with contextlib.suppress(ConnectionResetError):  # the client has left
                    await response.prepare(request)
                    async for chunk in upstream.content.iter_any():
                        await response.write(chunk)
                return response

        listener = web.Server(relay, handler_cancellation=True, access_log=None)
        await _serve(await asyncio.get_running_loop().create_server(listener, "127.0.0.1", 0, backlog=_BACKLOG))


async def _serve(server: asyncio.Server) -> None:
    print(f"serves on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", file=sys.stderr, flush=True)
    await server.serve_forever()


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0


if __name__ == "__main__":
    which, argument = sys.argv[1:]
    run(serve_provider(float(argument)) if which == "provider" else serve_plain(argument))
