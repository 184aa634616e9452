"""Delivers one call's response to its client, of which several attempts may provide a part if streams die.

Copies each committed response, whole or streamed, decides when a dead stream is worth another attempt, and ends the
response. `proxy.handler` makes the attempts, `proxy.streams.resume` joins their streams.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self

import structlog

from llm_guard.clock import Clock, TimeLimit
from llm_guard.outcome import Exhausted, Failure, FailureKind
from llm_guard.proxy.attempts.admission import ResponseScope
from llm_guard.proxy.call import Attempt, Call, Delivered, Opened, StreamDecoder
from llm_guard.proxy.client_keys.output_counter import count_output
from llm_guard.proxy.headers import names_of, ours, to_client
from llm_guard.proxy.http_client.connection_pool import UpstreamError
from llm_guard.proxy.http_server.response_writer import ResponseWriter, pieces_of, uncancel
from llm_guard.proxy.response.ending import (
    CLIENT_DISCONNECTED,
    CLIENT_STALLED,
    ENDED_BY_DRAIN,
    OUT_OF_PLACE,
    content_length,
    end_response,
    error_text,
    is_encoded,
)
from llm_guard.proxy.response.fallback_response import FallbackResponder
from llm_guard.proxy.response.keepalive import KeepAlive
from llm_guard.proxy.response.websocket_tunnel import tunnel
from llm_guard.proxy.streams.resume import recovery_of
from llm_guard.proxy.telemetry.access_log import log_ids
from llm_guard.resilience.classification.classify import classify_event
from llm_guard.resilience.routing.candidates import earlier, timeout_failure
from llm_guard.resilience.streams.settings import ENDING_S, why_cut

_log = structlog.get_logger("llm_guard.proxy.response.delivery")


async def send_whole(call: Call, served: Delivered, reply: ResponseWriter) -> Failure | None:
    """Sends the client a response that has been read completely. Returns why that broke off, also set as
    `call.failure`; None if the client has all of it."""
    opened = served.opened
    if reply.is_early and is_out_of_place(call, served):
        call.failure = OUT_OF_PLACE
        return OUT_OF_PLACE
    headers = _headers(call, served)
    call.failure = CLIENT_DISCONNECTED  # until the client has taken all of it
    try:
        if call.method == "HEAD":
            reply.begin(opened.status, opened.reason, headers, content_length(opened.headers))
            await reply.end()
        elif (rest := reply.begin_whole(opened.status, opened.reason, headers, opened.buffered)) is not None:
            await rest
    except ConnectionError:
        return call.failure
    call.failure = None
    return None


def _headers(call: Call, served: Delivered) -> list[tuple[str, str]]:
    opened = served.opened
    call.sent_status = call.sent_status or opened.status
    is_inflated = opened.view is not None and opened.view.takes_events and is_encoded(opened.headers)
    headers = to_client(opened.headers, is_upgraded=opened.status == 101, is_inflated=is_inflated)
    if (translation := served.attempt.translation) is not None and translation.dropped:
        headers.append(("x-llm-guard-dropped", names_of(translation.dropped)))
    return headers + ours(call, served.attempt.target.deployment.label)


def is_out_of_place(call: Call, served: Delivered) -> bool:
    """Returns True if the response cannot follow a head sent early: a whole response behind a stream's head, or a
    compressed one behind any."""
    view = served.opened.view
    is_compressed = is_encoded(served.opened.headers) and (view is None or not view.takes_events)
    return is_compressed or (call.is_stream and view is None)


# one exchange


async def follow(call: Call, served: Delivered, reply: ResponseWriter, clock: Clock) -> Failure | None:
    """Copies a response that is still arriving to the client. Returns why it broke off, also set as `call.failure`;
    None if the client has all of it. The response is not ended: another attempt may continue it."""
    opened = served.opened
    assert opened.exchange is not None  # noqa: S101  # else it was sent as a whole
    failure: Failure | None = CLIENT_DISCONNECTED  # until the client has stayed to the end
    try:
        _begin(call, served, reply)
        if opened.status == 101:
            await tunnel(reply, opened.exchange)
            failure = None
        else:
            failure = await _copy(call, served, reply, clock)
    except UpstreamError as error:
        failure = Failure(error.kind, error.detail)
    except ConnectionError:
        pass  # the client disconnected
    except Exception as error:  # noqa: BLE001  # a bug in the gateway must not look like a client that left
        failure = internal(error, call)
    except asyncio.CancelledError:
        failure = ENDED_BY_DRAIN if call.is_draining else failure
        raise
    finally:
        if failure in (CLIENT_DISCONNECTED, ENDED_BY_DRAIN) and _has_ended(opened):
            failure = None  # SDKs leave at the terminal event, before the end of the body
        call.failure = served.attempt.failure = failure
    return failure


def _has_ended(opened: Opened) -> bool:
    watch = opened.view.watch if opened.view is not None else None
    return watch is not None and watch.has_ended and watch.error is None


def _begin(call: Call, served: Delivered, reply: ResponseWriter) -> None:
    opened = served.opened
    if reply.is_early and is_out_of_place(call, served):
        raise UpstreamError(OUT_OF_PLACE.kind, OUT_OF_PLACE.detail)
    length = content_length(opened.headers) if opened.view is None else None
    reply.begin(opened.status, opened.reason, _headers(call, served), length)
    call.extend_client_deadline()


async def _copy(call: Call, served: Delivered, reply: ResponseWriter, clock: Clock) -> Failure | None:
    opened, limit = served.opened, clock.limit()
    view, exchange = opened.view, opened.exchange
    assert exchange is not None  # noqa: S101  # the caller has it
    watch = view.watch if view is not None else None
    is_writing = is_ending = False
    broken: Failure | None = None
    try:
        with limit:
            _set_limit(limit, call, served)
            pieces = pieces_of(opened.buffered)
            passed = next(pieces, b"")
            while True:
                if passed and not reply.push(passed):
                    is_writing = True
                    limit.hold()
                    await reply.connection.wait_room()
                    is_writing = False
                    limit.go_on()
                if piece := next(pieces, b""):
                    passed = piece
                    continue
                if watch is not None and watch.has_ended and not is_ending:
                    is_ending = True
                    limit.set(clock.now() + ENDING_S, "ending")
                if view is not None and view.is_closed:
                    break
                chunk = await exchange.read()
                if not chunk:
                    break
                if limit.touch() and view is not None:
                    passed = _feed_seeking(view, chunk, limit)
                else:
                    passed = chunk if view is None else view.feed(chunk)
    except TimeoutError:
        broken = CLIENT_STALLED if is_writing else _out_of_time(limit, served)
    except UpstreamError as error:
        broken = Failure(error.kind, error.detail, is_shape_only=error.is_shape_only)
    if view is not None:
        rest = view.trailing_bytes()  # before the verdict: with it a translated stream may turn out to be invalid
        broken = _judge(view, broken, served.attempt)
        if broken is None and rest:
            await reply.write(rest)
    return broken


def _set_limit(limit: TimeLimit, call: Call, served: Delivered) -> None:
    timeouts, view = served.attempt.target.timeouts, served.opened.view
    if view is None:
        attempt_s = timeouts.attempt_s(is_client_timeout_known=False)
        ends_at, name = earlier(served.attempt.timed_from + attempt_s, "attempt", call.deadline_at)
        limit.set(ends_at, name)
        return
    limit.set_idle(timeouts.idle, call.deadline_at, "total")
    if view.watch.expects_progress:
        limit.set_stall(timeouts.stall)


def _feed_seeking(view: StreamDecoder, chunk: bytes, limit: TimeLimit) -> bytes:
    """Returns what may be passed on of a chunk, and postpones the stall limit if the chunk shows progress."""
    view.watch.seeks_progress = True
    passed = view.feed(chunk)
    if not view.watch.seeks_progress:
        limit.progress()
    return passed


def _out_of_time(limit: TimeLimit, served: Delivered) -> Failure | None:
    """Returns the failure of a timed-out stream; None if its last event has come and only the body's end is missing."""
    return None if limit.name == "ending" else timeout_failure(limit.name, served.attempt.target.timeouts)


def _judge(view: StreamDecoder, broken: Failure | None, attempt: Attempt) -> Failure | None:
    """Returns the failure that the stream's own events show, which outweighs how the connection ended."""
    watch, upstream = view.watch, attempt.target.deployment.upstream
    if view.failure is not None:
        return view.failure
    if watch.error is not None:
        verdict = classify_event(watch.error, 0.0, upstream.family, upstream.errors)
        detail = f"sent an error event in the middle of the stream ({verdict.why})"
        return Failure(verdict.kind, detail, verdict.retry_after_s)
    if watch.has_ended:
        return None
    if broken is None and not watch.may_end:
        lacks_finish = watch.lacks_finish and attempt.resume_mode is None
        return Failure(FailureKind.TRUNCATED, why_cut(upstream.name, lacks_finish=lacks_finish))
    return broken


def internal(error: Exception, call: Call) -> Failure:
    _log.exception("unexpected error while relaying a stream", **log_ids(call))
    return Failure(FailureKind.INTERNAL, type(error).__name__)


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
