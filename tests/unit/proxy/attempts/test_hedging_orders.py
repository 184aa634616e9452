"""A hedged pair in which all events happen almost at once, in every order: which attempt wins, and what is released."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import permutations, product
from typing import Any, Literal

import pytest

from llm_guard.dialects import DIALECTS
from llm_guard.dialects.sse import Usage
from llm_guard.outcome import Exhausted, Failure, FailureKind, Signal
from llm_guard.proxy.attempts.admission import settle
from llm_guard.proxy.attempts.attempt_loop import AttemptLoop
from llm_guard.proxy.call import Attempt, Call, Delivered, Opened
from llm_guard.proxy.streams.decoder import view_of
from llm_guard.proxy.telemetry.access_log import tokens_of
from llm_guard.resilience.circuit_breaker.breaker import Breaker, BreakerSettings, Permit
from llm_guard.resilience.circuit_breaker.cooldown import Cooldowns
from llm_guard.resilience.circuit_breaker.history import Transition
from llm_guard.resilience.retry.backoff import RetrySettings
from llm_guard.resilience.retry.hedging import HedgeBudget, HedgeSettings
from llm_guard.routing.route_table import Hedging
from tests.effort import some
from tests.fakes.clock import ManualClock, ManualLimit, let_run
from tests.fakes.script import OK, UNAVAILABLE, new_call, new_route, new_target, open_stream

What = Literal["answers", "fails", "fails for good", "breaks", "is out of time"]
Event = tuple[int, What] | Literal["the client leaves", "the first is slow"]
ALL: tuple[What, ...] = ("answers", "fails", "fails for good", "breaks", "is out of time")
LAST_WORDS = ("answers", "fails for good", "breaks")
LEAVES: Event = "the client leaves"
SLOW: Event = "the first is slow"
UNHEARD: list[dict[str, Any]] = []
"""Contexts passed to the loop's exception handler: errors of tasks that were never awaited."""
LATER = 12
"""Number of loop iterations after which all tasks are idle."""
TOKENS = 3
"""Number of tokens of a stream that has begun."""
GAPS = (0, 1, 2, 3, LATER)

FINAL = Failure(FailureKind.INVALID_REQUEST, "answered 400 (status 400)")
OUT_OF_TIME = Failure(FailureKind.TIMEOUT, "no first token within 30 s", limit="first_token")


class Host(Breaker):
    """Counts the permits it has granted and those it got back."""

    given = returned = 0

    def try_acquire(self, now: float) -> Permit | None:
        self.given += 1
        return super().try_acquire(now)

    def settle(self, permit: Permit, signal: Signal, now: float, duration_s: float | None = None) -> Transition | None:
        assert not permit.is_settled
        self.returned += 1
        return super().settle(permit, signal, now, duration_s)


@dataclass
class Side:
    """One exchange, which ends when the test says so."""

    limit: ManualLimit
    told: asyncio.Future[Opened | Failure | Exception] = field(default_factory=asyncio.Future)
    stream: Opened | None = None
    is_over: bool = False

    def hear(self, what: What) -> None:
        """Delivers an outcome, unless the exchange is over or already has one."""
        if what == "is out of time":
            if not self.is_over:
                self.limit.fire()
        elif not self.told.done():
            self.told.set_result(outcome_of(what))

    async def run(self) -> Opened | Failure:
        """Waits for the outcome as `proxy.attempts.upstream_attempt` does."""
        try:
            with self.limit:
                self.limit.set(2000.0, "first_token")
                outcome = await self.told
        except TimeoutError:
            return OUT_OF_TIME
        finally:
            self.is_over = True
        if isinstance(outcome, Exception):
            raise outcome
        self.stream = outcome if isinstance(outcome, Opened) else None
        return outcome


def outcome_of(what: What) -> Opened | Failure | Exception:
    match what:
        case "fails":
            return UNAVAILABLE
        case "fails for good":
            return FINAL
        case "breaks":
            return RuntimeError("a bug")
        case _:
            return stream_of(TOKENS)


