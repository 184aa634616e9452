"""Configs and arithmetic of the benchmark against an earlier version."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.compare.load import Calls
from benchmarks.since import BEFORE, KEYS, NOW, Plan, Since, configs, sum_up
from benchmarks.turns import joined
from llm_guard.config import parse_config

PLAN = Plan(Path(), "abc1234", rounds=1)


def calls(us_per_call: float) -> Calls:
    return Calls(1.0, us_per_call * 1000 / 1e6, (0.001,) * 1000, 0, "")


def since(now_us: float, keys_us: float, errors: tuple[str, ...] = ()) -> Since:
    return sum_up(PLAN, {BEFORE: [calls(100.0)], NOW: [calls(now_us)], KEYS: [calls(keys_us)]}, errors)


def test_versions_have_the_same_config_and_keys_admit_the_measured_calls() -> None:
    texts = configs()
    assert texts[BEFORE] == texts[NOW]
    keyed = parse_config(texts[KEYS].replace("{provider}", "http://127.0.0.1:1"), "benchmark.yaml", {})
    assert "sk-benchmark" in [key.key for key in keyed.server.client_keys]
    assert keyed.upstreams["provider"].api_key == "sk-provider"


def test_missed_targets_are_reported() -> None:
    assert since(101.0, 104.0).broken == []
    assert since(102.0, 104.0).broken == ["CPU per call: 1.020 of abc1234, against 1.01"]
    assert since(100.0, 104.0).broken == ["CPU per call with client keys: 1.040 of that without, against 1.03"]
    assert since(100.0, 100.0, ("3 calls failed",)).broken == ["3 calls failed"]


def test_page_names_the_commit_and_both_ratios(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    report.write_since(since(101.0, 103.0))
    page = (tmp_path / "since.md").read_text()
    assert "abc1234" in page
    assert "**1.010**" in page
    assert "**1.020**" in page


def test_pieces_of_a_turn_are_counted_as_one() -> None:
    pieces = [Calls(1.0, 0.5, (0.1, 0.2), 0, ""), Calls(2.0, 0.25, (0.3,), 2, "status 503")]
    assert joined(pieces) == Calls(3.0, 0.75, (0.1, 0.2, 0.3), 2, "status 503")
