"""Configs and arithmetic of the benchmark of longer-lived features."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.compare.load import Calls
from benchmarks.lasting import ELSEWHERE, HITS, OFF, Lasted, Plan, configs, sum_up
from llm_guard.config import Config, parse_config


def config(way: str) -> Config:
    return parse_config(configs()[way].replace("{provider}", "http://127.0.0.1:1"), "benchmark.yaml", {})


def calls(us_per_call: float) -> Calls:
    return Calls(1.0, us_per_call * 1000 / 1e6, (0.001,) * 1000, 0, "")


def lasted(elsewhere_us: float, errors: tuple[str, ...] = ()) -> Lasted:
    found = {OFF: [calls(100.0)], ELSEWHERE: [calls(elsewhere_us)], HITS: [calls(80.0)]}
    return sum_up(Plan(1), found, errors)


def test_measured_model_uses_none_of_it_in_either() -> None:
    off, on = config(OFF).models["gpt-4o"], config(ELSEWHERE).models["gpt-4o"]
    assert (off.cache, off.degraded, off.dead_letter, off.deferred.mode) == (None, None, "off", "off")
    assert (on.cache, on.degraded) == (None, None)
    assert (on.deployments, on.retry, on.hedge) == (off.deployments, off.retry, off.hedge)


def test_another_model_uses_all_of_it() -> None:
    on = config(ELSEWHERE)
    kept = on.models["kept"]
    assert kept.cache is not None
    assert kept.degraded is not None
    assert (kept.dead_letter, kept.deferred.mode) == ("always", "on_failure")
    assert on.upstreams["probed"].probe is not None


def test_hits_are_of_the_measured_model() -> None:
    assert config(HITS).models["gpt-4o"].cache is not None


def test_two_per_cent_pass_and_more_is_reported() -> None:
    assert lasted(101.9).broken == []
    assert lasted(102.5).broken == ["CPU of a call that uses none of it: 1.025 of one where all is off, against 1.02"]


def test_failed_calls_are_reported() -> None:
    assert lasted(100.0, ("all off: 3 calls failed",)).broken == ["all off: 3 calls failed"]


def test_ratios_are_in_the_json() -> None:
    assert lasted(101.0).as_dict()["ratios"]["cpu_s_per_call"][ELSEWHERE][0] == 1.01


def test_page_shows_all_three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    report.write_lasting(lasted(101.0, ("it rained",)))
    page = (tmp_path / "lasting.md").read_text()
    assert "**1.010** of one where all is off" in page
    assert f"| {HITS} | 1,000 | 1.000 (1.000, 1.000) | 80.0 µs | 0.800 (0.800, 0.800) |" in page
    assert "it rained" in page
