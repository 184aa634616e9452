from __future__ import annotations

import asyncio

import pytest

from llm_guard.outcome import Exhausted, Failure, FailureKind, Signal
from llm_guard.proxy.attempts.admission import settle
from llm_guard.resilience.circuit_breaker.breaker import BreakerSettings
from llm_guard.resilience.retry.backoff import RetrySettings
from llm_guard.resilience.retry.limits import BudgetSettings
from tests.fakes.script import (
    NETWORK_ERROR,
    OK,
    SERVER_ERROR,
    UNAVAILABLE,
    Hang,
    Outcome,
    Script,
    Slow,
    new_target,
    open_stream,
)
from tests.unit.proxy.attempts.plays import Play, evidence, limited, open_breaker, play, skipped, two

AUTH = Failure(FailureKind.AUTH, "answered 401 (status 401)")
BAD = Failure(FailureKind.INVALID_REQUEST, "answered 400 (status 400)")


# retry, fall back, give up


async def test_a_good_answer_is_served_at_once() -> None:
    this = play(OK)
    served = await this.serves()
    assert this.script.transcript == ["asked a/x"]
    assert (served.opened, served.attempt, served.attempt.outcome) == (OK, this.call.attempts[0], "ok")
    assert (served.attempt.status, served.attempt.waited_s) == (200, 0.0)


async def test_failed_attempt_is_repeated_after_a_growing_wait() -> None:
    this = play(SERVER_ERROR, SERVER_ERROR, OK)
    await this.serves()
    assert this.script.transcript == ["asked a/x", "slept 0.2", "asked a/x", "slept 0.4", "asked a/x"]
    assert [(attempt.outcome, attempt.waited_s) for attempt in this.call.attempts] == [
        ("server_error", 0.0), ("server_error", 0.2), ("ok", 0.4),
    ]  # fmt: skip


async def test_each_deployment_is_tried_in_order_as_often_as_its_own_rules_allow() -> None:
    targets = (
        new_target("a/x", retry=RetrySettings(jitter=0.0, adaptive=False, max_attempts=1)),
        new_target("b/y", retry=RetrySettings(jitter=0.0, adaptive=False, max_attempts=2)),
        new_target("c/z", retry=RetrySettings(jitter=0.0, adaptive=False, max_attempts=1)),
    )
    this = play(*[SERVER_ERROR] * 4, targets=targets)
    result = await this.gives_up()
    assert this.script.transcript == ["asked a/x", "asked b/y", "asked c/z", "slept 0.2", "asked b/y"]
    assert (result.failure, result.refusal, result.why) == (SERVER_ERROR, None, "max_attempts reached")


async def test_each_deployment_gets_its_own_model_and_its_own_waits() -> None:
    this = play(SERVER_ERROR, SERVER_ERROR, SERVER_ERROR, SERVER_ERROR, OK, targets=two())
    served = await this.serves()
    assert [target.model for target in this.script.asked] == ["x", "y", "y", "x", "x"]
    assert served.attempt.target is this.targets[0]
    assert [attempt.waited_s for attempt in this.call.attempts] == [0.0, 0.0, 0.2, 0.0, 0.4]


async def test_another_free_deployment_serves_before_a_wait_is_over() -> None:
    this = play(SERVER_ERROR, OK, targets=two())
    await this.serves()
    assert this.script.transcript == ["asked a/x", "asked b/y"]


async def test_final_error_is_not_retried_elsewhere() -> None:
    this = play(BAD, targets=two())
    assert await this.gives_up() == Exhausted(BAD, None, "final error")
    assert this.script.transcript == ["asked a/x"]


async def test_failure_that_concerns_the_credential_moves_on_without_a_retry() -> None:
    this = play(AUTH, OK, targets=two())
    await this.serves()
    assert this.script.transcript == ["asked a/x", "asked b/y"]


# retry budget


async def test_empty_budget_ends_the_retries() -> None:
    none = RetrySettings(jitter=0.0, adaptive=False, budget=BudgetSettings(ratio=0.0, min_per_second=0.0))
    this = play(SERVER_ERROR, targets=(new_target("a/x", retry=none),))
    assert (await this.gives_up()).why == "retry budget empty"
    assert this.script.transcript == ["asked a/x"]


