"""The arithmetic of the relay's cost: load that slows both ways at once must not look like a difference."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.relay import CONFIG, CONTINUED, GUARDED, PLAIN, RelayCost, Size, WayCost, Window, sum_up
from llm_guard.config import parse_config


def window(us_per_chunk: float, chunks: int = 1000, writes: int | None = None, broken: int = 0) -> Window:
    return Window(chunks, us_per_chunk * chunks / 1e6, writes or chunks, (0.003, 0.001, 0.002), broken)


def summed(plain: list[Window], guarded: list[Window]) -> WayCost:
    _, found = sum_up({PLAIN: plain, GUARDED: guarded})
    return found


def test_ratio_is_taken_round_by_round() -> None:
    """Another load doubled the second round, for both; comparing the medians would give 24 to 20."""
    found = summed([window(20), window(40), window(10)], [window(24), window(48), window(12)])
    assert [found.ratio, found.lowest_ratio, found.highest_ratio] == pytest.approx([1.2, 1.2, 1.2])
    uneven = summed([window(10), window(20), window(40)], [window(30), window(22), window(40)])
    assert [uneven.ratio, uneven.lowest_ratio, uneven.highest_ratio] == pytest.approx([1.1, 1.0, 3.0])
    assert uneven.cpu_s_per_chunk == pytest.approx(30e-6), "which is 1.5 times the plain relay's median"


def test_cost_is_per_chunk_however_many_came() -> None:
    found = summed([window(20, chunks=100)], [window(20, chunks=4000)])
    assert found.ratio == pytest.approx(1.0)


def test_chunks_that_were_passed_on_together_are_reported() -> None:
    found = summed([window(20)], [window(20, chunks=1000, writes=500)])
    assert found.chunks_per_write == pytest.approx(2.0)
    assert (found.delay_p50_s, found.delay_p99_s) == (0.002, 0.003)


def cost(ratio: float, broken: int = 0) -> RelayCost:
    plain = WayCost(PLAIN, 20e-6, 1.0, 1.0, 1.0, 1.0, 0.001, 0.002, 0)
    guarded = WayCost(GUARDED, 20e-6 * ratio, ratio, ratio - 0.1, ratio + 0.1, 1.0, 0.001, 0.002, broken)
    return RelayCost(3, (Size(50, 0.01, (plain, guarded)),))


def test_ratio_above_the_limit_misses_the_target() -> None:
    assert cost(1.3).broken == []
    [told] = cost(1.31).broken
    assert told.startswith("50 streams, llm_guard: 1.31 times")


def test_stream_that_did_not_last_misses_the_target() -> None:
    [told] = cost(1.0, broken=2).broken
    assert told == "50 streams, llm_guard: 2 streams broke"


def test_page_shows_each_proxy_at_each_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    report.write_relay(cost(1.25))
    page = (tmp_path / "relay.md").read_text()
    assert "## 50 streams at once, a chunk every 10 ms" in page
    assert "| llm_guard | 25.0 µs | **1.25** (1.15, 1.35) | 1.00 ms | 2.00 ms | 1.00 |" in page
    assert '"ratio": 1.25' in (tmp_path / "relay.json").read_text()


@pytest.mark.parametrize("rules", ["", pytest.param(", stream: {recover: continue}", id=CONTINUED)])
def test_config_can_be_read(rules: str) -> None:
    text = CONFIG.replace("RULES", rules).replace("{provider}", "http://127.0.0.1:9")
    assert set(parse_config(text, "relay", {}).models) == {"gpt-4o"}
