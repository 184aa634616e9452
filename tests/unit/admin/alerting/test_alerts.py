from __future__ import annotations

from structlog.testing import capture_logs

from llm_guard.resilience.alerts.alert import QUIET_S
from llm_guard.resilience.alerts.silences import Silence
from llm_guard.webhooks.payloads import RESENT_EVERY_S
from tests.unit.admin.alerting.alert_world import World, config_of

FIRING, RESOLVED = ("firing", "success_rate", "gpt"), ("resolved", "success_rate", "gpt")


def silence(world: World, seconds: float, alert: str = "success_rate", subject: str | None = None) -> None:
    assert world.alerts.try_silence(Silence(alert, subject, world.clock.now() + seconds, "known", "anna"))


def failing(world: World) -> World:
    world.end_calls("gpt", bad=100)
    world.pass_s(1)
    return world


def recover(world: World) -> None:
    world.end_calls("gpt", good=100)
    world.pass_s(62)


def test_alert_is_notified_once_when_it_fires_and_once_when_it_resolves() -> None:
    world = failing(World())
    world.pass_s(300)
    assert world.told.said() == [FIRING]
    recover(world)
    world.pass_s(300)
    assert world.told.said() == [FIRING, RESOLVED]


def test_firing_and_resolving_of_one_alert_have_one_id_and_the_next_has_another() -> None:
    world = failing(World())
    recover(world)
    failing(world)
    first, second, third = world.told.notices
    assert first.id == second.id != third.id
    assert first.since == second.since == first.at
    assert second.at > second.since


def test_notice_of_a_resolved_alert_has_its_current_and_former_state() -> None:
    world = failing(World())
    recover(world)
    assert world.told.notices[1].summary == (
        "gpt: 100 % of the last 100 calls succeeded (threshold 95 %); "
        "before: 0 % of the last 100 calls succeeded (threshold 95 %)"
    )
    assert world.told.notices[1].value == 0.0


def test_journal_log_and_count_have_each_change_once() -> None:
    world = World()
    with capture_logs() as lines:
        failing(world)
        recover(world)
    events = [event.facts for event in world.journal.since(0)[0]]
    assert [(each["state"], each["alert"], each["subject"]) for each in events] == [FIRING, RESOLVED]
    assert events[0] == {
        "state": "firing", "alert": "success_rate", "severity": "critical", "subject": "gpt", "value": 0.0,
        "threshold": 0.95, "summary": "gpt: 0 % of the last 100 calls succeeded (threshold 95 %)",
        "cause": "model:gpt",
    }  # fmt: skip
    assert [(line["event"], line["log_level"], line["state"]) for line in lines] == [
        ("alert", "warning", "firing"),
        ("alert", "info", "resolved"),
    ]
    assert world.alerts.counts()["success_rate", "critical"] == 1


def test_rules_that_never_fired_are_counted_as_such() -> None:
    counts = World(loop_lag="off", latency={"severity": "info"}).alerts.counts()
    assert counts["success_rate", "critical"] == 0
    assert counts["latency", "info"] == 0
    assert not any(alert == "loop_lag" for alert, _ in counts)


def test_firing_alert_shows_its_current_state() -> None:
    world = failing(World())
    world.end_calls("gpt", good=10)
    world.pass_s(1)
    (raised,) = world.alerts.firing()
    assert raised.finding.value == 0.1
    assert raised.finding.verdict == "bad"


def test_resolved_alerts_are_stored_newest_first_and_bounded() -> None:
    world = World(success_rate={"resolve_after": "0s"})
    for _ in range(120):
        failing(world)
        world.end_calls("gpt", good=100)
        world.pass_s(1)
    resolved = world.alerts.resolved()
    assert len(resolved) == 100
    assert resolved[0].since > resolved[1].since
    assert all(alert.resolved_at is not None for alert in resolved)


