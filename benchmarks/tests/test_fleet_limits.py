"""The benchmark of limits that gateways have together: its promises, its page, and a short run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import fleet_limits, report
from benchmarks.fleet_limits import LimitsRun

GOOD = LimitsRun(10, 10.0, 20, 0.8, 30, 20, 1.0, 0.95, 0)


def test_run_within_the_promises_breaks_none() -> None:
    assert GOOD.broken == []


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"most": 21}, "21 calls at once, against 20"),
        ({"most_after_loss": 31}, "31 calls at once after the loss, against 30"),
        ({"most_alone": 21}, "21 calls at once without"),
        ({"rate": 1.11}, "1.11 of a key's rate with "),
        ({"rate_alone": 0.89}, "0.89 of a key's rate without "),
        ({"failed": 1}, "1 calls got no answer"),
    ],
)
def test_broken_promise_is_named(wrong: dict[str, Any], told: str) -> None:
    (broken,) = replace(GOOD, **wrong).broken
    assert told in broken


def test_page_has_every_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    report.write_fleet_limits(replace(GOOD, most=21))
    page = (tmp_path / "fleet-limits.md").read_text()
    assert "| calls at once (`concurrency: 20`) | 21 | at most 20 |" in page
    assert "- Failed: 21 calls at once" in page


def test_short_run_measures_all_parts() -> None:
    said: list[str] = []
    ran = fleet_limits.run(said.append, gateways=2, seconds=0.5)
    assert ran.most <= fleet_limits.CONCURRENCY
    assert min(ran.most, ran.used, ran.most_after_loss, ran.most_alone, ran.rate, ran.rate_alone) > 0
    assert len(said) == 5
