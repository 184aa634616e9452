"""Hedged attempts: when and where they are sent, and how both attempts end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from llm_guard.outcome import Failure, FailureKind
from llm_guard.resilience.capacity.gate import CapacitySettings
from llm_guard.resilience.retry.backoff import RetrySettings
from llm_guard.resilience.retry.hedging import HedgeBudget, HedgeSettings
from llm_guard.resilience.retry.limits import BudgetSettings, RetryBudget
from llm_guard.routing.route_table import Hedging, Target
from tests.fakes.script import (
    NETWORK_ERROR,
    OK,
    SERVER_ERROR,
    UNAVAILABLE,
    Hang,
    Outcome,
    Slow,
    new_route,
    new_target,
    open_stream,
)
from tests.unit.proxy.attempts.plays import Stage, evidence, learn, limited, open_breaker, open_this, two

BAD = Failure(FailureKind.INVALID_REQUEST, "answered 400 (status 400)")
AUTH = Failure(FailureKind.AUTH, "answered 401 (status 401)")
TOO_LONG = Failure(FailureKind.CONTEXT_LENGTH, "answered 400 (code context_length_exceeded)")
ONCE = RetrySettings(jitter=0.0, adaptive=False, max_attempts=1)


def hedged(
    *targets: Target,
    after: float | str = 0.5,
    max_extra: float = 0.05,
    budget: RetryBudget | None = None,
    **outcomes: Any,
) -> Stage:
    settings = HedgeSettings(after=after, max_extra=max_extra)
    route = new_route(*targets, hedging=Hedging(settings, HedgeBudget(settings)))
    return Stage(*targets, route=route if budget is None else replace(route, budget=budget), **outcomes)


def spent(stage: Stage) -> tuple[int, int]:
    """Returns the tokens taken from the hedge budget and from the route's retry budget."""
    assert stage.route.hedging is not None
    return stage.route.hedging.budget.snapshot().spent, stage.route.budget.snapshot(stage.clock.now()).spent


# time and place


async def test_slow_first_is_overtaken_on_another_deployment_and_broken_off() -> None:
    stage = hedged(*two(), a=[Hang()], b=[Slow(0.2, OK)])
    call = await stage.start()
    await stage.pass_s(0.7)
    served = stage.served(call)
    assert (served.attempt.target, served.attempt.is_hedge) == (stage.targets[1], True)
    assert stage.script.transcript == ["0 asked a/x", "0.5 asked b/y", "0.7 broke off a/x"]
    assert [(attempt.outcome, attempt.is_superseded) for attempt in call.attempts] == [
        ("superseded", True),
        ("ok", False),
    ]
    assert evidence(stage.targets[0], 1000.7) == (0, 0)
    assert spent(stage) == (1, 1)
    stage.assert_nothing_is_held()


async def test_answer_before_the_delay_is_not_hedged() -> None:
    stage = hedged(*two(), a=[Slow(0.4, OK)])
    call = await stage.start()
    await stage.pass_s(1.0)
    assert stage.served(call).attempt.target is stage.targets[0]
    assert stage.script.transcript == ["0 asked a/x"]
    assert spent(stage) == (0, 0)
    stage.assert_nothing_is_held()


async def test_answer_just_at_the_delay_is_not_hedged() -> None:
    stage = hedged(*two(), a=[Slow(0.5, NETWORK_ERROR), OK])
    call = await stage.start()
    await stage.pass_s(1.0)
    assert stage.served(call).attempt.target is stage.targets[0]
    assert stage.script.transcript == ["0 asked a/x", "0.5 asked a/x"]


async def test_first_that_answers_after_all_wins() -> None:
    stage = hedged(*two(), a=[Slow(0.6, OK)], b=[Hang()])
    call = await stage.start()
    await stage.pass_s(0.6)
    assert stage.served(call).attempt is call.attempts[0]
    assert [attempt.outcome for attempt in call.attempts] == ["ok", "superseded"]
    assert stage.script.transcript[-1] == "0.6 broke off b/y"
    stage.assert_nothing_is_held()


async def test_only_deployment_is_called_twice() -> None:
    stage = hedged(new_target("a/x"), a=[Hang(), Slow(0.1, OK)])
    call = await stage.start()
    await stage.pass_s(0.6)
    assert stage.served(call).attempt.is_hedge
    assert stage.script.transcript == ["0 asked a/x", "0.5 asked a/x", "0.6 broke off a/x"]
    stage.assert_nothing_is_held()


