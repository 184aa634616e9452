"""The metrics of several processes as one page."""

from __future__ import annotations

import json

import msgspec
import pytest

from llm_guard.admin.metrics.exposition import Family, Histogram, Row
from llm_guard.app import create_app
from llm_guard.config import parse_config
from llm_guard.proxy.telemetry.recorder import Distribution
from llm_guard.workers.merging import GAUGES, lasting, merged
from llm_guard.workers.snapshot import FamilySnapshot, taken
from tests.scrape import scraped

CONFIG = {
    "server": {"port": 0},
    "upstreams": {"one": {"dialect": "openai", "base_url": "http://127.0.0.1:9/v1"}},
    "models": {"gpt": {"deployments": [{"upstream": "one"}]}},
}


def sent(*metrics: Family | Histogram) -> list[FamilySnapshot]:
    """Returns the metrics of a process as they arrive at the parent."""
    data = msgspec.msgpack.encode(list(taken(metrics)))
    return msgspec.msgpack.decode(data, type=list[FamilySnapshot])


def counter(number: float, label: str = "a") -> Family:
    return Family("llm_guard_things", "counter", "Things.", ("kind",), lambda: [((label,), number)])


def gauge(name: str, *rows: Row) -> Family:
    labels = tuple(f"label{n}" for n in range(len(rows[0][0])))
    return Family(f"llm_guard_{name}", "gauge", "A gauge.", labels, lambda: rows)


def histogram(*values: float, call: str = "call", at: float = 0.0) -> Histogram:
    found = Distribution((1.0, 2.0))
    for value in values:
        found.note_call(value, call, 1 << 127, at)
    return Histogram("llm_guard_wait_seconds", "Waits.", ("kind",), lambda: [(("a",), found)])


def test_counters_are_sums_by_label() -> None:
    page = scraped(merged([sent(counter(1), counter(4, "b")), sent(counter(2))]))
    assert page("things_total", kind="a") == 3
    assert page("things_total", kind="b") == 4


def test_histograms_are_sums_with_the_latest_exemplars() -> None:
    one, other = sent(histogram(0.5, 3.0, at=20.0, call="later")), sent(histogram(0.7, at=10.0, call="earlier"))
    page = scraped(merged([other, one]), "openmetrics")
    assert page("wait_seconds_bucket", kind="a", le="1.0") == 2
    assert page("wait_seconds_bucket", kind="a", le="+Inf") == 3
    assert page("wait_seconds_sum", kind="a") == pytest.approx(4.2)
    exemplars = [sample.exemplar.labels for sample in page.samples if sample.exemplar is not None]
    assert all("later" in labels.values() for labels in exemplars)
    assert [labels["trace_id"] for labels in exemplars] == [f"{1 << 127:x}"] * 2


@pytest.mark.parametrize(
    ("name", "expected"),
    [("queue_length", 7), ("credentials_in_cooldown", 5), ("fleet_store_up", 2), ("unknown_of_a_later_version", 7)],
)
def test_gauge_is_merged_by_its_meaning(name: str, expected: float) -> None:
    page = scraped(merged([sent(gauge(name, ((), 5))), sent(gauge(name, ((), 2)))]))
    assert page(name) == expected


def test_worst_state_is_the_one_of_a_deployment() -> None:
    def of(state: str) -> list[FamilySnapshot]:
        states = ("closed", "half_open", "open")
        return sent(
            Family(
                "llm_guard_breaker_state", "gauge", "States.", ("deployment", "state"),
                lambda: [(("d", name), int(name == state)) for name in states],
            )
        )  # fmt: skip

    page = scraped(merged([of("half_open"), of("open"), of("closed")]))
    states = {name: page("breaker_state", deployment="d", state=name) for name in ("closed", "half_open", "open")}
    assert states == {"closed": 0, "half_open": 0, "open": 1}


def test_counts_of_a_process_that_has_ended_stay_and_its_gauges_do_not() -> None:
    ended = lasting([sent(counter(2), gauge("queue_length", ((), 5)), histogram(0.5))])
    ended = lasting([ended, sent(counter(1))])
    page = scraped(merged([sent(counter(10)), ended]))
    assert page("things_total", kind="a") == 13
    assert page("queue_length") is None
    assert page("wait_seconds_count", kind="a") == 1


async def test_each_gauge_of_the_gateway_has_a_rule() -> None:
    app = create_app(parse_config(json.dumps(CONFIG), "test.yaml", {}))
    await app.start()
    try:
        found = {each.name for each in await app.ops.metrics.current() if each.kind == "gauge"}
    finally:
        await app.stop()
    assert found - GAUGES.keys() == set()
