"""When a fallback to another model is used, and when a call waits for its own model instead."""

from __future__ import annotations

from typing import Any

from llm_guard.outcome import Failure, FailureKind
from llm_guard.resilience.capacity.gate import CapacitySettings
from llm_guard.resilience.circuit_breaker.breaker import BreakerSettings
from llm_guard.resilience.retry.backoff import RetrySettings
from llm_guard.resilience.routing.candidates import TimeoutSettings
from llm_guard.routing.route_table import Target
from tests.fakes.script import OK, SERVER_ERROR, Outcome, Slow, new_target
from tests.unit.proxy.attempts.plays import Play, Stage, limited, open_breaker, play, skipped

OVERLOADED = Failure(FailureKind.OVERLOADED, "answered 529")
TIMED_OUT = Failure(FailureKind.TIMEOUT, "no complete answer within 120 s", limit="attempt")
BAD_REQUEST = Failure(FailureKind.INVALID_REQUEST, "answered 400")


def own(label: str = "a/big", **settings: Any) -> Target:
    """Returns a deployment of the requested model."""
    retry = RetrySettings(**{"max_attempts": 3, "jitter": 0.0, "adaptive": False, **settings})
    return new_target(label, retry=retry, alias="big", api_key=label)


def cheap(label: str = "z/cheap") -> Target:
    """Returns a deployment of the fallback model."""
    return new_target(label, alias="cheap", api_key=label, group=9)


async def transcript(*outcomes: Outcome, targets: tuple[Target, ...], **facts: Any) -> list[str]:
    this = play(*outcomes, targets=targets, deadline_at=1600.0, **facts)
    await this.serves()
    return this.script.transcript


async def test_rate_limited_model_is_waited_for_instead_of_its_fallback() -> None:
    told = await transcript(limited(1.0), OK, targets=(own(), cheap()))
    assert told == ["asked a/big", "slept 1", "asked a/big"]


async def test_overloaded_model_is_retried_before_its_fallback_answers() -> None:
    told = await transcript(OVERLOADED, OVERLOADED, OVERLOADED, OK, targets=(own(), cheap()))
    assert told == ["asked a/big", "slept 0.2", "asked a/big", "slept 0.4", "asked a/big", "asked z/cheap"]


async def test_fallback_answers_where_the_hint_is_longer_than_the_call_waits_for_its_model() -> None:
    assert await transcript(limited(6.0), OK, targets=(own(), cheap())) == ["asked a/big", "asked z/cheap"]


async def test_waits_add_up_from_the_first_attempt_on() -> None:
    told = await transcript(limited(3.0), limited(3.0), OK, targets=(own(), cheap()))
    assert told == ["asked a/big", "slept 3", "asked a/big", "asked z/cheap"]


async def test_time_that_attempts_take_counts_as_well() -> None:
    stage = Stage(own(), cheap(), a=[Slow(4.9, SERVER_ERROR)], z=[OK])
    call = await stage.start(deadline_at=1600.0)
    await stage.pass_s(4.9)
    assert stage.served(call).attempt.target.alias == "cheap"


async def test_half_of_the_calls_time_is_the_longest_wait_for_its_model() -> None:
    this = play(limited(2.0), OK, targets=(own(), cheap()), deadline_at=1003.0)
    await this.serves()
    assert this.script.transcript == ["asked a/big", "asked z/cheap"]


async def test_fallback_at_once_is_as_good_as_another_deployment() -> None:
    assert await transcript(limited(1.0), OK, targets=(own(fallback_after=0.0), cheap())) == [
        "asked a/big",
        "asked z/cheap",
    ]


async def test_fallback_answers_after_a_timeout() -> None:
    assert await transcript(TIMED_OUT, OK, targets=(own(), cheap())) == ["asked a/big", "asked z/cheap"]


async def test_other_deployment_of_the_same_model_is_tried_at_once_and_the_fallback_last() -> None:
    told = await transcript(
        limited(1.0), limited(1.0), OK, targets=(own("a/big"), own("b/big"), cheap())
    )  # fmt: skip
    assert told == ["asked a/big", "asked b/big", "slept 1", "asked a/big"]


async def test_fallback_answers_at_once_where_the_breaker_refuses_the_call() -> None:
    broken = new_target("a/big", alias="big", breaker=BreakerSettings(early_probes=False))
    open_breaker(broken)
    this = play(OK, targets=(broken, cheap()), deadline_at=1600.0)
    await this.serves()
    assert (this.script.transcript, skipped(this)) == (["asked z/cheap"], ["a/big"])


