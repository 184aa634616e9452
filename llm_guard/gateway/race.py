"""An attempt: one exchange, or two at once where the route says so and the first is slow.

Owns what is noted of an exchange as it begins and ends, and who wins. Does not own who is asked (`gateway.way`), the
exchange itself (`gateway.upstream`), nor when a second one is worth it (`policy.hedge`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from llm_guard.call import Attempt, Call, Leave, Opened, Served
from llm_guard.clock import Clock
from llm_guard.gateway.entrance import credential_of
from llm_guard.gateway.settle import settle, settle_begun, settle_host
from llm_guard.outcome import Failure, FailureKind, Scope, Signal
from llm_guard.policy.bench import Bench

Beside = tuple[Attempt, Leave]
_Racing = dict[asyncio.Task[Served | Failure], Attempt]
_LEFT = Failure(FailureKind.CLIENT_CANCELLED, "the client left")
_HEALTHY = Signal.HEALTHY
_SUPERSEDED = Failure(FailureKind.SUPERSEDED, "another attempt of the call was quicker")


class Opener(Protocol):
    """What the loop asks of `upstream.Upstreams`."""

    async def open(self, call: Call, attempt: Attempt) -> Opened | Failure:
        """One exchange, up to the point where it is known to be good or to have failed."""


class Race:
    """Asks; and where the first is slow, asks beside it."""

    def __init__(self, upstreams: Opener, bench: Bench, clock: Clock) -> None:
        self._upstreams = upstreams
        self._bench = bench
        self._clock = clock

    async def ask(self, call: Call, attempt: Attempt, leave: Leave) -> Served | Failure:
        """One exchange; what it holds is given back, or goes along with its answer."""
        call.attempts.append(attempt)
        try:
            outcome = await self._upstreams.open(call, attempt)
        except BaseException as error:
            attempt.failure = _failure_of(attempt, error)
            settle_host(attempt, leave, Signal.NO_EVIDENCE, self._clock)
            settle(attempt, leave, Signal.NO_EVIDENCE, self._clock)
            raise
        if isinstance(outcome, Failure):
            self._fail(call, attempt, leave, outcome)
            return outcome
        self._answer(call, attempt, leave, outcome)
        return Served(outcome, attempt, leave)

    async def ask_hedged(
        self, call: Call, attempt: Attempt, leave: Leave, delay_s: float, beside: Callable[[], Beside | None]
    ) -> Served | Failure:
        """The first good answer of this attempt and, if it takes longer than `delay_s`, of what `beside` gives."""
        loop = asyncio.get_running_loop()
        alarm = loop.create_task(self._clock.sleep(delay_s))
        racing = {loop.create_task(self.ask(call, attempt, leave)): attempt}
        winner: Served | Failure | None = None
        try:
            await asyncio.wait((*racing, alarm), return_when=asyncio.FIRST_COMPLETED)
            if alarm.done() and not any(task.done() for task in racing) and (second := beside()) is not None:
                racing[loop.create_task(self.ask(call, *second))] = second[0]
            winner = await _first_good(racing)
            return winner
        finally:
            alarm.cancel()
            await self._end(racing, winner)

    async def _end(self, racing: _Racing, winner: Served | Failure | None) -> None:
        """Ends who is still running; an answer that came too late is closed."""
        for task, attempt in racing.items():
            if not task.done():
                attempt.is_superseded = winner is not None
                task.cancel()
        try:
            await asyncio.wait(racing)
        except asyncio.CancelledError:
            winner = None  # the client left while the loser was ended: nobody takes the answer any more
            raise
        finally:
            for task in racing:
                if task.done() and not task.cancelled() and not task.exception() and task.result() is not winner:
                    self._close(task.result(), _SUPERSEDED if winner is not None else _LEFT)

    def _close(self, outcome: Served | Failure, why: Failure) -> None:
        if isinstance(outcome, Served):
            outcome.attempt.failure = why
            if outcome.opened.exchange is not None:
                outcome.opened.exchange.abort()
            settle(outcome.attempt, outcome.leave, Signal.HEALTHY, self._clock)

    def _fail(self, call: Call, attempt: Attempt, leave: Leave, failure: Failure) -> None:
        attempt.failure = failure
        signal = _evidence(call, failure)
        # A host is well when it accepts connections, whatever it answers.
        settle_host(attempt, leave, signal if failure.is_before_sending else Signal.HEALTHY, self._clock)
        settle(attempt, leave, signal, self._clock)
        if failure.kind.scope is Scope.CREDENTIAL and attempt.target.model is not None:
            self._bench.note_refusal(credential_of(call, attempt.target), failure, self._clock.now())

    def _answer(self, call: Call, attempt: Attempt, leave: Leave, opened: Opened) -> None:
        now = self._clock.now()
        attempt.status = opened.status
        attempt.answered_at = opened.first_token_at or now
        if opened.view is not None and call.first_token_at is None:
            call.first_token_at = now
        settle_host(attempt, leave, _HEALTHY, self._clock)
        if attempt.target.model is not None:
            self._bench.note_success(credential_of(call, attempt.target), now)
        if opened.rate is not None:
            leave.gate.note_hint(opened.rate, now)
            leave.advance(leave.gate)
        if opened.exchange is None:
            settle(attempt, leave, _HEALTHY, self._clock)
        else:
            settle_begun(attempt, leave, self._clock)


def more_useful(last: Failure | None, new: Failure) -> Failure:
    """The failure that the client is told: the newest in which an upstream said something, else the newest."""
    if last is not None and last.answer is not None and new.answer is None:
        return last
    return new


async def _first_good(racing: _Racing) -> Served | Failure:
    """The first answer; else what the last failure of all says, or the first that no attempt could change."""
    waiting = set(racing)
    last: Failure | None = None
    while waiting:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for outcome in (task.result() for task in racing if task in done):
            if isinstance(outcome, Served) or outcome.kind.is_final:
                return outcome
            last = more_useful(last, outcome)
    assert last is not None  # noqa: S101  # somebody raced
    return last


def _failure_of(attempt: Attempt, error: BaseException) -> Failure:
    if not isinstance(error, asyncio.CancelledError):
        return Failure(FailureKind.INTERNAL, type(error).__name__)
    return _SUPERSEDED if attempt.is_superseded else Failure(FailureKind.CLIENT_CANCELLED, type(error).__name__)


def _evidence(call: Call, failure: Failure) -> Signal:
    """What a failure tells of the deployment's health: nothing, where the client's patience ended first. A caller that
    waits for 10 ms must not open a breaker for everybody."""
    is_impatience = failure.limit == "total" and call.decide_by < call.deadline_at
    return Signal.NO_EVIDENCE if is_impatience or failure.is_early else failure.kind.signal
