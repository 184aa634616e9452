from __future__ import annotations

from llm_guard.policy.deadline import TimeoutSettings, deadline_at, earlier


def test_defaults_are_the_documented_ones() -> None:
    assert TimeoutSettings() == TimeoutSettings(connect=5.0, first_token=30.0, idle=30.0, attempt=120.0, total=600.0)


def test_deadline_is_the_total_from_now() -> None:
    assert deadline_at(1000.0, 600.0, None) == 1600.0


def test_client_can_shorten_the_deadline_but_not_lengthen_it() -> None:
    assert deadline_at(1000.0, 600.0, 20.0) == 1020.0
    assert deadline_at(1000.0, 600.0, 9000.0) == 1600.0


def test_earlier_names_the_limit_that_comes_first() -> None:
    assert earlier(10.0, "attempt", 20.0) == (10.0, "attempt")
    assert earlier(30.0, "attempt", 20.0) == (20.0, "total")


def test_limit_that_ends_with_the_deadline_is_the_deadline() -> None:
    assert earlier(20.0, "first_token", 20.0) == (20.0, "total")
