"""Delivers one call's response to its client, of which several attempts may provide a part if streams die.

Decides when a dead stream is worth another attempt, and ends the response. `proxy.handler` makes the attempts,
`proxy.response.relay` copies each one's response, `proxy.streams.resume` joins their streams.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Self

from llm_guard.clock import Clock
from llm_guard.outcome import Exhausted, Failure
from llm_guard.proxy.call import Call, Delivered
from llm_guard.proxy.client_keys.output_counter import count_output
from llm_guard.proxy.http_server.response_writer import ResponseWriter, uncancel
from llm_guard.proxy.response.ending import CLIENT_DISCONNECTED, ENDED_BY_DRAIN, OUT_OF_PLACE, end_response, error_text
from llm_guard.proxy.response.fallback_response import FallbackResponder
from llm_guard.proxy.response.keepalive import KeepAlive
from llm_guard.proxy.response.relay import internal, is_out_of_place, relay
from llm_guard.proxy.streams.resume import recovery_of

_NO_KEEP_ALIVE = contextlib.nullcontext()


class Delivery:
    """A context manager for the attempts and relays of one call, which `finish` follows.

    At its end the tokens that were paid for are noted. If the gateway's shutdown has cancelled the call while its
    response was arriving, the cancellation ends here, so that `finish` can still send an error.
    """

    __slots__ = ("_call", "_clock", "_died", "_exhausted", "_fallback", "_reply", "_served")

    def __init__(self, call: Call, reply: ResponseWriter, clock: Clock, fallback: FallbackResponder | None) -> None:
        """`fallback` answers a client that waits for the call; None for a call that no client waits for."""
        self._call = call
        self._reply = reply
        self._clock = clock
        self._fallback = fallback
        self._served: Delivered | None = None
        """The response that was relayed last; None before the first."""
        self._died: Failure | None = None
        """How its relay broke off."""
        self._exhausted: Exhausted | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        call, served = self._call, self._served
        if served is None:
            return False
        _note_tokens(call, served)
        is_whole = served.opened.exchange is None  # its last bytes may be written: closing the connection sends them
        if is_whole or not call.is_draining or not isinstance(error, asyncio.CancelledError):
            return False
        uncancel()
        call.failure = ENDED_BY_DRAIN if call.failure is not None else None
        return True

    @property
    def has_begun(self) -> bool:
        """True once a response was relayed."""
        return self._served is not None

    def keep_alive(self) -> contextlib.AbstractContextManager[object]:
        """Returns a context manager for the wait for the next response."""
        call, route = self._call, self._call.route
        if route is None or (self._fallback is None and self._served is None):
            return _NO_KEEP_ALIVE
        settings = route.stream.keepalive
        if settings is None or not settings.applies_to(is_stream=call.is_stream):
            return _NO_KEEP_ALIVE
        return KeepAlive(call, self._reply, settings, self._clock)

    def relay(self, served: Delivered) -> Awaitable[Failure | None]:
        """Relays a response to the client, if it is the first or continues what the client has. Returns why it broke
        off, or could not be relayed; None if the client has all of it."""
        call = self._call
        failure = self._join(served)
        if failure is not None:
            served.attempt.failure = failure
            return _failed(failure)
        self._served = served
        if call.reservation is not None:
            count_output(served, call.reservation)
        return relay(call, served, self._reply, self._clock)

    def is_over(self, served: Delivered, failure: Failure | None) -> bool:
        """Returns True if no other attempt may continue this response, whose relay ended so."""
        if failure is None:
            return True
        if served is self._served:
            self._died, recovery = failure, self._call.recovery
            if recovery is None or not recovery.may_go_on(served, failure):
                return True
        self._call.failure = CLIENT_DISCONNECTED  # until the client has stayed for the next stream
        return False

    def give_up(self, end: Exhausted) -> None:
        """Notes that there is no response, or none that continues the one that died."""
        self._exhausted = end

    async def finish(self) -> Exhausted | None:
        """Ends the response, or answers the client without one. Returns why no response has begun; None if one has,
        possibly in part: see `call.failure`."""
        call, served, end, fallback = self._call, self._served, self._exhausted, self._fallback
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
            if self._served is None:
                call.recovery = recovery_of(call, served, self._clock) if served.opened.exchange is not None else None
                return None
            if call.recovery is not None and call.recovery.adopt(served):
                return None
        except Exception as error:  # noqa: BLE001  # a bug in the gateway must not cost the stream or its slot
            failure = internal(error, call)
            return None if self._served is None else failure
        return replace(OUT_OF_PLACE)  # a failure identifies its attempt


async def _failed(failure: Failure) -> Failure:
    return failure


def _note_tokens(call: Call, served: Delivered) -> None:
    """Records the tokens that were paid for, and how many of them the client did not get."""
    if call.recovery is not None and served.attempt.resume_mode is not None:
        call.usage, call.wasted_tokens = call.recovery.tokens
    elif (view := served.opened.view) is not None:
        call.usage = view.watch.usage
    else:
        call.usage = served.opened.usage or call.usage
