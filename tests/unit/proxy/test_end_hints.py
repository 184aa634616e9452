"""A probe that finds a deployment healthy ends its provider's Retry-After: one call goes first."""

from __future__ import annotations

import json

from llm_guard.config import parse_config
from llm_guard.outcome import Failure, FailureKind
from llm_guard.proxy.handler import Handler
from llm_guard.resilience.circuit_breaker.cooldown import deployment_key
from llm_guard.routing.deployment import Deployment
from tests.fakes.clock import ManualClock
from tests.fakes.gateway import new_gateway

LIMITED = Failure(FailureKind.RATE_LIMIT, "answered 429", retry_after_s=60.0)


def gateway(clock: ManualClock) -> tuple[Handler, Deployment, Deployment]:
    """Returns a gateway with two deployments of one upstream."""
    upstreams = {"a": {"dialect": "openai", "base_url": "http://127.0.0.1:1/v1", "api_key": "sk-one"}}
    models = {name: {"deployments": [{"upstream": "a"}]} for name in ("x", "y")}
    config = parse_config(json.dumps({"upstreams": upstreams, "models": models}), "test.yaml", {})
    made = new_gateway(config, clock)
    found = {deployment.model: deployment for deployment in made.deployments()}
    return made, found["x"], found["y"]


def test_probe_ends_the_cooldown_that_a_hint_began_and_no_other_deployments() -> None:
    clock = ManualClock()
    made, x, y = gateway(clock)
    places = []
    for deployment in (x, y):
        assert deployment.credential is not None
        places.append(deployment_key(deployment.credential, deployment.model or ""))
        made.cooldowns.note_wait(places[-1], LIMITED, 60.0, clock.now())
    clock.advance(10.0)
    made.end_hints([x])
    assert made.cooldowns.find_hint(places[0], clock.now()) is None
    assert made.cooldowns.find_hint(places[1], clock.now()) is not None


def test_probe_ends_the_hold_of_every_gate_and_admits_a_waiting_call() -> None:
    clock = ManualClock()
    made, x, y = gateway(clock)
    turns: list[str] = []
    for deployment in (x, y):
        gate = deployment.gates.of("", clock.now())
        gate.pause_until(clock.now() + 60.0)
        label = deployment.label
        assert gate.enqueue(1, lambda label=label: turns.append(label)) is not None  # type: ignore[misc]
    made.wake_waiters()
    clock.advance(10.0)
    assert turns == []
    made.end_hints([x])
    assert turns == [x.label]
