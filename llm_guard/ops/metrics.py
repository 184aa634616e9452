"""/metrics: what the recorder has counted, and the state of every deployment at the moment of the scrape.

Owns the rendering. Sees deployments through their snapshots, so that nothing is kept up to date on a call's way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from llm_guard.clock import Clock
from llm_guard.deployment import Deployment
from llm_guard.policy.breaker import BreakerSnapshot
from llm_guard.policy.transition import BreakerState

_STATES: tuple[BreakerState, ...] = (
    "closed", "open", "half_open", "forced_open", "forced_closed", "metrics_only", "disabled",
)  # fmt: skip
_WORST_FIRST: tuple[BreakerState, ...] = (
    "forced_open", "open", "half_open", "closed", "forced_closed", "metrics_only", "disabled",
)  # fmt: skip

CONTENT_TYPE = CONTENT_TYPE_LATEST


def new_registry() -> CollectorRegistry:
    """An empty registry, but for the process's own memory, CPU and file descriptors."""
    # A `_created` series beside each counter would double a scrape, and nobody reads it.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return registry


def render(registry: CollectorRegistry) -> bytes:
    """The Prometheus text format (prometheus.io/docs/instrumenting/exposition_formats) of counters, gauges and
    histograms. prometheus_client's `generate_latest` writes the same in 5 us a sample: with 200 deployments that is a
    stop of the event loop for 50 ms."""
    return "".join(chain.from_iterable(map(_lines, registry.collect()))).encode()


class StateCollector(Collector):
    """Breakers, last successes and the last reload, read when Prometheus asks."""

    def __init__(self, deployments: Callable[[], Iterable[Deployment]], clock: Clock) -> None:
        self._deployments = deployments
        self._clock = clock
        self.is_last_reload_good = True
        self._transitions: dict[tuple[str, str], _Steady] = {}

    def collect(self) -> Iterator[Metric]:
        yield from self._breakers()
        yield GaugeMetricFamily(
            "llm_guard_config_last_reload_successful",
            "1 when the running config is the file's.",
            value=float(self.is_last_reload_good),
        )

    def _breakers(self) -> Iterator[Metric]:
        state = GaugeMetricFamily(
            "llm_guard_breaker_state", "1 for the state a breaker is in.", labels=["deployment", "state"]
        )
        transitions = CounterMetricFamily(
            "llm_guard_breaker_transitions", "Changes of a breaker's state.", labels=["deployment", "to"]
        )
        success = GaugeMetricFamily(
            "llm_guard_last_success_timestamp_seconds", "When a deployment last answered well.", labels=["deployment"]
        )
        for label, group in self._by_label().items():
            snapshots = [deployment.breaker.snapshot(self._clock.now()) for deployment in group]
            worst = min((snapshot.state for snapshot in snapshots), key=_WORST_FIRST.index)
            for name in _STATES:
                state.add_metric([label, name], float(name == worst))
                steady = self._transitions.setdefault((label, name), _Steady())
                transitions.add_metric([label, name], steady.of(_transitions(snapshots, name)))
            if last := max((deployment.last_success_wall or 0.0 for deployment in group), default=0.0):
                success.add_metric([label], last)
        yield from (state, transitions, success)

    def _by_label(self) -> dict[str, list[Deployment]]:
        """The names under a pattern have a breaker each and one label together: the worst is shown."""
        groups: dict[str, list[Deployment]] = {}
        for deployment in self._deployments():
            groups.setdefault(deployment.label, []).append(deployment)
        return groups


class _Steady:
    """A sum whose parts may vanish (a pattern forgets its oldest names), as a counter that never falls."""

    def __init__(self) -> None:
        self._lost = self._last = 0.0

    def of(self, now: float) -> float:
        self._lost += max(0.0, self._last - now)
        self._last = now
        return self._lost + now


def _transitions(snapshots: Iterable[BreakerSnapshot], to: str) -> float:
    return float(sum(snapshot.transitions.get(to, 0) for snapshot in snapshots))  # type: ignore[call-overload]


def _lines(metric: Metric) -> Iterator[str]:
    name = f"{metric.name}_total" if metric.type == "counter" else metric.name
    text = metric.documentation.replace("\\", "\\\\").replace("\n", "\\n")
    yield f"# HELP {name} {text}\n# TYPE {name} {metric.type}\n"
    for sample in metric.samples:
        pairs = ",".join([f'{key}="{_escaped(value)}"' for key, value in sorted(sample.labels.items())])
        labels = f"{{{pairs}}}" if pairs else ""
        value = floatToGoString(sample.value)  # type: ignore[no-untyped-call]
        yield f"{sample.name}{labels} {value}\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
