"""Carries messages over a stream socket between the parent and one worker, requests with their replies among them."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog

from llm_guard.clock import Clock
from llm_guard.worker_thread import wait_at_most
from llm_guard.workers.messages import Frame, Message, decode, encode

_log = structlog.get_logger("llm_guard.workers.channel")

_LENGTH = struct.Struct("!I")
_MOST_BYTES = 1 << 28
_MOST_UNREAD_BYTES = 1 << 24
"""With so much on its way to a side that does not read, a suspended process perhaps, messages are lost."""


class ChannelClosed(Exception):
    """The other process has closed its side, or has ended."""


class Channel:
    """One side. `open`, then `run` in a task until the other side is gone."""

    def __init__(self, serve: Callable[[Message], Awaitable[Message | None]], clock: Clock) -> None:
        """`serve` handles a message of the other side, and returns the reply if it was a request."""
        self._serve = serve
        self._clock = clock
        self._count = 0
        self._waiting: dict[int, asyncio.Future[Message]] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self.is_closed = False

    async def open(self, sock: socket.socket) -> None:
        self._reader, self._writer = await asyncio.open_unix_connection(sock=sock, limit=1 << 20)

    def tell(self, message: Message) -> None:
        """Sends a message without a reply; it is lost if the other side is gone, or does not read."""
        self._send(Frame(0, False, message))

    async def ask(self, message: Message, within_s: float) -> Message:
        """Sends a request and returns the reply. Raises ChannelClosed, and TimeoutError."""
        if self.is_closed:
            raise ChannelClosed
        self._count += 1
        number = self._count
        reply = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._send(Frame(number, False, message))
        try:
            return await wait_at_most(within_s, reply, self._clock)
        finally:
            del self._waiting[number]

    async def run(self) -> None:
        """Handles what arrives; returns when the other side is gone."""
        try:
            while True:
                (size,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
                if size > _MOST_BYTES:
                    raise ValueError(f"a message of {size} bytes")
                self._take(decode(await self._reader.readexactly(size)))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.close()

    def close(self) -> None:
        self.is_closed = True
        for reply in self._waiting.values():
            if not reply.done():
                reply.set_exception(ChannelClosed())
        self._writer.close()

    async def flush(self) -> None:
        """Waits until all messages are with the kernel."""
        with suppress(ConnectionError):
            await self._writer.drain()
            self._writer.close()
            await self._writer.wait_closed()

    def _take(self, frame: Frame) -> None:
        if frame.is_reply:
            waiting = self._waiting.get(frame.number)
            if waiting is not None and not waiting.done():
                waiting.set_result(frame.body)
            return
        task = asyncio.get_running_loop().create_task(self._answer(frame))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _answer(self, frame: Frame) -> None:
        try:
            reply = await self._serve(frame.body)
        except Exception:  # noqa: BLE001  # one message must not end the channel; its sender times out
            _log.exception("unexpected error in a message between workers", message=type(frame.body).__name__)
            return
        if reply is not None and frame.number:
            self._send(Frame(frame.number, True, reply))

    def _send(self, frame: Frame) -> None:
        if not self.is_closed and self._writer.transport.get_write_buffer_size() < _MOST_UNREAD_BYTES:
            data = encode(frame)
            self._writer.write(_LENGTH.pack(len(data)) + data)
