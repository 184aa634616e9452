"""The order, time and cost of attempts: timeouts, rate limits, budgets, deadlines and load balancing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from llm_guard.outcome import Failure, FailureKind
from llm_guard.proxy.call import Attempt
from llm_guard.proxy.telemetry.recorder import overhead_s
from llm_guard.resilience.capacity.gate import CapacitySettings
from llm_guard.resilience.retry.backoff import RetrySettings
from llm_guard.resilience.retry.limits import BudgetSettings, RetryBudget
from llm_guard.resilience.routing.candidates import Balance, LearnedSettings, TimeoutSettings
from llm_guard.routing.route_table import Target
from tests.fakes.script import NETWORK_ERROR, OK, SERVER_ERROR, UNAVAILABLE, Hang, Outcome, Slow, new_route, new_target
from tests.unit.proxy.attempts.plays import Play, Stage, evidence, learn, limited, open_breaker, play, skipped, two

AUTH = Failure(FailureKind.AUTH, "answered 401 (status 401)")
ONCE = RetrySettings(jitter=0.0, adaptive=False, max_attempts=1)
UNPAID = BudgetSettings(ratio=0.0, min_per_second=0.0)


def timed_out(**facts: Any) -> Failure:
    return Failure(FailureKind.TIMEOUT, "no complete answer within 120 s", limit="attempt", **facts)


def limit_requests(this: Play, budget: BudgetSettings) -> RetryBudget:
    """Replaces the retry budget of the call's route."""
    assert this.call.route is not None
    route_budget = RetryBudget(budget, 1000.0)
    this.call.route = replace(this.call.route, budget=route_budget)
    return route_budget


def spent(this: Play) -> tuple[int, ...]:
    """Returns the tokens that retries took from the budgets of the route and of each deployment."""
    assert this.call.route is not None
    budgets = (this.call.route.budget, *(target.deployment.budget for target in this.targets))
    return tuple(budget.snapshot(this.script.clock.now()).spent for budget in budgets)


# after a timeout


async def test_those_that_time_out_take_turns_until_their_attempts_are_used_up() -> None:
    this = play(*[timed_out() for _ in range(6)], targets=two())
    assert (await this.gives_up()).why == "max_attempts reached"
    pair = ["asked a/x", "asked b/y"]
    assert this.script.transcript == [*pair, *pair, "slept 0.4", *pair]
    assert spent(this) == (4, 2, 2)


async def test_deployment_that_timed_out_is_retried_when_the_other_is_failing() -> None:
    this = play(timed_out(), OK, targets=two())
    open_breaker(this.targets[1])
    await this.serves()
    assert this.script.transcript == ["asked a/x", "asked a/x"]
    assert skipped(this) == ["b/y"]


async def test_deployment_that_timed_out_is_retried_at_once_when_no_other_is_left() -> None:
    this = play(timed_out(), OK)
    await this.serves()
    assert this.script.transcript == ["asked a/x", "asked a/x"]


async def test_untried_deployment_comes_before_one_that_timed_out() -> None:
    this = play(
        timed_out(), SERVER_ERROR, OK, targets=(new_target("a/x"), new_target("b/y", retry=ONCE), new_target("c/z"))
    )
    await this.serves()
    assert this.script.transcript == ["asked a/x", "asked b/y", "asked c/z"]


# after a rate limit


async def test_one_that_has_no_room_for_a_moment_is_left_for_another_that_is_free() -> None:
    this = play(limited(0.1), OK, targets=two())
    await this.serves()
    assert this.script.transcript == ["asked a/x", "asked b/y"]


async def test_one_that_has_no_room_for_a_moment_is_waited_for_when_the_other_has_none_either() -> None:
    full = new_target("b/y", capacity=CapacitySettings(concurrency=1))
    assert full.deployment.gates.of("", 1000.0).try_enter(1000.0) is not None
    this = play(limited(0.1), OK, targets=(new_target("a/x"), full))
    await this.serves()
    assert this.script.transcript == ["asked a/x", "slept 0.2", "asked a/x"]


