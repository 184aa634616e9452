"""After commit: copies an answer to the client, watches it, never retries.

Owns the answer's way to the client, whole or streamed, and how a stream that dies is reported. Does not own what came
before commit (`gateway.upstream`) nor what is counted (`gateway.record`).
"""

from __future__ import annotations

import asyncio
import contextlib

from aiohttp import web

from llm_guard.call import Call, Exchange, Served
from llm_guard.clock import Clock
from llm_guard.deployment import Upstream
from llm_guard.dialect import DIALECTS
from llm_guard.dialect.sse import StreamWatch
from llm_guard.gateway import headers as header_rules
from llm_guard.gateway.connections import UpstreamError
from llm_guard.gateway.record import settle
from llm_guard.gateway.tunnel import tunnel
from llm_guard.gateway.upstream import timeout_failure
from llm_guard.outcome import Failure, FailureKind, Refusal, Signal, Source
from llm_guard.policy.classify import classify_event
from llm_guard.policy.deadline import earlier

DRAINED = Refusal(
    503, "gateway_draining", "this gateway is going away", by="drain", retry_after_s=1.0, should_retry=True
)
CLIENT_LEFT = Failure(FailureKind.CLIENT_CANCELLED, "the client left")
_CLIENT_STALLED = Failure(FailureKind.CLIENT_CANCELLED, "the client stopped reading")
_WRITE_BUFFER_BYTES = 1 << 16


async def relay(call: Call, served: Served, request: web.BaseRequest, clock: Clock) -> web.StreamResponse:
    """Gives the client what an attempt has opened; `call.failure` says why when it broke on the way."""
    opened = served.opened
    call.sent_status = opened.status
    headers = header_rules.to_client(opened.headers, is_upgraded=opened.status == 101)
    headers += header_rules.ours(call, served.attempt.target.deployment.label)
    if opened.exchange is None:
        watch = opened.view.watch if opened.view else None
        call.usage = (watch.usage if watch else opened.usage) or call.usage
        if call.method == "HEAD":
            headers += [pair for pair in opened.headers if pair[0].lower() == "content-length"]
        call.failure = CLIENT_LEFT  # until it has taken all of it
        response = await send(request, opened.status, opened.reason, headers, opened.held)
        call.failure = None
        return response

    response = _answer(opened.status, opened.reason, headers)
    if opened.view is None and (length := header_rules.value_of(opened.headers, "content-length")):
        response.content_length = int(length)
    failure: Failure | None = CLIENT_LEFT  # until it has stayed to the end
    try:
        await response.prepare(request)
        if opened.status == 101:
            await tunnel(request, response, opened.exchange)
            failure = None
        else:
            failure = await _copy(call, served, opened.exchange, response, clock)
    except ConnectionError:
        pass  # the client left
    except UpstreamError as error:
        failure = Failure(error.kind, error.detail)
    except asyncio.CancelledError:
        if not call.is_draining:
            raise
        uncancel()
        failure = Failure(FailureKind.INTERNAL, DRAINED.message)
    finally:
        opened.exchange.abort()
        _conclude(call, served, failure, clock)
    if call.failure is not None:
        await _break_off(call, served, request, response)
    return response


async def send(
    request: web.BaseRequest, status: int, reason: str, headers: list[tuple[str, str]], body: bytes
) -> web.StreamResponse:
    """Sends a whole answer."""
    response = _answer(status, reason, headers)
    if request.method != "HEAD":
        response.content_length = len(body)
    await response.prepare(request)
    await response.write_eof(b"" if request.method == "HEAD" else body)
    return response


def _answer(status: int, reason: str, headers: list[tuple[str, str]]) -> web.StreamResponse:
    response = web.StreamResponse(status=status, reason=reason or None, headers=headers)
    if ("Connection", "close") in headers:
        response.force_close()  # a header alone does not: the client would be told, and the connection stay
    return response


def uncancel() -> None:
    """Takes back the cancellation by which a drain has ended the current call, so that it can say its last words."""
    task = asyncio.current_task()
    assert task is not None  # noqa: S101  # a coroutine runs in one
    task.uncancel()


async def _copy(
    call: Call, served: Served, exchange: Exchange, response: web.StreamResponse, clock: Clock
) -> Failure | None:
    """Copies to the end; returns why the answer broke off, or None."""
    timeouts = served.attempt.target.timeouts
    view = served.opened.view
    limit = clock.limit()
    is_writing = False
    broken: Failure | None = None
    try:
        async with limit:
            if view is not None:
                limit.set_idle(timeouts.idle, call.deadline_at, "total")
            else:
                limit.set(*earlier(served.attempt.started_at + timeouts.attempt, "attempt", call.deadline_at))
            passed = served.opened.held
            while True:
                if passed:
                    is_writing = True
                    await response.write(passed)
                    is_writing = False
                    limit.touch()
                chunk = await exchange.read()
                if not chunk:
                    break
                limit.touch()
                passed = view.feed(chunk) if view is not None else chunk
    except TimeoutError:
        broken = _CLIENT_STALLED if is_writing else timeout_failure(limit.name, timeouts)
    except UpstreamError as error:
        broken = Failure(error.kind, error.detail)
    if view is not None:
        broken = _judge(view.watch, broken, served.attempt.target.deployment.upstream)
        if broken is None and (rest := view.rest()):
            await response.write(rest)
    return broken


def _judge(watch: StreamWatch | None, broken: Failure | None, upstream: Upstream) -> Failure | None:
    """What the stream's own events say of its end, which outweighs how the connection ended."""
    if watch is None:
        return broken
    if watch.error is not None:
        verdict = classify_event(watch.error, 0.0, upstream.family, upstream.errors)
        detail = f"sent an error event in the middle of the stream ({verdict.why})"
        return Failure(verdict.kind, detail, verdict.retry_after_s)
    if watch.has_ended:
        return None
    if broken is None and not watch.may_end:
        return Failure(FailureKind.TRUNCATED, "the stream ended without its terminal event")
    return broken


def _conclude(call: Call, served: Served, failure: Failure | None, clock: Clock) -> None:
    """What the relay leaves for the record: usage, why it failed, and the permit."""
    watch = served.opened.view.watch if served.opened.view else None
    if watch is not None:
        call.usage = watch.usage
        if watch.has_ended and watch.error is None:
            failure = None  # SDKs leave at the terminal event, before the end of the body
    call.failure = served.attempt.failure = failure
    settle(served.attempt, served.leave, failure.kind.signal if failure else Signal.HEALTHY, clock)


async def _break_off(call: Call, served: Served, request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Ends a broken answer so that nobody takes it for a whole one: an error event where the client can read one,
    then the connection closed in the middle of the body."""
    failure, view, transport = call.failure, served.opened.view, request.transport
    if transport is None or failure is None:
        return
    if transport.get_write_buffer_size() > _WRITE_BUFFER_BYTES or failure.kind.source is Source.CLIENT:
        transport.abort()
        return
    is_reported = view is not None and view.watch is not None and view.watch.error is not None
    if view is not None and view.takes_events and not is_reported:
        with contextlib.suppress(ConnectionError):
            await response.write(_error_event(call, served, failure))
    if not is_reported:
        request.protocol.force_close()


def _error_event(call: Call, served: Served, failure: Failure) -> bytes:
    dialect = DIALECTS[call.dialect]
    if call.is_draining:
        return dialect.error_event(DRAINED, call.id)
    status = 504 if failure.kind.category == "timeout" else 502
    message = f"{served.attempt.target.deployment.label}: {failure.detail}"
    return dialect.error_event(Refusal(status, f"upstream_{failure.kind.label}", message, by=None), call.id)
