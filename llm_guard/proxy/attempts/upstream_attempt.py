"""Sends one attempt to one deployment and reads its response up to the point where it is known to be good.

Builds the request and applies the time limits up to commit. `proxy.http_client.connection_pool` is the HTTP client,
`proxy.attempts.first_response` decides when a response is good, `proxy.attempts.attempt_loop` whether to try again.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from llm_guard.clock import Clock, TimeLimit
from llm_guard.outcome import Failure, Limit
from llm_guard.proxy.attempts.fault_injection import FaultInjector
from llm_guard.proxy.attempts.first_response import judged, read_to_commit
from llm_guard.proxy.call import Attempt, Call, Exchange, Opened
from llm_guard.proxy.headers import lower_names, to_upstream
from llm_guard.proxy.http_client.connection_pool import ConnectionPool, UpstreamError
from llm_guard.proxy.request_body import model_field
from llm_guard.proxy.request_body.forwarding import ForwardedBody
from llm_guard.proxy.request_body.interfaces import FileBody
from llm_guard.proxy.request_body.reader import ArrivingBody
from llm_guard.proxy.telemetry.trace_propagation import pass_on
from llm_guard.resilience.capacity.response_memory import ResponseMemory
from llm_guard.resilience.retry.deadline import earlier, first_token_s, timeout_failure

_CLIENT_SLOW_S = 5.0
"""Servers give up a request body of which nothing arrives for 10 s or more; a failure well before that has another
cause than a slow client."""


class Upstreams:
    """Opens attempts over the connections to all upstreams."""

    def __init__(self, connections: ConnectionPool, faults: FaultInjector, clock: Clock) -> None:
        self._connections = connections
        self._injector = faults
        self._clock = clock
        self.memory = ResponseMemory()
        """Memory budget of all unary responses that are read whole."""

    async def open(self, call: Call, attempt: Attempt) -> Opened | Failure:
        """Makes one attempt, up to the point where its response is known to be good or to have failed.

        Closes the exchange at once when cancelled or out of time.
        """
        limits = _Limits(call, attempt, self._clock)
        exchange: Exchange | None = None
        attempt.on_deadline_extended = limits.renew
        try:
            with limits.scope:
                exchange = await self._send(call, attempt, limits)
                if exchange.status >= 400:
                    limits.on_refusal()
                headers = lower_names(exchange.headers)
                read = await read_to_commit(call, attempt, exchange, headers, limits, self.memory)
                outcome = judged(call, attempt, exchange, headers, read, self._clock.wall())
                if attempt.translation is not None and isinstance(outcome, Opened):
                    outcome = attempt.translation.opened(outcome)
                if limits.sending is not None and isinstance(outcome, Opened) and outcome.exchange is not None:
                    await limits.sending.ended  # the relay's limits cover the response alone
            if isinstance(outcome, Opened) and outcome.exchange is not None:
                exchange = None  # the relay closes it
            return _weighed(outcome, limits, exchange)
        except TimeoutError:
            return _weighed(limits.failure(), limits, exchange)
        except UpstreamError as error:
            failure = Failure(
                error.kind,
                error.detail,
                is_before_sending=not limits.is_connected,
                is_shape_only=error.is_shape_only,
            )
            return _weighed(failure, limits, exchange)
        finally:
            attempt.on_deadline_extended = None
            limits.is_sending_over = True
            if exchange is not None:
                exchange.abort()

    async def _send(self, call: Call, attempt: Attempt, limits: _Limits) -> Exchange:
        upstream, translation = attempt.target.deployment.upstream, attempt.translation
        origin = self._connections.origin(upstream.link)
        body: bytes | FileBody
        if translation is not None:
            is_resumed = attempt.resume_mode is not None and call.recovery is not None
            resumed = _body(call, attempt) if is_resumed and isinstance(call.body, bytes) else None
            target, headers, body = await translation.request(attempt.target, attempt.key, resumed)
            origin = translation.over(origin)
        else:
            target = _target(call, attempt)
            body = _body(call, attempt) if isinstance(call.body, bytes) else await _stored(call, attempt)
            if isinstance(call.body, ArrivingBody) and not isinstance(body, bytes):
                if upstream.signs_bodies:
                    limits.on_client_awaited()
                    await call.body.wait_complete()
                else:
                    body = limits.forwarded(body)
            is_ours = attempt.resume_mode is not None
            headers = to_upstream(call, upstream, attempt.key, is_body_ours=is_ours)
        if call.trace is not None:
            headers = pass_on(headers, call.trace, attempt)
        if self._injector.faults:
            origin = self._injector.origin_for(call, attempt, origin)
        exchange = await origin.send(call.method, target, headers, body, limits, is_repeatable=call.is_repeatable)
        if exchange.status == 411 and isinstance(call.body, ArrivingBody) and limits.lacks_length:
            exchange.abort()
            limits.on_client_awaited()
            await call.body.wait_complete()
            return await self._send(call, attempt, limits)
        return exchange


class _Limits:
    """The current time limit of an attempt: connect, then first_token or attempt, never beyond the call's deadline."""

    __slots__ = (
        "_attempt", "_awaited_from", "_call", "_connected_at", "_is_early", "_latest_at", "_latest_name", "_timeouts",
        "clock", "is_connected", "is_sending_over", "scope", "sending",
    )  # fmt: skip

    def __init__(self, call: Call, attempt: Attempt, clock: Clock) -> None:
        self.scope: TimeLimit = clock.limit()
        self._call = call
        self._attempt = attempt
        self._timeouts = attempt.target.timeouts
        self.clock = clock
        self._connected_at = 0.0
        self.is_connected = False
        self._is_early = False
        self._latest_at = 0.0
        self._latest_name: Limit = "connect"
        self._awaited_from = inf
        """The instant since which the provider waits for more of the body; infinite while it does not."""
        self.sending: ForwardedBody | None = None
        """The transfer of a body that is still arriving; None if the body was complete."""
        self.is_sending_over = False
        """True once sending the rest of the body no longer changes the limit."""

    def forwarded(self, body: FileBody) -> ForwardedBody:
        """Returns the transfer of a body that is still arriving. Its progress sets these limits."""
        self.sending = ForwardedBody(body, self)
        return self.sending

    def on_dialing(self) -> None:
        """Implements `proxy.http_client.interfaces.Dialing`."""
        self._set(self._attempt.started_at + self._timeouts.connect, "connect")

    def on_authorizing(self) -> None:
        """Implements `proxy.http_client.interfaces.Dialing`."""
        self._set(inf, "connect")

    def on_authorized(self) -> None:
        """Implements `proxy.http_client.interfaces.Dialing`. The time that it took is not the connection's."""
        took_s = self.clock.now() - self._attempt.started_at
        self._timeouts = replace(self._timeouts, connect=self._attempt.target.timeouts.connect + took_s)

    def on_connected(self) -> None:
        """Implements `proxy.http_client.interfaces.Dialing`."""
        self._connected_at = self.clock.now()
        self.is_connected = True
        if self._call.is_stream or self._call.is_upgrade:
            self.on_stream()
        else:
            self.on_unary()

    def on_stream(self) -> None:
        attempt = self._attempt
        if not attempt.first_token_s:  # no stream was expected
            attempt.first_token_s = first_token_s(
                self._timeouts, attempt.target.deployment.first_tokens, self.clock.now()
            )
        self._set(self._connected_at + attempt.first_token_s, "first_token")

    def on_first_token(self) -> None:
        """Lifts the limit to the call's deadline: the time for which a stream is held back has its own limit."""
        self._set(self._call.commit_by, "first_token")

    def on_unary(self) -> None:
        if self._latest_name != "attempt":
            self._limit_unary()

    def on_block(self) -> None:
        """Implements `forwarding.SendTimeLimits`."""
        if not self.is_sending_over:
            self._awaited_from = inf
            self._begin_again()

    def on_client_awaited(self) -> None:
        """Implements `forwarding.SendTimeLimits`."""
        if not self.is_sending_over:
            self._awaited_from = self.clock.now()
            self._set(inf, self._latest_name)

    def on_refusal(self) -> None:
        """Notes an error response: from now on the limit does not wait for the client's upload."""
        if self.sending is not None and not self.sending.is_complete:
            self.is_sending_over = True
            self._begin_again()

    @property
    def lacks_length(self) -> bool:
        """True if the body is sent chunked, which some servers refuse with 411 (RFC 9112, section 6.3)."""
        return self.sending is not None and self.sending.size is None

    @property
    def is_client_slow(self) -> bool:
        """True if the provider has waited so long for more of the body that it may well have given up."""
        return self.clock.now() - self._awaited_from >= _CLIENT_SLOW_S

    def renew(self) -> None:
        """Sets the limit again, after the call's deadline was extended."""
        self._set(self._latest_at, self._latest_name)

    def failure(self) -> Failure:
        timeouts = replace(self._timeouts, first_token=self._attempt.first_token_s)
        failure = timeout_failure(self.scope.name, timeouts, is_before_sending=not self.is_connected)
        if not self._is_early:
            return failure
        took_s = self.clock.now() - self._attempt.started_at
        detail = f"no response within {took_s:.2g} s; ended early to leave time for one more attempt"
        return replace(failure, detail=detail, is_early=True)

    def _begin_again(self) -> None:
        self._attempt.timed_from = self._connected_at = self.clock.now()
        if self._latest_name == "first_token":
            self.on_stream()
        else:
            self._limit_unary()

    def _limit_unary(self) -> None:
        limit_s = self._timeouts.attempt_s(is_client_timeout_known=self._call.client_deadline < inf)
        self._set(self._attempt.timed_from + limit_s, "attempt")

    def _set(self, at: float, name: Limit) -> None:
        self._latest_at, self._latest_name = at, name
        ends_by, commit_by = self._attempt.must_end_by, self._call.commit_by
        self._is_early = ends_by < at and ends_by < commit_by
        ends_at, limit = earlier(min(at, ends_by), name, commit_by)
        self.scope.set(ends_at, limit)