async def test_deployment_that_requested_a_second_is_retried_after_it_when_the_other_is_failing() -> None:
    this = play(limited(1.0), OK, targets=two())
    open_breaker(this.targets[1])
    await this.serves()
    assert this.script.transcript == ["asked a/x", "slept 1", "asked a/x"]
    assert (this.call.attempts[1].waited_for, this.call.attempts[1].waited_s) == ("retry-after", 1.0)


async def test_wait_runs_while_the_other_is_tried() -> None:
    this = play(limited(1.0), SERVER_ERROR, SERVER_ERROR, SERVER_ERROR, OK, targets=two())
    await this.serves()
    b_again = ["slept 0.2", "asked b/y", "slept 0.4", "asked b/y"]
    assert this.script.transcript == ["asked a/x", "asked b/y", *b_again, "slept 0.4", "asked a/x"]


async def test_other_that_has_to_wait_itself_is_not_free() -> None:
    this = play(replace(UNAVAILABLE), replace(UNAVAILABLE), OK, targets=two())
    await this.serves()
    assert this.script.transcript == ["asked a/x", "asked b/y", "slept 0.2", "asked b/y"]


async def test_flap_is_repeated_in_place_though_another_is_free() -> None:
    this = play(NETWORK_ERROR, OK, targets=two())
    await this.serves()
    assert [target.deployment.label for target in this.script.asked] == ["a/x", "a/x"]


# budgets


async def test_deferred_candidate_pays_when_it_is_retried() -> None:
    unasked = play(timed_out(), OK, targets=two())
    await unasked.serves()
    assert spent(unasked) == (0, 0, 0)
    asked = play(timed_out(), timed_out(), OK, targets=two())
    await asked.serves()
    assert spent(asked) == (1, 1, 0)


@pytest.mark.parametrize("empty", ["deployment", "route"])
async def test_deployment_whose_tokens_were_taken_is_not_retried_and_takes_none(empty: str) -> None:
    one = BudgetSettings(ratio=0.0, min_per_second=0.1)
    a = new_target("a/x", retry=RetrySettings(jitter=0.0, budget=one if empty == "deployment" else BudgetSettings()))
    b = new_target("b/y")
    route = replace(new_route(a, b), budget=RetryBudget(one, 1000.0)) if empty == "route" else new_route(a, b)
    stage = Stage(a, b, route=route, a=[timed_out()], b=[Slow(1.0, AUTH)])
    call = await stage.start()
    budgets = {"deployment": a.deployment.budget, "route": route.budget}
    assert budgets[empty].try_spend(stage.clock.now())
    await stage.pass_s(1.0)
    assert stage.gave_up(call).failure is AUTH
    assert [skipped.why for skipped in call.skipped] == ["retry budget empty"]
    assert {name: budget.snapshot(1001.0).spent for name, budget in budgets.items()} == {
        "deployment": int(empty == "deployment"), "route": int(empty == "route"),
    }  # fmt: skip


async def test_deployment_that_is_failing_at_its_next_turn_costs_no_token() -> None:
    stage = Stage(*two(), a=[timed_out()], b=[Slow(1.0, AUTH)])
    call = await stage.start()
    stage.targets[0].deployment.breaker.force("forced_open", stage.clock.now())
    await stage.pass_s(1.0)
    assert stage.gave_up(call).failure is AUTH
    assert [skipped.why for skipped in call.skipped] == ["breaker forced_open"]
    assert stage.route.budget.snapshot(1001.0).spent == 0
    assert stage.targets[0].deployment.budget.snapshot(1001.0).spent == 0


async def test_empty_budget_of_the_route_ends_the_retries() -> None:
    this = play(SERVER_ERROR)
    limit_requests(this, UNPAID)
    assert (await this.gives_up()).why == "retry budget empty"
    assert spent(this) == (0, 0)


async def test_empty_budget_of_the_route_does_not_prevent_a_fallback() -> None:
    this = play(SERVER_ERROR, OK, targets=two())
    limit_requests(this, UNPAID)
    await this.serves()
    assert this.script.transcript == ["asked a/x", "asked b/y"]


