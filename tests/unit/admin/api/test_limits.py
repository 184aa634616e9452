from __future__ import annotations

from typing import Any

import msgspec
import pytest

from llm_guard.admin.api.limits import LimitApi, LimitsOf, LimitsView, SetLimits
from llm_guard.admin.audit.changes import Changes
from llm_guard.admin.events.event_log import EventLog
from llm_guard.admin.http.endpoint import AdminRequest, Refused
from llm_guard.routing.deployment import Deployment
from tests.fakes.clock import ManualClock
from tests.unit.admin.audit.test_changes import InMemory
from tests.unit.admin.overrides.override_world import ActedOn, config, deployment


class World(ActedOn):
    """Two names under a pattern, and another deployment."""

    def __init__(self) -> None:
        super().__init__(deployment("a/m-*", "m-1"), deployment("a/m-*", "m-2"), deployment("b/x"))
        clock = ManualClock()
        self.trail = InMemory()
        self.config = config(x=[{"upstream": "b"}], **{"m-*": [{"upstream": "a"}]})
        self.pages = LimitApi(self.config, self.gateway, Changes(self.trail, EventLog(clock), clock), clock)

    async def ask(self, path: str, body: object = None, method: str = "POST") -> Any:
        page = next(endpoint for endpoint in self.pages.pages() if (endpoint.method, endpoint.path) == (method, path))
        assert page.give is not None
        return msgspec.json.decode((await page.give(AdminRequest(method, path, {}, body=body))).body)

    async def set(self, deployment: str = "a/m-*", **said: Any) -> list[LimitsView]:
        said_ = SetLimits(reason="an outage", deployment=deployment, **said)
        return msgspec.convert((await self.ask("/admin/limits", said_))["now"], list[LimitsView])

    async def reset(self, deployment: str = "a/m-*") -> dict[str, Any]:
        answer: dict[str, Any] = await self.ask("/admin/limits/reset", LimitsOf(reason="over", deployment=deployment))
        return answer


def settings(each: Deployment) -> tuple[float, float, Any, int]:
    budget, capacity = each.budget.settings, each.gates.settings
    return budget.ratio, budget.min_per_second, capacity.concurrency, capacity.max_queue


async def test_limits_of_a_label_are_those_of_every_name_under_it() -> None:
    world = World()
    gate = world.all[0].gates.of("", 1000.0)
    (now,) = await world.set(retry_ratio=0.0, concurrency=3)
    assert [settings(deployment) for deployment in world.all] == [(0.0, 10.0, 3, 1000)] * 2 + [(0.2, 10.0, None, 1000)]
    assert gate.settings.concurrency == 3
    assert (now.deployment, now.retry_ratio, now.concurrency, now.is_changed) == ("a/m-*", 0.0, 3, True)
    assert world.let_in_count == 1
    assert world.trail.entries[0].detail == {"retry_ratio": 0.0, "concurrency": 3}


async def test_later_limit_adds_to_the_earlier_one() -> None:
    world = World()
    await world.set(concurrency=3)
    await world.set(max_queue=7, concurrency=None)
    await world.set(min_per_second=1, max_ratio=0.5)
    assert settings(world.all[0]) == (0.2, 1.0, None, 7)
    assert world.all[0].budget.settings.max_ratio == 0.5


async def test_reset_restores_the_configured_limits() -> None:
    world = World()
    await world.set(concurrency=3)
    await world.set(concurrency="adaptive")
    answer = await world.reset()
    assert settings(world.all[0]) == (0.2, 10.0, None, 1000)
    assert (answer["now"][0]["is_changed"], answer["warnings"]) == (False, [])
    assert (await world.reset())["warnings"] == ["the limits of a/m-* were those of the config"]


async def test_name_that_is_requested_later_has_the_same_limits() -> None:
    world = World()
    await world.set(concurrency=3)
    world.all.append(late := deployment("a/m-*", "m-3"))
    world.pages.apply_overrides(late)
    assert settings(late)[2] == 3
    await world.reset()
    assert settings(late)[2] is None


async def test_names_that_a_pattern_has_dropped_are_not_stored() -> None:
    world = World()
    await world.set(concurrency=3)
    world.all = world.all[1:]
    world.pages.look(0.0)
    assert world.pages._before.keys() == {world.all[0]}


async def test_reload_ends_it_before_the_new_settings_hold_and_that_is_written_down() -> None:
    world = World()
    await world.set(concurrency=3)
    world.pages.adopt(config(other=[{"upstream": "b"}]))
    assert settings(world.all[0]) == (0.2, 10.0, None, 1000)
    ended = world.trail.entries[-1]
    assert (ended.actor, ended.action, ended.detail) == ("reload", "limits.reset", {"was": {"concurrency": 3}})
    with pytest.raises(Refused, match="no deployment is named"):
        await world.set(concurrency=3)


@pytest.mark.parametrize(
    ("said", "word"),
    [
        ({}, "send at least one of"),
        ({"retry_ratio": 1.5}, "retry_ratio"),
        ({"min_per_second": float("inf")}, "min_per_second"),
        ({"max_ratio": -1.0}, "max_ratio"),
        ({"concurrency": 0}, "concurrency"),
        ({"max_queue": 0}, "max_queue"),
        ({"concurrency": 3, "max_queue": 0}, "max_queue"),
    ],
)
async def test_ranges_are_the_configs_and_nothing_is_changed_by_half(said: dict[str, Any], word: str) -> None:
    world = World()
    with pytest.raises(Refused, match=word) as refused:
        await world.set(**said)
    assert refused.value.status == 422
    assert settings(world.all[0]) == (0.2, 10.0, None, 1000)
    assert world.trail.entries == []


async def test_all_limits_are_listed_once_for_a_label() -> None:
    world = World()
    listed = await world.ask("/admin/limits", method="GET")
    assert [each["deployment"] for each in listed] == ["a/m-*", "b/x"]
    assert [each["tokens"] for each in listed] == [200.0, 100.0]
