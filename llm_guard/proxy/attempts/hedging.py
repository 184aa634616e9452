"""Ends attempts, and runs two at once where the route allows hedging and the first is slow.

Records the outcome of each attempt and picks the winner. `proxy.attempts.candidate_selection` selects the deployments,
`proxy.attempts.upstream_attempt` makes the exchange, and `resilience.retry.hedging` decides when a hedge is worth it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from llm_guard.clock import Alarm, Clock
from llm_guard.outcome import Failure, FailureKind, Scope, Signal
from llm_guard.proxy.attempts.admission import credential_of, settle, settle_begun, settle_host
from llm_guard.proxy.call import Attempt, Call, Delivered, Opened
from llm_guard.resilience.circuit_breaker.cooldown import Cooldowns
from llm_guard.routing.lease import Lease

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
        raise error

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
