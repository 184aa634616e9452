from __future__ import annotations

from dataclasses import replace
from typing import Any

from llm_guard.admin.events.breaker_transitions import Transitions
from llm_guard.admin.events.event_log import EventLog
from llm_guard.outcome import Signal
from llm_guard.resilience.circuit_breaker.breaker import Breaker, BreakerSettings
from llm_guard.resilience.circuit_breaker.history import KEPT
from llm_guard.routing.deployment import Deployment
from tests.fakes.clock import ManualClock
from tests.fakes.script import new_target

QUICK = BreakerSettings(early_probes=False, consecutive_failures=1, open_for=30.0)


class Scene:
    """Watched deployments, and the events about them."""

    def __init__(self, *deployments: Deployment) -> None:
        self.deployments = list(deployments)
        self.journal = EventLog(ManualClock())
        self._transitions = Transitions(lambda: self.deployments, self.journal)
        self._last_id = 0

    def look(self) -> list[dict[str, Any]]:
        """Returns the new events."""
        self._transitions.look(0.0)
        events, _ = self.journal.since(self._last_id)
        self._last_id = self.journal.last_id
        assert {event.kind for event in events} <= {"breaker"}
        return [event.facts for event in events]


def new_deployment(label: str = "a/x") -> Deployment:
    return new_target(label, breaker=QUICK).deployment


def fail(breaker: Breaker, now: float) -> None:
    permit = breaker.try_acquire(now)
    assert permit is not None
    breaker.settle(permit, Signal.UNHEALTHY, now)


def test_change_is_published_once() -> None:
    deployment = new_deployment()
    scene = Scene(deployment)
    assert scene.look() == []
    fail(deployment.breaker, 1000.0)
    (told,) = scene.look()
    assert told == {
        "deployment": "a/x",
        "before": "closed",
        "after": "open",
        "reason": "1 failures in a row",
        "refused": 0,
    }
    assert scene.look() == []


def test_changes_are_published_in_their_order() -> None:
    one, two = new_deployment("a/x"), new_deployment("b/y")
    scene = Scene(one, two)
    fail(two.breaker, 1000.0)
    fail(one.breaker, 1001.0)
    fail(two.breaker, 1031.0)
    assert [(each["deployment"], each["after"]) for each in scene.look()] == [
        ("b/y", "open"), ("a/x", "open"), ("b/y", "half_open"), ("b/y", "open"),
    ]  # fmt: skip


def test_change_of_an_upstream_breaker_is_published_once_for_all_its_deployments() -> None:
    one = new_deployment("a/x")
    scene = Scene(one, replace(new_deployment("a/y"), host=one.host))
    one.host.force("forced_open", 1000.0)
    (told,) = scene.look()
    assert told == {
        "upstream": "a",
        "before": "closed",
        "after": "forced_open",
        "reason": "set by an operator",
        "refused": 0,
    }


def test_reload_that_recreates_deployments_repeats_and_loses_nothing() -> None:
    deployment = new_deployment()
    scene = Scene(deployment)
    fail(deployment.breaker, 1000.0)
    scene.look()
    fail(deployment.breaker, 1031.0)
    scene.deployments = [replace(deployment, label="a/renamed")]
    assert [each["after"] for each in scene.look()] == ["half_open", "open"]
    scene.deployments = [deployment, new_deployment("a/new")]
    assert scene.look() == []


def test_new_deployment_that_has_already_changed_is_published() -> None:
    scene = Scene()
    scene.look()
    late = new_deployment("a/late")
    fail(late.breaker, 1000.0)
    scene.deployments.append(late)
    assert [each["after"] for each in scene.look()] == ["open"]


def test_changes_that_the_breaker_has_forgotten_are_counted() -> None:
    deployment = new_deployment()
    scene = Scene(deployment)
    for number in range(10):
        deployment.breaker.force("forced_open", 1000.0 + number)
        deployment.breaker.force("auto", 1000.5 + number)
    missing, *told = scene.look()
    assert missing == {"deployment": "a/x", "missing": 4}
    assert len(told) == KEPT
    assert [each["after"] for each in told] == ["forced_open", "closed"] * 8
    assert scene.look() == []


def test_name_under_a_pattern_is_published_with_the_label() -> None:
    named = replace(new_deployment("a/gpt-*"), model="gpt-5")
    scene = Scene(named)
    fail(named.breaker, 1000.0)
    (told,) = scene.look()
    assert (told["deployment"], told["model"]) == ("a/gpt-*", "gpt-5")
