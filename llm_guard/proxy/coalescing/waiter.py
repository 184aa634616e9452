"""Answers a call from a single flight.

Each call is answered as if the request were its own: with its own deadlines, headers and errors. The request itself is
a `proxy.coalescing.single_flight`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from llm_guard.clock import Clock
from llm_guard.outcome import Exhausted, Failure, FailureKind
from llm_guard.proxy import headers as header_rules
from llm_guard.proxy.call import Call
from llm_guard.proxy.coalescing.single_flight import SingleFlight, Waiter
from llm_guard.proxy.http_server.response_writer import ResponseWriter, uncancel
from llm_guard.proxy.response.ending import (
    CLIENT_DISCONNECTED,
    ENDED_BY_DRAIN,
    OUT_OF_PLACE,
    content_length,
    end_response,
    error_text,
    is_encoded,
)
from llm_guard.proxy.response.fallback_response import FallbackResponder
from llm_guard.proxy.response.keepalive import KeepAlive
from llm_guard.proxy.response.shared_response import GRACE_S, SharedResponse, send_shared, shareable_headers
from llm_guard.resilience.routing.candidates import timeout_failure

_LEFT_BEHIND = Failure(FailureKind.CLIENT_CANCELLED, "the client reads too slowly for a shared stream")


class WaiterResponder:
    """Answers the waiting calls of one gateway."""

    def __init__(self, fallback: FallbackResponder, clock: Clock, is_leaving: Callable[[], bool]) -> None:
        self._fallback = fallback
        self._clock = clock
        self._is_leaving = is_leaving

    async def follow(self, flight: SingleFlight, call: Call, reply: ResponseWriter, *, is_own: bool) -> None:
        """Answers a call from a flight, with the response or what stands in for it. `is_own`: the flight was started
        for this call. Raises BadRequest, and ConnectionError if the client leaves before its response has begun."""
        follower, since = flight.follow(call, is_own=is_own), self._clock.now()
        try:
            gave_up = await self._wait(flight, follower, reply)
            reply.closes_connection |= self._is_leaving()
            if gave_up is None:
                await self._pass_on(flight, follower, reply, is_own=is_own)
        finally:
            await flight.leave(follower)
            if not call.attempts:  # another call's record has them: for this call the time was waiting, not overhead
                call.waited_s += self._clock.now() - since
        if gave_up is not None:
            await self._give_up(flight, call, gave_up, reply)

    async def _give_up(self, flight: SingleFlight, call: Call, gave_up: Exhausted, reply: ResponseWriter) -> None:
        own, call.attempts = call.attempts, flight.call.attempts  # the error response reports them
        try:
            await self._fallback.respond(call, gave_up, reply)
        finally:
            call.attempts = own

    # until the response begins

    async def _wait(self, flight: SingleFlight, follower: Waiter, reply: ResponseWriter) -> Exhausted | None:
        """Returns None once a response has begun, else why there is none."""
        call = follower.call
        assert call.route is not None  # noqa: S101  # the request has one
        with KeepAlive(call, reply, call.route.stream.keepalive, self._clock, flight):
            while not await self._has_news(follower):
                if self._clock.now() >= call.commit_by:  # else a keep-alive has extended the client's deadline
                    return Exhausted(timeout_failure("total", call.route.timeouts), None, "deadline")
        flight.raise_bad()
        return flight.gave_up

    async def _has_news(self, follower: Waiter) -> bool:
        try:
            with self._clock.limit() as limit:
                limit.set(follower.call.commit_by + GRACE_S, "total")
                await follower.reader.wait_begun()
        except TimeoutError:
            return False
        return True

    # until the response ends

    async def _pass_on(self, flight: SingleFlight, follower: Waiter, reply: ResponseWriter, *, is_own: bool) -> None:
        call = follower.call
        try:
            failure = await self._send(flight, follower, reply, is_own=is_own)
            if failure is CLIENT_DISCONNECTED:
                failure = _of_who_left(flight, follower)
        except asyncio.CancelledError:
            failure = call.failure = _of_who_left(flight, follower)
            if not call.is_draining:
                raise
            uncancel()
        call.failure = failure
        last_words = partial(_last_words, flight, follower, reply)
        await end_response(call, failure, reply, self._fallback.dead_letter, last_words)

    async def _send(
        self, flight: SingleFlight, follower: Waiter, reply: ResponseWriter, *, is_own: bool
    ) -> Failure | None:
        """Sends the response to the client. Returns a failure if it did not end well."""
        call, tape, reader = follower.call, flight.tape, follower.reader
        if _is_out_of_place(call, flight, reply):
            return OUT_OF_PLACE
        if flight.call.first_token_at is not None:
            call.first_token_at = self._clock.now()
        call.client_deadline = float("inf")
        response = SharedResponse(
            tape.status,
            tape.reason,
            tuple(header_rules.to_client(tape.headers)) if is_own else shareable_headers(tape.headers),
            header_rules.value_of(tape.headers, "x-llm-guard-deployment") or None,
            content_length(tape.headers),
            reader.next,
            call.deadline_at,
        )
        failure = await send_shared(call, response, reply, self._clock)
        return failure or (_LEFT_BEHIND if reader.is_left_behind else flight.call.failure)


def _is_out_of_place(call: Call, flight: SingleFlight, reply: ResponseWriter) -> bool:
    """Returns whether the response does not fit an early head: a unary response cannot follow one for a stream (or a
    stream one for JSON), and a compressed one cannot follow any."""
    if not reply.is_early:
        return False
    headers = flight.tape.headers
    is_stream = header_rules.value_of(headers, "content-type").lower().startswith("text/event-stream")
    return is_encoded(headers) or is_stream != call.is_stream


def _of_who_left(flight: SingleFlight, follower: Waiter) -> Failure | None:
    """Returns the failure of a call that its client has left; None: SDKs leave at the terminal event, before the body's
    end."""
    if flight.has_said_all and follower.reader.is_at_end:
        return None
    return ENDED_BY_DRAIN if follower.call.is_draining else CLIENT_DISCONNECTED


def _last_words(flight: SingleFlight, follower: Waiter, reply: ResponseWriter, failure: Failure) -> bytes | None:
    """See `end_response`."""
    call, tape = follower.call, flight.tape
    if failure is not flight.call.failure:
        if not follower.reader.is_at_end or not (call.is_stream or reply.is_early):
            return b""
        return error_text(call, failure, failure.detail, is_event=call.is_stream)
    if tape.is_broken:  # the error text is shared: it needs this call's id in place of the request's
        return bytes(tape.last_words).replace(flight.call.id.encode(), call.id.encode())
    return None