def stream_of(tokens: int) -> Opened:
    """Returns a stream of which the upstream has sent this many tokens."""
    view = view_of(DIALECTS["openai"].stream_reader("/v1/chat/completions", 1), "")
    view.watch.tokens = tokens
    return replace(open_stream(), view=view)


class Race:
    """One call to one deployment, which may be hedged there and is not retried."""

    def __init__(self, *, is_stubborn: bool = False) -> None:
        """Creates a race. With `is_stubborn` a cancelled exchange returns its answer nevertheless."""
        asyncio.get_running_loop().set_exception_handler(lambda _, context: UNHEARD.append(context))
        self.clock = ManualClock()
        self._is_stubborn = is_stubborn
        self.sides: list[Side] = []
        self.host = Host(BreakerSettings())
        self.target = new_target("a/x", host=self.host, retry=RetrySettings(jitter=0.0, max_attempts=1))
        settings = HedgeSettings(after=0.5, max_extra=1.0)
        self.route = new_route(self.target, hedging=Hedging(settings, HedgeBudget(settings)))
        self.call = new_call(is_stream=True)
        self.call.route = self.route
        self.left = 0
        """Number of client disconnects while the call ran."""
        self.is_over = False
        self.cancelling = 0
        """Value of `Task.cancelling()` of the call's task at the end of the call."""
        self.unsettled: list[Attempt] = []
        """Attempts that had not ended by then."""
        self.task: asyncio.Task[Delivered | Exhausted] = asyncio.ensure_future(self._run())

    async def open(self, _call: Call, _attempt: Attempt) -> Opened | Failure:
        side = Side(self.clock.limit())
        self.sides.append(side)
        try:
            return await side.run()
        except asyncio.CancelledError:
            if not self._is_stubborn:
                raise
            side.stream = stream_of(TOKENS)
            return side.stream

    def let(self, event: Event) -> None:
        if event == "the first is slow":
            if not self.is_over:
                self.clock.advance(0.5)
                self.clock.ring_due()
        elif event == "the client leaves":
            if not self.is_over:
                self.left += 1
                self.task.cancel()
        elif len(self.sides) > event[0]:
            self.sides[event[0]].hear(event[1])

    async def play(self, events: Iterable[tuple[int, Event]]) -> Delivered | Exhausted | BaseException:
        """Delivers each event the given number of iterations after the one before; returns the result of the call."""
        for turns, event in events:
            await let_run(turns)
            self.let(event)
        await let_run(2 * LATER)
        for side in self.sides:
            side.hear("answers")
        result: Delivered | Exhausted | BaseException
        try:
            result = await self.task
        except (asyncio.CancelledError, RuntimeError) as error:
            result = error
        self._check(result)
        return result

    async def _run(self) -> Delivered | Exhausted:
        task = asyncio.current_task()
        assert task is not None
        try:
            loop = AttemptLoop(self, Cooldowns(), self.clock, lambda: 0.0)
            return await loop.next_response(loop.begin(self.call, self.route))
        finally:
            self.is_over = True
            self.cancelling = task.cancelling()
            self.unsettled = [attempt for attempt in self.call.attempts if attempt.ended_at is None]
            await let_run(3)  # a late cancellation would arrive here

    def _check(self, result: Delivered | Exhausted | BaseException) -> None:
        # A cancellation by the client persists, and there is no other one.
        assert isinstance(result, asyncio.CancelledError) == (self.left > 0)
        assert self.cancelling == self.left
        kept = result.opened if isinstance(result, Delivered) else None
        if self.left < 2:  # after a second disconnect the hedge's end is not awaited
            assert self.unsettled == ([result.attempt] if isinstance(result, Delivered) else [])
        closed = [
            attempt.outcome
            for side, attempt in zip(self.sides, self.call.attempts, strict=True)
            if side.stream not in (kept, None)
        ]
        if not isinstance(result, RuntimeError):
            assert set(closed) <= {"client_cancelled" if self.left else "superseded"}
        streams: list[Any] = [side.stream for side in self.sides if side.stream is not None]
        assert [stream for stream in streams if not stream.exchange.is_aborted] == ([kept] if kept is not None else [])
        assert tokens_of(self.call).get("wasted", 0) == TOKENS * sum(stream.exchange.is_aborted for stream in streams)
        answered = [each for each in self.call.attempts if each.outcome == "ok"]
        assert answered == ([result.attempt] if isinstance(result, Delivered) else [])
        if isinstance(result, Delivered):
            settle(result.attempt, result.lease, Signal.HEALTHY, self.clock)
        self._check_all_is_given_back()

    def _check_all_is_given_back(self) -> None:
        deployment, now = self.target.deployment, self.clock.now()
        assert self.host.given == self.host.returned == len(self.sides)
        assert all(attempt.ended_at is not None for attempt in self.call.attempts)
        assert deployment.gates.in_flight == 0
        assert [gate.snapshot(now).in_flight for gate in deployment.gates.all()] == [0]
        assert (deployment.breaker.snapshot(now).leases, deployment.host.snapshot(now).leases) == (0, 0)
        assert not [alarm for alarm in self.clock.alarms if not alarm.is_cancelled and not alarm.has_rung]
        assert asyncio.all_tasks() == {asyncio.current_task()}


