"""Single flight: how long a shared request runs and waits, and which call's record has its cost."""

from __future__ import annotations

import asyncio

import pytest

from llm_guard.dialects.sse import Usage
from llm_guard.outcome import Exhausted, Failure, FailureKind
from llm_guard.proxy.call import Attempt, Call
from llm_guard.proxy.coalescing.single_flight import SingleFlight, refresh_call
from llm_guard.proxy.http_server.response_writer import ResponseWriter
from llm_guard.proxy.request_body.fields import BadRequest
from llm_guard.resilience.client_keys.limits import ClientLimits, Reservation
from llm_guard.resilience.client_keys.settings import ClientLimitSettings
from tests.fakes.clock import let_run
from tests.fakes.script import new_call, new_target


def call(*, decide_by: float = 10.0, deadline_at: float = 100.0) -> Call:
    made = Call("lg-1", "openai", "POST", "/v1/chat/completions", "", (), 0.0)
    made.client_deadline, made.deadline_at = decide_by, deadline_at
    return made


class World:
    """A single flight, its result, and how often its end was reported."""

    def __init__(self, own: Call | None = None, *, is_background: bool = False) -> None:
        self.flight = SingleFlight(own or call(), 1000, is_background=is_background)
        self.result: asyncio.Future[Exhausted | None] = asyncio.get_running_loop().create_future()
        self.is_kept = asyncio.Event()
        self.ended = 0
        self.flight.begin(self.fetch, self.keep)

    async def fetch(self, own: Call, reply: ResponseWriter) -> Exhausted | None:
        gave_up = await self.result
        if gave_up is None:
            await reply.send(200, "OK", [], b"answer")
        return gave_up

    async def keep(self, flight: SingleFlight) -> None:
        self.ended += 1
        await self.is_kept.wait()


async def test_it_is_broken_off_when_the_last_has_left() -> None:
    world = World()
    followers = [world.flight.follow(call(), is_own=number == 0) for number in range(3)]
    await let_run()
    for follower in followers[:2]:
        await world.flight.leave(follower)
        assert world.flight.can_be_joined
    await world.flight.leave(followers[2])
    assert (world.flight.task.cancelled(), world.flight.can_be_joined, world.ended) == (True, False, 0)


async def test_it_is_broken_off_before_it_has_begun() -> None:
    world = World()
    await world.flight.leave(world.flight.follow(call(), is_own=True))
    assert world.flight.task.cancelled()
    assert world.flight.tape.is_over


async def test_background_call_continues_without_waiters() -> None:
    world = World(is_background=True)
    await world.flight.leave(world.flight.follow(call(), is_own=False))
    assert not world.flight.task.done()
    world.result.set_result(None)
    await let_run()
    assert world.ended == 1


async def test_response_can_be_read_until_it_is_stored() -> None:
    world = World()
    world.flight.follow(call(), is_own=True)
    world.result.set_result(None)
    await let_run()
    assert world.flight.can_be_joined
    late = world.flight.follow(call(), is_own=False)
    assert await late.reader.next() == b"answer"
    await world.flight.leave(late)
    world.is_kept.set()
    await world.flight.task


async def test_failure_is_not_joined() -> None:
    world = World()
    world.flight.follow(call(), is_own=True)
    world.result.set_result(Exhausted(Failure(FailureKind.NETWORK, "x"), None, "y"))
    await let_run()
    assert not world.flight.task.done()
    assert not world.flight.can_be_joined


async def test_bad_request_is_raised_separately_for_each() -> None:
    world = World()
    world.flight.follow(call(), is_own=True)
    bad = BadRequest(400, "invalid_model", "m", "model", should_retry=True)
    world.result.set_exception(bad)
    await let_run()
    assert not world.flight.can_be_joined
    raised = []
    for _ in range(2):
        with pytest.raises(BadRequest) as caught:
            world.flight.raise_bad()
        raised.append(caught.value)
    assert raised[0] is not raised[1]
    assert vars(raised[0]) == vars(bad)


async def test_bug_is_a_failure_and_no_silence() -> None:
    world = World()
    world.flight.follow(call(), is_own=True)
    world.result.set_exception(KeyError("x"))
    await let_run()
    assert world.flight.gave_up is not None
    assert world.flight.gave_up.failure == Failure(FailureKind.INTERNAL, "KeyError")


