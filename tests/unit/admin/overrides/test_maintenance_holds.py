from __future__ import annotations

from llm_guard.admin.overrides.maintenance_holds import MaintenanceHolds
from llm_guard.routing.deployment import MaintenanceHold
from tests.fakes.clock import ManualClock
from tests.unit.admin.overrides.override_world import ActedOn, deployment


def world(*labels: str) -> tuple[ManualClock, ActedOn, MaintenanceHolds]:
    clock, world = ManualClock(), ActedOn(*map(deployment, labels))
    return clock, world, MaintenanceHolds(world.gateway, world.changes, clock)


def hold(until: float | None = None) -> MaintenanceHold:
    return MaintenanceHold("drained", "an outage", "ann", 1_800_000_000.0, until)


def test_hold_reaches_every_deployment_with_the_label_and_no_other() -> None:
    _, world_, holds = world("a/m-*", "a/m-*", "b/x")
    holds.put("a/m-*", hold())
    assert [deployment.hold is not None for deployment in world_.all] == [True, True, False]
    assert holds.labels() == {"a/m-*"}


def test_uncordoned_deployment_gets_calls_gradually() -> None:
    clock, world_, holds = world("a/x")
    gate = world_.all[0].gates.of("", clock.now())
    holds.put("a/x", hold())
    assert holds.end("a/x") == hold()
    assert world_.all[0].hold is None
    assert gate.snapshot(clock.now()).limit == 4
    assert world_.let_in_count == 1
    assert holds.end("a/x") is None


def test_hold_ends_by_itself_and_that_is_written_down() -> None:
    clock, world_, holds = world("a/x", "b/x")
    holds.put("a/x", hold(clock.now() + 60))
    holds.put("b/x", hold())
    clock.advance(59.9)
    holds.look(clock.now())
    assert world_.all[0].hold is not None
    assert world_.notes == []
    clock.advance(0.1)
    holds.look(clock.now())
    assert [deployment.hold is not None for deployment in world_.all] == [False, True]
    assert world_.notes == [("expiry", "deployments.uncordon", "a/x", "the hold expired")]
    holds.look(clock.now())
    assert len(world_.notes) == 1


def test_later_hold_replaces_the_earlier_one_and_its_end() -> None:
    clock, world_, holds = world("a/x")
    holds.put("a/x", hold(clock.now() + 60))
    holds.put("a/x", hold())
    clock.advance(61)
    holds.look(clock.now())
    assert world_.all[0].hold == hold()


def test_name_that_is_requested_later_is_held_from_its_first_call_on() -> None:
    _, _, holds = world()
    holds.put("a/m-*", hold())
    new, other = deployment("a/m-*"), deployment("b/x")
    holds.apply_overrides(new)
    holds.apply_overrides(other)
    assert (new.hold, other.hold) == (hold(), None)


def test_deployment_that_gets_another_label_is_not_held_for_the_old_one() -> None:
    _, world_, holds = world("a/x")
    holds.put("a/x", hold())
    world_.all[0].label = "a/y"
    holds.apply_overrides(world_.all[0])
    assert world_.all[0].hold is None


def test_what_the_config_has_no_longer_is_let_go_and_that_is_written_down() -> None:
    _, world_, holds = world("a/x", "b/x")
    holds.put("a/x", hold())
    holds.put("b/x", hold())
    holds.adopt({"b/x"})
    assert [deployment.hold is not None for deployment in world_.all] == [False, True]
    assert world_.notes == [("reload", "deployments.uncordon", "a/x", "the new config no longer has the deployment")]


def test_hold_is_shown_with_its_end() -> None:
    clock, _, holds = world("a/x")
    assert holds.view("a/x") is None
    holds.put("a/x", hold(clock.now() + 60))
    clock.advance(30)
    view = holds.view("a/x")
    assert view is not None
    assert (view.kind, view.reason, view.operator) == ("drained", "an outage", "ann")
    assert (view.since, view.until) == ("2027-01-15T08:00:00.000Z", "2027-01-15T08:01:00.000Z")
    holds.put("a/x", hold())
    assert holds.view("a/x").until is None  # type: ignore[union-attr]
