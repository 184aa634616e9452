"""What is counted of calls, in plain numbers, and how a scrape sees it.

Owns the metrics' names, help texts and buckets: the product's public surface. Does not own what is counted when
(`gateway.record`). The numbers are the event loop's alone, scrapes included, and need no lock: prometheus_client's own
counters have one each, and cost ten times as much.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

_DURATION_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)
_FIRST_TOKEN_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_DELAY_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_OVERHEAD_S = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 1)


class Distribution:
    """How often values were at most each of `bounds`, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Of values at most a bound and above the one before it; the last, of those above all."""
        self.sum = 0.0

    def note(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


# The attributes have their metrics' names. A counter's key is its second label; of more, or of none, a tuple.


class ModelCounts:
    """Of the calls with one `model` label."""

    __slots__ = (
        "begun", "call_duration", "calls", "ended", "fallbacks", "hedges", "overhead", "recoveries", "refusals",
        "time_to_first_token", "tokens", "tokens_thrown_away",
    )  # fmt: skip

    def __init__(self) -> None:
        self.begun = 0
        self.ended = 0
        """Of those that had begun."""
        self.calls: dict[str, int] = defaultdict(int)
        self.fallbacks: dict[str, int] = defaultdict(int)
        self.refusals: dict[str, int] = defaultdict(int)
        self.tokens: dict[str, int] = defaultdict(int)
        self.hedges: dict[str, int] = defaultdict(int)
        self.recoveries: dict[tuple[str, str], int] = defaultdict(int)
        self.tokens_thrown_away: dict[tuple[()], int] = defaultdict(int)
        self.call_duration = Distribution(_DURATION_S)
        self.time_to_first_token = Distribution(_FIRST_TOKEN_S)
        self.overhead = Distribution(_OVERHEAD_S)

    @property
    def in_flight_calls(self) -> int | None:
        """None: there never were any."""
        return self.begun - self.ended if self.begun else None


class DeploymentCounts:
    """Of the attempts with one `deployment` label."""

    __slots__ = (
        "attempts", "malformed_events", "queue_wait", "retries", "retry_delay", "timeouts", "upstream_duration",
    )  # fmt: skip

    def __init__(self) -> None:
        self.attempts: dict[str, int] = defaultdict(int)
        self.retries: dict[str, int] = defaultdict(int)
        self.timeouts: dict[str, int] = defaultdict(int)
        self.malformed_events: dict[tuple[()], int] = defaultdict(int)
        self.upstream_duration = Distribution(_DURATION_S)
        self.queue_wait = Distribution(_DELAY_S)
        self.retry_delay = Distribution(_DELAY_S)


class CallCounters(Collector):
    """All that is counted of calls, by its first label."""

    def __init__(self) -> None:
        self.models: dict[str, ModelCounts] = defaultdict(ModelCounts)
        self.deployments: dict[str, DeploymentCounts] = defaultdict(DeploymentCounts)

    def collect(self) -> Iterator[Metric]:
        """Each metric; what was never counted is not in it."""
        yield self._counter("calls", "Client calls by how they ended.", "model", "outcome")
        yield self._counter("attempts", "Upstream exchanges: ok or the failure kind.", "deployment", "outcome")
        yield self._counter("retries", "Repeats on the same deployment, by what failed.", "deployment", "kind")
        yield self._counter("fallbacks", "Calls moved on to this deployment.", "model", "deployment")
        yield self._counter("refusals", "Calls answered by the gateway itself.", "model", "by")
        yield self._counter("timeouts", "Limits exceeded.", "deployment", "limit")
        yield self._counter("tokens", "Tokens as counted by the provider.", "model", "direction")
        yield self._histogram("call_duration", "A call, to its last byte.", "model")
        yield self._histogram("time_to_first_token", "Streams: from receipt to the first useful event.", "model")
        yield self._histogram("upstream_duration", "One exchange.", "deployment")
        yield self._histogram("overhead", "A call's time that was neither upstream nor backoff.", "model")
        yield self._counter("hedges", "Attempts beside a slow one: won when they answered first.", "model", "outcome")
        yield self._counter(
            "recoveries",
            "Attempts that went on with a stream that had died: how they were asked, and ok or the failure kind.",
            "model",
            "manner",
            "outcome",
        )
        yield self._counter("tokens_thrown_away", "Tokens of output that no client got, one per event.", "model")
        yield self._counter(
            "malformed_events", "Events of streams that could not be read, and were passed on.", "deployment"
        )
        yield self._histogram("queue_wait", "Waits for a turn at a deployment.", "deployment")
        yield self._histogram("retry_delay", "Waits before retries.", "deployment")
        yield self._gauge("in_flight_calls", "Calls running now.", "model")

    def _counter(self, name: str, text: str, *labels: str) -> Metric:
        family = CounterMetricFamily(f"llm_guard_{name}", text, labels=labels)
        for label, counts in self._counted(name, labels[0]):
            for key, count in counts.items():
                family.add_metric((label, key) if isinstance(key, str) else (label, *key), count)
        return family

    def _histogram(self, name: str, text: str, label: str) -> Metric:
        family = HistogramMetricFamily(f"llm_guard_{name}_seconds", text, labels=(label,))
        for value, seen in self._counted(name, label):
            if any(seen.counts):
                bounds = (*map(floatToGoString, seen.bounds), "+Inf")
                family.add_metric((value,), tuple(zip(bounds, accumulate(seen.counts), strict=True)), seen.sum)
        return family

    def _gauge(self, name: str, text: str, label: str) -> Metric:
        family = GaugeMetricFamily(f"llm_guard_{name}", text, labels=(label,))
        for value, now in self._counted(name, label):
            if now is not None:
                family.add_metric((value,), now)
        return family

    def _counted(self, name: str, label: str) -> Iterator[tuple[str, Any]]:
        owners: Mapping[str, object] = self.models if label == "model" else self.deployments
        return ((value, getattr(owner, name)) for value, owner in owners.items())