async def test_same_deployment_is_called_twice_when_the_other_is_failing() -> None:
    stage = hedged(*two(), a=[Hang(), OK])
    open_breaker(stage.targets[1])
    call = await stage.start()
    await stage.pass_s(0.5)
    assert stage.served(call).attempt.target is stage.targets[0]


async def test_same_deployment_is_called_twice_rather_than_another_model() -> None:
    stage = hedged(new_target("a/x"), new_target("b/y", alias="claude"), a=[Hang(), OK])
    call = await stage.start()
    await stage.pass_s(0.5)
    assert stage.served(call).attempt.target is stage.targets[0]


@pytest.mark.parametrize("fact", [{"is_repeatable": False}, {"is_upgrade": True}])
async def test_call_that_must_not_be_made_twice_is_not_hedged(fact: dict[str, bool]) -> None:
    stage = hedged(*two(), a=[Slow(5.0, OK)])
    call = await stage.start(**fact)
    await stage.pass_s(5.0)
    stage.served(call)
    assert stage.script.transcript == ["0 asked a/x"]


async def test_delay_that_is_not_learned_yet_starts_no_hedge() -> None:
    stage = hedged(*two(), after="p95", a=[Slow(5.0, OK)])
    call = await stage.start()
    await stage.pass_s(5.0)
    assert stage.served(call).attempt.target is stage.targets[0]


@pytest.mark.parametrize("is_stream", [True, False])
async def test_delay_is_learned_from_the_awaited_latency(is_stream: bool) -> None:
    stage = hedged(*two(), after="p95", a=[Hang()], b=[OK])
    learn(stage.targets[0].deployment.first_tokens, 0.3)
    learn(stage.targets[0].deployment.latency, 4.0)
    await stage.start(is_stream=is_stream)
    await stage.pass_s(5.0)
    assert stage.script.transcript[1] == ("0.3 asked b/y" if is_stream else "4 asked b/y")


async def test_retry_may_be_hedged_too() -> None:
    stage = hedged(new_target("a/x"), a=[SERVER_ERROR, Hang(), OK])
    call = await stage.start()
    await stage.pass_s(0.7)
    assert [(attempt.is_retry, attempt.is_hedge) for attempt in call.attempts] == [
        (False, False),
        (True, False),
        (True, True),
    ]
    assert stage.served(call).attempt is call.attempts[2]


# budgets


async def test_no_token_no_hedge() -> None:
    stage = hedged(*two(), max_extra=0.0, a=[Slow(5.0, OK)])
    call = await stage.start()
    await stage.pass_s(5.0)
    assert stage.served(call).attempt.target is stage.targets[0]
    assert len(call.attempts) == 1
    stage.assert_nothing_is_held()


async def test_hedge_without_a_token_leaves_the_probe_of_its_host_to_the_next() -> None:
    stage = hedged(*two(), max_extra=0.0, a=[Slow(5.0, OK)])
    host = stage.targets[1].deployment.host
    open_this(host, 900.0)
    await stage.start()
    await stage.pass_s(0.6)
    seen = host.snapshot(1000.6)
    assert (seen.state, seen.leases) == ("half_open", 0)


async def test_no_token_for_retries_no_hedge() -> None:
    none = RetryBudget(BudgetSettings(ratio=0.0, min_per_second=0.0), 1000.0)
    stage = hedged(*two(), budget=none, a=[Slow(5.0, OK)])
    await stage.start()
    await stage.pass_s(5.0)
    assert stage.script.transcript == ["0 asked a/x"]
    assert spent(stage) == (0, 0)
    stage.assert_nothing_is_held()


async def test_call_brings_a_share_of_a_hedge_unless_its_client_has_sent_it_before() -> None:
    stage = hedged(*two(), a=[OK, OK])
    await stage.start()
    await stage.start(client_retries=1)
    assert stage.route.hedging is not None
    assert stage.route.hedging.budget.snapshot().calls == 1


async def test_hedge_needs_a_place_like_any_attempt() -> None:
    stage = hedged(new_target("a/x", capacity=CapacitySettings(pacing=False, concurrency=1)), a=[Slow(5.0, OK)])
    call = await stage.start()
    await stage.pass_s(5.0)
    assert len(stage.served(call).attempt.target.deployment.gates.all()) == 1
    assert stage.script.transcript == ["0 asked a/x"]
    assert spent(stage) == (0, 0)
    stage.assert_nothing_is_held()


