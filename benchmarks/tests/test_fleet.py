"""The benchmarks of a fleet and its store: their promises and their page."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

from benchmarks import fleet, fleet_store, report
from benchmarks.fleet import FleetRun
from benchmarks.fleet_store import Cost, Failure, StoreRun
from llm_guard.config import parse_config

FAILURE = Failure("frozen", 60.0, 12_000, 0, 0.0021, 0.0025, 1e6, 0.3)
STORED = StoreRun(Cost((1.006, 0.99, 1.02), (-1e-5, -1e-4, 1e-4), 9.9, 30_000), 0.0014, (FAILURE,))
GOOD = FleetRun(10, 120.0, 55, 5.0, 1.5, 0.2, {"firing info": 1, "firing critical": 1, "resolved critical": 1})


def test_run_within_the_promises_breaks_none() -> None:
    assert GOOD.broken == []


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"requests": 61}, "61, against 60"),
        ({"open_after_s": 7.1}, "7.1 s"),
        ({"force_s": 0.6}, "0.60 s"),
        ({"notices": {"firing info": 2, "resolved info": 1}}, "'firing info': 2"),
        ({"notices": {"firing info": 1}}, "notices"),
        ({"notices": {}}, "notices"),
    ],
)
def test_broken_promise_is_named(wrong: dict[str, Any], told: str) -> None:
    (broken,) = replace(GOOD, **wrong).broken
    assert told in broken


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"cost": replace(STORED.cost, cpu=(1.03, 1.0, 1.1))}, "1.030 of that alone"),
        ({"cost": replace(STORED.cost, added_p99_s=(2e-4, 0.0, 1e-3))}, "added p99: 0.20 ms"),
        ({"cost": replace(STORED.cost, commands_per_s=12.0)}, "12.0 a second"),
        ({"failures": (replace(FAILURE, failed=1),)}, "frozen: 1 calls failed"),
        ({"failures": (replace(FAILURE, p99_s=0.0065),)}, "frozen: p99 6.5 ms"),
        ({"failures": (replace(FAILURE, lag_s=0.1),)}, "frozen: loop lag up to 100 ms"),
        ({"failures": (replace(FAILURE, growth_bytes=5 * 1024**2),)}, "frozen: grew by 5.0 MiB"),
        ({"failures": (replace(FAILURE, back_s=1.6),)}, "frozen: shared again after 1.60 s"),
    ],
)
def test_broken_promise_of_the_store_is_named(wrong: dict[str, Any], told: str) -> None:
    assert STORED.broken == []
    (broken,) = replace(STORED, **wrong).broken
    assert told in broken


def test_config_of_the_store_is_valid() -> None:
    text = f"{fleet_store.CONFIG}fleet: {{store: 'redis://127.0.0.1:1/0'}}\n".replace(
        "{provider}", "http://127.0.0.1:1"
    )
    assert parse_config(text, "fleet.yaml", {}).fleet is not None


def test_worst_lag_is_that_of_the_new_ones() -> None:
    before, after = {0.001: 5, 0.05: 9, 5.0: 10, inf: 10}, {0.001: 8, 0.05: 12, 5.0: 13, inf: 13}
    assert fleet_store._worst(before, after) == 0.001
    assert fleet_store._worst(before, after | {0.001: 7}) == 0.05


def test_config_is_valid() -> None:
    texts = {"{receiver}": "http://127.0.0.1:9/", "{store}": "redis://localhost", "{provider}": "http://127.0.0.1:1"}
    text = fleet.CONFIG
    for name, value in texts.items():
        text = text.replace(name, value)
    assert parse_config(text, "fleet.yaml", {}).fleet is not None


def test_page_shows_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    report.write_fleet(replace(GOOD, requests=61), STORED)
    page = (tmp_path / "fleet.md").read_text()
    assert "| requests that the provider got in 120 s | 61 | 60 |" in page
    assert "1 firing info, 1 firing critical, 1 resolved critical" in page
    assert "- Failed: requests in the outage: 61, against 60" in page
    assert "| frozen | 60 s | 12000 | 0 | 2.1 ms | 2.5 ms | 1.0 MiB | 0.30 s |" in page
