from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest

from llm_guard.admin.overrides.breaker_overrides import BreakerOverride, BreakerOverrides, BreakerSelector
from llm_guard.admin.schemas.models import BreakerOverrideView
from llm_guard.outcome import Signal
from llm_guard.resilience.circuit_breaker.history import BreakerState
from llm_guard.routing.deployment import Deployment
from tests.fakes.clock import ManualClock
from tests.fakes.script import new_target
from tests.unit.admin.overrides.override_world import ActedOn, deployment

LABEL = BreakerSelector("a/m-*")
NOW = "2027-01-15T08:00:00.000Z"


def world(*deployments: Deployment) -> tuple[ManualClock, ActedOn, BreakerOverrides]:
    clock, world = ManualClock(), ActedOn(*deployments)
    return clock, world, BreakerOverrides(world.gateway, world.changes, clock)


def force(
    aim: BreakerSelector = LABEL,
    state: Literal["forced_open", "forced_closed"] = "forced_open",
    until: float | None = None,
) -> BreakerOverride:
    return BreakerOverride(aim, state, "an outage", until, "ann", 1_800_000_000.0)


def names(*models: str) -> list[Deployment]:
    return [deployment("a/m-*", model) for model in models]


def states(*deployments: Deployment) -> list[BreakerState]:
    return [deployment.breaker.state for deployment in deployments]


def open_(each: Deployment, now: float) -> None:
    while (permit := each.breaker.try_acquire(now)) is not None:
        each.breaker.settle(permit, Signal.UNHEALTHY, now)
    assert each.breaker.state == "open"


def transitions(each: Deployment) -> list[tuple[str, str, str]]:
    """Returns the state changes of the deployment's breaker, as events report them."""
    return [(change.before, change.after, change.why) for change in each.breaker.history.latest()]


# scope of an override


def test_force_on_a_label_reaches_every_name_under_it() -> None:
    one, two, other = *names("m-1", "m-2"), deployment("b/x")
    _, _, forces = world(one, two, other)
    forces.put(force())
    assert states(one, two, other) == ["forced_open", "forced_open", "closed"]


def test_force_on_one_name_leaves_the_others() -> None:
    one, two = names("m-1", "m-2")
    _, _, forces = world(one, two)
    forces.put(force(BreakerSelector("a/m-*", "m-2")))
    assert states(one, two) == ["closed", "forced_open"]


def test_force_on_an_upstream_is_its_hosts_alone() -> None:
    one = deployment("a/x")
    two = new_target("a/y", host=one.host).deployment
    _, _, forces = world(one, two, other := deployment("b/x"))
    forces.put(force(BreakerSelector(upstream="a")))
    assert (one.host.state, other.host.state, *states(one, two)) == ("forced_open", "closed", "closed", "closed")
    assert forces.closed_upstreams() == {"a"}


def test_name_that_is_requested_later_is_forced_from_its_first_call_on() -> None:
    _, _, forces = world()
    forces.put(force())
    forces.put(force(BreakerSelector("a/m-*", "m-2"), "forced_closed"))
    one, two = names("m-1", "m-2")
    forces.apply_overrides(one)
    forces.apply_overrides(two)
    assert states(one, two) == ["forced_open", "forced_closed"]


def test_latest_override_of_a_breaker_wins_and_the_other_returns_after_it() -> None:
    one, two = names("m-1", "m-2")
    clock, world_, forces = world(one, two)
    forces.put(force())
    forces.put(force(BreakerSelector("a/m-*", "m-2"), "forced_closed", clock.now() + 60))
    assert states(one, two) == ["forced_open", "forced_closed"]
    clock.advance(60)
    forces.look(clock.now())
    assert states(one, two) == ["forced_open", "forced_open"]
    assert world_.notes == [("expiry", "breakers.reset", "a/m-* (m-2)", "the override expired")]


def test_single_name_cannot_be_reset_while_the_whole_is_forced() -> None:
    _, _, forces = world(*names("m-1"))
    forces.put(whole := force())
    assert forces.covering(BreakerSelector("a/m-*", "m-1")) is whole
    assert forces.covering(LABEL) is None
    assert forces.covering(BreakerSelector("b/x", "m-1")) is None


def test_reset_of_a_label_ends_the_overrides_of_its_names() -> None:
    one, two = names("m-1", "m-2")
    _, _, forces = world(one, two)
    ended = [force(), force(BreakerSelector("a/m-*", "m-2"), "forced_closed")]
    for override in ended:
        forces.put(override)
    assert forces.reset(LABEL) == ended
    assert states(one, two) == ["closed", "closed"]
    assert forces.reset(LABEL) == []


# end of an override


def test_force_ends_by_itself_and_calls_return_gradually() -> None:
    one = deployment("a/x")
    clock, world_, forces = world(one)
    gate = one.gates.of("", clock.now())
    forces.put(force(BreakerSelector("a/x"), until=clock.now() + 60))
    clock.advance(59.9)
    forces.look(clock.now())
    assert states(one) == ["forced_open"]
    clock.advance(0.1)
    forces.look(clock.now())
    assert states(one) == ["closed"]
    assert gate.snapshot(clock.now()).limit == 4
    assert world_.let_in_count == 1
    assert world_.notes == [("expiry", "breakers.reset", "a/x", "the override expired")]


def test_admitted_calls_are_not_delayed_by_the_end() -> None:
    one = deployment("a/x")
    clock, _, forces = world(one)
    gate = one.gates.of("", clock.now())
    forces.put(force(BreakerSelector("a/x"), "forced_closed"))
    forces.reset(BreakerSelector("a/x"))
    assert gate.snapshot(clock.now()).limit is None


