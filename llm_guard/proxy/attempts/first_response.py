"""Reads a response up to commit: as far as necessary to know that it is good, or that it is an error.

`proxy.attempts.upstream_attempt` owns the exchange and its limits, `proxy.response.delivery` passes the response on.
"""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable
from typing import Protocol

from llm_guard.clock import Clock
from llm_guard.dialects import DIALECTS
from llm_guard.dialects.response_schemas import ResponseSchema
from llm_guard.dialects.sse import StreamObserver
from llm_guard.outcome import Failure, FailureKind, UpstreamErrorResponse
from llm_guard.proxy.call import Attempt, Call, Exchange, Opened, StreamDecoder, endpoint_of
from llm_guard.proxy.http_client.connection_pool import UpstreamError
from llm_guard.proxy.response.content_decoding import unreadable
from llm_guard.proxy.response.unary import has_error, may_be_stream, no_stream, peek, read_unary, reader_of, wrong_form
from llm_guard.proxy.response.validation import ResponseValidator
from llm_guard.proxy.streams.decoder import view_of
from llm_guard.resilience.capacity.rate_limit_headers import rate_hint
from llm_guard.resilience.capacity.response_memory import ResponseMemory
from llm_guard.resilience.classification.classify import classify_answer, classify_event
from llm_guard.resilience.memo import Memo
from llm_guard.resilience.streams.settings import why_cut
from llm_guard.routing.deployment import Upstream

_COMMIT_S = 0.05
"""Seconds before the end of the call or attempt at which a stream held back is passed on: it has its first token."""
COMMIT_BYTES = 1 << 20
"""The most that is held of a stream, or read of an error response."""

_NOT_HERE = (FailureKind.WRONG_PATH, FailureKind.NOT_FOUND)


_MAX_FILLER_BYTES = 16 << 20
"""More than this before the first token cannot be keep-alives. It takes no memory: keep-alives are dropped as read."""


class ResponseTimeLimits(Protocol):
    """The attempt's time limit, which depends on the kind of response."""

    clock: Clock

    def on_stream(self) -> None: ...
    def on_first_token(self) -> None: ...
    def on_unary(self) -> None: ...


def read_to_commit(
    call: Call,
    attempt: Attempt,
    exchange: Exchange,
    headers: dict[str, str],
    limits: ResponseTimeLimits,
    memory: ResponseMemory,
) -> Awaitable[Opened | Failure | bytes]:
    """Reads as much of the response as decides whether it is good; `judged` takes the result. `headers` have lower-case
    names. Raises UpstreamError, at once or when awaited."""
    if exchange.status >= 400:
        return _error_answer(call, attempt, exchange, headers, limits)
    if exchange.status == 101:
        return _upgraded(call, exchange)
    reader = reader_of(call, attempt)
    shape = reader.shape if reader is not None else None
    if exchange.status >= 300 and (call.model is not None or shape is not None):
        # A redirect is not passed on: the client would follow it and send its key there.
        raise UpstreamError(FailureKind.MISROUTED, f"answered {exchange.status}, a redirect, which is not followed")
    if _is_event_stream[headers.get("content-type", "")]:
        return _read_stream(call, attempt, exchange, headers, shape, limits)
    if may_be_stream(call, shape):
        return _read_peeked(call, attempt, exchange, headers, reader, limits, memory)
    limits.on_unary()
    return read_unary(call, attempt, exchange, headers, reader, memory, limits.clock)


def judged(
    call: Call,
    attempt: Attempt,
    exchange: Exchange,
    headers: dict[str, str],
    read: Opened | Failure | bytes,
    wall: float,
) -> Opened | Failure:
    """Returns what was read up to commit as a response or a failure. `read` is also the body of an error that came
    inside a success response."""
    if isinstance(read, Failure):
        return read
    if isinstance(read, bytes):
        return _in_band_failure(attempt.target.deployment.upstream, exchange, read, wall)
    if call.may_stream and read.view is not None:
        call.is_stream = attempt.is_stream = True
    read.rate = rate_hint(headers, wall) if call.model is not None else None
    return read


def _is_type_of_streams(content_type: str) -> bool:
    return content_type.lower().startswith("text/event-stream")


_is_event_stream = Memo(_is_type_of_streams)


async def _upgraded(call: Call, exchange: Exchange) -> Opened:
    if not call.is_upgrade:
        raise UpstreamError(FailureKind.MALFORMED, "switched protocols without a request for it")
    return _opened(exchange, b"", exchange)