async def test_deadline_is_that_of_the_latest_waiter() -> None:
    world = World(call(decide_by=10, deadline_at=100))
    renewed = []
    attempt = Attempt(None, 0.0, must_end_by=5.0)  # type: ignore[arg-type]
    attempt.on_deadline_extended = lambda: renewed.append(world.flight.call.commit_by)
    world.flight.call.attempts.append(attempt)
    world.flight.follow(call(decide_by=10, deadline_at=100), is_own=True)
    assert not renewed
    world.flight.follow(call(decide_by=50, deadline_at=40), is_own=False)
    assert (renewed, attempt.must_end_by) == ([50], 50)
    world.flight.follow(call(decide_by=20, deadline_at=200), is_own=False)
    assert (world.flight.call.client_deadline, world.flight.call.deadline_at) == (50, 200)
    world.flight.task.cancel()


async def test_record_passes_to_a_remaining_waiter_and_stays_with_one() -> None:
    world = World()
    first, second = call(), call()
    leaving = world.flight.follow(first, is_own=True)
    staying = world.flight.follow(second, is_own=False)
    assert first.attempts is world.flight.call.attempts
    assert second.attempts is not first.attempts
    await world.flight.leave(leaving)
    assert (first.attempts, second.attempts is world.flight.call.attempts) == ([], True)
    third = call()
    world.flight.follow(third, is_own=False)
    assert third.attempts is not world.flight.call.attempts
    world.result.set_result(None)
    await let_run()
    await world.flight.leave(staying)
    assert second.attempts is world.flight.call.attempts
    world.is_kept.set()


async def test_request_that_was_begun_before_a_reload_is_not_joined_after_it() -> None:
    target = new_target()
    own, other = new_call(target), new_call(target)
    world = World(own)
    same = new_call(target)
    same.route = own.route
    assert world.flight.is_fit_for(same)
    assert not world.flight.is_fit_for(other)
    await world.flight.leave(world.flight.follow(same, is_own=True))


async def test_urgent_call_does_not_join_a_request_that_still_waits_in_a_lower_priority() -> None:
    own, urgent = new_call(new_target(), priority=2), new_call(priority=0)
    urgent.route = own.route
    world = World(own)
    assert not world.flight.is_fit_for(urgent)
    own.attempts = [Attempt(new_target(), 1000.0)]  # the attempt has begun, so the call would not wait in the queue
    assert world.flight.is_fit_for(urgent)
    await world.flight.leave(world.flight.follow(urgent, is_own=True))


async def test_request_has_the_highest_priority_of_the_calls_that_wait_for_it() -> None:
    world = World(new_call(priority=2))
    world.flight.follow(new_call(priority=2), is_own=True)
    world.flight.follow(new_call(priority=0), is_own=False)
    world.flight.follow(new_call(priority=1), is_own=False)
    assert world.flight.call.priority == 0
    world.flight.task.cancel()


async def test_call_that_leaves_last_has_the_tokens_of_the_request_in_its_record() -> None:
    world = World()
    own = call()
    follower = world.flight.follow(own, is_own=True)
    world.flight.call.usage, world.flight.call.wasted_tokens = Usage(7, 3), 2
    world.result.set_result(None)
    world.is_kept.set()
    await let_run()
    await world.flight.leave(follower)
    assert (own.usage, own.wasted_tokens) == (Usage(7, 3), 2)


def test_refresh_in_the_background_takes_nothing_from_its_call() -> None:
    served = new_call(new_target(), priority=0, client_retries=3)
    limits = ClientLimits(ClientLimitSettings(rate=10.0), 0.0, 0.0)
    reservation = limits.try_enter(10, 0.0, 0.0)
    assert isinstance(reservation, Reservation)
    served.reservation = reservation
    assert served.route is not None
    background_call = refresh_call(served, served.route, 1050.0)
    assert background_call.reservation is None
    assert served.reservation is reservation
    assert (background_call.priority, background_call.client_retries, background_call.started_at) == (2, 0, 1050.0)
