from __future__ import annotations

from dataclasses import replace

import pytest

from llm_guard.resilience.health.engine_state import Engine, EngineEvent
from llm_guard.resilience.health.engine_uptime import Uptime
from llm_guard.resilience.health.restart_policy import HOUR_S, RestartSettings

SETTINGS = RestartSettings(
    base_delay=2.0, max_delay=100.0, jitter=0.0, max_attempts=3, max_per_hour=100, reset_after=60.0
)  # fmt: skip
BOOT_S = 30.0
U = 0.5


def told(engine: Engine, now: float, problem: str | None = None) -> EngineEvent | None:
    """Performs the pending action, which fails if there is a `problem`."""
    assert engine.take() is not None
    return engine.finish(problem, now, U)


def running(now: float = 0.0, settings: RestartSettings = SETTINGS) -> Engine:
    engine = Engine(settings, BOOT_S, now)
    engine.start(now)
    told(engine, now)
    engine.note_up(now, now)
    assert engine.state == "running"
    return engine


def what(turn: EngineEvent | None) -> tuple[str, str] | None:
    return None if turn is None else (turn.what, turn.after)


# problem


def test_engine_has_a_problem_while_it_is_meant_to_run_and_does_not() -> None:
    engine = running()
    assert engine.snapshot(1.0).problem is None
    engine.note_gone("it ended", 1.0, U)
    assert engine.snapshot(1.0).problem == "unhealthy: it ended"
    engine.pass_time(3.0, U)
    assert (engine.state, engine.snapshot(3.0).problem) == ("restarting", "restarting: it ended")
    told(engine, 3.0, "no such file")
    assert engine.snapshot(3.0).problem == "restart failed: no such file"
    engine.stop(4.0)
    assert engine.snapshot(4.0).problem is None, "an operator has stopped it"


def test_restart_by_an_operator_is_no_problem() -> None:
    engine = running()
    engine.restart(1.0)
    assert (engine.state, engine.snapshot(1.0).problem) == ("restarting", None)


# starting


def test_snapshot_has_the_time_in_which_it_ran() -> None:
    engine = Engine(SETTINGS, BOOT_S, 0.0)
    engine.start(10.0)
    told(engine, 12.0)
    engine.note_up(14.0, 15.0)
    assert engine.snapshot(35.0).uptime == Uptime(running_s=20.0, wanted_s=25.0, starts=1, starting_s=5.0)


def test_engine_starts_and_runs_once_it_answers() -> None:
    engine = Engine(SETTINGS, BOOT_S, 0.0)
    assert engine.state == "stopped"
    assert what(engine.start(0.0)) == ("start", "starting")
    assert engine.take() == "start"
    assert engine.take() is None
    assert engine.note_up(0.5, 0.5) is None  # nothing has been started yet
    assert engine.finish(None, 1.0, U) is None
    assert what(engine.note_up(2.0, 2.1)) == ("started", "running")
    assert engine.wakes_at is None


def test_probe_that_began_before_it_was_started_proves_nothing() -> None:
    engine = running()
    engine.restart(10.0)
    told(engine, 12.0)
    assert engine.note_up(11.0, 12.5) is None
    assert what(engine.note_up(12.0, 13.0)) == ("restart_success", "running")


def test_engine_that_is_not_up_within_its_boot_deadline_is_unhealthy() -> None:
    engine = Engine(SETTINGS, BOOT_S, 0.0)
    engine.start(0.0)
    told(engine, 1.0)
    assert engine.wakes_at == 31.0
    assert engine.pass_time(30.9, U) is None
    turn = engine.pass_time(31.0, U)
    assert what(turn) == ("health_failed", "unhealthy")
    assert turn is not None
    assert turn.why == "it was not up within 30 s"


def test_engine_that_cannot_be_started_is_tried_again_by_the_schedule() -> None:
    engine = Engine(SETTINGS, BOOT_S, 0.0)
    engine.start(0.0)
    assert what(told(engine, 1.0, "no such program")) == ("health_failed", "unhealthy")
    assert engine.wakes_at == 3.0


# restarting


def test_engine_that_went_down_is_revived_after_its_wait() -> None:
    engine = running()
    assert what(engine.note_down("503", 10.0, U)) == ("health_failed", "unhealthy")
    assert engine.wakes_at == 12.0
    assert engine.pass_time(11.9, U) is None
    assert engine.pass_time(12.0, U) == EngineEvent("auto_restart", "unhealthy", "restarting", "503", 1)
    assert engine.take() == "revive"
    engine.finish(None, 13.0, U)
    assert what(engine.note_up(13.5, 14.0)) == ("auto_restart_success", "running")
    assert engine.snapshot(14.0).restarts_ok == 1


