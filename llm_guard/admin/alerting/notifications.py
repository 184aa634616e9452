"""Notices of alerts: one for all alerts with the same cause when they fire, and one when the last of them resolves. In
a fleet one gateway sends them (`webhooks.notice_sharing`).

`admin.alerting.alerts` fires and resolves alerts, `webhooks.queue` sends notices.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Protocol

from llm_guard.admin.alerting.raised_alert import RaisedAlert
from llm_guard.resilience.alerts.alert import Severity, rank
from llm_guard.resilience.causes.cause import IncidentCause
from llm_guard.webhooks.notice_sharing import NoticeSharing, NoticeState, NoticeTurn
from llm_guard.webhooks.payloads import RESENT_EVERY_S, Notice, NoticeAlert, plain

IsSilenced = Callable[[RaisedAlert], bool]

_ENDED_KEPT_S = 600.0
"""Seconds for which the other gateways of a fleet can read that a notice has ended: one of them may have been cut off
meanwhile, and its alerts fire on."""
_ENDED_KEPT = 5
_STUCK_S = 30.0
"""Seconds after which another gateway sends a notice that this one cannot deliver."""


class NoticeReceiver(Protocol):
    """Receiver of notices, implemented by `webhooks.queue`."""

    def tell(self, notice: Notice) -> None: ...
    def remind(self, notice: Notice) -> None: ...
    def undelivered(self) -> AbstractSet[str]: ...

    @property
    def is_listening(self) -> bool: ...


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
    sent_at: float = float("-inf")
    """When this gateway has sent a notice last."""
    ended_at: float = 0.0
    """When the last alert resolved, monotonic."""
    ended_wall: float = 0.0
    """The same, in seconds since the epoch."""
    renewals: int = 0
    """How often another gateway has ended the notice while alerts fired here."""

    def firing(self) -> list[RaisedAlert]:
        return [raised for raised in self.members.values() if raised.resolved_at is None]

    def meet(self, others: Iterable[NoticeState], ended: AbstractSet[str], now: float) -> None:
        """Takes over from other gateways since when the cause exists, the notice's id, and what was sent. A notice that
        another one has ended, while alerts fire here, begins again."""
        if self.id in ended:
            self._renew()
        live = [state for state in others if state.id not in ended]
        self.began_at = min([self.began_at, *(now - state.age_s for state in live if state.fires)])
        sent = min((state for state in live if state.told is not None), key=_told_rank, default=None)
        if self.told is None:
            self._rename(min([self.id, *(state.id for state in live if state.fires)]) if sent is None else sent.id)
            self.told = None if sent is None else sent.told
            self.has_news = self.has_news and sent is None
        elif sent is not None and sent.told is not None and sent.id == self.id:
            self.told = _more_severe(self.told, sent.told)

    def _renew(self) -> None:
        self.renewals += 1
        self.told = self.lead = None
        for raised in self.members.values():
            raised.is_told = False
        self._rename(f"{next(iter(self.members.values())).id}+{self.renewals}")

    def _rename(self, id_: str) -> None:
        if id_ != self.id:
            self.id = id_
            for raised in self.members.values():
                raised.incident = id_


class Notifications:
    """Decides which notices are sent, and when."""

    def __init__(self, receiver: NoticeReceiver, sharing: NoticeSharing) -> None:
        self._receiver = receiver
        self._sharing = sharing
        self._groups: dict[IncidentCause, _Group] = {}
        self._ended: dict[IncidentCause, _Group] = {}
        """Groups without a firing alert. The notice of their end is due; another gateway may have to send it."""
        self._over: dict[IncidentCause, deque[tuple[float, str]]] = {}
        """Instant and id of the ends that this gateway has sent lately."""
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
        if earlier is not None and earlier.id != group.id and not _fires(self._sharing.turn(raised.cause), earlier.id):
            self._send_end(raised.cause, earlier, now)
        group.ended_at, group.ended_wall = now, wall
        self._ended[raised.cause] = group
        self._end(raised.cause, group, now)

    def send(self, now: float, wall: float, wait_s: float, is_silenced: IsSilenced) -> None:
        """Sends what is due: the first notice `wait_s` seconds after the first alert, another one only when a more
        severe alert has joined, and reminders. Silenced alerts are left out until the silence ends."""
        is_reminding = now >= self._remind_at
        if is_reminding:
            self._remind_at = now + RESENT_EVERY_S
        self._over = {cause: ends for cause, ends in self._over.items() if now - ends[-1][0] < _ENDED_KEPT_S}
        for cause, group in tuple(self._ended.items()):
            self._end(cause, group, now)
        for cause, group in self._groups.items():
            audible = [raised for raised in group.firing() if not is_silenced(raised)]
            group.worst = _worst(audible).severity if audible else None
            turn = self._sharing.turn(cause)
            group.meet(turn.others, turn.ended | {id_ for _, id_ in self._over.get(cause, ())}, now)
            if not audible:
                continue
            if turn.is_ours:
                self._send_due(group, audible, now, wall, wait_s, is_silenced, is_reminding)
            if group.told is not None:
                for raised in audible:
                    raised.is_told = True

    def states(self, now: float) -> Mapping[IncidentCause, NoticeState]:
        """Returns the state of the notices, for the other gateways of a fleet. An undelivered one counts as not
        sent."""
        if not self._groups and not self._ended and not self._over:
            return {}
        undelivered, is_listening = self._receiver.undelivered(), self._receiver.is_listening
        found = {}
        for cause in {*self._groups, *self._ended, *self._over}:
            ended = tuple(id_ for _, id_ in self._over.get(cause, ()) if id_ not in undelivered)
            group = self._groups.get(cause) or self._ended.get(cause)
            if group is None:
                found[cause] = NoticeState(self._over[cause][-1][1], None, None, ended=ended)
                continue
            is_pending = group.id in undelivered
            found[cause] = NoticeState(
                group.id,
                None if is_pending else group.told,
                group.worst if cause in self._groups else None,
                cause in self._groups,
                ended,
                is_listening and not (is_pending and now - group.sent_at >= _STUCK_S),
                now - group.began_at,
            )
        return found

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
            group.told, group.lead, group.has_news, group.sent_at = worst.severity, worst, False, now
            self._receiver.tell(_notice(group, "firing", worst, audible, worst.severity, wall))
        elif group.told is not None and (is_reminding or group.has_news):
            group.has_news = False
            known = [raised for raised in group.members.values() if not is_silenced(raised)]
            self._receiver.remind(_notice(group, "firing", group.lead or worst, known, group.told, wall))

    def _end(self, cause: IncidentCause, group: _Group, now: float) -> None:
        """Sends the notice of the end, unless another gateway has sent it, or has alerts of this notice and its turn to
        send."""
        turn = self._sharing.turn(cause)
        theirs = [state for state in turn.others if state.id == group.id and not state.is_over]
        goes_on = _fires(turn, group.id)
        if group.id in turn.ended or (goes_on and now - group.ended_at >= _ENDED_KEPT_S):
            del self._ended[cause]
        elif not goes_on and (turn.is_ours or not theirs):
            del self._ended[cause]
            self._send_end(cause, group, now)

    def _send_end(self, cause: IncidentCause, group: _Group, now: float) -> None:
        members = [*group.members.values()]
        told = [member for member in members if member.is_told] or members
        if group.told is not None:
            lead = group.lead or _worst(told)
            self._over.setdefault(cause, deque(maxlen=_ENDED_KEPT)).append((now, group.id))
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


def _fires(turn: NoticeTurn, id_: str) -> bool:
    """Returns whether an alert of this notice fires at another gateway."""
    return any(state.fires and state.id == id_ and not state.is_over for state in turn.others)


def _told_rank(state: NoticeState) -> int:
    return 0 if state.told is None else rank(state.told)


def _more_severe(one: Severity, other: Severity) -> Severity:
    return one if rank(one) <= rank(other) else other
