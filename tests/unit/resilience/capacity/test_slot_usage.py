from __future__ import annotations

import pytest

from llm_guard.resilience.capacity.slot_usage import SlotTime


def test_continuing_uses_count() -> None:
    time = SlotTime()
    time.begin(0, "hog", 10.0)
    assert time.of_priority(0, 25.0) == 15.0
    time.end(0, "hog", 10.0, 30.0)
    assert time.total(30.0) == 20.0
    assert time.of_callers(0, ("hog", "victim"), 30.0) == {"hog": 20.0}


def test_use_loses_its_weight_within_minutes() -> None:
    time = SlotTime()
    time.begin(1, "hog", 0.0)
    time.end(1, "hog", 0.0, 20.0)
    assert time.total(320.0) == pytest.approx(0.13, abs=0.01)


def test_callers_that_are_remembered_are_bounded() -> None:
    time = SlotTime()
    for number in range(5000):
        time.begin(1, f"key {number}", float(number))
        time.end(1, f"key {number}", float(number), number + 1.0)
    assert len(time._uses[1]) <= 1024