async def test_call_brings_its_share_to_the_route_and_to_each_deployment_once() -> None:
    this = play(timed_out(), timed_out(), OK, targets=two())
    budget = limit_requests(this, BudgetSettings())
    await this.serves()
    seen = [budget, *(target.deployment.budget for target in this.targets)]
    assert [retry_budget.snapshot(1000.0).calls for retry_budget in seen] == [1, 1, 1]


async def test_call_that_its_client_has_sent_before_brings_nothing() -> None:
    this = play(OK, client_retries=1)
    budget = limit_requests(this, BudgetSettings())
    await this.serves()
    assert [retry_budget.snapshot(1000.0).calls for retry_budget in (budget, this.targets[0].deployment.budget)] == [
        0,
        0,
    ]


@pytest.mark.parametrize("client_retries", [0, 1, 5])
async def test_call_that_its_client_has_sent_before_has_as_many_attempts_as_any(client_retries: int) -> None:
    this = play(*[SERVER_ERROR] * 9, client_retries=client_retries)
    await this.gives_up()
    assert len(this.call.attempts) == this.targets[0].retry.max_attempts


# the deadline


async def test_attempt_that_cannot_finish_is_not_started_nor_waited_for() -> None:
    this = play(SERVER_ERROR, deadline_at=1002.1)
    learn(this.targets[0].deployment.latency, 2.0)
    result = await this.gives_up()
    assert (result.failure, result.why) == (SERVER_ERROR, "the deployment could not be retried: deadline")
    assert this.script.transcript == ["asked a/x"]
    assert [skipped.why for skipped in this.call.skipped] == ["deadline"]


async def test_attempt_that_just_finishes_is_started() -> None:
    this = play(SERVER_ERROR, OK, deadline_at=1002.25)
    learn(this.targets[0].deployment.latency, 2.0)
    await this.serves()
    assert this.script.transcript == ["asked a/x", "slept 0.2", "asked a/x"]


async def test_other_that_cannot_finish_is_passed_over_for_one_that_can() -> None:
    this = play(AUTH, OK, targets=(*two(), new_target("c/z")), deadline_at=1002.0)
    learn(this.targets[1].deployment.latency, 3.0)
    await this.serves()
    assert this.script.transcript == ["asked a/x", "asked c/z"]
    assert skipped(this) == ["b/y"]


async def test_first_attempt_is_made_regardless_of_evidence() -> None:
    this = play(OK, deadline_at=1001.0)
    learn(this.targets[0].deployment.latency, 50.0)
    await this.serves()


async def test_streams_are_judged_by_their_first_tokens() -> None:
    this = play(SERVER_ERROR, OK, deadline_at=1002.1, is_stream=True)
    learn(this.targets[0].deployment.latency, 50.0)
    learn(this.targets[0].deployment.first_tokens, 0.1)
    await this.serves()
    assert len(this.call.attempts) == 2


async def test_client_deadline_counts_as_the_deadline() -> None:
    this = play(SERVER_ERROR, deadline_at=1600.0, client_deadline=1000.2)
    assert (await this.gives_up()).why == "deadline"
    assert this.script.transcript == ["asked a/x"]


def eight_seconds(*labels: str, retry: RetrySettings | None = None) -> tuple[Target, ...]:
    return tuple(new_target(label, retry=retry, timeouts=TimeoutSettings(attempt=8.0)) for label in labels)


@pytest.mark.parametrize(
    ("deadline_at", "ends_by"), [(1010.0, 1008.98), (1015.9, 1014.88), (1016.0, 1016.0), (1001.5, 1001.5)]
)
async def test_attempt_leaves_time_for_one_more_where_its_limit_would_not(deadline_at: float, ends_by: float) -> None:
    this = play(OK, targets=eight_seconds("a/x", "b/y"), deadline_at=deadline_at)
    learn(this.targets[1].deployment.latency, 1.0)
    await this.serves()
    assert this.call.attempts[0].must_end_by == pytest.approx(ends_by)


