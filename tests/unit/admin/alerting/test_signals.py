from __future__ import annotations

from typing import Any

import pytest

from llm_guard.resilience.alerts.alert import QUIET_S
from llm_guard.resilience.retry.limits import BudgetSettings
from tests.unit.admin.alerting.alert_world import World, open_breaker

# success rate


def test_model_whose_calls_fail_is_found() -> None:
    world = World()
    world.end_calls("gpt", good=94, bad=6)
    world.end_calls("small", good=100)
    world.pass_s(1)
    assert world.firing() == {("success_rate", "gpt")}


def test_outcomes_before_a_silence_prove_nothing_about_now() -> None:
    world = World()
    world.end_calls("gpt", bad=100)
    world.pass_s(1)
    assert world.firing() == {("success_rate", "gpt")}
    world.pass_s(QUIET_S + 1)
    assert world.firing() == set()
    world.end_calls("gpt", good=30)
    world.pass_s(1)
    assert world.firing() == set()
    world.end_calls("gpt", bad=5)
    world.pass_s(1)
    assert world.firing() == {("success_rate", "gpt")}, "those after the silence count"


def test_model_that_recovers_resolves_its_alert() -> None:
    world = World()
    world.end_calls("gpt", bad=20)
    world.pass_s(1)
    world.end_calls("gpt", good=100)
    world.pass_s(61)
    assert world.told.said() == [("firing", "success_rate", "gpt"), ("resolved", "success_rate", "gpt")]


# latency


def test_streams_are_judged_by_their_first_token_and_others_whole() -> None:
    world = World()
    for _ in range(700):
        world.stream("gpt", 1, 0.5)
        world.answer("gpt", 1, 2.0)
        world.pass_s(1)
    assert world.firing() == set()
    for _ in range(330):
        world.stream("gpt", 1, 0.5)
        world.answer("gpt", 1, 4.0)
        world.pass_s(1)
    assert world.firing() == {("latency", "gpt (whole answer)")}
    for _ in range(420):
        world.stream("gpt", 1, 1.5)
        world.answer("gpt", 1, 2.0)
        world.pass_s(1)
    assert world.firing() == {("latency", "gpt (first token)")}


def test_reload_preserves_the_baseline() -> None:
    world = World()
    for _ in range(900):
        world.answer("gpt", 1, 1.0)
        world.pass_s(1)
    world.alerts.adopt(world.config.ops.alerts)
    for _ in range(330):
        world.answer("gpt", 1, 2.0)
        world.pass_s(1)
    assert world.firing() == {("latency", "gpt (whole answer)")}


def test_calls_that_name_no_model_have_no_usual_latency() -> None:
    world = World()
    for _ in range(900):
        world.answer("none", 1, 0.1)
        world.pass_s(1)
    for _ in range(330):
        world.answer("none", 1, 60.0)
        world.pass_s(1)
    assert world.firing() == set()


# refusals


@pytest.mark.parametrize("by", ["breaker", "limit", "cooldown", "deadline"])
@pytest.mark.parametrize(("per_second", "passing"), [(1, 0), (1, 1), (5, 5), (200, 200), (200, 0)])
def test_model_with_half_of_its_calls_refused_is_an_alert_within_15_s(by: str, per_second: int, passing: int) -> None:
    world = World()
    for _ in range(120):  # two minutes without refusals
        world.pass_calls("gpt", per_second + passing)
        world.pass_s(1)
    assert world.firing() == set()
    for _ in range(15):
        world.refuse_calls("gpt", per_second, by)
        world.pass_calls("gpt", passing)
        world.pass_s(1)
        if world.firing():
            break
    assert world.firing() == {("calls_refused", "gpt")}
    assert f" by {by} " in world.told.notices[-1].summary
    world.pass_s(75)
    assert world.told.said() == [("firing", "calls_refused", "gpt"), ("resolved", "calls_refused", "gpt")]


@pytest.mark.parametrize(("every_s", "others_every_s"), [(2, 0), (3, 3), (5, 0)])
def test_ten_refused_calls_of_a_model_that_gets_few_are_an_alert(every_s: int, others_every_s: int) -> None:
    world = World()
    for _ in range(24):  # it was well
        world.pass_calls("gpt", 1)
        world.pass_s(5)
    for refused in range(1, 11):
        assert world.firing() == set()
        world.refuse_calls("gpt", 1, "cooldown")
        if others_every_s:
            world.pass_calls("gpt", 1)
        world.pass_s(every_s if refused < 10 else 1)
    assert {rule for rule, _ in world.firing()} == {"calls_refused"}
    for _ in range(25):
        world.pass_calls("gpt", 1)
        world.pass_s(5)
    assert world.firing() == set()


