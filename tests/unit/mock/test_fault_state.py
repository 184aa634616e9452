from __future__ import annotations

import asyncio

import pytest

from llm_guard.mock.fault_state import FaultStates
from llm_guard.mock.faults import BadFaultError, parse_fault

LIMIT = parse_fault("limit:1/s")


def failing_requests(courses: FaultStates, requests: int = 40) -> list[bool]:
    return [bool(courses.of("m", "").throw().faults) for _ in range(requests)]


def test_switched_faults_follow_those_of_the_request() -> None:
    courses = FaultStates(0)
    courses.switch("m", "cut:1, silence")
    plan = courses.of("m+reset", "close").plan
    assert [fault.kind for fault in plan.faults] == ["reset", "close", "cut", "silence"]
    assert courses.of("other", "").plan.faults == ()


def test_empty_text_clears_switched_faults() -> None:
    courses = FaultStates(0)
    courses.switch("m", "status:503")
    courses.switch("m", "")
    assert courses.of("m", "").plan.faults == ()


def test_random_sequence_restarts_with_every_switch() -> None:
    courses, runs = FaultStates(7), []
    for _ in range(2):
        courses.switch("m", "status:503@50%")
        runs.append(failing_requests(courses))
    assert runs[0] == runs[1]
    assert failing_requests(courses) != runs[0], "without a switch the dice go on"


def test_a_switch_leaves_other_models_alone() -> None:
    courses = FaultStates(0)
    assert courses.of("n+limit:1/s", "").take(LIMIT, 1.0) == 0.0
    courses.switch("m", "status:503")
    assert courses.of("n+limit:1/s", "").take(LIMIT, 1.0) == 1.0
    courses.switch("n", "")
    assert courses.of("n+limit:1/s", "").take(LIMIT, 1.0) == 0.0


def test_a_bad_switch_changes_nothing() -> None:
    courses = FaultStates(0)
    courses.switch("m", "reset")
    with pytest.raises(BadFaultError, match="explode"):
        courses.switch("m", "explode")
    assert [fault.kind for fault in courses.of("m", "").plan.faults] == ["reset"]


async def test_slots_are_granted_in_order_of_arrival_and_released_on_cancellation() -> None:
    course = FaultStates(0).of("m+capacity:1", "")
    served: list[int] = []

    async def ask(number: int) -> None:
        async with course.place(1):
            served.append(number)
            await asyncio.sleep(0)

    async with course.place(1):
        asking = [asyncio.ensure_future(ask(number)) for number in range(4)]
        await asyncio.sleep(0)
        asking[1].cancel()
        assert served == []
    await asyncio.gather(*asking, return_exceptions=True)
    assert served == [0, 2, 3]
