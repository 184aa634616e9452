"""Answers a call from a single flight.

Each call is answered as if the request were its own: with its own deadlines, headers and errors. The request itself is
a `proxy.coalescing.single_flight`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from llm_guard.clock import Clock
from llm_guard.dialects import DIALECTS
from llm_guard.outcome import Exhausted, Failure, FailureKind, Refusal, Source
from llm_guard.proxy import headers as header_rules
from llm_guard.proxy.attempts.upstream_attempt import timeout_failure
from llm_guard.proxy.cache.cached_response import CLIENT_DISCONNECTED, CLIENT_STALLED, shareable_headers, write
from llm_guard.proxy.call import Call
from llm_guard.proxy.coalescing.single_flight import SingleFlight, Waiter
from llm_guard.proxy.http_server.error_responses import DRAINED
from llm_guard.proxy.http_server.response_writer import ResponseWriter, uncancel
from llm_guard.proxy.response.fallback_response import FallbackResponder
from llm_guard.proxy.response.keepalive import KeepAlive

_GRACE_S = 0.05
"""Added to the call's own limits: the request has the same ones, and its error says more."""
_LEFT_BEHIND = Failure(FailureKind.CLIENT_CANCELLED, "the client reads too slowly for a shared stream")
_INCOMPATIBLE_RESPONSE = Failure(
    FailureKind.MALFORMED, "cannot continue the client's stream: no stream, or a compressed one"
)


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
                limit.set(follower.call.commit_by + _GRACE_S, "total")
                await follower.reader.wait_begun()
        except TimeoutError:
            return False
        return True

    # until the response ends

    async def _pass_on(self, flight: SingleFlight, follower: Waiter, reply: ResponseWriter, *, is_own: bool) -> None:
        call = follower.call
        call.failure = CLIENT_DISCONNECTED  # until the client has stayed to the end
        try:
            if _is_out_of_place(call, flight, reply):
                call.failure = _INCOMPATIBLE_RESPONSE
            else:
                self._begin(flight, call, reply, is_own=is_own)
                call.failure = await self._copy(flight, follower, reply)
        except ConnectionError:
            call.failure = _of_who_left(flight, follower)
            return
        except asyncio.CancelledError:
            call.failure = _of_who_left(flight, follower)
            if not call.is_draining:
                raise
            uncancel()
        if call.failure is None:
            await reply.end()
        elif call.failure.kind.source is Source.CLIENT:
            reply.connection.abort()
        else:
            await self._break_off(flight, follower, call.failure, reply)

    def _begin(self, flight: SingleFlight, call: Call, reply: ResponseWriter, *, is_own: bool) -> None:
        tape = flight.tape
        headers = header_rules.to_client(tape.headers) if is_own else list(shareable_headers(tape.headers))
        headers += header_rules.ours(call, header_rules.value_of(tape.headers, "x-llm-guard-deployment") or None)
        call.sent_status = call.sent_status or tape.status
        length = header_rules.value_of(tape.headers, "content-length")
        reply.begin(tape.status, tape.reason, headers, int(length) if length else None)
        if flight.call.first_token_at is not None:
            call.first_token_at = self._clock.now()
        call.client_deadline = float("inf")

    async def _copy(self, flight: SingleFlight, follower: Waiter, reply: ResponseWriter) -> Failure | None:
        """Copies the response to the client. Returns a failure if it did not end well."""
        call, reader = follower.call, follower.reader
        assert call.route is not None  # noqa: S101  # the request has one
        limit = self._clock.limit()
        try:
            with limit:
                limit.set(call.deadline_at + _GRACE_S, "total")
                while piece := await reader.next():
                    await write(call, piece, reply, self._clock)
        except TimeoutError:
            is_late = self._clock.now() >= call.deadline_at
            return timeout_failure("total", call.route.timeouts) if is_late else CLIENT_STALLED
        return _LEFT_BEHIND if reader.is_left_behind else flight.call.failure

    async def _break_off(self, flight: SingleFlight, follower: Waiter, failure: Failure, reply: ResponseWriter) -> None:
        """Ends a response that has failed, like `relay`."""
        call, tape = follower.call, flight.tape
        await self._fallback.dead_letter(call, reply)
        if failure is not flight.call.failure:
            words = _last_words(call, failure, reply) if follower.reader.is_at_end else b""
            await reply.break_off(words)
        elif tape.is_broken:  # the error text is shared: it needs this call's id in place of the request's
            await reply.break_off(bytes(tape.last_words).replace(flight.call.id.encode(), call.id.encode()))
        else:  # the provider's own error was the last thing that arrived
            await reply.end()


def _is_out_of_place(call: Call, flight: SingleFlight, reply: ResponseWriter) -> bool:
    """Returns whether the response does not fit an early head: a unary response cannot follow one for a stream (or a
    stream one for JSON), and a compressed one cannot follow any."""
    if not reply.is_early:
        return False
    headers = flight.tape.headers
    is_stream = header_rules.value_of(headers, "content-type").lower().startswith("text/event-stream")
    is_compressed = header_rules.value_of(headers, "content-encoding") not in ("", "identity")
    return is_compressed or is_stream != call.is_stream


def _of_who_left(flight: SingleFlight, follower: Waiter) -> Failure | None:
    """Returns the failure of a call that its client has left; None: SDKs leave at the terminal event, before the body's
    end."""
    if flight.has_said_all and follower.reader.is_at_end:
        return None
    return Failure(FailureKind.INTERNAL, DRAINED.message) if follower.call.is_draining else CLIENT_DISCONNECTED


def _last_words(call: Call, failure: Failure, reply: ResponseWriter) -> bytes:
    """Returns the error text for a failure of this call alone."""
    dialect = DIALECTS[call.dialect]
    status = 504 if failure.kind.category == "timeout" else 502
    refusal = Refusal(status, f"upstream_{failure.kind.label}", failure.detail, by=None)
    if call.is_draining:
        refusal = DRAINED
    if call.is_stream:
        return dialect.error_event(refusal, call.id)
    return json.dumps(dialect.refusal_body(refusal, call.id)).encode() if reply.is_early else b""
