"""Breakers of a fleet with several callers, on a manual clock: a caller whose calls always fail must not take the
deployment from the others, wherever each of them calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import partial
from random import Random

import pytest

from llm_guard.config import parse_config
from llm_guard.fleet.breakers import FleetBreakers
from llm_guard.fleet.content import Content, decode, encode
from llm_guard.outcome import Signal
from llm_guard.resilience.circuit_breaker.shared_breaker import SharedBreaker
from llm_guard.resilience.circuit_breaker.shared_callers import SharedCallers
from llm_guard.routing.route_table import compile_routes
from llm_guard.storage.shared.exchange_store import Leases
from tests.fakes.fleet_names import NAMES

CONFIG = """
upstreams: {one: {dialect: openai, base_url: "https://one.example/v1", api_key: sk}}
models: {a: {deployments: [{upstream: one}]}}
"""
EXCHANGE_S, TAKES_S = 0.1, 0.02


class Gateway:
    """The breaker of one gateway's deployment, and its callers, as `proxy.attempts` uses them."""

    def __init__(self) -> None:
        table = compile_routes(
            parse_config(CONFIG, "test.yaml", {}), 0.0, new_breaker=SharedBreaker,
            new_callers=partial(SharedCallers, digest=NAMES.of),
        )  # fmt: skip
        self.deployment = next(one for one in table.deployments() if one.label == "one/a")
        self.breakers = FleetBreakers(table.deployments, NAMES)

    def call(self, caller: str, now: float, *, is_ok: bool) -> bool:
        """Returns whether the call was sent."""
        deployment, callers = self.deployment, self.deployment.callers
        suspect = callers.suspect(caller)
        breaker = deployment.judge_of(suspect)
        permit = breaker.try_acquire(now)
        if (
            permit is None
            and breaker is deployment.breaker
            and callers.try_probe(caller, now, has_lease=breaker.has_lease(now))
        ):
            permit = breaker.try_acquire_extra(now)
        if permit is None:
            return False
        now += TAKES_S
        breaker.settle(permit, Signal.HEALTHY if is_ok else Signal.UNHEALTHY, now)
        if is_ok:
            callers.note_ok(caller, now - TAKES_S, now)
        else:
            deployment.note_failure(caller, now)
        return True


class Fleet:
    """Gateways that exchange ten times a second."""

    def __init__(self, count: int, seed: int = 1) -> None:
        self.gateways = [Gateway() for _ in range(count)]
        self.random = Random(seed)
        self.sent, self.refused = Counter[str](), Counter[str]()
        self._lease: tuple[float, int] = (0.0, -1)

    def run(
        self, begin: float, seconds: float, calls: Mapping[str, tuple[float, Collection[int]]],
        is_ok: Callable[[str], bool],
    ) -> None:  # fmt: skip
        """`calls`: each caller's calls a second, at random, and the gateways at which it calls."""
        due = [(begin + self.random.expovariate(rate), caller) for caller, (rate, _) in calls.items()]
        exchange_at = begin
        while (at := min(due)[0]) < begin + seconds:
            while exchange_at < at:
                self._exchange(exchange_at + TAKES_S)
                exchange_at += EXCHANGE_S
            due.sort()
            _, caller = due.pop(0)
            rate, places = calls[caller]
            due.append((at + self.random.expovariate(rate), caller))
            gateway = self.gateways[self.random.choice(list(places))]
            is_sent = gateway.call(caller, at, is_ok=is_ok(caller))
            (self.sent if is_sent else self.refused)[caller] += 1

    def states(self) -> list[str]:
        return [gateway.deployment.breaker.state for gateway in self.gateways]

    def _exchange(self, now: float) -> None:
        found = []
        for gateway in self.gateways:
            content = decode(encode(Content(gateway.breakers.summaries(now))))
            assert content is not None
            found.append(content.breakers)
        for place, gateway in enumerate(self.gateways):
            others = [(0.01, one) for other, one in enumerate(found) if other != place]
            gateway.breakers.conclude(others, self._granted(place, gateway.breakers.wanted(now), now), now)

    def _granted(self, place: int, wanted: dict[str, float], now: float) -> Leases:
        held: dict[str, float] = {}
        taken: dict[str, float] = {}
        for subject, seconds in wanted.items():
            until, holder = self._lease
            if holder == place or until <= now:
                self._lease = now + seconds, place
                held[subject] = seconds
            else:
                taken[subject] = until - now
        return Leases(held, taken)


def only(*failing: str) -> Callable[[str], bool]:
    return lambda caller: caller not in failing


@pytest.mark.parametrize("victims_per_s", [0.5, 5.0])
@pytest.mark.parametrize("poisoned", [(0, 1), (0, 1, 2, 3)])
def test_caller_whose_calls_always_fail_takes_no_call_from_the_others(
    poisoned: tuple[int, ...], victims_per_s: float
) -> None:
    for victims_at in ((2, 3), (0, 1, 2, 3)):
        fleet = Fleet(4, seed=len(victims_at))
        calls = {"poisoner": (25.0, poisoned), "victim": (victims_per_s, victims_at)}
        fleet.run(100.0, 30.0, calls, only("poisoner"))
        assert fleet.refused["victim"] <= 0.05 * fleet.sent["victim"], (victims_at, fleet.refused, fleet.sent)


def test_several_such_callers_do_not_either() -> None:
    fleet = Fleet(4)
    calls = {"x": (10.0, (0, 1)), "y": (10.0, (0, 1)), "victim": (1.0, (2, 3))}
    fleet.run(100.0, 60.0, calls, only("x", "y"))
    assert fleet.refused["victim"] <= 0.05 * fleet.sent["victim"]


def test_failures_elsewhere_are_forgotten_once_all_is_well() -> None:
    fleet = Fleet(3)
    calls = {"poisoner": (5.0, (0, 1)), "victim": (5.0, (2,))}
    fleet.run(100.0, 5.0, calls, only("poisoner"))
    assert fleet.gateways[2].deployment.callers.try_probe("another", 105.0)
    fleet.run(105.0, 60.0, calls, only())
    assert fleet.states() == ["closed"] * 3
    assert not any(gateway.deployment.callers.try_probe("another", 165.0) for gateway in fleet.gateways)


def test_outage_takes_no_more_requests_with_several_callers_than_with_one_gateway() -> None:
    requests = []
    for gateways in (1, 5):
        fleet = Fleet(gateways)
        calls = {f"caller {number}": (1.0, range(gateways)) for number in range(10)}
        fleet.run(100.0, 20.0, calls, only())
        fleet.sent.clear()
        fleet.run(120.0, 40.0, calls, only(*calls))
        assert set(fleet.states()) <= {"open", "half_open"}
        requests.append(fleet.sent.total())
    assert requests[1] <= 1.25 * requests[0]
