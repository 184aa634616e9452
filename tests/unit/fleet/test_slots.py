"""The concurrency limits of a gateway in a fleet: which are shared, and how a share is applied."""

from __future__ import annotations

import pytest

from llm_guard.config import Config, parse_config
from llm_guard.fleet.slots import FleetSlots
from llm_guard.proxy.client_keys.quotas import ClientQuotas
from llm_guard.resilience.capacity.settings import CapacitySettings
from llm_guard.resilience.capacity.slot_sharing import SlotGrant
from llm_guard.routing.api_keys import ApiKey
from llm_guard.routing.deployment import Deployment
from llm_guard.routing.route_table import RouteTable, compile_routes
from tests.fakes.clock import ManualClock
from tests.fakes.fleet_names import NAMES

CONFIG = """
server:
  client_keys:
    - {name: app, key: k-app, limits: {concurrency: 6}}
    - {name: paced, key: k-paced, limits: {rate: 5}}
upstreams:
  one: {dialect: openai, base_url: "https://one.example/v1", api_key: sk}
  pooled:
    {dialect: openai, base_url: "https://pooled.example/v1", api_keys: [{name: x, key: sk-1}, {name: y, key: sk-2}]}
models:
  a: {deployments: [{upstream: one}], capacity: {concurrency: 10}}
  b: {deployments: [{upstream: one, model: a}], capacity: {concurrency: 4}}
  c: {deployments: [{upstream: one}], capacity: {concurrency: adaptive}}
  d: {deployments: [{upstream: one}]}
  e: {deployments: [{upstream: pooled}], capacity: {concurrency: 3}}
  "p-*": {deployments: [{upstream: one}], capacity: {concurrency: 8}}
"""


class Gateway:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.config: Config = parse_config(CONFIG, "test.yaml", {})
        self.table: RouteTable = compile_routes(self.config, self.clock.now())
        self.quotas = ClientQuotas(self.clock)
        self.quotas.adopt(self.config.server.client_keys)
        self.woken = 0
        self.slots = FleetSlots(self.table.deployments, self.quotas, NAMES, self.wake)
        self.table.take_over()
        self.table.pool.observers.subscribe(self.slots.adopt)

    def wake(self) -> None:
        self.woken += 1

    def grant(self, holds: int, replicas: int) -> dict[str, int]:
        """Grants each limit so many slots; returns all limits by subject."""
        requests = self.slots.requests(self.clock.now())
        self.slots.conclude({subject: SlotGrant(holds, holds) for subject in requests}, replicas, self.clock.now())
        return {subject: request.limit for subject, request in requests.items()}

    def deployments(self, label: str) -> list[Deployment]:
        return [each for each in self.table.deployments() if each.label == label]

    def limit(self, deployment: Deployment, account: str = "") -> int | None:
        now = self.clock.now()
        return deployment.gates.of(account, now).snapshot(now).limit


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


def test_fixed_limits_are_shared_one_for_each_key_of_a_pool(gateway: Gateway) -> None:
    """The pool's own gate, for calls without one of its keys, has a limit, too."""
    assert sorted(gateway.grant(1, 2).values()) == [3, 3, 3, 4, 6, 10]


def test_share_is_applied_also_to_accounts_that_come_later(gateway: Gateway) -> None:
    gateway.grant(2, 3)
    first, second = gateway.deployments("one/a")
    assert (gateway.limit(first), gateway.limit(second)) == (2, 2)
    assert [gateway.limit(each) for each in gateway.deployments("one/d")] == [None]
    [pooled] = gateway.deployments("pooled/e")
    assert pooled.upstream.keys is not None
    assert [gateway.limit(pooled, key.account) for key in pooled.upstream.keys.keys] == [2, 2]
    assert gateway.quotas.by_name["app"].slots == 2
    gateway.clock.advance(3.0)
    gateway.grant(3, 3)
    assert (gateway.limit(first), gateway.limit(second)) == (3, 3)


