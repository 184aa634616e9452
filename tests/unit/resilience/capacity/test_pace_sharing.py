"""Which gateway is the keeper of a pace, what happens when it dies, and what without a store."""

from __future__ import annotations

import pytest

from llm_guard.resilience.capacity.gate import CapacitySettings, Paces
from llm_guard.resilience.capacity.pace_report import PaceReport
from llm_guard.resilience.capacity.pace_sharing import KEEPER_LEASE_S, PaceSharing
from llm_guard.resilience.capacity.pacing import PacerSnapshot, PaceSnapshot
from llm_guard.resilience.capacity.shared_gate import SharedGate

SETTINGS = CapacitySettings()


class Gateways:
    """Some gateways with a store that grants one lease."""

    def __init__(self, count: int = 3) -> None:
        self.names = [f"gateway-{number}" for number in range(count)]
        self.gates = {name: SharedGate(SETTINGS, 0.0) for name in self.names}
        self.sharing = {name: PaceSharing(name) for name in self.names}
        self.published: dict[str, tuple[float, PaceReport]] = {}
        self.lease = ("", 0.0)
        self.unreadable = ""
        """A gateway whose reports the others cannot read."""
        self.now = 0.0

    def exchange(self, *names: str, times: int = 1) -> None:
        """Lets these gateways exchange one after the other, all if none is named."""
        for _ in range(times):
            self.now += 0.1
            for name in names or self.names:
                self._exchange(name)

    def _exchange(self, name: str) -> None:
        sharing, now = self.sharing[name], self.now
        self.published[name] = now, sharing.report(self.gates[name], now)
        has_lease = sharing.wants_lease(now) and (self.lease[0] == name or self.lease[1] <= now)
        if has_lease:
            self.lease = name, now + KEEPER_LEASE_S
        others = {
            other: (now - at, report)
            for other, (at, report) in self.published.items()
            if other not in (name, self.unreadable) and now - at <= 3.0
        }
        sharing.conclude(self.gates[name], SETTINGS, others, len(self.names), now, has_lease=has_lease)

    def limit(self, rate: float) -> None:
        """Lets all gateways know a rate."""
        self.exchange(times=3)
        pacer = PacerSnapshot(rate, 0.0, "rate_limits", 0.0, is_probing=False)
        self._estimator_of(self.keepers[0]).begin_at(PaceSnapshot(pacer, None, None, is_probing=False), 1, (), self.now)
        self.exchange(times=2)

    def _estimator_of(self, name: str) -> Paces:
        keeper = self.sharing[name]._keeper
        assert keeper is not None
        return keeper._paces

    @property
    def keepers(self) -> list[str]:
        return [name for name in self.names if self.sharing[name].is_keeper]

    @property
    def rates(self) -> list[float]:
        return [self.gates[name].snapshot(self.now).rate or 0.0 for name in self.names]


@pytest.fixture
def gateways() -> Gateways:
    return Gateways()


def test_one_gateway_decides_and_all_follow_it(gateways: Gateways) -> None:
    gateways.limit(9.0)
    assert len(gateways.keepers) == 1
    assert all(gate.follows for gate in gateways.gates.values())
    assert gateways.rates == [9.0] * 3
    gateways.exchange(times=50)
    assert len(gateways.keepers) == 1
    assert [sharing.has_grants for sharing in gateways.sharing.values()] == [True, False, False]


def test_another_one_goes_on_at_the_same_rate_when_it_dies(gateways: Gateways) -> None:
    gateways.limit(9.0)
    dead = gateways.keepers[0]
    living = [name for name in gateways.names if name != dead]
    gateways.exchange(*living, times=14)
    [keeper] = set(gateways.keepers) - {dead}
    assert [rate for name, rate in zip(gateways.names, gateways.rates, strict=True) if name != dead] == [9.0] * 2
    assert gateways.sharing[keeper].is_shared


