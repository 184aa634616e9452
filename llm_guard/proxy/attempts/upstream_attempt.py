"""Runs one attempt: an exchange with a deployment, or two at once where the route allows hedging and the first is slow.

Builds the request, applies the time limits up to commit, records the outcome of each exchange and picks the winner.
`proxy.http_client.connection_pool` is the HTTP client, `proxy.attempts.first_response` decides when a response is good,
`resilience.retry.hedging` when a hedge is worth it, `proxy.attempts.attempt_loop` whether to try again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Protocol

from llm_guard.clock import Alarm, Clock, TimeLimit
from llm_guard.outcome import Failure, FailureKind, Limit, Scope, Signal
from llm_guard.proxy.attempts.admission import credential_of, settle, settle_begun, settle_host
from llm_guard.proxy.attempts.fault_injection import FaultInjector
from llm_guard.proxy.attempts.first_response import judged, read_to_commit
from llm_guard.proxy.call import Attempt, Call, Delivered, Exchange, Opened
from llm_guard.proxy.headers import lower_names, to_upstream
from llm_guard.proxy.http_client.connection_pool import ConnectionPool, UpstreamError
from llm_guard.proxy.request_body import model_field
from llm_guard.proxy.request_body.forwarding import ForwardedBody
from llm_guard.proxy.request_body.interfaces import FileBody
from llm_guard.proxy.request_body.reader import ArrivingBody
from llm_guard.proxy.telemetry.trace_propagation import pass_on
from llm_guard.resilience.capacity.response_memory import ResponseMemory
from llm_guard.resilience.circuit_breaker.cooldown import Cooldowns
from llm_guard.resilience.routing.candidates import earlier, first_token_s, timeout_failure
from llm_guard.routing.lease import Lease

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


HedgeCandidate = tuple[Attempt, Lease]
_LEFT = Failure(FailureKind.CLIENT_CANCELLED, "the client disconnected")
_HEALTHY = Signal.HEALTHY
_SUPERSEDED = Failure(FailureKind.SUPERSEDED, "another attempt of the call was faster")
_TURNS_TO_READ = 2
"""Event-loop turns before a hedge begins: after a busy spell the loop runs timers before it reads from sockets, and the
first attempt's response may already be there."""


class Opener(Protocol):
    """The part of `upstream_attempt.Upstreams` that attempts use."""

    async def open(self, call: Call, attempt: Attempt) -> Opened | Failure:
        """Makes one exchange, up to the point where it is known to be good or to have failed."""