def orders(events: Iterable[Event], gaps: Iterable[int] = GAPS) -> Iterator[list[tuple[int, Event]]]:
    """Yields all orders with all gaps (`tests.effort`); the first event comes when all tasks are idle."""
    events, gaps = list(events), list(gaps)
    for order, turns in some([*product(permutations(events), product(gaps, repeat=len(events) - 1))]):
        yield list(zip((LATER, *turns), order, strict=True))


async def hedged(events: list[tuple[int, Event]]) -> tuple[Race, Delivered | Exhausted | BaseException]:
    race = Race()
    result = await race.play([(LATER, SLOW), *events])
    assert len(race.sides) == 2
    return race, result


@pytest.fixture(autouse=True)
def _nothing_is_lost() -> Iterator[None]:
    UNHEARD.clear()
    yield
    assert not UNHEARD


def told(result: Delivered | Exhausted | BaseException, race: Race) -> int | Failure | None:
    """Returns the index of the attempt that was served, or the failure that the client gets; None for a bug."""
    if isinstance(result, Delivered):
        return race.call.attempts.index(result.attempt)
    return result.failure if isinstance(result, Exhausted) else None


def result_of(side: int, what: What) -> int | Failure | None:
    """Returns the result if this side is the last to finish."""
    outcome = outcome_of(what)
    if isinstance(outcome, Opened):
        return side
    return outcome if isinstance(outcome, Failure) else None


@pytest.mark.parametrize("second", ALL)
@pytest.mark.parametrize("first", ALL)
async def test_last_event_decides_and_of_two_the_earlier(first: What, second: What) -> None:
    for events in orders([(0, first), (1, second)]):
        race, result = await hedged(events)
        assert told(result, race) in expected(events), events


def expected(events: list[tuple[int, Event]]) -> list[int | Failure | None]:
    last_words = [each for _, each in events if isinstance(each, tuple) and each[1] in LAST_WORDS]
    if not last_words:
        said = {each[1] for _, each in events if isinstance(each, tuple)}
        return [UNAVAILABLE if "fails" in said else OUT_OF_TIME]
    is_apart = events[-1][0] == LATER
    return [result_of(*each) for each in (last_words[:1] if is_apart else last_words)]


