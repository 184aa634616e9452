from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from llm_guard.deployment import Deployment
from llm_guard.ops.metrics import CONTENT_TYPE, StateCollector, new_registry, render
from llm_guard.outcome import Signal
from llm_guard.policy.breaker import BreakerSettings
from tests.fakes.clock import ManualClock
from tests.fakes.script import new_target


class Scrape:
    """A registry over these deployments."""

    def __init__(self, *deployments: Deployment) -> None:
        self.clock = ManualClock()
        self.collector = StateCollector(lambda: deployments, self.clock)
        self.registry = new_registry()
        self.registry.register(self.collector)

    def __call__(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"llm_guard_{name}", labels)

    def states(self, label: str) -> dict[str, float | None]:
        return {
            name: self("breaker_state", deployment=label, state=name)
            for name in ("closed", "open", "half_open")
        }  # fmt: skip


def new_deployment(label: str = "a/x") -> Deployment:
    return new_target(
        label, breaker=BreakerSettings(early_probes=False, consecutive_failures=1, open_for=30.0)
    ).deployment


def fail(deployment: Deployment, now: float = 1000.0) -> None:
    permit = deployment.breaker.try_acquire(now)
    assert permit is not None
    deployment.breaker.settle(permit, Signal.UNHEALTHY, now)


def test_state_of_a_breaker_is_one_of_three() -> None:
    deployment = new_deployment()
    scrape = Scrape(deployment)
    assert scrape.states("a/x") == {"closed": 1.0, "open": 0.0, "half_open": 0.0}
    fail(deployment)
    assert scrape.states("a/x") == {"closed": 0.0, "open": 1.0, "half_open": 0.0}
    deployment.breaker.try_acquire(1030.0)
    assert scrape.states("a/x") == {"closed": 0.0, "open": 0.0, "half_open": 1.0}


def test_changes_of_state_are_counted_by_the_state_entered() -> None:
    deployment = new_deployment()
    scrape = Scrape(deployment)
    assert scrape("breaker_transitions_total", deployment="a/x", to="open") == 0
    fail(deployment)
    fail(deployment, 1030.0)
    assert scrape("breaker_transitions_total", deployment="a/x", to="open") == 2
    assert scrape("breaker_transitions_total", deployment="a/x", to="half_open") == 1
    assert scrape("breaker_transitions_total", deployment="a/x", to="closed") == 0


def test_of_breakers_with_one_label_the_worst_is_shown() -> None:
    names = [new_deployment("a/gpt-*") for _ in range(3)]
    fail(names[1])
    fail(names[2])
    names[2].breaker.try_acquire(1030.0)
    scrape = Scrape(*names)
    assert scrape.states("a/gpt-*") == {"closed": 0.0, "open": 1.0, "half_open": 0.0}
    assert scrape("breaker_transitions_total", deployment="a/gpt-*", to="open") == 2


def test_last_success_is_the_latest_of_a_label_and_absent_before_the_first() -> None:
    names = [new_deployment("a/gpt-*") for _ in range(3)]
    scrape = Scrape(*names)
    assert scrape("last_success_timestamp_seconds", deployment="a/gpt-*") is None
    names[0].last_success_wall, names[1].last_success_wall = 1_800_000_005.0, 1_800_000_001.0
    assert scrape("last_success_timestamp_seconds", deployment="a/gpt-*") == 1_800_000_005.0


def test_refused_reload_is_shown() -> None:
    scrape = Scrape()
    assert scrape("config_last_reload_successful") == 1.0
    scrape.collector.is_last_reload_good = False
    assert scrape("config_last_reload_successful") == 0.0


def test_page_is_prometheus_text() -> None:
    page = render(Scrape(new_deployment()).registry).decode()
    assert 'llm_guard_breaker_state{deployment="a/x",state="closed"} 1.0' in page
    assert "\nprocess_resident_memory_bytes " in page
    assert CONTENT_TYPE.startswith("text/plain")


class OddMetrics(Collector):
    """Everything that has a spelling of its own."""

    def collect(self) -> Iterator[Metric]:
        counter = CounterMetricFamily("odd", 'a "quoted" \\ text\nof two lines', labels=["model", "by"])
        for number, value in enumerate((0, 3, 1e6, 12345678.0, 1e21, 0.1 + 0.2, float("inf"))):
            counter.add_metric([f'm"\\\n{number}', "{} é,="], value)
        histogram = HistogramMetricFamily("odd_seconds", "", labels=["name"])
        histogram.add_metric(["a"], [("0.1", 1), ("+Inf", 4)], 2.5e-7)
        yield from (counter, histogram, GaugeMetricFamily("plain", "Without labels.", value=float("nan")))
        yield GaugeMetricFamily("none", "Without samples.", labels=["model"])


def test_page_is_byte_for_byte_the_one_that_prometheus_client_writes() -> None:
    registry = Scrape(new_deployment(), new_deployment("b/y")).registry
    registry.register(OddMetrics())

    def steady(page: bytes) -> list[bytes]:
        return [line for line in page.splitlines() if not line.startswith(b"process_")]

    assert steady(render(registry)) == steady(generate_latest(registry))
    assert len(steady(render(registry))) > 40