@pytest.mark.parametrize("by", ["auth", "request", "route", "drain", "hold"])
def test_callers_mistakes_and_operators_decisions_are_no_alert(by: str) -> None:
    world = World()
    world.refuse_calls("gpt", 100, by)
    world.pass_s(1)
    assert world.firing() == set()


def test_few_refusals_or_few_of_many_calls_are_no_alert() -> None:
    world = World()
    for _ in range(60):
        world.pass_calls("gpt", 100)
        world.refuse_calls("gpt", 40, "limit")
        world.pass_s(1)
    world.refuse_calls("small", 9, "limit")
    world.pass_s(1)
    assert world.firing() == set()


# failures


def test_deployment_that_fails_at_once_is_a_spike() -> None:
    world = World()
    world.fail_attempts("one/gpt", 20)
    world.pass_s(1)
    assert world.firing() == {("failure_spike", "one/gpt")}
    world.pass_s(125)
    assert world.firing() == set()


@pytest.mark.parametrize("outcome", ["ok", "invalid_request", "client_cancelled", "context_length", "model_not_found"])
def test_client_caused_error_is_no_failure(outcome: str) -> None:
    world = World()
    world.fail_attempts("one/gpt", 1000, outcome)
    world.pass_s(1)
    assert world.firing() == set()


def test_rate_limits_are_failures() -> None:
    world = World()
    world.fail_attempts("one/gpt", 20, "rate_limit")
    world.pass_s(1)
    assert world.firing() == {("failure_spike", "one/gpt")}


def test_failures_that_are_usual_are_no_spike() -> None:
    world = World(failure_spike={"resolve_after": "0s"})
    for _ in range(3600):
        world.fail_attempts("one/gpt", 1)
        world.pass_s(1)
    assert world.firing() == set()
    for _ in range(60):
        world.fail_attempts("one/gpt", 2)
        world.pass_s(1)
    assert world.firing() == set()
    world.fail_attempts("one/gpt", 100)
    world.pass_s(1)
    assert world.firing() == {("failure_spike", "one/gpt")}


def test_rule_that_is_turned_on_does_not_take_the_past_for_a_spike() -> None:
    world = World(failure_spike="off")
    world.fail_attempts("one/gpt", 1000)
    world.pass_s(120)
    world.alerts.adopt(World().config.ops.alerts)
    world.pass_s(1)
    assert world.firing() == set()


# open breakers


def test_breaker_that_opens_is_found_until_it_is_closed_again() -> None:
    world = World()
    world.break_down("one/gpt")
    world.pass_s(120)
    assert world.firing() == {("breaker_open", "one/gpt")}
    world.repair("one/gpt")
    world.pass_s(29)
    assert world.firing() == {("breaker_open", "one/gpt")}
    world.pass_s(2)
    assert world.firing() == set()


def test_host_whose_breaker_opens_has_a_name_of_its_own() -> None:
    world = World()
    open_breaker(world.deployment("two/gpt").host, world.clock.now())
    world.pass_s(1)
    assert world.firing() == {("breaker_open", "two (host)")}


def test_breaker_that_is_half_open_still_fires() -> None:
    world = World(breaker_open={"resolve_after": "0s"})
    world.break_down("one/gpt")
    world.pass_s(31)
    assert world.deployment("one/gpt").breaker.try_acquire(world.clock.now()) is not None
    world.pass_s(1)
    assert world.deployment("one/gpt").breaker.state == "half_open"
    assert world.firing() == {("breaker_open", "one/gpt")}


def test_breaker_that_opens_and_closes_between_two_checks_is_found() -> None:
    world = World()
    world.break_down("one/gpt")
    world.repair("one/gpt")
    world.pass_s(1)
    assert world.firing() == {("breaker_open", "one/gpt")}
    world.pass_s(31)
    assert world.told.said() == [("firing", "breaker_open", "one/gpt"), ("resolved", "breaker_open", "one/gpt")]


def test_breaker_that_is_forced_open_is_no_alert() -> None:
    world = World()
    world.deployment("one/gpt").breaker.force("forced_open", world.clock.now())
    world.pass_s(1)
    assert world.firing() == set()


# retry budgets


def spend_all(world: World, label: str) -> None:
    budget = world.deployment(label).budget
    while budget.try_spend(world.clock.now()):
        pass


def test_budget_that_is_empty_while_attempts_fail_is_found() -> None:
    world = World(failure_spike="off")
    for _ in range(11):
        spend_all(world, "one/gpt")
        world.deployment("one/gpt").budget.recent.note(True, world.clock.now())
        world.look()
        world.clock.advance(0.05)
        spend_all(world, "one/gpt")
        world.clock.advance(0.95)
        spend_all(world, "one/gpt")
    world.look()
    assert world.firing() == {("budget_exhausted", "one/gpt")}


def test_budget_that_is_empty_while_all_is_well_is_no_alert() -> None:
    world = World(budget_exhausted={"for": "0s"})
    spend_all(world, "one/gpt")
    world.look()
    assert world.firing() == set()


