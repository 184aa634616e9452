"""Fires and resolves alerts, and applies silences.

`admin.alerting.signals` finds the values, `resilience.alerts.alert` decides when they are an alert,
`admin.alerting.notifications` notifies the webhooks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from secrets import token_hex
from typing import Protocol

import structlog

from llm_guard.admin.alerting.notifications import NoticeReceiver, Notifications
from llm_guard.admin.alerting.raised_alert import RaisedAlert, SavedAlert, saved
from llm_guard.admin.alerting.signals import SubjectFinding
from llm_guard.admin.events.event_log import EventLog
from llm_guard.clock import Clock
from llm_guard.config import AlertRules
from llm_guard.resilience.alerts.alert import QUIET_S, Alert, RuleFinding, RuleSettings, Severity
from llm_guard.resilience.alerts.rules import RULES, RuleName, seconds
from llm_guard.resilience.alerts.silences import Silence, Silences
from llm_guard.resilience.causes.cause import IncidentCause, parsed
from llm_guard.webhooks.notice_sharing import NoticeSharing, NoticeState
from llm_guard.webhooks.payloads import Notice, plain

_log = structlog.get_logger("llm_guard.admin.alerting.alerts")

_PERIOD_S = 1.0
_RESOLVED_KEPT = 100

_Key = tuple[RuleName, str]


class FindingSource(Protocol):
    """Source of the findings that alerts are made of."""

    def adopt(self, rules: AlertRules) -> None: ...
    def note_lag(self) -> None: ...
    def look(self, now: float) -> Iterator[SubjectFinding]: ...


class CauseSource(Protocol):
    """Finds the cause of an alert that fires, implemented by `admin.incidents.alert_causes`."""

    def of(self, rule: RuleName, subject: str) -> IncidentCause: ...


@dataclass(slots=True, eq=False)
class _Watched:
    alert: Alert = field(default_factory=Alert)
    raised: RaisedAlert | None = None


class Alerts:
    """All alerts of a process. `look` is called by its watch."""

    def __init__(
        self,
        rules: AlertRules,
        signals: FindingSource,
        causes: CauseSource,
        told: NoticeReceiver,
        sharing: NoticeSharing,
        journal: EventLog,
        clock: Clock,
    ) -> None:
        self._rules = rules
        self._signals = signals
        self._causes = causes
        self._notifications = Notifications(told, sharing)
        self._journal = journal
        self._clock = clock
        self._watched: dict[_Key, _Watched] = {}
        """Only alerts that fire or are pending."""
        self._resolved: deque[RaisedAlert] = deque(maxlen=_RESOLVED_KEPT)
        self._counts: dict[tuple[str, str], int] = {}
        self._silences = Silences()
        self._raised = 0
        self._process = token_hex(3)
        """Part of the ids of alerts: gateways that notify the same receiver must not use one id twice."""
        self._look_at = float("-inf")
        self._count_from_zero()

    def look(self, now: float) -> None:
        """Evaluates all rules, at most once a second."""
        self._signals.note_lag()
        if now < self._look_at:
            return
        self._look_at = now + _PERIOD_S
        quiet = set(self._watched)
        for rule, subject, finding in self._signals.look(now):
            quiet.discard((rule, subject))
            self._take(rule, subject, finding, now)
        for rule, subject in quiet:
            self._take(rule, subject, None, now)
        self._tell(now)

    def adopt(self, rules: AlertRules) -> None:
        """Applies new rules. Alerts of a rule that is now off are resolved."""
        self._rules = rules
        self._signals.adopt(rules)
        self._count_from_zero()
        for (rule, subject), watched in tuple(self._watched.items()):
            if rules.of(rule) is None:
                self._resolve(watched, f"{subject}: the rule was turned off")
                del self._watched[rule, subject]

    def counts(self) -> Mapping[tuple[str, str], int]:
        """Returns how often each alert has fired since the start, by alert and severity. Includes zeros of rules that
        are on."""
        return self._counts

    def firing(self) -> list[RaisedAlert]:
        """Returns the firing alerts, in the order in which they were first bad."""
        return [watched.raised for watched in self._watched.values() if watched.raised is not None]

    def resolved(self) -> list[RaisedAlert]:
        """Returns the last hundred resolved alerts, newest first."""
        return [*reversed(self._resolved)]

    def rules(self) -> list[tuple[RuleName, RuleSettings | None]]:
        """Returns each rule with its settings, None if it is off."""
        return [(name, self._rules.of(name)) for name in RULES]

    def is_silenced(self, raised: RaisedAlert) -> bool:
        return self._silences.covers(raised.alert, raised.subject, self._clock.now())

    def told(self) -> list[Notice]:
        """Returns notices of firing alerts that were sent and are not silenced, for a webhook added by a reload."""
        return self._notifications.told(self._clock.wall(), self.is_silenced)

    def notice_states(self) -> Mapping[IncidentCause, NoticeState]:
        """Returns the state of the notices, for the other gateways of a fleet."""
        return self._notifications.states(self._clock.now())

    def kept(self) -> list[SavedAlert]:
        """Returns the firing alerts, and resolved ones with a notice that is still undelivered. An undelivered notice
        counts as not sent, so that the next process sends it."""
        undelivered = self._notifications.undelivered()
        resolved = [alert for alert in self._resolved if alert.is_told and alert.incident in undelivered]
        firing = ((alert, alert.is_told and alert.incident not in undelivered) for alert in self.firing())
        return [*(saved(alert, True) for alert in resolved), *(saved(alert, is_told) for alert, is_told in firing)]

    def recall(self, kept: Iterable[SavedAlert]) -> None:
        """Restores alerts of an earlier process. They fire until they are well for as long as their rule requires, and
        are not sent again."""
        now = self._clock.now()
        names: dict[str, RuleName] = {name: name for name in RULES}
        for alert in kept:
            if (rule := names.get(alert.alert)) is not None:
                finding = RuleFinding("bad", alert.value, alert.threshold, alert.summary)
                cause = parsed(alert.cause) or self._causes.of(rule, alert.subject)
                raised = RaisedAlert(
                    alert.id, rule, alert.subject, alert.severity, alert.since, finding, cause, alert.incident,
                    is_told=alert.is_told,
                )  # fmt: skip
                self._notifications.add(raised, now)
                watched = self._watched[rule, alert.subject] = _Watched(raised=raised)
                watched.alert.resume(finding, now)
        self._tell(now)
        self.adopt(self._rules)

    def try_silence(self, silence: Silence) -> bool:
        """Adds a silence. Returns False if there are too many."""
        return self._silences.try_add(silence, self._clock.now())

    def try_unsilence(self, alert: str, subject: str | None) -> Silence | None:
        """Removes a silence and returns it, None if there is none. What it held back is sent within a second."""
        return self._silences.try_remove(alert, subject, self._clock.now())

    def silences(self) -> list[Silence]:
        return [*self._silences.snapshot(self._clock.now())]

    def _take(self, rule: RuleName, subject: str, finding: RuleFinding | None, now: float) -> None:
        settings = self._rules.of(rule)
        watched = self._watched.get((rule, subject))
        if settings is None or (watched is None and (finding is None or finding.verdict != "bad")):
            return
        if watched is None:
            watched = self._watched[rule, subject] = _Watched()
        change = watched.alert.note(finding, settings, now)
        if watched.raised is not None and finding is not None and finding.verdict != "good":
            watched.raised.finding = finding  # a good value must not replace the one that raised it
        if change == "fired" and watched.alert.finding is not None:
            watched.raised = self._raise(rule, subject, settings.severity, watched.alert.finding, now)
        elif change == "resolved":
            match watched.alert.finding:
                case RuleFinding(verdict="good", summary=summary):
                    self._resolve(watched, summary)
                case _:
                    self._resolve(watched, f"{subject}: nothing new for {seconds(QUIET_S)}")
        if watched.alert.is_idle:
            del self._watched[rule, subject]

    def _raise(
        self, rule: RuleName, subject: str, severity: Severity, finding: RuleFinding, now: float
    ) -> RaisedAlert:  # fmt: skip
        self._raised += 1
        self._counts[rule, severity] = self._counts.get((rule, severity), 0) + 1
        wall = self._clock.wall()
        cause = self._causes.of(rule, subject)
        raised = RaisedAlert(
            f"{wall:.0f}-{self._raised}-{self._process}", rule, subject, severity, wall, finding, cause
        )
        self._notifications.add(raised, now)
        self._note(raised)
        return raised

    def _resolve(self, watched: _Watched, now: str) -> None:
        """Resolves an alert. `now`: a summary of the present state."""
        raised = watched.raised
        if raised is None:
            return
        before = raised.finding.summary.removeprefix(f"{raised.subject}: ")
        raised.finding = replace(raised.finding, summary=f"{now}; before: {before}")
        watched.raised = None
        raised.resolved_at = self._clock.wall()
        self._resolved.append(raised)
        self._note(raised)
        self._notifications.resolve(raised, self._clock.now(), raised.resolved_at)

    def _tell(self, now: float) -> None:
        self._notifications.send(now, self._clock.wall(), self._rules.group_wait, self.is_silenced)

    def _note(self, raised: RaisedAlert) -> None:
        is_firing, finding = raised.resolved_at is None, raised.finding
        facts: dict[str, str | float] = {
            "state": "firing" if is_firing else "resolved",
            "alert": raised.alert,
            "severity": raised.severity,
            "subject": raised.subject,
            "summary": plain(finding.summary),
            "value": round(finding.value, 6),
            "threshold": round(finding.threshold, 6),
            "cause": raised.cause.key,
        }
        self._journal.note("alert", **facts)
        (_log.warning if is_firing else _log.info)("alert", **facts)

    def _count_from_zero(self) -> None:
        for name, settings in self.rules():
            if settings is not None:
                self._counts.setdefault((name, settings.severity), 0)
