from __future__ import annotations

import pytest

from llm_guard.resilience.alerts.alert import QUIET_S, Alert, RuleFinding, RuleSettings, RuleVerdict, rank

SETTINGS = RuleSettings(for_=10.0, resolve_after=60.0)


def found(verdict: RuleVerdict) -> RuleFinding:
    return RuleFinding(verdict, 0.5, 0.95, verdict)


def firing(now: float = 0.0) -> Alert:
    alert = Alert()
    assert alert.note(found("bad"), RuleSettings(for_=0.0), now) == "fired"
    return alert


def test_condition_that_lasts_long_enough_fires_once() -> None:
    alert = Alert()
    assert [alert.note(found("bad"), SETTINGS, now) for now in (0, 5, 9.9, 10, 11, 100)] == [
        None, None, None, "fired", None, None,
    ]  # fmt: skip
    assert alert.is_firing


@pytest.mark.parametrize("verdict", ["between", "good"])
def test_interruption_restarts_its_wait(verdict: RuleVerdict) -> None:
    alert = Alert()
    alert.note(found("bad"), SETTINGS, 0)
    alert.note(found(verdict), SETTINGS, 9)
    assert alert.is_idle
    assert alert.note(found("bad"), SETTINGS, 12) is None
    assert alert.note(found("bad"), SETTINGS, 22) == "fired"


def test_recovery_that_lasts_long_enough_resolves_once() -> None:
    alert = firing()
    assert [alert.note(found("good"), SETTINGS, now) for now in (1, 60, 61, 62)] == [None, None, "resolved", None]
    assert alert.is_idle


@pytest.mark.parametrize("verdict", ["between", "bad"])
def test_value_between_the_thresholds_does_not_resolve(verdict: RuleVerdict) -> None:
    alert = firing()
    alert.note(found("good"), SETTINGS, 1)
    alert.note(found(verdict), SETTINGS, 59)
    assert alert.note(found("good"), SETTINGS, 70) is None
    assert alert.note(found("good"), SETTINGS, 129) is None
    assert alert.note(found("good"), SETTINGS, 130) == "resolved"


def test_last_finding_stays_without_new_evidence() -> None:
    alert = Alert()
    alert.note(found("bad"), SETTINGS, 0)
    assert alert.note(None, SETTINGS, 10) == "fired"
    alert.note(found("good"), SETTINGS, 20)
    assert alert.note(None, SETTINGS, 79) is None
    assert alert.note(None, SETTINGS, 80) == "resolved"


def test_alert_without_signals_resolves_after_ten_minutes() -> None:
    alert = firing()
    assert alert.note(None, SETTINGS, QUIET_S - 1) is None
    assert alert.note(None, SETTINGS, QUIET_S) == "resolved"
    assert alert.is_idle


def test_alert_that_never_fired_is_forgotten_silently() -> None:
    alert = Alert()
    alert.note(found("bad"), RuleSettings(for_=3600.0), 0)
    assert not alert.is_idle
    assert alert.note(None, RuleSettings(for_=3600.0), QUIET_S) is None
    assert alert.is_idle


def test_alert_fires_again_after_it_has_resolved() -> None:
    alert = firing()
    assert alert.note(found("good"), RuleSettings(resolve_after=0.0), 1) == "resolved"
    assert alert.note(found("bad"), RuleSettings(for_=0.0), 2) == "fired"


def test_snapshot_has_duration_and_cause() -> None:
    alert = Alert()
    assert alert.snapshot(0).lasts_s is None
    alert.note(found("bad"), SETTINGS, 0)
    assert (alert.snapshot(4).is_firing, alert.snapshot(4).lasts_s) == (False, 4)
    alert.note(found("bad"), SETTINGS, 10)
    assert (alert.snapshot(15).is_firing, alert.snapshot(15).lasts_s) == (True, 5)
    assert alert.snapshot(15).finding == found("bad")


def test_end_reports_a_resolution_only_if_it_fired() -> None:
    assert firing().end() == "resolved"
    assert Alert().end() is None


def test_critical_is_the_gravest() -> None:
    assert sorted(["info", "critical", "warning"], key=rank) == ["critical", "warning", "info"]  # type: ignore[arg-type]