def test_reset_closes_a_breaker_opened_by_evidence() -> None:
    one = deployment("a/x")
    clock, _, forces = world(one)
    gate = one.gates.of("", clock.now())
    open_(one, clock.now())
    forces.reset(BreakerSelector("a/x"))
    assert states(one) == ["closed"]
    assert one.breaker.snapshot(clock.now()).failures == 0
    assert gate.snapshot(clock.now()).limit == 4


def test_reset_restores_the_configured_state() -> None:
    one = deployment("a/x", state="metrics_only")
    _, _, forces = world(one)
    forces.put(force(BreakerSelector("a/x")))
    assert states(one) == ["forced_open"]
    forces.reset(BreakerSelector("a/x"))
    assert states(one) == ["metrics_only"]
    assert transitions(one)[1:] == [("forced_open", "metrics_only", "reset by an operator")]


@pytest.mark.parametrize("state", ["forced_open", "forced_closed"])
def test_end_of_a_force_is_one_change_of_state_with_its_reason(state: Literal["forced_open", "forced_closed"]) -> None:
    one = deployment("a/x")
    clock, _, forces = world(one)
    forces.put(force(BreakerSelector("a/x"), state))
    forces.reset(BreakerSelector("a/x"))
    forces.put(force(BreakerSelector("a/x"), state, until=clock.now() + 60))
    clock.advance(60)
    forces.look(clock.now())
    forces.put(force(BreakerSelector("a/x"), state))
    forces.adopt({"b/y"}, {"b"})
    assert transitions(one)[1::2] == [
        (state, "closed", "reset by an operator"),
        (state, "closed", "no longer forced: the override expired"),
        (state, "closed", "no longer forced: the new config no longer has it"),
    ]


def test_reset_of_a_breaker_opened_by_evidence_is_one_change_of_state() -> None:
    one = deployment("a/x")
    clock, _, forces = world(one)
    open_(one, clock.now())
    forces.reset(BreakerSelector("a/x"))
    assert transitions(one)[1:] == [("open", "closed", "reset by an operator")]
    forces.reset(BreakerSelector("a/x"))
    assert len(transitions(one)) == 2


def test_force_outlives_a_reload_that_does_not_mention_it() -> None:
    one = deployment("a/x")
    clock, world_, forces = world(one)
    forces.put(force(BreakerSelector("a/x"), until=clock.now() + 60))
    one.breaker.settings = replace(one.breaker.settings, open_for=5.0)
    world_.all = [replace(one)]
    forces.adopt({"a/x"}, {"a"})
    forces.apply_overrides(world_.all[0])
    forces.look(clock.now())
    assert states(*world_.all) == ["forced_open"]
    assert world_.notes == []
    clock.advance(60)
    forces.look(clock.now())
    assert states(*world_.all) == ["closed"]


def test_reload_with_another_state_ends_the_force_and_that_is_audited() -> None:
    one, two = names("m-1", "m-2")
    clock, world_, forces = world(one, two)
    forces.put(force())
    one.breaker.settings = replace(one.breaker.settings, state="disabled")
    forces.look(clock.now())
    assert states(one, two) == ["disabled", "closed"]
    assert world_.notes == [("reload", "breakers.reset", "a/m-*", "the new config sets another state")]
    forces.look(clock.now())
    assert len(world_.notes) == 1


def test_what_the_config_has_no_longer_is_let_go_and_that_is_written_down() -> None:
    one, other = deployment("a/x"), deployment("b/x")
    _, world_, forces = world(one, other)
    forces.put(force(BreakerSelector("a/x")))
    forces.put(force(BreakerSelector(upstream="b")))
    forces.adopt({"b/x"}, {"b"})
    assert (one.breaker.state, other.host.state) == ("closed", "forced_open")
    forces.adopt({"b/x"}, {"a"})
    assert other.host.state == "closed"
    assert [target for _, _, target, _ in world_.notes] == ["a/x", "upstream b"]


def test_names_that_a_pattern_has_dropped_are_not_stored() -> None:
    clock, world_, forces = world(*names("m-1", "m-2"))
    forces.put(force())
    world_.all = names("m-3")
    forces.apply_overrides(world_.all[0])
    forces.look(clock.now())
    assert forces._taken.keys() == {world_.all[0].breaker}


# what is shown


def test_reason_and_end_are_those_of_the_whole_label_first() -> None:
    clock, _, forces = world(*names("m-1"))
    assert forces.forced("a/m-*") is None
    forces.put(
        BreakerOverride(BreakerSelector("a/m-*", "m-1"), "forced_open", "one", clock.now() + 60, "ann", clock.wall())
    )
    assert forces.forced("a/m-*") == BreakerOverrideView("one", NOW, "2027-01-15T08:01:00.000Z", "ann")
    forces.put(BreakerOverride(LABEL, "forced_closed", "all", None, "bob", clock.wall()))
    assert forces.forced("a/m-*") == BreakerOverrideView("all", NOW, None, "bob")


def test_labels_that_are_closed_are_those_forced_open_as_a_whole() -> None:
    _, _, forces = world()
    forces.put(force(BreakerSelector("a/x")))
    forces.put(force(BreakerSelector("a/y"), "forced_closed"))
    forces.put(force(BreakerSelector("a/m-*", "m-1")))
    assert forces.closed_labels() == {"a/x"}
