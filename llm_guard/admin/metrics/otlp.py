"""Converts metric families to OTLP and sends them to a collector: blocking, for a worker thread.

Imports OpenTelemetry, which is an optional dependency. Names are those of `/metrics` without `_total`, which collectors
add to counters for Prometheus: one dashboard serves both ways.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from llm_guard.version import __version__

if TYPE_CHECKING:
    from llm_guard.admin.metrics.otlp_export import FamilyValues

_SCOPE = InstrumentationScope("llm_guard", __version__)
_CUMULATIVE = AggregationTemporality.CUMULATIVE
_LOGGER = "opentelemetry.exporter.otlp.proto.http.metric_exporter"
_TIMEOUT_S = 5.0
_UNKNOWN: tuple[Any, Any] = (None, None)
"""Lowest and highest value, which are optional in OTLP, if not in these classes."""
_UNITS = {"_seconds": "s", "_bytes": "By"}


class OtlpMetrics:
    """Sends metrics to one collector."""

    def __init__(self, endpoint: str, service: str, started_wall: float) -> None:
        """`endpoint`: complete URL of an OTLP/HTTP receiver. Headers and certificates are read from OpenTelemetry's own
        environment variables. `started_wall`: since when counters count, in seconds since the epoch."""
        self._resource = Resource.create({"service.name": service, "service.version": __version__})
        self._exporter = OTLPMetricExporter(endpoint=endpoint, timeout=_TIMEOUT_S)
        self._started_ns = int(started_wall * 1e9)
        self._reasons = _Reasons()

    def send(self, families: Iterable[FamilyValues], wall: float) -> str:
        """Sends the values of one moment. Returns why the collector did not accept them; "" if it did."""
        self._reasons.last = ""
        metrics = [self._metric(family, int(wall * 1e9)) for family in families if family.rows or family.distributions]
        scope = ScopeMetrics(_SCOPE, metrics, "")
        result = self._exporter.export(MetricsData([ResourceMetrics(self._resource, [scope], "")]))
        return "" if result is MetricExportResult.SUCCESS else self._reasons.last or "the collector did not accept them"

    def close(self) -> None:
        """Closes the connections to the collector."""
        self._exporter.shutdown()

    def _metric(self, family: FamilyValues, now_ns: int) -> Metric:
        unit = next((unit for ending, unit in _UNITS.items() if family.name.endswith(ending)), "1")
        data = self._histogram(family, now_ns) if family.kind == "histogram" else self._numbers(family, now_ns)
        return Metric(family.name, family.text, unit, data)

    def _numbers(self, family: FamilyValues, now_ns: int) -> Sum | Gauge:
        points = [
            NumberDataPoint(dict(zip(family.labels, values, strict=True)), self._started_ns, now_ns, number)
            for values, number in family.rows
        ]
        return Sum(points, _CUMULATIVE, is_monotonic=True) if family.kind == "counter" else Gauge(points)

    def _histogram(self, family: FamilyValues, now_ns: int) -> Histogram:
        points = [
            HistogramDataPoint(
                dict(zip(family.labels, values, strict=True)), self._started_ns, now_ns, sum(counts), total, counts,
                bounds, *_UNKNOWN,
            )
            for values, bounds, counts, total in family.distributions
        ]  # fmt: skip
        return Histogram(points, _CUMULATIVE)


class _Reasons(logging.Handler):
    """Takes the exporter's log records, the last of which says why an export failed."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""
        source = logging.getLogger(_LOGGER)
        source.handlers = [self]
        source.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        self.last = record.getMessage()[:300]