def test_engine_whose_process_ended_is_restarted_too() -> None:
    engine = running()
    turn = engine.note_gone("signal SIGKILL", 10.0, U)
    assert turn == EngineEvent("health_failed", "running", "unhealthy", "signal SIGKILL", 0)


def test_waits_grow_and_the_last_attempt_is_followed_by_giving_up() -> None:
    engine = running()
    now = 0.0
    engine.note_gone("it died", now, U)
    waits = []
    turn = None
    for attempt in (1, 2, 3):
        due = engine.wakes_at
        assert due is not None
        waits.append(due - now)
        now = due
        turn = engine.pass_time(now, U)
        assert turn is not None
        assert turn.attempt == attempt
        told(engine, now)
        turn = engine.note_gone("it died", now, U)
    assert waits == [2, 4, 8]
    assert what(turn) == ("auto_restart_gave_up", "failed")
    assert engine.wakes_at is None
    assert engine.pass_time(1e9, U) is None
    assert engine.take() is None
    assert engine.snapshot(now).restarts_failed == 3


def test_attempt_that_takes_too_long_has_failed() -> None:
    engine = running()
    engine.note_down("503", 0.0, U)
    engine.pass_time(2.0, U)
    told(engine, 2.0)
    assert what(engine.pass_time(32.0, U)) == ("auto_restart_failed", "restart_failed")
    assert engine.wakes_at == 36.0


def test_engine_that_starts_by_itself_is_left_alone() -> None:
    engine = running()
    engine.note_down("503", 10.0, U)
    assert engine.note_up(9.0, 11.0) is None  # that probe began before the failure
    turn = engine.note_up(10.5, 11.0)
    assert what(turn) == ("came_back", "running")
    assert turn is not None
    assert turn.why == engine.snapshot(11.0).why == ""
    assert engine.pass_time(12.0, U) is None


def test_engine_that_fails_soon_after_each_restart_is_given_up_all_the_same() -> None:
    engine = running()
    now = 0.0
    for _ in range(3):
        assert what(engine.note_gone("it died", now, U)) == ("health_failed", "unhealthy")
        now = engine.wakes_at or 0.0
        engine.pass_time(now, U)
        told(engine, now)
        engine.note_up(now, now)
        now += SETTINGS.reset_after - 1
    engine.note_gone("it died", now, U)
    now = engine.wakes_at or 0.0
    assert what(engine.pass_time(now, U)) == ("auto_restart_gave_up", "failed")


def test_engine_that_stayed_well_has_all_its_attempts_again() -> None:
    engine = running()
    engine.note_gone("it died", 0.0, U)
    engine.pass_time(2.0, U)
    told(engine, 2.0)
    engine.note_up(2.0, 2.0)
    assert engine.snapshot(61.9).attempts == 1
    assert engine.snapshot(62.0).attempts == 0
    engine.note_gone("it died", 62.0, U)
    assert engine.wakes_at == 64.0


def test_hourly_limit_postpones_an_attempt_and_reports_it_once() -> None:
    engine = running(settings=replace(SETTINGS, max_per_hour=1, reset_after=1.0))
    engine.note_gone("it died", 0.0, U)
    engine.pass_time(2.0, U)
    told(engine, 2.0)
    engine.note_up(2.0, 2.0)
    engine.note_gone("it died again", 10.0, U)
    turn = engine.pass_time(12.0, U)
    assert turn is not None
    assert what(turn) == ("auto_restart_postponed", "unhealthy")
    assert turn.why == "limit of 1 restarts an hour reached; last failure: it died again"
    assert engine.wakes_at == 2.0 + HOUR_S
    assert engine.pass_time(100.0, U) is None
    assert what(engine.pass_time(2.0 + HOUR_S, U)) == ("auto_restart", "restarting")


# given up


def given_up() -> Engine:
    engine = running(settings=replace(SETTINGS, max_attempts=1))
    engine.note_gone("it died", 0.0, U)
    engine.pass_time(2.0, U)
    assert what(told(engine, 2.0, "no")) == ("auto_restart_gave_up", "failed")
    return engine


def test_reset_restarts_one_that_was_given_up_at_once() -> None:
    engine = given_up()
    assert what(engine.reset(100.0)) == ("reset", "unhealthy")
    assert what(engine.pass_time(100.0, U)) == ("auto_restart", "restarting")


def test_reset_forgets_the_attempts_of_one_that_runs() -> None:
    engine = running(settings=replace(SETTINGS, max_per_hour=1))
    engine.note_gone("it died", 0.0, U)
    engine.pass_time(2.0, U)
    told(engine, 2.0)
    engine.note_up(2.0, 2.0)
    assert engine.reset(3.0) == EngineEvent("reset", "running", "running", "", 0)
    engine.note_gone("it died", 4.0, U)
    assert what(engine.pass_time(6.0, U)) == ("auto_restart", "restarting")