async def _read_stream(
    call: Call,
    attempt: Attempt,
    exchange: Exchange,
    headers: dict[str, str],
    shape: ResponseSchema | None,
    limits: ResponseTimeLimits,
) -> Opened | Failure | bytes:
    limits.on_stream()
    failure = wrong_form(call, exchange, shape)
    if failure is not None:
        return failure
    return await _first_event(call, attempt, exchange, shape, headers.get("content-encoding", ""), limits)


async def _read_peeked(
    call: Call,
    attempt: Attempt,
    exchange: Exchange,
    headers: dict[str, str],
    reader: ResponseValidator | None,
    limits: ResponseTimeLimits,
    memory: ResponseMemory,
) -> Opened | Failure | bytes:
    """Reads a response that may be a stream under another content type: its first bytes decide."""
    peeked = await peek(exchange)
    if peeked.is_event_stream:
        return await _read_stream(call, attempt, peeked, headers, reader.shape if reader is not None else None, limits)
    limits.on_unary()
    return await read_unary(call, attempt, peeked, headers, reader, memory, limits.clock)


async def _error_answer(
    call: Call, attempt: Attempt, exchange: Exchange, headers: dict[str, str], limits: ResponseTimeLimits
) -> Failure:
    upstream = attempt.target.deployment.upstream
    body, is_whole = await _error_body(exchange)
    verdict = classify_answer(
        exchange.status, headers, _legible(body, headers), limits.clock.wall(), upstream.family, upstream.errors
    )
    answer = None
    if is_whole:
        form = upstream.form or upstream.dialect
        answer = UpstreamErrorResponse(exchange.status, exchange.reason, exchange.headers, body, form)
    detail = f"answered {exchange.status} ({verdict.why})"
    kind = verdict.kind
    if exchange.status == 404 and kind in _NOT_HERE and _is_unknown_path(call, attempt, kind, body):
        kind, detail = FailureKind.MISROUTED, f"{detail}: check base_url"
    if kind is FailureKind.INVALID_REQUEST and attempt.translation is not None and attempt.translation.is_translated:
        kind, detail = FailureKind.UNTRANSLATED, f"{detail}, to the translated request"
    return Failure(kind, detail, verdict.retry_after_s, answer=answer)


def _is_unknown_path(call: Call, attempt: Attempt, kind: FailureKind, body: bytes) -> bool:
    """Returns True if a 404 means that the server lacks a path that every server of the dialect has."""
    dialect, path = endpoint_of(call, attempt)
    is_known = call.method == "POST" and path in DIALECTS[dialect].NEEDS_MODEL
    return is_known and (kind is FailureKind.WRONG_PATH or not body.strip())


async def _error_body(exchange: Exchange) -> tuple[bytes, bool]:
    """Returns the body of an error response and whether it is complete: the status counts even if the body is cut."""
    body = b""
    try:
        while chunk := await exchange.read():
            body += chunk
            if len(body) > COMMIT_BYTES:
                return body, False
    except UpstreamError:
        return body, False
    return body, True


async def _first_event(
    call: Call,
    attempt: Attempt,
    exchange: Exchange,
    shape: ResponseSchema | None,
    encoding: str,
    limits: ResponseTimeLimits,
) -> Opened | bytes:
    """Holds a stream back until its first useful event, or longer if its route has `prebuffer`. Returns the error if
    the stream turns out to be one in that time."""
    if packed := unreadable(encoding):
        raise UpstreamError(FailureKind.MALFORMED, f"sent a stream compressed with {packed}, which cannot be inspected")
    hold = call.route.stream.prebuffer if call.route is not None and attempt.resume_mode is None else None
    upstream = attempt.target.deployment.upstream
    is_lenient = upstream.stream_end == "lenient" and attempt.resume_mode is None
    dialect, path = endpoint_of(call, attempt)
    translation = attempt.translation
    reader = DIALECTS[dialect].stream_reader(path, call.choices, is_lenient=is_lenient)
    is_plain_wanted = call.is_plain_wanted or translation is not None
    plain = view_of(reader, encoding, hold.tokens if hold else 1, is_plain_wanted=is_plain_wanted)
    view = plain if translation is None else translation.decoder(plain)
    attempt.watch = view.watch
    call.stream_head = call.stream_head or ("plain" if view.takes_events else "compressed")
    beginning = _Beginning(view, exchange, upstream.name, shape)
    error = await beginning.read_until(lambda watch: watch.has_token)
    if hold is None or error is not None:
        return beginning.opened() if error is None else error
    limits.on_first_token()
    first_token_at = limits.clock.now()
    limit = limits.clock.limit()
    try:
        with limit:
            ends_at = min(call.commit_by, attempt.must_end_by) - _COMMIT_S
            limit.set(min(first_token_at + hold.time, ends_at), "prebuffer")
            error = await beginning.read_until(lambda watch: watch.has_enough)
    except TimeoutError:
        pass  # the stream has been held for long enough
    return beginning.opened(first_token_at) if error is None else error