# both answer


async def test_of_two_responses_at_one_instant_one_is_used_and_the_other_broken_off() -> None:
    streams = [open_stream(), open_stream()]
    stage = hedged(*two(), a=[Slow(1.0, streams[0])], b=[Slow(0.5, streams[1])])
    call = await stage.start(is_stream=True)
    await stage.pass_s(1.0)
    assert stage.served(call).opened is streams[0]
    exchange: Any = streams[0].exchange
    assert not exchange.is_aborted
    assert stage.script.transcript[-1] == "1 broke off b/y"
    assert [attempt.outcome for attempt in call.attempts] == ["ok", "superseded"]
    stage.end_streams()
    stage.assert_nothing_is_held()
    assert [evidence(target, 1001.0) for target in stage.targets] == [(1, 0), (0, 0)]


# failures


async def test_first_that_fails_before_the_delay_is_retried_as_ever() -> None:
    stage = hedged(new_target("a/x"), a=[Slow(0.1, SERVER_ERROR), OK])
    call = await stage.start()
    await stage.pass_s(1.0)
    assert stage.served(call).attempt.waited_s == 0.2
    assert stage.script.transcript == ["0 asked a/x", "0.3 asked a/x"]
    stage.assert_nothing_is_held()


async def test_first_that_fails_after_the_delay_leaves_the_hedge_to_answer() -> None:
    stage = hedged(*two(), a=[Slow(0.6, SERVER_ERROR)], b=[Slow(1.0, OK)])
    call = await stage.start()
    await stage.pass_s(1.5)
    assert stage.served(call).attempt.target is stage.targets[1]
    assert [attempt.outcome for attempt in call.attempts] == ["server_error", "ok"]
    assert stage.script.transcript == ["0 asked a/x", "0.5 asked b/y"]


async def test_hedge_that_fails_leaves_the_first_to_answer() -> None:
    stage = hedged(*two(), a=[Slow(2.0, OK)], b=[SERVER_ERROR])
    call = await stage.start()
    await stage.pass_s(2.0)
    assert stage.served(call).attempt.target is stage.targets[0]
    stage.assert_nothing_is_held()


async def test_when_both_fail_the_error_of_an_upstream_is_reported() -> None:
    targets = new_target("a/x", retry=ONCE), new_target("b/y", retry=ONCE)
    stage = hedged(*targets, a=[Slow(0.9, UNAVAILABLE)], b=[Slow(0.5, NETWORK_ERROR)])
    call = await stage.start()
    await stage.pass_s(1.0)
    assert (stage.gave_up(call).failure, stage.gave_up(call).why) == (UNAVAILABLE, "max_attempts reached")
    assert stage.script.transcript == ["0 asked a/x", "0.5 asked b/y"]
    stage.assert_nothing_is_held()


@pytest.mark.parametrize(("first_s", "told"), [(0.6, "b"), (0.8, "a")])
async def test_when_both_fail_the_later_failure_is_reported(first_s: float, told: str) -> None:
    failures = {each: Failure(FailureKind.NETWORK, each) for each in "ab"}
    targets = new_target("a/x", retry=ONCE), new_target("b/y", retry=ONCE)
    stage = hedged(*targets, a=[Slow(first_s, failures["a"])], b=[Slow(0.2, failures["b"])])
    call = await stage.start()
    await stage.pass_s(1.0)
    assert stage.gave_up(call).failure is failures[told]


async def test_failed_hedge_is_retried_after_all_others_and_pays_for_it() -> None:
    targets = new_target("a/x", retry=ONCE), new_target("b/y"), new_target("c/z", retry=ONCE)
    stage = hedged(*targets, a=[Slow(0.9, SERVER_ERROR)], b=[replace(SERVER_ERROR), OK], c=[AUTH])
    call = await stage.start()
    await stage.pass_s(2.0)
    assert stage.served(call).attempt.target is targets[1]
    assert stage.script.transcript == ["0 asked a/x", "0.5 asked b/y", "0.9 asked c/z", "1.1 asked b/y"]
    assert spent(stage) == (1, 2)
    assert call.attempts[1].next_step == "fall back, and retry here after 0.2 s"


