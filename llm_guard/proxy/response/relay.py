"""Copies a committed response to the client, whole or streamed, and reports a stream that dies. Never retries, and
ends no response: see `proxy.response.delivery`."""

from __future__ import annotations

import asyncio

import structlog

from llm_guard.clock import Clock, TimeLimit
from llm_guard.outcome import Failure, FailureKind
from llm_guard.proxy.call import Attempt, Call, Delivered, Opened, StreamDecoder
from llm_guard.proxy.headers import names_of, ours, to_client
from llm_guard.proxy.http_client.connection_pool import UpstreamError
from llm_guard.proxy.http_server.response_writer import ResponseWriter, pieces_of
from llm_guard.proxy.response.ending import (
    CLIENT_DISCONNECTED,
    CLIENT_STALLED,
    ENDED_BY_DRAIN,
    OUT_OF_PLACE,
    content_length,
    is_encoded,
)
from llm_guard.proxy.response.websocket_tunnel import tunnel
from llm_guard.proxy.telemetry.access_log import log_ids
from llm_guard.resilience.classification.classify import classify_event
from llm_guard.resilience.retry.deadline import earlier, timeout_failure
from llm_guard.resilience.streams.settings import ENDING_S, why_cut

_log = structlog.get_logger("llm_guard.proxy.response.relay")


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