class _Beginning:
    """The beginning of a stream, held until commit."""

    def __init__(self, view: StreamDecoder, exchange: Exchange, upstream: str, shape: ResponseSchema | None) -> None:
        self._upstream = upstream
        self._shape = shape
        self._view = view
        self._exchange = exchange
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._is_over = False

    async def read_until(self, is_enough: Callable[[StreamObserver], bool]) -> bytes | None:
        """Reads until `is_enough`, the end of the stream, or more than can be held. Returns an in-band error, if any.
        Raises UpstreamError."""
        view = self._view
        while not self._is_over and not is_enough(view.watch):
            if self._held_bytes > COMMIT_BYTES and not self._may_hold_more():
                return None
            chunk = await self._exchange.read()
            if not chunk:
                return self._end()
            self._hold(view.feed(chunk))
            if view.watch.error is not None:
                return view.watch.error
            if view.failure is not None:
                raise UpstreamError(view.failure.kind, view.failure.detail)
            if view.watch.malformed:
                why = "the stream does not begin with an event of this endpoint"
                raise UpstreamError(FailureKind.MALFORMED, why, is_shape_only=view.watch.is_foreign)
            if view.is_closed:
                return self._end()
        return None

    def _may_hold_more(self) -> bool:
        """Makes the view drop keep-alives before the first token. Returns False if the held bytes are not keep-alives
        and have to be passed on. Raises UpstreamError if nothing but filler comes."""
        watch = self._view.watch
        if watch.has_token:
            return False
        is_too_much = watch.dropped_bytes > _MAX_FILLER_BYTES or watch.is_in_comment
        if is_too_much or self._view.is_compressed:
            size = (self._held_bytes + watch.dropped_bytes) >> 20
            raise UpstreamError(FailureKind.MALFORMED, f"sent {size} MiB before its first token")
        watch.drops_filler = True
        return self._held_bytes <= 2 * COMMIT_BYTES

    def opened(self, first_token_at: float | None = None) -> Opened:
        exchange = self._exchange
        opened = _opened(exchange, b"".join(self._held), None if self._is_over else exchange, view=self._view)
        opened.first_token_at = first_token_at
        return opened

    def _end(self) -> bytes | None:
        """Notes that no more comes; returns an error that came in place of a stream. Raises UpstreamError."""
        watch = self._view.watch
        if not watch.has_token and (self._shape is not None or not watch.may_end):
            body = b"".join(self._held) + watch.held
            if has_error(body):
                return body
            raise no_stream(self._exchange, body, self._shape)
        if not watch.may_end:
            raise UpstreamError(FailureKind.TRUNCATED, why_cut(self._upstream, lacks_finish=watch.lacks_finish))
        self._is_over = True
        self._hold(self._view.trailing_bytes())
        return None

    def _hold(self, block: bytes) -> None:
        self._held.append(block)
        self._held_bytes += len(block)


def _in_band_failure(upstream: Upstream, exchange: Exchange, error: bytes, wall: float) -> Failure:
    """Turns an error inside a success response into the error response that it should have been."""
    verdict = classify_event(error, wall, upstream.family, upstream.errors)
    status = verdict.status
    if verdict.kind is FailureKind.OVERLOADED:
        status = DIALECTS[upstream.dialect].OVERLOADED_STATUS or status
    kept = tuple(pair for pair in exchange.headers if not pair[0].lower().startswith("content-"))
    headers = (*kept, ("Content-Type", "application/json"))
    answer = UpstreamErrorResponse(status, "", headers, error, upstream.dialect)
    detail = f"sent an error under {exchange.status} ({verdict.why})"
    return Failure(verdict.kind, detail, verdict.retry_after_s, answer=answer, is_after_head=True)


def _opened(
    exchange: Exchange,
    held: bytes,
    rest: Exchange | None,
    *,
    view: StreamDecoder | None = None,
) -> Opened:
    return Opened(exchange.status, exchange.reason, exchange.headers, held, rest, view)


def _legible(body: bytes, headers: dict[str, str]) -> bytes:
    """Returns the body for classification: inflated if it is gzip or deflate (bounded), else as it is."""
    if headers.get("content-encoding", "") not in ("gzip", "deflate"):
        return body
    try:
        return zlib.decompressobj(wbits=47).decompress(body, 4 * COMMIT_BYTES)
    except zlib.error:
        return body
