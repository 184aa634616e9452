"""Alerts with one cause: one notice when they fire, one when the last resolves."""

from __future__ import annotations

from typing import Any

from llm_guard.resilience.alerts.silences import Silence
from tests.unit.admin.alerting.alert_world import World

OUTAGE = {"success_rate": {"below": 0.95}, "failure_spike": "off", "budget_exhausted": "off"}


def world_of(**alerts: Any) -> World:
    return World(**{**OUTAGE, **alerts})


def test_alerts_of_one_cause_within_the_wait_are_one_notice_with_the_most_severe_first() -> None:
    world = world_of(group_wait="5s")
    world.break_down("one/small")
    world.pass_s(2)
    world.end_calls("small", bad=100)
    world.pass_s(2)
    assert world.told.notices == []
    world.pass_s(2)
    (notice,) = world.told.notices
    assert (notice.alert, notice.severity, notice.subject, notice.cause) == (
        "success_rate", "critical", "small", "outage:one",
    )  # fmt: skip
    assert [(other.alert, other.subject) for other in notice.others] == [("breaker_open", "one/small")]
    assert notice.since < notice.at - 4


def test_end_is_notified_once_when_the_last_alert_resolves() -> None:
    world = world_of(group_wait="2s")
    world.break_down("one/small")
    world.end_calls("small", bad=100)
    world.pass_s(5)
    world.repair("one/small")
    world.pass_s(40)  # the breaker's alert resolves, the other one fires
    assert [notice.state for notice in world.told.notices] == ["firing"]
    world.end_calls("small", good=100)
    world.pass_s(70)
    first, last = world.told.notices
    assert (last.state, last.id, last.cause, last.alert) == ("resolved", first.id, first.cause, first.alert)
    assert [other.resolved_at is not None for other in last.others] == [True]


def test_alert_that_joins_later_is_silent_unless_it_is_more_severe() -> None:
    world = world_of()
    world.break_down("one/gpt")
    world.pass_s(1)
    world.break_down("one/small")
    world.pass_s(1)
    assert world.told.said() == [("firing", "breaker_open", "one/gpt")]
    assert [len(reminder.others) for reminder in world.told.reminders] == [1], "an Alertmanager gets it at once"
    world.end_calls("small", bad=100)
    world.pass_s(1)
    first, second = world.told.notices
    assert (second.id, second.severity, second.alert) == (first.id, "critical", "success_rate")
    assert len(second.others) == 2
    world.pass_s(300)
    assert len(world.told.notices) == 2


def test_alerts_of_two_upstreams_are_two_notices() -> None:
    world = world_of()
    world.break_down("one/gpt")
    world.break_down("two/gpt")
    world.pass_s(1)
    assert {notice.cause for notice in world.told.notices} == {"outage:one", "outage:two"}


def test_alert_that_resolves_within_the_wait_is_not_sent() -> None:
    world = world_of(group_wait="10s", breaker_open={"resolve_after": "0s"})
    world.break_down("one/gpt")
    world.pass_s(2)
    world.repair("one/gpt")
    world.pass_s(60)
    assert world.told.notices == []


def test_silenced_alert_of_a_group_is_left_out_and_does_not_raise_its_severity() -> None:
    world = world_of()
    assert world.alerts.try_silence(Silence("success_rate", None, world.clock.now() + 3600, "known", "anna"))
    world.break_down("one/small")
    world.end_calls("small", bad=100)
    world.pass_s(5)
    (notice,) = world.told.notices
    assert (notice.alert, notice.severity, notice.others) == ("breaker_open", "info", ())


def test_group_continues_over_a_restart_and_its_end_is_sent_once() -> None:
    world = world_of()
    world.break_down("one/gpt")
    world.break_down("one/small")
    world.pass_s(1)
    (fired,) = world.told.notices
    next_ = world_of()
    next_.clock.advance(3600)
    next_.alerts.recall(world.alerts.kept())
    next_.pass_s(40)
    (resolved,) = next_.told.notices
    assert (resolved.state, resolved.id, len(resolved.others)) == ("resolved", fired.id, 1)


def test_flapping_alert_takes_one_place_in_its_group() -> None:
    world = world_of(breaker_open={"resolve_after": "0s"})
    world.end_calls("small", bad=100)
    world.break_down("one/small")
    for _ in range(20):
        world.pass_s(1)
        world.repair("one/small")
        world.pass_s(1)
        world.break_down("one/small")
    (group,) = (group for group in world.alerts._notifications._groups.values() if group.members)
    assert len(group.members) == 2
