"""An attempt: one exchange, or two at once where the route says so and the first is slow.

Owns what is noted of an exchange as it begins and ends, and who wins. Does not own who is asked (`gateway.way`), the
exchange itself (`gateway.upstream`), nor when a second one is worth it (`policy.hedge`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from llm_guard.call import Attempt, Call, Opened, Served
from llm_guard.clock import Alarm, Clock
from llm_guard.gateway.entrance import credential_of
from llm_guard.gateway.settle import settle, settle_begun, settle_host
from llm_guard.leave import Leave
from llm_guard.outcome import Failure, FailureKind, Scope, Signal
from llm_guard.policy.bench import Bench

Beside = tuple[Attempt, Leave]
_LEFT = Failure(FailureKind.CLIENT_CANCELLED, "the client left")
_HEALTHY = Signal.HEALTHY
_SUPERSEDED = Failure(FailureKind.SUPERSEDED, "another attempt of the call was quicker")
_TURNS_TO_READ = 2
"""Of the loop, before a hedge begins: a loop that was busy rings its alarms before it reads what has come meanwhile."""


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
        """The first good answer of this attempt and, if it takes longer than `delay_s`, of what `beside` gives.

        This attempt runs in the call's own task, so that until the delay has passed all it costs is an alarm.
        """
        hedge = _Hedge(self, call, attempt, beside)
        hedge.alarm = self._clock.call_at(attempt.started_at + delay_s, hedge.start)
        first: Served | Failure | None = None
        try:
            first = await self.ask(call, attempt, leave)
        except (asyncio.CancelledError, Exception):
            if not hedge.stop():
                await self._end(hedge, None, None)
                raise
        else:
            hedge.stop()
            if hedge.task is None:
                return first
        winner: Served | Failure | None = None
        try:
            winner = await _winner(hedge, first)
            return winner
        finally:
            await self._end(hedge, first, winner)

    async def ask_beside(self, call: Call, hedge: _Hedge) -> Served | Failure | None:
        """None: nobody may be asked."""
        for _ in range(_TURNS_TO_READ):
            await self._clock.sleep(0)
        entered = hedge.try_enter()
        return await self.ask(call, *entered) if entered is not None else None

    async def _end(self, hedge: _Hedge, first: Served | Failure | None, winner: Served | Failure | None) -> None:
        """Ends the hedge if it still runs; an answer that came too late is closed."""
        try:
            await hedge.end(is_superseded=winner is not None)
        except asyncio.CancelledError:
            winner = None  # the client left while the hedge was ended: nobody takes the answer any more
            raise
        finally:
            for outcome in (first, hedge.outcome):
                if isinstance(outcome, Served) and outcome is not winner:
                    outcome.attempt.wasted = _output_tokens(outcome.opened)
                    self._close(outcome, _SUPERSEDED if winner is not None else _LEFT)

    def _close(self, served: Served, why: Failure) -> None:
        served.attempt.failure = why
        if served.opened.exchange is not None:
            served.opened.exchange.abort()
        settle(served.attempt, served.leave, Signal.HEALTHY, self._clock)

    def _fail(self, call: Call, attempt: Attempt, leave: Leave, failure: Failure) -> None:
        attempt.failure = failure
        signal = _evidence(call, failure)
        # A host is well when it accepts connections, whatever it answers.
        settle_host(attempt, leave, signal if failure.is_before_sending else Signal.HEALTHY, self._clock)
        settle(attempt, leave, signal, self._clock)
        if failure.kind.scope is Scope.CREDENTIAL and attempt.target.model is not None:
            credential = credential_of(call, attempt.target, attempt.key)
            self._bench.note_refusal(credential, attempt.target.model, failure, self._clock.now(), leave.slot.source)

    def _answer(self, call: Call, attempt: Attempt, leave: Leave, opened: Opened) -> None:
        now = self._clock.now()
        attempt.status = opened.status
        attempt.answered_at = opened.first_token_at or now
        if opened.view is not None and call.first_token_at is None:
            call.first_token_at = now
        settle_host(attempt, leave, _HEALTHY, self._clock)
        if attempt.target.model is not None:
            credential = credential_of(call, attempt.target, attempt.key)
            self._bench.note_success(credential, attempt.target.model, attempt.started_at, now, leave.slot.source)
            if attempt.key is not None:
                self._note_refused_keys(call, attempt, now)
        if opened.rate is not None:
            leave.gate.note_hint(opened.rate, attempt.started_at, now, leave.slot.source)
            leave.advance(leave.gate)
        if opened.exchange is None:
            settle(attempt, leave, _HEALTHY, self._clock)
        else:
            settle_begun(attempt, leave, self._clock)

    def _note_refused_keys(self, call: Call, served: Attempt, now: float) -> None:
        """The call was served with one key: what other keys were refused for is about them, and not about the call."""
        upstream = served.target.deployment.upstream
        for each in call.attempts:
            theirs = each.target.deployment.upstream
            if each.gave_way and each.failure is not None and each.target.model is not None and theirs is upstream:
                credential = credential_of(call, each.target, each.key)
                self._bench.note_refused_alone(credential, each.target.model, each.failure, now)


class _Hedge:
    """What may come to run beside an attempt, in a task of its own; the attempt itself runs in the call's.

    Where the hedge is first, the attempt is ended as by a limit (`clock.TimeLimit`): the call's task is cancelled, and
    `stop` takes that back where the attempt was awaited. A cancellation from elsewhere goes before it.
    """

    __slots__ = (
        "_beside", "_call", "_call_task", "_cancelling", "_first", "_is_over", "_is_overtaking", "_race", "_second",
        "alarm", "task",
    )  # fmt: skip

    def __init__(self, race: Race, call: Call, first: Attempt, beside: Callable[[], Beside | None]) -> None:
        call_task = asyncio.current_task()
        assert call_task is not None  # noqa: S101  # a coroutine runs in one
        self._race = race
        self._call = call
        self._call_task = call_task
        self._cancelling = call_task.cancelling()
        self._first = first
        self._beside = beside
        self._second: Attempt | None = None
        self._is_over = self._is_overtaking = False
        self.alarm: Alarm
        self.task: asyncio.Task[Served | Failure | None] | None = None
        """None: the first was not slow."""

    def start(self) -> None:
        """The first is slow."""
        self.task = asyncio.get_running_loop().create_task(self._race.ask_beside(self._call, self))
        self.task.add_done_callback(self._overtake)

    def try_enter(self) -> Beside | None:
        """Whom to ask beside the first, if anybody may be."""
        entered = self._beside()
        if entered is not None:
            self._second = entered[0]
        return entered

    def stop(self) -> bool:
        """The first is over: nothing begins beside it any more, nor ends it. Whether it was ended for the hedge's sake
        and for nothing else."""
        self._is_over = True
        self.alarm.cancel()
        return self._is_overtaking and self._call_task.uncancel() <= self._cancelling

    @property
    def has_begun(self) -> bool:
        """Somebody is asked, or was."""
        return self._second is not None

    @property
    def outcome(self) -> Served | Failure | None:
        """None: there is none, or not yet."""
        task = self.task
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return None
        return task.result()

    async def end(self, *, is_superseded: bool) -> None:
        """Breaks it off if it still runs."""
        if self.task is None or self.task.done():
            return
        self.task.cancel()
        if self._second is not None:
            self._second.is_superseded = is_superseded
            await asyncio.wait((self.task,))

    def _overtake(self, task: asyncio.Task[Served | Failure | None]) -> None:
        """Ends the first, unless the hedge has come to nothing that the first could not mend."""
        if self._is_over or task.cancelled():
            return
        if self._call_task.cancelling() > self._cancelling:
            return  # a limit or the client has ended it already
        if task.exception() is not None or _is_last_word(task.result()):
            self._first.is_superseded = self._is_overtaking = True
            self._call_task.cancel()


async def _winner(hedge: _Hedge, first: Served | Failure | None) -> Served | Failure:
    """The first answer; else the first failure that no attempt could change, or the more useful one of both.

    `first` is None where the hedge has ended it.
    """
    task = hedge.task
    assert task is not None  # noqa: S101  # else nobody raced
    is_hedge_earlier = task.done()
    if isinstance(first, Served):
        return first
    if first is not None and not is_hedge_earlier:
        if first.kind.is_final or not hedge.has_begun:
            return first
        await asyncio.wait((task,))
    second = None if task.cancelled() else task.result()
    if first is None or _is_last_word(second):
        assert second is not None  # noqa: S101  # it has ended the first
        return second
    if first.kind.is_final or not isinstance(second, Failure):
        return first
    return more_useful(second, first) if is_hedge_earlier else more_useful(first, second)


def more_useful(last: Failure | None, new: Failure) -> Failure:
    """The failure that the client is told: the newest in which an upstream said something, else the newest."""
    if last is not None and last.answer is not None and new.answer is None:
        return last
    return new


def _output_tokens(opened: Opened) -> int:
    """Tokens generated so far: the provider's count, or one for each event of the stream."""
    view = opened.view
    usage = opened.usage if view is None else view.watch.usage
    if usage is not None and usage.output:
        return usage.output
    return view.watch.tokens if view is not None else 0


def _is_last_word(outcome: Served | Failure | None) -> bool:
    """Whether no other attempt could change it."""
    return isinstance(outcome, Served) or (outcome is not None and outcome.kind.is_final)


def _failure_of(attempt: Attempt, error: BaseException) -> Failure:
    if not isinstance(error, asyncio.CancelledError):
        return Failure(FailureKind.INTERNAL, type(error).__name__)
    return _SUPERSEDED if attempt.is_superseded else Failure(FailureKind.CLIENT_CANCELLED, type(error).__name__)


def _evidence(call: Call, failure: Failure) -> Signal:
    """What a failure tells of the deployment's health: nothing, where the client's patience ended first. A caller that
    waits for 10 ms must not open a breaker for everybody."""
    is_impatience = failure.limit == "total" and call.decide_by < call.deadline_at
    is_no_evidence = is_impatience or failure.is_early or failure.is_clients_delay
    return Signal.NO_EVIDENCE if is_no_evidence else failure.signal