class AttemptRunner:
    """Ends attempts and, beside slow ones, runs hedges."""

    def __init__(self, upstreams: Opener, cooldowns: Cooldowns, clock: Clock) -> None:
        self._upstreams = upstreams
        self._cooldowns = cooldowns
        self._clock = clock

    def end(self, call: Call, attempt: Attempt, lease: Lease, outcome: Opened | Failure) -> Delivered | Failure:
        """Reports an attempt's outcome. Releases its lease, unless a response goes on with it."""
        if isinstance(outcome, Failure):
            self._fail(call, attempt, lease, outcome)
            return outcome
        self._answer(call, attempt, lease, outcome)
        return Delivered(outcome, attempt, lease)

    async def abandon(
        self, attempt: Attempt, lease: Lease, hedge: Hedge | None, error: BaseException
    ) -> Delivered | Failure:
        """Releases the lease of an attempt that an exception has ended, such as a cancellation, without evidence.
        Raises the exception, unless the hedge has ended the attempt: then it returns the hedge's outcome."""
        self._release(attempt, lease, error)
        if hedge is not None:
            if hedge.stop():
                return await self.better_of(hedge, None)
            await self._end(hedge, None, None)
        try:
            raise error
        finally:
            del error  # its traceback has this frame: they would keep the call until garbage is collected

    def watch(self, call: Call, attempt: Attempt, delay_s: float, beside: Callable[[], HedgeCandidate | None]) -> Hedge:
        """Returns a hedge that starts after `delay_s`, if `beside` provides one then. Its `stop` must be called when
        the attempt has ended.

        The attempt runs in the call's own task, so that until the delay has passed hedging costs only a timer.
        """
        hedge = Hedge(self, call, attempt, beside)
        hedge.alarm = self._clock.call_at(attempt.started_at + delay_s, hedge.start)
        return hedge

    async def better_of(self, hedge: Hedge, first: Delivered | Failure | None) -> Delivered | Failure:
        """Returns the first good response of an attempt and of the hedge that has started beside it. `first` is None if
        the hedge has ended the attempt."""
        winner: Delivered | Failure | None = None
        try:
            winner = await _winner(hedge, first)
            return winner
        finally:
            await self._end(hedge, first, winner)

    async def run_hedge(self, call: Call, hedge: Hedge) -> Delivered | Failure | None:
        """Makes the hedge's exchange; returns None if no deployment is available for it."""
        for _ in range(_TURNS_TO_READ):
            await self._clock.sleep(0)
        entered = hedge.try_enter()
        if entered is None:
            return None
        attempt, lease = entered
        call.attempts.append(attempt)
        try:
            opened = await self._upstreams.open(call, attempt)
        except BaseException as error:
            self._release(attempt, lease, error)
            raise
        return self.end(call, attempt, lease, opened)

    def _release(self, attempt: Attempt, lease: Lease, error: BaseException) -> None:
        attempt.failure = _failure_of(attempt, error)
        settle_host(attempt, lease, Signal.NO_EVIDENCE, self._clock)
        settle(attempt, lease, Signal.NO_EVIDENCE, self._clock)

    async def _end(self, hedge: Hedge, first: Delivered | Failure | None, winner: Delivered | Failure | None) -> None:
        """Ends the hedge if it still runs, and closes a response that came too late."""
        try:
            await hedge.end(is_superseded=winner is not None)
        except asyncio.CancelledError:
            winner = None  # the client disconnected while the hedge was being ended: no response can be delivered
            raise
        finally:
            for outcome in (first, hedge.outcome):
                if isinstance(outcome, Delivered) and outcome is not winner:
                    outcome.attempt.wasted = _output_tokens(outcome.opened)
                    self._close(outcome, _SUPERSEDED if winner is not None else _LEFT)

    def _close(self, served: Delivered, why: Failure) -> None:
        served.attempt.failure = why
        if served.opened.exchange is not None:
            served.opened.exchange.abort()
        settle(served.attempt, served.lease, Signal.HEALTHY, self._clock)

    def _fail(self, call: Call, attempt: Attempt, lease: Lease, failure: Failure) -> None:
        attempt.failure = failure
        signal = _evidence(call, failure)
        # A host is healthy if it accepts connections, with any response.
        settle_host(attempt, lease, signal if failure.is_before_sending else Signal.HEALTHY, self._clock)
        settle(attempt, lease, signal, self._clock)
        if failure.kind.scope is Scope.CREDENTIAL and attempt.target.model is not None:
            credential = credential_of(call, attempt.target, attempt.key)
            self._cooldowns.note_refusal(
                credential, attempt.target.model, failure, self._clock.now(), lease.slot.source
            )

    def _answer(self, call: Call, attempt: Attempt, lease: Lease, opened: Opened) -> None:
        now = self._clock.now()
        attempt.status = opened.status
        attempt.answered_at = opened.first_token_at or now
        if opened.view is not None and call.first_token_at is None:
            call.first_token_at = now
        settle_host(attempt, lease, _HEALTHY, self._clock)
        if attempt.target.model is not None:
            credential = credential_of(call, attempt.target, attempt.key)
            self._cooldowns.note_success(credential, attempt.target.model, attempt.started_at, now, lease.slot.source)
            if attempt.key is not None:
                self._note_refused_keys(call, attempt, now)
        if opened.rate is not None:
            lease.gate.note_hint(opened.rate, attempt.started_at, now, lease.slot.source)
            lease.notify_waiters(lease.gate)
        if opened.exchange is None:
            settle(attempt, lease, _HEALTHY, self._clock)
        else:
            settle_begun(attempt, lease, self._clock)

    def _note_refused_keys(self, call: Call, served: Attempt, now: float) -> None:
        """Counts earlier refusals of other keys against those keys: this call was served, so it was not at fault."""
        upstream = served.target.deployment.upstream
        for attempt in call.attempts:
            theirs = attempt.target.deployment.upstream
            if (
                attempt.gave_way
                and attempt.failure is not None
                and attempt.target.model is not None
                and theirs is upstream
            ):
                credential = credential_of(call, attempt.target, attempt.key)
                self._cooldowns.note_refused_alone(credential, attempt.target.model, attempt.failure, now)


def _failure_of(attempt: Attempt, error: BaseException) -> Failure:
    if not isinstance(error, asyncio.CancelledError):
        return Failure(FailureKind.INTERNAL, type(error).__name__)
    return _SUPERSEDED if attempt.is_superseded else Failure(FailureKind.CLIENT_CANCELLED, type(error).__name__)