async def test_cooldown_longer_than_the_client_deadline_leads_to_the_fallback_and_a_short_one_does_not() -> None:
    targets = (own(), cheap())
    first = play(limited(10.0), OK, targets=targets, deadline_at=1600.0)
    await first.serves()
    second = again(first, OK)
    await second.serves()
    assert (second.script.transcript, skipped(second)) == (["asked z/cheap"], ["a/big"])


async def test_calls_of_a_model_whose_deployments_all_sent_short_hints_wait_for_it() -> None:
    targets = (own("a/big"), own("b/big"), cheap())
    first = play(limited(1.0), limited(1.0), BAD_REQUEST, targets=targets, deadline_at=1600.0)
    await first.gives_up()
    second = again(first, limited(1.0), OK)
    await second.serves()
    assert second.script.transcript == ["asked b/big", "slept 1", "asked b/big"]


def again(this: Play, *outcomes: Outcome) -> Play:
    """Plays another call with the state that `this` left behind."""
    return play(*outcomes, targets=this.targets, cooldowns=this.cooldowns, deadline_at=1600.0)


# wait queue of the requested model


def full(**capacity: Any) -> Target:
    return new_target(
        "a/big", alias="big", api_key="a", capacity=CapacitySettings(concurrency=1, pacing=False, **capacity)
    )


async def test_queue_is_waited_in_as_long_as_the_call_waits_for_its_model() -> None:
    stage = Stage(full(), cheap(), a=[Slow(4.0, OK), OK], z=[])
    first, second = [await stage.start(deadline_at=1600.0) for _ in range(2)]
    await stage.pass_s(4.0)
    assert [stage.served(call).attempt.target.alias for call in (first, second)] == ["big", "big"]
    stage.end_streams()


async def test_fallback_answers_when_the_turn_is_too_late() -> None:
    stage = Stage(full(), cheap(), a=[Slow(60.0, OK)], z=[OK])
    await stage.start(deadline_at=1600.0)
    second = await stage.start(deadline_at=1600.0)
    await stage.pass_s(4.9)
    assert stage.is_running(second)
    await stage.pass_s(0.2)
    assert stage.served(second).attempt.target.alias == "cheap"


async def test_call_waits_on_for_its_model_where_the_fallback_has_no_room_either() -> None:
    busy = new_target("z/cheap", alias="cheap", api_key="z", capacity=CapacitySettings(concurrency=1, pacing=False))
    stage = Stage(full(), busy, a=[Slow(8.0, OK), OK], z=[Slow(60.0, OK)])
    await stage.start(deadline_at=1600.0)
    stage.targets[0].deployment.breaker.force("forced_open", stage.clock.now())
    await stage.start(deadline_at=1600.0)  # this call occupies the fallback
    stage.targets[0].deployment.breaker.force("auto", stage.clock.now())
    third = await stage.start(deadline_at=1600.0)
    await stage.pass_s(8.0)
    assert stage.served(third).attempt.target.alias == "big"


# exchanges that a default limit ends


def slow(label: str) -> Target:
    return new_target(label, timeouts=TimeoutSettings(), api_key=label)


async def test_exchange_that_a_default_limit_ended_is_sent_again_once() -> None:
    this = play(TIMED_OUT, TIMED_OUT, targets=(slow("a/x"), slow("b/x"), slow("c/x")), deadline_at=9000.0)
    assert (await this.gives_up()).why == "it timed out twice"
    assert this.script.transcript == ["asked a/x", "asked b/x"]


async def test_exchange_that_a_configured_limit_ended_is_retried_as_configured() -> None:
    chosen = new_target("a/x", timeouts=TimeoutSettings(attempt=10.0))
    this = play(TIMED_OUT, TIMED_OUT, OK, targets=(chosen,), deadline_at=9000.0)
    await this.serves()


async def test_timeouts_to_connect_are_no_work_of_the_provider() -> None:
    refused = Failure(FailureKind.CONNECT_TIMEOUT, "no connection within 5 s", limit="connect", is_before_sending=True)
    this = play(refused, refused, OK, targets=(slow("a/x"),), deadline_at=9000.0)
    await this.serves()
