"""The benchmark of a fleet: its promises and its page, and one run of two gateways."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import fleet, report
from benchmarks.fleet import FleetRun
from llm_guard.config import parse_config

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


def test_config_is_valid() -> None:
    texts = {"{receiver}": "http://127.0.0.1:9/", "{store}": "redis://localhost", "{provider}": "http://127.0.0.1:1"}
    text = fleet.CONFIG
    for name, value in texts.items():
        text = text.replace(name, value)
    assert parse_config(text, "fleet.yaml", {}).fleet is not None


def test_page_shows_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    report.write_fleet(replace(GOOD, requests=61))
    page = (tmp_path / "fleet.md").read_text()
    assert "| requests that the provider got in 120 s | 61 | 60 |" in page
    assert "1 firing info, 1 firing critical, 1 resolved critical" in page
    assert "- Failed: requests in the outage: 61, against 60" in page