@pytest.mark.parametrize("second", ALL)
@pytest.mark.parametrize("first", ALL)
async def test_client_that_leaves_at_any_moment_ends_both(first: What, second: What) -> None:
    for events in orders([(0, first), (1, second), LEAVES], (0, 1, 2, 3)):
        race, result = await hedged(events)
        if events[0][1] == LEAVES:
            assert isinstance(result, asyncio.CancelledError)
            assert {attempt.outcome for attempt in race.call.attempts} <= {"client_cancelled", "superseded"}


@pytest.mark.parametrize("second", ["answers", "fails", "fails for good"])
@pytest.mark.parametrize("first", ["answers", "fails for good", "breaks"])
async def test_limit_and_answer_at_one_instant_end_an_attempt_once(first: What, second: What) -> None:
    """The attempt's limit, the hedge and the client all cancel the same task."""
    for events in orders([(0, first), (0, "is out of time"), (1, second)]):
        race, result = await hedged(events)
        assert told(result, race) in (result_of(0, first), result_of(1, second), OUT_OF_TIME)
        if first == second == "answers":
            assert isinstance(result, Delivered)
    for events in orders([(0, first), (0, "is out of time"), (1, second), LEAVES], (0, 1, 2)):
        await hedged(events)


async def test_total_deadline_of_both_at_one_instant() -> None:
    for events in orders([(0, "is out of time"), (1, "is out of time"), (1, "answers"), LEAVES], (0, 1, 2)):
        await hedged(events)


@pytest.mark.parametrize("second", ALL)
async def test_client_that_leaves_twice(second: What) -> None:
    """Happens when a connection breaks while a drain ends its call."""
    for events in orders([(0, "answers"), (1, second), LEAVES, LEAVES], (0, 1, 2)):
        await hedged(events)


@pytest.mark.parametrize("first", ALL)
async def test_hedge_that_is_to_begin_at_that_moment(first: What) -> None:
    for events in orders([SLOW, (0, first), LEAVES], (0, 1, 2, 3, 4)):
        race = Race()
        await race.play(events)
        assert len(race.sides) <= (1 if events[0][1] == LEAVES or events[-1][1] == SLOW else 2)
        if events[0][1] != SLOW:
            assert len(race.sides) == 1


async def test_attempt_that_ends_at_the_moment_of_the_hedges_answer_has_an_end_of_its_own() -> None:
    race, _ = await hedged([(LATER, (1, "answers")), (0, (0, "is out of time"))])
    assert [attempt.outcome for attempt in race.call.attempts] == ["timeout", "ok"]
    race, _ = await hedged([(LATER, (1, "answers")), (1, LEAVES)])
    assert [attempt.outcome for attempt in race.call.attempts] == ["client_cancelled", "client_cancelled"]


@pytest.mark.parametrize("second", LAST_WORDS)
async def test_first_that_answers_in_spite_of_being_ended(second: What) -> None:
    race = Race(is_stubborn=True)
    result = await race.play([(LATER, SLOW), (LATER, (1, second))])
    assert told(result, race) == 0


@pytest.mark.parametrize(("usage", "wasted"), [(Usage(10, 7), {"wasted": 7}), (Usage(10), {}), (None, {})])
async def test_tokens_of_a_unary_response_that_came_too_late_are_wasted(
    usage: Usage | None, wasted: dict[str, int]
) -> None:
    race = Race()
    await let_run(LATER)
    race.let(SLOW)
    await let_run(LATER)
    for side in reversed(race.sides):
        side.told.set_result(replace(OK, usage=usage))
    assert isinstance(await race.task, Delivered)
    assert tokens_of(race.call) == wasted


@pytest.mark.parametrize("first", ["answers", "fails", "fails for good", "breaks"])
async def test_buffered_data_of_the_first_is_read_before_a_hedge_begins(first: What) -> None:
    race = Race()
    await race.play([(LATER, SLOW), (1, (0, first))])
    assert len(race.sides) == 1
    assert race.route.hedging is not None
    assert race.route.hedging.budget.snapshot().spent == 0