def test_model_that_is_never_to_be_retried_has_no_budget_to_exhaust() -> None:
    world = World(budget_exhausted={"for": "0s"})
    budget = world.deployment("one/small").budget
    assert budget.snapshot(world.clock.now()).tokens == 0
    for _ in range(30):
        budget.recent.note(True, world.clock.now())
    world.pass_s(1)
    assert world.firing() == set()
    budget.settings = BudgetSettings(ratio=0.1, min_per_second=0)
    world.pass_s(1)
    assert world.firing() == {("budget_exhausted", "one/small")}


def test_models_budget_is_found_as_well() -> None:
    world = World(budget_exhausted={"for": "0s"})
    budget = world.gateway.table.pool.budgets["gpt"]
    budget.recent.note(True, world.clock.now() + 1)
    world.clock.advance(1)
    while budget.try_spend(world.clock.now()):
        pass
    world.look()
    assert world.firing() == {("budget_exhausted", "gpt (model)")}


def test_names_under_a_pattern_are_one_subject_as_badly_off_as_the_worst() -> None:
    world = World(budget_exhausted={"for": "0s"}, breaker_open={"resolve_after": "0s"})
    idle, broke = (route.targets[0].deployment for name in ("x-1", "x-2") if (route := world.gateway.table.find(name)))
    assert idle.label == broke.label == "two/x-*"
    world.clock.advance(1)
    now = world.clock.now()
    for deployment in (idle, broke):
        while deployment.budget.try_spend(now):
            pass
    idle.budget.settings = BudgetSettings(min_per_second=0.0)  # it stays empty, which does no harm
    broke.budget.settings = BudgetSettings(min_per_second=0.1)
    broke.budget.recent.note(True, now)
    open_breaker(broke.breaker, now)
    world.look()
    assert world.firing() == {("budget_exhausted", "two/x-*"), ("breaker_open", "two/x-*")}
    (breaker,) = (alert for alert in world.alerts.firing() if alert.alert == "breaker_open")
    assert breaker.finding.summary == "two/x-*: 1 of its 2 breakers is open (2 failures in a row)"


# other signals


def test_configured_credential_in_cooldown_is_found_once_for_any_account() -> None:
    world = World()
    credential = world.deployment("one/gpt").credential
    assert credential is not None
    world.refuse_credential(*credential)
    world.refuse_credential(*credential[:4], "another account")
    world.pass_s(1)
    assert world.firing() == {("credential_cooldown", "one")}


def test_rejected_credential_of_a_caller_is_no_alert() -> None:
    world = World()
    world.refuse_credential("credential", "two", "http://127.0.0.1:2/v1", "digest", "")
    world.refuse_credential("credential", "one", "http://127.0.0.1:1/v1", "another key", "")
    world.pass_s(1)
    assert world.firing() == set()


def test_credentials_of_a_cloud_that_cannot_be_renewed_are_an_alert() -> None:
    world = World()
    world.credential_problems["one"] = "RefreshError: invalid_grant"
    world.pass_s(1)
    assert world.firing() == {("credential_cooldown", "one")}
    world.credential_problems["one"] = None
    world.pass_s(400)
    assert world.firing() == set()


def test_credential_in_a_cooldown_again_is_one_alert() -> None:
    world = World()
    credential = world.deployment("one/gpt").credential
    assert credential is not None
    for _ in range(5):
        world.refuse_credential(*credential)
        world.pass_s(90)
    assert world.told.said() == [("firing", "credential_cooldown", "one")]
    world.pass_s(300)
    assert world.told.said()[1:] == [("resolved", "credential_cooldown", "one")]


def test_engine_that_gave_up_is_reported_by_the_event_log() -> None:
    world = World()
    world.journal.note("engine", engine="vllm", state="gave_up")
    world.pass_s(1)
    assert world.firing() == {("engine_gave_up", "vllm")}
    world.journal.note("engine", engine="vllm", state="running")
    world.pass_s(1)
    assert world.firing() == set()


@pytest.mark.parametrize(("restarts", "is_alert"), [(5, False), (6, True)])
def test_more_than_five_automatic_restarts_within_a_minute_are_an_alert(restarts: int, is_alert: bool) -> None:
    world = World()
    for number in range(restarts):
        world.pass_s(10 if number == 1 else 9)  # the sixth is looked at 46 s after the first
        world.end_engine(f"e{number % 2}")
    world.pass_s(1)
    assert (("engine_restarts", "engines") in world.firing()) == is_alert
    world.pass_s(120)
    assert ("engine_restarts", "engines") not in world.firing()


