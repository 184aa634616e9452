"""Deployments whose probes fail, as calls meet them: tried last."""

from __future__ import annotations

from typing import Any

import pytest

from llm_guard.proxy.attempts.candidate_selection import order_of
from llm_guard.resilience.retry.backoff import RetrySettings
from llm_guard.routing.deployment import FailingDeployments
from llm_guard.routing.route_table import Target
from tests.fakes.script import OK, SERVER_ERROR, new_route, new_target
from tests.unit.proxy.attempts.plays import play

A, B, C = new_target("a/x"), new_target("b/x"), new_target("c/x", group=1)


def order(*targets: Target, down: set[tuple[str, str | None]], **facts: Any) -> list[int]:
    found = FailingDeployments()
    found.keys = frozenset(down)
    route = new_route(*targets, down=found, **facts)
    return list(order_of(targets, route, 0.0, lambda: 0.5))


@pytest.mark.parametrize(
    ("down", "expected"),
    [
        (set(), [0, 1, 2]),
        ({("a", None)}, [1, 2, 0]),
        ({("a", "x")}, [1, 2, 0]),
        ({("a", "y")}, [0, 1, 2]),
        ({("b", None)}, [0, 2, 1]),
        ({("a", None), ("b", None)}, [2, 0, 1]),
        ({("a", None), ("b", None), ("c", None)}, [0, 1, 2]),
        ({("z", None)}, [0, 1, 2]),
    ],
)
def test_deployment_that_is_down_comes_last_in_any_group(
    down: set[tuple[str, str | None]], expected: list[int]
) -> None:
    assert order(A, B, C, down=down) == expected


def test_balance_holds_among_those_that_are_up_and_among_the_others() -> None:
    A.deployment.gates.in_flight = 2
    try:
        assert order(A, B, C, down=set(), balance="least_loaded") == [1, 0, 2]
        assert order(A, B, C, down={("c", None)}, balance="least_loaded") == [1, 0, 2]
        assert order(A, B, C, down={("a", None), ("b", None)}, balance="least_loaded") == [2, 1, 0]
    finally:
        A.deployment.gates.in_flight = 0


async def test_deployment_that_is_down_is_tried_when_no_other_answers() -> None:
    once = RetrySettings(max_attempts=1)
    targets = (new_target("a/x", retry=once), new_target("b/x", retry=once))
    played = play(SERVER_ERROR, OK, targets=targets)
    assert played.call.route is not None
    played.call.route.down.keys = frozenset({("a", None)})
    await played.serves()
    assert played.script.transcript == ["asked b/x", "asked a/x"]
