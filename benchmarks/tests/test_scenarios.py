"""The arithmetic of the scenarios: a wrong figure would praise or blame without reason."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest
import yaml

from benchmarks.scenarios.catalogue import SCENARIOS, Promise, Scenario
from benchmarks.scenarios.clients import GUARDED, Client, straight, with_sdk
from benchmarks.scenarios.measure import Measured, Outage, broken, measure
from benchmarks.scenarios.play import Observed, _count, _Provider, _Stats
from llm_guard.config import parse_config
from llm_guard.mock.faults import parse_plan
from llm_guard.mock.load_result import FinishedCall

START = 1000.0
OUTAGE = Scenario("outage", "down", (), outage=(1.0, 3.0))


def ok(due_s: float, took_s: float = 0.0) -> FinishedCall:
    return FinishedCall("ok", took_s, 200, ended_at=START + due_s + took_s)


def refused(due_s: float, retry_after_s: float) -> FinishedCall:
    at = START + due_s
    return FinishedCall("http_503", 0.0, 503, ended_at=at, retry_after_s=retry_after_s, refused_by="breaker")


def failed(due_s: float, took_s: float) -> FinishedCall:
    return FinishedCall("http_503", took_s, 503, ended_at=START + due_s + took_s)


def measured(ended: list[FinishedCall], requests: list[tuple[float, int]]) -> Measured:
    counts = [(START + seconds, count) for seconds, count in requests]
    passed_at = sorted(one.due_at for one in ended if one.refused_by is None)
    return measure(OUTAGE, Observed(Client(GUARDED, "gateway", "provider"), START, ended, counts, passed_at))


def outage_of(ended: list[FinishedCall]) -> Outage:
    found = measured(ended, [(0.0, 0), (20.0, 0)]).outage
    assert found is not None
    return found


def test_requests_of_an_outage_are_those_between_its_counts() -> None:
    during = [refused(1.0 + place / 10, 1.0) for place in range(20)]
    found = measured([ok(0.0), *during, ok(4.0)], [(0.0, 0), (1.0, 1), (2.0, 4), (3.5, 7), (4.0, 8)])
    assert found.outage is not None
    assert found.outage.requests_per_call == pytest.approx((6 - 1) / 20), "between two counts they came evenly"
    assert found.requests_per_call == pytest.approx(8 / 22)


def test_a_recovery_is_timed_from_the_outages_end_and_watched_for_ten_seconds() -> None:
    ended = [failed(1.0, 0.2), failed(2.0, 0.4), failed(3.5, 0.0), ok(4.0, 0.5), failed(5.0, 0.0), ok(12.9), ok(13.1)]
    found = outage_of(ended)
    assert found.first_success_s == pytest.approx(1.5)
    assert found.last_success_s == pytest.approx(10.1)
    assert found.share_after == pytest.approx(2 / 4)
    assert found.share_since_success == pytest.approx(2 / 3)
    assert found.median_failure_s == pytest.approx(0.2)


def test_a_recovery_is_timed_from_the_instant_at_which_the_provider_recovered() -> None:
    ended = [failed(1.0, 0.2), failed(2.0, 0.4), ok(4.0, 0.5)]
    counts, acts_at = [(START, 0)], {3.0: START + 3.25}
    observed = Observed(Client(GUARDED, "gateway", "provider"), START, ended, counts, acts_at=acts_at)
    outage = measure(OUTAGE, observed).outage
    assert outage is not None
    assert outage.first_success_s == pytest.approx(1.25)


def test_a_success_during_the_outage_is_no_recovery() -> None:
    found = outage_of([ok(1.5), failed(2.0, 0.1), failed(4.0, 0.1)])
    assert (found.first_success_s, found.share_since_success, found.share_after) == (None, None, 0.0)


@pytest.mark.parametrize(("told_s", "off_s"), [(2.0, 0.0), (2.4, 0.3), (1.0, 0.9)])
def test_retry_after_is_right_if_the_next_request_is_sent_then(told_s: float, off_s: float) -> None:
    """Calls come every 100 ms; the first one let through is that of 4.0 s."""
    later = [refused(2.1 + place / 10, 1.9 - place / 10) for place in range(19)]
    found = outage_of([failed(1.9, 0.0), refused(2.0, told_s), *later, ok(4.0)])
    assert found.hinted == pytest.approx(10 / 11)
    first = outage_of([failed(1.9, 0.0), refused(2.0, told_s), ok(4.0), *(ok(4.0 + n / 10) for n in range(1, 20))])
    assert first.retry_after_off_s == pytest.approx(off_s, abs=0.1)
    assert found.retry_after_off_s == pytest.approx(off_s, abs=0.1)


def test_retry_after_is_right_if_a_call_that_waits_in_the_gateway_is_sent_again_then() -> None:
    ended = [failed(1.9, 0.7), *(refused(2.0 + place / 10, 0.5 - place / 10) for place in range(5)), ok(4.0)]
    arrivals = [START + at_s for at_s in (1.9, 2.5, 4.0)]
    found = measure(OUTAGE, Observed(Client(GUARDED, "gateway", "provider"), START, ended, [(START, 0)], arrivals))
    assert found.outage is not None
    assert found.outage.retry_after_off_s == 0.0


def test_proxy_that_never_refuses_has_no_wrong_retry_after() -> None:
    assert outage_of([failed(1.0, 0.1), ok(4.0)]).retry_after_off_s is None


def test_responses_and_requests_are_reported_by_second() -> None:
    found = measured([ok(0.1), ok(0.2), failed(0.9, 0.2), ok(2.5)], [(0.0, 0), (1.0, 2), (2.0, 6), (2.5, 7)])
    assert (found.successes, found.failures, found.requests) == ((2, 0, 1), (0, 1, 0), (2, 4, 1))


def test_each_bound_that_does_not_hold_is_named() -> None:
    found = measured([ok(0.0, 0.5), failed(1.0, 0.2)], [(0.0, 0), (2.0, 4)])
    held = Promise(0.5, 2.0, 0.5, 0.2, 10.0)
    assert broken(held, found) == ()
    for bound, name in (
        (Promise(success=0.6), "success"),
        (Promise(requests_per_call=1.9), "requests per call"),
        (Promise(p99_s=0.4), "p99"),
        (Promise(median_failure_s=0.1), "median failure"),
        (Promise(first_success_s=3.0), "first success after never"),
        (Promise(after=0.9), "success since then never"),
        (Promise(retry_after_off_s=0.1), "retry-after off by never"),
    ):
        [told] = broken(bound, found)
        assert told.startswith(name)


def test_bound_on_what_may_be_lost_compares_with_the_best_client_without_a_gateway() -> None:
    half = measured([ok(0.0), failed(1.0, 0.2)], [(0.0, 0), (2.0, 2)])
    all_well = measured([ok(0.0), ok(1.0)], [(0.0, 0), (2.0, 2)])
    assert broken(Promise(loses=0.5), half, [half, all_well]) == ()
    assert broken(Promise(loses=0.4), half, [all_well, half]) == ("success lost 0.5 against 0.4",)
    assert broken(Promise(loses=0.0), all_well, [half]) == ()


def test_untuned_scenarios_run_with_the_shipped_defaults() -> None:
    for scenario in SCENARIOS:
        if not scenario.settings:
            assert set(yaml.safe_load(scenario.config())) == {"upstreams", "models"}
            models = yaml.safe_load(scenario.config())["models"]
            assert {key for model in models.values() for key in model} <= {"deployments", "fallbacks"}


def test_every_scenario_can_be_played() -> None:
    assert len({scenario.key for scenario in SCENARIOS}) == len(SCENARIOS)
    for scenario in SCENARIOS:
        assert [act.at_s for act in scenario.acts] == sorted(act.at_s for act in scenario.acts)
        assert scenario.acts[0].at_s == 0 or not scenario.is_scaled
        for act in scenario.acts:
            parse_plan(act.model, act.faults)


def test_config_of_every_scenario_differs_only_in_unsupported_keys() -> None:
    for scenario in SCENARIOS:
        plain = replace(scenario, rules="" if "hedge" in scenario.rules else scenario.rules)
        at = "http://127.0.0.1:9"
        variables = {name: value.replace("{provider}", at) for name, value in plain.variables().items()}
        config = parse_config(plain.config().replace("{provider}", at), scenario.key, variables)
        assert {scenario.model, scenario.neighbour or scenario.model} <= set(config.models)


def test_without_a_gateway_the_limit_of_an_attempt_is_the_clients() -> None:
    scenario = replace(OUTAGE, limit_s=1.5, patience_s=20.0)
    assert [
        (plan.timeout_s, plan.retries)
        for client in (straight("p"), with_sdk("p"), Client(GUARDED, "g", "p"))
        for plan in [client.plan(scenario, "m", 1.0)]
    ] == [(1.5, 0), (1.5, 2), (20.0, 0)]
    herd = replace(OUTAGE, clients_ask_for_s=30.0)
    assert [client.takes_part(herd) for client in (straight("p"), with_sdk("p"), Client("g", "g", "p"))] == [
        False,
        True,
        True,
    ]


async def test_each_arrival_is_kept_once_though_every_count_repeats_the_latest() -> None:
    class Provider:
        def __init__(self, *found: list[float]) -> None:
            self._found = iter(found)

        async def stats(self) -> _Stats:
            return _Stats(0, next(self._found))

    one = Observed(Client(GUARDED, "gateway", "provider"), START)
    provider = Provider([START - 1.0, START + 1.0], [START + 1.0, START + 2.0, START + 3.0])
    for _ in range(2):
        await _count([cast("_Provider", provider)], [one], [0])
    assert one.arrivals == [START + 1.0, START + 2.0, START + 3.0]