def test_keeper_that_was_frozen_follows_its_successor(gateways: Gateways) -> None:
    gateways.limit(9.0)
    frozen = gateways.keepers[0]
    gateways.exchange(*(name for name in gateways.names if name != frozen), times=20)
    [successor] = set(gateways.keepers) - {frozen}
    lease, gateways.lease = gateways.lease, (frozen, 1e9)  # even if the store has lost the other lease
    gateways.exchange(frozen)
    assert gateways.keepers == [successor]
    gateways.lease = lease
    gateways.exchange(times=3)
    assert gateways.keepers == [successor]
    assert all(gate.report(gateways.now).keeper == successor for gate in gateways.gates.values())


def test_without_any_keeper_each_goes_on_alone_after_two_seconds(gateways: Gateways) -> None:
    gateways.limit(9.0)
    gateways.lease = ("nobody", 1e9)
    dead = gateways.keepers[0]
    gateways.exchange(*(name for name in gateways.names if name != dead), times=19)
    assert gateways.gates[gateways.names[1]].follows
    gateways.exchange(*(name for name in gateways.names if name != dead), times=4)
    rates = [rate for name, rate in zip(gateways.names, gateways.rates, strict=True) if name != dead]
    assert rates == pytest.approx([3.0, 3.0])


def test_without_the_store_each_has_an_equal_part_at_once_and_they_meet_at_the_sum(gateways: Gateways) -> None:
    gateways.limit(9.0)
    for name in gateways.names:
        gateways.sharing[name].work_alone(gateways.gates[name], 3, gateways.now)
    assert gateways.keepers == []
    assert gateways.rates == pytest.approx([3.0] * 3)
    gateways.published.clear()
    gateways.lease = ("", 0.0)
    gateways.exchange(times=4)
    assert gateways.rates == pytest.approx([9.0] * 3, rel=0.01)
    assert len(gateways.keepers) == 1


def test_gateway_follows_only_a_keeper_that_has_heard_of_it(gateways: Gateways) -> None:
    gateways.exchange("gateway-0", times=2)
    gateways.exchange("gateway-1")
    assert not gateways.gates["gateway-1"].follows
    gateways.exchange("gateway-0", times=2)
    gateways.exchange("gateway-1")
    assert gateways.gates["gateway-1"].follows


def test_pace_is_shared_while_any_gateway_needs_it(gateways: Gateways) -> None:
    sharing, gate = gateways.sharing["gateway-0"], gateways.gates["gateway-0"]
    assert not sharing.is_needed(gate, {}, 1.0)
    assert sharing.is_needed(gate, {"other": PaceReport(is_active=True)}, 1.0)
    slot = gate.try_enter(1.0)
    assert slot is not None
    gate.exit(slot, 1.0, "rate_limited", None)
    assert sharing.is_needed(gate, {}, 2.0)
    assert not sharing.is_needed(gate, {}, 62.0)
    gateways.limit(9.0)
    assert gateways.sharing[gateways.keepers[0]].is_needed(None, {}, 62.0)


def test_end_frees_the_gate(gateways: Gateways) -> None:
    gateways.exchange(times=3)
    gateways.sharing["gateway-1"].end(gateways.gates["gateway-1"], gateways.now)
    assert not gateways.gates["gateway-1"].follows
    assert gateways.gates["gateway-1"].try_enter(gateways.now) is not None


def test_gateway_that_the_keeper_cannot_read_does_not_wait_for_grants(gateways: Gateways) -> None:
    gateways.limit(9.0)
    [keeper] = gateways.keepers
    gateways.unreadable = next(name for name in gateways.names if name != keeper)
    gate = gateways.gates[gateways.unreadable]
    gateways.exchange(times=15)
    assert gate.follows
    gateways.exchange(times=10)
    follows = [gate.follows]
    assert gate.snapshot(gateways.now).rate == pytest.approx(3.0, rel=0.2)
    gateways.unreadable = ""
    gateways.exchange(times=5)
    assert [*follows, gate.follows] == [False, True]