# The request


def _target(call: Call, attempt: Attempt) -> str:
    """Returns path and query of a request that is not translated."""
    target, upstream = attempt.target, attempt.target.deployment.upstream
    path, query = f"{upstream.base_path}{call.path.removeprefix(upstream.path_in_base_url)}" or "/", call.query
    if call.is_model_in_query and _is_renamed(call, attempt):
        query = model_field.rename_in_query(query, target.model or "")
    return f"{path}?{query}" if query else path


def _body(call: Call, attempt: Attempt) -> bytes:
    """Returns the request body to send, if the call's body is in memory."""
    assert isinstance(call.body, bytes)  # noqa: S101  # else `_stored` is called
    if attempt.resume_mode is not None and call.recovery is not None:
        return call.recovery.body(attempt.target, attempt.resume_mode)
    if call.is_model_in_query or not _is_renamed(call, attempt):
        return call.body
    return model_field.rename(call.body, call.content_type, call.content_encoding, attempt.target.model or "")


async def _stored(call: Call, attempt: Attempt) -> bytes | FileBody:
    """Returns the request body to send, if the call's body is in a file."""
    assert not isinstance(call.body, bytes)  # noqa: S101  # else `_body` is called
    if attempt.resume_mode is not None and call.recovery is not None:
        return call.recovery.body(attempt.target, attempt.resume_mode)
    if call.is_model_in_query or not _is_renamed(call, attempt):
        return call.body
    return await call.body.renamed(attempt.target.model or "")


def _is_renamed(call: Call, attempt: Attempt) -> bool:
    return attempt.target.model is not None and attempt.target.model != call.model


# Failures


def _weighed(outcome: Opened | Failure, limits: _Limits, exchange: Exchange | None) -> Opened | Failure:
    """Marks a failure that came before the whole request was sent, unless a success response had begun."""
    if limits.sending is None or limits.sending.is_complete or isinstance(outcome, Opened):
        return outcome
    if exchange is not None and exchange.status < 400:
        return outcome
    is_given_up = outcome.answer is None or outcome.answer.status == 408
    return replace(outcome, is_incomplete=True, is_clients_delay=is_given_up and limits.is_client_slow)
