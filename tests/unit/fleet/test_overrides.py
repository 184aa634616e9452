"""What a gateway stores of its operators' overrides, and what it applies of the others', on a manual clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from llm_guard.fleet.overrides import Applied, FleetOverrides
from llm_guard.storage.shared.exchange_store import Override, StoredOverride, StoredOverrides
from llm_guard.storage.shared.memory_store import MemoryStore, SharedMemory
from tests.fakes.clock import ManualClock


class Gateway:
    """A gateway with texts as overrides, by key."""

    def __init__(self, clock: ManualClock, shared: SharedMemory, name: str) -> None:
        self.clock = clock
        self.has: dict[str, bytes] = {}
        self.applied: list[str] = []
        self.unknown: set[str] = set()
        """Targets that the config does not have."""
        self.age_s = 1e6
        """Age of what it has."""
        self.overrides = FleetOverrides(clock)
        self.overrides.connect(self)
        self.store = Store(MemoryStore(shared, name, clock), self)

    def current(self) -> Mapping[str, Override]:
        return {key: Override(self.age_s, content, is_ended=False) for key, content in self.has.items()}

    def apply(self, changes: Sequence[tuple[str, StoredOverride]]) -> Mapping[str, Applied]:
        return {key: self._apply(key, entry) for key, entry in changes}

    def _apply(self, key: str, entry: StoredOverride) -> Applied:
        if entry.content == b"nonsense":
            return "unreadable"
        if key in self.unknown:
            return "not here"
        self.applied.append(key)
        if entry.is_ended:
            self.has.pop(key, None)
        else:
            self.has[key] = entry.content
        return "yes"

    def put(self, key: str, content: bytes) -> None:
        """Acts as an operator."""
        self.has[key] = content
        self.overrides.note_changed({key: Override(0.0, content, is_ended=False)})

    def end(self, key: str) -> None:
        del self.has[key]
        self.overrides.note_changed({key: Override(0.0, b"", is_ended=True)})

    async def exchange(self) -> None:
        found = await self.store.memory.exchange(b"", {})
        await self.overrides.exchange(self.store, found.overrides_version)


class Store:
    """A store that counts requests, and in which an operator may act during one."""

    def __init__(self, memory: MemoryStore, gateway: Gateway) -> None:
        self.memory = memory
        self.requests = 0
        self.meanwhile: tuple[str, bytes] | None = None
        self.exchange, self.close = memory.exchange, memory.close
        self._gateway = gateway

    async def change_overrides(self, changed: Mapping[str, Override]) -> StoredOverrides:
        self.requests += 1
        if self.meanwhile is not None:
            self._gateway.put(*self.meanwhile)
            self.meanwhile = None
        return await self.memory.change_overrides(changed)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def shared() -> SharedMemory:
    return SharedMemory()


@pytest.fixture
def gateways(clock: ManualClock, shared: SharedMemory) -> list[Gateway]:
    return [Gateway(clock, shared, name) for name in ("first", "second")]


async def exchange(gateways: list[Gateway], times: int = 2) -> None:
    for gateway in gateways * times:
        gateway.clock.advance(0.1)
        await gateway.exchange()


async def test_change_holds_at_the_others_and_so_does_its_end(gateways: list[Gateway]) -> None:
    one, two = gateways
    one.put("a", b"1")
    await exchange(gateways)
    assert two.has == {"a": b"1"}
    two.end("a")
    await exchange(gateways)
    assert one.has == {}


async def test_each_change_is_applied_once(gateways: list[Gateway]) -> None:
    one, two = gateways
    one.put("a", b"1")
    await exchange(gateways, 5)
    one.put("b", b"2")
    await exchange(gateways, 5)
    assert two.applied == ["a", "b"]


async def test_store_is_asked_only_after_a_change(gateways: list[Gateway]) -> None:
    await exchange(gateways)
    asked = [gateway.store.requests for gateway in gateways]
    await exchange(gateways, 10)
    assert [gateway.store.requests for gateway in gateways] == asked


async def test_change_during_an_exchange_is_stored_with_the_next_one(gateways: list[Gateway]) -> None:
    one, two = gateways
    one.put("a", b"1")
    one.store.meanwhile = ("a", b"2")
    await exchange(gateways, 3)
    assert (one.has, two.has) == ({"a": b"2"}, {"a": b"2"})


def empty(shared: SharedMemory) -> None:
    shared.overrides.clear()
    shared.version = 0


async def test_store_that_lacks_an_override_gets_it(gateways: list[Gateway], shared: SharedMemory) -> None:
    one, two = gateways
    one.put("a", b"1")
    await exchange(gateways)
    empty(shared)
    await exchange(gateways)
    assert shared.overrides["a"][1].content == b"1"
    assert two.has == {"a": b"1"}


async def test_gateway_that_has_restored_its_own_takes_over_those_of_the_store(
    gateways: list[Gateway], clock: ManualClock, shared: SharedMemory
) -> None:
    one, _ = gateways
    one.put("a", b"new")
    await exchange(gateways)
    restarted = Gateway(clock, shared, "restarted")
    restarted.has = {"a": b"old", "b": b"own"}
    await exchange([restarted, *gateways])
    assert restarted.has == {"a": b"new", "b": b"own"}
    assert one.has == {"a": b"new", "b": b"own"}


async def test_change_that_waited_for_the_store_is_older_than_a_later_one(
    gateways: list[Gateway], clock: ManualClock
) -> None:
    one, two = gateways
    await exchange(gateways)
    one.put("a", b"first")
    clock.advance(60.0)
    two.put("a", b"second")
    await two.exchange()
    clock.advance(60.0)
    await exchange(gateways)
    assert (one.has, two.has) == ({"a": b"second"}, {"a": b"second"})


async def test_what_cannot_be_read_is_counted_once(gateways: list[Gateway]) -> None:
    one, two = gateways
    one.put("a", b"nonsense")
    one.put("b", b"x" * 9000)
    await exchange(gateways, 5)
    assert two.overrides.unreadable == 2
    assert two.applied == []


async def test_override_that_was_lifted_stays_so_after_the_store_was_emptied(
    gateways: list[Gateway], clock: ManualClock, shared: SharedMemory
) -> None:
    one, two = gateways
    one.put("a", b"1")
    await exchange(gateways)
    two.end("a")
    await exchange(gateways)
    empty(shared)
    await exchange(gateways, 3)
    restarted = Gateway(clock, shared, "restarted from an old file")
    restarted.has = {"a": b"1"}
    await exchange([restarted, *gateways], 3)
    assert (restarted.has, one.has, two.has) == ({}, {}, {})


async def test_change_from_a_time_without_the_store_outlives_a_restart(
    gateways: list[Gateway], clock: ManualClock, shared: SharedMemory
) -> None:
    one, two = gateways
    one.put("a", b"1")
    await exchange(gateways)
    clock.advance(60.0)
    restarted = Gateway(clock, shared, "restarted")
    restarted.has, restarted.age_s = {"a": b"younger"}, 5.0
    await exchange([restarted, *gateways], 3)
    assert (restarted.has, one.has, two.has) == ({"a": b"younger"},) * 3
    asked = restarted.store.requests
    await exchange([restarted, *gateways], 10)
    assert restarted.store.requests == asked, "no endless exchange of the same"


async def test_changes_are_applied_in_the_order_in_which_they_were_made(gateways: list[Gateway]) -> None:
    one, two = gateways
    await exchange(gateways)
    for key in ("z", "b", "y", "a"):
        one.put(key, b"1")
        one.clock.advance(0.5)
    await exchange(gateways)
    assert two.applied == ["z", "b", "y", "a"]


async def test_override_of_an_unknown_target_waits_for_a_config_that_has_it(gateways: list[Gateway]) -> None:
    one, two = gateways
    two.unknown = {"a"}
    one.put("a", b"1")
    await exchange(gateways, 3)
    assert (two.has, two.overrides.unreadable) == ({}, 0)
    two.unknown = set()
    two.overrides.look_again([])
    await exchange(gateways)
    assert two.has == {"a": b"1"}


async def test_override_comes_back_with_its_target(gateways: list[Gateway]) -> None:
    """A config that lacks a deployment by mistake is rolled back."""
    one, two = gateways
    one.put("a", b"1")
    await exchange(gateways)
    two.unknown, two.has = {"a"}, {}
    two.overrides.look_again(["a"])
    await exchange(gateways, 3)
    assert two.has == {}
    two.unknown = set()
    two.overrides.look_again([])
    await exchange(gateways)
    assert two.has == {"a": b"1"}


async def test_end_is_by_the_clock_of_the_store(clock: ManualClock, shared: SharedMemory) -> None:
    store = MemoryStore(shared, "a", clock)
    await store.change_overrides({"a": Override(0.0, b"1", is_ended=False, left_s=60.0)})
    clock.advance(50.0)
    assert (await store.change_overrides({})).entries["a"].left_s == pytest.approx(10.0)
    clock.advance(10.0)
    assert (await store.change_overrides({})).entries == {}
