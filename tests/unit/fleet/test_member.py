"""A gateway as a member of a fleet, on a manual clock: exchanges, failures of the store, and what follows from them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest
from structlog.testing import capture_logs

from llm_guard.config import parse_config
from llm_guard.fleet.breakers import FleetBreakers
from llm_guard.fleet.client_limits import FleetClientLimits
from llm_guard.fleet.content import ReplicaStatus
from llm_guard.fleet.member import FleetMember
from llm_guard.fleet.overrides import Applied
from llm_guard.fleet.paces import FleetPaces
from llm_guard.fleet.retry_floors import FleetRetryFloors
from llm_guard.fleet.slots import FleetSlots
from llm_guard.outcome import Signal
from llm_guard.proxy.client_keys.quotas import ClientQuotas
from llm_guard.resilience.capacity.settings import CapacitySettings
from llm_guard.resilience.capacity.shared_gate import SharedGate
from llm_guard.resilience.capacity.slot_sharing import SlotRequest
from llm_guard.resilience.causes.cause import IncidentCause
from llm_guard.resilience.circuit_breaker.shared_breaker import SharedBreaker
from llm_guard.resilience.retry.limits import RetryBudget
from llm_guard.routing.route_table import RouteTable, compile_routes
from llm_guard.storage.shared.exchange_store import (
    NO_SLOTS,
    Exchanged,
    Leases,
    Override,
    Published,
    StoredOverride,
    StoredOverrides,
    StoreUnavailable,
)
from llm_guard.storage.shared.memory_store import MemoryStore, SharedMemory
from llm_guard.webhooks.notice_sharing import NoticeState
from tests.fakes.clock import ManualClock
from tests.fakes.fleet_names import NAMES
from tests.fakes.waiting import eventually

CONFIG = """
upstreams:
  one: {dialect: openai, base_url: "https://one.example/v1", api_key: sk}
models:
  a: {deployments: [{upstream: one}]}
  b: {deployments: [{upstream: one, model: a}, {upstream: one, model: c}]}
