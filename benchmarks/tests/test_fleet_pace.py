"""The benchmark of the pace that gateways have together: its promises, its page, and a short run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import fleet_pace, report
from benchmarks.fleet_pace import PaceRow, PaceRun
from benchmarks.fleet_pace_page import write_fleet_pace

GOOD = PaceRow(10, 44.0, 0.98, 1.04, 0.8, 1.5, 0.05)


def test_run_within_the_promises_breaks_none() -> None:
    assert PaceRun((GOOD,)).broken == []


def test_broken_promise_is_named() -> None:
    ran = PaceRun(
        (replace(GOOD, goodput=0.9), replace(GOOD, per_answer=1.2), replace(GOOD, without_store=0.7, refused=2.5))
    )
    assert ran.broken == [
        "10 gateways, 44 calls/s: 0.90 of the limit, against 0.97",
        "10 gateways, 44 calls/s: 1.20 requests for each answer, against 1.06",
        "10 gateways, 44 calls/s, store frozen: 0.70 of the limit, against 0.75",
        "10 gateways, 44 calls/s, store frozen: 2.5 429s a second, against 2",
    ]


def test_page_has_every_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    write_fleet_pace(PaceRun((GOOD, replace(GOOD, goodput=0.9))))
    page = (tmp_path / "fleet-pace.md").read_text()
    assert "| 10 | 44 | 0.98 | 1.04 | 5% | 0.80 | 1.5 |" in page
    assert "- Failed: 10 gateways" in page


def test_short_run_measures_every_rate() -> None:
    said: list[str] = []
    ran = fleet_pace.run(said.append, gateways=(2,), warm_s=1.0, seconds=1.0)
    assert [row.offered for row in ran.rows] == list(fleet_pace.OFFERED)
    assert all(row.goodput > 0 and row.per_answer > 0 for row in ran.rows)
    assert len(said) == 2