@pytest.mark.parametrize(("later_s", "is_alert"), [(59, True), (60, False)])
def test_restart_counts_for_a_minute(later_s: int, is_alert: bool) -> None:
    world = World()
    world.end_engine("e")
    world.pass_s(later_s)
    world.end_engine("e", times=5)
    world.pass_s(1)
    assert (("engine_restarts", "engines") in world.firing()) == is_alert


def test_restarts_of_an_operator_do_not_count() -> None:
    world = World()
    for _ in range(9):
        world.journal.note("engine", engine="e", state="restarting", event="restart")
    world.pass_s(1)
    assert world.firing() == set()


@pytest.mark.parametrize(
    ("down", "count", "is_alert"), [(1, 100, False), (1, 99, True), (2, 100, True), (3, 300, False)]
)
def test_more_than_one_percent_of_the_engines_down_for_five_minutes_is_an_alert(
    down: int, count: int, is_alert: bool
) -> None:
    world = World()
    world.engine_problems = dict.fromkeys(f"e{number}" for number in range(count))
    for number in range(down):
        world.end_engine(f"e{number}")
    world.pass_s(300)  # the first look sees them one second later
    assert world.firing() == set()
    world.pass_s(1)
    assert world.firing() == ({("engines_down", "engines")} if is_alert else set())
    world.engine_problems["e0"] = world.engine_problems["e1"] = world.engine_problems["e2"] = None
    world.pass_s(62)
    assert world.firing() == set()


def test_engines_that_take_turns_at_being_down_are_an_alert_but_a_pause_starts_the_five_minutes_again() -> None:
    world = World(engine_restarts="off")
    world.engine_problems = {"a": None, "b": None}
    world.end_engine("a")
    world.pass_s(200)
    world.engine_problems["a"] = None
    world.pass_s(1)
    world.end_engine("a")
    world.pass_s(200)
    assert world.firing() == set()
    world.engine_problems["a"] = None
    world.end_engine("b")
    world.pass_s(101)
    assert world.firing() == {("engines_down", "engines")}


def test_engine_down_for_an_hour_is_an_alert_until_it_is_up() -> None:
    world = World(engines_down="off")
    world.engine_problems = {"other": None}
    world.end_engine("vllm")
    world.pass_s(3600)  # the first look sees it one second later
    assert world.firing() == set()
    world.pass_s(1)
    assert world.firing() == {("engine_down", "vllm")}
    assert "it ended with exit code 3" in world.told.notices[-1].summary
    world.engine_problems["vllm"] = None
    world.pass_s(1)
    assert world.firing() == set()


def test_engine_that_a_reload_has_removed_is_no_longer_down() -> None:
    world = World(engine_down={"for": "0s"}, engines_down="off")
    world.end_engine("vllm")
    world.pass_s(1)
    assert world.firing() == {("engine_down", "vllm")}
    del world.engine_problems["vllm"]
    world.journal.note("engine", engine="vllm", state="stopped", event="stop")
    world.pass_s(1)
    assert world.firing() == set()


def test_reload_that_failed_is_an_alert_until_one_succeeds() -> None:
    world = World()
    world.is_reload_good = False
    world.pass_s(1)
    assert world.firing() == {("reload_failed", "config")}
    world.is_reload_good = True
    world.pass_s(1)
    assert world.firing() == set()


def test_file_that_cannot_be_used_is_an_alert_until_it_can() -> None:
    world = World()
    world.file_problems = {"server.tls": "tls.crt does not exist", "/run/secrets/key": None}
    world.pass_s(1)
    assert world.firing() == {("reload_failed", "server.tls")}
    world.file_problems["server.tls"] = None
    world.pass_s(1)
    assert world.firing() == set()


def test_lag_of_any_tick_is_seen_by_the_next_evaluation() -> None:
    world = World()
    world.clock.advance(0.25)
    world.lag_s = 0.6
    world.look()
    world.lag_s = 0.0
    assert world.firing() == set()
    world.pass_s(1)
    assert world.firing() == {("loop_lag", "gateway")}
    world.pass_s(62)
    assert world.firing() == set()


def test_rules_that_are_off_find_nothing() -> None:
    names = (
        "success_rate", "latency", "calls_refused", "breaker_open", "failure_spike", "budget_exhausted",
        "credential_cooldown", "engine_gave_up", "engine_down", "engines_down", "engine_restarts", "reload_failed",
        "loop_lag",
    )  # fmt: skip
    rules: dict[str, Any] = dict.fromkeys(names, "off")
    world = World(**rules)
    world.end_calls("gpt", bad=100)
    world.fail_attempts("one/gpt", 1000)
    world.break_down("one/gpt")
    world.end_engine("vllm", times=9)
    world.journal.note("engine", engine="vllm", state="gave_up")
    world.is_reload_good = False
    world.lag_s = 9.0
    world.pass_s(1)
    assert [*world.signals.look(world.clock.now())] == []
    assert world.told.notices == []