async def test_a_retry_costs_a_token_and_a_call_brings_its_share_once() -> None:
    settings = RetrySettings(jitter=0.0, adaptive=False, budget=BudgetSettings(ratio=1.0, min_per_second=0.0))
    this = play(SERVER_ERROR, SERVER_ERROR, targets=(new_target("a/x", retry=settings),))
    assert (await this.gives_up()).why == "retry budget empty"
    assert this.script.transcript == ["asked a/x", "slept 0.2", "asked a/x"]
    seen = this.targets[0].deployment.budget.snapshot(this.script.clock.now())
    assert (seen.calls, seen.spent) == (1, 1)


# open breakers


async def test_open_breaker_is_skipped_without_a_sleep() -> None:
    this = play(OK, targets=two())
    open_breaker(this.targets[0])
    await this.serves()
    assert this.script.transcript == ["asked b/y"]
    assert skipped(this) == ["a/x"]


async def test_all_breakers_open_is_a_refusal_with_the_soonest_return() -> None:
    targets = (
        new_target("a/x", breaker=BreakerSettings(early_probes=False, open_for=30.0)),
        new_target("b/y", breaker=BreakerSettings(early_probes=False, open_for=7.0)),
        new_target("c/z", breaker=BreakerSettings(early_probes=False, open_for=60.0)),
    )
    for target in targets:
        open_breaker(target)
    this = play(targets=targets)
    this.script.clock.advance(2.0)
    result = await this.gives_up()
    assert this.script.transcript == []
    assert result.failure is None
    assert result.refusal is not None
    assert (result.refusal.status, result.refusal.by, result.refusal.retry_after_s) == (503, "breaker", 5.0)
    assert result.refusal.message == "a/x, b/y, c/z: failing, circuit breaker open; retry in 5.0 s"
    assert skipped(this) == ["a/x", "b/y", "c/z"]
    assert this.call.attempts == []


async def test_wait_of_zero_is_not_reported() -> None:
    target = new_target("a/x", breaker=BreakerSettings(early_probes=False, open_for=30.0))
    open_breaker(target)
    this = play(targets=(target,))
    this.script.clock.advance(29.99)
    result = await this.gives_up()
    assert result.refusal is not None
    assert result.refusal.message == "a/x: failing, circuit breaker open; retry in a moment"


async def test_breaker_that_opens_between_retries_ends_them() -> None:
    this = play(
        NETWORK_ERROR, SERVER_ERROR, OK, targets=two(BreakerSettings(early_probes=False, consecutive_failures=2))
    )
    open_breaker(this.targets[1])
    await this.gives_up()
    assert this.script.transcript == ["asked a/x", "asked a/x", "slept 0.4"]
    assert skipped(this) == ["a/x", "b/y"]


async def test_failure_is_reported_even_when_the_next_breaker_is_open() -> None:
    this = play(AUTH, targets=two())
    open_breaker(this.targets[1])
    result = await this.gives_up()
    assert (result.failure, result.refusal) == (AUTH, None)


@pytest.mark.parametrize(
    ("failure", "counted"), [(SERVER_ERROR, (1, 1)), (NETWORK_ERROR, (1, 1)), (BAD, (0, 0)), (AUTH, (0, 0))]
)
async def test_only_failures_of_the_deployment_are_counted_against_it(
    failure: Failure, counted: tuple[int, int]
) -> None:
    once = RetrySettings(max_attempts=1)
    this = play(failure, targets=(new_target(retry=once),))
    await this.gives_up()
    assert evidence(this.targets[0]) == counted


# Retry-After and deadline


async def test_long_retry_after_is_waited_out_only_without_another_deployment() -> None:
    alone = play(limited(7.0), OK)
    await alone.serves()
    assert alone.script.transcript == ["asked a/x", "slept 7", "asked a/x"]
    accompanied = play(limited(7.0), OK, targets=two())
    await accompanied.serves()
    assert accompanied.script.transcript == ["asked a/x", "asked b/y"]


