"""The benchmark of workers: its promises, its page, and a short run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import report, workers
from benchmarks.workers import WorkersRun
from benchmarks.workers_page import write_workers

GOOD = WorkersRun(3, 4000, 64, [300.0, 310.0, 305.0], [310.0, 312.0, 330.0], [300.0, 300.0, 300.0], 0)


def test_run_within_the_promises_breaks_none() -> None:
    assert GOOD.broken == []
    assert GOOD.ratio == pytest.approx(310 / 300)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"two_us": [400.0, 310.0, 400.0]}, "two workers need 1.31 times"),
        ({"failed": 2}, "2 calls failed"),
    ],
)
def test_broken_promise_is_named(wrong: dict[str, Any], told: str) -> None:
    (broken,) = replace(GOOD, **wrong).broken
    assert told in broken


def test_page_has_every_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    write_workers(replace(GOOD, failed=1))
    page = (tmp_path / "workers.md").read_text()
    for figure in (
        "305 us",
        "312 us",
        "| 1.03 | at most 1.1 |",
        "1.01 to 1.08",
        "300 us",
        "| 1.04 | |",
        "Failed: 1 calls failed",
    ):
        assert figure in page


def test_short_run_measures_both() -> None:
    ran = workers.run(lambda _: None, rounds=1, calls=100)
    assert (len(ran.one_us), len(ran.two_us), ran.failed) == (1, 1, 0)
    assert min(*ran.one_us, *ran.two_us, *ran.apart_us) > 0
