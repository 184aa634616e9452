"""The cause that an alert is given when it fires."""

from __future__ import annotations

import pytest

from llm_guard.admin.incidents.alert_causes import AlertCauses
from llm_guard.outcome import Failure, FailureKind
from llm_guard.resilience.alerts.rules import RuleName
from llm_guard.resilience.causes.provider_errors import provider_error
from llm_guard.routing.deployment import MaintenanceHold
from tests.unit.admin.alerting.alert_world import World


def causes_of(world: World) -> AlertCauses:
    return AlertCauses(world.config, world.gateway, world.clock, world.engines.concerned)


def fail(world: World, label: str, kind: FailureKind) -> None:
    error = provider_error(Failure(kind, ""), 500, "c", world.clock.now())
    assert error is not None
    world.deployment(label).note_error(error)


@pytest.mark.parametrize(
    ("rule", "subject", "key"),
    [
        ("breaker_open", "one/gpt", "outage:one"),
        ("breaker_open", "two (host)", "outage:two"),
        ("failure_spike", "two/gpt", "outage:two"),
        ("budget_exhausted", "one/small", "outage:one"),
        ("budget_exhausted", "small (model)", "model:small"),
        ("credential_cooldown", "one", "outage:one"),
        ("success_rate", "gpt", "model:gpt"),
        ("latency", "gpt (first token)", "model:gpt"),
        ("engine_gave_up", "box", "outage:box"),
        ("engine_down", "box", "outage:box"),
        ("engines_down", "engines", "gateway:engines"),
        ("engine_restarts", "engines", "gateway:engines"),
        ("reload_failed", "config", "gateway:config"),
        ("loop_lag", "gateway", "gateway:gateway"),
    ],
)
def test_cause_without_recent_errors_follows_from_the_subject(rule: RuleName, subject: str, key: str) -> None:
    assert causes_of(World()).of(rule, subject).key == key


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        (FailureKind.SERVER_ERROR, "outage:one"), (FailureKind.AUTH, "credential:one"),
        (FailureKind.QUOTA_EXHAUSTED, "quota:one"), (FailureKind.RATE_LIMIT, "rate_limit:one"),
        (FailureKind.MISROUTED, "configuration:one"),
    ],
)  # fmt: skip
def test_alert_of_a_model_has_the_upstream_that_failed_last_and_its_failure(kind: FailureKind, key: str) -> None:
    world = World()
    fail(world, "two/gpt", FailureKind.SERVER_ERROR)
    world.clock.advance(1.0)
    fail(world, "one/gpt", kind)
    causes = causes_of(world)
    assert causes.of("success_rate", "gpt").key == causes.of("failure_spike", "one/small").key == key
    assert causes.of("calls_refused", "small").key == key, "it shares the upstream"


def test_error_of_long_ago_is_no_cause_but_an_open_breaker_is() -> None:
    world = World()
    fail(world, "one/gpt", FailureKind.AUTH)
    world.clock.advance(121.0)
    assert causes_of(world).of("success_rate", "gpt").key == "model:gpt"
    world.break_down("two/gpt")
    assert causes_of(world).of("success_rate", "gpt").key == "outage:two"


def test_hold_is_the_cause_unless_another_deployment_fails() -> None:
    world, hold = World(), MaintenanceHold("drained", "a new rack", "ann", 1.0, None)
    world.deployment("two/gpt").hold = hold
    assert causes_of(world).of("calls_refused", "gpt").key == "override:two/gpt"
    fail(world, "one/gpt", FailureKind.SERVER_ERROR)
    assert causes_of(world).of("calls_refused", "gpt").key == "outage:one"
    world.deployment("one/gpt").hold = hold
    assert causes_of(world).of("calls_refused", "gpt").key.startswith("override:")


def test_alert_about_all_engines_has_the_cause_of_the_only_one_that_it_concerns() -> None:
    world = World()
    world.end_engine("box", times=6)
    world.pass_s(1)
    assert causes_of(world).of("engines_down", "engines").key == "outage:box"
    assert causes_of(world).of("engine_restarts", "engines").key == "outage:box"
    world.end_engine("other")
    world.pass_s(1)
    assert causes_of(world).of("engines_down", "engines").key == "gateway:engines"
    assert causes_of(world).of("engine_restarts", "engines").key == "gateway:engines"
