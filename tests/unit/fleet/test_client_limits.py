"""The limits of client keys at several gateways, on a manual clock."""

from __future__ import annotations

from llm_guard.config import parse_config
from llm_guard.fleet.client_limits import FleetClientLimits
from llm_guard.proxy.client_keys.quotas import ClientQuotas
from llm_guard.resilience.client_keys.limits import ClientLimits, Reservation
from tests.fakes.clock import ManualClock
from tests.fakes.fleet_names import NAMES

CONFIG = """
server:
  client_keys:
    - {name: app, key: k-app, limits: {tokens_per_minute: 1000, tokens_per_day: 1000}}
upstreams: {one: {dialect: openai, base_url: "https://one.example/v1"}}
models: {a: {deployments: [{upstream: one}]}}
"""


class Gateway:
    def __init__(self, clock: ManualClock, name: str) -> None:
        self.name = name
        self._clock = clock
        self.quotas = ClientQuotas(clock)
        self.quotas.adopt(parse_config(CONFIG, "test.yaml", {}).server.client_keys)
        self.shared = FleetClientLimits(self.quotas, NAMES, clock)

    @property
    def limits(self) -> ClientLimits:
        return self.quotas.by_name["app"]

    def use(self, tokens: int) -> None:
        found = self.limits.try_enter(tokens, self._clock.now(), self._clock.wall())
        assert isinstance(found, Reservation)

    def left(self) -> dict[str, float]:
        return {one.limit: one.left for one in self.limits.left(self._clock.now(), self._clock.wall())}


def exchange(*gateways: Gateway) -> None:
    for _ in range(2):
        uses = {gateway.name: gateway.shared.uses() for gateway in gateways}
        for gateway in gateways:
            others = [(name, found) for name, found in uses.items() if name != gateway.name]
            gateway.shared.conclude(others, gateway._clock.now())


def test_first_use_of_a_key_at_another_gateway_counts() -> None:
    clock = ManualClock()
    first, second = Gateway(clock, "first"), Gateway(clock, "second")
    exchange(first, second)
    first.use(900)
    exchange(first, second)
    assert second.left() == {"tokens_per_minute": 100, "tokens_per_day": 100}
    second.use(50)
    exchange(first, second)
    assert first.left() == second.left() == {"tokens_per_minute": 50, "tokens_per_day": 50}


def test_reset_at_one_gateway_holds_at_all() -> None:
    clock = ManualClock()
    first, second, third = (Gateway(clock, name) for name in ("first", "second", "third"))
    exchange(first, second, third)
    first.use(300)
    second.use(400)
    third.use(100)
    exchange(first, second, third)
    exchange(first, second)  # the third one has left
    first.limits.reset(clock.now(), clock.wall())
    exchange(first, second)
    assert first.left() == second.left() == {"tokens_per_minute": 1000, "tokens_per_day": 1000}
    second.use(10)
    exchange(first, second)
    assert first.left() == second.left() == {"tokens_per_minute": 990, "tokens_per_day": 990}


def test_key_that_was_never_used_is_not_published() -> None:
    assert Gateway(ManualClock(), "first").shared.uses() == {}
