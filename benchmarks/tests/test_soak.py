"""The soak's verdict: every leak must be detected, and nothing else must be taken for one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from benchmarks import report
from benchmarks.soak import FAULTS, FAULTY_SHARE, MODELS, Sample, Soak, _config, slope
from benchmarks.soak_clients import pick_habit
from benchmarks.soak_gateway import counts
from llm_guard.app import App
from llm_guard.config import parse_config
from llm_guard.mock.faults import parse_plan
from llm_guard.routing.route_table import compile_routes

EMPTY = Sample(0.0, 60_000_000, 14, 2, 0, 0, 0, 0, 0)
MB_PER_HOUR = 1e6 / 3600


def soak(mb_per_hour: float = 0.0, minutes: float = 5.0) -> Soak:
    """A soak in which memory fills up during the first 40 %, then grows steadily."""
    seconds = round(minutes * 60)
    warm_s = 0.4 * seconds
    samples = tuple(
        replace(
            EMPTY,
            at_s=float(at_s),
            rss_bytes=round(8e7 + at_s * mb_per_hour * MB_PER_HOUR + 2e7 * min(1.0, at_s / warm_s)),
            open=1000,
        )
        for at_s in range(seconds)
    )
    ended = {"reads": {"whole": 100 * seconds, "told": 2}}
    return Soak(1000, minutes, ("plain",), EMPTY, samples, EMPTY, 16.0, ended, 5, ())


def test_slope_is_that_of_a_straight_line() -> None:
    assert slope([(float(x), 3.0 * x + 1) for x in range(50)]) == pytest.approx(3.0)


def test_slope_hardly_heeds_a_quarter_of_outliers() -> None:
    points = [(float(x), 3.0 * x + (1000 if x % 4 == 3 else 0)) for x in range(80)]
    assert slope(points) == pytest.approx(3.0, abs=0.5)


def test_one_instant_has_no_slope() -> None:
    assert slope([]) == slope([(1.0, 5.0)]) == slope([(1.0, 5.0), (1.0, 9.0)]) == 0.0


def test_warm_up_is_not_taken_for_a_leak() -> None:
    assert soak(0.0).slope_mb_per_hour == pytest.approx(0.0)
    assert soak(0.0).broken == []


@pytest.mark.parametrize(("minutes", "promised"), [(5.0, 30.0), (30.0, 5.0)])
def test_leak_misses_the_target(minutes: float, promised: float) -> None:
    """The allocator's last steps weigh less the longer a run is, so the bound is lower."""
    assert soak(promised - 1, minutes).broken == []
    [told] = soak(promised + 1, minutes).broken
    assert told == f"memory grew by {promised + 1:.0f} MB an hour against {promised:.0f}"


def test_leak_is_reported_per_stream() -> None:
    assert soak(360.0).bytes_per_stream == pytest.approx(1000, rel=0.01), "a hundred streams a second, 100 kB a second"


def test_short_run_proves_nothing_about_memory() -> None:
    assert soak(9000.0, minutes=1.0).broken == []


@pytest.mark.parametrize(
    ("left", "told"),
    [
        ({"tasks": 3}, "1 tasks left behind"),
        ({"fds": 20}, "6 file descriptors left behind"),
        ({"calls": 2}, "2 calls left behind"),
        ({"attempts": 1}, "1 attempts left behind"),
        ({"slots": 4}, "4 slots left behind"),
        ({"waiting": 1}, "1 waiting calls left behind"),
        ({"gauge": 1}, "1 in-flight gauge left behind"),
    ],
)
def test_leftovers_miss_the_target(left: dict[str, int], told: str) -> None:
    assert replace(soak(), after=replace(EMPTY, **left)).broken == [told]


def test_fewer_than_before_are_no_leftovers() -> None:
    assert replace(soak(), after=replace(EMPTY, tasks=1, fds=10)).left_over == {}


@pytest.mark.parametrize(("how", "why"), [("silent", "ended without a word"), ("hung", "never ended")])
def test_stream_whose_end_was_not_reported_misses_the_target(how: str, why: str) -> None:
    found = replace(soak(), ended={"reads": {"whole": 10, how: 1}, "reads slowly": {how: 2}})
    assert found.whole_share == pytest.approx(10 / 11)
    assert found.broken == [f"3 streams {why}"]


def test_flat_memory_without_load_misses_the_target() -> None:
    """Happened when the provider of a soak had stopped: the gateway refused all calls, and its memory was perfectly
    flat."""
    [told] = replace(soak(), ended={"reads": {"whole": 50, "refused": 50}}).broken
    assert told == "the load was not as meant: 1000 streams open, 50% of the readers' whole"
    [told] = replace(soak(), samples=tuple(replace(sample, open=800) for sample in soak().samples)).broken
    assert told.startswith("the load was not as meant: 800 streams open")


def test_logged_complaint_misses_the_target() -> None:
    [told] = replace(soak(), stray=("Task exception was never retrieved", "Boom")).broken
    assert told == "the gateway wrote 2 lines to standard error: Boom"


def test_page_and_picture_show_the_slope_and_the_leftovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    report.write_soak(replace(soak(12.0), after=replace(EMPTY, tasks=9), ended={"reads": {"hung": 1, "whole": 3}}))
    page = (tmp_path / "soak.md").read_text()
    assert "**+12.0 MB an hour**" in page
    assert "**7 tasks**" in page
    assert "**1 streams hung**" in page
    assert "| reads | 1 | 3 |" in page
    assert (tmp_path / "soak.png").stat().st_size > 10_000


def test_one_request_in_ten_meets_a_fault() -> None:
    text = _config("http://127.0.0.1:9", "http://127.0.0.1:10")
    config = parse_config(text, "soak", {})
    assert {*MODELS, "large"} == set(config.models)
    for name in MODELS:
        asked = config.models[name].deployments[0].model
        assert asked is not None
        plan = parse_plan(asked)
        assert len(plan.faults) == len(FAULTS)
        assert sum(fault.share for fault in plan.faults) == pytest.approx(FAULTY_SHARE, abs=0.001)


def test_nine_clients_in_ten_read_to_the_end() -> None:
    habits = [pick_habit((n + 0.5) / 1000) for n in range(1000)]
    assert {name: habits.count(name) for name in sorted(set(habits))} == {
        "leaves": 30,
        "reads": 955,
        "reads slowly": 10,
        "stops reading": 5,
    }


async def test_counts_are_those_of_every_deployment() -> None:
    text = _config("http://127.0.0.1:9", "http://127.0.0.1:10")
    deployments = compile_routes(parse_config(text, "soak", {}), 0.0, draw=lambda: 0.5).deployments()
    for account in ("a", "b"):
        deployments[0].gates.of(account, 0.0).try_enter(0.0)
    deployments[1].gates.in_flight += 3
    app = cast("App", SimpleNamespace(gateway=SimpleNamespace(deployments=lambda: deployments, running=5)))
    found = counts(app, 0.0)
    assert found.pop("tasks") >= 1
    assert found == {"calls": 5, "attempts": 3, "slots": 2, "waiting": 0}
