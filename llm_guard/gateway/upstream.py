"""One exchange with one deployment: sent, and opened up to the point where it is known to be good.

Owns what is sent, the limits up to commit, and when an answer is good. Does not own the HTTP client
(`gateway.connections`) nor whether to try again (`gateway.attempt_loop`).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec

from llm_guard.call import Attempt, Call, Exchange, Opened
from llm_guard.clock import Clock, TimeLimit
from llm_guard.deployment import Upstream
from llm_guard.dialect import DIALECTS
from llm_guard.dialect.sse import Usage
from llm_guard.gateway import headers as header_rules
from llm_guard.gateway import model_field
from llm_guard.gateway.connections import Connections, UpstreamError
from llm_guard.gateway.stream_view import StreamView, view_of
from llm_guard.outcome import Answer, Failure, FailureKind, Limit
from llm_guard.policy.classify import classify_answer, classify_event
from llm_guard.policy.deadline import TimeoutSettings, earlier
from llm_guard.policy.rate_hints import rate_hint
from llm_guard.routes import Target

COMMIT_BYTES = 1 << 20
"""A unary body up to this size is read whole before commit, so that a cut one is retried; a larger one commits here."""


class Upstreams:
    """Opens attempts over the connections to all upstreams."""

    def __init__(self, connections: Connections, clock: Clock) -> None:
        self._connections = connections
        self._clock = clock

    async def open(self, call: Call, attempt: Attempt) -> Opened | Failure:
        """One attempt, up to the point where its answer is known to be good, or known to have failed.

        Cancelled, or out of time, it closes the exchange at once.
        """
        target = attempt.target
        limits = _Limits(call, attempt, self._clock)
        exchange: Exchange | None = None
        try:
            async with limits.scope:
                limits.on_start()
                exchange = await self._send(call, target, limits.on_connected)
                outcome = await _read_to_commit(call, target.deployment.upstream, exchange, limits)
            if isinstance(outcome, Opened) and outcome.exchange is not None:
                exchange = None  # the relay's to end
            return outcome
        except TimeoutError:
            return limits.failure()
        except UpstreamError as error:
            return Failure(error.kind, error.detail, is_before_sending=not limits.is_connected)
        finally:
            if exchange is not None:
                exchange.abort()

    async def _send(self, call: Call, target: Target, on_connected: Callable[[], None]) -> Exchange:
        url, headers, body = _request(call, target)
        return await self._connections.send(
            call.method, url, headers, body, on_connected, is_repeatable=call.is_repeatable
        )


class _Limits:
    """The one time limit of an attempt: connect, then first_token or attempt, never beyond the call's deadline."""

    def __init__(self, call: Call, attempt: Attempt, clock: Clock) -> None:
        self.scope: TimeLimit = clock.limit()
        self._call = call
        self._attempt = attempt
        self._timeouts = attempt.target.timeouts
        self._clock = clock
        self._started_at = clock.now()
        self._connected_at = self._started_at
        self.is_connected = False
        self._is_early = False

    def on_start(self) -> None:
        self._set(self._started_at + self._timeouts.connect, "connect")

    def on_connected(self) -> None:
        self._connected_at = self._clock.now()
        self.is_connected = True
        if self._call.is_stream or self._call.is_upgrade:
            self.on_stream()
        else:
            self.on_unary()

    def on_stream(self) -> None:
        self._set(self._connected_at + self._attempt.first_token_s, "first_token")

    def on_unary(self) -> None:
        self._set(self._started_at + self._timeouts.attempt, "attempt")

    def failure(self) -> Failure:
        timeouts = replace(self._timeouts, first_token=self._attempt.first_token_s)
        failure = timeout_failure(self.scope.name, timeouts, is_before_sending=not self.is_connected)
        if not self._is_early:
            return failure
        took_s = self._clock.now() - self._started_at
        detail = f"no answer within {took_s:.2g} s, when time was left for one more attempt"
        return replace(failure, detail=detail, is_early=True)

    def wall(self) -> float:
        return self._clock.wall()

    def _set(self, at: float, name: Limit) -> None:
        self._is_early = self._attempt.ends_by < min(at, self._call.commit_by)
        self.scope.set(*earlier(min(at, self._attempt.ends_by), name, self._call.commit_by))


