"""Saved end times in Unix time: they are stable from save to save, and follow the wall clock when it is set."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from llm_guard.admin.persistence.operator_state import OperatorState, _hold, _kept_hold
from llm_guard.resilience.alerts.silences import Silence
from llm_guard.routing.deployment import MaintenanceHold
from tests.unit.admin.alerting.alert_world import World


def known(world: World) -> OperatorState:
    """Returns the saved state of the world's alerts; all other parts are empty."""
    nothing = SimpleNamespace(all=tuple[object, ...])
    parts: Any = SimpleNamespace(
        forces=nothing, holds=nothing, overrides=dict[str, Any], is_rolled_back=False, current=None,
        stopped=list[str],
    )  # fmt: skip
    gateway: Any = SimpleNamespace(is_closed=False, quotas=SimpleNamespace(days=list[object]))
    return OperatorState(world.alerts, parts, parts, parts, parts, parts, cast("Any", None), gateway, world.clock)


def test_end_is_the_same_at_each_snapshot_until_the_clock_is_set() -> None:
    world = World()
    known_ = known(world)
    assert world.alerts.try_silence(Silence("*", None, world.clock.now() + 60, "known", "anna"))
    first = known_.snapshot()
    assert first.silences[0].until == world.clock.wall() + 60
    world.clock._wall_offset_s += 0.4
    assert known_.snapshot() == first
    world.clock._wall_offset_s += 3600
    assert known_.snapshot().silences[0].until == world.clock.wall() + 60


def test_cordon_that_outlives_a_restart_ends_at_the_same_time_of_day() -> None:
    """The monotonic clock begins anew with the machine, so each process has an offset of its own."""
    benched = MaintenanceHold("cordoned", "an outage", "ann", 1_800_000_000.0, 1060.0)
    drained = MaintenanceHold("drained", "an upgrade", "bob", 1_800_000_001.0, None)
    before_s, after_s = 1_799_999_000.0, 1_799_999_990.0
    assert _hold(_kept_hold("a/x", benched, before_s), after_s) == (
        "a/x", MaintenanceHold("cordoned", "an outage", "ann", 1_800_000_000.0, 70.0),
    )  # fmt: skip
    assert _hold(_kept_hold("a/x", drained, before_s), after_s) == ("a/x", drained)