async def test_stream_with_time_for_two_first_tokens_reserves_nothing() -> None:
    quick = TimeoutSettings(first_token=2.0, attempt=120.0)
    targets = new_target("a/x", timeouts=quick), new_target("b/y", timeouts=quick)
    this = play(OK, targets=targets, deadline_at=1010.0, is_stream=True)
    for target in targets:
        learn(target.deployment.first_tokens, 1.0)
    await this.serves()
    assert this.call.attempts[0].must_end_by == 1010.0


async def test_time_is_reserved_for_the_same_deployment_without_another() -> None:
    this = play(OK, targets=eight_seconds("a/x"), deadline_at=1010.0)
    learn(this.targets[0].deployment.latency, 1.0)
    await this.serves()
    assert this.call.attempts[0].must_end_by == pytest.approx(1008.98)


async def test_last_attempt_may_take_all_the_time_there_is() -> None:
    this = play(OK, targets=eight_seconds("a/x", retry=ONCE), deadline_at=1010.0)
    learn(this.targets[0].deployment.latency, 1.0)
    await this.serves()
    assert this.call.attempts[0].must_end_by == 1010.0


async def test_nothing_is_reserved_for_a_deployment_without_history() -> None:
    this = play(OK, targets=eight_seconds("a/x", "b/y"), deadline_at=1010.0)
    await this.serves()
    assert this.call.attempts[0].must_end_by == 1010.0


@pytest.mark.parametrize(("is_early", "counted"), [(True, (0, 0)), (False, (1, 1))])
async def test_attempt_that_was_cut_short_for_the_deadline_is_no_evidence(
    is_early: bool, counted: tuple[int, int]
) -> None:
    this = play(timed_out(is_early=is_early), OK, targets=two())
    await this.serves()
    assert evidence(this.targets[0]) == counted
    assert this.script.transcript == ["asked a/x", "asked b/y"]


@pytest.mark.parametrize(("decide_by", "counted"), [(1001.0, (0, 0)), (float("inf"), (1, 1))])
async def test_call_with_a_short_client_timeout_opens_no_breaker(decide_by: float, counted: tuple[int, int]) -> None:
    cut = Failure(FailureKind.TIMEOUT, "the time of the whole call is used up", limit="total")
    this = play(Slow(1.0, cut), deadline_at=1001.5, client_deadline=decide_by)
    await this.gives_up()
    assert evidence(this.targets[0]) == counted


async def test_limit_of_the_first_token_is_learned() -> None:
    learned = TimeoutSettings(first_token=30.0, learned=LearnedSettings(factor=3.0, min=1.0))
    this = play(OK, targets=(new_target("a/x", timeouts=learned),), is_stream=True)
    learn(this.targets[0].deployment.first_tokens, 0.5)
    await this.serves()
    assert this.call.attempts[0].first_token_s == 1.5


async def test_limit_of_the_first_token_is_as_configured_unless_it_may_be_learned() -> None:
    this = play(OK, targets=(new_target("a/x", timeouts=TimeoutSettings(first_token=30.0)),), is_stream=True)
    learn(this.targets[0].deployment.first_tokens, 0.5)
    await this.serves()
    assert this.call.attempts[0].first_token_s == 30.0


async def test_answers_are_learned_from_and_so_are_cuts() -> None:
    this = play(Slow(3.0, timed_out()), Slow(2.0, OK), targets=two())
    await this.serves()
    cut, answered = (target.deployment.latency.snapshot(1005.0) for target in this.targets)
    assert (cut.count, cut.cut, answered.count, answered.cut) == (1, 1, 1, 0)
    assert this.targets[1].deployment.cost.snapshot(1005.0).usual_s == 2.0


# calls that only one upstream can serve


@pytest.mark.parametrize("balance", ["order", "weighted"])
async def test_bound_call_is_sent_to_the_first_deployment_alone(balance: Balance) -> None:
    this = play(AUTH, targets=two(), is_sticky=True)
    assert this.call.route is not None
    this.call.route = replace(this.call.route, balance=balance)
    assert (await this.gives_up()).failure is AUTH
    assert this.script.transcript == ["asked a/x"]