def test_engine_that_was_given_up_and_starts_by_itself_has_its_attempts_again() -> None:
    engine = given_up()
    assert engine.note_down("503", 3.0, U) is None
    assert what(engine.note_up(50.0, 50.0)) == ("came_back", "running")
    assert engine.snapshot(50.0).attempts == 0


def test_start_and_restart_try_one_that_was_given_up() -> None:
    for act in (Engine.start, Engine.restart):
        engine = given_up()
        assert what(act(engine, 100.0)) == ("restart", "restarting")
        assert engine.take() == "restart"


# operator commands


def test_restart_requested_twice_is_one() -> None:
    engine = running()
    assert what(engine.restart(1.0)) == ("restart", "restarting")
    assert engine.restart(1.0) is None
    assert engine.take() == "restart"
    assert engine.restart(2.0) is None
    engine.finish(None, 3.0, U)
    assert engine.restart(4.0) is None
    engine.note_up(4.0, 5.0)
    assert engine.take() is None


def test_start_of_a_running_or_starting_engine_does_nothing() -> None:
    engine = Engine(SETTINGS, BOOT_S, 0.0)
    engine.start(0.0)
    assert engine.start(0.0) is None
    told(engine, 0.0)
    engine.note_up(0.0, 0.0)
    assert engine.start(1.0) is None


def test_start_of_a_stopped_engine_does_not_wait() -> None:
    engine = running()
    engine.note_down("503", 1.0, U)
    assert what(engine.start(1.5)) == ("restart", "restarting")


def test_stopped_engine_is_not_restarted_for_any_probe_result() -> None:
    engine = running()
    assert what(engine.stop(1.0)) == ("stop", "stopped")
    assert engine.stop(1.0) is None
    assert engine.take() == "stop"
    assert engine.finish(None, 2.0, U) is None
    for turn in (engine.note_up(3.0, 3.0), engine.note_down("x", 3.0, U), engine.note_gone("x", 3.0, U)):
        assert turn is None
    assert engine.pass_time(1e9, U) is None
    assert engine.state == "stopped"


def test_stop_that_was_not_possible_is_reported() -> None:
    engine = running()
    engine.stop(1.0)
    engine.take()
    assert engine.finish("the daemon is away", 2.0, U) == EngineEvent(
        "stop_failed", "stopped", "stopped", "the daemon is away", 0
    )  # fmt: skip
    assert engine.snapshot(2.0).why == "the daemon is away"


def test_stop_during_a_restart_wins() -> None:
    engine = running()
    engine.restart(1.0)
    assert engine.take() == "restart"
    engine.stop(2.0)
    assert engine.take() is None  # one action at a time
    assert engine.snapshot(2.0).doing == "stop"
    assert engine.finish("it did not start", 3.0, U) is None
    assert engine.state == "stopped"
    assert engine.take() == "stop"


def test_stop_while_it_boots_ends_the_boot() -> None:
    engine = running()
    engine.restart(1.0)
    told(engine, 1.0)
    engine.stop(2.0)
    assert engine.wakes_at is None
    assert engine.note_up(3.0, 3.0) is None
    assert engine.pass_time(1000.0, U) is None


def test_operators_restart_that_fails_is_followed_by_automatic_ones() -> None:
    engine = running()
    engine.restart(1.0)
    assert what(told(engine, 2.0, "no")) == ("restart_failed", "restart_failed")
    assert engine.wakes_at == 4.0
    turn = engine.pass_time(4.0, U)
    assert turn is not None
    assert (turn.what, turn.attempt) == ("auto_restart", 1)


def test_replacing_starts_from_scratch_also_in_the_middle_of_a_restart() -> None:
    engine = running()
    engine.restart(1.0)
    told(engine, 1.0)
    assert what(engine.replace(2.0)) == ("restart", "restarting")
    assert engine.take() == "restart"


# snapshots and settings


@pytest.mark.parametrize(
    ("at", "next_attempt_s", "boot_left_s"), [(10.0, 2.0, None), (11.0, 1.0, None), (12.0, None, 30.0)]
)
def test_snapshot_shows_the_next_step(at: float, next_attempt_s: float | None, boot_left_s: float | None) -> None:
    engine = running()
    engine.note_down("503", 10.0, U)
    if at >= 12.0:
        engine.pass_time(12.0, U)
        told(engine, 12.0)
    seen = engine.snapshot(at)
    assert (seen.next_attempt_s, seen.boot_left_s, seen.why) == (next_attempt_s, boot_left_s, "503")


def test_other_settings_hold_from_the_next_failure_on() -> None:
    engine = running()
    engine.settings = replace(SETTINGS, base_delay=7.0)
    engine.boot_s = 1.0
    engine.note_down("503", 0.0, U)
    assert engine.wakes_at == 7.0
    engine.pass_time(7.0, U)
    told(engine, 7.0)
    assert engine.wakes_at == 8.0
