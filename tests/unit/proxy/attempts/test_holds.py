"""Deployments that an operator has taken out of service, as calls meet them."""

from __future__ import annotations

from typing import Literal

from llm_guard.proxy.attempts.admission import AdmissionControl
from llm_guard.resilience.capacity.gate import CapacitySettings
from llm_guard.resilience.circuit_breaker.cooldown import Cooldowns
from llm_guard.routing.deployment import MaintenanceHold
from llm_guard.routing.lease import Lease
from llm_guard.routing.route_table import Target
from tests.fakes.clock import ManualClock
from tests.fakes.script import OK, SERVER_ERROR, Slow, new_call, new_target
from tests.unit.proxy.attempts.plays import Stage, play


def held(target: Target, kind: Literal["drained", "cordoned"] = "drained", until: float | None = None) -> Target:
    target.deployment.hold = MaintenanceHold(kind, "an outage", "ann", 1_800_000_000.0, until)
    return target


async def test_call_goes_to_the_next_deployment() -> None:
    played = play(OK, targets=(held(new_target("a/x")), new_target("b/x")))
    await played.serves()
    assert played.script.transcript == ["asked b/x"]
    assert [(skipped.deployment, skipped.why) for skipped in played.call.skipped] == [("a/x", "drained by an operator")]


async def test_call_without_a_deployment_is_refused_with_operator_and_time() -> None:
    targets = (held(new_target("a/x"), "cordoned", 1010.0), held(new_target("b/x")))
    played = play(targets=targets)
    refusal = (await played.gives_up()).refusal
    assert refusal is not None
    assert (refusal.status, refusal.code, refusal.by, refusal.retry_after_s) == (503, "deployment_held", "hold", 10.0)
    assert refusal.message == "a/x, b/x: taken out of service by an operator"
    assert played.call.skipped[0].why == "cordoned by an operator"


async def test_hold_without_an_end_has_the_retry_after_of_a_forced_breaker() -> None:
    refusal = (await play(targets=(held(new_target("a/x")),)).gives_up()).refusal
    assert refusal is not None
    assert refusal.retry_after_s == 30.0


async def test_held_deployment_is_not_free_and_takes_nothing_from_others() -> None:
    target, clock = held(new_target("a/x", capacity=CapacitySettings(concurrency=1))), ManualClock()
    admission = AdmissionControl(Cooldowns(), clock)
    assert not admission.is_free(new_call(target), target)
    assert not isinstance(admission.try_enter(new_call(target), target, hint_patience_s=30.0), Lease)
    target.deployment.hold = None
    assert admission.is_free(new_call(target), target)
    assert target.deployment.gates.in_flight == 0


async def test_retry_goes_elsewhere_once_the_deployment_is_held() -> None:
    one, two = new_target("a/x"), new_target("b/x")
    stage = Stage(one, two, a=[Slow(1.0, SERVER_ERROR), OK], b=[OK])
    call = await stage.start()
    held(one)
    await stage.pass_s(5.0)
    assert stage.served(call).attempt.target is two
    assert [line.split(" ", 1)[1] for line in stage.script.transcript] == ["asked a/x", "asked b/x"]


async def test_running_call_continues_and_waiting_calls_go_elsewhere() -> None:
    one, two = new_target("a/x", capacity=CapacitySettings(pacing=False, concurrency=1)), new_target("b/x", group=1)
    stage = Stage(one, two, a=[Slow(1.0, OK)], b=[OK, OK])
    running = await stage.start()
    held(one)
    later = await stage.start()
    await stage.pass_s(2.0)
    assert stage.served(running).attempt.target is one
    assert stage.served(later).attempt.target is two
    stage.assert_nothing_is_held()


async def test_call_that_waits_for_its_turn_is_refused_at_its_turn() -> None:
    one = new_target("a/x", capacity=CapacitySettings(pacing=False, concurrency=1))
    stage = Stage(one, a=[Slow(1.0, OK)])
    await stage.start()
    waiting = await stage.start()
    held(one)
    await stage.pass_s(2.0)
    refusal = stage.gave_up(waiting).refusal
    assert refusal is not None
    assert refusal.code == "deployment_held"
    stage.assert_nothing_is_held()