async def test_bound_call_is_retried_where_it_is_bound_to() -> None:
    this = play(timed_out(), OK, targets=two(), is_sticky=True)
    await this.serves()
    assert [target.deployment.label for target in this.script.asked] == ["a/x", "a/x"]


# load balancing


async def order_of_attempts(targets: tuple[Target, ...], balance: Balance, *draws: float) -> list[str]:
    """Returns the order in which the deployments are tried when all of them fail."""
    refusals: dict[str, list[Outcome]] = {target.deployment.label.partition("/")[0]: [AUTH] for target in targets}
    route, draw = new_route(*targets, balance=balance), iter((*draws, *[0.0] * 9)).__next__
    stage = Stage(*targets, draw=draw, route=route, **refusals)
    call = await stage.start()
    assert stage.gave_up(call).failure is AUTH
    return [attempt.target.deployment.label[0] for attempt in call.attempts]


async def test_weighted_routes_draw_lots() -> None:
    assert await order_of_attempts(two(), "weighted", 0.9, 0.1) == ["b", "a"]
    assert await order_of_attempts(two(), "weighted", 0.1, 0.9) == ["a", "b"]
    heavy = (new_target("a/x", weight=100.0), new_target("b/y"))
    assert await order_of_attempts(heavy, "weighted", 0.9, 0.1) == ["a", "b"]


async def test_least_loaded_is_tried_first() -> None:
    targets = two()
    targets[0].deployment.gates.in_flight = 1
    assert await order_of_attempts(targets, "least_loaded") == ["b", "a"]


async def test_calls_in_flight_are_distinguished_from_those_that_ended() -> None:
    targets = two()
    stage = Stage(*targets, route=new_route(*targets, balance="least_loaded"), a=[Slow(1.0, OK), OK], b=[Slow(1.0, OK)])
    calls = [await stage.start(), await stage.start()]
    await stage.pass_s(1.0)
    calls.append(await stage.start())
    assert [stage.served(call).attempt.target.deployment.label for call in calls] == ["a/x", "b/y", "a/x"]
    stage.assert_nothing_is_held()


async def test_quickest_is_tried_first() -> None:
    targets = two()
    targets[0].deployment.cost.note(5.0, 1000.0)
    targets[1].deployment.cost.note(0.1, 1000.0)
    assert await order_of_attempts(targets, "latency") == ["b", "a"]


@pytest.mark.parametrize("balance", ["weighted", "least_loaded", "latency"])
async def test_groups_stay_in_order_for_any_balance(balance: Balance) -> None:
    targets = (new_target("a/x", group=0), new_target("b/y", group=1, weight=1000.0), new_target("c/z", group=2))
    targets[0].deployment.cost.note(5.0, 1000.0)
    for target, latency_s in zip(targets, (9.0, 3.0, 0.1), strict=True):
        target.deployment.cost.note(latency_s, 1000.0)
    assert await order_of_attempts(targets, balance, 0.9, 0.9, 0.9) == ["a", "b", "c"]


async def test_first_by_lot_is_no_fallback() -> None:
    this = play(OK, targets=two())
    assert this.call.route is not None
    this.call.route = replace(this.call.route, balance="least_loaded")
    this.targets[0].deployment.gates.in_flight = 1
    served = await this.serves()
    assert served.attempt.target is this.targets[1]
    assert (served.attempt.is_fallback, this.call.skipped) == (False, [])


# call records


def facts_of(attempt: Attempt) -> tuple[object, ...]:
    return attempt.outcome, attempt.is_retry, attempt.is_fallback, attempt.waited_for, attempt.waited_s


async def test_timeline_has_each_attempt_and_its_wait() -> None:
    outcomes: list[Outcome] = [timed_out(), replace(SERVER_ERROR), limited(7.0), timed_out(), OK]
    this = play(*outcomes, targets=(*two(), new_target("c/z")))
    open_breaker(this.targets[1])
    await this.serves()
    assert [facts_of(attempt) for attempt in this.call.attempts] == [
        ("timeout", False, False, "", 0.0),
        ("server_error", False, True, "", 0.0),
        ("rate_limit", True, False, "", 0.0),
        ("timeout", True, False, "backoff", 0.2),
        ("ok", True, False, "backoff", 0.4),
    ]
    assert [(skipped.deployment, skipped.why) for skipped in this.call.skipped] == [("b/y", "breaker open")]


