"""The paces of a gateway in a fleet: which are shared, under which names, and what is published."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from llm_guard.config import parse_config
from llm_guard.fleet.paces import FleetPaces
from llm_guard.proxy.attempts.admission import account_of
from llm_guard.resilience.capacity.pace_report import PaceReport
from llm_guard.resilience.capacity.shared_gate import SharedGate
from llm_guard.routing.deployment import Deployment
from llm_guard.routing.route_table import compile_routes
from llm_guard.storage.shared.exchange_store import Leases
from tests.fakes.clock import ManualClock
from tests.fakes.fleet_names import NAMES

CONFIG = """
server:
  client_keys:
    - {name: app, key: k-app}
upstreams:
  one: {dialect: openai, base_url: "https://one.example/v1", api_key: sk}
  open: {dialect: openai, base_url: "https://open.example/v1"}
  pooled:
    {dialect: openai, base_url: "https://pooled.example/v1",
     api_keys: [{name: x, key: sk-1}, {name: y, key: sk-2}]}
models:
  a: {deployments: [{upstream: one}]}
  b: {deployments: [{upstream: open}]}
  c: {deployments: [{upstream: pooled}]}
  d: {deployments: [{upstream: one}], capacity: {pacing: false}}
"""


class Gateway:
    def __init__(self, name: str = "me") -> None:
        self.clock = ManualClock()
        config = parse_config(CONFIG, "test.yaml", {})
        self.table = compile_routes(config, self.clock.now(), new_gate=SharedGate)
        self.woken: list[str] = []
        self.paces = FleetPaces(lambda: self.table.deployments(), name, NAMES, self.wake)

    def wake(self, deployments: Iterable[Deployment]) -> None:
        self.woken += [deployment.label for deployment in deployments]

    def gate(self, label: str, account: str = " ") -> SharedGate:
        gates = next(each.gates for each in self.table.deployments() if each.label == label)
        gate = gates.of(account, self.clock.now())
        assert isinstance(gate, SharedGate)
        return gate

    def refuse(self, label: str, account: str = " ", source: str = "") -> None:
        now, gate = self.clock.now(), self.gate(label, account)
        slot = gate.try_enter(now, source=source)
        assert slot is not None
        gate.exit(slot, now, "rate_limited", None)

    def reports(self) -> dict[str, PaceReport]:
        return self.paces.reports(self.clock.now())

    def hear(self, other: Gateway | None = None, *, has_leases: bool = False) -> None:
        """Concludes from what another gateway publishes."""
        now = self.clock.now()
        others = [] if other is None else [("other", 0.1, other.reports())]
        wanted = self.paces.wanted(now)
        self.paces.conclude(others, Leases(wanted if has_leases else {}, {}), 2, now)


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


def test_nothing_is_published_while_no_provider_limits_calls(gateway: Gateway) -> None:
    gateway.gate("one/a")
    assert gateway.reports() == {}
    assert gateway.paces.are_quiet


def test_429_is_published_and_one_gateway_wants_to_decide(gateway: Gateway) -> None:
    gateway.refuse("one/a")
    [subject] = gateway.reports()
    assert list(gateway.paces.wanted(gateway.clock.now())) == [f"pace:{subject}"]
    assert not gateway.paces.are_quiet
    gateway.hear(has_leases=True)
    assert (gateway.paces.kept, gateway.paces.followed) == (1, 1)
    assert gateway.reports()[subject].decision is not None
    assert gateway.woken == ["one/a"]


def test_each_own_key_has_a_pace_and_callers_keys_have_none(gateway: Gateway) -> None:
    pool = next(each.upstream.keys for each in gateway.table.deployments() if each.label == "pooled/c")
    assert pool is not None
    for key in pool.keys:
        gateway.refuse("pooled/c", account_of(key, ""))
    gateway.refuse("open/b", "key ")
    gateway.refuse("open/b")
    gateway.refuse("one/a", " organization")
    assert len(gateway.reports()) == 2


def test_calls_that_are_not_paced_are_not_shared(gateway: Gateway) -> None:
    gateway.refuse("one/d")
    assert gateway.reports() == {}


def test_gateway_that_hears_of_a_limit_tells_of_its_calls(gateway: Gateway) -> None:
    other = Gateway("other")
    other.refuse("one/a")
    gateway.gate("one/a")
    gateway.hear(other)
    assert not gateway.paces.are_quiet
    assert list(gateway.reports()) == list(other.reports())


def test_names_of_client_keys_leave_as_digests(gateway: Gateway) -> None:
    other = Gateway("other")
    other.refuse("one/a", source="app")
    other.reports()
    other.refuse("one/a", source="app")
    gateway.refuse("one/a", source="app")
    gateway.reports()
    gateway.refuse("one/a", source="app")
    gateway.reports()
    [report] = other.reports().values()
    assert {event.source for event in report.events} == {NAMES.of("app")}
    gateway.hear(other, has_leases=True)
    [sharing] = gateway.paces._shared.values()
    assert sharing._keeper is not None
    assert list(sharing._keeper._paces._refused) == ["app"]
    gateway.refuse("one/a", source="app")
    [report] = gateway.reports().values()
    assert {event.source for event in report.events} == {NAMES.of("app")}


def test_pace_ends_a_minute_after_the_last_429(gateway: Gateway) -> None:
    gateway.refuse("one/a")
    gateway.reports()
    gateway.hear(has_leases=True)
    assert gateway.gate("one/a").follows
    gateway.clock.advance(61.0)
    assert gateway.reports() == {}
    assert not gateway.gate("one/a").follows
    assert gateway.paces.are_quiet


def test_without_the_store_the_gateway_decides_alone(gateway: Gateway) -> None:
    gateway.refuse("one/a")
    gateway.reports()
    gateway.hear(has_leases=True)
    gateway.woken.clear()
    gateway.paces.work_alone(2, gateway.clock.now())
    assert not gateway.gate("one/a").follows
    assert gateway.paces.kept == 0
    assert gateway.woken == ["one/a"]


def test_calls_that_wait_for_a_deployment_that_a_reload_removes_are_not_forgotten(gateway: Gateway) -> None:
    gateway.refuse("one/a")
    gateway.reports()
    gateway.hear(has_leases=True)
    gate = gateway.gate("one/a")
    gateway.woken.clear()
    without = parse_config(CONFIG.replace("  a: {deployments: [{upstream: one}]}\n", ""), "test.yaml", {})
    gateway.table = compile_routes(without, gateway.clock.now(), gateway.table, new_gate=SharedGate)
    gateway.reports()
    assert not gate.follows, "no grant would ever come"
    assert gateway.woken == ["one/a"]