def test_alert_without_signals_states_that_when_it_resolves() -> None:
    world = failing(World())
    world.pass_s(QUIET_S)
    assert world.told.said() == [FIRING, RESOLVED]
    assert world.told.notices[1].summary.startswith("gpt: nothing new for 10 min; before: 0 % of the last 100 calls")


def test_healthy_subject_leaves_nothing() -> None:
    world = failing(World())
    recover(world)
    assert not world.alerts._watched


def test_numbers_are_evaluated_once_a_second() -> None:
    world = World()
    looks = 0

    def count(_now: float) -> list[object]:
        nonlocal looks
        looks += 1
        return []

    world.signals.look = count  # type: ignore[assignment,method-assign]
    for _ in range(40):
        world.clock.advance(0.25)
        world.look()
    assert looks == 10


# silences


def test_silence_suppresses_the_notice_but_not_the_alert() -> None:
    world = World()
    silence(world, 3600)
    failing(world)
    assert world.told.notices == []
    assert world.firing() == {("success_rate", "gpt")}
    assert world.alerts.is_silenced(world.alerts.firing()[0])
    assert world.alerts.counts()["success_rate", "critical"] == 1
    assert world.journal.last_id == 1
    recover(world)
    assert world.told.notices == []


def test_silenced_notice_is_sent_when_the_silence_ends() -> None:
    world = World()
    silence(world, 60)
    failing(world)
    world.pass_s(58)
    assert world.told.notices == []
    world.pass_s(2)
    assert world.told.said() == [FIRING]


def test_silenced_notice_is_sent_when_the_silence_is_removed() -> None:
    world = World()
    silence(world, 3600)
    failing(world)
    assert world.alerts.try_unsilence("success_rate", None) is not None
    world.pass_s(1)
    assert world.told.said() == [FIRING]


def test_end_of_a_notified_alert_is_notified_despite_a_silence() -> None:
    world = failing(World())
    silence(world, 3600)
    recover(world)
    assert world.told.said() == [FIRING, RESOLVED], "what it has opened elsewhere must not stay open"


def test_silence_of_another_subject_suppresses_nothing() -> None:
    world = World()
    silence(world, 3600, subject="small")
    failing(world)
    assert world.told.said() == [FIRING]


# reminders


def test_firing_alert_is_repeated_every_minute_unless_it_is_silenced() -> None:
    world = failing(World())
    world.pass_s(3 * RESENT_EVERY_S)
    assert len(world.told.reminders) == 3
    assert {reminder.id for reminder in world.told.reminders} == {world.told.notices[0].id}
    silence(world, 120)
    world.pass_s(120)
    assert len(world.told.reminders) == 3


# reload


def test_disabled_rule_resolves_its_alerts() -> None:
    world = failing(World())
    world.alerts.adopt(config_of(alerts={"success_rate": "off"}).ops.alerts)
    assert world.told.said() == [FIRING, RESOLVED]
    assert world.told.notices[1].summary.startswith("gpt: the rule was turned off; before: 0 % of the last 100 calls")
    assert world.firing() == set()
    failing(world)
    assert len(world.told.notices) == 2
    world.alerts.adopt(world.config.ops.alerts)
    failing(world)
    assert world.told.said() == [FIRING, RESOLVED, FIRING]


def test_reload_changes_thresholds_and_severities_of_firing_alerts() -> None:
    world = World()
    world.alerts.adopt(config_of(alerts={"success_rate": {"below": 0.5, "severity": "info"}}).ops.alerts)
    world.end_calls("gpt", good=70, bad=30)
    world.pass_s(1)
    assert world.firing() == set()
    world.end_calls("gpt", bad=60)
    world.pass_s(1)
    assert [alert.severity for alert in world.alerts.firing()] == ["info"]
    assert world.alerts.counts()["success_rate", "info"] == 1


def test_alert_continues_over_a_reload() -> None:
    world = failing(World())
    world.alerts.adopt(world.config.ops.alerts)
    world.pass_s(5)
    assert world.told.said() == [FIRING]
