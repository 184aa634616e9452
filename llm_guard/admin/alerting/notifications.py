"""Notices of alerts: one for all alerts with the same cause when they fire, and one when the last of them resolves. In
a fleet one gateway sends them (`webhooks.notice_sharing`).

`admin.alerting.alerts` fires and resolves alerts, `webhooks.queue` sends notices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Protocol

from llm_guard.admin.alerting.raised_alert import RaisedAlert
from llm_guard.resilience.alerts.alert import Severity, rank
from llm_guard.resilience.causes.cause import IncidentCause
from llm_guard.webhooks.notice_sharing import NoticeSharing, NoticeState
from llm_guard.webhooks.payloads import RESENT_EVERY_S, Notice, NoticeAlert, plain

IsSilenced = Callable[[RaisedAlert], bool]

_ENDED_KEPT_S = 5.0
"""Seconds for which the other gateways of a fleet can read that a notice has ended."""


class NoticeReceiver(Protocol):
    """Receiver of notices, implemented by `webhooks.queue`."""

    def tell(self, notice: Notice) -> None: ...
    def remind(self, notice: Notice) -> None: ...
    def undelivered(self) -> AbstractSet[str]: ...


@dataclass(slots=True)
class _Group:
    """Alerts with one cause, from the first that fires to the last that resolves."""

    id: str
    began_at: float
    members: dict[tuple[str, str], RaisedAlert] = field(default_factory=dict)
    """Alerts by rule and subject, so that alerts that fire again and again do not fill it."""
    told: Severity | None = None
    """Highest severity that was sent; None: nothing was sent yet."""
    lead: RaisedAlert | None = None
    """The alert that stands for the others in the notice."""
    has_news: bool = False
    """An alert has joined since the last notice."""
    worst: Severity | None = None
    """Highest severity of the alerts that fire and are not silenced."""
    ended_at: float = 0.0
    """When the last alert resolved."""
    ended_wall: float = 0.0
    is_over: bool = False
    """The notice of the end was sent."""

    def firing(self) -> list[RaisedAlert]:
        return [raised for raised in self.members.values() if raised.resolved_at is None]

    def note_sent(self, state: NoticeState) -> None:
        """Takes over a notice that another gateway knows to be sent."""
        if self.told is None:
            self.id, self.told, self.has_news = state.id, state.told, False
            for raised in self.members.values():
                raised.incident = self.id
        elif self.id == state.id and state.told is not None:
            self.told = _more_severe(self.told, state.told)


class Notifications:
    """Decides which notices are sent, and when."""

    def __init__(self, receiver: NoticeReceiver, sharing: NoticeSharing) -> None:
        self._receiver = receiver
        self._sharing = sharing
        self._groups: dict[IncidentCause, _Group] = {}
        self._ended: dict[IncidentCause, _Group] = {}
        """Those with a notice that has ended lately, or that another gateway may have to end."""
        self._remind_at = float("-inf")

    def add(self, raised: RaisedAlert, now: float) -> None:
        """Adds an alert that has fired, or one of an earlier process: to those with the same cause, if any fires."""
        group = self._groups.get(raised.cause)
        if group is None:
            group = self._groups[raised.cause] = _Group(raised.incident, now)
        raised.incident = group.id
        group.members[raised.alert, raised.subject] = raised
        group.has_news = True
        if raised.is_told:  # by an earlier process
            group.told = raised.severity if group.told is None else _more_severe(group.told, raised.severity)

    def resolve(self, raised: RaisedAlert, now: float, wall: float) -> None:
        """Sends the notice of the end once the last alert has resolved. Silences do not hold it back: an incident that
        the first notice opened elsewhere must not stay open."""
        group = self._groups.get(raised.cause)
        if group is None or group.firing():
            return
        del self._groups[raised.cause]
        if group.told is None:
            return
        earlier = self._ended.pop(raised.cause, None)
        if earlier is not None and not earlier.is_over:
            self._send_end(earlier)
        group.ended_at, group.ended_wall = now, wall
        self._ended[raised.cause] = group
        self._end(raised.cause, group, now)

    def send(self, now: float, wall: float, wait_s: float, is_silenced: IsSilenced) -> None:
        """Sends what is due: the first notice `wait_s` seconds after the first alert, another one only when a more
        severe alert has joined, and reminders. Silenced alerts are left out until the silence ends."""
        is_reminding = now >= self._remind_at
        if is_reminding:
            self._remind_at = now + RESENT_EVERY_S
        for cause, group in tuple(self._ended.items()):
            self._end(cause, group, now)
        for cause, group in self._groups.items():
            audible = [raised for raised in group.firing() if not is_silenced(raised)]
            group.worst = _worst(audible).severity if audible else None
            turn = self._sharing.turn(cause)
            if turn.sent is not None:
                group.note_sent(turn.sent)
            if not audible:
                continue
            if turn.is_ours:
                self._send_due(group, audible, now, wall, wait_s, is_silenced, is_reminding)
            if group.told is not None:
                for raised in audible:
                    raised.is_told = True

    def states(self) -> Mapping[IncidentCause, NoticeState]:
        """Returns what the other gateways of a fleet should know of the notices. An undelivered one counts as not
        sent."""
        if not self._groups and not self._ended:
            return {}
        undelivered = self._receiver.undelivered()
        ended = {cause: NoticeState(group.id, group.told, None, group.is_over) for cause, group in self._ended.items()}
        return ended | {
            cause: NoticeState(group.id, None if group.id in undelivered else group.told, group.worst)
            for cause, group in self._groups.items()
        }

    def told(self, wall: float, is_silenced: IsSilenced) -> list[Notice]:
        """Returns the notices that were sent about firing alerts that are not silenced, for a webhook added by a
        reload."""
        notices = []
        for cause, group in self._groups.items():
            if not self._sharing.turn(cause).is_ours:
                continue
            audible = [raised for raised in group.firing() if raised.is_told and not is_silenced(raised)]
            if group.told is not None and audible:
                notices.append(_notice(group, "firing", _worst(audible), audible, group.told, wall))
        return notices

    def undelivered(self) -> AbstractSet[str]:
        """Returns the ids of undelivered notices."""
        return self._receiver.undelivered()

    def _send_due(
        self,
        group: _Group,
        audible: list[RaisedAlert],
        now: float,
        wall: float,
        wait_s: float,
        is_silenced: IsSilenced,
        is_reminding: bool,
    ) -> None:
        worst = _worst(audible)
        is_first = group.told is None and now - group.began_at >= wait_s
        if is_first or (group.told is not None and rank(worst.severity) < rank(group.told)):
            group.told, group.lead, group.has_news = worst.severity, worst, False
            self._receiver.tell(_notice(group, "firing", worst, audible, worst.severity, wall))
        elif group.told is not None and (is_reminding or group.has_news):
            group.has_news = False
            known = [raised for raised in group.members.values() if not is_silenced(raised)]
            self._receiver.remind(_notice(group, "firing", group.lead or worst, known, group.told, wall))

    def _end(self, cause: IncidentCause, group: _Group, now: float) -> None:
        """Sends the notice of the end, unless another gateway has sent it, or knows of the notice and must do so."""
        turn = self._sharing.turn(cause)
        theirs = [state for state in turn.others if state.id == group.id]
        goes_on = any(state.worst is not None for state in theirs)
        if any(state.is_over for state in theirs):
            group.is_over = True
        if not group.is_over and not goes_on and (turn.is_ours or not theirs):
            self._send_end(group)
        if (group.is_over or goes_on) and now - group.ended_at >= _ENDED_KEPT_S:
            del self._ended[cause]

    def _send_end(self, group: _Group) -> None:
        group.is_over = True
        members = [*group.members.values()]
        told = [member for member in members if member.is_told] or members
        if group.told is not None:
            lead = group.lead or _worst(told)
            self._receiver.tell(_notice(group, "resolved", lead, told, group.told, group.ended_wall))


def _worst(alerts: Iterable[RaisedAlert]) -> RaisedAlert:
    """Returns the most severe alert, of equally severe ones the first."""
    return min(alerts, key=lambda raised: rank(raised.severity))


def _notice(
    group: _Group, state: str, lead: RaisedAlert, alerts: list[RaisedAlert], severity: Severity, wall: float
) -> Notice:  # fmt: skip
    finding = lead.finding
    return Notice(
        group.id,
        "resolved" if state == "resolved" else "firing",
        lead.alert,
        severity,
        lead.subject,
        plain(finding.summary),
        round(finding.value, 6),
        round(finding.threshold, 6),
        min(raised.since for raised in (lead, *alerts)),
        wall,
        lead.cause.key,
        tuple(_listed(raised) for raised in alerts if raised is not lead),
    )


def _listed(raised: RaisedAlert) -> NoticeAlert:
    finding = raised.finding
    return NoticeAlert(
        raised.alert,
        raised.severity,
        raised.subject,
        plain(finding.summary),
        round(finding.value, 6),
        round(finding.threshold, 6),
        raised.since,
        raised.resolved_at,
    )


def _more_severe(one: Severity, other: Severity) -> Severity:
    return one if rank(one) <= rank(other) else other
