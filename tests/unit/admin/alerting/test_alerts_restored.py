"""Alerts across a restart: the first world saves its state, and the second restores it."""

from __future__ import annotations

from typing import Any

from llm_guard.resilience.alerts.alert import QUIET_S
from llm_guard.resilience.alerts.silences import Silence
from tests.unit.admin.alerting.alert_world import World

OPEN = ("breaker_open", "one/gpt")
FIRING, RESOLVED = ("firing", *OPEN), ("resolved", *OPEN)


def broken() -> World:
    """Returns a world with a firing alert."""
    world = World()
    world.break_down("one/gpt")
    world.pass_s(1)
    assert world.told.said() == [FIRING]
    return world


def after(world: World, **alerts: Any) -> World:
    """Returns the world after a restart, an hour later."""
    next_ = World(**alerts)
    next_.clock.advance(3600)
    next_.alerts.recall(world.alerts.kept())
    return next_


def test_alert_that_is_still_true_is_not_notified_again_and_has_its_old_start() -> None:
    world = broken()
    next_ = after(world)
    assert [(alert.id, alert.since) for alert in next_.alerts.firing()] == [
        (alert.id, alert.since) for alert in world.alerts.firing()
    ]
    next_.break_down("one/gpt")
    next_.pass_s(300)
    assert next_.told.said() == []
    assert next_.alerts.counts()["breaker_open", "info"] == 0
    next_.repair("one/gpt")
    next_.pass_s(31)
    (resolved,), (firing,) = next_.told.notices, world.told.notices
    assert (resolved.state, resolved.id, resolved.since) == ("resolved", firing.id, firing.since)


def test_alert_that_is_no_longer_true_is_resolved_once_after_resolve_after() -> None:
    next_ = after(broken())
    next_.pass_s(30)
    assert next_.told.said() == []
    next_.pass_s(1)
    assert next_.told.said() == [RESOLVED]
    before = "its breaker is open (2 failures in a row)"
    assert next_.told.notices[0].summary == f"one/gpt: its breaker is closed; before: {before}"
    next_.pass_s(300)
    assert next_.told.said() == [RESOLVED]


def test_alert_whose_subject_is_gone_resolves_when_quiet() -> None:
    world = World()
    world.end_calls("gpt", bad=100)
    world.pass_s(1)
    next_ = after(world)
    next_.pass_s(QUIET_S - 1)
    assert next_.told.said() == []
    next_.pass_s(2)
    assert next_.told.said() == [("resolved", "success_rate", "gpt")]


def test_alert_whose_rule_is_off_now_is_resolved_at_once() -> None:
    assert after(broken(), breaker_open="off").told.said() == [RESOLVED]


def test_alertmanager_gets_continuing_alerts_at_once() -> None:
    next_ = after(broken())
    assert [(reminder.state, reminder.subject) for reminder in next_.told.reminders] == [("firing", "one/gpt")]


def test_undelivered_alert_is_notified_by_the_next_process_and_so_is_its_end() -> None:
    world = broken()
    world.told.underway = {world.told.notices[0].id}
    next_ = after(world)
    assert next_.told.said() == [FIRING]
    next_.pass_s(31)
    assert next_.told.said() == [FIRING, RESOLVED]


def test_undelivered_end_is_notified_by_the_next_process() -> None:
    world = broken()
    world.repair("one/gpt")
    world.pass_s(31)
    assert world.told.said() == [FIRING, RESOLVED]
    assert world.alerts.kept() == []
    world.told.underway = {world.told.notices[0].id}
    next_ = after(world)
    next_.pass_s(31)
    assert next_.told.said() == [RESOLVED]


def test_silenced_alert_stays_untold_over_a_restart() -> None:
    world = World()
    silence = Silence("breaker_open", None, world.clock.now() + 9000, "known", "anna")
    assert world.alerts.try_silence(silence)
    world.break_down("one/gpt")
    world.pass_s(1)
    next_ = World()
    assert next_.alerts.try_silence(silence)
    next_.alerts.recall(world.alerts.kept())
    next_.pass_s(31)
    assert next_.told.said() == []
    assert next_.alerts.firing() == []


def test_stored_state_changes_only_with_notices() -> None:
    world = World()
    world.end_calls("gpt", bad=100)
    world.pass_s(1)
    kept = world.alerts.kept()
    world.end_calls("gpt", good=1)
    world.pass_s(1)
    assert world.alerts.firing()[0].finding.value == 0.01
    assert world.alerts.kept() == kept


def test_rule_that_this_version_does_not_know_is_left_out() -> None:
    world = broken()
    (kept,) = world.alerts.kept()
    next_ = World()
    next_.alerts.recall([type(kept)("1", "unheard_of", "x", "info", 1.0, "", 0.0, 0.0, True), kept])
    assert next_.firing() == {OPEN}