async def test_after_both_have_failed_the_first_is_decided_on() -> None:
    """Its own failure has no Retry-After; that of the hedge concerns another deployment."""
    stage = hedged(
        *two(), a=[Slow(1.0, NETWORK_ERROR), OK], b=[Slow(0.2, replace(limited(20.0), answer=UNAVAILABLE.answer))]
    )
    call = await stage.start()
    await stage.pass_s(1.0)
    assert stage.served(call).attempt.target is stage.targets[0]
    assert stage.script.transcript == ["0 asked a/x", "0.5 asked b/y", "1 asked a/x"]
    assert [attempt.next_step for attempt in call.attempts] == [
        "retry after 0 s",
        "fall back, and retry here after 20 s",
        "",
    ]


async def test_retry_after_of_a_hedge_puts_its_own_deployment_in_cooldown() -> None:
    stage = hedged(*two(), a=[Slow(1.0, SERVER_ERROR), OK], b=[Slow(0.2, limited(20.0))])
    await stage.start()
    await stage.pass_s(1.2)
    assert [key[-1] for key in stage.cooldowns.snapshot(stage.clock.now())] == ["y"]


@pytest.mark.parametrize("final_one", ["first", "hedge"])
async def test_final_error_of_either_ends_the_race_and_the_call(final_one: str) -> None:
    a: Outcome = Slow(1.0, BAD) if final_one == "first" else Hang()
    b: Outcome = Hang() if final_one == "first" else Slow(0.5, BAD)
    stage = hedged(*two(), a=[a], b=[b])
    call = await stage.start()
    await stage.pass_s(1.0)
    assert (stage.gave_up(call).failure, stage.gave_up(call).why) == (BAD, "final error")
    assert sorted(attempt.outcome for attempt in call.attempts) == ["invalid_request", "superseded"]
    stage.assert_nothing_is_held()


async def test_final_error_of_the_hedge_ends_the_call_though_the_first_might_be_repeated() -> None:
    stage = hedged(*two(), a=[Slow(0.6, SERVER_ERROR)], b=[Slow(0.5, BAD)])
    call = await stage.start()
    await stage.pass_s(1.0)
    assert (stage.gave_up(call).failure, stage.gave_up(call).why) == (BAD, "final error")


async def test_error_of_the_hedge_that_another_model_may_cure_goes_to_it() -> None:
    targets = (*two(), new_target("c/z", alias="claude"))
    stage = hedged(*targets, a=[Hang()], b=[TOO_LONG], c=[OK])
    call = await stage.start()
    await stage.pass_s(0.5)
    assert stage.served(call).attempt.target is targets[2]
    assert stage.script.transcript == ["0 asked a/x", "0.5 asked b/y", "0.5 broke off a/x", "0.5 asked c/z"]


async def test_bug_in_one_of_the_two_ends_both() -> None:
    stage = hedged(*two(), a=[Hang()], b=[RuntimeError("a bug")])
    call = await stage.start()
    await stage.pass_s(0.5)
    with pytest.raises(RuntimeError, match="a bug"):
        stage.served(call)
    stage.assert_nothing_is_held()


# client disconnects


@pytest.mark.parametrize("after_s", [0.0, 0.2, 0.5, 0.9])
async def test_client_that_leaves_ends_both(after_s: float) -> None:
    stage = hedged(*two(), a=[Hang()], b=[Hang()])
    call = await stage.start()
    await stage.pass_s(after_s)
    stage.cancel(call)
    await stage.pass_s(0.0)
    assert stage.was_cancelled(call)
    assert {attempt.outcome for attempt in call.attempts} == {"client_cancelled"}
    assert len(call.attempts) == (2 if after_s >= 0.5 else 1)
    stage.assert_nothing_is_held()
    await stage.pass_s(5.0)
    assert len(call.attempts) == (2 if after_s >= 0.5 else 1)


async def test_answer_for_a_client_that_leaves_at_that_moment_is_closed() -> None:
    stream = open_stream()
    stage = hedged(*two(), a=[Slow(1.0, stream)], b=[Hang()])
    call = await stage.start(is_stream=True)
    await stage.pass_s(0.5)
    at_answer = stage.clock.call_at(1001.0, lambda: stage.cancel(call))
    await stage.pass_s(1.0)
    assert at_answer.has_rung
    assert stage.was_cancelled(call)
    exchange: Any = stream.exchange
    assert exchange.is_aborted or call.attempts[0].outcome == "client_cancelled"
    stage.assert_nothing_is_held()