async def test_timeline_has_the_decision_after_each_failure_and_what_was_left() -> None:
    targets = (
        new_target("a/x", retry=RetrySettings(jitter=0.0, adaptive=False, budget=BudgetSettings(min_per_second=0.2))),
        new_target("b/y"),
    )
    this = play(replace(NETWORK_ERROR), timed_out(), replace(AUTH), OK, targets=targets, deadline_at=1600.0)
    await this.serves()
    assert [(attempt.next_step, attempt.budget_left) for attempt in this.call.attempts] == [
        ("retry after 0 s", 2.2),
        ("fall back, and retry here after 0.4 s", 1.2),
        ("fall back", pytest.approx(101.0, abs=1.0)),
        ("", None),
    ]


async def test_timeline_ends_with_why_the_call_was_given_up() -> None:
    this = play(replace(SERVER_ERROR), targets=(new_target("a/x", retry=ONCE),))
    await this.gives_up()
    assert this.call.attempts[-1].next_step == "give up: max_attempts reached"


async def test_timeline_marks_an_attempt_that_was_a_probe() -> None:
    this = play(OK, OK)
    open_breaker(this.targets[0])
    this.script.clock.advance(30.0)
    assert (await this.serves()).attempt.breaker == "half_open"
    assert (await this.serves()).attempt.breaker == "closed"


async def test_one_of_two_that_is_on_probation_is_refused_to_a_second_call() -> None:
    stage = Stage(*two(), a=[Hang()], b=[OK])
    open_breaker(stage.targets[0])
    await stage.pass_s(30.0)
    await stage.start()
    second = await stage.start()
    assert stage.served(second).attempt.target is stage.targets[1]
    assert [skipped.why for skipped in second.skipped] == ["breaker half_open"]


# waits without a following attempt


async def test_wait_in_which_the_breaker_opens_is_no_time_of_the_gateways() -> None:
    one = new_target("a/x")
    stage = Stage(one, a=[Slow(1.0, SERVER_ERROR)])
    call = await stage.start()
    await stage.pass_s(1.1)
    one.deployment.host.force("forced_open", stage.clock.now())
    await stage.pass_s(0.1)
    assert stage.gave_up(call).why == "the deployment could not be retried: host breaker open"
    assert len(call.attempts) == 1
    assert stage.clock.now() - call.started_at == pytest.approx(1.2)
    assert overhead_s(call, stage.clock.now()) == pytest.approx(0.0)


async def test_wait_that_its_client_does_not_stay_for_is_no_time_of_the_gateways() -> None:
    stage = Stage(new_target("a/x"), a=[SERVER_ERROR])
    call = await stage.start()
    await stage.pass_s(0.15)
    stage.cancel(call)
    await stage.pass_s(0.0)
    assert stage.was_cancelled(call)
    assert overhead_s(call, stage.clock.now()) == pytest.approx(0.0)


async def test_wait_for_a_turn_in_vain_is_no_overhead_of_the_gateway() -> None:
    one = new_target("a/x", capacity=CapacitySettings(pacing=False, concurrency=1, queue_timeout=3.0))
    stage = Stage(one, a=[Slow(10.0, OK)])
    await stage.start()
    call = await stage.start()
    await stage.pass_s(3.0)
    assert stage.gave_up(call).why == "at capacity"
    assert overhead_s(call, stage.clock.now()) == pytest.approx(0.0)


async def test_wait_that_an_attempt_follows_counts_once() -> None:
    stage = Stage(new_target("a/x"), a=[SERVER_ERROR, Slow(1.0, OK)])
    call = await stage.start()
    await stage.pass_s(1.2)
    assert stage.served(call).attempt.waited_s == pytest.approx(0.2)
    assert overhead_s(call, stage.clock.now() + 5.0) == pytest.approx(5.0)
