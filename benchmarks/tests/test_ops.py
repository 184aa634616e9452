"""Configs and arithmetic of the benchmark of the admin side."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks import ops, ops_size, report
from benchmarks.compare import ways
from benchmarks.compare.load import Calls
from benchmarks.ops import BARE, KEPT, OFF, ON, WATCHED, Operated, Plan, sum_up
from benchmarks.ops_size import Sized
from benchmarks.ops_watchers import PAGES
from benchmarks.turns import in_turns
from llm_guard.config import Config, parse_config
from llm_guard.resilience.alerts.rules import RULES

FEED = Path(__file__).parents[2] / "llm_guard/admin/dashboard/feed.js"


def config(operators_part: str) -> Config:
    text = ways.CONFIG.replace("{provider}", "http://127.0.0.1:1")
    return parse_config(text + operators_part, "benchmark.yaml", {})


def calls(per_s: float, us_per_call: float) -> Calls:
    return Calls(1.0, per_s * us_per_call / 1e6, (0.001,) * round(per_s), 0, "")


def operated(*shares: float, errors: tuple[str, ...] = ()) -> Operated:
    """Builds one round per share of the calls a second; the machine is half as fast in every other round."""
    speeds = [1000 / (1 + turn % 2) for turn in range(len(shares))]
    found = {
        BARE: [calls(speed, 1e6 / speed) for speed in speeds],
        KEPT: [calls(speed, 1e6 / speed) for speed in speeds],
        WATCHED: [calls(speed * share, 1e6 / speed / share) for speed, share in zip(speeds, shares, strict=True)],
    }
    return sum_up(Plan(len(shares)), found, {"/metrics": 3}, errors)


def test_configs_differ_in_the_operators_part_alone() -> None:
    off, on = config(OFF), config(ON)
    assert (off.server, off.upstreams, off.defaults, off.models) == (on.server, on.upstreams, on.defaults, on.models)
    assert on.ops.webhooks
    assert on.ops.recent_calls.calls > 0
    assert off.ops.recent_calls.calls == 0


def test_every_alert_is_on_in_one_and_off_in_the_other() -> None:
    off, on = (config(part).ops.alerts for part in (OFF, ON))
    assert all(off.of(rule) is None for rule in RULES)
    assert all(on.of(rule) is not None for rule in RULES)


def test_watchers_request_what_the_dashboard_requests_as_often() -> None:
    found = re.findall(r'path: "([^"]+)", every_s: ([0-9.]+)', FEED.read_text())
    assert {f"/{path}": float(every_s) for path, every_s in found} == {
        path: every_s for path, every_s in PAGES.items() if path != "/metrics"
    }


def test_ratio_is_taken_round_by_round() -> None:
    share, low, high = operated(0.9, 1.0, 0.96).ratio(operated(0.9, 1.0, 0.96).calls_per_s, WATCHED)
    assert (share, low, high) == pytest.approx((0.96, 0.9, 1.0))


def test_cost_above_the_limit_misses_the_target() -> None:
    assert operated(0.9, 0.96, 0.96).broken == []
    [told] = operated(0.94, 0.94, 1.0).broken
    assert "0.940" in told


def test_failed_requests_of_watchers_are_reported() -> None:
    assert operated(1.0, errors=("2 looks failed",)).broken == ["2 looks failed"]


def test_each_turn_begins_with_another() -> None:
    turns = list(in_turns((BARE, KEPT, WATCHED), 3))
    assert sorted(turns) == sorted((turn, name) for turn in range(3) for name in (BARE, KEPT, WATCHED))
    assert [turns[3 * turn][1] for turn in range(3)] == [BARE, KEPT, WATCHED]


def sized(scrape_s: float = 0.01, busy_s: float = 0.01, paint_s: float = 0.1, rows_s: float = 0.2) -> Sized:
    return Sized(200, 500_000, (scrape_s,) * 3, (busy_s,) * 3, (paint_s,) * 3, (rows_s,) * 3)


def test_size_of_the_config_is_as_named() -> None:
    found = parse_config(ops_size.config().replace("{provider}", "http://127.0.0.1:1"), "benchmark.yaml", {})
    assert sum(len(model.deployments) for model in found.models.values()) == ops_size.UPSTREAMS * ops_size.MODELS


def test_slow_pages_miss_the_target() -> None:
    assert sized().broken == []
    assert Sized(200, 1, (0.01, 0.01, 9.0), (0.01,), (0.1,), (0.1,)).broken == []  # one delayed scrape
    assert ["51 ms" in sized(scrape_s=0.051).broken[0], "51 ms" in sized(busy_s=0.051).broken[0]] == [True, True]
    assert ["1001 ms" in sized(paint_s=1.001).broken[0], "1001 ms" in sized(rows_s=1.001).broken[0]] == [True, True]
    assert Sized(200, 1, (0.01,), (0.01,), (0.1,), (0.1,), failed_calls=2).broken


def test_page_shows_all_three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    report.write_ops(operated(0.9, 1.0, 0.96, errors=("it rained",)), sized(scrape_s=0.017))
    page = (tmp_path / "ops.md").read_text()
    assert "**0.960**" in page
    assert all(f"| {way} |" in page for way in (BARE, KEPT, WATCHED))
    assert "- Failed: it rained" in page
    assert "| /metrics, 500 kB | 17 ms | 17 ms | 50 ms |" in page
    assert json.loads((tmp_path / "ops.json").read_text())["ops"]["promised_share"] == ops.PROMISED_SHARE
