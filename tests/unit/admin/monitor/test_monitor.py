from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from llm_guard.admin.monitor.monitor import PERIOD_S, LoopLag, Monitor
from tests.fakes.clock import ManualClock


def pass_s(clock: ManualClock, seconds: float, late_s: float = 0.0) -> None:
    for _ in range(round(seconds / PERIOD_S)):
        clock.advance(PERIOD_S + late_s)
        clock.ring_due()


def test_everything_is_checked_four_times_a_second() -> None:
    clock, seen = ManualClock(), list[float]()
    watch = Monitor([seen.append, seen.append], LoopLag(), clock)
    watch.start()
    pass_s(clock, 1)
    assert len(seen) == 8
    watch.stop()
    pass_s(clock, 1)
    assert len(seen) == 8


def test_check_that_fails_ends_no_other_and_is_reported_once_a_minute() -> None:
    clock, seen = ManualClock(), list[float]()

    def fail(_now: float) -> None:
        raise ValueError("broken")

    watch = Monitor([fail, seen.append], LoopLag(), clock)
    watch.start()
    with capture_logs() as lines:
        pass_s(clock, 61)
    assert len(seen) == 244
    assert [line["event"] for line in lines] == ["a periodic check failed"] * 2


def test_lag_is_the_delay_of_a_tick_and_its_maximum_lasts_a_minute() -> None:
    clock = ManualClock()
    lag = LoopLag()
    watch = Monitor([], lag, clock)
    watch.start()
    pass_s(clock, PERIOD_S, late_s=0.5)
    assert lag.latest_s == lag.max_s == pytest.approx(0.5)
    pass_s(clock, 59)
    assert lag.latest_s == pytest.approx(0.0)
    assert lag.max_s == pytest.approx(0.5)
    pass_s(clock, 121)
    assert lag.max_s == pytest.approx(0.0)