class Hedge:
    """A second attempt that may run beside the first one, in its own task; the first runs in the call's task.

    If the hedge wins, the first attempt is ended the way a time limit does it (`clock.TimeLimit`): the call's task is
    cancelled, and `stop` uncancels it where the attempt was awaited. A cancellation from elsewhere takes precedence.
    """

    __slots__ = (
        "_beside", "_call", "_call_task", "_cancelling", "_first", "_is_over", "_is_overtaking", "_runner", "_second",
        "alarm", "task",
    )  # fmt: skip

    def __init__(
        self, runner: AttemptRunner, call: Call, first: Attempt, beside: Callable[[], HedgeCandidate | None]
    ) -> None:
        call_task = asyncio.current_task()
        assert call_task is not None  # noqa: S101  # a coroutine runs in one
        self._runner = runner
        self._call = call
        self._call_task = call_task
        self._cancelling = call_task.cancelling()
        self._first = first
        self._beside = beside
        self._second: Attempt | None = None
        self._is_over = self._is_overtaking = False
        self.alarm: Alarm
        self.task: asyncio.Task[Delivered | Failure | None] | None = None
        """None while the first attempt has not been slow."""

    def start(self) -> None:
        """Starts the hedge: the first attempt is slow."""
        self.task = asyncio.get_running_loop().create_task(self._runner.run_hedge(self._call, self))
        self.task.add_done_callback(self._overtake)

    def try_enter(self) -> HedgeCandidate | None:
        """Returns the attempt to make beside the first one, if a deployment is available."""
        entered = self._beside()
        if entered is not None:
            self._second = entered[0]
        return entered

    def stop(self) -> bool:
        """Marks the first attempt as over: no hedge starts any more, and none cancels the call's task.

        Returns True if the first attempt was cancelled only because the hedge had won.
        """
        self._is_over = True
        self.alarm.cancel()
        return self._is_overtaking and self._call_task.uncancel() <= self._cancelling

    @property
    def has_begun(self) -> bool:
        """True once the hedge's exchange has been started."""
        return self._second is not None

    @property
    def outcome(self) -> Delivered | Failure | None:
        """The hedge's outcome; None if there is none yet."""
        task = self.task
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return None
        return task.result()

    async def end(self, *, is_superseded: bool) -> None:
        """Cancels the hedge if it still runs."""
        if self.task is None or self.task.done():
            return
        self.task.cancel()
        if self._second is not None:
            self._second.is_superseded = is_superseded
            await asyncio.wait((self.task,))

    def _overtake(self, task: asyncio.Task[Delivered | Failure | None]) -> None:
        """Ends the first attempt, unless the hedge failed in a way that the first attempt may still make good."""
        if self._is_over or task.cancelled():
            return
        if self._call_task.cancelling() > self._cancelling:
            return  # a limit or the client has ended it already
        if task.exception() is not None or _is_last_word(task.result()):
            self._first.is_superseded = self._is_overtaking = True
            self._call_task.cancel()


async def _winner(hedge: Hedge, first: Delivered | Failure | None) -> Delivered | Failure:
    """Returns the first response; else the first final failure, or the more useful one of both failures.

    `first` is None if the hedge has ended the first attempt.
    """
    task = hedge.task
    assert task is not None  # noqa: S101  # else there was no hedge
    is_hedge_earlier = task.done()
    if isinstance(first, Delivered):
        return first
    if first is not None and not is_hedge_earlier:
        if first.kind.is_final or not hedge.has_begun:
            return first
        await asyncio.wait((task,))
    second = None if task.cancelled() else task.result()
    if first is None or _is_last_word(second):
        assert second is not None  # noqa: S101  # it has ended the first attempt
        return second
    if first.kind.is_final or not isinstance(second, Failure):
        return first
    return more_useful(second, first) if is_hedge_earlier else more_useful(first, second)


def more_useful(last: Failure | None, new: Failure) -> Failure:
    """Returns the failure to report to the client: the newest one with an upstream's response, else the newest."""
    if last is not None and last.answer is not None and new.answer is None:
        return last
    return new


def _output_tokens(opened: Opened) -> int:
    """Returns the tokens generated so far: the provider's count, else one for each event of the stream."""
    view = opened.view
    usage = opened.usage if view is None else view.watch.usage
    if usage is not None and usage.output:
        return usage.output
    return view.watch.tokens if view is not None else 0


def _is_last_word(outcome: Delivered | Failure | None) -> bool:
    """Returns True if no other attempt could change the outcome."""
    return isinstance(outcome, Delivered) or (outcome is not None and outcome.kind.is_final)


def _evidence(call: Call, failure: Failure) -> Signal:
    """Returns what a failure shows of the deployment's health: no evidence if the client's own timeout ended it first,
    for a caller with a timeout of 10 ms must not open a breaker for all others."""
    is_impatience = failure.limit == "total" and call.client_deadline < call.deadline_at
    is_no_evidence = is_impatience or failure.is_early or failure.is_clients_delay
    return Signal.NO_EVIDENCE if is_no_evidence else failure.signal
