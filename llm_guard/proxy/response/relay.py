"""Copies a committed response to the client, whole or streamed, and reports a stream that dies. Never retries: if the
route allows it, the attempt loop provides another stream (`proxy.streams.resume`)."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable
from dataclasses import replace

import structlog

from llm_guard.clock import Clock, TimeLimit
from llm_guard.dialects import DIALECTS
from llm_guard.outcome import Failure, FailureKind, Refusal, Signal, Source
from llm_guard.proxy import headers as header_rules
from llm_guard.proxy.attempts.release import settle
from llm_guard.proxy.attempts.upstream_attempt import timeout_failure
from llm_guard.proxy.call import Attempt, Call, Delivered, Opened, StreamDecoder
from llm_guard.proxy.http_client.connection_pool import UpstreamError
from llm_guard.proxy.http_server.error_responses import DRAINED
from llm_guard.proxy.http_server.response_writer import ResponseWriter, pieces_of, uncancel
from llm_guard.proxy.response.fallback_response import FallbackResponder
from llm_guard.proxy.response.keepalive import KeepAlive
from llm_guard.proxy.response.websocket_tunnel import tunnel
from llm_guard.proxy.streams.resume import TranscriptResumer, recovery_of
from llm_guard.proxy.telemetry.access_log import log_ids
from llm_guard.resilience.classification.classify import classify_event
from llm_guard.resilience.retry.deadline import earlier
from llm_guard.resilience.streams.settings import ENDING_S, why_cut

_log = structlog.get_logger("llm_guard.proxy.response.relay")

CLIENT_DISCONNECTED = Failure(FailureKind.CLIENT_CANCELLED, "the client disconnected")
_CLIENT_STALLED = Failure(FailureKind.CLIENT_CANCELLED, "the client stopped reading")
_DRAINED = Failure(FailureKind.INTERNAL, DRAINED.message)
_INCOMPATIBLE_RESPONSE = "cannot continue the client's stream: no stream, or a compressed one"


def relay(
    call: Call, served: Delivered, reply: ResponseWriter, clock: Clock, fallback: FallbackResponder | None = None
) -> Awaitable[None]:
    """Sends the client what an attempt has opened; sets `call.failure` if it breaks off. `fallback` may store a
    failed call, before the connection is closed: closing it cancels the task that serves the call."""
    if served.opened.exchange is None:
        return _send(call, served, reply, fallback)
    return _relay(call, served, reply, clock, fallback)


async def _relay(
    call: Call, served: Delivered, reply: ResponseWriter, clock: Clock, fallback: FallbackResponder | None
) -> None:
    """Relays a response that is still arriving."""
    recovery = call.recovery = _recovery_of(call, served, clock)
    try:
        failure = await _follow(call, served, reply, clock)
        while failure is not None and recovery is not None and recovery.may_go_on(served, failure):
            resumed = await _resume(call, served, failure, recovery, reply, clock)
            if resumed is None:
                break
            served = resumed
            failure = await _follow(call, served, reply, clock)
    except ConnectionError:
        pass  # the client disconnected
    except asyncio.CancelledError:
        if not call.is_draining:
            raise
        uncancel()
        call.failure = _DRAINED if call.failure is not None else None
    finally:
        _note_tokens(call, served, recovery)
    if call.failure is not None:
        if fallback is not None:
            await fallback.dead_letter(call, reply)
        await _break_off(call, served, call.failure, reply)
    elif not reply.is_over:
        with contextlib.suppress(ConnectionError):  # the client disconnected at the terminal event
            await reply.end()


async def _send(call: Call, served: Delivered, reply: ResponseWriter, fallback: FallbackResponder | None) -> None:
    """Sends a response that has been read completely."""
    opened = served.opened
    if reply.is_early and _is_out_of_place(call, served):
        call.failure = Failure(FailureKind.MALFORMED, _INCOMPATIBLE_RESPONSE)
        if fallback is not None:
            await fallback.dead_letter(call, reply)
        await reply.break_off(_last_words(call, served, call.failure))
        return
    headers = _headers(call, served)
    _note_tokens(call, served, None)
    call.failure = CLIENT_DISCONNECTED  # until the client has taken all of it
    if call.method == "HEAD":
        reply.begin(opened.status, opened.reason, headers, _length(opened))
        await reply.end()
    else:
        await reply.send(opened.status, opened.reason, headers, opened.buffered)
    call.failure = None


def _length(opened: Opened) -> int | None:
    length = header_rules.value_of(opened.headers, "content-length")
    return int(length) if length.isdigit() else None


def _headers(call: Call, served: Delivered) -> list[tuple[str, str]]:
    opened = served.opened
    call.sent_status = call.sent_status or opened.status
    is_inflated = opened.view is not None and opened.view.takes_events and _is_encoded(opened)
    headers = header_rules.to_client(opened.headers, is_upgraded=opened.status == 101, is_inflated=is_inflated)
    return headers + header_rules.ours(call, served.attempt.target.deployment.label)


def _is_out_of_place(call: Call, served: Delivered) -> bool:
    """Returns True if the response cannot follow a head sent early: a whole response behind a stream's head, or a
    compressed one behind any."""
    view = served.opened.view
    is_compressed = _is_encoded(served.opened) and (view is None or not view.takes_events)
    return is_compressed or (call.is_stream and view is None)


def _is_encoded(opened: Opened) -> bool:
    return header_rules.value_of(opened.headers, "content-encoding") not in ("", "identity")


# one exchange


async def _follow(call: Call, served: Delivered, reply: ResponseWriter, clock: Clock) -> Failure | None:
    """Copies one exchange to its end, then releases the attempt's lease. Returns why it broke off, or None."""
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
        raise
    except Exception as error:  # noqa: BLE001  # a bug in the gateway must not look like a client that left
        failure = _internal(error, call)
    except asyncio.CancelledError:
        failure = _DRAINED if call.is_draining else failure
        raise
    finally:
        opened.exchange.abort()
        if failure in (CLIENT_DISCONNECTED, _DRAINED) and _has_ended(opened):
            failure = None  # SDKs leave at the terminal event, before the end of the body
        call.failure = served.attempt.failure = failure
        settle(served.attempt, served.lease, failure.signal if failure else Signal.HEALTHY, clock)
    return failure


