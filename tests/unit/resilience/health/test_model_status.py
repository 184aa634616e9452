"""State of a model, by the obstacles of its deployments."""

from __future__ import annotations

from llm_guard.resilience.health.model_status import REASONS, ModelStatus, Obstacle, status_of

FAILS = Obstacle("failures", since=10.0, until=50.0)
PAUSED = Obstacle("paused", since=20.0, until=40.0)
RECOVERS = Obstacle("recovering", refuses=False, since=5.0)


def test_model_without_obstacles_is_ok() -> None:
    assert status_of([None, None], [], is_degraded=False) == ModelStatus()


def test_model_with_a_deployment_left_is_degraded_until_the_last_obstacle_ends() -> None:
    status = status_of([FAILS, PAUSED, None], [], is_degraded=False)
    assert status == ModelStatus("degraded", "failures", since=10.0, expected_end=50.0)


def test_model_without_a_deployment_is_down_until_the_first_takes_calls_again() -> None:
    status = status_of([FAILS, PAUSED], [], is_degraded=False)
    assert status == ModelStatus("down", "failures", since=20.0, expected_end=40.0)


def test_end_is_unknown_if_that_of_an_obstacle_is() -> None:
    unknown = Obstacle("maintenance")
    assert status_of([unknown, None], [], is_degraded=False).expected_end is None
    assert status_of([unknown, FAILS, None], [], is_degraded=False).expected_end is None
    assert status_of([unknown], [], is_degraded=False) == ModelStatus("down", "maintenance")
    assert status_of([unknown, FAILS], [], is_degraded=False).expected_end == 50.0, "one end is known"


def test_fallback_keeps_a_model_from_being_down_and_leaves_it_ok_if_only_it_fails() -> None:
    assert status_of([FAILS], [None], is_degraded=False).state == "degraded"
    assert status_of([FAILS], [PAUSED], is_degraded=False).state == "down"
    assert status_of([None], [PAUSED], is_degraded=False).state == "ok"


def test_deployment_that_takes_trial_calls_keeps_a_model_from_being_down() -> None:
    assert status_of([RECOVERS], [], is_degraded=False) == ModelStatus("degraded", "recovering", since=5.0)


def test_degraded_mode_alone_makes_a_model_degraded() -> None:
    assert status_of([None], [], is_degraded=True) == ModelStatus("degraded", "failures")


def test_every_reason_is_a_phrase() -> None:
    assert all(reason and not reason.endswith(".") for reason in REASONS.values())
