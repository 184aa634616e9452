"""Sends one response, complete or with one fault: silence, resets, cuts and broken bodies.

The response and the fault are chosen in `provider`.
"""

from __future__ import annotations

import asyncio
import gzip
import socket
import struct
import zlib
from collections.abc import Mapping

from aiohttp import web

from llm_guard.mock.exchange import MockResponse, Script
from llm_guard.mock.faults import Fault

_RST_ON_CLOSE = struct.pack("ii", 1, 0)


class Player:
    """One exchange. Each method returns the response or, if the fault requires it, never returns.

    The loss of the connection cancels the handler, so a handler that sends no response waits for ever."""

    def __init__(self, request: web.BaseRequest, headers: Mapping[str, str], token_delay_s: float) -> None:
        self._request = request
        self._headers = headers
        self._token_delay_s = token_delay_s
        self._has_gzip = request.headers.get("x-mock-gzip") == "1"
        self.has_hung_up = False
        """True if this side ended the connection."""
        self.output_tokens = 0
        """Tokens of text that were generated, whether or not they were sent to the end."""

    async def reply(self, reply: MockResponse, fault: Fault | None = None) -> web.StreamResponse:
        """Sends a unary response."""
        self.output_tokens += reply.output_tokens
        body = reply.body
        if fault is not None and fault.kind == "malformed":
            body = body.replace(b":", b"", 1)
        if fault is not None and fault.kind == "truncated":
            body = body[: len(body) // 2]
        headers = {"content-type": reply.content_type, **self._headers, **reply.headers}
        if self._has_gzip:
            body = gzip.compress(body, compresslevel=1)
            headers["content-encoding"] = "gzip"
        if fault is not None and fault.kind in ("headers", "cut", "stall"):
            return await self._reply_in_part(reply.status, headers, body, fault)
        return web.Response(status=reply.status, headers=headers, body=body)

    async def _reply_in_part(
        self, status: int, headers: dict[str, str], body: bytes, fault: Fault
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=status, headers=headers)
        response.content_length = len(body)
        await response.prepare(self._request)
        if fault.kind != "headers":
            await response.write(body[: len(body) // 2])
        if fault.kind == "cut":
            self._close()
        return await self._hold()

    async def stream(self, script: Script, fault: Fault | None = None) -> web.StreamResponse:
        """Sends an event stream, one write for each event."""
        headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
        if self._has_gzip:
            headers["content-encoding"] = "gzip"
        response = web.StreamResponse(headers={**headers, **self._headers})
        await response.prepare(self._request)
        if fault is not None and fault.kind == "headers":
            return await self._hold()
        events = _EventWriter(response, gzipped=self._has_gzip)
        await events.write(*script.opening)
        if fault is None:
            await self._tokens(events, script.tokens)
            await events.write(*script.closing)
        else:
            await self._stream_with_fault(events, script, fault)
        await events.end()
        return response

    async def _stream_with_fault(self, events: _EventWriter, script: Script, fault: Fault) -> None:
        after = len(script.tokens) // 2 if fault.kind == "truncated" else fault.after_tokens
        await self._tokens(events, script.tokens[:after])
        match fault.kind:
            case "cut":
                self._close()
                await self._hold()
            case "stall":
                await self._hold()
            case "error":
                await events.write(script.error)
            case "malformed":
                await events.write(script.broken)
                await self._tokens(events, script.tokens[after:])
                await events.write(*script.closing)
            case _:
                # truncated: nothing more is sent.
                return

    async def _tokens(self, events: _EventWriter, tokens: tuple[bytes, ...]) -> None:
        for token in tokens:
            if self._token_delay_s > 0:
                await asyncio.sleep(self._token_delay_s)
            self.output_tokens += 1
            await events.write(token)

    async def vanish(self, fault: Fault) -> web.StreamResponse:
        """Sends nothing, FIN or RST instead of a response."""
        if fault.kind == "reset":
            self._reset()
        if fault.kind == "close":
            self._close()
        return await self._hold()

    async def _hold(self) -> web.StreamResponse:
        never: asyncio.Future[web.StreamResponse] = asyncio.get_running_loop().create_future()
        return await never

    def _close(self) -> None:
        self.has_hung_up = True
        if self._request.transport is not None:
            self._request.transport.close()

    def _reset(self) -> None:
        self.has_hung_up = True
        transport = self._request.transport
        if transport is not None:
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST_ON_CLOSE)
            transport.abort()


class _EventWriter:
    """Writes events as they are or gzipped; each one can be read as soon as it has arrived."""

    def __init__(self, response: web.StreamResponse, *, gzipped: bool) -> None:
        self._response = response
        self._gzip = zlib.compressobj(wbits=31) if gzipped else None

    async def write(self, *events: bytes) -> None:
        gzip = self._gzip
        for event in events:
            await self._response.write(event if gzip is None else gzip.compress(event) + gzip.flush(zlib.Z_SYNC_FLUSH))

    async def end(self) -> None:
        await self._response.write_eof(b"" if self._gzip is None else self._gzip.flush())