# What is sent


def _request(call: Call, target: Target) -> tuple[str, list[tuple[str, str]], bytes]:
    upstream = target.deployment.upstream
    # An openai base_url stands for /v1, an anthropic one for the root: the conventions of their SDKs.
    path = call.path.removeprefix("/v1") if upstream.dialect == "openai" else call.path
    query, body = call.query, call.body
    if target.model is not None and target.model != call.model:
        if call.is_model_in_query:
            query = model_field.rename_in_query(query, target.model)
        else:
            body = model_field.rename(body, call.content_type, call.content_encoding, target.model)
    url = f"{upstream.base_url}{path}{'?' if query else ''}{query}"
    return url, header_rules.to_upstream(call, upstream), body


# What comes back, up to commit


async def _read_to_commit(call: Call, upstream: Upstream, exchange: Exchange, limits: _Limits) -> Opened | Failure:
    if exchange.status >= 400:
        return await _error_answer(upstream, exchange, limits)
    if exchange.status == 101:
        if not call.is_upgrade:
            raise UpstreamError(FailureKind.MALFORMED, "it switched protocols unasked")
        return _opened(exchange, b"", exchange)
    headers = header_rules.lower_names(exchange.headers)
    if headers.get("content-type", "").lower().startswith("text/event-stream"):
        limits.on_stream()
        opened = await _first_event(call, exchange, headers.get("content-encoding", ""))
    else:
        limits.on_unary()
        opened = await _whole_body(call, exchange, headers)
    if isinstance(opened, Opened):
        opened.rate = rate_hint(headers, limits.wall()) if call.model is not None else None
    return opened if isinstance(opened, Opened) else _in_band_failure(upstream, exchange, opened, limits.wall())


async def _error_answer(upstream: Upstream, exchange: Exchange, limits: _Limits) -> Failure:
    body, is_whole = await _error_body(exchange)
    headers = header_rules.lower_names(exchange.headers)
    verdict = classify_answer(
        exchange.status, headers, _legible(body, headers), limits.wall(), upstream.family, upstream.errors
    )
    answer = Answer(exchange.status, exchange.reason, exchange.headers, body) if is_whole else None
    detail = f"answered {exchange.status} ({verdict.why})"
    return Failure(verdict.kind, detail, verdict.retry_after_s, answer=answer)


async def _error_body(exchange: Exchange) -> tuple[bytes, bool]:
    """The body of an error answer and whether that is all of it: the status stands even when the body is cut."""
    body = b""
    try:
        while chunk := await exchange.read():
            body += chunk
            if len(body) > COMMIT_BYTES:
                return body, False
    except UpstreamError:
        return body, False
    return body, True


async def _first_event(call: Call, exchange: Exchange, encoding: str) -> Opened | bytes:
    """Holds a stream back until its first useful event: until then it may still turn out to be an error, which is
    what it returns then."""
    view = view_of(DIALECTS[call.dialect].stream_reader(call.path, call.choices), encoding)
    held = b""
    while chunk := await exchange.read():
        held += view.feed(chunk)
        watch = view.watch
        if watch is None:
            return _opened(exchange, held, exchange, view=view)
        if watch.error is not None:
            return watch.error
        if watch.malformed:
            raise UpstreamError(FailureKind.MALFORMED, "the stream began with an event that is not JSON")
        if watch.has_token or len(held) > COMMIT_BYTES:
            return _opened(exchange, held, exchange, view=view)
    if view.watch is not None and not view.watch.may_end:
        raise UpstreamError(FailureKind.TRUNCATED, "the stream ended before its first token")
    return _opened(exchange, held + view.rest(), None, view=view)


