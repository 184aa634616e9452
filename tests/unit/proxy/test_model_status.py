"""States of models, read from the deployments of a gateway on a manual clock."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llm_guard.config import parse_config
from llm_guard.outcome import Failure, FailureKind, Signal
from llm_guard.proxy.handler import Handler
from llm_guard.proxy.model_status import ModelStatuses
from llm_guard.resilience.circuit_breaker.cooldown import deployment_key
from llm_guard.resilience.health.model_status import ModelStatus
from llm_guard.routing.deployment import Deployment, MaintenanceHold
from tests.fakes.clock import ManualClock
from tests.fakes.gateway import new_gateway

LIMITED = Failure(FailureKind.RATE_LIMIT, "answered 429", retry_after_s=60.0)


class World:
    """A gateway with two models: `pair` has two deployments, `solo` has one and falls back to `pair`."""

    def __init__(self, **pair: Any) -> None:
        self.clock = ManualClock()
        upstreams = {
            name: {"dialect": "openai", "base_url": f"http://127.0.0.1:{port}/v1", "api_key": f"sk-{name}"}
            for port, name in enumerate(("a", "b", "c"), 1)
        }
        models = {
            "pair": {"deployments": [{"upstream": "a"}, {"upstream": "b"}], **pair},
            "solo": {"deployments": [{"upstream": "c"}], "fallbacks": ["pair"]},
        }
        breaker = {"consecutive_failures": 2, "open_for": "30s", "open_jitter": 0, "early_probes": False}
        config = {"upstreams": upstreams, "models": models, "defaults": {"breaker": breaker}}
        self.config = parse_config(json.dumps(config), "test.yaml", {})
        self.gateway: Handler = new_gateway(self.config, self.clock)
        self.statuses = ModelStatuses(self.gateway.cooldowns, self.gateway.degraded, self.gateway, self.clock)

    def deployment(self, label: str) -> Deployment:
        return next(each for each in self.gateway.deployments() if each.label == label)

    def break_down(self, *labels: str) -> None:
        for label in labels:
            breaker = self.deployment(label).breaker
            while breaker.state == "closed":
                permit = breaker.try_acquire(self.clock.now())
                assert permit is not None
                breaker.settle(permit, Signal.UNHEALTHY, self.clock.now())

    def pause(self, label: str, client: str = "") -> None:
        deployment = self.deployment(label)
        assert deployment.credential is not None
        key = deployment_key(deployment.credential, deployment.model or "")
        self.gateway.cooldowns.note_wait(key, LIMITED, 60.0, self.clock.now(), client)

    def of(self, model: str = "pair", client: str | None = None) -> ModelStatus:
        return self.statuses.all(client)[model]

    def states(self) -> dict[str, str]:
        return {model: status.state for model, status in self.statuses.all(None).items()}


def test_models_without_problems_are_ok() -> None:
    world = World()
    assert world.states() == {"pair": "ok", "solo": "ok"}
    assert world.statuses.are_common


def test_open_breaker_is_degraded_and_all_open_are_down_until_the_next_trial_call() -> None:
    world = World()
    world.break_down("a/pair")
    now = world.clock.now()
    assert world.of() == ModelStatus("degraded", "failures", since=now, expected_end=now + 30.0)
    world.clock.advance(10.0)
    world.break_down("b/pair")
    assert world.of() == ModelStatus("down", "failures", since=now + 10.0, expected_end=now + 30.0)
    assert world.states()["solo"] == "ok", "only its fallback fails"
    world.break_down("c/solo")
    assert world.states()["solo"] == "down"


def test_breaker_that_takes_a_trial_call_is_degraded_until_it_closes() -> None:
    world = World()
    world.break_down("a/pair", "b/pair")
    world.clock.advance(30.0)
    assert (world.of().state, world.of().kind) == ("degraded", "recovering")
    for label in ("a/pair", "b/pair"):
        breaker = world.deployment(label).breaker
        permit = breaker.try_acquire(world.clock.now())
        assert permit is not None
        breaker.settle(permit, Signal.HEALTHY, world.clock.now())
    assert world.of() == ModelStatus()


def test_cooldown_ends_with_the_providers_hint() -> None:
    world = World()
    world.pause("a/pair")
    now = world.clock.now()
    assert not world.statuses.are_common
    assert world.of() == ModelStatus("degraded", "paused", since=now, expected_end=now + 60.0)
    world.clock.advance(61.0)
    assert world.of().kind != "paused"


def test_cooldown_of_another_client_is_not_shown() -> None:
    world = World()
    world.pause("a/pair", "app")
    assert world.of(client="app").state == "degraded"
    assert world.of(client="other").state == "ok"


@pytest.mark.parametrize("ends_in_s", [None, 90.0])
def test_hold_is_maintenance_until_its_end(ends_in_s: float | None) -> None:
    world = World()
    now = world.clock.now()
    until = None if ends_in_s is None else now + ends_in_s
    hold = MaintenanceHold("drained", "new disks at a", "carol", world.clock.wall() - 5.0, until)
    world.deployment("a/pair").hold = hold
    assert world.of() == ModelStatus("degraded", "maintenance", since=now - 5.0, expected_end=until)


def test_forced_open_breaker_is_maintenance_without_a_known_end() -> None:
    world = World()
    world.deployment("a/pair").breaker.force("forced_open", world.clock.now())
    assert world.of() == ModelStatus("degraded", "maintenance")


def test_full_queue_is_a_limit_that_refuses() -> None:
    world = World(capacity={"concurrency": 1, "max_queue": 1})
    seen = []
    for label in ("a/pair", "b/pair"):
        gate = world.deployment(label).gates.of("", world.clock.now())
        assert gate.try_enter(world.clock.now(), 1, "") is not None
        seen.append(world.of().state)
        assert gate.enqueue(1, lambda: None) is not None
        seen.append(world.of().state)
    assert seen == ["ok", "degraded", "degraded", "down"], "calls that wait are answered"
    assert world.of().kind == "capacity"


def test_failing_probes_leave_a_model_degraded() -> None:
    world = World()
    world.gateway.table.pool.down.keys = frozenset({("a", None), ("b", None)})
    assert world.of() == ModelStatus("degraded", "failures")
