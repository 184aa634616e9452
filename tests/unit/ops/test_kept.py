"""Ends in the time of the epoch: they must not differ from look to look, and follow a clock that was set."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from llm_guard.ops.kept import Known
from llm_guard.policy.alert_silences import Silence
from tests.unit.ops.alert_world import World


def known(world: World) -> Known:
    """Of its alerts; nothing else was said."""
    nothing = SimpleNamespace(all=tuple[object, ...])
    parts: Any = SimpleNamespace(
        forces=nothing, holds=nothing, words=dict[str, Any], is_rolled_back=False, current=None,
        stopped=list[str],
    )  # fmt: skip
    gateway: Any = SimpleNamespace(is_closed=False, quotas=SimpleNamespace(days=list[object]))
    return Known(world.alerts, parts, parts, parts, parts, parts, cast("Any", None), gateway, world.clock)


def test_end_is_the_same_at_each_look_until_the_clock_is_set() -> None:
    world = World()
    known_ = known(world)
    assert world.alerts.try_silence(Silence("*", None, world.clock.now() + 60, "known", "anna"))
    first = known_.gather()
    assert first.silences[0].until == world.clock.wall() + 60
    world.clock._wall_offset_s += 0.4
    assert known_.gather() == first
    world.clock._wall_offset_s += 3600
    assert known_.gather().silences[0].until == world.clock.wall() + 60