"""


class Gateway:
    """The breakers of a gateway, and its membership."""

    def __init__(self, clock: ManualClock, shared: SharedMemory, name: str) -> None:
        self.clock = clock
        self.table: RouteTable = compile_routes(
            parse_config(CONFIG, "test.yaml", {}), clock.now(), new_breaker=SharedBreaker, new_gate=SharedGate
        )
        self.breakers = FleetBreakers(self.table.deployments, NAMES)
        self.store = FailingStore(shared, name, clock)
        self.calls = 0
        self.names = "ours"
        self.quotas = ClientQuotas(clock)
        self.woken = 0
        self.slots = FleetSlots(self.table.deployments, self.quotas, NAMES, self.wake)
        self.member = FleetMember(
            "test", f"{name}:1:x", self.store, self.breakers, self.slots, FleetClientLimits(self.quotas, NAMES, clock),
            FleetPaces(self.table.deployments, f"{name}:1:x", NAMES, lambda _: None),
            FleetRetryFloors(lambda: self.table), self.status, NAMES, clock,
        )  # fmt: skip

    def wake(self) -> None:
        self.woken += 1

    def status(self) -> ReplicaStatus:
        return ReplicaStatus("0.1", "abc", 60.0, 2, self.calls, names=self.names)

    @property
    def breaker(self) -> SharedBreaker:
        found = next(each.breaker for each in self.table.deployments() if each.label == "one/a")
        assert isinstance(found, SharedBreaker)
        return found

    def call(self, signal: Signal) -> None:
        permit = self.breaker.try_acquire(self.clock.now())
        assert permit is not None
        self.clock.advance(0.05)
        self.breaker.settle(permit, signal, self.clock.now())


class FailingStore:
    """A store that fails on request."""

    def __init__(self, shared: SharedMemory, name: str, clock: ManualClock) -> None:
        self._shared = shared
        self._store = MemoryStore(shared, name, clock)
        self.is_closed = False
        self.failures: list[BaseException] = []
        """What the next exchanges raise."""
        self.answer: Exchanged | None = None
        """What all other exchanges return instead of the truth."""
        self.left = 10**6
        """Exchanges until one does not end."""
        self.is_stuck = False

    def published(self) -> list[str]:
        """Returns the gateways with a content in the store."""
        return list(self._shared.published)

    def holders(self) -> list[list[str]]:
        """Returns the gateways with slots, for each limit."""
        return [list(holders) for holders in self._shared.slots.values()]

    async def exchange(
        self, content: bytes, wanted: Mapping[str, float], slots: Mapping[str, SlotRequest] = NO_SLOTS
    ) -> Exchanged:
        if self.failures:
            raise self.failures.pop(0)
        if self.is_stuck:
            raise StoreUnavailable("TimeoutError")
        if self.left == 0:
            self.is_stuck = True
            await asyncio.Event().wait()
        self.left -= 1
        return self.answer or await self._store.exchange(content, wanted, slots)

    async def change_overrides(self, changed: Mapping[str, Override]) -> StoredOverrides:
        if self.failures:
            raise self.failures.pop(0)
        return await self._store.change_overrides(changed)

    async def close(self) -> None:
        self.is_closed = True
        await self._store.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def gateways(clock: ManualClock) -> list[Gateway]:
    shared = SharedMemory()
    return [Gateway(clock, shared, name) for name in ("first", "second", "third")]


async def exchange(gateways: list[Gateway]) -> None:
    """Lets all of them know what the others know now."""
    for gateway in 4 * gateways:
        await gateway.member.exchange()


async def fail(gateways: list[Gateway], calls: int = 6) -> None:
    for n in range(calls):
        gateways[n % len(gateways)].clock.advance(1.0)
        gateways[n % len(gateways)].call(Signal.UNHEALTHY)
    gateways[0].clock.advance(0.6)


async def test_gateways_open_together_and_one_at_a_time_probes(gateways: list[Gateway], clock: ManualClock) -> None:
    await fail(gateways)
    with capture_logs() as log:
        await exchange(gateways)
    assert [gateway.breaker.state for gateway in gateways] == ["open"] * 3
    lines = [line for line in log if line["event"] == "breaker"]
    assert {line["reason"] for line in lines} == {"6 failures in a row at 3 gateways"}
    assert all(line["errors"] == [] and line["deployment"] == "one/a" for line in lines)
    assert [len(gateway.member.others) for gateway in gateways] == [2, 2, 2]

    clock.advance(1.0)
    assert [gateway.breaker.try_acquire(clock.now()) for gateway in gateways] == [None] * 3
    await exchange(gateways)
    permits = [gateway.breaker.try_acquire(clock.now()) for gateway in gateways]
    assert [permit is not None for permit in permits] == [True, False, False]
    assert permits[0] is not None
    gateways[0].breaker.settle(permits[0], Signal.HEALTHY, clock.now())
    await exchange(gateways)
    assert [gateway.breaker.state for gateway in gateways] == ["closed", "half_open", "half_open"]


async def test_failed_exchange_lets_the_gateway_decide_alone(gateways: list[Gateway], clock: ManualClock) -> None:
    await fail(gateways)
    await exchange(gateways)
    clock.advance(1.0)
    gateway = gateways[1]
    assert gateway.breaker.awaits_lease(clock.now())
    gateway.store.failures = [StoreUnavailable("TimeoutError")] * 3
    with capture_logs() as log:
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                await gateway.member.exchange()
    assert [line["event"] for line in log] == ["the store of the fleet does not answer: this gateway works alone"]
    assert (gateway.member.is_connected, gateway.member.others, gateway.member.failures) == (
        False, (), {"TimeoutError": 3},
    )  # fmt: skip
    assert gateway.member.problem == "TimeoutError"
    assert gateway.breaker.try_acquire(clock.now()) is not None

    with capture_logs() as log:
        await gateway.member.exchange()
    assert [line["event"] for line in log] == ["the store of the fleet answers"]


async def test_exchanges_go_on_after_failures_and_bugs(gateways: list[Gateway], clock: ManualClock) -> None:
    member, store = gateways[0].member, gateways[0].store
    store.failures = [*[StoreUnavailable("ConnectionError")] * 5, ZeroDivisionError()]
    with capture_logs() as log:
        await member.start()
        await eventually(lambda: member.exchanges >= 3)
        await member.stop()
    assert clock.slept[:8] == [0.2, 0.4, 0.75, 0.75, 0.75, 0.75, 0.1, 0.1]
    assert "unexpected error in an exchange with the store of the fleet" in {line["event"] for line in log}
    assert store.published() == []


async def pauses_of(gateway: Gateway, clock: ManualClock, exchanges: int) -> int:
    """Returns how many pauses of a tenth of a second a gateway makes in so many exchanges."""
    gateway.store.left = exchanges
    await gateway.member.start()
    await eventually(lambda: gateway.store.is_stuck)
    pauses = clock.slept.count(0.1)
    await gateway.member.stop()
    return pauses


async def test_gateway_exchanges_every_third_time_while_all_are_well(
    gateways: list[Gateway], clock: ManualClock
) -> None:
    gateways[1].call(Signal.HEALTHY)
    await exchange(gateways)
    assert await pauses_of(gateways[0], clock, 10) == 30


@pytest.mark.parametrize("failing", [0, 1], ids=["its own", "another's"])
async def test_failure_of_any_gateway_ends_the_longer_pauses(
    gateways: list[Gateway], clock: ManualClock, failing: int
) -> None:
    gateways[failing].call(Signal.UNHEALTHY)
    await exchange(gateways)
    assert await pauses_of(gateways[0], clock, 10) == 10


async def test_call_that_waits_for_a_slot_ends_the_longer_pauses(gateways: list[Gateway], clock: ManualClock) -> None:
    gates = next(each.gates for each in gateways[0].table.deployments() if each.label == "one/a")
    gates.adopt(CapacitySettings(concurrency=1))
    await exchange(gateways)
    gate = gates.of("", clock.now())
    assert gate.try_enter(clock.now()) is not None
    gate.enqueue(1, lambda: None)
    await gateways[0].member.exchange()
    assert await pauses_of(gateways[0], clock, 10) == 10


def refuse(gateway: Gateway, clock: ManualClock) -> None:
    """Lets a provider refuse a call for five seconds."""
    gates = next(each.gates for each in gateway.table.deployments() if each.label == "one/a")
    gate, now = gates.of(" ", clock.now()), clock.now()
    slot = gate.try_enter(now)
    assert slot is not None
    gate.exit(slot, now, "rate_limited", None)
    gate.note_retry_after(now + 5.0, now)


async def test_limited_calls_end_the_longer_pauses(gateways: list[Gateway], clock: ManualClock) -> None:
    await exchange(gateways)
    refuse(gateways[0], clock)
    await gateways[0].member.exchange()
    assert await pauses_of(gateways[0], clock, 10) == 10


async def test_decision_about_a_pace_is_published_at_once(gateways: list[Gateway], clock: ManualClock) -> None:
    refuse(gateways[0], clock)
    await exchange(gateways)
    [keeper] = [gateway for gateway in gateways if gateway.member.paces.kept]
    assert [gateway.member.own().kept_paces for gateway in gateways if gateway is not keeper] == [0, 0]
    before = keeper.store.left
    await keeper.member.exchange()
    assert before - keeper.store.left == 1
    refuse(keeper, clock)
    refuse(keeper, clock)
    await keeper.member.exchange()
    assert before - keeper.store.left == 3


async def test_gateway_that_stops_gives_up_its_slots(gateways: list[Gateway]) -> None:
    for gateway in gateways:
        gates = next(each.gates for each in gateway.table.deployments() if each.label == "one/a")
        gates.adopt(CapacitySettings(concurrency=6))
    await exchange(gateways)
    assert [sorted(holders) for holders in gateways[0].store.holders()] == [["first", "second", "third"]]
    await gateways[0].member.stop()
    assert [sorted(holders) for holders in gateways[0].store.holders()] == [["second", "third"]]


async def test_change_by_an_operator_does_not_wait(gateways: list[Gateway], clock: ManualClock) -> None:
    member = gateways[0].member
    member.overrides.connect(_NoOverrides())
    await exchange(gateways)
    assert not member.overrides.has_changes
    gateways[0].store.left = 2
    await member.start()
    member.overrides.note_changed({"silence:x": Override(0.0, b"x", is_ended=False)})
    await eventually(lambda: gateways[0].store.is_stuck)
    assert clock.slept.count(0.1) == 1 + 3
    assert not member.overrides.has_changes
    await member.stop()


async def test_alert_ends_the_longer_pauses(gateways: list[Gateway], clock: ManualClock) -> None:
    cause = IncidentCause("outage", "one")
    gateways[0].member.notices.connect(lambda: {cause: NoticeState("n1", None, "critical", fires=True)})
    assert await pauses_of(gateways[0], clock, 10) == 10


class _NoOverrides:
    def current(self) -> Mapping[str, Override]:
        return {}

    def apply(self, changes: Sequence[tuple[str, StoredOverride]]) -> Mapping[str, Applied]:
        return dict.fromkeys((key for key, _ in changes), "yes")


async def test_store_that_is_away_for_hours_is_tried_on(gateways: list[Gateway]) -> None:
    """Doubling the pause without end used to end the exchanges after a quarter of an hour."""
    member, store = gateways[0].member, gateways[0].store
    store.failures = [StoreUnavailable("ConnectionError")] * 1100
    await member.start()
    await eventually(lambda: member.exchanges)
    await member.stop()


async def test_gateway_whose_store_fails_after_a_recovery_probes_alone(
    gateways: list[Gateway], clock: ManualClock
) -> None:
    await fail(gateways)
    await exchange(gateways)
    clock.advance(1.0)
    gateway = gateways[0]
    gateway.breaker.lease.grant(clock.now() + 1.0, clock.now())
    gateway.call(Signal.HEALTHY)
    assert gateway.breaker.state == "closed"
    gateway.store.failures = [StoreUnavailable("TimeoutError")]
    with pytest.raises(StoreUnavailable):
        await gateway.member.exchange()
    states = []
    while "open" not in states:
        gateway.call(Signal.UNHEALTHY)
        states.append(gateway.breaker.state)
    clock.advance(1.3)
    assert gateway.breaker.try_acquire(clock.now()) is not None


def test_models_that_disagree_on_their_settings_have_a_breaker_each(clock: ManualClock) -> None:
    config = CONFIG + "  d: {deployments: [{upstream: one, model: a}], breaker: {consecutive_failures: 7}}\n"
    table = compile_routes(parse_config(config, "test.yaml", {}), clock.now(), new_breaker=SharedBreaker)
    breakers = FleetBreakers(table.deployments, NAMES)
    alike = [each.breaker for each in table.deployments() if each.model == "a"]
    assert len(alike) == 2
    for breaker in alike:
        permit = breaker.try_acquire(clock.now())
        assert permit is not None
        breaker.settle(permit, Signal.HEALTHY, clock.now())
    assert len(breakers.summaries(clock.now())) == 2
    first = alike[0]
    assert isinstance(first, SharedBreaker)
    first.lease.restrict(clock.now())
    first.lease.try_use(clock.now())
    assert len(breakers.wanted(clock.now())) == 1


async def test_content_that_cannot_be_read_is_counted(gateways: list[Gateway]) -> None:
    member = gateways[0].member
    gateways[0].store.answer = Exchanged((Published("stranger", 0.1, b"nonsense"),), Leases({}, {}))
    await member.exchange()
    assert (member.unreadable, member.others) == (1, ())


def test_gateways_with_the_same_upstream_and_model_share_a_breaker(gateways: list[Gateway]) -> None:
    subjects = [{NAMES.subject(each) for each in gateway.table.deployments()} for gateway in gateways]
    assert subjects[0] == subjects[1]
    assert len(subjects[0]) == len({(each.upstream.name, each.model) for each in gateways[0].table.deployments()})


async def test_gateways_with_another_token_are_named_once(gateways: list[Gateway], clock: ManualClock) -> None:
    gateways[1].names = "theirs"
    with capture_logs() as logs:
        for _ in range(3):
            clock.advance(1.0)
            await exchange(gateways)
    warnings = [line for line in logs if "another ops.token" in line["event"]]
    assert [line["others"] for line in warnings] == [1, 1, 1, 2]


async def test_gateways_have_the_free_retries_of_one_together(gateways: list[Gateway], clock: ManualClock) -> None:
    for _ in range(60):
        clock.advance(1.0)
        await exchange(gateways)
    for kind in ("deployments", "routes"):
        budgets = [budgets_of(gateway)[kind] for gateway in gateways]
        at_once = sum(spend_all(budget, clock.now()) for budget in budgets)
        clock.advance(10.0)
        later = sum(spend_all(budget, clock.now()) for budget in budgets)
        assert 85 <= at_once <= 101
        assert 85 <= later <= 101


async def test_free_retries_stay_divided_without_the_store(gateways: list[Gateway], clock: ManualClock) -> None:
    for _ in range(3):
        clock.advance(1.0)
        await exchange(gateways)
    gateways[0].store.failures = [StoreUnavailable("TimeoutError")]
    clock.advance(1.0)
    with pytest.raises(StoreUnavailable):
        await gateways[0].member.exchange()
    assert budgets_of(gateways[0])["deployments"].gateways == len(gateways)


def budgets_of(gateway: Gateway) -> dict[str, RetryBudget]:
    route = next(iter(gateway.table.pool.budgets.values()))
    return {"deployments": next(iter(gateway.table.deployments())).budget, "routes": route}


def spend_all(budget: RetryBudget, now: float) -> int:
    return next(count for count in range(10_000) if not budget.try_spend(now))


def test_nothing_is_published_of_idle_breakers(gateways: list[Gateway], clock: ManualClock) -> None:
    gateway = gateways[0]
    assert gateway.breakers.summaries(clock.now()) == {}
    gateway.call(Signal.HEALTHY)
    assert len(gateway.breakers.summaries(clock.now())) == 1
    clock.advance(61.0)
    assert gateway.breakers.summaries(clock.now()) == {}


async def test_gateways_show_one_another_with_their_load(gateways: list[Gateway], clock: ManualClock) -> None:
    await fail(gateways)
    gateways[1].calls = 7
    clock.advance(1.0)
    await exchange(gateways)
    seen = gateways[0].member.others
    assert {replica.status.calls for replica in seen} == {0, 7}
    assert [replica.open_breakers for replica in seen] == [1, 1]
    own = gateways[0].member.own()
    assert (own.id, own.age_s, own.open_breakers, own.status.in_flight) == ("first:1:x", 0.0, 1, 2)


async def test_start_that_is_cancelled_leaves_no_connection(gateways: list[Gateway]) -> None:
    member, store = gateways[0].member, gateways[0].store
    store.failures = [asyncio.CancelledError()]
    with pytest.raises(asyncio.CancelledError):
        await member.start()
    await member.stop()
    assert store.is_closed


async def test_bug_in_overrides_does_not_end_the_sharing_of_breakers(
    gateways: list[Gateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail_always(_store: object, _version: int) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(gateways[0].member.overrides, "exchange", fail_always)
    await fail(gateways)
    with capture_logs() as log:
        await exchange(gateways)
    assert [gateway.breaker.state for gateway in gateways] == ["open"] * 3
    assert gateways[0].member.is_connected
    warnings = [line for line in log if line["event"] == "overrides by operators could not be exchanged"]
    assert [line["reason"] for line in warnings] == ["ZeroDivisionError"], "once"
