from __future__ import annotations

import pytest

from llm_guard.admin.overrides.injected_faults import FaultOverride, FaultOverrides
from llm_guard.proxy.attempts.fault_injection import FaultEffect, FaultInjector, InjectedFault
from tests.fakes.clock import ManualClock
from tests.unit.admin.overrides.override_world import ActedOn


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.acted_on = ActedOn()
        self.injector = FaultInjector(self.clock, lambda: 0.0)
        self.overrides = FaultOverrides(self.injector, self.acted_on.changes)

    def put(self, fault_id: str, seconds: float = 60.0, **aim: str) -> None:
        fault = InjectedFault(fault_id, FaultEffect("hang"), 1.0, self.clock.now() + seconds, **aim)
        self.overrides.put(FaultOverride(fault, "a drill", "ann", self.clock.wall()))

    @property
    def left(self) -> list[str]:
        assert [fault.id for fault in self.injector.faults] == [one.fault.id for one in self.overrides.all()]
        return [fault.id for fault in self.injector.faults]


def test_fault_ends_by_itself_and_that_is_written_down() -> None:
    world = World()
    world.put("one", 60, model="gpt")
    world.put("two", 61, deployment="a/x")
    world.clock.advance(59.9)
    world.overrides.look(world.clock.now())
    assert world.left == ["one", "two"]
    world.clock.advance(0.1)
    world.overrides.look(world.clock.now())
    assert world.left == ["two"]
    assert world.acted_on.notes == [("expiry", "chaos.end", "gpt", "the fault expired")]


def test_fault_is_ended_by_its_id() -> None:
    world = World()
    world.put("one", model="gpt")
    ended = world.overrides.end("one")
    assert ended is not None
    assert (ended.fault.id, world.left, world.overrides.end("one")) == ("one", [], None)


def test_reload_ends_faults_of_what_is_gone() -> None:
    world = World()
    world.put("one", model="gpt")
    world.put("two", model="old")
    world.put("three", deployment="a/x")
    world.put("four", deployment="a/old")
    world.overrides.adopt({"gpt"}, {"a/x"}, is_allowed=True)
    assert world.left == ["one", "three"]
    assert [note[:3] for note in world.acted_on.notes] == [
        ("reload", "chaos.end", "old"), ("reload", "chaos.end", "a/old"),
    ]  # fmt: skip


@pytest.mark.parametrize("is_stop", [True, False])
def test_all_end_with_the_permission_and_with_the_gateway(is_stop: bool) -> None:
    world = World()
    world.put("one", model="gpt")
    world.put("two", deployment="a/x")
    if is_stop:
        world.overrides.close()
    else:
        world.overrides.adopt({"gpt"}, {"a/x"}, is_allowed=False)
    assert world.left == []
    assert [note[0] for note in world.acted_on.notes] == ["stop" if is_stop else "reload"] * 2
