"""Metrics sent to an OpenTelemetry collector that is healthy, refuses or hangs."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric

from llm_guard.config import ConfigError
from tests.chaos.forms import CHAT
from tests.chaos.lag import measured
from tests.chaos.stand import config_of, facing
from tests.chaos.wire import fetch
from tests.fakes.provider import Hold, ScriptedProvider, Step, whole
from tests.fakes.waiting import eventually
from tests.scrape import Scraped

TAKEN = (whole(200, b""),)


def sent(request: bytes) -> dict[str, Metric]:
    """Returns the metrics of an export by name."""
    message = ExportMetricsServiceRequest.FromString(request.partition(b"\r\n\r\n")[2])
    ((scope,),) = [resource.scope_metrics for resource in message.resource_metrics]
    return {metric.name: metric for metric in scope.metrics}


def labels(point: Any) -> dict[str, str]:
    return {pair.key: pair.value.string_value for pair in point.attributes}


def ops(collector: ScriptedProvider, interval: str = "1h") -> dict[str, Any]:
    return {"metrics": {"otlp": f"{collector.url}/v1/metrics", "interval": interval, "service_name": "gate"}}


async def test_last_values_are_sent_at_shutdown_and_equal_the_metrics_page() -> None:
    async with ScriptedProvider(*[TAKEN] * 5) as collector:
        async with facing(*[CHAT.ok] * 3, ops=ops(collector)) as (stand, _):
            for _ in range(3):
                assert (await CHAT.ask(stand.url)).status == 200
            await stand.idle()
            page = Scraped((await fetch(f"{stand.url}/metrics")).text)
        (request,) = collector.requests
    assert b"POST /v1/metrics HTTP/1.1" in request
    metrics = sent(request)
    (calls,) = metrics["llm_guard_calls"].sum.data_points
    assert (labels(calls), calls.as_int) == ({"model": "gpt", "outcome": "ok"}, 3)
    assert metrics["llm_guard_calls"].sum.is_monotonic
    assert calls.time_unix_nano > calls.start_time_unix_nano > 0
    duration = metrics["llm_guard_call_duration_seconds"]
    (ok,) = [point for point in duration.histogram.data_points if point.count]
    assert duration.unit == "s"
    assert duration.histogram.aggregation_temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    assert (ok.count, sum(ok.bucket_counts), len(ok.bucket_counts)) == (3, 3, len(ok.explicit_bounds) + 1)
    assert not ok.HasField("min")
    names = {family.name for family in page.families if family.samples and family.name.startswith("llm_guard_")}
    assert "llm_guard_calls" in names
    assert names <= metrics.keys()


async def test_export_that_fails_is_logged_and_the_thread_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> str:
        raise ValueError("odd")

    monkeypatch.setattr("llm_guard.admin.metrics.otlp.OtlpMetrics.send", fail)
    async with ScriptedProvider() as collector:
        async with facing(CHAT.ok, ops=ops(collector)) as (stand, _):
            assert (await CHAT.ask(stand.url)).status == 200
        (line,) = [line for line in stand.log if line["event"] == "metrics not exported"]
    assert line["reason"] == "ValueError: odd"
    await eventually(lambda: not [thread for thread in threading.enumerate() if thread.name == "metrics export"])


async def test_values_are_sent_at_each_interval() -> None:
    async with ScriptedProvider(*[TAKEN] * 9) as collector, facing(CHAT.ok, ops=ops(collector, "1s")):
        await eventually(lambda: len(collector.requests) >= 2)


@pytest.mark.parametrize("script", [(whole(400, b"no"),), (Hold(),)], ids=["refuses", "hangs"])
async def test_failing_collector_affects_no_call_and_delays_shutdown_by_seconds_at_most(
    script: tuple[Step, ...],
) -> None:
    async with ScriptedProvider(*[script] * 9) as collector:
        with measured() as lag:
            async with facing(*[CHAT.ok] * 5, ops=ops(collector, "1s")) as (stand, _):
                await eventually(lambda: collector.requests)
                for _ in range(5):
                    assert (await CHAT.ask(stand.url)).status == 200
                began_at = asyncio.get_running_loop().time()
            assert asyncio.get_running_loop().time() - began_at < 4 + lag.total_s
            assert any(line["event"] == "metrics not exported" for line in stand.log)


@pytest.mark.parametrize(
    ("metrics", "problem"),
    [
        ({"otlp": "127.0.0.1:4318"}, "must be the full URL, such as http://127.0.0.1:4318/v1/metrics"),
        ({"otlp": "http://127.0.0.1:4318/v1/metrics", "interval": "10ms"}, "must be at least 1s"),
    ],
)
def test_mistakes_are_named(metrics: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        config_of("http://127.0.0.1:1", ops={"metrics": metrics})