def _has_ended(opened: Opened) -> bool:
    watch = opened.view.watch if opened.view is not None else None
    return watch is not None and watch.has_ended and watch.error is None


def _begin(call: Call, served: Delivered, reply: ResponseWriter) -> None:
    opened = served.opened
    if reply.is_early and _is_out_of_place(call, served):
        raise UpstreamError(FailureKind.MALFORMED, _INCOMPATIBLE_RESPONSE)
    length = _length(opened) if opened.view is None else None
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
        broken = _CLIENT_STALLED if is_writing else _out_of_time(limit, served)
    except UpstreamError as error:
        broken = Failure(error.kind, error.detail, is_shape_only=error.is_shape_only)
    if view is not None:
        broken = _judge(view, broken, served.attempt)
        if broken is None and (rest := view.trailing_bytes()):
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


# continuing a stream that died


def _recovery_of(call: Call, served: Delivered, clock: Clock) -> TranscriptResumer | None:
    try:
        return recovery_of(call, served, clock)
    except Exception as error:  # noqa: BLE001  # a bug in the gateway must not cost the stream or its slot
        _internal(error, call)
        return None


async def _resume(
    call: Call, served: Delivered, failure: Failure, recovery: TranscriptResumer, reply: ResponseWriter, clock: Clock
) -> Delivered | None:
    """Returns another stream that continues this one; if there is none, sets `call.failure` and returns None."""
    assert served.resume is not None and call.route is not None  # noqa: S101, PT018  # the loop has served it
    call.failure = CLIENT_DISCONNECTED  # until the client has stayed for the new stream
    with KeepAlive(call, reply, call.route.stream.keepalive, clock):
        result = await served.resume(failure)
        while isinstance(result, Delivered) and not _is_adopted(call, recovery, result, clock):
            assert result.resume is not None and result.attempt.failure is not None  # noqa: S101, PT018
            result = await result.resume(result.attempt.failure)
    if isinstance(result, Delivered):
        return result
    call.gave_up = result.why
    call.failure = replace(failure, detail=f"{failure.detail}, and the stream was not resumed ({call.gave_up})")
    return None


def _is_adopted(call: Call, recovery: TranscriptResumer, served: Delivered, clock: Clock) -> bool:
    """Returns True if this response continues what the client has; otherwise closes it and marks it failed."""
    try:
        if recovery.adopt(served):
            return True
        served.attempt.failure = Failure(FailureKind.MALFORMED, _INCOMPATIBLE_RESPONSE)
    except Exception as error:  # noqa: BLE001  # a bug in the gateway must not leak a slot
        served.attempt.failure = _internal(error, call)
    if served.opened.exchange is not None:
        served.opened.exchange.abort()
    settle(served.attempt, served.lease, served.attempt.failure.kind.signal, clock)
    return False


def _internal(error: Exception, call: Call) -> Failure:
    _log.exception("unexpected error while relaying a stream", **log_ids(call))
    return Failure(FailureKind.INTERNAL, type(error).__name__)


def _note_tokens(call: Call, served: Delivered, recovery: TranscriptResumer | None) -> None:
    """Records the tokens that were paid for, and how many of them the client did not get."""
    if recovery is not None and served.attempt.resume_mode is not None:
        call.usage, call.wasted_tokens = recovery.transcript.usage, recovery.transcript.wasted_tokens
    elif (view := served.opened.view) is not None:
        call.usage = view.watch.usage
    else:
        call.usage = served.opened.usage or call.usage


async def _break_off(call: Call, served: Delivered, failure: Failure, reply: ResponseWriter) -> None:
    """Ends a broken response so that it cannot be taken for a complete one: sends an error event where the client can
    read one, then closes the connection in the middle of the body."""
    view = served.opened.view
    if failure.kind.source is Source.CLIENT:
        reply.connection.abort()
        return
    last_words = view.suppressed if view is not None else b""
    is_told = view is not None and view.watch.is_error_heard and not call.is_draining
    if is_told and not last_words:  # the upstream's own error event was the last thing passed on
        with contextlib.suppress(ConnectionError):
            await reply.end()
        return
    takes_events = view.takes_events if view is not None else (reply.is_early and _is_out_of_place(call, served))
    if not is_told and takes_events:
        last_words += _last_words(call, served, failure)
    await reply.break_off(last_words)


def _last_words(call: Call, served: Delivered, failure: Failure) -> bytes:
    """Returns the failure as an event in the client's dialect, or as the body of a response that is not streamed."""
    dialect = DIALECTS[call.dialect]
    status = 504 if failure.kind.category == "timeout" else 502
    message = f"{served.attempt.target.deployment.label}: {failure.detail}"
    refusal = Refusal(status, f"upstream_{failure.kind.label}", message, by=None)
    if call.is_draining:
        refusal = DRAINED
    if not call.is_stream and served.opened.view is None:
        return json.dumps(dialect.refusal_body(refusal, call.id)).encode()
    return dialect.error_event(refusal, call.id)