def test_adaptive_limit_is_each_gateways_own(gateway: Gateway) -> None:
    gateway.grant(0, 3)
    assert all(limit is not None and limit > 0 for limit in map(gateway.limit, gateway.deployments("one/c")))


def test_nothing_is_limited_before_the_first_grant(gateway: Gateway) -> None:
    gateway.slots.requests(gateway.clock.now())
    gateway.slots.work_alone(gateway.clock.now())
    assert [gateway.limit(each) for each in gateway.deployments("one/a")] == [10, 4]
    assert gateway.quotas.by_name["app"].slots is None


def test_without_the_store_each_gateway_has_a_part(gateway: Gateway) -> None:
    gateway.grant(7, 2)
    gateway.clock.advance(10)
    gateway.slots.work_alone(gateway.clock.now())
    assert [gateway.limit(each) for each in gateway.deployments("one/a")] == [5, 2]


def test_exchange_that_is_tried_without_the_store_stops_no_calls(gateway: Gateway) -> None:
    """It takes a quarter of a second to fail."""
    gateway.grant(7, 2)
    for seconds in (3, 6):
        gateway.clock.advance(seconds)
        gateway.slots.work_alone(gateway.clock.now())
    requests = gateway.slots.requests(gateway.clock.now()).values()
    assert [gateway.limit(each) for each in gateway.deployments("one/a")] == [5, 2]
    assert sorted(request.holds for request in requests) == [1, 1, 1, 2, 3, 5]


def test_new_name_under_a_pattern_gets_a_part_at_once(gateway: Gateway) -> None:
    gateway.grant(1, 2)
    assert gateway.table.find("p-1") is not None
    [new] = gateway.deployments("one/p-*")
    assert gateway.limit(new) == 4
    gateway.grant(3, 2)
    assert gateway.limit(new) == 3


def test_reload_does_not_change_what_a_gateway_holds(gateway: Gateway) -> None:
    gateway.grant(0, 4)
    deployment = gateway.deployments("one/a")[0]
    gateway.slots.adopt(deployment)
    assert gateway.limit(deployment) == 0


def test_limits_without_calls_are_asked_for_less_often(gateway: Gateway) -> None:
    gateway.grant(2, 3)
    gateway.clock.advance(0.5)
    assert gateway.slots.requests(gateway.clock.now()) == {}
    gate = gateway.deployments("one/a")[0].gates.of("", gateway.clock.now())
    assert gate.try_enter(gateway.clock.now()) is not None
    assert [request.limit for request in gateway.slots.requests(gateway.clock.now()).values()] == [10]
    assert len(gateway.slots.wanted()) == 0
    gateway.clock.advance(2.0)
    assert len(gateway.slots.requests(gateway.clock.now())) == 6


def test_limit_that_another_gateway_needs_is_asked_for_at_once(gateway: Gateway) -> None:
    limits = gateway.grant(2, 3)
    first = next(iter(limits))
    gateway.slots.conclude({}, 3, gateway.clock.now(), {first})
    assert list(gateway.slots.requests(gateway.clock.now())) == [first]


def test_limit_of_which_calls_wait_is_wanted(gateway: Gateway) -> None:
    gateway.grant(0, 3)
    gate = gateway.deployments("one/a")[0].gates.of("", gateway.clock.now())
    gate.enqueue(1, lambda: None)
    requests = gateway.slots.requests(gateway.clock.now())
    assert gateway.slots.wanted() == [subject for subject, request in requests.items() if request.need]
    assert len(gateway.slots.wanted()) == 1


def test_gateways_that_were_seen_a_moment_ago_count(gateway: Gateway) -> None:
    """A store that was emptied shows none."""
    gateway.grant(2, 4)
    gateway.clock.advance(2.9)
    gateway.grant(2, 1)
    assert {request.gateways for request in gateway.slots.requests(gateway.clock.now() + 9).values()} == {4}
    gateway.clock.advance(0.2)
    gateway.grant(2, 1)
    assert {request.gateways for request in gateway.slots.requests(gateway.clock.now() + 9).values()} == {1}


