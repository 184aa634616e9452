"""Sends keep-alives to clients that wait for a response: load balancers and read timeouts end silent connections.

`proxy.http_server.response_writer` has the bytes, `resilience.streams.settings` the settings.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Protocol, Self

from llm_guard.clock import Alarm, Clock
from llm_guard.proxy import headers as header_rules
from llm_guard.proxy.call import Call
from llm_guard.proxy.http_server.response_writer import ResponseWriter
from llm_guard.resilience.streams.settings import KeepAliveSettings

_LOOK_AGAIN_S = 1.0
"""Seconds until the next check, while no keep-alive may be sent yet."""


class Shared(Protocol):
    """A request made for several calls (single flight): see `proxy.coalescing.single_flight`."""

    call: Call
    """The call that makes the request."""

    def wait_for(self, call: Call) -> None: ...


class KeepAlive:
    """A context manager: while its body waits, the client gets a keep-alive after each period of silence.

    Keep-alives are written by a separate task. It ends with the body, so that there is never a second writer.
    """

    def __init__(
        self,
        call: Call,
        reply: ResponseWriter,
        settings: KeepAliveSettings | None,
        clock: Clock,
        shared: Shared | None = None,
    ) -> None:
        """`shared` is the request that the call waits for, if another call makes it."""
        self._call = call
        self._shared = shared
        self._reply = reply
        self._settings = settings
        self._clock = clock
        self._alarm: Alarm | None = None
        self._task: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        if self._settings is not None and (self._call.is_stream or self._settings.unary):
            self._set(self._settings.interval)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        if self._task is not None:
            # The task writes nothing any more. Awaiting it here would add a cancellation point at which the body's
            # result could leak.
            self._task.cancel()

    def _set(self, after_s: float) -> None:
        self._alarm = self._clock.call_at(self._clock.now() + after_s, self._on_silence)

    def _on_silence(self) -> None:
        assert self._settings is not None  # noqa: S101  # else the alarm was not set
        self._alarm = None
        if not self._may_speak(self._settings):
            self._set(min(_LOOK_AGAIN_S, self._settings.interval))
        elif self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._speak(self._settings.interval))
            self._task.add_done_callback(_forget)

    def _may_speak(self, settings: KeepAliveSettings) -> bool:
        """Returns True if the head may be sent now: after that a failure cannot have its own status."""
        call = self._call
        if self._reply.has_begun:
            return True
        if call.method != "POST" or call.is_upgrade or not self._reply.request.has_arrived:
            return False
        if not call.is_stream:  # if the response may be a stream, its head is not known yet
            return settings.unary and not call.may_stream
        head = call.stream_head if self._shared is None else self._shared.call.stream_head
        return head == "plain" or (settings.before_headers and not head)

    async def _speak(self, again_after_s: float) -> None:
        await self._reply.keep_waiting(self._call, header_rules.ours(self._call, None))
        if self._shared is not None:
            self._shared.wait_for(self._call)
        self._set(again_after_s)


def _forget(task: asyncio.Task[None]) -> None:
    """Ignores the error of a client that was gone: the next write will raise it."""
    if not task.cancelled():
        task.exception()