async def _whole_body(call: Call, exchange: Exchange, headers: dict[str, str]) -> Opened | bytes:
    """The answer, or the error that stands in its place: xAI and OpenRouter send one under 200."""
    chunks = []
    size = 0
    while chunk := await exchange.read():
        chunks.append(chunk)
        size += len(chunk)
        if size > COMMIT_BYTES:
            return _opened(exchange, b"".join(chunks), exchange)
    body = b"".join(chunks)
    if call.model is None or not headers.get("content-type", "").startswith("application/json"):
        return _opened(exchange, body, None)
    legible = _legible(body, headers)
    answer = _unary(legible)
    if answer is not None and answer.is_error:
        return legible
    usage = DIALECTS[call.dialect].usage_in({"usage": answer.usage}) if answer is not None else None
    return _opened(exchange, body, None, usage=usage)


def _in_band_failure(upstream: Upstream, exchange: Exchange, error: bytes, wall: float) -> Failure:
    """Before commit an error inside a success can still become what it should have been: an error answer."""
    verdict = classify_event(error, wall, upstream.family, upstream.errors)
    is_529 = upstream.dialect == "anthropic" and verdict.kind is FailureKind.OVERLOADED  # Anthropic's own status for it
    kept = tuple(pair for pair in exchange.headers if not pair[0].lower().startswith("content-"))
    answer = Answer(529 if is_529 else verdict.status, "", (*kept, ("Content-Type", "application/json")), error)
    detail = f"sent an error under {exchange.status} ({verdict.why})"
    return Failure(verdict.kind, detail, verdict.retry_after_s, answer=answer, is_after_head=True)


def _opened(
    exchange: Exchange,
    held: bytes,
    rest: Exchange | None,
    *,
    view: StreamView | None = None,
    usage: Usage | None = None,
) -> Opened:
    return Opened(exchange.status, exchange.reason, exchange.headers, held, rest, view, usage)


class _Body(msgspec.Struct):
    """What is read of a unary JSON answer; reading it also shows whether the JSON is whole."""

    usage: Any = None
    error: Any = None
    object: Any = None

    @property
    def is_error(self) -> bool:
        """`"error": null` is what every Responses object has, and a failed one carries its error to the client."""
        return self.object == "error" or (bool(self.error) and self.object != "response")


_BODY = msgspec.json.Decoder(_Body)


def _unary(body: bytes) -> _Body | None:
    """What is read of a unary answer; raises UpstreamError when its JSON ends too early."""
    try:
        return _BODY.decode(body)
    except msgspec.MsgspecError as error:
        if "truncated" in str(error):
            raise UpstreamError(FailureKind.TRUNCATED, "the JSON of the answer was cut") from None
        return None  # odd, or not an object: the client's to judge
    except RecursionError:
        return None


def _legible(body: bytes, headers: dict[str, str]) -> bytes:
    """The body as text, for looking: inflated where we can, bounded; the compressed bytes where we cannot."""
    if headers.get("content-encoding", "") not in ("gzip", "deflate"):
        return body
    try:
        return zlib.decompressobj(wbits=47).decompress(body, 4 * COMMIT_BYTES)
    except zlib.error:
        return body


# What went wrong


def timeout_failure(name: str, timeouts: TimeoutSettings, *, is_before_sending: bool = False) -> Failure:
    """The failure of an exchange that ran out of time; `name` is the limit's."""
    said = {
        "connect": f"no connection within {timeouts.connect:g} s",
        "first_token": f"no first token within {timeouts.first_token:g} s",
        "idle": f"silent for {timeouts.idle:g} s in the middle of the stream",
        "attempt": f"no complete answer within {timeouts.attempt:g} s",
        "total": "the time of the whole call, or the client's patience, is used up",
    }
    limit: Limit = name  # type: ignore[assignment]  # TimeLimit carries the name we gave it
    kind = FailureKind.CONNECT_TIMEOUT if name == "connect" else FailureKind.TIMEOUT
    return Failure(kind, said[name], limit=limit, is_before_sending=is_before_sending)