def test_waiting_calls_are_let_in_when_slots_are_granted(gateway: Gateway) -> None:
    gateway.grant(0, 2)
    gate = gateway.deployments("one/a")[0].gates.of("", gateway.clock.now())
    assert gate.try_enter(gateway.clock.now()) is None
    ticket = gate.enqueue(1, lambda: None)
    assert ticket is not None
    before = gateway.woken
    gateway.grant(1, 2)
    assert not gateway.slots.are_quiet
    assert gateway.woken == before + 1
    gate.dispatch(gateway.clock.now())
    assert ticket.slot is not None


def test_slots_are_quiet_while_no_call_waits(gateway: Gateway) -> None:
    gateway.grant(0, 2)
    assert gateway.slots.are_quiet


def test_slots_are_given_up_before_the_store_is_asked(gateway: Gateway) -> None:
    requests = gateway.slots.requests(gateway.clock.now())
    gateway.slots.conclude({subject: SlotGrant(9, 2) for subject in requests}, 2, gateway.clock.now())
    [deployment, _] = gateway.deployments("one/a")
    assert gateway.limit(deployment) == 9
    requests = gateway.slots.requests(gateway.clock.now())
    assert gateway.limit(deployment) == 2
    assert {request.holds for request in requests.values()} == {2}


def test_limit_that_is_no_longer_fixed_is_not_shared(gateway: Gateway) -> None:
    gateway.grant(2, 3)
    [deployment, _] = gateway.deployments("one/a")
    deployment.gates.adopt(CapacitySettings(concurrency=None))
    gateway.slots.requests(gateway.clock.now())
    deployment.gates.adopt(CapacitySettings(concurrency=9))
    assert gateway.limit(deployment) == 9


def test_limit_that_is_fixed_again_is_shared_again(gateway: Gateway) -> None:
    gateway.grant(2, 3)
    [deployment, _] = gateway.deployments("one/a")
    before = deployment.gates.settings
    deployment.gates.adopt(CapacitySettings(concurrency=None))
    gateway.slots.requests(gateway.clock.now())
    deployment.gates.adopt(before)
    gateway.grant(2, 3)
    assert gateway.limit(deployment) == 2


def test_shares_that_are_the_same_are_applied_to_other_gates(gateway: Gateway) -> None:
    gateway.grant(2, 3)
    [deployment, _] = gateway.deployments("one/a")
    deployment.gates.share({}, 1)
    deployment.gates.adopt(CapacitySettings(concurrency=10, max_queue=7))
    gateway.grant(2, 3)
    assert gateway.limit(deployment) == 2


def test_key_that_a_key_file_adds_has_a_limit_of_its_own(gateway: Gateway) -> None:
    before = set(gateway.grant(1, 2))
    [deployment] = gateway.deployments("pooled/e")
    keys = deployment.upstream.keys
    assert keys is not None
    keys.keys = (*keys.keys, ApiKey("z", "sk-3", account="another"))
    assert len(set(gateway.grant(1, 2)) - before) == 1


def test_refused_calls_of_a_client_are_a_need(gateway: Gateway) -> None:
    gateway.grant(0, 2)
    limits = gateway.quotas.by_name["app"]
    for _ in range(3):
        limits.try_enter(0, gateway.clock.now(), gateway.clock.wall())
    needs = [request.need for request in gateway.slots.requests(gateway.clock.now()).values() if request.limit == 6]
    assert needs == [3]


def test_wait_is_forecast_for_the_part_that_a_gateway_gets_under_load(gateway: Gateway) -> None:
    """Without it, no call could wait for the first slot: it would seem to take for ever."""
    gateway.grant(0, 2)
    gate = gateway.deployments("one/a")[0].gates.of("", gateway.clock.now())
    assert gate.estimated_wait_s(gateway.clock.now()) == 0.0
    for _ in range(9):
        gate.enqueue(1, lambda: None)
    assert gate.estimated_wait_s(gateway.clock.now()) == pytest.approx(1.0)