async def test_deadline_that_would_pass_in_a_sleep_ends_the_call_before_it() -> None:
    this = play(SERVER_ERROR, deadline_at=1000.2)
    assert (await this.gives_up()).why == "deadline"
    assert this.script.transcript == ["asked a/x"]


async def test_deadline_that_passed_in_an_attempt_ends_the_call_even_with_a_fallback_left() -> None:
    this = play(Slow(5.0, SERVER_ERROR), targets=two(), deadline_at=1005.0)
    assert (await this.gives_up()).why == "deadline"
    assert this.script.transcript == ["asked a/x"]
    assert this.call.attempts[0].ended_at == 1005.0


# which failure the client sees


async def test_last_error_of_an_upstream_is_preferred_to_a_later_silence() -> None:
    this = play(UNAVAILABLE, NETWORK_ERROR, NETWORK_ERROR)
    assert (await this.gives_up()).failure is UNAVAILABLE


async def test_newest_of_two_errors_and_newest_of_two_silences_is_reported() -> None:
    newer = Failure(FailureKind.OVERLOADED, "again", answer=UNAVAILABLE.answer)
    assert (await play(UNAVAILABLE, NETWORK_ERROR, newer).gives_up()).failure is newer
    silence = Failure(FailureKind.NETWORK, "again")
    assert (await play(NETWORK_ERROR, NETWORK_ERROR, silence).gives_up()).failure is silence


# return of permits


async def probing(*outcomes: Outcome, is_cancelled_asleep: bool = False) -> Play:
    """Returns a call to a single half-open breaker: a leaked permit would refuse the next call."""
    this = Play((new_target("a/x"),), Script(*outcomes, is_cancelled_asleep=is_cancelled_asleep))
    open_breaker(this.targets[0])
    this.script.clock.advance(30.0)
    return this


def assert_nothing_happened(this: Play) -> None:
    """Checks that the breaker is still half-open and its only probe is available."""
    now = this.script.clock.now()
    breaker = this.targets[0].deployment.breaker
    seen = breaker.snapshot(now)
    assert (seen.state, seen.leases, seen.transitions["open"]) == ("half_open", 0, 1)
    assert breaker.try_acquire(now) is not None


async def test_cancelled_attempt_returns_its_permit_and_counts_nothing() -> None:
    this = await probing(Hang())
    task = asyncio.ensure_future(this.run())
    done, _ = await asyncio.wait([task], timeout=0.01)
    assert not done
    assert this.targets[0].deployment.breaker.snapshot(this.script.clock.now()).leases == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert_nothing_happened(this)
    assert [attempt.outcome for attempt in this.call.attempts] == ["client_cancelled"]


async def test_call_cancelled_in_its_sleep_leaks_nothing() -> None:
    this = await probing(limited(1.0), is_cancelled_asleep=True)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.ensure_future(this.run())
    assert this.script.transcript == ["asked a/x", "slept 1"]
    assert_nothing_happened(this)


async def test_bug_in_an_exchange_returns_its_permit_and_blames_no_deployment() -> None:
    this = await probing(RuntimeError("a bug"))
    with pytest.raises(RuntimeError, match="a bug"):
        await this.run()
    assert_nothing_happened(this)
    assert [attempt.outcome for attempt in this.call.attempts] == ["internal"]


async def test_probe_is_settled_by_the_first_token() -> None:
    this = await probing(open_stream())
    await this.serves()
    assert this.targets[0].deployment.breaker.snapshot(this.script.clock.now()).state == "closed"


async def test_stream_is_a_success_from_its_first_token_until_it_dies() -> None:
    this = play(open_stream())
    served = await this.serves()
    assert served.attempt.ended_at is None
    assert evidence(this.targets[0]) == (1, 0)
    assert this.targets[0].deployment.gates.in_flight == 1
    settle(served.attempt, served.lease, Signal.UNHEALTHY, this.script.clock)
    assert evidence(this.targets[0]) == (1, 1)


async def test_whole_answer_is_settled_at_once() -> None:
    this = play(Slow(2.0, OK))
    served = await this.serves()
    assert served.attempt.ended_at == 1002.0
    assert evidence(this.targets[0], 1002.0) == (1, 0)
    assert this.targets[0].deployment.last_success_wall == this.script.clock.wall()
