from __future__ import annotations

from llm_guard.resilience.health.engine_uptime import EngineUptime, Uptime


def test_engine_that_was_never_meant_to_run_has_no_time() -> None:
    assert EngineUptime(100.0).at(500.0) == Uptime(0.0, 0.0, 0, 0.0)


def test_time_in_each_state_and_the_length_of_starts() -> None:
    uptime = EngineUptime(0.0)
    for at, state in (
        (10.0, "starting"), (40.0, "running"), (100.0, "unhealthy"), (105.0, "restarting"), (115.0, "running"),
        (215.0, "stopped"),
    ):  # fmt: skip
        uptime.note(state, at)
    assert uptime.at(1000.0) == Uptime(running_s=160.0, wanted_s=205.0, starts=2, starting_s=40.0)


def test_start_that_failed_is_no_start_and_not_counted_in_the_next() -> None:
    uptime = EngineUptime(0.0)
    for at, state in ((0.0, "restarting"), (30.0, "restart_failed"), (50.0, "restarting"), (60.0, "running")):
        uptime.note(state, at)
    assert uptime.at(60.0) == Uptime(running_s=0.0, wanted_s=60.0, starts=1, starting_s=10.0)


def test_engine_that_comes_back_by_itself_has_not_been_started() -> None:
    uptime = EngineUptime(0.0)
    for at, state in ((0.0, "starting"), (5.0, "unhealthy"), (20.0, "running")):
        uptime.note(state, at)
    assert (uptime.at(30.0).starts, uptime.at(30.0).running_s) == (0, 10.0)
