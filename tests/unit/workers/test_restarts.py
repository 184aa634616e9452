"""When a worker is started again, and when it counts as hanging."""

from __future__ import annotations

from llm_guard.workers.restarts import HangWatch, RestartBackoff


def test_first_restart_is_at_once_and_the_next_ones_wait_ever_longer() -> None:
    backoff = RestartBackoff()
    assert [backoff.wait_s(1.0) for _ in range(5)] == [0.0, 0.5, 1.0, 2.0, 4.0]
    assert max(backoff.wait_s(1.0) for _ in range(2000)) == 30.0


def test_worker_that_was_well_for_a_minute_is_restarted_at_once() -> None:
    backoff = RestartBackoff()
    assert [backoff.wait_s(ran_s) for ran_s in (1.0, 1.0, 59.0, 60.0, 1.0)] == [0.0, 0.5, 1.0, 0.0, 0.5]


def test_worker_hangs_after_so_many_looks_without_a_beat() -> None:
    watch = HangWatch(3)
    assert [watch.look(beats) for beats in (1, 1, 1, 2, 2, 2, 2)] == [False, False, False, False, False, False, True]
