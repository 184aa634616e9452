"""Delivers one call's response to its client, of which several attempts may provide a part if streams die.

Decides when a dead stream is worth another attempt, and ends the response. `proxy.handler` makes the attempts,
`proxy.response.relay` copies each one's response, `proxy.streams.resume` joins their streams.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self

from llm_guard.clock import Clock
from llm_guard.outcome import Exhausted, Failure
from llm_guard.proxy.attempts.release import ResponseScope
from llm_guard.proxy.call import Call, Delivered
from llm_guard.proxy.client_keys.output_counter import count_output
from llm_guard.proxy.http_server.response_writer import ResponseWriter, uncancel
from llm_guard.proxy.response.ending import CLIENT_DISCONNECTED, ENDED_BY_DRAIN, OUT_OF_PLACE, end_response, error_text
from llm_guard.proxy.response.fallback_response import FallbackResponder
from llm_guard.proxy.response.keepalive import KeepAlive
from llm_guard.proxy.response.relay import follow, internal, is_out_of_place, send_whole
from llm_guard.proxy.streams.resume import recovery_of


class Delivery:
    """A context manager for the attempts and relays of one call, which `finish` follows.

    At its end the tokens that were paid for are noted. If the gateway's shutdown has cancelled the call while its
    response was arriving, the cancellation ends here, so that `finish` can still send an error.
    """

    __slots__ = ("_call", "_clock", "_died", "_exhausted", "_fallback", "_reply", "served")

    def __init__(self, call: Call, reply: ResponseWriter, clock: Clock, fallback: FallbackResponder | None) -> None:
        """`fallback` answers a client that waits for the call; None for a call that no client waits for."""
        self._call = call
        self._reply = reply
        self._clock = clock
        self._fallback = fallback
        self.served: Delivered | None = None
        """The response that was relayed last; None before the first."""
        self._died: Failure | None = None
        """How its relay broke off."""
        self._exhausted: Exhausted | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        call, served = self._call, self.served
        if served is None:
            return False
        _note_tokens(call, served)
        is_whole = served.opened.exchange is None  # its last bytes may be written: closing the connection sends them
        if is_whole or not call.is_draining or not isinstance(error, asyncio.CancelledError):
            return False
        uncancel()
        call.failure = ENDED_BY_DRAIN if call.failure is not None else None
        return True

    def wait_for(self, response: Coroutine[Any, Any, Delivered | Exhausted]) -> Awaitable[Delivered | Exhausted]:
        """Waits for the next response; sends keep-alives to the client meanwhile, if its route has them."""
        call, route = self._call, self._call.route
        settings = route.stream.keepalive if route is not None else None
        if settings is None or not (call.is_stream or settings.unary):
            return response
        if self._fallback is None and self.served is None:
            return response
        return self._wait_with(KeepAlive(call, self._reply, settings, self._clock), response)

    async def _wait_with(
        self, keep_alive: KeepAlive, response: Coroutine[Any, Any, Delivered | Exhausted]
    ) -> Delivered | Exhausted:
        with keep_alive:
            return await response

    def relay(self, served: Delivered) -> Awaitable[Failure | None]:
        """Relays a response to the client, if it is the first or continues what the client has; releases its lease.
        Returns why it broke off, or could not be relayed; None if the client has all of it."""
        if served.opened.exchange is None and self.served is None:  # its lease was released when it had been read
            self.served = served
            if self._call.reservation is not None and served.opened.view is not None:
                count_output(served, self._call.reservation)
            return send_whole(self._call, served, self._reply)
        return self._relay(served)

    async def _relay(self, served: Delivered) -> Failure | None:
        call = self._call
        with ResponseScope(served, self._clock):
            failure = self._join(served)
            if failure is not None:
                served.attempt.failure = failure
                return failure
            self.served = served
            if call.reservation is not None:
                count_output(served, call.reservation)
            return await follow(call, served, self._reply, self._clock)

    def may_go_on(self, served: Delivered, failure: Failure) -> bool:
        """Returns True if another attempt may continue what the client has, after this response has failed."""
        if served is self.served:
            self._died, recovery = failure, self._call.recovery
            if recovery is None or not recovery.may_go_on(served, failure):
                return False
        self._call.failure = CLIENT_DISCONNECTED  # until the client has stayed for the next stream
        return True

    def give_up(self, end: Exhausted) -> None:
        """Notes that there is no response, or none that continues the one that died."""
        self._exhausted = end

    async def finish(self) -> Exhausted | None:
        """Ends the response, or answers the client without one. Returns why no response has begun; None if one has,
        possibly in part: see `call.failure`."""
        call, served, end, fallback = self._call, self.served, self._exhausted, self._fallback
        if served is None:
            if fallback is not None and end is not None:
                await fallback.respond(call, end, self._reply)
            return end
        if end is not None and self._died is not None:
            detail = f"{self._died.detail}, and the stream was not resumed ({end.why})"
            call.gave_up, call.failure = end.why, replace(self._died, detail=detail)
        store_dead_letter = fallback.dead_letter if fallback is not None else None
        await end_response(call, call.failure, self._reply, store_dead_letter, partial(self._last_words, served))
        return None

    def _last_words(self, served: Delivered, failure: Failure) -> bytes | None:
        """See `end_response`."""
        call, view = self._call, served.opened.view
        words = view.suppressed if view is not None else b""
        is_sent = view is not None and view.watch.is_error_heard and not call.is_draining
        if is_sent and not words:
            return None
        takes_events = view.takes_events if view is not None else self._reply.is_early and is_out_of_place(call, served)
        if takes_events and not is_sent:
            detail = f"{served.attempt.target.deployment.label}: {failure.detail}"
            words += error_text(call, failure, detail, is_event=call.is_stream or view is not None)
        return words

    def _join(self, served: Delivered) -> Failure | None:
        """Begins the transcript with the call's first stream, and joins the others to it. Returns the failure of a
        response that cannot continue what the client has."""
        call = self._call
        try:
            if self.served is None:
                call.recovery = recovery_of(call, served, self._clock) if served.opened.exchange is not None else None
                return None
            if call.recovery is not None and call.recovery.adopt(served):
                return None
        except Exception as error:  # noqa: BLE001  # a bug in the gateway must not cost the stream or its slot
            failure = internal(error, call)
            return None if self.served is None else failure
        return replace(OUT_OF_PLACE)  # a failure identifies its attempt


def _note_tokens(call: Call, served: Delivered) -> None:
    """Records the tokens that were paid for, and how many of them the client did not get."""
    if call.recovery is not None and served.attempt.resume_mode is not None:
        call.usage, call.wasted_tokens = call.recovery.tokens
    elif (view := served.opened.view) is not None:
        call.usage = view.watch.usage
    else:
        call.usage = served.opened.usage or call.usage
